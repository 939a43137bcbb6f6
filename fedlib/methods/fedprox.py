"""FedProx: local steps on a leash to the weights that came down.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: Federated Optimization in Heterogeneous Networks, MLSys 2020.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from fedlib.methods.method import Method, Work, hyper
from fedlib.training import Batch, Terms


@dataclass(frozen=True)
class FedProx(Method):
    """Client i, from theta: E steps of SGD on  CE(y; f(x)) + (mu / 2) ||w - theta||^2.

    mu: how short the leash is; 0 is FedAvg.
    """

    several_labels: ClassVar[bool] = True
    mu: float = hyper(0.01, least=0.0)

    def loss(self, model: nn.Module, batch: Batch, work: Work) -> Terms:
        terms = super().loss(model, batch, work)
        distance = sum((w - work.message[name]).square().sum() for name, w in model.named_parameters())
        return terms | {"total": terms["total"] + 0.5 * self.mu * distance}
