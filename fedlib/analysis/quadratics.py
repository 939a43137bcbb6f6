"""FedFew where everything is known: clients with quadratic losses, and exact gradient descent on g_STCH-Set.

    L_i(theta) = (theta - theta_i*)' A_i (theta - theta_i*) / 2,   L_i(theta_i*) = 0

With A_i = I, K = 1 and smoothing -> 0 the descent seeks the centre of the smallest ball around the optima, with
smoothing -> inf their mean; the lowest mean of min_k L_i(theta_k) over K models is K-means' inertia / (2 m); and the
Pareto set is the convex hull of the optima.

Guo, Zhang, Lin, Li, Tang, Zhang: Few-for-Many Personalized Federated Learning, CVPR 2026, arXiv 2603.11992. A step of
`descend` is a round of methods.fedfew in which each client makes one step of gradient descent on all its samples.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from scipy.optimize import minimize
from scipy.spatial.distance import pdist
from scipy.special import logsumexp, softmax
from scipy.stats import rankdata
from sklearn.cluster import KMeans

from fedlib.checks import FedlibError, check_choice, check_number
from fedlib.methods.fedfew import DEAD, LOSS_SCALES, STEPS, scaled, stch_set
from fedlib.methods.several import INITS, NOISE

DRAWS = 1000
"""How often the centres of clusters are drawn before there is no room for them."""


@dataclass(frozen=True, eq=False)
class Quadratics:
    """optima theta_i* (m, d), group (m,), sizes n_i (m,), and curvature A_i (m, d, d), symmetric; None: I."""

    optima: np.ndarray
    group: np.ndarray
    sizes: np.ndarray
    curvature: np.ndarray | None = None

    def losses(self, thetas: np.ndarray) -> np.ndarray:
        """L_i(theta_k) (m, K) for thetas (K, d)."""
        away = thetas - self.optima[:, None]
        return (away * self._curved(away)).sum(-1) / 2

    def gradients(self, thetas: np.ndarray) -> np.ndarray:
        """grad L_i(theta_k) (m, K, d)."""
        return self._curved(thetas - self.optima[:, None])

    def hessians(self) -> np.ndarray:
        """A_i (m, d, d)."""
        m, d = self.optima.shape
        return np.broadcast_to(np.eye(d), (m, d, d)) if self.curvature is None else self.curvature

    def _curved(self, away: np.ndarray) -> np.ndarray:
        return away if self.curvature is None else np.einsum("ide,ike->ikd", self.curvature, away)


def given(optima: np.ndarray, curvature: np.ndarray | None = None) -> Quadratics:
    """Clients of equal size, each a group of its own, with these optima (m, d)."""
    m = len(optima)
    return Quadratics(np.asarray(optima, dtype=float), np.arange(m), np.ones(m), curvature)


def regular(m: int, distance: float) -> Quadratics:
    """Two or three clients with A_i = I in the plane, each `distance` from each other."""
    check_choice("regular: m", m, (2, 3))
    check_number("regular: distance", distance, above=0)
    angles = 2 * np.pi * np.arange(m) / m
    return given(np.column_stack([np.cos(angles), np.sin(angles)]) * distance / (2 * np.sin(np.pi / m)))


def clusters(
    m: int, d: int, G: int, generator: np.random.Generator, separation: float, spread: float, size_ratio: float = 1.0
) -> Quadratics:
    """m clients with A_i = I whose optima lie in G clusters of (nearly) equal numbers in R^d.

    separation: root mean square distance of two centres, normal before those are drawn anew of which two are nearer
    than half of it. spread: of an optimum to its centre. size_ratio: sizes are log-uniform in [1, size_ratio].
    """
    check_number("clusters: m", m, least=1, whole=True)
    check_number("clusters: d", d, least=1, whole=True)
    check_number("clusters: G", G, least=1, most=m, whole=True)
    check_number("clusters: separation", separation, above=0)
    check_number("clusters: spread", spread, least=0)
    check_number("clusters: size_ratio", size_ratio, least=1)
    centres = _centres(G, d, generator, separation)
    group = np.arange(m) % G
    optima = centres[group] + generator.normal(size=(m, d)) * spread / np.sqrt(d)
    return Quadratics(optima, group, np.exp(generator.uniform(0, 1, size=m) * np.log(size_ratio)))


def _centres(G: int, d: int, generator: np.random.Generator, separation: float) -> np.ndarray:
    """(G, d), no two nearer than separation / 2."""
    for _ in range(DRAWS):
        centres = generator.normal(size=(G, d)) * separation / np.sqrt(2 * d)
        if G == 1 or pdist(centres).min() >= separation / 2:
            return centres
    raise FedlibError(f"clusters: no room for G = {G} centres apart in d = {d} dimensions; lower G or raise d")


def start(K: int, d: int, generator: np.random.Generator, width: float, init: str = "independent") -> np.ndarray:
    """theta_1 … theta_K (K, d) before the first step, about the origin, `width` their root mean square distance to it.

    init: "independent", "same", or "noise": copies of one draw plus Gaussian noise of 0.01 a coordinate.
    """
    check_number("start: K", K, least=1, whole=True)
    check_number("start: width", width, above=0)
    check_choice("start: init", init, INITS)
    drawn = generator.normal(size=(K, d)) * width / np.sqrt(d)
    if init == "independent":
        return drawn
    copies = np.repeat(drawn[:1], K, axis=0)
    return copies + NOISE * generator.normal(size=(K, d)) if init == "noise" else copies


@dataclass(frozen=True, eq=False)
class Descent:
    """Steps 0 … T: g (T+1,), outer a (T+1, m), c (T+1, K), losses and inner w (T+1, m, K), thetas (T+1, K, d).

    losses are the clients' own, whatever stands in the exponent of g; thetas[t] gave losses[t] and g[t].
    """

    g: np.ndarray
    losses: np.ndarray
    outer: np.ndarray
    inner: np.ndarray
    c: np.ndarray
    thetas: np.ndarray

    def objective(self) -> pd.DataFrame:
        """A row a step: g, worst = max_i min_k L_i(theta_k), regret = mean_i min_k L_i(theta_k), and mean_i max_k w_ik.

        The last column, `certainty`, is 1 / K where all models are alike and 1 where each client has one of its own.
        """
        best = self.losses.min(2)
        columns = {"g": self.g, "worst": best.max(1), "regret": best.mean(1), "certainty": self.inner.max(2).mean(1)}
        return pd.DataFrame(columns).rename_axis("step").reset_index()

    def clients(self) -> pd.DataFrame:
        """A row a step, client and model: loss L_i(theta_k), outer a_i and inner w_ik."""
        steps, m, K = self.losses.shape
        step, client, model = (axis.ravel() for axis in np.indices((steps, m, K)))
        columns = {"loss": self.losses.ravel(), "outer": np.repeat(self.outer, K), "inner": self.inner.ravel()}
        return pd.DataFrame({"step": step, "client": client, "model": model} | columns)

    def models(self) -> pd.DataFrame:
        """A row a step and model: its step mass c_k and its coordinates theta_0 … theta_{d-1}."""
        steps, K, d = self.thetas.shape
        step, model = (axis.ravel() for axis in np.indices((steps, K)))
        columns = {f"theta_{place}": self.thetas[:, :, place].ravel() for place in range(d)}
        return pd.DataFrame({"step": step, "model": model, "c": self.c.ravel()} | columns)

    def chosen(self) -> np.ndarray:
        """(m,) the model that each client takes after the last step: argmin_k L_i(theta_k)."""
        return self.losses[-1].argmin(1)


def descend(
    problem: Quadratics,
    thetas: np.ndarray,
    smoothing: float,
    lr: float,
    steps: int,
    update: str = "plain",
    loss_scale: str = "raw",
) -> Descent:
    """theta_k <- theta_k - lr sum_i a_i w_ik grad L_i(theta_k), `steps` times, from thetas (K, d).

    update: "plain", or "normalised": the sum divided by c_k = sum_i a_i w_ik; models with c_k < 1e-8 stay. loss_scale:
    what stands in the exponents, as in FedFew; with other than "raw" losses the weights stay a_i w_ik, so that the
    step is not along the gradient of the g which it reports. Raises FedlibError when g runs away.
    """
    check_number("descend: smoothing", smoothing, above=0)
    check_number("descend: lr", lr, above=0)
    check_number("descend: steps", steps, least=0, whole=True)
    check_choice("descend: update", update, STEPS)
    check_choice("descend: loss_scale", loss_scale, LOSS_SCALES)
    n, noted = torch.from_numpy(problem.sizes), list[tuple[np.ndarray, ...]]()
    with np.errstate(over="ignore", invalid="ignore"):  # what runs away is told by g
        for step in range(steps + 1):
            L = problem.losses(thetas)
            now = stch_set(scaled(torch.from_numpy(L), n, loss_scale), smoothing)
            g, a, w, c, shares = (part.numpy() for part in now)
            if not np.isfinite(g):
                raise FedlibError(f"descend: g is {float(g)} at step {step}; lower lr, which is {lr}")
            noted.append((g, L, a, w, c, thetas))
            pull = np.where(c < DEAD, 0.0, shares if update == "normalised" else a[:, None] * w)
            thetas = thetas - lr * (pull[:, :, None] * problem.gradients(thetas)).sum(0)
    return Descent(*(np.stack(part) for part in zip(*noted, strict=True)))


def heterogeneity(problem: Quadratics) -> float:
    """Delta_het = max_ij L_i(theta_j*) - L_i(theta_i*): the most that a client loses by another's optimum.

    Published is "the largest pairwise client heterogeneity"; of what, the public texts leave open. This reading has the
    unit of a loss, and the bound is true of the best K models with it: see regret_bound.
    """
    return float(problem.losses(problem.optima).max())


def regret_bound(problem: Quadratics, K: int) -> float:
    """((m - K) / m) Delta_het, which bounds mean_i (min_k L_i(theta_k) - L_i(theta_i*)) for the best K models.

    Let the models be K clients' optima: these clients lose nothing, the others at most Delta_het each. The term
    O(sqrt(K d / n)) is 0 here, where losses are exact. Left open by the public texts are Delta_het, the constant of
    that term, which models are meant (the best for the mean, or for the smoothed maximum), and what smoothing costs.
    """
    m = len(problem.optima)
    return (m - check_number("regret_bound: K", K, least=1, most=m, whole=True)) / m * heterogeneity(problem)


def best_regret(problem: Quadratics, K: int, seed: int) -> float:
    """The lowest mean_i min_k L_i(theta_k) that ten starts of K-means find; A_i = I only."""
    if problem.curvature is not None:
        raise FedlibError("best_regret: K-means is the answer for A_i = I only; leave out the curvature")
    check_number("best_regret: K", K, least=1, most=len(problem.optima), whole=True)
    found = KMeans(K, n_init=10, random_state=seed % 2**32).fit(problem.optima)
    return float(found.inertia_) / (2 * len(problem.optima))


def centre(problem: Quadratics) -> np.ndarray:
    """(d,) where the clients' mean loss is lowest, (sum_i A_i)^-1 sum_i A_i theta_i*: for A_i = I, the optima's mean.

    FedAvg settles there, with equal sizes and one gradient step a round.
    """
    return pareto_set(problem, np.full((1, len(problem.optima)), 1 / len(problem.optima)))[0]


def smoothed_minimax(problem: Quadratics, smoothing: float) -> np.ndarray:
    """(d,) where smoothing log sum_i exp(L_i(theta) / smoothing), g for K = 1, is lowest: by BFGS, not by `descend`."""

    def value(theta: np.ndarray) -> tuple[float, np.ndarray]:
        L, gradients = problem.losses(theta[None])[:, 0], problem.gradients(theta[None])[:, 0]
        return smoothing * float(logsumexp(L / smoothing)), softmax(L / smoothing) @ gradients

    found = minimize(value, centre(problem), jac=True, method="BFGS", options={"gtol": 1e-9})
    return np.asarray(found.x)


def towards(point: np.ndarray, first: np.ndarray, second: np.ndarray) -> float:
    """How far `point` is on the way from `first` (0) to `second` (1), all (d,)."""
    way = second - first
    return float((point - first) @ way / (way @ way))


def gradient_error(L: np.ndarray, smoothing: float, difference: float = 1.0e-5) -> float:
    """max_ik of |dg / dL_ik - a_i w_ik| at losses L (m, K), with the derivative by central differences."""
    now = stch_set(torch.from_numpy(L), smoothing)
    weights, found = (now.outer[:, None] * now.inner).numpy(), np.empty(L.shape)
    for place in np.ndindex(*L.shape):
        step = np.zeros(L.shape)
        step[place] = difference
        up, down = (stch_set(torch.from_numpy(moved), smoothing).objective for moved in (L + step, L - step))
        found[place] = float(up - down) / (2 * difference)
    return float(np.abs(found - weights).max())


def steps_to(g: np.ndarray, share: float = 0.9) -> int:
    """The first step by which g (T+1,) has gone `share` of the way from its start to its lowest value."""
    check_number("steps_to: share", share, above=0, most=1)
    return int(np.argmax(g <= g[0] - share * (g[0] - g.min())))


def first_above(values: np.ndarray, threshold: float) -> int:
    """The first step at which values (T+1,) are above the threshold; T+1 if they never are."""
    above = values > threshold
    return int(above.argmax()) if above.any() else len(values)


def rank_correlations(problem: Quadratics, run: Descent) -> tuple[float, float]:
    """Spearman's, over clients, of a_i with min_k L_i(theta_k), and of a_i with n_i; the mean over all steps."""
    if np.ptp(problem.sizes) == 0:
        raise FedlibError("rank_correlations: all clients have the same size; give clusters a size_ratio above 1")
    outer, loss = (rankdata(values, axis=1) for values in (run.outer, run.losses.min(2)))
    size = rankdata(np.broadcast_to(problem.sizes, outer.shape), axis=1)
    return _correlation(outer, loss), _correlation(outer, size)


