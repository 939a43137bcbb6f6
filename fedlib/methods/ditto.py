"""Ditto: a global model for all, and a personal one for each that is drawn towards it.

Li, Hu, Beirami, Smith: Ditto: Fair and Robust Federated Learning Through Personalization, ICML 2021.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedlib.methods.fedprox import FedProx
from fedlib.methods.method import Method, Upload, Work, hyper


@dataclass(frozen=True)
class Ditto(Method):
    """Client i, from theta and its own model v_i:

        theta_i <- E steps of SGD on F_i(w) from theta
        v_i     <- S steps of SGD on F_i(v) + (lam / 2) ||v - theta||^2 from v_i       (FedProx's loss, mu = lam)

    Server: theta <- sum_i (n_i / n) theta_i; v_i never travels, and is what the client predicts with. It starts as
    the first theta that the client is sent; who has never taken part predicts with theta.

    lam: 0 is local training alone; a large one holds v_i at theta (SGD is stable only while lr * lam is below about 2).
    personal_steps: S; None takes as many as the global model gets.
    """

    several_labels: ClassVar[bool] = True
    lam: float = hyper(1.0, least=0.0)
    personal_steps: int | None = hyper(None, least=1, whole=True)

    def global_steps(self, work: Work) -> int:
        """E."""
        return work.local.count(len(work.samples))

    def client_update(self, work: Work) -> Upload:
        steps = self.global_steps(work)
        work.model.load_state_dict(work.message)
        losses = self.descend(work, steps=steps)
        theta_i, _ = self.divide(work.model)
        work.model.load_state_dict(work.memory or work.message)
        own = FedProx(mu=self.lam).descend(work, steps=self.personal_steps or steps)
        v_i, _ = self.divide(work.model)
        return Upload(work.client, theta_i, v_i, len(work.samples), losses | {"personal": own["target"]})
