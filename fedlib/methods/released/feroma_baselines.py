"""What FEROMA's baselines ran where the code that they were taken from differs from the methods' own papers.

Each class changes one step and names where the specification says so.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from torch import nn

from fedlib.methods.fedprox import FedProx
from fedlib.methods.local_only import LocalOnly
from fedlib.methods.method import State, Task, Upload, Work, hyper


@dataclass(frozen=True)
class PFedMeInFedRC(FedProx, LocalOnly):
    """Section 6, pFedMe in FedRC's code base: no personal model beside w_k, and theta is never loaded,

        w_k   <- E steps of SGD from w_k, whose gradient has  mu (w_k - theta)  added
        theta <- sum_k (n_k / n) w_k

    mu: 0 by default, which is LocalOnly: theta then goes up and down and moves nobody.
    """

    several_labels: ClassVar[bool] = True
    mu: float = hyper(0.0, least=0.0)

    def begin(self, model: nn.Module, task: Task) -> State:
        """A copy of the network that all w_k start as."""
        return self.divide(model)[1]

    def upload(self, work: Work, losses: dict[str, float]) -> Upload:
        """w_k stays, and goes up, too."""
        sent = super().upload(work, losses)
        return replace(sent, weights=sent.memory)
