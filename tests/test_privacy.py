"""Private profiles: sensitivities by brute force, noise as large as promised, calibration and totals by a library.

The library is Microsoft's prv-accountant (Gopi, Lee and Wutschitz, NeurIPS 2021), which composes privacy losses
numerically, with an error bound.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from prv_accountant import GaussianMechanism, LaplaceMechanism, PRVAccountant
from scipy.stats import norm
from torch import Tensor

from fedlib import privacy
from fedlib.checks import FedlibError
from fedlib.privacy import GROUPS, MARGINALS, STACKED

N, U = 5, 3
TINY = 1e12
"""An epsilon at which Laplace noise is about 1e-12."""


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def sums(z: Tensor, labels: Tensor, release: str) -> Tensor:
    """n times what is released of z in the box [-1, 1]^l, before the noise."""
    u, _, _ = privacy.unit_ball(z, -1.0, 1.0, radius=1.0)
    if release == MARGINALS:
        return torch.cat([u.sum(0), (u * u).sum(0)])
    return len(z) * privacy.released_sums(u, labels, U, release)


def moved(one: Tensor, two: Tensor, label_one: int, label_two: int, release: str) -> tuple[float, float]:
    """How far n times the released vector goes, in 1-norm and 2-norm, if record (one, label_one) is replaced."""
    others = torch.randn(N - 1, len(one), generator=generator(), dtype=torch.float64)
    labels = torch.tensor([0, 1, 2, 0])
    first = sums(torch.stack([one, *others]), torch.tensor([label_one, *labels]), release)
    other = sums(torch.stack([two, *others]), torch.tensor([label_two, *labels]), release)
    return float((first - other).abs().sum()), float((first - other).norm())


def records(dim: int, count: int) -> list[tuple[Tensor, Tensor, int, int]]:
    """Pairs of records, most of them on the ball's surface or far outside: directions, axes, corners, opposite ones."""
    draw = generator(dim)
    some = torch.randn(count, 2, dim, generator=draw, dtype=torch.float64)
    some *= torch.tensor([0.3, 1.0, 5.0, 1e3]).double()[torch.randint(4, (count, 2, 1), generator=draw)]
    axis = torch.eye(dim, dtype=torch.float64)[torch.randint(dim, (count, 2), generator=draw)]
    kind = torch.randint(5, (count,), generator=draw)
    some[kind == 0] = axis[kind == 0] * some[kind == 0].sign() * 2
    some[kind == 1] = some[kind == 1].sign()
    some[kind == 2, 1] = -some[kind == 2, 0]
    labels = torch.randint(U, (count, 2), generator=draw).tolist()
    return [(one, two, *pair) for (one, two), pair in zip(some, labels, strict=True)]


@pytest.mark.parametrize("release", [MARGINALS, GROUPS, STACKED])
@pytest.mark.parametrize("dim", [1, 2, 5])
def test_no_replaced_record_moves_the_release_further_than_its_sensitivity(release: str, dim: int) -> None:
    far = [moved(*record, release) for record in records(dim, 500)]
    delta_1, delta_2 = (N * bound for bound in privacy.sensitivities(N, dim, release))
    assert 0.5 * delta_1 < max(one for one, _ in far) <= delta_1 + 1e-9
    assert 0.7 * delta_2 < max(two for _, two in far) <= delta_2 + 1e-9


def test_worst_cases_found_by_hand() -> None:
    turned = [torch.tensor([math.cos(a), math.sin(a)], dtype=torch.float64) for a in (-math.pi / 12, 7 * math.pi / 12)]
    assert moved(*turned, 0, 0, MARGINALS)[1] == pytest.approx(math.sqrt(4.5))  # 120 degrees apart, not 180
    assert moved(*turned, 1, 1, STACKED)[1] == pytest.approx(3)
    same = torch.tensor([1.0, 0, 0], dtype=torch.float64)
    assert moved(same, same, 0, 1, GROUPS)[1] == pytest.approx(math.sqrt(6))  # only its label changes
    even = torch.full((7,), 1 / math.sqrt(7), dtype=torch.float64)
    assert moved(even, -even, 0, 1, GROUPS)[0] == pytest.approx(N * privacy.sensitivities(N, 7, GROUPS)[0])  # tight


def test_the_sensitivities_are_the_specifications() -> None:
    assert [
        privacy.sensitivities(50, 10, release)[1] * 50 for release in (MARGINALS, GROUPS, STACKED)
    ] == pytest.approx([math.sqrt(8), math.sqrt(8), 4])
    assert [privacy.sensitivities(50, 9, release)[0] * 50 for release in (MARGINALS, GROUPS, STACKED)] == pytest.approx(
        [8, 10, 18]
    )


