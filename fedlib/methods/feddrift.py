"""FedDrift: a client whose loss jumps gets a model of its own; models that serve each other's clients are merged.

Jothimurugesan, Hsieh, Wang, Joshi, Gibbons: Federated Learning under Distributed Concept Drift, AISTATS 2023.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import nn

from fedlib.checks import FedlibError, check_choice
from fedlib.data.federation import Client, Federation
from fedlib.forward import accuracy, mean_loss
from fedlib.methods.ifca import cluster_means
from fedlib.methods.method import Method, Server, State, Task, Upload, Work, hyper
from fedlib.methods.several import models, numbered

MEASURES = ("error", "cross-entropy")


@dataclass(frozen=True)
class FedDrift(Method):
    """FedAvg within each of K clusters, at first a single one. Every round begins with a new clustering. With l_i(k),
    the mean loss of model k on the current training samples of client i,

        assign    k_i = argmin_k l_i(k)                                                     ties go to the lowest k
        detect    client i has drifted if  min_k l_i(k) > b_i + delta,   b_i: this least loss when it last reported
        isolate   a client that has drifted gets a new model, for itself alone, that starts as a copy of model k_i
        merge     the two nearest of the models, while they are nearer than delta,

                      d(a, b) = max(L_a(b) - L_a(a), L_b(a) - L_b(b), 0)
                      L_a(b) = sum_{i: k_i = b} n_i l_i(a) / sum_{i: k_i = b} n_i

                  to their mean, weighted by the n_i of their clients; between merged models, d is the largest d of
                  their parts (complete linkage)

    and then client i trains model k_i, and theta_k <- sum_{i: k_i = k} n_i theta_i / sum_{i: k_i = k} n_i. A model made
    in a round takes no part in that round's merging; in the next one it is a model like all others, so clients that
    drifted to one concept meet then. A model without a client stays as it is, for a concept that may come back; it
    cannot be compared, so it is not merged. A client predicts with model k_i. delta -> infinity is FedAvg.

    Cost: K passes over the training samples of all clients in every round, and all K models down to each of them
    (they are counted with the message that follows; its own model comes first in it), one model up. K grows by one with
    every client that drifts and shrinks only by merging; `most` bounds it.

    The paper's full text was not available: the rules are those of the spec (6), and what the spec leaves open is as in
    the authors' implementation: one concept at first; a new model is a copy of the client's best one (a fresh network
    was the alternative); isolation for one time step; b_i is of the last time step, before its training; one delta for
    detecting and merging; the rule at the bound, which breaks ties at random there. Different here: a time step is one
    round (there, several rounds are trained between two clusterings); clients keep no earlier samples, so L_a(b) and
    the weights of a merger are over current samples of this round's clients alone (there, over all that a cluster ever
    trained on); who is absent keeps its model.

    delta: in units of the loss; the default is the implementation's, for measure "error".
    measure: l_i is the "error" (one minus the accuracy: the implementation's) or the "cross-entropy", the only one for
        samples of several labels (each label's binary one, see labels.label_loss).
    most: K at most, or None. At the bound a client that has drifted takes over the model without a client that has been
        so for longest (ties go to the lowest k); if every model has one, it stays with model k_i.

    The server's memory keeps membership (m,): k_i; best (m,): b_i, infinite at first; used (K,): the last round in
    which model k had a client.
    """

    several_labels: ClassVar[bool] = True
    delta: float = hyper(0.06, above=0.0)
    measure: str = "error"
    most: int | None = hyper(None, least=1, whole=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("FedDrift.measure", self.measure, MEASURES)

    def check_clients(self, federation: Federation) -> None:
        if federation.several_labels and self.measure == "error":
            raise FedlibError(
                "FedDrift.measure: error is the share of wrong classes, which samples of several labels do not have; "
                "give measure: cross-entropy, and a delta in its units"
            )

    @property
    def differs_by_client(self) -> bool:
        return True

    def begin(self, model: nn.Module, task: Task) -> State:
        return numbered([super().begin(model, task)])

    def remember(self, task: Task) -> State:
        best = torch.full((task.clients,), torch.inf, dtype=torch.float64)
        membership = torch.zeros(task.clients, dtype=torch.int64)
        return {"membership": membership, "best": best, "used": torch.zeros(1, dtype=torch.int64)}

    def report(
        self, server: Server, model: nn.Module, client: Client, memory: State, generator: torch.Generator
    ) -> State:
        """losses (K,): l_i(k), float64; n (): n_i."""
        losses = []
        for state in models(server.weights):
            model.load_state_dict(state)
            if self.measure == "error":
                losses.append(1.0 - accuracy(model, client.train, self.class_logits).double())
            else:
                losses.append(mean_loss(model, client.train, self.class_logits))
        return {"losses": torch.stack(losses), "n": torch.tensor(len(client.train))}

    def receive(self, server: Server, reports: Mapping[int, State]) -> Server:
        clients = sorted(reports)
        losses = np.stack([reports[i]["losses"].cpu().numpy() for i in clients])
        n = np.array([float(reports[i]["n"]) for i in clients])
        theta, kept = models(server.weights), server.memory
        k, best, used = kept["membership"].tolist(), kept["best"].tolist(), kept["used"].tolist()
        nearest = losses.argmin(1)
        for i, a in zip(clients, nearest.tolist(), strict=True):
            k[i] = a
        least = dict(zip(clients, losses.min(1).tolist(), strict=True))
        isolated = self.isolate([i for i in clients if least[i] > best[i] + self.delta], theta, k, used)
        settled = [row for row, i in enumerate(clients) if i not in isolated]
        parts, weight = merging(losses[settled], n[settled], nearest[settled], self.delta)
        sent = ((part[0], weight[a], theta[a]) for part in parts if len(part) > 1 for a in part)
        theta = models(cluster_means(numbered(theta), sent))
        into = {a: part[0] for part in parts for a in part}
        staying = [a for a in range(len(theta)) if into.get(a, a) == a]
        k = [staying.index(into.get(a, a)) for a in k]
        used = [server.round + 1 if place in k else used[a] for place, a in enumerate(staying)]

        def tensor(values: list[float], dtype: torch.dtype = torch.int64) -> torch.Tensor:
            return torch.tensor(values, dtype=dtype, device=kept["membership"].device)

        best = [least.get(i, value) for i, value in enumerate(best)]
        memory = {"membership": tensor(k), "best": tensor(best, torch.float64), "used": tensor(used)}
        return Server(numbered([theta[a] for a in staying]), server.round, kept | memory)

    def isolate(self, drifted: Iterable[int], theta: list[State], k: list[int], used: list[int]) -> set[int]:
        """Give each of these clients a model of its own as long as there is room; theta, k and used grow or change.
        Returns who got one."""
        idle = sorted(set(range(len(theta))) - set(k), key=lambda a: (used[a], a))
        isolated = set()
        for i in drifted:
            if self.most is None or len(theta) < self.most:
                theta.append(theta[k[i]])
                used.append(0)
                k[i] = len(theta) - 1
            elif idle:
                a = idle.pop(0)
                theta[a] = theta[k[i]]
                k[i] = a
            else:
                continue
            isolated.add(i)
        return isolated

    def broadcast(self, server: Server, client: int, memory: State) -> State:
        """All K models, that of the client first: "0/..."."""
        theta = models(server.weights)
        return numbered([theta.pop(int(server.memory["membership"][client])), *theta])

    def start(self, work: Work) -> None:
        work.model.load_state_dict(models(work.message)[0])

    def aggregate(self, server: Server, uploads: Iterable[Upload]) -> Server:
        k = server.memory["membership"].tolist()
        arriving = ((k[upload.client], self.weight(server, upload), upload.weights) for upload in uploads)
        return Server(cluster_means(server.weights, arriving), server.round + 1, server.memory)

    def personal_model(self, server: Server, client: int, memory: State) -> State:
        return models(server.weights)[int(server.memory["membership"][client])]

    def served(self, server: Server) -> list[State]:
        return models(server.weights)


def merging(losses: np.ndarray, n: np.ndarray, k: np.ndarray, delta: float) -> tuple[list[list[int]], dict[int, float]]:
    """(the models that become one, list by list; sum n_i of each) for clients with losses l_i(k) (clients, K)."""
    present = np.unique(k)
    share = n * (k == present[:, None])
    weight = share.sum(1)
    L = losses[:, present].T @ share.T / weight
    parts = complete_linkage(cluster_distances(L), delta)
    return [present[part].tolist() for part in parts], dict(zip(present.tolist(), weight.tolist(), strict=True))


def cluster_distances(L: np.ndarray) -> np.ndarray:
    """d(a, b) of L_a(b), (K, K)."""
    rise = L - np.diag(L)[:, None]
    return np.maximum(rise, rise.T).clip(min=0.0)


def complete_linkage(d: np.ndarray, delta: float) -> list[list[int]]:
    """The parts of 0 ... K - 1 after joining always the nearest two, while nearer than delta; the lowest of equals.

    Not scipy's: of equal distances, which shares of wrong answers often are, that one need not join the lowest.
    """
    parts, d = [[a] for a in range(len(d))], d.copy()
    np.fill_diagonal(d, np.inf)
    while len(parts) > 1 and d.min() < delta:
        a, b = divmod(int(d.argmin()), len(parts))
        parts[a] = sorted(parts[a] + parts.pop(b))
        d[a] = d[:, a] = np.maximum(d[a], d[b])
        d = np.delete(np.delete(d, b, axis=0), b, axis=1)
    return parts
