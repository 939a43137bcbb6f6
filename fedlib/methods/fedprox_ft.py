"""FedProxFT: FedProx, then local fine-tuning off the leash.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: Federated Optimization in Heterogeneous Networks, MLSys 2020; with the
fine-tuning of FedAvgFT, as Wang et al. (FedDRM, ICLR 2026) use it for a baseline.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedlib.methods.fedavg_ft import FedAvgFT
from fedlib.methods.fedprox import FedProx
from fedlib.methods.method import Upload, Work


@dataclass(frozen=True)
class FedProxFT(FedProx, FedAvgFT):
    """Rounds 1 … T - F: FedProx. Rounds T - F + 1 … T: FedAvgFT's fine-tuning, without the proximal term."""

    def client_update(self, work: Work) -> Upload:
        if self.tuning(work.round, work.rounds):
            return FedAvgFT(ft_rounds=self.ft_rounds, ft_lr=self.ft_lr).client_update(work)
        return super().client_update(work)