def _correlation(first: np.ndarray, second: np.ndarray) -> float:
    """Pearson's of each row of one with that of the other; the mean over rows."""
    a, b = (values - values.mean(1, keepdims=True) for values in (first, second))
    return float(((a * b).sum(1) / np.sqrt((a**2).sum(1) * (b**2).sum(1))).mean())


def pareto_set(problem: Quadratics, preference: np.ndarray) -> np.ndarray:
    """(P, d) the minimisers of sum_i lam_i L_i for preference lam (P, m), its rows >= 0 and summing to 1.

    Strictly convex losses: these are all Pareto points. theta = (sum_i lam_i A_i)^-1 sum_i lam_i A_i theta_i*.
    """
    A = problem.hessians()
    right = np.einsum("pi,ide,ie->pd", preference, A, problem.optima)
    return np.linalg.solve(np.einsum("pi,ide->pde", preference, A), right[:, :, None])[:, :, 0]


def preferences(m: int, cells: int) -> np.ndarray:
    """(P, m) an even grid of the simplex, with `cells` cells a side, for two or three clients."""
    check_choice("preferences: m", m, (2, 3))
    check_number("preferences: cells", cells, least=1, whole=True)
    axes = np.meshgrid(*[np.arange(cells + 1)] * (m - 1), indexing="ij")
    rows = np.stack([axis.ravel() for axis in axes], axis=1)
    rows = rows[rows.sum(1) <= cells]
    return np.column_stack([cells - rows.sum(1), rows]) / cells


def uncovered(problem: Quadratics, thetas: np.ndarray, pareto: np.ndarray) -> float:
    """The least epsilon with which thetas (K, d) cover the Pareto front, given by points (P, d) of the Pareto set.

    For each point p there is a model k with L_i(theta_k) <= L_i(p) + epsilon for all i.
    """
    excess = problem.losses(thetas)[:, None, :] - problem.losses(pareto)[:, :, None]
    return float(excess.max(0).min(1).max())


def spread_out(pareto: np.ndarray, K: int, seed: int) -> np.ndarray:
    """(K, d) models that lie evenly in the Pareto set: the K-means centres of its points (P, d)."""
    check_number("spread_out: K", K, least=1, most=len(pareto), whole=True)
    return np.asarray(KMeans(K, n_init=4, tol=0, random_state=seed % 2**32).fit(pareto).cluster_centers_)
