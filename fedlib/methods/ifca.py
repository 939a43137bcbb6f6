"""IFCA: every client trains the one of K models that fits it best; the server averages the models cluster by cluster.

Ghosh, Chung, Yin, Ramchandran: An Efficient Framework for Clustered Federated Learning, NeurIPS 2020.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from fedlib.methods.method import Server, State, Task, Upload, Work, as_like
from fedlib.methods.names import named
from fedlib.methods.several import Several, losses_under, models


@dataclass(frozen=True)
class IFCA(Several):
    """Client i, which is sent all K models:

        k_i     = argmin_k L_i(theta_k)     L_i: the mean cross-entropy on its training samples, in evaluation mode
        theta_i <- E steps of SGD from theta_{k_i}

    and sends theta_i alone. Server, for each k:  theta_k <- sum_{i: k_i = k} n_i theta_i / sum_{i: k_i = k} n_i; a
    model that no client chose stays as it is. K = 1 is FedAvg.

    This is the paper's model averaging; its gradient averaging, its shared layers with a head a cluster, and its
    several restarts from random models are left out. The paper weights all clients alike, as theirs have equally many
    samples.

    Test time: a client chooses anew whenever it is evaluated, by its loss on samples of its own (`selection`, see
    Several). The authors' implementation chooses by the loss on the labelled test samples themselves.

    The server's memory keeps membership (m,): the cluster that each client chose last, -1 before its first round.
    """

    several_labels: ClassVar[bool] = True

    def remember(self, task: Task) -> State:
        return super().remember(task) | {"membership": torch.full((task.clients,), -1)}

    def client_update(self, work: Work) -> Upload:
        theta = models(work.message)
        k = self.nearest(work, theta)
        own = replace(work, message=theta[k])
        self.start(own)
        sent = self.upload(own, self.descend(own))
        return replace(sent, weights=named(k, sent.weights))

    def nearest(self, work: Work, theta: Sequence[State]) -> int:
        """k_i; ties go to the lowest k."""
        if len(theta) == 1:
            return 0
        losses = self.received_losses(work, theta)
        return min(range(len(losses)), key=losses.__getitem__)

    def received_losses(self, work: Work, theta: Sequence[State]) -> list[float]:
        """L_i(theta_k) for each k."""
        return losses_under(work.model, theta, work.samples, self.class_logits).tolist()

    def aggregate(self, server: Server, uploads: Iterable[Upload]) -> Server:
        membership = server.memory["membership"].clone()

        def arriving() -> Iterator[tuple[int, float, State]]:
            for upload in uploads:
                k = cluster_of(upload)
                membership[upload.client] = k
                yield k, self.weight(server, upload), models(upload.weights)[0]

        theta = cluster_means(server.weights, arriving())
        return Server(theta, server.round + 1, server.memory | {"membership": membership})


def cluster_of(upload: Upload) -> int:
    """k of an upload whose tensors are all named "k/…"."""
    return int(next(iter(upload.weights)).partition("/")[0])


def cluster_means(start: State, sent: Iterable[tuple[int, float, State]]) -> State:
    """theta_k <- sum p w / sum p over the (k, p, w) that arrive, accumulated one at a time in float64.

    start: all models, under "k/name"; w: plain names. A model to which nothing arrives, or only with p = 0, stays.
    Whole numbers stay whole, as in method.weighted_mean.
    """
    totals: dict[int, float] = {}
    sums: dict[int, State] = {}
    for k, p, w in sent:
        if p > 0:
            totals[k] = totals.get(k, 0.0) + p
            into = sums.setdefault(k, {})
            for name, tensor in w.items():
                if name not in into:
                    into[name] = torch.zeros_like(tensor, dtype=torch.float64)
                into[name].add_(tensor, alpha=p)

    def mean(k: int, name: str) -> Tensor:
        return as_like(start[f"{k}/{name}"], sums[k][name].div_(totals[k]))

    return start | {f"{k}/{name}": mean(k, name) for k, into in sums.items() for name in into}
