"""FedDRM's theory on Gaussian clients: density ratios and empirical likelihood in closed form.

Wang et al., ICLR 2026, Theorems 2.1 and 2.2 (FedDRM spec, 1.1 and 1.2), with the transform h the identity. Client i
of m holds n_i samples, N in all; x is (N, d), and a client head is gamma (m,) with xi (m, d), whose logits are
c_l(x) = γ_l + ξ_lᵀx. Clients N(μ_i, I) satisfy the density-ratio model exactly:

    log dP⁽ⁱ⁾/dP⁽⁰⁾(x) = γ†_i + ξ_iᵀx,    γ_i = γ†_i + log(n_i/N).

The model leaves the reference measure P⁽⁰⁾ open: one vector added to every ξ_l and one number to every γ_l change no
softmax. Here client 0 is the reference, γ†_0 = 0 and ξ_0 = 0, which also makes the weights of the empirical
likelihood add up to one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.special import logsumexp, softmax
from sklearn.linear_model import LogisticRegression

from fedlib.checks import FedlibError, check_number

GRADIENT_TOLERANCE = 1e-7


def gaussian_clients(
    means: np.ndarray, sizes: Sequence[int], generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Draw n_i = sizes[i] samples of N(means[i], I): x (N, d) float64 and origin (N,) int64, client by client.

    means: (m, d). Raises FedlibError unless there is one positive size a mean.
    """
    means = np.asarray(means, dtype=float)
    if len(means) != len(sizes):
        raise FedlibError(f"Gaussian clients: {len(means)} means but {len(sizes)} sizes; give one size a mean")
    for client, size in enumerate(np.asarray(sizes).tolist()):
        check_number(f"Gaussian clients: size of client {client}", size, least=1, whole=True)
    origin = np.repeat(np.arange(len(sizes)), sizes)
    return means[origin] + generator.standard_normal((len(origin), means.shape[1])), origin


def fit_client_head(x: np.ndarray, origin: np.ndarray, clients: int) -> tuple[np.ndarray, np.ndarray]:
    """Minimise the client cross-entropy Σ_ij −log softmax_i(γ + ξx_ij), centrally and without a penalty.

    Returns gamma (m,) and xi (m, d) in float64 with client 0 as the reference: ξ_0 = 0 and γ_0 = log(n_0/N).
    Raises FedlibError when a client has no sample, when the head separates the clients without error (its weights
    would grow for ever), or when the mean gradient's norm does not fall below 1e-7.
    """
    check_number("client head: clients", clients, least=2, whole=True)
    sizes = np.bincount(origin, minlength=clients)
    if len(sizes) > clients or not sizes.all():
        raise FedlibError(f"client head: clients 0 to {clients - 1} need samples each, but their counts are {sizes}")
    fit = LogisticRegression(C=np.inf, solver="newton-cg", tol=1e-10, max_iter=1000).fit(x, origin)
    gamma, xi = fit.intercept_, fit.coef_
    if clients == 2:  # scikit-learn then returns client 1's row alone, against zeros
        gamma, xi = np.append(0.0, gamma), np.vstack([np.zeros_like(xi), xi])
    gamma, xi = gamma - gamma[0] + np.log(sizes[0] / len(x)), xi - xi[0]
    residual = np.eye(clients)[origin] - softmax(gamma + x @ xi.T, axis=1)
    gradient = np.linalg.norm(np.column_stack([residual.sum(0), residual.T @ x])) / len(x)
    if not gradient < GRADIENT_TOLERANCE or fit.score(x, origin) == 1:
        raise FedlibError(
            f"client head: no finite optimum (gradient norm {gradient:.1e}, accuracy {fit.score(x, origin):.3f}); "
            "clients that a linear head tells apart without error have no density ratio: move their means closer"
        )
    return gamma, xi


def log_density_ratio_true(x: np.ndarray, means: np.ndarray) -> np.ndarray:
    """log dP⁽ⁱ⁾/dP⁽⁰⁾ of clients N(μ_i, I): (μ_i − μ_0)ᵀx − (‖μ_i‖² − ‖μ_0‖²)/2, as (N, m)."""
    means = np.asarray(means, dtype=float)
    squares = (means**2).sum(axis=1)
    return x @ (means - means[0]).T - (squares - squares[0]) / 2


def log_density_ratio(x: np.ndarray, gamma: np.ndarray, xi: np.ndarray, sizes: Sequence[int]) -> np.ndarray:
    """The same from a client head: r_i(x) = γ_i − log(n_i/N) + ξ_iᵀx, less r_0(x), as (N, m).

    Its arg max over clients is FedDRM's router; without the prior log(n_i/N) it would be the Bayes posterior's.
    """
    ratio = gamma - _log_prior(sizes) + x @ xi.T
    return ratio - ratio[:, :1]


def empirical_likelihood(x: np.ndarray, gamma: np.ndarray, xi: np.ndarray, sizes: Sequence[int]) -> np.ndarray:
    """Weights of the reference measure, p_ij = N⁻¹ {Σ_l (n_l/N) exp(γ†_l + ξ_lᵀx_ij)}⁻¹, as (N,)."""
    return np.exp(-np.log(np.sum(sizes)) - logsumexp(gamma + x @ xi.T, axis=1))


def constraint_residuals(
    p: np.ndarray, x: np.ndarray, gamma: np.ndarray, xi: np.ndarray, sizes: Sequence[int]
) -> np.ndarray:
    """What is left of the empirical likelihood's constraints, (1 + m,): zero at the optimum.

    First Σ_ij p_ij − 1, then Σ_ij p_ij exp(γ†_l + ξ_lᵀx_ij) − 1 for each client l. The latter are the first-order
    conditions of γ_l under any reference; the former is client 0's, when client 0 is the reference.
    """
    tilted = p @ np.exp(gamma - _log_prior(sizes) + x @ xi.T)
    return np.append(p.sum(), tilted) - 1


def client_head_gradient(features: np.ndarray, logits: np.ndarray, client: int) -> tuple[np.ndarray, np.ndarray]:
    """Gradients of client i's mean log-likelihood in its head: minus those of its cross-entropy (FedDRM spec, 1.2).

    ∂/∂γ_k = n_i⁻¹ Σ_j {1(i=k) − p_k(x_ij)} as (m,), and ∂/∂ξ_k = n_i⁻¹ Σ_j h(x_ij) {1(i=k) − p_k(x_ij)} as (m, d).
    features: (n_i, d), all of client i = `client`. logits: (n_i, m). Rows k ≠ i have no positive part: client i only
    ever pushes the others' densities down, which is the gradient drift that λ damps.
    """
    residual = -softmax(logits, axis=1)
    residual[:, client] += 1
    return residual.mean(axis=0), residual.T @ features / len(features)


def _log_prior(sizes: Sequence[int]) -> np.ndarray:
    return np.log(np.asarray(sizes) / np.sum(sizes))
