"""What FedFew's released code ran where it differs from the methods' own papers in a way that changes results.

Each class changes one step and names the finding (trap numbers: the specification's section 7).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from fedlib.methods.ditto import Ditto
from fedlib.methods.fedfew import FedFew
from fedlib.methods.fedprox import FedProx
from fedlib.methods.ifca import IFCA, cluster_of
from fedlib.methods.method import Server, State, Upload, Work, hyper
from fedlib.streams import torch_stream
from fedlib.training import prepare


@dataclass(frozen=True)
class FedFewAsReleased(FedFew):
    """Traps 6 to 10: K identical copies, told apart by their mini-batches alone; BatchNorm's statistics stay with the
    client; models are chosen on training samples; L_ik is the loss on the way; and n_i / n stands in the exponent, so
    that large clients look hard. smoothing: the default that every configuration ran.

    Trap 2: its accuracies are those of the models after local training, chosen among then: the probe `adapted`.
    """

    init: str = "same"
    selection: str = "train"
    smoothing: float = hyper(0.01, least=1.0e-6)
    loss_scale: str = "share"
    probe: str = "running"
    norms: str = "local"


@dataclass(frozen=True)
class FedProxInFedFew(FedProx):
    """Trap 4: mu is 0 by default and set by no configuration: FedAvg."""

    mu: float = hyper(0.0, least=0.0)


@dataclass(frozen=True)
class DittoInFedFew(Ditto):
    """Trap 4: lam is 0 by default and set by no configuration: the personal models are trained by each client alone."""

    lam: float = hyper(0.0, least=0.0)


@dataclass(frozen=True)
class IFCAAsReleased(IFCA):
    """Trap 5 and section 6: K identical copies, whose losses differ only by float rounding over the order of the
    samples, so that the first clusters are arbitrary; BatchNorm's statistics stay with the client in training, and an
    averaged model has those of one member of its cluster (there the first drawn, here the first by number).

    Clients choose on training samples, for training and for the test.
    """

    init: str = "same"
    selection: str = "train"

    def received_losses(self, work: Work, theta: Sequence[State]) -> list[float]:
        stream = torch_stream(work.generator.initial_seed(), "clusters")
        return [_shuffled_loss(work, state, self.class_logits, stream) for state in theta]

    def upload(self, work: Work, losses: dict[str, float]) -> Upload:
        sent = super().upload(work, losses)
        trained = {name for name, _ in work.model.named_parameters()}
        weights = {name: tensor for name, tensor in sent.weights.items() if name in trained}
        statistics = {name: tensor for name, tensor in sent.weights.items() if name not in trained}
        return replace(sent, weights=weights, memory=statistics, extra=statistics)

    def aggregate(self, server: Server, uploads: Iterable[Upload]) -> Server:
        borrowed: State = {}

        def watched() -> Iterator[Upload]:
            for upload in uploads:
                k = cluster_of(upload)
                borrowed.update({f"{k}/{n}": w for n, w in upload.extra.items() if f"{k}/{n}" not in borrowed})
                yield upload

        after = super().aggregate(server, watched())
        return replace(after, weights=after.weights | borrowed)


@torch.no_grad()
def _shuffled_loss(
    work: Work, state: State, class_logits: Callable[[Tensor], Tensor], generator: torch.Generator
) -> float:
    """The mean of the mini-batches' mean losses, as float32, in an order of its own; in evaluation mode."""
    work.model.load_state_dict(state)
    work.model.eval()
    order = torch.randperm(len(work.samples), generator=generator).to(work.samples.labels.device)
    total = torch.zeros((), dtype=torch.float64, device=order.device)
    for index in order.split(work.local.batch_size):
        logits = class_logits(work.model(prepare(work.samples.images[index])))
        total += F.cross_entropy(logits, work.samples.labels[index]).double() * len(index)
    return float(total / len(work.samples))
