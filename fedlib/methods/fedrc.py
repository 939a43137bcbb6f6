"""FedRC: FedEM whose clusters tell concepts apart and nothing else: likelihoods are divided by a model's label shares.

Guo, Tang, Lin: FedRC: Tackling Diverse Distribution Shifts Challenge in Federated Learning by Robust Clustering,
ICML 2024.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from fedlib.methods.fedem import PI, FedEM, posterior
from fedlib.methods.method import Server, State, Task, Upload, Work, hyper

SHARES, SUMS = "label_shares", "label_sums"


@dataclass(frozen=True)
class FedRC(FedEM):
    """As FedEM, but for the E-step,

        q_jk  = pi_ik I_k(x_j, y_j) / sum_k' pi_ik' I_k'(x_j, y_j),     I_k(x, y) = exp(-l(x, y; theta_k)) / C_k(y)

    in which C_k(y) is the share of label y in cluster k: of the clients' sums that the server got in the round before,

        S_ik(y) = sum_j q_jk 1[y_j = y],     C_k(y) = sum_i S_ik(y) / sum_y' sum_i S_ik(y')

    A model that merely knows how often its clients' labels occur, exp(-l) = C_k(y), has I_k = 1 whatever they are:
    clients that differ in P(Y) alone are not parted, clients that differ in P(Y|X) are. I_k stands for
    P(x, y; theta_k) / (P(x; theta_k) P(y; theta_k)). K = 1 is FedAvg.

    C goes down with the K models, the S_ik go up beside them: K · classes numbers each way.

    The paper's full text was not available: the equations are the spec's (6); that C is the round before's, that it
    starts uniform (the first E-step is FedEM's), and the floor are the authors' implementation's, which puts it under
    sum_i S_ik(y) rather than under C. A label that no model has met has C = floor for all of them, which cancels; one
    that only some have not met goes to those. Decided here: C is of the clients that took part; a cluster to which they
    assigned nothing keeps its C.

    floor: the least C_k(y).
    """

    floor: float = hyper(1.0e-8, above=0.0, most=1.0)

    def remember(self, task: Task) -> State:
        return super().remember(task) | {SHARES: torch.full((self.K, task.classes), 1.0 / task.classes)}

    def broadcast(self, server: Server, client: int, memory: State) -> State:
        return super().broadcast(server, client, memory) | {SHARES: server.memory[SHARES]}

    def start(self, work: Work) -> None:
        theta = {name: tensor for name, tensor in work.message.items() if name != SHARES}
        super().start(replace(work, message=theta))

    def expectation(self, work: Work, losses: Tensor) -> Tensor:
        """q (n_i, K), float64, of the losses l (n_i, K)."""
        C = work.message[SHARES].double().clamp(min=self.floor)
        return posterior(work.memory[PI], -losses - C.log()[:, work.samples.labels].T)

    def beside(self, work: Work, q: Tensor) -> State:
        """S_i (K, classes)."""
        classes = work.message[SHARES].shape[1]
        met = F.one_hot(work.samples.labels, classes).double()
        return super().beside(work, q) | {SUMS: (q.T @ met).float()}

    def aggregate(self, server: Server, uploads: Iterable[Upload]) -> Server:
        S = torch.zeros_like(server.memory[SHARES], dtype=torch.float64)

        def arriving() -> Iterator[Upload]:
            for upload in uploads:
                S.add_(upload.extra[SUMS])
                yield upload

        after = super().aggregate(server, arriving())
        return replace(after, memory=after.memory | {SHARES: label_shares(S, server.memory[SHARES])})


def label_shares(S: Tensor, before: Tensor) -> Tensor:
    """C (K, classes): the rows of S divided by their sums; a row of zeros stays as it was before."""
    n = S.sum(-1, keepdim=True)
    return torch.where(n > 0, S / n.where(n > 0, 1.0), before.double()).to(before.dtype)
