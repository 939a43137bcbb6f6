"""FeSEM: K centres on the server; every client belongs to the one its trained parameters come closest to.

Xie, Long, Shen, Zhou, Wang, Jiang, Zhang: Multi-Center Federated Learning, arXiv 2020, 2005.01026.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedlib.methods.ifca import IFCA, cluster_means
from fedlib.methods.method import Server, State, Upload
from fedlib.methods.several import models
from fedlib.models.network import is_statistic
from fedlib.votes import first_argmax


@dataclass(frozen=True)
class FeSEM(IFCA):
    """Centres c_1 ... c_K. A round is one step of expectation maximisation (of k-means over the clients' parameters):

        client i:  w_i <- E steps of SGD from c_{k_i}
        E step:    k_i <- argmin_k || w_i - c_k ||                          ties go to the lowest k
        M step:    c_k <- sum_{i: k_i = k} n_i w_i / sum_{i: k_i = k} n_i   a centre without a client stays as it is

    Both steps are the server's, in this order and once a round, against the centres that it sent out. The norm is over
    all trained parameters. K = 1 is FedAvg.

    A client's first centre is the one of least mean cross-entropy on its training samples (spec, 6): its first message
    holds all K centres, every later one its own centre alone. It predicts with its own centre, since its cluster is
    known; who has never taken part chooses by `selection` (see Several).

    The paper's full text was not available: the steps are those of the spec (6). Decided here: the order of the steps,
    and the weights n_i. The distance to a client's own centre is no more than the way of one round of SGD, so with
    centres further apart than that (init: independent), the first choice, by loss, is never revised.

    The server's memory keeps membership (m,): k_i, -1 before a client's first round.
    """

    several_labels: ClassVar[bool] = True
    selection: str = "train"

    def broadcast(self, server: Server, client: int, memory: State) -> State:
        k = int(server.memory["membership"][client])
        return server.weights if k < 0 else {n: w for n, w in server.weights.items() if n.startswith(f"{k}/")}

    def aggregate(self, server: Server, uploads: Iterable[Upload]) -> Server:
        membership, c = server.memory["membership"].clone(), models(server.weights)

        def arriving() -> Iterator[tuple[int, float, State]]:
            for upload in uploads:
                (w_i,) = models(upload.weights)
                k = int(first_argmax(-distances(w_i, c)))
                membership[upload.client] = k
                yield k, self.weight(server, upload), w_i

        theta = cluster_means(server.weights, arriving())
        return Server(theta, server.round + 1, server.memory | {"membership": membership})

    def candidates(self, server: Server, client: int, memory: State) -> list[State]:
        k = int(server.memory["membership"][client])
        return models(server.weights) if k < 0 else [models(server.weights)[k]]

    def personal_model(self, server: Server, client: int, memory: State) -> State:
        return self.candidates(server, client, memory)[0]


def distances(w: State, c: Sequence[State]) -> Tensor:
    """|| w - c_k || over all trained parameters, (K,), float64."""
    names = [name for name, tensor in w.items() if tensor.is_floating_point() and not is_statistic(name)]
    squares = [torch.stack([(w[name].double() - c_k[name].double()).square().sum() for name in names]) for c_k in c]
    return torch.stack(squares).sum(1).sqrt()
