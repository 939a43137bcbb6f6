"""FedPer: a shared body and a personal head, trained together.

Arivazhagan, Aggarwal, Singh, Choudhary: Federated Learning with Personalization Layers, arXiv 1912.00818, 2019.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedlib.methods.method import Method


@dataclass(frozen=True)
class FedPer(Method):
    """Client i: E joint steps on (theta, h_i). Server: theta <- sum_i (n_i / n) theta_i; heads never travel.

    It is FedDRM at lam = 1, and FedRep with joint instead of alternating steps.
    """

    def shared(self, name: str) -> bool:
        return not name.startswith("head.")
