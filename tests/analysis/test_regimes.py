"""Made-up profiles: their moments, and FEROMA's regimes where the right one is known (FEROMA spec, 1.5)."""

from __future__ import annotations

import math

import pytest
import torch

from fedlib import profiles
from fedlib.analysis import regimes
from fedlib.checks import FedlibError
from fedlib.methods.feroma import FEROMA
from fedlib.profiles import regime

ELL, CLASSES = 12, 4
FAR = math.sqrt(2 * (CLASSES + 1))
"""Between distributions with means e_q: the square root of 2 for the marginal means and those of each label."""


def weights(now: list[int], before: list[int], samples: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    mean = torch.eye(ELL)
    d = [regimes.profiles_of(mean[own], CLASSES, samples, seed) for seed, own in enumerate((now, before))]
    return regimes.weights(*d, ell=ELL)


@pytest.mark.parametrize(
    ("now", "before", "expected"),
    [
        ([0, 0, 0, 1, 1, 1, 2, 2], [0, 0, 0, 1, 1, 1, 2, 2], ["clustered"] * 8),
        (list(range(8)), list(range(8)), ["personal"] * 8),
        ([8, 9, 10, 11], list(range(8)), ["global"] * 4),
        ([0, 0, 1], [0, 0, 0, 0, 0, 0, 1, 1], ["global", "global", "clustered"]),
    ],
)
def test_regimes_and_weights_in_closed_form(now: list[int], before: list[int], expected: list[str]):
    D, w = weights(now, before)
    alike = torch.tensor(now)[:, None] == torch.tensor(before)
    torch.testing.assert_close(D, torch.where(alike, 0.0, FAR).double(), rtol=0, atol=1e-6)
    raised = torch.where(alike, 1.0, math.exp(-FAR)).double()
    torch.testing.assert_close(w, raised / raised.sum(1, keepdim=True), rtol=0, atol=1e-6)
    assert [regime(row, 1.5) for row in w] == expected


def test_adding_a_constant_to_all_distances_changes_no_regime():
    """Three times as far from all, and a little nearer to one: personal, though nobody is similar."""
    mean = torch.eye(ELL)
    d = (regimes.profiles_of(3 * mean[9] + mean[:8], CLASSES), regimes.profiles_of(mean[:8], CLASSES))
    D, w = regimes.weights(*d, ell=ELL)
    assert float(D.min()) > 2 * FAR and [regime(row, 1.5) for row in w] == ["personal"] * 8


def test_drawn_profiles_tend_to_the_exact_ones():
    mean = 2.0 * torch.eye(3)
    exact, drawn = (regimes.profiles_of(mean, 2, samples) for samples in (None, 40_000))
    assert exact.shape == drawn.shape == (3, profiles.profile_size(3, 2))
    assert float((exact - drawn).abs().max()) < 0.05
    assert not torch.equal(drawn, regimes.profiles_of(mean, 2, 40_000, seed=1))


def test_the_method_says_how_distances_become_weights():
    mean = torch.eye(ELL)
    d = regimes.profiles_of(mean[[0, 1]], CLASSES)
    w = regimes.weights(d, d, ELL, FEROMA(temperature=2.0))[1]
    assert float(w[0, 0]) == pytest.approx(1 / (1 + math.exp(-FAR / 2)))


def test_the_papers_example_sums_to_one_and_has_the_names_it_is_given_for_thresholds_above_1_3_up_to_1_85():
    w = torch.tensor(regimes.EXAMPLE, dtype=torch.float64)
    assert w.sum(1).tolist() == pytest.approx([1.0] * 6)
    for threshold, fits in ((1.3, False), (1.31, True), (1.5, True), (1.85, True), (1.86, False)):
        assert ([regime(row, threshold) for row in w[:3]] == list(regimes.EXAMPLE_REGIMES)) == fits


def test_too_few_samples_are_refused():
    with pytest.raises(FedlibError, match="samples"):
        regimes.profiles_of(torch.eye(3), 4, samples=7)
