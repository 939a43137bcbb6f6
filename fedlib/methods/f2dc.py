"""F²DC: Wang, Shen, Yan, Pang, Domain-Skewed Federated Learning with Feature Decoupling and Calibration, CVPR 2026."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedlib.checks import FedlibError, check_choice
from fedlib.data.federation import Federation
from fedlib.methods.method import Method, Server, State, Task, Upload, Work, hyper
from fedlib.models.network import Network
from fedlib.streams import torch_stream
from fedlib.training import Batch, Terms
from fedlib.votes import first_argmax

MODULES = ("decoupler.", "corrector.", "auxiliary.")
READINGS = ("classes", "sizes", "domains")
MASKS = ("learned", "random", "none")


def attribution(d: int, layers: int) -> nn.Sequential:
    """A_D and A_C: 3x3 convolutions by way of d / 8 channels (layers 2: paper), or of 50 d / 512 (layers 3: code)."""
    inner = max(1, d // 8 if layers == 2 else round(50 * d / 512))

    parts: OrderedDict[str, nn.Module] = OrderedDict()
    for i in range(1, layers):
        parts[f"conv{i}"] = nn.Conv2d(d if i == 1 else inner, inner, 3, padding=1, bias=False)
        parts[f"norm{i}"] = nn.BatchNorm2d(inner)
        parts[f"relu{i}"] = nn.ReLU()
    parts[f"conv{layers}"] = nn.Conv2d(inner, d, 3, padding=1, bias=False)
    return nn.Sequential(parts)


def concrete_mask(S: Tensor, sigma: float, generator: torch.Generator | None) -> Tensor:
    """The Gumbel-Concrete mask of DFD in its stable form: M = sigmoid((S + l) / sigma), l ~ Logistic(0, 1).

    l = g_a - g_b is the difference of the two Gumbel variables, fresh for each unit; None: no noise, l = 0.
    """
    if generator is None:
        return torch.sigmoid(S / sigma)
    u = torch.rand(S.shape, generator=generator, device=generator.device).to(S.device)
    return torch.sigmoid((S + torch.logit(u, eps=1e-7)) / sigma)


class Parts(NamedTuple):
    """The map f and what becomes of it, each (N, d, H, W)."""

    f: Tensor
    mask: Tensor
    robust: Tensor
    related: Tensor
    corrected: Tensor
    calibrated: Tensor


class CalibratedNetwork(nn.Module):
    """A network whose map f = r^B(x) is decoupled and calibrated before it is pooled by r^F and classified by h.

    f+ = M * f,  f- = (1 - M) * f                                                     (DFD, Eqs 3-5)
    f* = f- + (1 - M) * A_C(f-),  f~ = f+ + f*                                        (DFC, Eqs 6-8)

    hence f~ = f + (1 - M) * A_C((1 - M) * f). Masks are drawn inside `drawing` only, from `noise`, which is set where a
    client's work begins, and deterministic elsewhere.
    mask: "learned"; two controls: "random", S = 0; "none", M = 0, so that f~ = f + A_C(f).
    """

    def __init__(self, network: Network, classes: int, sigma: float, layers: int, mask: str) -> None:
        super().__init__()
        d = network.width
        self.backbone, self.transform, self.head = network.backbone, network.transform, network.head
        self.decoupler, self.corrector = attribution(d, layers), attribution(d, layers)
        self.calibrated = nn.Identity()
        self.auxiliary = nn.Linear(d, classes)
        self.sigma, self.mask = sigma, mask
        self.noise: torch.Generator | None = None
        self._generator: torch.Generator | None = None
        self._drawn: list[Parts] | None = None

    def forward(self, images: Tensor) -> Tensor:
        """Class logits h(r^F(f~))."""
        return self.head(self.embed(images))

    def embed(self, images: Tensor) -> Tensor:
        """r^F(f~), (N, d)."""
        parts = self.calibrate(self.backbone(images), self._generator)
        if self._drawn is not None:
            self._drawn.append(parts)
        return self.transform(self.calibrated(parts.calibrated))

    def calibrate(self, f: Tensor, generator: torch.Generator | None = None) -> Parts:
        """All maps that come from f; generator: of the mask's noise, None for the deterministic mask."""
        if self.mask == "none":
            M = torch.zeros_like(f)
        else:
            S = self.decoupler(f) if self.mask == "learned" else torch.zeros_like(f)
            M = concrete_mask(S, self.sigma, generator)
        robust, related = M * f, (1 - M) * f
        corrected = related + (1 - M) * self.corrector(related)
        return Parts(f, M, robust, related, corrected, robust + corrected)

    @contextmanager
    def drawing(self) -> Iterator[list[Parts]]:
        """Masks are noisy meanwhile; yields a list to which each forward pass adds its maps."""
        if self.noise is None:
            raise FedlibError("CalibratedNetwork: no stream for the masks' noise; call the method's start first")
        self._generator, self._drawn = self.noise, []
        try:
            yield self._drawn
        finally:
            self._generator, self._drawn = None, None


