"""Differential privacy of profiles: FEROMA's statistics, released soundly (specs/feroma.md 1.8).

Two data sets are neighbours when one of their n records is replaced by any other; n, the classes and the box
[low, high] are public, and must not be computed from the samples released here. A sample z is clipped to the box, then
to the ball ||z - c||_2 <= C about the box's centre c, and rescaled: u = (z - c) / C, so that ||u||_2 <= 1 and
||u o u||_2 <= ||u||_2^2 <= 1 (o: by coordinate). Released are sums over n and nothing else, of them one of

    marginals  S1 = (1/n) sum_i u_i,  S2 = (1/n) sum_i u_i o u_i
    groups     for each label y  A_y = (1/n) sum_{i in y} u_i,  B_y = (1/n) sum_{i in y} u_i o u_i,  f_y = n_y / n
    stacked    the marginals and the groups

each number with its own noise; all that follows is computed from them alone. Replacing (u, y) by (v, y') moves n times
the released vector, in the 2-norm squared and in the 1-norm, at most by

    marginals              ||u - v||^2 + ||uou - vov||^2           <= 4 + 4      2 sqrt(l) + 2
    groups, y' = y         the same                                <= 4 + 4      2 sqrt(l) + 2
    groups, y' not y       ||u||^2 + ||uou||^2 + (of v) + 2        <= 4 + 2      2 sqrt(l) + 4
    stacked                marginals + the worse case of groups    <= 16         4 sqrt(l) + 6

for ||u||_1 <= sqrt(l) ||u||_2 <= sqrt(l) and ||uou||_1 = ||u||_2^2 <= 1; two frequencies move by 1 when the label
does. Hence Delta_2 = sqrt(8)/n, sqrt(8)/n and 4/n, and Delta_1 = (2 sqrt(l) + 2)/n, (2 sqrt(l) + 4)/n and
(4 sqrt(l) + 6)/n. Both norms of the second moments are bounded generously: uou and vov lie in one simplex, and no pair
that the tests find moves the marginals by more than sqrt(4.5)/n.

The specification gives Delta_2; Delta_1 and the choice of C (half the box's diagonal, which cuts no sample twice) were
decided here. Protected is the profile, not the model that a client sends besides. Noise is drawn in double precision:
attacks on the rounding of floating-point noise are not covered.
"""

from __future__ import annotations

import math

import torch
from scipy.optimize import brentq
from scipy.special import erfcx, ndtr, ndtri
from torch import Tensor
from torch.nn.functional import one_hot

from fedlib.checks import FedlibError, check_choice, check_number
from fedlib.profiles import ABSENT

GAUSSIAN, ANALYTIC, LAPLACE = "gaussian", "analytic", "laplace"
NOISES = (GAUSSIAN, ANALYTIC, LAPLACE)
MARGINALS, GROUPS, STACKED = "marginals", "groups", "stacked"


def private_statistics(
    z: Tensor,
    labels: Tensor,
    classes: int,
    low: Tensor | float,
    high: Tensor | float,
    epsilon: float,
    delta: float | None,
    noise: str,
    generator: torch.Generator,
    *,
    release: str = GROUPS,
    radius: float | None = None,
) -> Tensor:
    """(epsilon, delta)-DP profile [mu_x, sigma_x, mu_1 .. mu_U, sigma_1 .. sigma_U] (2 l (U + 1),), in the units of z.

    From the noisy sums:  mu_x = c + C S1,  sigma_x = C sqrt(max(S2 - S1 o S1, 0)),
    and for each label the same of A_y / f_y and B_y / f_y. A label of noisy f_y < 2/n is absent: its entries are -1.

    z: (n, l). labels: integers (n,), 0 to classes - 1, one a sample. low, high: the public box, (l,) or one number.
    delta: None: 1/n^2. noise: gaussian, analytic or laplace, see `noise_scale`.
    release: groups: S1 and S2 are summed from the noisy groups: less noise on the labels' statistics, but a marginal
    carries that of U numbers. stacked: the marginals are released besides.
    radius: C, public as the box; None: half the box's diagonal.
    Raises FedlibError for epsilon <= 0, delta outside (0, 1), n < 2, labels or a box that do not fit z, and NaN in z.
    """
    check_choice("privacy: release", release, (GROUPS, STACKED))
    u, c, C = unit_ball(z, low, high, radius)
    n, dim = u.shape
    scale = noise_scale(n, dim, release, epsilon, delta, noise)
    sums = released_sums(u, labels, classes, release)
    noisy = sums + scale * _unit_noise(sums.numel(), noise, generator)
    groups = noisy[-classes * (2 * dim + 1) :].view(classes, 2 * dim + 1)
    marginal = noisy[: 2 * dim] if release == STACKED else groups[:, : 2 * dim].sum(dim=0)
    mu_x, sigma_x = _moments(marginal, c, C)
    f = groups[:, -1:]
    present = f >= 2 / n
    by_label = _moments(groups[:, : 2 * dim] / torch.where(present, f, 1.0), c, C)
    mu_y, sigma_y = (torch.where(present, moment, ABSENT).flatten() for moment in by_label)
    return torch.cat([mu_x, sigma_x, mu_y, sigma_y]).to(z)


