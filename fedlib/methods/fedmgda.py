"""FedMGDA+: the server moves in the direction that serves every client's loss, whatever the clients' numbers.

Hu, Shaloudegi, Zhang, Yu: Federated Learning Meets Multi-objective Optimization, IEEE TNSE 2022 (arXiv 2006.11489).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import minimize

from fedlib.checks import FedlibError
from fedlib.methods.fedamp import combined, gram
from fedlib.methods.method import Method, Server, State, Upload, hyper, weighted_mean
from fedlib.models.network import is_statistic


@dataclass(frozen=True)
class FedMGDAPlus(Method):
    """Client i: E steps of SGD from theta to theta_i. Server, over the round's clients:

        d_i  = (theta - theta_i) / ||theta - theta_i||                        (all parameters together; 0 stays 0)
        lam* = argmin of ||sum_i lam_i d_i||^2  over  lam_i >= 0, sum_i lam_i = 1, |lam_i - lam0_i| <= eps
        theta <- theta - server_lr sum_i lam*_i d_i,          lam0_i = n_i / n

    With eps = 1 no client is against the step (<d_i, sum_j lam*_j d_j> >= 0), and it is 0 where nobody's loss can fall
    without another's rising; eps = 0 is the mean of directions that FedAvg's weights give. As the d_i have length 1, a
    client cannot gain weight by a larger loss, and the step is no longer than server_lr, whatever the local rate.

    server_lr: a distance between models, and so a matter of their size; None takes sum_i lam0_i ||theta - theta_i||, a
    step of FedAvg's length. The paper's values could not be read: it lets the step decay over the rounds, which None
    does with the local rate. Running statistics of BatchNorm, which have no gradient, are averaged with lam0.
    """

    eps: float = hyper(0.1, least=0.0, most=1.0)
    server_lr: float | None = hyper(1.0, above=0.0)

    def aggregate(self, server: Server, uploads: Iterable[Upload]) -> Server:
        """All uploads are collected first: each weight needs everyone's direction."""
        sent = sorted(uploads, key=lambda upload: upload.client)  # the same bits in any order of arrival
        theta = parameters(server.weights)
        models = [parameters(upload.weights) for upload in sent]
        G = gram(models, origin=theta).cpu().numpy()
        length = np.sqrt(G.diagonal().clip(min=0.0))
        unit = np.divide(1.0, length, out=np.zeros_like(length), where=length > 0)
        lam0 = np.array([upload.samples for upload in sent]) / sum(upload.samples for upload in sent)
        lam = shortest(unit[:, None] * G * unit, lam0, self.eps)
        step = lam * unit * (lam0 @ length if self.server_lr is None else self.server_lr)
        moved = combined([theta, *models], torch.from_numpy(np.append(1.0 - step.sum(), step)))
        return Server(weighted_mean(server.weights, sent) | moved, server.round + 1, server.memory)


def parameters(state: State) -> State:
    """What gradients move."""
    return {name: tensor for name, tensor in state.items() if not is_statistic(name)}


def shortest(G: np.ndarray, lam0: np.ndarray, eps: float) -> np.ndarray:
    """lam (m,): the minimiser of lam'G lam on the simplex with |lam_i - lam0_i| <= eps; G (m, m) = [<d_i, d_j>]_ij.

    SciPy's sequential least squares: active sets, exact up to rounding for so small a quadratic. Raises FedlibError
    if it does not end.
    """
    if eps == 0:
        return lam0
    low, high = (lam0 - eps).clip(min=0.0), (lam0 + eps).clip(max=1.0)
    found = minimize(
        lambda lam: lam @ G @ lam,
        lam0,
        jac=lambda lam: 2.0 * G @ lam,
        bounds=np.stack([low, high], axis=1),
        constraints={"type": "eq", "fun": lambda lam: lam.sum() - 1.0, "jac": np.ones_like},
        method="SLSQP",
        options={"ftol": 1e-15, "maxiter": 1000},
    )
    if not found.success:
        raise FedlibError(f"no least combination of {len(lam0)} updates with eps {eps}: {found.message}; lower lr")
    return found.x.clip(low, high)
