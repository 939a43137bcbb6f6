"""FedEM: every client's distribution is a mixture of K common ones, fitted by expectation maximisation.

Marfoq, Neglia, Bellet, Kameni, Vidal: Federated Multi-Task Learning under a Mixture of Distributions, NeurIPS 2021.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedlib.checks import check_choice
from fedlib.data.federation import Samples
from fedlib.forward import class_scores
from fedlib.methods.method import Method, Server, State, Task, Upload, Work, hyper
from fedlib.methods.several import INITS, Several
from fedlib.training import Batch, Terms, only, sgd

PI = "head.pi"


class Mix(nn.Module):
    """log sum_k pi_k softmax(z_k): logits z (N, K, classes) of K networks -> (N, classes). pi (K,) starts uniform."""

    pi: Tensor

    def __init__(self, K: int) -> None:
        super().__init__()
        self.register_buffer("pi", torch.full((K,), 1.0 / K))

    def forward(self, z: Tensor) -> Tensor:
        return (z.log_softmax(-1) + self.pi.log()[:, None]).logsumexp(1)


class Mixture(nn.Module):
    """K networks, theta_k under "models.k. …", and their mixed prediction: images -> log-probabilities (N, classes)."""

    def __init__(self, models: Sequence[nn.Module]) -> None:
        super().__init__()
        self.models = nn.ModuleList(models)
        self.head = Mix(len(models))

    def forward(self, images: Tensor) -> Tensor:
        return self.head(torch.stack([model(images) for model in self.models], dim=1))


@dataclass(frozen=True)
class FedEM(Method):
    """theta_1 … theta_K on the server; client i keeps pi_i on the simplex, which never travels and starts uniform.
    Client i, which is sent all K models:

        E-step   l_jk    = -log p(y_j | x_j; theta_k)    on its n_i training samples of the round, as they are, in
                                                         evaluation mode
                 q_jk    = pi_ik exp(-l_jk) / sum_k' pi_ik' exp(-l_jk')
                 pi_ik   = (1/n_i) sum_j q_jk
        M-step   theta_ik <- E steps of SGD on  mean_j q_jk l_j(theta_ik)  over mini-batches, from theta_k,  for all k

    and sends all theta_ik. Server:  theta_k <- sum_i (n_i / n) theta_ik, whatever the pi_ik.
    Prediction:  p(y | x) = sum_k pi_ik softmax_k(x)_y. K = 1 is FedAvg.

    The network of server and clients is the whole mixture, so that a client's state tells all that it predicts with.
    An unknown client is answered by the K models one by one (`served`: one-hot pi). The mean of clients' pi_i is the
    mixture of mean prediction; so these models have a mean over a domain.

    The paper's full text was not available: the equations are the spec's (6), checked against the authors'
    implementation. There every model shuffles the samples for itself; here all meet the same mini-batches. A model with
    pi_ik = 0 is left out of client i's M-step and comes back as it was, untouched by weight decay, as in the
    implementation of FedRC. The paper's decentralised form is left out.

    K: models. init: of the K models, as in Several. The history's train_loss is sum_k mean_j q_jk l_jk.
    """

    K: int = hyper(3, least=1, whole=True)
    init: str = "independent"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(f"{type(self).__name__}.init", self.init, INITS)

    def build(self, task: Task) -> nn.Module:
        return Mixture([task.network() for _ in range(self.K)])

    def shared(self, name: str) -> bool:
        return name != PI

    def begin(self, model: nn.Module, task: Task) -> State:
        """theta_1 is the network that methods with one model start from."""
        theta = Several(K=self.K, init=self.init).begin(networks(model)[0], task)
        return {f"models.{name.replace('/', '.', 1)}": tensor for name, tensor in theta.items()}

    def client_update(self, work: Work) -> Upload:
        self.start(work)
        q = self.expectation(work, self.sample_losses(work))
        cast(Mixture, work.model).head.pi.copy_(q.mean(0))
        losses = self.maximisation(work, q)
        return replace(self.upload(work, losses), extra=self.beside(work, q))

    def sample_losses(self, work: Work) -> Tensor:
        """l (n_i, K), float64: one pass a model."""
        x, y = work.samples.images, work.samples.labels
        logits = (class_scores(network, x, self.class_logits) for network in networks(work.model))
        return torch.stack([F.cross_entropy(z.double(), y, reduction="none") for z in logits], dim=-1)

    def expectation(self, work: Work, losses: Tensor) -> Tensor:
        """q (n_i, K), float64, of the losses l (n_i, K)."""
        return posterior(work.memory[PI], -losses)

    def maximisation(self, work: Work, q: Tensor) -> dict[str, float]:
        """The M-step; its mean loss."""
        y, theta = work.samples.labels, networks(work.model)
        weighed = [k for k, pi_k in enumerate(q.mean(0).tolist()) if pi_k != 0]  # NaN counts: sgd names it
        weights = q.float()

        def loss(batch: Batch) -> Terms:
            j = batch.y  # which samples these are: see numbered
            terms = [weights[j, k] * self.losses_of(theta[k], batch.x, y[j]) for k in weighed]
            total = torch.stack(terms).sum(0).mean()
            return {"total": total, "target": total}

        with only(work.model, lambda name: int(name.split(".")[1]) in weighed) as parameters:
            return sgd(work.model, numbered(work).batches(), loss, parameters, work.local, work.lr, self.gradient)

    def losses_of(self, network: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        """(B,): the cross-entropy of each sample of a mini-batch."""
        return F.cross_entropy(self.class_logits(network(x)), y, reduction="none")

    def beside(self, work: Work, q: Tensor) -> State:
        """What goes up beside the models."""
        return {}

    def served(self, server: Server) -> list[State]:
        like = next(iter(server.weights.values()))
        return [server.weights | {PI: alone} for alone in torch.eye(self.K, device=like.device)]


def networks(model: nn.Module) -> nn.ModuleList:
    """The K networks of a Mixture."""
    return cast(Mixture, model).models


def numbered(work: Work) -> Work:
    """The same work, with the samples' positions 0 … n_i - 1 in place of their labels."""
    images, y = work.samples.images, work.samples.labels
    return replace(work, samples=Samples(images, torch.arange(len(y), device=y.device)))


def posterior(pi: Tensor, log_likelihood: Tensor) -> Tensor:
    """q_jk = pi_k exp(a_jk) / sum_k' pi_k' exp(a_jk'), float64; pi (K,), a = log_likelihood (n, K) -> (n, K)."""
    return (pi.double().log() + log_likelihood).softmax(-1)
