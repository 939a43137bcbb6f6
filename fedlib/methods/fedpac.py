"""FedPAC: class centroids align the clients' features, and each client's head is a combination of all heads.

Xu, Tong, Huang: Personalized Federated Learning with Feature Alignment and Classifier Collaboration, ICLR 2023.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from scipy.optimize import nnls
from torch import Tensor, nn

from fedlib.data.federation import Samples
from fedlib.forward import embeddings
from fedlib.methods.fedrep import FedRep
from fedlib.methods.method import Server, State, Upload, Work, hyper, weighted_mean
from fedlib.methods.names import named, under
from fedlib.models.network import Network
from fedlib.training import Batch, Terms


@dataclass(frozen=True)
class FedPAC(FedRep):
    """With f the input of the head (d numbers), client i, from the body theta and its combined head psi_i:

        h_ik = mean_j 1[y_j = k] f(x_j),   V_i = (mean_j ||f(x_j)||^2 - sum_k ||h_ik||^2) / n_i      under theta
        phi_i   <- H steps of SGD on the cross-entropy over the head, from psi_i, with theta fixed
        theta_i <- E steps of SGD on  CE + lam * mean_j ||f(x_j) - c_{y_j}||^2 / d,  with phi_i fixed
        mu_ik = the mean of f over the n_ik samples of class k                                     under theta_i

    Samples of a class without a centroid add nothing to the second term (in round 1: all). Server:

        theta <- sum_i (n_i / n) theta_i,     c_k <- sum_i n_ik mu_ik / sum_i n_ik
        psi_i <- sum_j a_j phi_j,   a = argmin on the simplex of  sum_j a_j^2 V_j + sum_k ||h_ik - sum_j a_j h_jk||^2

    V_j is the variance of (h_j1 … h_jK), a mean over n_j samples: a has the least expected squared error, variance
    plus bias, of all combinations that estimate client i's own mean.

    The terms V and h, and the 1 / d, are those of the authors' implementation; the paper's text was not available.
    The server remembers everyone's last head and statistics: who is absent still serves the others, and keeps psi_i.

    lam: strength of the alignment. head_steps: H; None takes as many as E (the authors take one epoch).
    """

    lam: float = hyper(1.0, least=0.0)

    def broadcast(self, server: Server, client: int, memory: State) -> State:
        centroids = {name: server.memory[name] for name in ("centroids", "counts") if name in server.memory}
        return server.weights | combined_head(server, client) | centroids

    def loss(self, model: nn.Module, batch: Batch, work: Work) -> Terms:
        f = features(model, batch.x)
        target = F.cross_entropy(model.head(f), batch.y)  # type: ignore[operator]
        alignment = f.new_zeros(())
        if "centroids" in work.message:
            error = (f - work.message["centroids"][batch.y]).square().mean(1)
            alignment = (error * (work.message["counts"][batch.y] > 0)).mean()
        return {"total": target + self.lam * alignment, "target": target, "alignment": alignment}

    def client_update(self, work: Work) -> Upload:
        self.start(work)
        before = class_moments(work.model, work.samples)
        h = before.sums / len(work.samples)
        V = (before.squares / len(work.samples) - h.square().sum()) / len(work.samples)
        upload = super().client_update(work)
        after = class_moments(work.model, work.samples)
        statistics = {"h": h, "V": V, "counts": after.counts, "sums": after.sums}
        sent = {name: value.float() for name, value in statistics.items()}
        return replace(upload, memory={}, extra=upload.memory | sent)

    def aggregate(self, server: Server, uploads: Iterable[Upload]) -> Server:
        memory, present = dict(server.memory), []

        def remembered() -> Iterator[Upload]:
            for upload in uploads:
                present.append(upload.client)
                memory.update(named(upload.client, upload.extra))
                yield upload

        weights = weighted_mean(server.weights, remembered())
        return Server(weights, server.round + 1, memory | centroids(memory) | combined_heads(memory, present))

    def personal_model(self, server: Server, client: int, memory: State) -> State:
        return server.weights | (combined_head(server, client) or memory)


class ClassMoments(NamedTuple):
    """Of f over a client's samples: n_k (K,), sum of f by class (K, d), sum of ||f||^2 (); float64."""

    counts: Tensor
    sums: Tensor
    squares: Tensor


def features(model: nn.Module, x: Tensor) -> Tensor:
    """f(x): the input of the head, (N, d)."""
    assert isinstance(model, Network)
    return model.transform(model.backbone(x))


def class_moments(model: nn.Module, samples: Samples) -> ClassMoments:
    """On the whole images."""
    assert isinstance(model, Network)
    found = []
    for f, y in embeddings(model, samples):
        of_class = F.one_hot(y, model.head.out_features).double()
        found.append((of_class.sum(0), of_class.T @ f.double(), f.double().square().sum()))
    return ClassMoments(*(torch.stack(parts).sum(0) for parts in zip(*found, strict=True)))


def combined_head(server: Server, client: int) -> State:
    """psi_i, or nothing if the client has not taken part yet."""
    return under(f"{client}/combined", server.memory)


def everyones(memory: State) -> tuple[list[int], dict[str, Tensor]]:
    """The clients that have taken part, and what each sent last, stacked in their order (float64)."""
    clients = sorted(int(name.removesuffix("/V")) for name in memory if name.endswith("/V"))
    names = [name for name in under(clients[0], memory) if not name.startswith("combined/")]
    return clients, {name: torch.stack([memory[f"{i}/{name}"] for i in clients]).double() for name in names}


def centroids(memory: State) -> State:
    """c_k, and sum_i n_ik: 0 for a class that has no centroid."""
    _, last = everyones(memory)
    counts = last["counts"].sum(0)
    c = last["sums"].sum(0) / counts.clamp(min=1.0)[:, None]
    return {"centroids": c.float(), "counts": counts.float()}


def combined_heads(memory: State, present: list[int]) -> State:
    """psi_i of this round's clients."""
    clients, last = everyones(memory)
    found = {}
    for i in present:
        a = combination(last["V"], last["h"].flatten(1), clients.index(i))
        for name in ("head.weight", "head.bias"):
            psi = torch.tensordot(a, last[name], 1)
            found[f"{i}/combined/{name}"] = psi.to(memory[f"{i}/{name}"].dtype)
    return found


def combination(V: Tensor, h: Tensor, i: int) -> Tensor:
    """a (m,): the minimiser of a'Pa on the simplex, P = diag(V) + [<h_j - h_i, h_l - h_i>]_jl; V (m,), h (m, K d)."""
    apart = h - h[i]
    P = (torch.diag(V) + apart @ apart.T).cpu().numpy()
    # If P = 0, all combinations are as good as one another: the client keeps its own head.
    a = least_on_simplex(P) if P.any() else np.eye(len(P))[i]
    return torch.from_numpy(a).to(h.device)


def least_on_simplex(P: np.ndarray) -> np.ndarray:
    """The a >= 0 with 1'a = 1 of least a'Pa, for a positive semidefinite P (m, m), singular or not, but not 0.

    With R'R = P, non-negative least squares finds the x of least ||Rx||^2 + (1'x - 1)^2. Of all x = s a the best
    leaves q / (1 + q) with q = a'Pa, which grows with q: so a = x / 1'x, exactly.
    """
    m = len(P)
    values, vectors = np.linalg.eigh(P / P.trace())
    R = np.sqrt(values.clip(min=0.0))[:, None] * vectors.T
    x, _ = nnls(np.vstack([R, np.ones(m)]), np.append(np.zeros(m), 1.0), maxiter=100 * m)
    return x / x.sum()