def private_marginals(
    z: Tensor,
    low: Tensor | float,
    high: Tensor | float,
    epsilon: float,
    delta: float | None,
    noise: str,
    generator: torch.Generator,
    *,
    radius: float | None = None,
) -> Tensor:
    """(epsilon, delta)-DP [mu_x, sigma_x] (2 l,) of unlabelled samples z (n, l); else as private_statistics."""
    u, c, C = unit_ball(z, low, high, radius)
    n, dim = u.shape
    scale = noise_scale(n, dim, MARGINALS, epsilon, delta, noise)
    noisy = _marginals(u) + scale * _unit_noise(2 * dim, noise, generator)
    return torch.cat(_moments(noisy, c, C)).to(z)


def unit_ball(
    z: Tensor, low: Tensor | float, high: Tensor | float, radius: float | None = None
) -> tuple[Tensor, Tensor, float]:
    """u (n, l) = (z clipped to box and ball - c) / C, so ||u_i||_2 <= 1; then c (l,) and C. In double, on the CPU."""
    if z.dim() != 2:
        raise FedlibError(f"privacy: z has shape {tuple(z.shape)}; give samples of l coordinates, (n, l)")
    check_number("privacy: n, the number of samples", len(z), least=2, whole=True)
    z = z.detach().to("cpu", torch.float64)
    if z.isnan().any():
        raise FedlibError("privacy: z holds NaN, which cannot be clipped; check the network that made it")
    low, high = (_bound(side, value, z.shape[1]) for side, value in (("low", low), ("high", high)))
    if not ((low < high) & (low.abs() + high.abs() < math.inf)).all():
        raise FedlibError("privacy: the box [low, high] must be finite, and low below high in every coordinate")
    c = (low + high) / 2
    C = float(torch.linalg.vector_norm((high - low) / 2))
    if radius is not None:
        C = float(check_number("privacy: radius", radius, above=0))
    u = (z.clamp(low, high) - c) / C
    return u / torch.linalg.vector_norm(u, dim=1, keepdim=True).clamp(min=1), c, C


def _bound(side: str, value: Tensor | float, dim: int) -> Tensor:
    bound = torch.as_tensor(value, dtype=torch.float64, device="cpu").detach()
    if bound.shape not in ((), (1,), (dim,)):
        raise FedlibError(
            f"privacy: {side} has shape {tuple(bound.shape)}; give one number, or one a coordinate ({dim})"
        )
    return bound.expand(dim)


def released_sums(u: Tensor, labels: Tensor, classes: int, release: str) -> Tensor:
    """What the noise is added to: [S1, S2] (if stacked), then [A_y, B_y, f_y] of each label. u (n, l): unit_ball's."""
    check_number("privacy: classes", classes, least=1, whole=True)
    labels = labels.to(u.device)
    if labels.shape != (len(u),) or labels.is_floating_point():
        raise FedlibError(
            f"privacy: labels are {labels.dtype} of shape {tuple(labels.shape)}; give one whole number a sample,"
            f" ({len(u)},): the sensitivities hold for records of one label"
        )
    if int(labels.min()) < 0 or int(labels.max()) >= classes:
        raise FedlibError(f"privacy: labels go from {int(labels.min())} to {int(labels.max())}, not 0 to {classes - 1}")
    member = one_hot(labels.long(), classes).to(u.dtype)
    groups = member.T @ torch.cat([u, u.square(), torch.ones_like(u[:, :1])], dim=1) / len(u)
    return torch.cat([_marginals(u), groups.flatten()]) if release == STACKED else groups.flatten()


