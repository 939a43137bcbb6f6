"""FedRep: a shared body, a personal head, trained one after the other.

Collins, Hassani, Mokhtari, Shakkottai: Exploiting Shared Representations for Personalized Federated Learning,
ICML 2021.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedlib.methods.method import Method, Upload, Work, hyper


@dataclass(frozen=True)
class FedRep(Method):
    """Client i, from the body theta and its own head h_i:

        h_i     <- H steps of SGD on h  with theta fixed
        theta_i <- E steps of SGD on theta with h_i fixed

    Server: theta <- sum_i (n_i / n) theta_i; heads never travel. head_steps: H; None takes as many as the body's E.
    """

    head_steps: int | None = hyper(None, least=1, whole=True)

    def shared(self, name: str) -> bool:
        return not name.startswith("head.")

    def body_steps(self, work: Work) -> int:
        """E."""
        return work.local.count(len(work.samples))

    def client_update(self, work: Work) -> Upload:
        self.start(work)
        body = self.body_steps(work)
        self.descend(work, lambda name: not self.shared(name), steps=self.head_steps or body)
        losses = self.descend(work, self.shared, steps=body)
        return self.upload(work, losses)
