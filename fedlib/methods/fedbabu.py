"""FedBABU: only the body is federated, around a random head that is the same for all; then the head is fine-tuned.

Oh, Kim, Yun: FedBABU: Toward Enhanced Representation for Federated Image Classification, ICLR 2022.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedlib.checks import check_choice
from fedlib.methods.fedavg_ft import FedAvgFT


@dataclass(frozen=True)
class FedBABU(FedAvgFT):
    """Rounds 1 … T - F: client i takes E steps of SGD on the body theta, with the head fixed at its initial value h_0;
    theta <- sum_i (n_i / n) theta_i. Rounds T - F + 1 … T: E steps a round on the client's own head, from h_0,
    without aggregation.

    The head never travels: h_0 is part of the initial network that all clients have. ft_part: what is fine-tuned,
    "head" or "all".
    """

    ft_part: str = "head"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(f"{type(self).__name__}.ft_part", self.ft_part, ("head", "all"))

    def shared(self, name: str) -> bool:
        return not name.startswith("head.")

    def trained(self, name: str) -> bool:
        return self.shared(name)

    def tuned(self, name: str) -> bool:
        return self.ft_part == "all" or not self.shared(name)
