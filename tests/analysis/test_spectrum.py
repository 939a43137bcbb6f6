"""Singular-value spectra against closed forms and what must not change them."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
import torch

from fedlib.analysis import spectrum
from fedlib.analysis.spectrum import above, covariance_spectrum, effective_rank, spectra, summarise
from fedlib.checks import FedlibError


def gaussian(n: int, d: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, d))


def with_covariance(values: list[float], n: int) -> np.ndarray:
    """n samples whose covariance is exactly diag(values): whitened, then scaled."""
    z = gaussian(n, len(values))
    z -= z.mean(0)
    left, _, right = np.linalg.svd(z, full_matrices=False)
    return left @ right * np.sqrt(n - 1) * np.sqrt(values)


def rotation(d: int) -> np.ndarray:
    return np.linalg.qr(gaussian(d, d, seed=1))[0]


def test_a_known_diagonal_covariance():
    """p = (4, 2, 1, 1) / 8: entropy = ln 2 (1/2 * 1 + 1/4 * 2 + 2 * 1/8 * 3) = 1.75 ln 2, effective rank 2^1.75."""
    z = with_covariance([1.0, 4.0, 1.0, 2.0], 50) + 7.0  # the mean does not count
    sigma = covariance_spectrum(z)
    assert sigma == pytest.approx([4.0, 2.0, 1.0, 1.0])
    assert effective_rank(sigma) == pytest.approx(2**1.75)


def test_the_spectrum_is_that_of_the_covariance_matrix():
    z = gaussian(30, 5) @ np.diag([5.0, 3, 2, 1, 0.1])
    assert covariance_spectrum(z) == pytest.approx(np.linalg.svd(np.cov(z.T), compute_uv=False))


def test_isotropic_features_use_all_directions_and_one_line_uses_one():
    assert effective_rank(covariance_spectrum(gaussian(20000, 16))) == pytest.approx(16, rel=0.002)
    line = np.outer(gaussian(40, 1)[:, 0], gaussian(8, 1, seed=3)[:, 0]) + 100.0
    sigma = covariance_spectrum(line)
    assert sigma[1:].tolist() == [0.0] * 7
    assert effective_rank(sigma) == pytest.approx(1.0) and above(sigma) == 1


def test_rotation_and_shift_change_nothing_and_scale_only_the_scale():
    z = gaussian(60, 6) * np.array([9, 4, 3, 2, 1, 0.5])
    sigma = covariance_spectrum(z)
    assert covariance_spectrum(z @ rotation(6) - 3.0) == pytest.approx(sigma)
    assert covariance_spectrum(10 * z) == pytest.approx(100 * sigma)
    assert effective_rank(covariance_spectrum(10 * z @ rotation(6))) == pytest.approx(effective_rank(sigma))
    assert above(covariance_spectrum(10 * z)) == above(sigma)


def test_at_most_samples_minus_one_directions_are_found():
    sigma = covariance_spectrum(gaussian(5, 9) + 50.0)
    assert len(sigma) == 9 and (sigma[:4] > 0.01).all() and sigma[4:].tolist() == [0.0] * 5


@pytest.mark.parametrize("k", [1, 3, 10])
def test_k_equal_values_have_rank_k_whatever_zeros_follow(k: int):
    assert effective_rank(np.array([0.2] * k + [0.0] * 4)) == pytest.approx(k)


def test_collapsed_features_have_rank_zero():
    sigma = covariance_spectrum(torch.full((12, 4), 0.1))
    assert sigma.tolist() == [0.0] * 4 and effective_rank(sigma) == 0.0 and above(sigma) == 0


def test_above_is_strict_and_relative_to_the_largest():
    assert above(np.array([10.0, 0.2, 0.1, 0.0])) == 2
    assert above(np.array([10.0, 0.2, 0.1, 0.0]), share=0.0) == 3
    assert above(np.array([10.0, 0.2, 0.1, 0.0]), share=0.5) == 1


NAMES = ("photo", "sketch")


def two_domains() -> tuple[np.ndarray, np.ndarray]:
    """30 photos on one line, 80 sketches on another at right angles, apart in a third direction."""
    photo, sketch = np.zeros((30, 3)), np.zeros((80, 3))
    photo[:, 0], sketch[:, 1], sketch[:, 2] = np.arange(30), np.arange(80), 40.0
    order = np.random.default_rng(5).permutation(110)
    return np.concatenate([photo, sketch])[order], np.repeat([0, 1], [30, 80])[order]


def test_each_domain_is_centred_by_itself_on_as_many_samples():
    z, domains = two_domains()
    table = summarise(z, domains, NAMES)
    assert table["domain"].tolist() == ["pooled", "photo", "sketch"]
    assert table["samples"].tolist() == [110, 30, 30]
    assert table["effective_rank"][1:].tolist() == pytest.approx([1.0, 1.0])
    assert table["above"][1:].tolist() == [1, 1]
    assert table["effective_rank"][0] == pytest.approx(effective_rank(covariance_spectrum(z)))
    assert table["above"][0] == 3
    assert summarise(z, domains, NAMES, samples=7)["samples"].tolist() == [110, 7, 7]


def test_the_drawn_samples_depend_on_seed_and_domain_alone():
    """Two models meet the same images: twice the features, four times the values; another seed draws others."""
    domains = np.repeat([0, 1], [30, 80])
    z = gaussian(110, 4)
    first, second = spectra(z, domains, NAMES), spectra(2 * z, domains, NAMES)
    assert second["value"].tolist() == pytest.approx((4 * first["value"]).tolist())
    other = spectra(z, domains, NAMES, seed=1)
    same = [
        np.allclose(first.value[first.domain == name], other.value[other.domain == name])
        for name in ("pooled", "photo", "sketch")
    ]
    assert same == [True, True, False]  # all 30 photos are taken under any seed
    assert first[first.domain == "photo"].value.tolist() == pytest.approx(covariance_spectrum(z[:30]).tolist())


def test_unequal_samples_would_have_told_equal_domains_apart():
    """40 directions: 20 samples cannot show more than 19 of them. Cut to as many samples, both domains look alike."""
    z, domains = gaussian(420, 40), np.repeat([0, 1], [20, 400])
    uncut = [effective_rank(covariance_spectrum(z[domains == q])) for q in (0, 1)]
    cut = summarise(z, domains, NAMES)["effective_rank"].tolist()[1:]
    assert uncut[0] < 19 and uncut[1] > 35
    assert abs(cut[0] - cut[1]) < 2


def test_spectra_are_the_values_that_are_summarised():
    z, domains = gaussian(50, 6), np.arange(50) % 2
    table, summary = spectra(z, domains, NAMES, samples=10), summarise(z, domains, NAMES, samples=10)
    ranks = [effective_rank(rows["value"].to_numpy()) for _, rows in table.groupby("domain", sort=False)]
    assert ranks == pytest.approx(summary["effective_rank"].tolist())
    assert table["index"].tolist() == [1, 2, 3, 4, 5, 6] * 3
    pd.testing.assert_frame_equal(table, spectra(torch.tensor(z), torch.tensor(domains), NAMES, samples=10))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: covariance_spectrum(np.zeros(3)), r"features have shape \(3,\); give \(N, d\)"),
        (lambda: covariance_spectrum(np.zeros((1, 3))), "1 samples; a covariance needs at least two"),
        (lambda: covariance_spectrum(np.array([[1, 2], [3, math.nan]])), "sample 1, feature 1 is nan"),
        (lambda: effective_rank(np.array([1.0, -1.0])), "none below 0"),
        (lambda: above(np.array([1.0]), share=1.0), "above: share: 1.0 is out of range"),
        (lambda: summarise(np.zeros((4, 2)), np.zeros(3), ["a"]), r"domains have shape \(3,\); give one for each of 4"),
        (lambda: summarise(np.zeros((4, 2)), np.array([0, 0, 1, 2]), ["a", "b"]), r"domains: \[2\] have no name"),
        (lambda: spectra(np.zeros((4, 2)), np.zeros(4), ["pooled"]), "none 'pooled'"),
        (lambda: summarise(np.zeros((5, 2)), np.array([0, 0, 0, 1, 1]), ["a", "b"], samples=3), "but 'b' has 2"),
        (lambda: summarise(np.zeros((3, 2)), np.array([0, 0, 1]), ["a", "b"]), "samples: 1 of each domain, but 'b'"),
    ],
)
def test_bad_input_is_named(make, message: str):
    with pytest.raises(FedlibError, match=message):
        make()


def test_features_come_off_the_graph():
    z = torch.randn(6, 2, generator=torch.Generator().manual_seed(0), requires_grad=True)
    assert covariance_spectrum(z) == pytest.approx(np.linalg.eigvalsh(np.cov(spectrum.as_numpy(z).T))[::-1], rel=1e-5)