def _marginals(u: Tensor) -> Tensor:
    """[S1, S2] (2 l,)."""
    return torch.cat([u.mean(dim=0), u.square().mean(dim=0)])


def _moments(sums: Tensor, c: Tensor, C: float) -> tuple[Tensor, Tensor]:
    """mu and sigma (..., l) in the units of z, from first and second moments of u, (..., 2 l)."""
    first, second = sums.chunk(2, dim=-1)
    return c + C * first, C * (second - first.square()).clamp(min=0).sqrt()


def _unit_noise(size: int, noise: str, generator: torch.Generator) -> Tensor:
    """(size,): standard normal, or Laplace of scale 1 (the difference of two Exp(1))."""
    empty = torch.empty(2, size, dtype=torch.float64, device=generator.device)
    if noise == LAPLACE:
        one, two = empty.exponential_(generator=generator).cpu()
        return one - two
    return empty[0].normal_(generator=generator).cpu()


def sensitivities(n: int, dim: int, release: str) -> tuple[float, float]:
    """Delta_1 and Delta_2 of one release (marginals, groups or stacked) of n samples in l = dim dimensions."""
    check_choice("privacy: release", release, (MARGINALS, GROUPS, STACKED))
    root = math.sqrt(dim)
    delta_1 = {MARGINALS: 2 * root + 2, GROUPS: 2 * root + 4, STACKED: 4 * root + 6}[release]
    delta_2 = {MARGINALS: math.sqrt(8), GROUPS: math.sqrt(8), STACKED: 4.0}[release]
    return delta_1 / n, delta_2 / n


def noise_scale(n: int, dim: int, release: str, epsilon: float, delta: float | None, noise: str) -> float:
    """Scale of each released number's noise, in units of u: Gaussian's standard deviation, Laplace's b = sd / sqrt(2).

    laplace:   b = Delta_1 / epsilon, with delta = 0
    gaussian:  sigma = Delta_2 sqrt(2 ln(1.25/delta)) / epsilon for epsilon <= 1, above it as analytic
    analytic:  the least sigma that is (epsilon, delta)-DP at every epsilon, see `analytic_sigma`

    delta: None: 1/n^2; not used with laplace. Raises FedlibError for epsilon <= 0, delta outside (0, 1) and n < 2.
    """
    delta = _checked(epsilon, delta, noise, n)
    delta_1, delta_2 = sensitivities(n, dim, release)
    return delta_1 / epsilon if noise == LAPLACE else delta_2 * _sigma(epsilon, delta, noise)


def composed(
    epsilon: float, delta: float | None, releases: int, noise: str, n: int | None = None
) -> tuple[float, float]:
    """(epsilon_total, delta) of `releases` = T releases of the same records, each calibrated to (epsilon, delta).

    laplace:   epsilon T, delta = 0
    else:      rho = T Delta_2^2 / (2 sigma^2),  epsilon_total = rho + 2 sqrt(rho ln(1/delta))

    (zCDP: Bun and Steinke, TCC 2016); one release stays at its own epsilon where that is less. The total has the delta
    of one release, not T times it. The kinds of release may differ: rho depends on Delta_2 / sigma alone.
    delta: None: 1/n^2, for which n is needed. Raises FedlibError as noise_scale, and for T < 1.
    """
    check_number("privacy: releases", releases, least=1, whole=True)
    delta = _checked(epsilon, delta, noise, n)
    if noise == LAPLACE:
        return epsilon * releases, 0.0
    rho = releases / (2 * _sigma(epsilon, delta, noise) ** 2)
    total = rho + 2 * math.sqrt(rho * math.log(1 / delta))
    return (min(total, epsilon) if releases == 1 else total), delta


