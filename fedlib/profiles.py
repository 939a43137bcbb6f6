"""FEROMA's mathematics: profiles of a client's samples, distances between them, and the weights that follow.

Li, Fenoglio, Gjoreski, Langheinrich: Federated Learning with Profile Mapping under Distribution Shifts and Drifts,
ICLR 2026 (spec, 1.3 to 1.7).

p: latent features; ell: projected ones (the paper's l); U: classes. A profile is

    d = [mu_x, sigma_x, mu_1 … mu_U, sigma_1 … sigma_U]    in R^(2 ell (U + 1)): 2 (U + 1) groups of ell coordinates

over projected latents g(z): means and population standard deviations of all samples, then of those of each label. The
first 2 ell coordinates are free of labels.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from sklearn.decomposition import PCA
from torch import Tensor, nn

from fedlib.forward import chunks

POINTS = 200
"""Reference points: the projection is fitted on them."""
SEED = 1
"""Of the reference points: the same for all clients of all runs."""
ABSENT = -1.0
"""All coordinates of a label with 0 or 1 samples."""
PENALTY = -1.0
"""Of an absent label, after scaling, in the masked variant."""
INVERSE = 1.0e-8
ROUNDING = 1.0e-12


def latents(model: nn.Module, images: Tensor) -> Tensor:
    """z (n, p): what the backbone makes of the images, flattened, in evaluation mode; images as Samples has them.

    The network is left in the mode that it was in.
    """
    before = model.training
    try:
        return torch.cat([f.flatten(1) for f in chunks(model, images, model.get_submodule("backbone"))])
    finally:
        model.train(before)


def latent_size(model: nn.Module, shape: tuple[int, ...]) -> int:
    """p for samples of this shape, (C, H, W) or of texts (V, L)."""
    like = torch.zeros(1, shape[1], dtype=torch.int32) if len(shape) == 2 else torch.zeros(1, *shape, dtype=torch.uint8)
    return latents(model, like.to(next(model.parameters()).device)).shape[1]


@dataclass(frozen=True)
class Projection:
    """g(z) = axes (z - centre): (n, p) -> (n, ell), float64.

    least, largest: (ell,), the box that holds the projected reference points; known without looking at any sample.
    """

    axes: Tensor
    centre: Tensor
    least: Tensor
    largest: Tensor

    def __call__(self, z: Tensor) -> Tensor:
        return (z.double() - self.centre.to(z.device)) @ self.axes.to(z.device).T


@lru_cache(maxsize=8)
def _reference(p: int, ell: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(axes, centre, least, largest) for reference points in [0, 1]^p: other bounds only shift and stretch them."""
    points = np.random.default_rng(SEED).uniform(size=(POINTS, p))
    fitted = PCA(ell, svd_solver="full").fit(points)
    axes = fitted.components_
    largest = np.abs(axes).argmax(axis=1)
    axes = axes * np.sign(axes[np.arange(ell), largest])[:, None]  # which of two signs a solver takes is its own affair
    projected = (points - fitted.mean_) @ axes.T
    return axes, fitted.mean_, projected.min(axis=0), projected.max(axis=0)


def projection(p: int, ell: int, low: float, high: float) -> Projection:
    """g: the first ell principal axes of 200 points drawn uniformly from [low, high]^p, m- and m+ of the latents.

    It depends on (p, ell, low, high) alone, so that every client builds the same: in effect a fixed random projection
    with orthonormal axes, and a shift. ell at most min(p, 200). Bounds that meet are taken as one apart.
    """
    axes, centre, least, largest = (torch.from_numpy(part) for part in _reference(p, ell))
    width = high - low if high > low else 1.0
    return Projection(axes, low + width * centre, width * least, width * largest)


def profile_size(ell: int, classes: int) -> int:
    """d = 2 ell (U + 1)."""
    return 2 * ell * (classes + 1)


