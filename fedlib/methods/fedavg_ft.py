"""FedAvgFT: FedAvg, then local fine-tuning of the whole model without aggregation.

The reference that personalised methods have to beat; used by Wang et al. (FedDRM, ICLR 2026) as a baseline.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedlib.checks import need_fewer
from fedlib.methods.method import Method, Server, State, Upload, Work, hyper
from fedlib.training import Local


@dataclass(frozen=True)
class FedAvgFT(Method):
    """Rounds 1 … T - F: FedAvg. Rounds T - F + 1 … T: E local steps a round from the client's own weights.

    ft_rounds: F. ft_lr: learning rate of fine-tuning, constant; None goes on with the experiment's own schedule
    (on a cosine that is nearly zero by then, see released.feddrm.FedAvgFTOnCosine).
    """

    ft_rounds: int = hyper(10, least=1, whole=True)
    ft_lr: float | None = hyper(0.01, above=0.0)

    def check(self, rounds: int, lr: float, local: Local) -> None:
        need_fewer(self, "ft_rounds", self.ft_rounds, rounds, "rounds")

    def tuning(self, round: int, rounds: int) -> bool:
        return round > rounds - self.ft_rounds

    def trained(self, name: str) -> bool:
        """The parameters that move while the model is federated."""
        return True

    def tuned(self, name: str) -> bool:
        """The parameters that move while it is fine-tuned."""
        return True

    def broadcast(self, server: Server, client: int, memory: State) -> State:
        return {} if server.weights.keys() <= memory.keys() else server.weights

    def client_update(self, work: Work) -> Upload:
        self.start(work)
        if not self.tuning(work.round, work.rounds):
            return self.upload(work, self.descend(work, self.trained))
        losses = self.descend(work, self.tuned, lr=self.ft_lr)
        weights = {name: tensor.detach().clone() for name, tensor in work.model.state_dict().items()}
        return Upload(work.client, {}, weights, len(work.samples), losses)

    def moment(self, round: int, rounds: int) -> str:
        return "after_local" if self.tuning(round, rounds) else "after_aggregation"
