"""What FedDRM's released code ran where it differs from the methods' own papers in a way that changes results.

Each class changes one step and names the finding (trap numbers: the specification's section 7).
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import nn

from fedlib.methods.confree import move, original_projections
from fedlib.methods.ditto import Ditto
from fedlib.methods.fedas import own_head
from fedlib.methods.fedavg import FedAvg
from fedlib.methods.fedavg_ft import FedAvgFT
from fedlib.methods.fedbabu import FedBABU
from fedlib.methods.feddrm import FedDRM
from fedlib.methods.fedper import FedPer
from fedlib.methods.fedprox_ft import FedProxFT
from fedlib.methods.fedrep import FedRep
from fedlib.methods.fedsam import FedSAMFT
from fedlib.methods.method import Server, State, Upload, Work, hyper
from fedlib.methods.names import named, under
from fedlib.training import Batch, Terms, only, sgd


@dataclass(frozen=True)
class FedDRMAsReleased(FedDRM):
    """Trap 1: the committed configuration has lam = 0.9, the paper's analysis 0.8."""

    lam: float = hyper(0.9, least=0.0, most=1.0)


@dataclass(frozen=True)
class FedRepAsReleased(FedRep):
    """Fairness note of section 6: E is divided between the phases, so the body is trained for E // 2 steps only."""

    def body_steps(self, work: Work) -> int:
        return max(1, super().body_steps(work) // 2)


@dataclass(frozen=True)
class FedAvgFTOnCosine(FedAvgFT):
    """Section 6: fine-tuning goes on with the cosine, whose rate is nearly zero in the last rounds."""

    ft_lr: float | None = hyper(None, above=0.0)


@dataclass(frozen=True)
class FedProxFTOnCosine(FedProxFT):
    """Section 6: as FedAvgFTOnCosine."""

    ft_lr: float | None = hyper(None, above=0.0)


@dataclass(frozen=True)
class FedSAMFTOnCosine(FedSAMFT):
    """Section 6: as FedAvgFTOnCosine."""

    ft_lr: float | None = hyper(None, above=0.0)


@dataclass(frozen=True)
class FedBABUOnCosine(FedBABU):
    """Section 6: as FedAvgFTOnCosine; the head alone is fine-tuned, in 200 of 800 rounds."""

    ft_lr: float | None = hyper(None, above=0.0)


@dataclass(frozen=True)
class DittoAsReleased(Ditto):
    """Fairness note of section 6: E is divided, so the global and the personal model get E // 2 steps each."""

    def global_steps(self, work: Work) -> int:
        return max(1, super().global_steps(work) // 2)


@dataclass(frozen=True)
class FedPACAsReleased(FedRepAsReleased):
    """Trap 10: FedRep with divided steps, and (mu / 2) ||theta_i - theta||^2 in the body phase; no centroids, and no
    combination of heads."""

    mu: float = hyper(0.01, least=0.0)

    def loss(self, model: nn.Module, batch: Batch, work: Work) -> Terms:
        terms = super().loss(model, batch, work)
        body = ((name, w) for name, w in model.named_parameters() if self.shared(name))
        distance = sum((w - work.message[name]).square().sum() for name, w in body)
        return terms | {"total": terms["total"] + 0.5 * self.mu * distance}


@dataclass(frozen=True)
class FedALAAsReleased(FedAvg):
    """Trap 10: the mixing weights never receive a gradient and stay 1, so this is FedAvg with E // 2 steps (the other
    half learns nothing); clients are evaluated on their trained models, before aggregation."""

    def start(self, work: Work) -> None:
        work.model.load_state_dict(work.message)

    def client_update(self, work: Work) -> Upload:
        self.start(work)
        losses = self.descend(work, steps=max(1, work.local.count(len(work.samples)) // 2))
        upload = self.upload(work, losses)
        return replace(upload, memory=upload.weights)

    def moment(self, round: int, rounds: int) -> str:
        return "after_local"


@dataclass(frozen=True)
class FedASAsReleased(FedPer):
    """Trap 10: E // 5 steps of alignment and E - E // 5 of training; the alignment is the mean squared error to the
    backbone's features of the client's previous model, image by image; bodies are averaged with n_i / n."""

    def start(self, work: Work) -> None:
        work.model.load_state_dict(work.message | own_head(work.memory))

    def client_update(self, work: Work) -> Upload:
        self.start(work)
        E = work.local.count(len(work.samples))
        previous = copy.deepcopy(work.model.get_submodule("backbone"))
        last = under("last", work.memory)
        if last and E >= 5:
            previous.load_state_dict(last)
            self.align(work, previous, E // 5)
        upload = self.upload(work, self.descend(work, steps=E - E // 5))
        kept = {name: w for name, w in upload.weights.items() if name.startswith("backbone.")}
        last = {name.removeprefix("backbone."): w for name, w in kept.items()}
        return replace(upload, memory=upload.memory | named("last", last))

    def align(self, work: Work, previous: nn.Module, steps: int) -> None:
        """The steps of alignment, on the body alone."""
        backbone = work.model.get_submodule("backbone")

        def loss(batch: Batch) -> Terms:
            with torch.no_grad():
                target = previous(batch.x)
            return {"total": F.mse_loss(backbone(batch.x), target)}

        with only(work.model, self.shared) as body:
            sgd(work.model, work.batches(steps), loss, body, work.local, work.lr)

    def personal_model(self, server: Server, client: int, memory: State) -> State:
        return server.weights | own_head(memory)


@dataclass(frozen=True)
class ConFREEAsReleased(FedRepAsReleased):
    """Section 6: divided steps; conflicts are those of the whole body, each projection is of one original update on
    another one, and there is no second step: theta <- theta + g."""

    def aggregate(self, server: Server, uploads: Iterable[Upload]) -> Server:
        return move(server, list(uploads), original_projections)
