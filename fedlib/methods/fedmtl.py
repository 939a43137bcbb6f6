"""FedMTL: the clients' models are tasks of one multi-task problem, tied by a matrix of their relations.

Smith, Chiang, Sanjabi, Talwalkar: Federated Multi-Task Learning, NeurIPS 2017 (MOCHA); here for networks, by SGD.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedlib.checks import check_choice
from fedlib.methods.fedamp import combined, gram, known_models, remembered, with_model
from fedlib.methods.local_only import LocalOnly
from fedlib.methods.method import Server, State, Task, Upload, Work, hyper
from fedlib.training import Batch, Terms

PULL = "q"
"""What comes down beside the parameters of u_i."""


@dataclass(frozen=True)
class FedMTL(LocalOnly):
    """min over W = [w_1 … w_m]  of  sum_i F_i(w_i) + lam tr(W Omega W'),   tr(W Omega W') = sum_ij Omega_ij <w_i, w_j>

        "mean":     Omega = (I - 11'/m)^2 = I - 11'/m = C,  so that  tr(W Omega W') = sum_i ||w_i - w_mean||^2
        "learned":  Omega = C M^-1 C,  M = (1 - shrinkage) (m - 1) R / tr R + shrinkage I,  R = (C W'W C)^(1/2)

    Clients move at once, so each takes for its part a bound that is exact where the models are now, at V: with q the
    largest eigenvalue of Omega, q ||W - V||^2 is at least tr((W - V) Omega (W - V)'), and up to a constant

        tr(W Omega W') <= 2 tr(V Omega W') + q ||W - V||^2 = q sum_i ||w_i - u_i||^2,    u_i = v_i - (V Omega)_i / q

    So u_i = sum_j (1[i = j] - Omega_ij / q) v_j, the size of one model, and q come down, instead of W and Omega, and
    the objective falls whatever lam. For "mean", q = 1 and u_i = v_mean. Client i, from its own w_i:

        w_i <- E steps of SGD on  F_i(w) + lam q ||w - u_i||^2

    MOCHA itself is for linear models: a dual method, whose clients' problems are bounds as well, and with
    lam_2 ||W||^2 beside this (here: weight decay). There Omega is learned as the minimiser of tr(W Omega W') for
    tr(Omega^-1) = 1, which is Omega^-1 = R / tr R, R = (W'W)^(1/2). Decided here, in every round: W is centred (C), for
    networks have their start in common, and would all be drawn to 0 otherwise; the trace is m - 1, so that "learned"
    is "mean" where all differences are alike; shrinkage keeps Omega finite where models nearly are.

    The server has everyone's last parameters: who is absent still serves the others. m: the clients that have taken
    part; a client is not drawn to the others before its first upload. Running statistics of BatchNorm stay with the
    client.

    lam: 0 is LocalOnly. SGD is stable only while lr * lam * q is below about 1; q is at most 1 / shrinkage.
    """

    lam: float = hyper(0.5, least=0.0)
    relations: str = "mean"
    shrinkage: float = hyper(0.1, above=0.0, most=1.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(f"{type(self).__name__}.relations", self.relations, ("mean", "learned"))

    @property
    def differs_by_client(self) -> bool:
        return True

    def remember(self, task: Task) -> State:
        m = task.clients
        return {"omega": torch.zeros(m, m, dtype=torch.float64), PULL: torch.zeros(())}

    def broadcast(self, server: Server, client: int, memory: State) -> State:
        clients, models = known_models(server.memory)
        q = server.memory[PULL]
        if client not in clients or q == 0:
            return {}
        c = -server.memory["omega"][client, clients] / q
        c[clients.index(client)] += 1.0
        return combined(models, c) | {PULL: q}

    def loss(self, model: nn.Module, batch: Batch, work: Work) -> Terms:
        terms, u = super().loss(model, batch, work), work.message
        if not u:
            return terms
        distance = sum((w - u[name]).square().sum() for name, w in model.named_parameters())
        return terms | {"total": terms["total"] + self.lam * u[PULL] * distance}

    def upload(self, work: Work, losses: dict[str, float]) -> Upload:
        return with_model(super().upload(work, losses), work.model)

    def aggregate(self, server: Server, uploads: Iterable[Upload]) -> Server:
        memory = remembered(server.memory, uploads)
        clients, models = known_models(memory)
        if self.relations == "learned":
            found = learned_relations(gram(models, origin=models[0]), self.shrinkage)
        else:
            found = mean_relations(len(clients)).to(memory["omega"])
        omega = torch.zeros_like(memory["omega"])
        index = torch.tensor(clients, device=omega.device)
        omega[index[:, None], index] = found
        q = torch.linalg.eigvalsh(found)[-1] if len(clients) > 1 else torch.zeros_like(found[0, 0])
        return Server(server.weights, server.round + 1, memory | {"omega": omega, PULL: q.float()})


def mean_relations(m: int) -> Tensor:
    """I - 11'/m (m, m), float64: its own square, and 0 for m = 1."""
    return torch.eye(m, dtype=torch.float64) - 1.0 / m


def learned_relations(G: Tensor, shrinkage: float) -> Tensor:
    """Omega (m, m), float64, of G = W'W, from wherever W is measured; C / shrinkage if all columns are equal."""
    C = mean_relations(len(G)).to(G)
    values, vectors = torch.linalg.eigh(C @ G @ C)
    roots = values.clamp(min=0.0).sqrt()
    scale = (len(G) - 1) / roots.sum().clamp(min=torch.finfo(roots.dtype).tiny)
    M = (1.0 - shrinkage) * scale * roots + shrinkage
    return C @ (vectors / M @ vectors.T) @ C
