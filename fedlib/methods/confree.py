"""ConFREE: the server takes conflicts out of the clients' updates before it averages them.

Zheng, Hu, Yang, Zheng, Xu, Wang: ConFREE: Conflict-free Client Update Aggregation for Personalized Federated Learning,
AAAI 2025.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import brentq
from torch import Tensor

from fedlib.methods.fedpac import least_on_simplex
from fedlib.methods.fedrep import FedRep
from fedlib.methods.method import Server, Upload, hyper

Grams = dict[str, np.ndarray]
Mixtures = dict[str, np.ndarray]


@dataclass(frozen=True)
class ConFREE(FedRep):
    """FedRep's local phases. For each tensor of the body, with the updates D_i = theta_i - theta, the server

        1. projects:  D_i' = D_i, then for each j:  if <D_i', D_j> < 0:  D_i' <- D_i' - <D_i', D_j> / ||D_j||^2 D_j
           and averages to the conflict-free guidance vector  g = sum_i (n_i / n) D_i'
        2. looks in a ball around g for the step that is best for the client it serves worst:

           d = argmax_d min_i <D_i, d>   with ||d - g|| <= r ||g||
             = g + r ||g|| D_w / ||D_w||,   D_w = sum_i w_i D_i,
           w = argmin on the simplex of <D_w, g> + r ||g|| ||D_w||

        3. theta <- theta + d / (1 + r^2)

    Steps 1 and 2 are the abstract's. The paper's text was not available: that they run tensor by tensor, and step 3,
    are the authors' implementation's. It takes the j in random order (here: the strongest conflict first, so that a run
    depends on its clients alone), leaves out 1 / ||D_j||^2 (no projection without it) and averages in 1 with 1 / m.

    radius: r; 0 stops at g. The authors' value could not be found; 0.5 is a usual one for step 2, which is that of
    CAGrad (Liu et al., NeurIPS 2021).
    """

    radius: float = hyper(0.5, least=0.0, below=1.0)

    def aggregate(self, server: Server, uploads: Iterable[Upload]) -> Server:
        def mixtures(grams: Grams, shares: np.ndarray) -> Mixtures:
            return {name: fairest(gram, guidance(gram, shares), self.radius) for name, gram in grams.items()}

        return move(server, list(uploads), mixtures)


def move(server: Server, uploads: Sequence[Upload], mixtures: Callable[[Grams, np.ndarray], Mixtures]) -> Server:
    """theta <- theta + sum_i b_i D_i, tensor by tensor.

    Projections, norms and inner products of combinations of the updates need only their Gram matrices <D_i, D_j>
    (m, m): `mixtures` gives the coefficients b (m,) of each tensor from these and from the shares n_i / n.
    """
    sizes = np.array([upload.samples for upload in uploads], dtype=float)

    def updates(name: str) -> Tensor:
        theta = server.weights[name].double()
        return torch.stack([(upload.weights[name].double() - theta).flatten() for upload in uploads])

    grams = {name: (D @ D.T).cpu().numpy() for name in server.weights for D in [updates(name)]}
    weights = {}
    for name, b in mixtures(grams, sizes / sizes.sum()).items():
        theta = server.weights[name]
        d = torch.from_numpy(b).to(theta.device) @ updates(name)
        weights[name] = (theta.double() + d.view(theta.shape)).to(theta.dtype)
    return Server(weights, server.round + 1, server.memory)


def guidance(gram: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """The coefficients of g = sum_i shares_i D_i'."""
    projected = np.eye(len(gram))
    norms = np.sqrt(gram.diagonal())
    for i, own in enumerate(projected):
        cosines = np.divide(gram[i], norms, out=np.zeros(len(gram)), where=norms > 0)
        for j in np.argsort(cosines, kind="stable"):
            along = own @ gram[:, j]
            if j != i and along < 0:
                own[j] -= along / gram[j, j]
    return shares @ projected


def fairest(gram: np.ndarray, g: np.ndarray, radius: float) -> np.ndarray:
    """The coefficients of d / (1 + r^2) from those of g.

    For each kappa > 0, w is taken where D_w comes nearest to -kappa g in the hull of the updates; the minimiser of
    step 2 is the one with ||D_w|| = kappa r ||g||. If there is none, the hull touches 0 where no update is against g,
    and g is best itself.
    """
    G = gram / (gram.trace() or 1.0)
    reach = radius * np.sqrt(max(g @ G @ g, 0.0))
    if reach == 0.0:
        return g / (1.0 + radius**2)

    def nearest(kappa: float) -> np.ndarray:
        to = np.eye(len(g)) + kappa * np.outer(g, np.ones(len(g)))  # D_w + kappa g = sum_i (to w)_i D_i, as 1'w = 1
        return least_on_simplex(to.T @ G @ to)

    def excess(kappa: float) -> float:
        w = nearest(kappa)
        return float(np.sqrt(max(w @ G @ w, 0.0)) - kappa * reach)

    far = np.sqrt(G.diagonal().max()) / reach
    if excess(1e-6 * far) <= 0.0:
        return g / (1.0 + radius**2)
    kappa = brentq(excess, 1e-6 * far, 2.0 * far, xtol=1e-12 * far)
    return (g + nearest(kappa) / kappa) / (1.0 + radius**2)


def original_projections(grams: Grams, shares: np.ndarray) -> Mixtures:
    """g of the whole body with the original updates on both sides of every projection, as FedDRM's authors run it:

    D_i' = D_i - sum_{j: <D_i, D_j> < 0} <D_i, D_j> / (||D_j||^2 + 1e-8) D_j.
    """
    gram = np.sum(list(grams.values()), axis=0)
    conflicts = gram.clip(max=0.0) / (gram.diagonal() + 1e-8)
    return dict.fromkeys(grams, shares @ (np.eye(len(shares)) - conflicts))
