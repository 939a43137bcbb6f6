"""Profiles, distances and weights against closed forms, the specification's table and its worked example."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.linalg import sqrtm
from sklearn.decomposition import PCA
from torch import Tensor

from fedlib import models
from fedlib.profiles import (
    distances,
    fit_scaler,
    halves,
    inverse_distance_weights,
    latent_size,
    latents,
    marginals,
    mixing_weights,
    present,
    profile_size,
    projection,
    regime,
    scale,
    softmax_weights,
    statistics,
)
from fedlib.training import prepare

FIGURE_3 = torch.tensor(
    [
        [0.10, 0.26, 0.70, 0.10, 0.10, 0.02],
        [0.05, 0.24, 0.07, 0.57, 0.11, 0.19],
        [0.41, 0.17, 0.10, 0.04, 0.10, 0.08],
        [0.37, 0.16, 0.10, 0.06, 0.09, 0.13],
        [0.07, 0.17, 0.03, 0.23, 0.60, 0.58],
    ],
    dtype=torch.float64,
).T
"""Row: current client 1 … 6; column: previous client 1 … 5."""


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize(
    ("classes", "d", "parameters", "share"),
    [
        (10, 220, 61_706, 3.57e-3),
        (10, 220, 62_006, 3.55e-3),
        (10, 220, 83_126, 2.65e-3),
        (100, 20_200, 6_775_140, 2.98e-3),
        (14, 420, 6_683_790, 6.3e-5),
        (20, 840, 6_734_100, 1.2e-4),
    ],
)
def test_a_profile_is_as_large_as_published(classes: int, d: int, parameters: int, share: float):
    assert profile_size(classes, classes) == d
    assert d / parameters == pytest.approx(share, rel=0.05)
    assert len(statistics(draw(30, classes), torch.arange(30) % classes, classes)) == d


def test_latents_are_the_flat_backbone_in_evaluation_mode_and_leave_the_network_as_it_was():
    model = models.build({"name": "lenet5"}, (3, 28, 28), 10)
    assert latent_size(model, (3, 28, 28)) == 400
    model = models.build({"name": "resnet10", "width": 2}, (3, 8, 8), 3)
    images = torch.randint(0, 256, (503, 3, 8, 8), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    before = {name: w.clone() for name, w in model.state_dict().items()}
    z = latents(model, images)
    assert model.training and not z.requires_grad and latent_size(model, (3, 8, 8)) == z.shape[1]
    assert all(torch.equal(w, before[name]) for name, w in model.state_dict().items())
    torch.testing.assert_close(z, model.eval().backbone(prepare(images)).flatten(1).detach())
    text = models.build({"name": "text_cnn"}, (50, 12), 4)
    assert latents(text, torch.ones(2, 12, dtype=torch.int32)).shape == (2, latent_size(text, (50, 12)))


def test_the_projection_is_the_principal_axes_of_uniform_points():
    p, ell, low, high = 12, 4, -0.5, 3.0
    g = projection(p, ell, low, high)
    points = np.random.default_rng(1).uniform(low, high, (200, p))
    fitted = PCA(ell, svd_solver="full").fit(points)
    signs = np.sign((g.axes.numpy() * fitted.components_).sum(1))
    z = draw(9, p)
    np.testing.assert_allclose(g(z).numpy(), fitted.transform(z.numpy()) * signs, atol=1e-10)
    torch.testing.assert_close(g.axes @ g.axes.T, torch.eye(ell, dtype=torch.float64))
    largest = g.axes.gather(1, g.axes.abs().argmax(1, keepdim=True))
    assert (largest > 0).all()
    projected = g(torch.from_numpy(points))
    torch.testing.assert_close(g.least, projected.amin(0))
    torch.testing.assert_close(g.largest, projected.amax(0))
    torch.testing.assert_close(projection(p, ell, 7.0, 7.0).largest, projection(p, ell, 7.0, 8.0).largest)


def test_halves_are_without_replacement_and_each_its_own():
    stream = torch.Generator().manual_seed(3)
    index = halves(11, 3, stream).view(3, 5)
    assert all(len(set(half.tolist())) == 5 for half in index) and index.min() >= 0 and index.max() < 11
    assert len({tuple(sorted(half.tolist())) for half in index}) == 3
    assert torch.equal(halves(11, 3, torch.Generator().manual_seed(3)).view(3, 5), index)
    assert halves(4, 0, stream).tolist() == [0, 1, 2, 3]
    assert halves(1, 2, stream).tolist() == [0, 0]


def test_a_profile_by_hand():
    """l = 2, labels 0, 0, 2, 3, 3 of 4: label 1 has no sample, label 2 has one. Deviations are those of populations."""
    g = torch.tensor([[1.0, 0.0], [3.0, 4.0], [5.0, 1.0], [7.0, 2.0], [9.0, 8.0]])
    mu_x, sigma_x = [5.0, 3.0], [math.sqrt(8.0), math.sqrt(8.0)]
    mu = [2.0, 2.0, -1.0, -1.0, -1.0, -1.0, 8.0, 5.0]
    sigma = [1.0, 2.0, -1.0, -1.0, -1.0, -1.0, 1.0, 3.0]
    d = statistics(g, torch.tensor([0, 0, 2, 3, 3]), 4)
    torch.testing.assert_close(d, torch.tensor(mu_x + sigma_x + mu + sigma))
    torch.testing.assert_close(marginals(g), d[:4])
    assert present(d[None], 2).tolist() == [[True, True] + [True, False, False, True] * 2]
    several = torch.tensor([[1, 1], [1, 0], [0, 1], [0, 0], [1, 0]])
    torch.testing.assert_close(statistics(g, several, 2)[4:8], torch.tensor([13 / 3, 4.0, 3.0, 0.5]))


def test_distance_of_marginals_is_wasserstein_2_between_diagonal_gaussians():
    """|| mu_a - mu_b ||^2 + tr(A + B - 2 (A^1/2 B A^1/2)^1/2), of samples on grids: their covariance is diagonal."""
    grids = []
    for sides in ((draw(3, seed=1), draw(4, seed=2), draw(2, seed=3)), (3 * draw(5, seed=4), draw(2, seed=5), draw(3))):
        grids.append(torch.cartesian_prod(*sides))
    (mu_a, A), (mu_b, B) = ((g.mean(0).numpy(), np.cov(g.T.numpy(), ddof=0)) for g in grids)
    root = sqrtm(A)
    squared = ((mu_a - mu_b) ** 2).sum() + np.trace(A + B - 2 * np.real(sqrtm(root @ B @ root)))
    a, b = map(marginals, grids)
    assert float((a - b).norm()) == pytest.approx(math.sqrt(squared), rel=1e-9)


def test_the_label_free_part_alone_does_not_know_labels():
    g, labels, swap = draw(40, 3), torch.arange(40) % 4, torch.tensor([2, 0, 3, 1])
    d, swapped = statistics(g, labels, 4), statistics(g, swap[labels], 4)
    assert torch.equal(d[:6], swapped[:6]) and not torch.allclose(d, swapped)
    conditional, moved = (one[6:].view(2, 4, 3) for one in (d, swapped))
    torch.testing.assert_close(conditional, moved[:, swap])


def profiles_by_hand() -> Tensor:
    """l = 2, U = 1, two clients; the second has no sample of the label."""
    return torch.tensor([[0.0, 4.0, 1.0, 1.0, 6.0, 8.0, 2.0, 3.0], [2.0, 8.0, 1.0, 1.0, -1.0, -1.0, -1.0, -1.0]])


def test_the_scaler_is_one_range_a_group_and_a_group_of_one_value_has_span_1():
    d = profiles_by_hand()
    low, span = fit_scaler(d, 2)
    assert low.tolist() == [0.0, 1.0, -1.0, -1.0] and span.tolist() == [8.0, 1.0, 9.0, 4.0]
    scaled = scale(d, low, span, 2)
    assert scaled[0].tolist() == pytest.approx([0, 0.5, 0, 0, 7 / 9, 1, 0.75, 1])
    assert scaled[1].tolist() == pytest.approx([0.25, 1, 0, 0, 0, 0, 0, 0])
    assert scale(d + 16, low, span, 2)[0, :2].tolist() == [2.0, 2.5]
    assert torch.equal(scale(d[:, :4], low, span, 2), scaled[:, :4])


def test_the_masked_scaler_leaves_absent_labels_out_and_marks_them():
    d = profiles_by_hand()
    low, span = fit_scaler(d, 2, masked=True)
    assert low.tolist() == [0.0, 1.0, 6.0, 2.0] and span.tolist() == [8.0, 1.0, 2.0, 1.0]
    scaled = scale(d, low, span, 2, masked=True)
    assert scaled[0].tolist() == [0.0, 0.5, 0.0, 0.0, 0.0, 1.0, 0.0, 1.0]
    assert scaled[1].tolist() == [0.25, 1.0, 0.0, 0.0, -1.0, -1.0, -1.0, -1.0]
    assert torch.equal(scale(d[:, :4], low, span, 2, masked=True), scaled[:, :4])
    low, span = fit_scaler(d[1:], 2, masked=True)
    assert low.tolist() == [2.0, 1.0, 0.0, 0.0] and span.tolist() == [6.0, 1.0, 1.0, 1.0]


def test_distances_by_hand():
    a, b = torch.tensor([[3.0, 4.0], [0.0, 0.0]]), torch.tensor([[3.0, 4.0], [0.0, 8.0], [-6.0, -8.0]])
    assert distances(a, b).tolist() == [[0.0, 5.0, 15.0], [5.0, 8.0, 10.0]]
    torch.testing.assert_close(distances(a, b, "cosine"), torch.tensor([[0.0, 0.2, 2.0], [1.0, 1.0, 1.0]]))
    many = draw(40, 300) + 1e6
    assert (distances(many, many).diagonal() == 0).all()


def test_weights_by_hand():
    D = torch.tensor([[0.0, math.log(2.0), math.log(4.0)], [1e4, 1e4 + math.log(3.0), 2e9]], dtype=torch.float64)
    torch.testing.assert_close(
        softmax_weights(D), torch.tensor([[4 / 7, 2 / 7, 1 / 7], [0.75, 0.25, 0.0]], dtype=torch.float64)
    )
    torch.testing.assert_close(softmax_weights(D[:1], 0.5), torch.tensor([[16.0, 4.0, 1.0]], dtype=torch.float64) / 21)
    D = torch.tensor([[0.0, 1.0, 3.0], [0.0, 0.0, 5.0]], dtype=torch.float64)
    w = softmax_weights(D, None)  # T_s = 0.5 and, in the limit, 0
    by_hand = torch.tensor([1.0, math.exp(-2), math.exp(-6)], dtype=torch.float64)
    torch.testing.assert_close(w, torch.stack([by_hand / by_hand.sum(), torch.tensor([0.5, 0.5, 0.0]).double()]))
    torch.testing.assert_close(softmax_weights(1e3 * D, None), w)
    D = torch.tensor([[1.0, 2.0, 4.0], [0.0, 1.0, 1.0]], dtype=torch.float64)
    w = inverse_distance_weights(D)
    torch.testing.assert_close(w[0], torch.tensor([4.0, 2.0, 1.0], dtype=torch.float64) / 7)
    assert float(w[1, 0]) == pytest.approx(1e8 / (1e8 + 2), rel=1e-12)


def test_equal_distances_fall_back_just_above_the_uniform_share():
    for m in (3, 6, 7, 49):
        w, rest = softmax_weights(torch.full((2, m), 3.7, dtype=torch.float64)), torch.arange(m) / (m * (m - 1) / 2)
        torch.testing.assert_close(w, torch.full_like(w, 1 / m))
        torch.testing.assert_close(mixing_weights(w, 1.5, rest), rest.double().expand(2, m))
        torch.testing.assert_close(mixing_weights(w, 1.0, rest), w)
        assert regime(w[0], 1.5) == "global" and regime(w[0], 1.0) == "clustered"


def test_equal_weights_survive_their_own_share_in_spite_of_rounding():
    for m in range(2, 80):
        w = inverse_distance_weights(torch.full((1, m), 3.7, dtype=torch.float64))
        assert torch.equal(mixing_weights(w, 1.0, torch.zeros(m)) > 0, torch.ones(1, m, dtype=torch.bool))


def test_the_threshold_by_hand():
    w = torch.tensor([[0.5, 0.3, 0.15, 0.05], [0.25, 0.25, 0.26, 0.24], [0.9, 0.1, 0.0, 0.0]], dtype=torch.float64)
    rest = torch.tensor([0.1, 0.2, 0.3, 0.4])
    got = mixing_weights(w, 1.2, rest)
    torch.testing.assert_close(got[0], torch.tensor([0.625, 0.375, 0.0, 0.0], dtype=torch.float64))
    torch.testing.assert_close(got[1], rest.double())
    assert got[2].tolist() == [1.0, 0.0, 0.0, 0.0]
    assert [regime(row, 1.2) for row in w] == ["clustered", "global", "personal"]
    torch.testing.assert_close(mixing_weights(w, 0.0, rest), w)
    assert torch.equal(mixing_weights(w, 4.1, rest), rest.double().expand(3, 4))


def test_up_to_the_uniform_share_nothing_falls_back():
    w = softmax_weights(draw(200, 9).abs())
    for threshold in (0.0, 0.5, 1.0):
        assert mixing_weights(w, threshold, torch.full((9,), torch.nan)).isfinite().all()


def test_the_regimes_of_figure_3():
    """tau = 1.5 / 5: of the third column's neighbours only 0.70 is left. Client 4 is clustered from tau = 0.2 on."""
    torch.testing.assert_close(FIGURE_3.sum(1), torch.ones(6, dtype=torch.float64))
    found = [regime(w, 1.5) for w in FIGURE_3]
    assert found == ["clustered", "global", "personal", "personal", "personal", "personal"]
    assert regime(FIGURE_3[3], 1.0) == "clustered" and regime(FIGURE_3[1], 1.0) == "clustered"
    rest = torch.full((5,), 0.2)
    w_bar = mixing_weights(FIGURE_3, 1.5, rest)
    by_hand = torch.zeros(6, 5, dtype=torch.float64)
    by_hand[0, [2, 3]] = torch.tensor([0.41, 0.37], dtype=torch.float64) / 0.78
    by_hand[1] = 0.2
    for k, j in ((2, 0), (3, 1), (4, 4), (5, 4)):
        by_hand[k, j] = 1.0
    torch.testing.assert_close(w_bar, by_hand, atol=1e-7, rtol=0)


def test_clients_that_were_not_there_do_not_count():
    assert regime(torch.tensor([-1.0, 0.4, 0.6, -1.0]), 1.0) == "personal"
    assert regime(torch.tensor([-1.0, -1.0]), 1.0) == "global"