def clipped(z: np.ndarray, low: np.ndarray, high: np.ndarray, radius: float) -> np.ndarray:
    centre = (low + high) / 2
    z = np.clip(z, low, high) - centre
    return centre + z * np.minimum(1, radius / np.linalg.norm(z, axis=1, keepdims=True))


@pytest.mark.parametrize("release", [GROUPS, STACKED])
def test_without_noise_the_profile_is_that_of_the_clipped_samples(release: str) -> None:
    low, high, radius = np.array([-1.0, 2.0, 0.0]), np.array([3.0, 4.0, 9.0]), 3.5
    z = np.random.default_rng(3).normal([1, 3, 5], [2, 1, 4], (60, 3))
    labels = np.array([0] * 20 + [2] * 39 + [3])  # label 1 has no sample, label 3 has one
    cut = clipped(z, low, high, radius)
    assert (np.abs(np.clip(z, low, high) - cut).max(axis=1) > 0.01).sum() > 5  # the ball cuts, too
    groups = [cut[labels == y] for y in (0, 2)]
    mu, sigma = ([of(group, axis=0) for group in groups] for of in (np.mean, np.std))
    gone = -np.ones(3)
    expected = [cut.mean(0), cut.std(0), mu[0], gone, mu[1], gone, sigma[0], gone, sigma[1], gone]
    given = (torch.tensor(z), torch.tensor(labels), 4, torch.tensor(low), torch.tensor(high))
    profile = privacy.private_statistics(*given, TINY, None, "laplace", generator(), release=release, radius=radius)
    assert profile.shape == (2 * 3 * 5,) and profile.dtype == torch.float64
    np.testing.assert_allclose(profile, np.concatenate(expected), atol=1e-8)
    free = privacy.private_marginals(given[0], *given[3:], TINY, None, "laplace", generator(), radius=radius)
    np.testing.assert_allclose(free, np.concatenate(expected[:2]), atol=1e-8)


def test_without_a_radius_the_ball_holds_the_whole_box_and_no_more() -> None:
    z = torch.tensor([[0.0, 3.0], [4.0, 0.0], [9.0, -9.0]])
    u, centre, radius = privacy.unit_ball(z, 0.0, torch.tensor([4.0, 3.0]))
    assert radius == pytest.approx(2.5) and centre.tolist() == [2.0, 1.5]
    assert torch.allclose(u * radius + centre, torch.tensor([[0.0, 3.0], [4.0, 0.0], [4.0, 0.0]], dtype=torch.float64))
    assert u.norm(dim=1).tolist() == pytest.approx([1, 1, 1])


WIDE = 40_000
"""Dimensions of a sample, so that one release shows the noise's distribution: Delta_2 does not depend on them."""


def noise_of(noise: str, epsilon: float, release: str, classes: int = 4) -> tuple[Tensor, Tensor]:
    """mu_x and S2 of 10 samples at the centre of a box about 5, C = 2, in units of u: noise and nothing else."""
    z = torch.full((10, WIDE), 5.0, dtype=torch.float64)
    box = (torch.tensor(4.0), torch.tensor(6.0))
    if release == MARGINALS:
        profile = privacy.private_marginals(z, *box, epsilon, 1e-5, noise, generator(), radius=2.0)
    else:
        labels = torch.zeros(10, dtype=torch.long)
        given = (z, labels, classes, *box, epsilon, 1e-5, noise, generator())
        profile = privacy.private_statistics(*given, release=release, radius=2.0)
    mu, sigma = (profile[:WIDE] - 5) / 2, profile[WIDE : 2 * WIDE] / 2
    return mu, (mu.square() + sigma.square())[sigma > 0]


@pytest.mark.parametrize(("epsilon", "factor"), [(0.5, 1 / 0.5 * math.sqrt(2 * math.log(1.25e5))), (1000.0, None)])
def test_the_released_noise_has_the_calibrated_deviation(epsilon: float, factor: float | None) -> None:
    sigma = factor or privacy.analytic_sigma(epsilon, 1e-5)
    for release, delta_2, numbers in ((MARGINALS, 8, 1), (STACKED, 16, 1), (GROUPS, 8, 4)):
        mu, _ = noise_of("gaussian", epsilon, release)
        assert float(mu.std()) == pytest.approx(math.sqrt(delta_2 * numbers) / 10 * sigma, rel=0.02)
        assert abs(float(mu.mean())) < 5 * float(mu.std()) / math.sqrt(WIDE)