def likeliest_wrong(logits: Tensor, y: Tensor) -> Tensor:
    """y^ (N,): the most confident label that is not y; ties go to the lowest. No gradient."""
    return first_argmax(logits.detach().scatter(1, y[:, None], -math.inf))


@dataclass(frozen=True)
class Calibration(Method):
    """Feature decoupling (DFD) and correction (DFC), on top of any method whose network ends in a map that is pooled.

    With l = r^F(f) of each map, m the auxiliary head, s the cosine similarity, to the method's own loss are added

        lam1 * L_DFD,  L_DFD = s(l+, l-) / tau + CE(m(l+), y) + CE(m(l-), y^)                             (Eqs 3-5)
        lam2 * L_DFC,  L_DFC = CE(m(l*), y)                                                               (Eqs 6-8)

    The paper writes log exp(s / tau), which is s / tau. y^: the likeliest wrong label under the main classifier h.

    lam1, lam2: weights of the two losses. tau: scale of the separation; sigma: temperature of the mask.
    layers: of A_D and A_C, 2 (paper) or 3 (code at its last commit). mask: see CalibratedNetwork.
    """

    lam1: float = hyper(0.8, least=0.0)
    lam2: float = hyper(1.0, least=0.0)
    tau: float = hyper(0.06, above=0.0)
    sigma: float = hyper(0.1, above=0.0)
    layers: int = hyper(2, least=2, most=3, whole=True)
    mask: str = "learned"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(f"{type(self).__name__}.mask", self.mask, MASKS)
        if self.mask == "none" and self.lam1 > 0:
            raise FedlibError(
                f"{type(self).__name__}: mask 'none' with lam1 {self.lam1} has nothing to decouple (f+ is 0, and f- "
                "all of f, which would be trained towards a wrong label); give lam1: 0"
            )

    def build(self, task: Task) -> nn.Module:
        network = super().build(task)
        first = next(network.transform.children(), None) if isinstance(network, Network) else None
        if not isinstance(network, Network) or not isinstance(first, nn.AdaptiveAvgPool2d):
            raise FedlibError(
                f"{type(self).__name__} decouples the map that the network pools at its end, and model "
                f"{task.model['name']} has none; take resnet10"
            )
        return CalibratedNetwork(network, task.classes, self.sigma, self.layers, self.mask)

    def start(self, work: Work) -> None:
        """The masks' noise has a random stream of its own, so that mini-batches are those of every other method."""
        super().start(work)
        assert isinstance(work.model, CalibratedNetwork)
        work.model.noise = torch_stream(work.generator.initial_seed(), "mask")

    def loss(self, model: nn.Module, batch: Batch, work: Work) -> Terms:
        assert isinstance(model, CalibratedNetwork)
        with model.drawing() as drawn:
            terms = super().loss(model, batch, work)
        maps, m = drawn[0], model.auxiliary
        plus, minus, star = (model.transform(f) for f in (maps.robust, maps.related, maps.corrected))
        wrong = likeliest_wrong(model.head(model.transform(maps.calibrated)), batch.y)
        cosine = F.cosine_similarity(plus, minus, eps=1e-8).mean()
        decoupling = cosine / self.tau + F.cross_entropy(m(plus), batch.y) + F.cross_entropy(m(minus), wrong)
        correction = F.cross_entropy(m(star), batch.y)
        total = terms["total"] + self.lam1 * decoupling + self.lam2 * correction
        record = {"decoupling": decoupling, "correction": correction, "cosine": cosine, "mask": maps.mask.mean()}
        return terms | record | {"total": total}


