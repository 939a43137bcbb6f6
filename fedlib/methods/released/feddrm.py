"""What FedDRM's released code ran where it differs from the methods' own papers in a way that changes results.

Each class changes one step and names the finding (trap numbers: the specification's section 7).
"""

from __future__ import annotations

from dataclasses import dataclass

from fedlib.methods.fedavg_ft import FedAvgFT
from fedlib.methods.feddrm import FedDRM
from fedlib.methods.fedrep import FedRep
from fedlib.methods.method import Work, hyper


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
