"""FedSA: semantic anchors, one a class and the same for all clients, stand where others put local prototypes.

Zhou, Qu, You, Zhou, Tang, Zheng, Cai, Wu: FedSA: A Unified Representation Learning via Semantic Anchors for
Prototype-based Federated Learning, AAAI 2025.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedlib.data.federation import Samples
from fedlib.forward import embeddings
from fedlib.methods.method import Method, Server, State, Task, Upload, Work, hyper
from fedlib.streams import torch_stream
from fedlib.training import Batch, Terms

OWN = ("anchors", "gap")
"""What travels and is no part of the network."""


@dataclass(frozen=True)
class FedSA(Method):
    """With z the input of the head h (d numbers) and a_k the anchor of class k of K, client i minimises the mean over
    a mini-batch of

        CE(y; h(z)) + calibration    * (1 / K) sum_k CE(k; h(a_k))
                    + regularisation * ||z - a_y||^2 / d
                    + contrast       * CE(y; -(||z - a_k|| + gap * 1[k = y])_k),    gap = max(gap_i, gap_0)

    With mu_ik the mean of z over its n_ik samples of class k, under its trained model, and

        g(c) = mean over the classes k that c has of  min_{l != k} ||c_k - c_l||      (0 if there are fewer than two)

    it keeps gap_i = g(mu_i). Server, over this round's clients:

        theta <- sum_i (n_i / n) theta_i,   c_k = sum_i n_ik mu_ik / sum_i n_ik,   gap_0 = g(c)
        a_k   <- decay * a_k + (1 - decay) * c_k          (a class that nobody has keeps its anchor)

    At the start a_k = W r_k with r_k ~ N(0, I_d) and W_jl ~ N(0, 1 / d): a function of the seed, K and d alone.

    Only a summary of the method was at hand. Not stated in what could be read, and decided here: the weights of the
    three terms (1 each); the projection (a random linear map of d x d, without bias or ReLU, never trained); that the
    head is calibrated on all K anchors, also for classes that the client lacks; that g takes the means over classes
    before the maximum, of mu_i of the client's own last round and of c; gap = 0 until there are class means; mu_ik on
    the whole images after training. The original sends class means alone; here the weights are averaged too, so that
    there is one model to compare.

    decay: of the exponential moving average. It moves an anchor by 1 % in a hundred rounds.
    """

    calibration: float = hyper(1.0, least=0.0)
    regularisation: float = hyper(1.0, least=0.0)
    contrast: float = hyper(1.0, least=0.0)
    decay: float = hyper(0.9999, least=0.0, most=1.0)

    def remember(self, task: Task) -> State:
        with torch.device("meta"):  # the width alone is wanted: nothing is drawn
            d = task.network().width
        stream = torch_stream(task.seed, "semantic anchors")
        W = torch.randn(d, d, generator=stream) / d**0.5
        r = torch.randn(task.classes, d, generator=stream)
        return {"anchors": r @ W.T, "gap": torch.zeros(())}

    def broadcast(self, server: Server, client: int, memory: State) -> State:
        return server.weights | {name: server.memory[name] for name in OWN}

    def start(self, work: Work) -> None:
        work.model.load_state_dict({name: tensor for name, tensor in work.message.items() if name not in OWN})

    def loss(self, model: nn.Module, batch: Batch, work: Work) -> Terms:
        a, gap = work.message["anchors"], work.message["gap"]
        if "gap" in work.memory:
            gap = torch.maximum(gap, work.memory["gap"])
        z = model.embed(batch.x)  # type: ignore[operator]
        target = F.cross_entropy(model.head(z), batch.y)  # type: ignore[operator]
        every = torch.arange(len(a), device=a.device)
        calibration = F.cross_entropy(model.head(a), every)  # type: ignore[operator]
        regularisation = (z - a[batch.y]).square().mean()
        contrast = margin_contrast(z, batch.y, a, gap)
        total = target + self.calibration * calibration
        total = total + self.regularisation * regularisation + self.contrast * contrast
        terms = {"target": target, "calibration": calibration, "regularisation": regularisation, "contrast": contrast}
        return terms | {"total": total}

    def upload(self, work: Work, losses: dict[str, float]) -> Upload:
        upload = super().upload(work, losses)
        mu, counts = class_means(work.model, work.samples, len(work.message["anchors"]))
        kept = {"gap": mean_least_distance(mu[counts > 0])}
        return replace(upload, memory=kept, extra={"class_means": mu, "class_counts": counts})

    def aggregate(self, server: Server, uploads: Iterable[Upload]) -> Server:
        means: list[Tensor] = []
        counts: list[Tensor] = []

        def noted() -> Iterator[Upload]:
            for upload in uploads:
                means.append(upload.extra["class_means"].double())
                counts.append(upload.extra["class_counts"].double())
                yield upload

        after = super().aggregate(server, noted())
        n = torch.stack(counts)
        c = torch.einsum("ik,ikd->kd", n, torch.stack(means)) / n.sum(0).clamp(min=1.0)[:, None]
        known = n.sum(0) > 0
        a = server.memory["anchors"]
        moved = torch.where(known[:, None], self.decay * a + (1.0 - self.decay) * c, a.double())
        mine = {"anchors": moved.float(), "gap": mean_least_distance(c[known]).float()}
        return replace(after, memory=after.memory | mine)

    def personal_model(self, server: Server, client: int, memory: State) -> State:
        return server.weights


def margin_contrast(z: Tensor, y: Tensor, a: Tensor, gap: Tensor) -> Tensor:
    """Mean over the batch of CE(y; -(||z - a_k|| + gap * 1[k = y])_k); z (N, d), a (K, d)."""
    distances = torch.linalg.vector_norm(z[:, None] - a, dim=2)
    return F.cross_entropy(-(distances + gap * F.one_hot(y, len(a))), y)


def mean_least_distance(c: Tensor) -> Tensor:
    """g: from each of the rows (K, d) to the nearest other one, in the mean; 0 for fewer than two rows."""
    if len(c) < 2:
        return c.new_zeros(())
    apart = torch.linalg.vector_norm(c[:, None] - c, dim=2)
    return apart.fill_diagonal_(torch.inf).amin(1).mean()


def class_means(model: nn.Module, samples: Samples, classes: int) -> tuple[Tensor, Tensor]:
    """mu (K, d) and n_k (K,), float32, in evaluation mode; a class without samples has the mean 0."""
    sums = [F.one_hot(y, classes).double().T @ z.double() for z, y in embeddings(model, samples)]
    counts = torch.bincount(samples.labels, minlength=classes)
    mu = torch.stack(sums).sum(0) / counts.clamp(min=1)[:, None]
    return mu.float(), counts.float()