def test_second_moments_carry_the_same_noise() -> None:
    sigma = privacy.noise_scale(10, WIDE, MARGINALS, 1e7, 1e-5, "gaussian")
    assert sigma < 1e-3  # so S2 > mu^2 for half of them, about: the positive half of the noise
    _, second = noise_of("gaussian", 1e7, MARGINALS)
    assert len(second) == pytest.approx(WIDE / 2, rel=0.03)
    assert math.sqrt(float(second.square().mean())) == pytest.approx(sigma, rel=0.02)


def test_laplace_noise_has_its_scale_and_its_shape() -> None:
    mu, _ = noise_of("laplace", 3.0, MARGINALS)
    scale = (2 * math.sqrt(WIDE) + 2) / 10 / 3
    assert float(mu.abs().mean()) == pytest.approx(scale, rel=0.02)  # Laplace's mean |x| is b,
    assert float(mu.std()) == pytest.approx(math.sqrt(2) * scale, rel=0.02)  # its deviation sqrt(2) b


@pytest.mark.parametrize("seed", range(3))
def test_no_two_released_numbers_share_their_noise(seed: int) -> None:
    z, labels = torch.zeros(40, 2), torch.arange(40) % 2
    many = torch.stack(
        [
            privacy.private_statistics(z, labels, 2, -1.0, 1.0, 1e6, None, "gaussian", draw, release=STACKED)
            for draw in [generator(seed)]
            for _ in range(800)
        ]
    )
    means = many[:, [0, 1, 4, 5, 6, 7]].double()  # mu_x, mu_1, mu_2, each of two coordinates
    assert (torch.corrcoef(means.T) - torch.eye(6)).abs().max() < 0.16


GRID = [(0.01, 1e-3), (0.1, 1e-5), (0.5, 1e-6), (1.0, 1e-2), (3.0, 1e-6), (10.0, 1e-8), (50.0, 0.3), (1e4, 1e-6)]


@pytest.mark.parametrize(("epsilon", "delta"), GRID)
def test_the_analytic_sigma_solves_the_closed_form(epsilon: float, delta: float) -> None:
    sigma = privacy.analytic_sigma(epsilon, delta)
    a, b = 1 / (2 * sigma), epsilon * sigma
    closed = norm.cdf(a - b) - math.exp(epsilon + norm.logcdf(-a - b))
    assert closed == pytest.approx(delta, rel=1e-6)
    assert privacy.gaussian_delta(epsilon, sigma) == pytest.approx(delta, rel=1e-9)
    assert privacy.gaussian_delta(epsilon, 0.99 * sigma) > delta


@pytest.mark.parametrize(("epsilon", "delta"), [(1e-6, 1e-6), (1e9, 1e-12), (5.0, 1e-200), (1.0, 1 - 1e-9)])
def test_the_analytic_sigma_at_extremes(epsilon: float, delta: float) -> None:
    assert privacy.gaussian_delta(epsilon, privacy.analytic_sigma(epsilon, delta)) == pytest.approx(delta, rel=1e-6)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 1e-4), (2.0, 1e-6), (8.0, 1e-5)])
def test_the_library_finds_the_delta_that_was_asked_for(epsilon: float, delta: float) -> None:
    sigma = privacy.analytic_sigma(epsilon, delta)
    accountant = PRVAccountant(GaussianMechanism(sigma), eps_error=5e-3, delta_error=1e-11, max_self_compositions=1)
    assert accountant.compute_delta(epsilon, [1])[1] == pytest.approx(delta, rel=1e-3)


def test_the_classical_rule_up_to_epsilon_one_and_the_analytic_above() -> None:
    def sigma(epsilon: float, delta: float | None, noise: str) -> float:
        return privacy.noise_scale(100, 10, STACKED, epsilon, delta, noise) * 100 / 4

    for epsilon, delta in [(e, d) for e, d in GRID if e <= 1]:
        assert sigma(epsilon, delta, "gaussian") == pytest.approx(math.sqrt(2 * math.log(1.25 / delta)) / epsilon)
        assert sigma(epsilon, delta, "analytic") == pytest.approx(privacy.analytic_sigma(epsilon, delta))
        assert privacy.gaussian_delta(epsilon, sigma(epsilon, delta, "gaussian")) < delta  # sound, if generous
    assert sigma(1.5, 1e-4, "gaussian") == sigma(1.5, 1e-4, "analytic") == sigma(1.5, None, "gaussian")  # 1 / 100^2


