"""FedAvg: one global model for all.

McMahan, Moore, Ramage, Hampson, Aguera y Arcas: Communication-Efficient Learning of Deep Networks from
Decentralized Data, AISTATS 2017.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedlib.methods.method import Method


@dataclass(frozen=True)
class FedAvg(Method):
    """theta <- sum_i (n_i / n) theta_i: method.Method, unchanged. Each client predicts with the global model."""

    several_labels: ClassVar[bool] = True
