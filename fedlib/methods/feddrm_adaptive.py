"""FedDRM whose lambda follows the measured gradient drift: no sweep, no held-out data.

Not in the paper. It solves for lambda in the paper's own bound: Wang, Zhang, Zhang, Liu, Zhang: Beyond Aggregation:
Guiding Clients in Heterogeneous Federated Learning, ICLR 2026, Theorem 2.5.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedlib.checks import FedlibError
from fedlib.methods.feddrm import FedDRM
from fedlib.methods.method import Server, State, Task, Upload, Work, hyper
from fedlib.training import Local, prepare

LOSSES = ("class", "client")


@dataclass(frozen=True)
class FedDRMAdaptive(FedDRM):
    """The theorem bounds the error by a statistical term and by a drift term proportional to

        b(lam) = (1 - lam)^2 G_client^2 + lam^2 G_class^2.

    b is convex, and b'(lam) = 2 lam G_class^2 - 2 (1 - lam) G_client^2 vanishes at

        lam* = G_client^2 / (G_client^2 + G_class^2):

    1/2 when both losses drift alike, 0.8 when the client loss drifts twice as much. The theorem's G is not public; here
    it is the relative drift on the backbone, the only block that both losses train. With u_i^s client i's gradient of
    loss s there, at the weights that came down, and w_i = n_i / sum_j n_j over the clients of the round,

        u^s = sum_i w_i u_i^s,    G_s^2 = sum_i w_i ||u_i^s - u^s||^2 / ||u^s||^2,    s in {class, client}.

    Each round the clients train with lam_t, and send u_i^class and u_i^client beside their weights; the server sets

        lam_(t+1) = clip(inertia * lam_t + (1 - inertia) * lam*, low, high),

    and keeps lam_t where lam* is undefined: with one client, whose client loss is zero. The history tells lam_t as
    train_loss[lam].

    Cost of a round and client: one forward and two backward passes over at most `samples` of its images, evenly spaced
    through them, uncropped; 2 P numbers more up (P: parameters of the backbone), one more down.

    lam: lam_1; 0.5 weighs both losses alike, as the likelihood does, and owes nothing to anyone's sweep.
    low, high: the paper's range is (0.5, 1); at 1 the router would not be trained.
    inertia: share of lam_t that is kept. One round's lam* jumps, because u^s is small and noisy; 0.8 averages over
    about five rounds, 0 follows each round's own measurement.
    """

    lam: float = hyper(0.5, least=0.0, most=1.0)
    low: float = hyper(0.5, least=0.0, most=1.0)
    high: float = hyper(0.95, least=0.0, most=1.0)
    inertia: float = hyper(0.8, least=0.0, below=1.0)
    samples: int = hyper(512, least=1, whole=True)

    def check(self, rounds: int, lr: float, local: Local) -> None:
        if not self.low <= self.lam <= self.high:
            raise FedlibError(
                f"FedDRMAdaptive.lam: {self.lam} is not between low ({self.low}) and high ({self.high}); "
                "give low <= lam <= high"
            )

    def build(self, task: Task) -> nn.Module:
        network = super().build(task)
        if not list(network.backbone.parameters()):  # type: ignore[union-attr]
            raise FedlibError(
                f"FedDRMAdaptive: the backbone of {dict(task.model)} has no parameters on which the drift of both "
                "losses could be measured; give a model with a common backbone, such as small_cnn"
            )
        return network

    def current(self, server: Server) -> Tensor:
        """lam_t, in float64: the clients train with it to the last bit."""
        return server.memory.get("lam", torch.tensor(self.lam, dtype=torch.float64))

    def broadcast(self, server: Server, client: int, memory: State) -> State:
        return server.weights | {"lam": self.current(server)}

    def client_update(self, work: Work) -> Upload:
        lam = float(work.message["lam"])
        weights = {name: tensor for name, tensor in work.message.items() if name != "lam"}
        received = replace(work, message=weights)
        gradients = self.gradients(received)
        upload = FedDRM(lam).client_update(received)
        return replace(upload, losses=upload.losses | {"lam": lam}, extra=gradients)

    def gradients(self, work: Work) -> State:
        """u_i^class and u_i^client, flat."""
        self.start(work)
        work.model.eval()
        stride = -(-len(work.samples) // self.samples)
        x, y = prepare(work.samples.images[::stride]), work.samples.labels[::stride]
        a, c = work.model(x)
        losses = (F.cross_entropy(a, y), F.cross_entropy(c, torch.full_like(y, work.client)))
        backbone = list(work.model.backbone.parameters())  # type: ignore[union-attr]
        found = (torch.autograd.grad(loss, backbone, retain_graph=True) for loss in losses)
        return {s: torch.cat([part.flatten() for part in parts]) for s, parts in zip(LOSSES, found, strict=True)}

    def aggregate(self, server: Server, uploads: Iterable[Upload]) -> Server:
        drifts = {s: Drift() for s in LOSSES}

        def measured() -> Iterator[Upload]:
            for upload in uploads:
                for s, drift in drifts.items():
                    drift.add(upload.extra[s], upload.samples)
                yield upload

        after = super().aggregate(server, measured())
        best = best_lam(drifts["client"].square(), drifts["class"].square())
        lam = self.current(server).to(best.device)
        moved = (self.inertia * lam + (1.0 - self.inertia) * best).clamp(self.low, self.high)
        return replace(after, memory={"lam": torch.where(best.isfinite(), moved, lam)})


def best_lam(client: Tensor, target: Tensor) -> Tensor:
    """lam* from G_client^2 and G_class^2; NaN where both are zero."""
    return client / (client + target)


class Drift:
    """G^2, one client at a time: sum_i w_i ||u_i - u||^2 = sum_i w_i ||u_i||^2 - ||u||^2, in float64."""

    def __init__(self) -> None:
        self.n = 0.0
        self.total: Tensor | float = 0.0
        self.squares: Tensor | float = 0.0

    def add(self, u: Tensor, n: float) -> None:
        u = u.double()
        self.n += n
        self.total = self.total + n * u
        self.squares = self.squares + n * u.square().sum()

    def square(self) -> Tensor:
        """sum_i w_i ||u_i - u||^2 / ||u||^2; NaN where all u_i are zero."""
        return (self.n * self.squares / torch.as_tensor(self.total).square().sum() - 1.0).clamp(min=0.0)
