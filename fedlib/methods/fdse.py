"""FDSE: every layer extracts features that domains have in common, then erases what is left of the client's domain.

Wang, Wang, Wang, Fan, Wang: Federated Learning with Domain Shift Eraser, CVPR 2025.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedlib.checks import FedlibError
from fedlib.methods.confree import Grams, Mixtures, move
from fedlib.methods.fdse_network import Moments, deskewed, is_eraser, watched
from fedlib.methods.fedpac import least_on_simplex
from fedlib.methods.method import Method, Server, State, Task, Upload, Work, hyper, weighted_mean
from fedlib.methods.names import named, under
from fedlib.models.network import is_statistic
from fedlib.training import Batch, Terms

MODEL = "resnet10"


@dataclass(frozen=True)
class FDSE(Method):
    """Each convolution to C channels, with its norm, becomes E_l (extractor) and S_l (eraser of skew), l = 1 … L:

        u = E_l(x), ceil(C / G) channels;    v = [u, S_l u], C channels;    out = norm_l(v)

    where S_l has one 3x3 depth-wise kernel for each remaining channel. Client i minimises, with mu_l and var_l the mean
    and the variance of v over the mini-batch, channel by channel, and mu_l^0 and var_l^0 the global ones,

        CE(y; f(x)) + lam * sum_l w_l (||mu_l - mu_l^0||^2 + ||var_l - var_l^0||^2) / C_l,   w = softmax(beta * (1 … L))

    Server, over this round's m clients, with theta the extractors and phi_i client i's eraser:

        theta <- theta + d * (1 / m) sum_i ||D_i||,   D_i = theta_i - theta,   layer by layer
            d = sum_i a_i D_i / ||D_i||,  a = argmin on the simplex of ||d||: the direction in which clients agree
        phi_i <- sum_j softmax_j(cos(phi_i, phi_j) / tau) phi_j
        mu_l^0, var_l^0 <- sum_i (n_i / n) of the clients' running statistics

    A client predicts with theta, its own eraser, and its own running statistics, which the server never replaces. One
    that has not taken part yet has the mean eraser, weighted with n_i / n, and the global statistics.

    Parameters for C_in input channels, K classes and a width w that G divides; resnet10's are those of G = 1:

        (1194 w^2 + 9 C_in w) / G + 405 w (1 - 1 / G) + 90 w + 8 w K + K

    Only a summary of the method was at hand. Not stated in what could be read, and decided here: that the norm belongs
    to the eraser, which thus has all of a layer's statistics, and that no ReLU stands between E_l and S_l; that v is
    compared before the norm (its moments are fixed after it), in mean and variance, squared, as means over channels; no
    consistency in round 1, when no statistics are known; that its gradient reaches extractors and erasers; that the
    head is aggregated as one more extractor, weight and bias as one layer; that d is the point of least norm itself,
    not scaled to length 1, so that steps shrink where clients disagree; cosines over the whole eraser (kernels and the
    norms' weights) without its statistics; that absent clients keep their eraser and lend it to nobody.

    lam, beta: strength of the consistency, and how it grows with depth. eraser_tau: tau (the plug-in of F2DC, with
    which this method can be combined, has a tau of its own). G: convolutions keep one channel in G. Defaults: the
    authors' for PACS; for Office-Caltech they have lam .05, beta .05, tau .5, and in general .01, .1, .5.
    """

    lam: float = hyper(0.5, least=0.0)
    beta: float = hyper(0.001)
    eraser_tau: float = hyper(0.5, above=0.0)
    G: int = hyper(2, least=1, whole=True)

    def build(self, task: Task) -> nn.Module:
        if task.model["name"] != MODEL:
            raise FedlibError(
                f"{type(self).__name__} divides convolutions that BatchNorm follows, and model {task.model['name']} is "
                f"not made of these; take {MODEL}"
            )
        return deskewed(task.network(), self.G)

    def remember(self, task: Task) -> State:
        """Room for everyone's eraser: each of its tensors with a leading axis of m."""
        with torch.device("meta"):  # shapes alone: nothing is drawn
            parameters = dict(self.build(task).named_parameters())
        erasers = {name: w for name, w in parameters.items() if is_eraser(name)}
        room = {name: torch.zeros(task.clients, *w.shape, device="cpu") for name, w in erasers.items()}
        return named("eraser", room)

    def broadcast(self, server: Server, client: int, memory: State) -> State:
        return server.weights | own_eraser(server, client, memory)

    def loss(self, model: nn.Module, batch: Batch, work: Work) -> Terms:
        with watched(model) as seen:
            target = F.cross_entropy(model(batch.x), batch.y)
        consistency = inconsistency(seen, work.message, self.beta) if work.round > 1 else target.new_zeros(())
        return {"total": target + self.lam * consistency, "target": target, "consistency": consistency}

    def upload(self, work: Work, losses: dict[str, float]) -> Upload:
        upload = super().upload(work, losses)
        own = {name: tensor for name, tensor in upload.weights.items() if is_eraser(name) and is_statistic(name)}
        return replace(upload, memory=upload.memory | own)

    def aggregate(self, server: Server, uploads: Iterable[Upload]) -> Server:
        sent = list(uploads)
        extractors = {name: w for name, w in server.weights.items() if not (is_eraser(name) or is_statistic(name))}
        theta = move(replace(server, weights=extractors), sent, layer_by_layer).weights
        others = [replace(upload, weights=without(upload.weights, extractors)) for upload in sent]
        weights = weighted_mean(server.weights, others) | theta
        return Server(weights, server.round + 1, server.memory | personal_erasers(server, sent, self.eraser_tau))

    def personal_model(self, server: Server, client: int, memory: State) -> State:
        return server.weights | own_eraser(server, client, memory) | memory


def without(state: State, names: Iterable[str]) -> State:
    """The other tensors."""
    left_out = set(names)
    return {name: tensor for name, tensor in state.items() if name not in left_out}


def own_eraser(server: Server, client: int, memory: State) -> State:
    """phi_i, or nothing for a client that has not taken part yet: then it has no memory either."""
    if not memory:
        return {}
    return {name: phi[client].clone() for name, phi in under("eraser", server.memory).items()}


def inconsistency(seen: Sequence[tuple[str, Tensor]], known: State, beta: float) -> Tensor:
    """sum_l w_l (||mu_l - mu_l^0||^2 + ||var_l - var_l^0||^2) / C_l; known: the global statistics, by name."""
    errors = []
    for name, v in seen:
        mu, var = Moments.apply(v.float())
        error = (mu - known[f"{name}.running_mean"]).square() + (var - known[f"{name}.running_var"]).square()
        errors.append(error.mean())
    w = torch.softmax(beta * torch.arange(len(errors), device=errors[0].device), 0)
    return (w * torch.stack(errors)).sum()


def layer_by_layer(grams: Grams, shares: np.ndarray) -> Mixtures:
    """The consensus of each layer: the tensors of one module, weight and bias, move together."""
    layers: dict[str, np.ndarray] = {}
    for name, gram in grams.items():
        layer = name.rpartition(".")[0]
        layers[layer] = layers[layer] + gram if layer in layers else gram
    b = {layer: consensus(gram) for layer, gram in layers.items()}
    return {name: b[name.rpartition(".")[0]] for name in grams}


def consensus(gram: np.ndarray) -> np.ndarray:
    """The b (m,) with sum_i b_i D_i = mean norm * d, from <D_i, D_j> (m, m).

    A client that has not moved says nothing about the direction: it counts in the mean norm alone.
    """
    norms = np.sqrt(gram.diagonal())
    moved = np.flatnonzero(norms)
    b = np.zeros(len(gram))
    if len(moved):
        cosines = gram[np.ix_(moved, moved)] / np.outer(norms[moved], norms[moved])
        b[moved] = norms.mean() * least_on_simplex(cosines) / norms[moved]
    return b


def personal_erasers(server: Server, uploads: Sequence[Upload], tau: float) -> State:
    """The server's erasers after the round: new ones for its clients."""
    erasers = under("eraser", server.memory)
    stacks = {name: torch.stack([upload.weights[name].double() for upload in uploads]) for name in erasers}
    a = kinship(torch.cat([phi.flatten(1) for phi in stacks.values()], 1), tau)
    clients = [upload.client for upload in uploads]
    found = {}
    for name, phi in stacks.items():
        found[name] = erasers[name].clone()
        found[name][clients] = torch.tensordot(a, phi, 1).to(found[name].dtype)
    return named("eraser", found)


def kinship(phi: Tensor, tau: float) -> Tensor:
    """(m, P) -> (m, m): softmax over j of cos(phi_i, phi_j) / tau."""
    unit = F.normalize(phi, dim=1)
    return torch.softmax(unit @ unit.T / tau, 1)