def analytic_sigma(epsilon: float, delta: float) -> float:
    """The least sigma, for Delta_2 = 1, at which Gaussian noise is (epsilon, delta)-DP: gaussian_delta(...) = delta.

    Balle and Wang, ICML 2018, theorem 8. With x = 1/(2 sigma) - epsilon sigma the condition is _delta_at(x) = delta,
    whose left side grows with x and is below Phi(x); sigma = 1 / (x + sqrt(x^2 + 2 epsilon)).
    """
    low = float(ndtri(delta)) - 1
    high = low + 1
    while _delta_at(high, epsilon) < delta:
        high += high - low
    x = float(brentq(lambda x: _delta_at(x, epsilon) / delta - 1, low, high, xtol=1e-13))
    root = math.sqrt(x * x + 2 * epsilon)
    return 1 / (x + root) if x > 0 else (root - x) / (2 * epsilon)


def gaussian_delta(epsilon: float, sigma: float) -> float:
    """The least delta at which Gaussian noise of sigma is (epsilon, delta)-DP, for Delta_2 = 1 (Balle and Wang, th. 8).

    delta(epsilon) = Phi(1/(2 sigma) - epsilon sigma) - e^epsilon Phi(-1/(2 sigma) - epsilon sigma)
    """
    return _delta_at(1 / (2 * sigma) - epsilon * sigma, epsilon)


def _delta_at(x: float, epsilon: float) -> float:
    """gaussian_delta at x = 1/(2 sigma) - epsilon sigma, with y = 1/(2 sigma) + epsilon sigma = sqrt(x^2 + 2 epsilon).

    e^epsilon Phi(-y) = erfcx(y / sqrt(2)) e^(-x^2 / 2) / 2, which does not overflow; nor is a tiny delta lost.
    """
    y = math.sqrt(x * x + 2 * epsilon)
    tail = math.exp(-x * x / 2) / 2
    if x > 0:
        return float(ndtr(x) - tail * erfcx(y / math.sqrt(2)))
    return float(tail * (erfcx(-x / math.sqrt(2)) - erfcx(y / math.sqrt(2))))


def _sigma(epsilon: float, delta: float, noise: str) -> float:
    """Standard deviation of the Gaussian noise for Delta_2 = 1."""
    if noise == GAUSSIAN and epsilon <= 1:
        return math.sqrt(2 * math.log(1.25 / delta)) / epsilon
    return analytic_sigma(epsilon, delta)


def _checked(epsilon: float, delta: float | None, noise: str, n: int | None) -> float:
    """delta, 1/n^2 if it is None and 0 with Laplace noise, which has none."""
    check_choice("privacy: noise", noise, NOISES)
    check_number("privacy: epsilon", epsilon, above=0)
    if n is not None:
        check_number("privacy: n, the number of samples", n, least=2, whole=True)
    if noise == LAPLACE and not delta:
        return 0.0
    if delta is None:
        if n is None:
            raise FedlibError("privacy: delta is None, which is 1/n^2, but n is None, too; give one of them")
        delta = 1 / n**2
    check_number("privacy: delta", delta, above=0, below=1)
    return 0.0 if noise == LAPLACE else float(delta)


def released_mechanism(
    profile: Tensor, z: Tensor, references: Tensor, epsilon: float, generator: torch.Generator
) -> Tensor:
    """The official code's noise, for comparison: NOT differentially private. profile + Laplace(s / epsilon), (d,).

    s = (max - min over all coordinates of z (n, l) and of the projected reference points (r, l)) / n

    on every coordinate, sentinels included; the crash of that code is left out (spec section 7, trap 12). Unsound, for:
    s is computed from the data it should protect; a label's mean moves by range/n_y, not range/n; the bound is not that
    of a standard deviation; epsilon is spent on each coordinate and each round; and where the samples are overlapping
    halves, one record counts up to three times. n here are the samples given, halves counted as often as they come.
    """
    check_number("privacy: epsilon", epsilon, above=0)
    check_number("privacy: n, the number of samples", len(z), least=2, whole=True)
    both = torch.cat([z.flatten(), references.flatten().to(z)]).double()
    s = float(both.max() - both.min()) / len(z)
    return profile + (s / epsilon * _unit_noise(profile.numel(), LAPLACE, generator)).to(profile).view_as(profile)
