"""APFL: each client predicts with a mixture of the shared model and one of its own, and learns how to mix.

Deng, Kamani, Mahdavi: Adaptive Personalized Federated Learning, arXiv 2003.13461, 2020.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from fedlib.checks import check_choice
from fedlib.methods.method import Method, Server, State, Upload, Work, everything, hyper
from fedlib.methods.names import named, under
from fedlib.training import Batch, Terms, backward, only, sgd

PERSONAL, OWN = "v", "own"


@dataclass(frozen=True)
class APFL(Method):
    """Client i, from the shared model theta and its own v_i and a_i; in each of E steps, on the same mini-batch,

        vbar  = a_i v_i + (1 - a_i) w_i                        (w_i starts as theta)
        w_i  <- SGD step with  grad F_i(w_i)
        v_i  <- SGD step with  a_i grad F_i(vbar)              (the gradient of F_i(vbar) by v_i)
        a_i  <- clip(a_i - eta <v_i - w_i, grad F_i(vbar)>, 0, 1)

    all three from the values before the step. Server: theta <- sum_i (n_i / n) w_i, which is FedAvg's. v_i and a_i
    never travel; the client predicts with a_i v_i + (1 - a_i) theta. v_i starts as the first theta that the client is
    sent; who has never taken part predicts with theta.

    The equations are those of the spec (6); of the paper no more could be read. Decided here: a_i is learned in every
    step, by plain gradient descent. vbar has running statistics of BatchNorm of its own, which stay with the client.

    mixing: a_i at the start; 0 is FedAvg, and 1 LocalOnly, as long as it stays there. adaptive: whether it is learned.
    mixing_lr: eta; None takes the local rate. The history has the mean of a_i as train_loss[mixing].
    """

    several_labels: ClassVar[bool] = True
    mixing: float = hyper(0.5, least=0.0, most=1.0)
    adaptive: bool = True
    mixing_lr: float | None = hyper(None, above=0.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(f"{type(self).__name__}.adaptive", self.adaptive, (True, False))

    @property
    def differs_by_client(self) -> bool:
        return True

    def client_update(self, work: Work) -> Upload:
        work.model.load_state_dict(work.message)
        pair = Pair.of(work, self.mixing)

        def loss(batch: Batch) -> Terms:
            pair.mix()
            shared, own = self.loss(work.model, batch, work), self.loss(pair.mixed, batch, work)
            now = {"total": shared["total"] + own["total"], "personal": own["total"], "mixing": pair.a.clone()}
            return shared | now

        def gradient(loss: Callable[[], Terms], parameters: Sequence[nn.Parameter]) -> Terms:
            pair.mixed.zero_grad()
            terms = backward(loss, parameters)
            slope = pair.slopes()
            if self.adaptive:
                pair.a.sub_(slope, alpha=work.lr if self.mixing_lr is None else self.mixing_lr).clamp_(0.0, 1.0)
            return terms

        with only(work.model, everything) as w:
            losses = sgd(work.model, work.batches(), loss, [*w, *pair.v.values()], work.local, work.lr, gradient)
        weights, _ = self.divide(work.model)
        return Upload(work.client, weights, pair.memory(), len(work.samples), losses)

    def personal_model(self, server: Server, client: int, memory: State) -> State:
        if not memory:
            return server.weights
        theta, a = server.weights, memory["mixing"]
        vbar = {name: torch.lerp(theta[name], v, a) for name, v in under(PERSONAL, memory).items()}
        return theta | vbar | under(OWN, memory)


@dataclass(frozen=True)
class Pair:
    """w (in the model that is being trained), v and a of one client; mixed: a second network, which holds vbar."""

    w: dict[str, nn.Parameter]
    v: dict[str, nn.Parameter]
    a: Tensor
    mixed: nn.Module

    @staticmethod
    def of(work: Work, mixing: float) -> Pair:
        """w as the model has it; the rest as the client has kept it."""
        w = dict(work.model.named_parameters())
        mixed = copy.deepcopy(work.model)
        mixed.load_state_dict(work.message | under(OWN, work.memory))
        mixed.train()
        kept = under(PERSONAL, work.memory) or work.message
        # As w lies in memory, which is what the optimiser takes for granted of weights and gradients.
        v = {name: nn.Parameter(torch.empty_like(tensor).copy_(kept[name])) for name, tensor in w.items()}
        a = work.memory.get("mixing", next(iter(w.values())).new_tensor(mixing))
        return Pair(w, v, a.detach().clone(), mixed)

    @torch.no_grad()
    def mix(self) -> None:
        """vbar = a v + (1 - a) w; exact for a = 0 and a = 1."""
        for name, vbar in self.mixed.named_parameters():
            vbar.copy_(torch.lerp(self.w[name], self.v[name], self.a))

    @torch.no_grad()
    def slopes(self) -> Tensor:
        """Leave a grad F(vbar) in v, and return <v - w, grad F(vbar)> ()."""
        by_a = torch.zeros_like(self.a)
        for name, vbar in self.mixed.named_parameters():
            if vbar.grad is not None:
                self.v[name].grad = self.a * vbar.grad
                by_a += ((self.v[name] - self.w[name]) * vbar.grad).sum()
        return by_a

    def memory(self) -> State:
        """What stays with the client."""
        v = {name: tensor.detach() for name, tensor in self.v.items()}
        own = {name: tensor.detach() for name, tensor in self.mixed.named_buffers()}
        return named(PERSONAL, v) | named(OWN, own) | {"mixing": self.a}