def halves(n: int, samplings: int, generator: torch.Generator) -> Tensor:
    """Indices of so many random halves of n samples, each drawn without replacement, one after the other (R3).

    A half of n is n // 2, at least 1. samplings = 0: every sample once.
    """
    if samplings == 0:
        return torch.arange(n)
    return torch.cat([torch.randperm(n, generator=generator)[: max(1, n // 2)] for _ in range(samplings)])


def marginals(g: Tensor) -> Tensor:
    """[mu_x, sigma_x] (2 ell,) of projected latents (n, ell): the profile's label-free part."""
    return torch.cat([g.mean(0), g.std(0, correction=0)])


def statistics(g: Tensor, labels: Tensor, classes: int) -> Tensor:
    """d (2 ell (U + 1),) of projected latents (n, ell) with labels (n,), or (n, U) of 0 and 1 where several may apply.

    A label with 0 or 1 samples has -1 throughout (spec, 1.4).
    """
    own = [labels[:, u] == 1 if labels.ndim == 2 else labels == u for u in range(classes)]
    parts = [marginals(g[of_u]) if int(of_u.sum()) > 1 else g.new_full((2 * g.shape[1],), ABSENT) for of_u in own]
    conditional = torch.stack(parts).view(classes, 2, g.shape[1])
    return torch.cat([marginals(g), conditional.transpose(0, 1).flatten()])


def present(profiles: Tensor, ell: int) -> Tensor:
    """(n, groups): False for the groups of absent labels in profiles (n, d), or in their first 2 ell coordinates.

    A standard deviation is never negative, so a negative one says that the label is absent.
    """
    found = profiles.unflatten(1, (-1, ell))[:, :, 0] >= 0  # right for the groups of sigma
    classes = found.shape[1] // 2 - 1
    of_labels = found[:, 2 + classes :]
    return torch.cat([torch.ones_like(found[:, :2]), of_labels, of_labels], dim=1)


def fit_scaler(profiles: Tensor, ell: int, masked: bool = False) -> tuple[Tensor, Tensor]:
    """(low, span), (groups,) each: min and max - min of a group, over profiles (n, d) and the group's ell coordinates.

    A group of one value has span 1 (spec, 1.4). masked: absent labels do not count; one absent from all has (0, 1).
    """
    grouped = profiles.double().unflatten(1, (-1, ell))
    seen = present(profiles, ell) if masked else torch.ones_like(grouped[:, :, 0], dtype=torch.bool)
    low = grouped.amin(2).masked_fill(~seen, torch.inf).amin(0)
    span = grouped.amax(2).masked_fill(~seen, -torch.inf).amax(0) - low
    return torch.where(low.isfinite(), low, 0.0), torch.where(span > 0, span, 1.0)


def scale(profiles: Tensor, low: Tensor, span: Tensor, ell: int, masked: bool = False) -> Tensor:
    """Profiles (n, d) as distances take them, float64: (d - low) / span by group; 0 to 1 for those it was fitted on.

    Their first 2 ell coordinates alone are scaled alike. masked: -1 throughout for absent labels.
    """
    grouped = profiles.double().unflatten(1, (-1, ell))
    groups = grouped.shape[1]
    scaled = (grouped - low[:groups, None]) / span[:groups, None]
    if masked:
        scaled = scaled.masked_fill(~present(profiles, ell)[:, :, None], PENALTY)
    return scaled.flatten(1)


def distances(a: Tensor, b: Tensor, metric: str = "euclidean") -> Tensor:
    """D (n, k) between profiles (n, d) and (k, d): || a - b ||, or "cosine", 1 - cos(a, b) (1 for one of length 0)."""
    if metric == "cosine":
        lengths = a.norm(dim=1)[:, None] * b.norm(dim=1)
        return (1.0 - (a @ b.T) / lengths.clamp(min=torch.finfo(a.dtype).tiny)).clamp(min=0.0)
    return torch.stack([(b - one).square().sum(1).sqrt() for one in a])  # not through a^2 - 2 a b + b^2: 0 must be 0


def softmax_weights(D: Tensor, temperature: float | None = 1.0) -> Tensor:
    """w_kj = exp(-D_kj / T_s) / sum_j' exp(-D_kj' / T_s) of distances (n, k).

    T_s: `temperature`, or for None half the median of the row's distances (trap 19): the weights then do not depend
    on the scale of D. Where that median is 0, only those at distance 0 weigh.
    """
    T = (
        D.median(1, keepdim=True).values.div(2).clamp(min=torch.finfo(D.dtype).tiny)
        if temperature is None
        else temperature
    )
    return (-(D - D.amin(1, keepdim=True)) / T).softmax(1)


def inverse_distance_weights(D: Tensor) -> Tensor:
    """w_kj = a_kj / sum_j' a_kj', a = 1 / (D + 1e-8): what was released (trap 1)."""
    return renormalised(1.0 / (D + INVERSE))


def renormalised(w: Tensor) -> Tensor:
    """Rows that sum to 1."""
    return w / w.sum(1, keepdim=True)


def surviving(w: Tensor, threshold: float) -> Tensor:
    """Whether w >= tau = threshold / |A|, for each of the |A| weights of a row.

    A weight short of tau by rounding alone survives: so equal weights do, with threshold 1.
    """
    return w >= threshold / w.shape[-1] * (1.0 - ROUNDING)


def mixing_weights(w: Tensor, threshold: float, fallback: Tensor) -> Tensor:
    """w_bar (n, k): the weights that survive, made to sum to 1; `fallback` (k,) in rows where none does."""
    kept = torch.where(surviving(w, threshold), w, 0.0)
    return torch.where(kept.sum(1, keepdim=True) > 0, renormalised(kept), fallback.to(w.dtype))


def regime(w: Tensor, threshold: float) -> str:
    """What a client's weights w (|A|,) on last round's profiles, before the threshold, make of its model.

    "clustered": several survive; "personal": one does; "global": none does, or there were no profiles to compare with.
    Entries below 0 stand for clients that were not there.
    """
    survivors = int(surviving(w[w >= 0], threshold).sum()) if bool((w >= 0).any()) else 0
    return "global" if survivors == 0 else "personal" if survivors == 1 else "clustered"
