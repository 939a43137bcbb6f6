"""CFL: FedAvg that splits its clients in two wherever they pull a common model in different directions.

Sattler, Müller, Samek: Clustered Federated Learning: Model-Agnostic Distributed Multitask Optimization Under Privacy
Constraints, IEEE Transactions on Neural Networks and Learning Systems, 2020 (arXiv 2019).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from scipy.cluster.hierarchy import linkage, to_tree
from scipy.spatial.distance import squareform
from torch import Tensor, nn

from fedlib.methods.ifca import cluster_means
from fedlib.methods.method import Method, Server, State, Task, Upload, hyper
from fedlib.methods.several import models, numbered
from fedlib.models.network import is_statistic

TINY = np.finfo(np.float64).tiny


@dataclass(frozen=True)
class CFL(Method):
    """FedAvg within each cluster c of clients, at first a single one. With the updates D_i = theta_i - theta_c of its
    clients, over all trained parameters, and p_i = n_i / sum_{j in c} n_j, a cluster of two or more is split if

        || sum_i p_i D_i || < eps1     its model is stationary for the clients together,
        max_i || D_i || > eps2         but not for some client alone,                       and
        sqrt((1 - a) / 2) > gamma_max,   a = max_{i in c1, j in c2} cos(D_i, D_j)

    into the two parts c1, c2 for which a is least. In that round already, theta_c1 and theta_c2 are the means of their
    own clients' theta_i. Each part may be split again in later rounds; clusters are never joined. eps1 = 0 is FedAvg.

    Who is absent in a round does not count in it; in a split it stays with the part of more clients (of the first
    client, if equal), which keeps the number k, since its update is not known. The paper asks all clients of a cluster
    for an update before a split; its tree, down which a late comer finds its cluster, is left out.

    A client is sent its cluster's model alone, under plain names, and predicts with it: its cluster is known. The
    server's memory keeps membership (m,). The server needs all updates of a round at once.

    The paper's full text was not available: the conditions are those of the spec (6) and of the authors'
    implementation; gamma_max, an estimate of how far a client's update is off for want of samples, is the paper's,
    from an account of it, and 0 leaves it out, as the implementation does. That one also averages with 1 / |c| in place
    of p_i, clusters by complete linkage, which need not find the least a, never splits fewer than three clients, and
    waits for 20 rounds.

    eps1, eps2: in units of the parameters; they scale with lr and E. The defaults are the implementation's.
    relative: eps1 and eps2 are fractions of || sum_i p_i D_i || and max_i || D_i || of the first round, over all its
        clients (kept in the server's memory as first_norms): the same rule for any model, lr and E. The paper, too,
        advises thresholds from the course of the norms, and none from accuracy.
    """

    several_labels: ClassVar[bool] = True
    eps1: float = hyper(0.4, least=0.0)
    eps2: float = hyper(1.6, least=0.0)
    gamma_max: float = hyper(0.0, least=0.0, below=1.0)
    relative: bool = False

    @property
    def differs_by_client(self) -> bool:
        return True

    def begin(self, model: nn.Module, task: Task) -> State:
        return numbered([super().begin(model, task)])

    def remember(self, task: Task) -> State:
        kept = super().remember(task) | {"membership": torch.zeros(task.clients, dtype=torch.int64)}
        return kept | {"first_norms": torch.zeros(2, dtype=torch.float64)} if self.relative else kept

    def broadcast(self, server: Server, client: int, memory: State) -> State:
        return models(server.weights)[int(server.memory["membership"][client])]

    def served(self, server: Server) -> list[State]:
        return models(server.weights)

    def personal_model(self, server: Server, client: int, memory: State) -> State:
        theta_c = self.broadcast(server, client, memory)
        return theta_c | memory if memory else theta_c

    def aggregate(self, server: Server, uploads: Iterable[Upload]) -> Server:
        sent = sorted(uploads, key=lambda upload: upload.client)  # the same bits in any order of arrival
        theta, membership = models(server.weights), server.memory["membership"].tolist()
        unit = self.unit(server, sent)
        for k in range(len(theta)):
            members = [upload for upload in sent if membership[upload.client] == k]
            leaving = self.leaving(theta[k], members, [self.weight(server, upload) for upload in members], unit)
            if leaving:
                for client in leaving:
                    membership[client] = len(theta)
                theta.append(theta[k])
        parts = ((membership[upload.client], self.weight(server, upload), upload.weights) for upload in sent)
        known = torch.tensor(membership, device=server.memory["membership"].device)
        memory = server.memory | {"membership": known}
        if self.relative:
            memory["first_norms"] = torch.tensor(unit, dtype=torch.float64, device=known.device)
        return Server(cluster_means(numbered(theta), parts), server.round + 1, memory)

    def unit(self, server: Server, sent: Sequence[Upload]) -> tuple[float, float]:
        """What eps1 and eps2 are multiples of: (1, 1), or the norms of the first round."""
        if not self.relative:
            return 1.0, 1.0
        if server.round > 0:
            mean, largest = server.memory["first_norms"].tolist()
            return mean, largest
        return norms(models(server.weights)[0], sent, [self.weight(server, upload) for upload in sent])

    def leaving(
        self, theta: State, members: Sequence[Upload], weights: Sequence[float], unit: tuple[float, float] = (1.0, 1.0)
    ) -> list[int]:
        """The clients of the smaller part of a cluster that is to be split, else none."""
        if len(members) < 2:
            return []
        mean, largest = norms(theta, members, weights)
        if mean >= self.eps1 * unit[0] or largest <= self.eps2 * unit[1]:
            return []
        cosine = cosines(theta, members)
        c1, c2 = bipartition(cosine)
        a = cosine[np.ix_(c1, c2)].max()
        if np.sqrt((1 - a) / 2) <= self.gamma_max:
            return []
        return [members[i].client for i in min(c2, c1, key=len)]


def updates(theta: State, members: Sequence[Upload]) -> Iterator[Tensor]:
    """D of one trained tensor after the other: (clients, entries), float64."""
    for name, before in theta.items():
        if before.is_floating_point() and not is_statistic(name):
            yield torch.stack([(upload.weights[name].double() - before.double()).flatten() for upload in members])


def norms(theta: State, members: Sequence[Upload], weights: Sequence[float]) -> tuple[float, float]:
    """(|| sum_i p_i D_i ||, max_i || D_i ||)."""
    mean, each = 0.0, np.zeros(len(members))
    for D in updates(theta, members):
        p = torch.tensor(weights, dtype=torch.float64, device=D.device)
        mean += float((p / p.sum() @ D).square().sum())
        each += D.square().sum(1).cpu().numpy()
    return mean**0.5, float(each.max()) ** 0.5


def cosines(theta: State, members: Sequence[Upload]) -> np.ndarray:
    """cos(D_i, D_j), (clients, clients); 0 where a client did not move."""
    gram = sum((D @ D.T).cpu().numpy() for D in updates(theta, members))
    length = np.sqrt(np.diag(gram))
    return (gram / np.outer(length, length).clip(min=TINY)).clip(-1.0, 1.0)


def bipartition(cosine: np.ndarray) -> tuple[list[int], list[int]]:
    """The two parts of 0 … n - 1 for which the largest cosine across is least; the first holds 0, both are sorted.

    Joining always the two most similar parts (single linkage) until two are left gives it: a pair across with a larger
    cosine than the best partition's would have to be joined in that one, too.
    """
    distance = squareform(1.0 - cosine, checks=False)
    last = to_tree(linkage(distance, "single"))
    parts = sorted([sorted(last.left.pre_order()), sorted(last.right.pre_order())])
    return parts[0], parts[1]
