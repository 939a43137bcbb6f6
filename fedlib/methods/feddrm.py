"""FedDRM: a density-ratio model over the clients turns the server into a router.

Wang, Zhang, Zhang, Liu, Zhang: Beyond Aggregation: Guiding Clients in Heterogeneous Federated Learning, ICLR 2026.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedlib.methods.method import Answer, Crowd, Method, Task, Work, hyper
from fedlib.models.network import Network
from fedlib.training import Batch, Terms
from fedlib.votes import first_argmax, majority_vote


class DensityRatioNetwork(nn.Module):
    """x (N, 3, H, W) -> class logits a (N, K) and client logits c (N, m).

    a_k = alpha_k + beta_k' t(g(x)),  c_l = gamma_l + xi_l' h(g(x)): the backbone g is common to both branches, t and
    h are each branch's own transform.
    """

    def __init__(self, network: Network, clients: int) -> None:
        super().__init__()
        self.backbone, self.transform, self.head = network.backbone, network.transform, network.head
        self.client_transform = network.make_transform()
        self.client_head = network.make_head(clients)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        g = self.backbone(x)
        return self.head(self.transform(g)), self.client_head(self.client_transform(g))


@dataclass(frozen=True)
class FedDRM(Method):
    """The profile log empirical likelihood of the density-ratio model

        dP_X^(i) / dP_X^(0) (x) = exp(gamma'_i + xi_i' h(g(x)))                                    (Theorem 2.1)

    is, with gamma_l = gamma'_l + log(n_l / n), minus the sum of two cross-entropies (Theorem 2.2). Client i minimises

        lam * CE(y ; a) + (1 - lam) * CE(i ; c)                     (the ridge on all parameters is weight decay)

    in E joint steps. Everything is averaged with n_i / n, except the personal head (alpha_i, beta_i).

    A query x goes to argmax_l c_l(x) - log(n_l / n), the largest log density ratio, and is answered by that client's
    head. The posterior router leaves the prior in: the ablation.

    lam: weight of the class loss in [0, 1]; the paper finds 0.8 best.
    """

    lam: float = hyper(0.8, least=0.0, most=1.0)

    def build(self, task: Task) -> nn.Module:
        return DensityRatioNetwork(task.network(), task.clients)

    def shared(self, name: str) -> bool:
        return not name.startswith("head.")

    def loss(self, model: nn.Module, batch: Batch, work: Work) -> Terms:
        a, c = model(batch.x)
        target = F.cross_entropy(a, batch.y)
        client = F.cross_entropy(c, torch.full_like(batch.y, batch.client))
        return {"total": self.lam * target + (1.0 - self.lam) * client, "target": target, "client": client}

    def class_logits(self, outputs: Any) -> Tensor:
        return outputs[0]

    def route(self, crowd: Crowd) -> dict[str, Answer]:
        a = crowd.logits()
        _, c = crowd.outputs()
        return {
            "density router": sent_to(first_argmax(c - crowd.shares.log()), a),
            "posterior router": sent_to(first_argmax(c), a),
            "majority vote": Answer(majority_vote(a)),
        }


def sent_to(origin: Tensor, logits: Tensor) -> Answer:
    """Each query answered by the client it is sent to: origin (N,), logits (m, N, K)."""
    labels = logits[origin, torch.arange(len(origin), device=origin.device)].argmax(-1)
    return Answer(labels, origin)