@pytest.mark.parametrize("noise", ["gaussian", "analytic"])
@pytest.mark.parametrize(("epsilon", "releases"), [(0.1, 15), (1.0, 15), (5.0, 4), (0.5, 100)])
def test_the_composed_epsilon_is_above_the_librarys_by_half_at_most(noise: str, epsilon: float, releases: int) -> None:
    total, delta = privacy.composed(epsilon, 1e-5, releases, noise)
    sigma = privacy.noise_scale(2, 1, STACKED, epsilon, 1e-5, noise) / 2
    accountant = PRVAccountant(
        GaussianMechanism(sigma), eps_error=0.01, delta_error=1e-10, max_self_compositions=releases
    )
    least, tight, most = accountant.compute_epsilon(delta, [releases])
    assert delta == 1e-5 and least <= tight <= most
    assert most <= total <= 1.5 * tight


def test_composition_by_its_formula_and_one_release_alone() -> None:
    sigma = privacy.analytic_sigma(2.0, 1 / 50**2)
    rho = 7 / (2 * sigma**2)
    total = rho + 2 * math.sqrt(rho * math.log(50**2))
    assert privacy.composed(2.0, None, 7, "gaussian", n=50) == pytest.approx((total, 1 / 2500))
    assert privacy.composed(2.0, 1e-5, 1, "gaussian") == (2.0, 1e-5)
    # the classical sigma is larger than it must be: here its zCDP is below epsilon
    assert 0.97 * 0.1 < privacy.composed(0.1, 1e-5, 1, "gaussian")[0] < 0.1


def test_laplace_totals_add_up_and_the_library_agrees() -> None:
    assert privacy.composed(0.5, None, 15, "laplace") == (7.5, 0.0)
    accountant = PRVAccountant(LaplaceMechanism(0.5), eps_error=0.01, delta_error=1e-11, max_self_compositions=4)
    assert accountant.compute_epsilon(1e-9, [1])[1] == pytest.approx(0.5, abs=0.01)
    assert accountant.compute_epsilon(1e-9, [4])[1] == pytest.approx(
        privacy.composed(0.5, None, 4, "laplace")[0], abs=0.02
    )


def test_the_released_codes_noise_has_a_scale_that_the_data_decides() -> None:
    z, references = torch.tensor([[0.0, 3.0], [1.0, 2.0]] * 5), torch.tensor([[-2.0, 1.0]])
    profile = torch.arange(WIDE, dtype=torch.float64)
    noise = privacy.released_mechanism(profile, z, references, 10.0, generator()) - profile
    assert float(noise.abs().mean()) == pytest.approx((3 + 2) / 10 / 10, rel=0.02)
    far = torch.cat([z[:-1], torch.tensor([[0.0, 48.0]])])  # one record of ten: the noise itself tells of it
    noise = privacy.released_mechanism(profile, far, references, 10.0, generator()) - profile
    assert float(noise.abs().mean()) == pytest.approx((48 + 2) / 10 / 10, rel=0.02)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"epsilon": 0.0}, "epsilon: 0.0 is out of range"),
        ({"epsilon": math.inf}, "epsilon: inf"),
        ({"delta": 0.0}, "delta: 0.0"),
        ({"delta": 1.0}, "delta: 1.0"),
        ({"delta": -1e-5, "noise": "laplace"}, "delta: -1e-05"),
        ({"noise": "gausian"}, "did you mean 'gaussian'"),
        ({"z": torch.zeros(1, 2), "labels": torch.zeros(1, dtype=torch.long)}, "number of samples: 1 .*at least 2"),
        ({"z": torch.zeros(4)}, r"z has shape \(4,\)"),
        ({"z": torch.full((4, 2), math.nan)}, "z holds NaN"),
        ({"low": 1.0}, "low below high"),
        ({"high": torch.ones(3)}, r"high has shape \(3,\)"),
        ({"high": math.inf}, "must be finite"),
        ({"labels": torch.tensor([0, 1, 2, 3])}, "labels go from 0 to 3, not 0 to 2"),
        ({"labels": torch.zeros(4, 3, dtype=torch.long)}, "records of one label"),
        ({"release": "marginals"}, "valid: groups, stacked"),
        ({"radius": 0}, "radius: 0"),
    ],
)
def test_bad_input_is_named(changed: dict, words: str) -> None:
    good = {"z": torch.zeros(4, 2), "labels": torch.tensor([0, 1, 2, 0]), "classes": 3, "low": -1.0, "high": 1.0}
    good |= {"epsilon": 1.0, "delta": None, "noise": "gaussian", "generator": generator()}
    with pytest.raises(FedlibError, match=words):
        privacy.private_statistics(**(good | changed))


def test_a_total_needs_a_delta_or_n() -> None:
    with pytest.raises(FedlibError, match="give one of them"):
        privacy.composed(1.0, None, 3, "gaussian")
    with pytest.raises(FedlibError, match="releases: 0"):
        privacy.composed(1.0, None, 0, "laplace")
