"""pFedMe: personal models near a shared one, which follows them by the gradient of their Moreau envelopes.

Dinh, Tran, Nguyen: Personalized Federated Learning with Moreau Envelopes, NeurIPS 2020.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from fedlib.checks import FedlibError
from fedlib.methods.method import Method, Server, Upload, Work, as_like, everything, hyper
from fedlib.models.network import is_statistic
from fedlib.training import Batch, Local, Terms, only, sgd


@dataclass(frozen=True)
class PFedMe(Method):
    """Client k, from w_k = theta; in each of E steps, on one mini-batch,

        v   ~ argmin_v F_k(v) + (lam / 2) ||v - w_k||^2        (`inner` steps of SGD on that mini-batch)
        w_k <- w_k - eta lam (w_k - v)                         (eta: the local rate)

    Server: theta <- (1 - beta) theta + beta sum_k (n_k / n) w_k. The last v stays with the client and is what it
    predicts with; who has never taken part predicts with theta. A step costs `inner` of FedAvg's.

    The equations are those of the spec (6); of the paper no more could be read. Decided here: the search for v starts
    at theta in the first step of a round and at the last v in the later ones, and is plain SGD, without the
    experiment's momentum; its weight decay is a part of F_k. Clients weigh n_k / n, as in all methods of this
    collection. BatchNorm's running statistics are those of the passes at v: one set, which stays with v and goes up
    beside w_k; theta takes their mean, whatever beta.

    inner_lr: rate of the search; None takes eta. inner_lr * lam and eta * lam are refused from 2 on, where the leash
    alone makes SGD diverge. From afar, `inner` steps go 1 - (1 - inner_lr lam)^inner of the way to the minimiser, or
    less: a third for 5 steps at rate 0.005 and lam 15.
    """

    several_labels: ClassVar[bool] = True
    lam: float = hyper(15.0, above=0.0)
    inner: int = hyper(5, least=1, whole=True)
    inner_lr: float | None = hyper(None, above=0.0)
    beta: float = hyper(1.0, above=0.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.inner_lr is not None:
            self.need_stable(f"{type(self).__name__}.inner_lr", self.inner_lr)

    def need_stable(self, name: str, rate: float) -> None:
        """Raise unless SGD on (lam / 2) ||v - w||^2 converges at this rate."""
        lam = f"{type(self).__name__}.lam"
        if rate * self.lam >= 2:
            raise FedlibError(
                f"{name}: {rate:g} times {lam} = {self.lam:g} is {rate * self.lam:g}, and SGD diverges from 2 on; "
                f"give a rate below {2 / self.lam:g}, or lower lam"
            )

    def check(self, rounds: int, lr: float, local: Local) -> None:
        self.need_stable("lr", lr)

    @property
    def differs_by_client(self) -> bool:
        return True

    def loss(self, model: torch.nn.Module, batch: Batch, work: Work) -> Terms:
        """F_k(v) + (lam / 2) ||v - w_k||^2, where w_k is in work.message."""
        terms = super().loss(model, batch, work)
        distance = sum((v - work.message[name]).square().sum() for name, v in model.named_parameters())
        return terms | {"total": terms["total"] + 0.5 * self.lam * distance}

    def client_update(self, work: Work) -> Upload:
        work.model.load_state_dict(work.message)
        w_k = {name: tensor.detach().clone() for name, tensor in work.model.named_parameters()}
        step = replace(work, message=w_k)

        def searches() -> Iterator[Batch]:
            for batch in work.batches():
                for _ in range(self.inner):
                    yield batch
                with torch.no_grad():  # the last inner step has been made: sgd asks for what comes next
                    for name, v in work.model.named_parameters():
                        w_k[name].sub_(w_k[name] - v, alpha=work.lr * self.lam)

        def loss(batch: Batch) -> Terms:
            return self.loss(work.model, batch, step)

        rate, plain = work.lr if self.inner_lr is None else self.inner_lr, replace(work.local, momentum=0.0)
        with only(work.model, everything) as parameters:
            losses = sgd(work.model, searches(), loss, parameters, plain, rate)
        v, _ = self.divide(work.model)
        return Upload(work.client, v | w_k, v, len(work.samples), losses)

    def aggregate(self, server: Server, uploads: Iterable[Upload]) -> Server:
        now, theta = super().aggregate(server, uploads), server.weights
        if self.beta == 1:
            return now

        def mixed(name: str) -> torch.Tensor:
            old, mean = theta[name], now.weights[name]
            return mean if is_statistic(name) else as_like(old, torch.lerp(old.double(), mean.double(), self.beta))

        return replace(now, weights={name: mixed(name) for name in theta})