@dataclass(frozen=True)
class DomainAware(Method):
    """Domain-aware aggregation (DaA, Eqs 10 and 11), in place of n_k / N: theta <- sum_k p_k theta_k,

        p_k = sigmoid(alpha n_k / N - beta d_k) / sum_j (the same),
        d_k = sqrt(1/2 sum_c (n_k^c / N - 1 / Q)^2)

    n_k^c: samples of class c at client k; N: of all clients; Q: number of the clients' domains, which the server has
    to know. The paper mixes classes and domains in d_k; two other readings are kept (spec, 1.5):
    "sizes", sqrt(C / 2) |n_k / N - 1 / Q|, and "domains", sqrt(1/2 [(n_k / N - 1 / Q)^2 + (Q - 1) / Q^2]).
    """

    alpha: float = hyper(1.0, least=0.0, most=100.0)
    beta: float = hyper(0.4, least=0.0, most=100.0)
    reading: str = "classes"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(f"{type(self).__name__}.reading", self.reading, READINGS)

    def check_clients(self, federation: Federation) -> None:
        super().check_clients(federation)
        for i, client in enumerate(federation.clients):
            if client.domain < 0:
                raise FedlibError(
                    f"{type(self).__name__}: client {i} holds no one domain, and DaA counts the clients' domains (Q); "
                    "take a partition by_domain, or a method without DaA (Calibration)"
                )

    def remember(self, task: Task) -> State:
        if not task.domains:
            raise FedlibError(f"{type(self).__name__}: the task names no client's domain, and DaA needs their number Q")
        known = {"N": torch.tensor(float(sum(task.sizes))), "Q": torch.tensor(float(len(set(task.domains))))}
        return super().remember(task) | known

    def upload(self, work: Work, losses: dict[str, float]) -> Upload:
        counts = torch.bincount(work.samples.labels, minlength=len(work.message["head.bias"]))
        upload = super().upload(work, losses)
        return replace(upload, extra=upload.extra | {"class_counts": counts})

    def weight(self, server: Server, upload: Upload) -> float:
        N, Q = float(server.memory["N"]), float(server.memory["Q"])
        return domain_aware(upload.extra["class_counts"], N, Q, self.alpha, self.beta, self.reading)


def domain_aware(counts: Tensor, N: float, Q: float, alpha: float, beta: float, reading: str = "classes") -> float:
    """Eq. 10 and 11 before normalisation: sigmoid(alpha n_k / N - beta d_k); counts: n_k^c, (C,)."""
    n = float(counts.sum())
    off = n / N - 1 / Q
    d = {
        "classes": float((0.5 * (counts.double() / N - 1 / Q).square().sum()).sqrt()),
        "sizes": math.sqrt(len(counts) / 2) * abs(off),
        "domains": math.sqrt(0.5 * (off**2 + (Q - 1) / Q**2)),
    }[reading]
    return 1 / (1 + math.exp(beta * d - alpha * n / N))


@dataclass(frozen=True)
class F2DC(Calibration, DomainAware):
    """Client k minimises CE(h(r^F(f~)), y) + lam1 L_DFD + lam2 L_DFC (Eq. 9), with one insertion, after layer4; the
    server aggregates by DaA.

    modules: "shared", all that is trained is averaged (the code: one model for all); "local", A_D, A_C and m stay with
    their client (the paper), and a domain is tested with the mean of its clients' modules.

    Parts of it are methods of their own: Calibration (no DaA: what the released code runs), DomainAware (only DaA).
    """

    modules: str = "shared"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(f"{type(self).__name__}.modules", self.modules, ("shared", "local"))

    def shared(self, name: str) -> bool:
        return super().shared(name) and (self.modules == "shared" or not name.startswith(MODULES))
