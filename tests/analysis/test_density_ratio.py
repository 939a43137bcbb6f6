import numpy as np
import pytest
import torch
from scipy import stats
from scipy.special import softmax

from fedlib.analysis.density_ratio import (
    client_head_gradient,
    constraint_residuals,
    empirical_likelihood,
    fit_client_head,
    gaussian_clients,
    log_density_ratio,
    log_density_ratio_true,
)
from fedlib.checks import FedlibError

MEANS = np.array([[0.0, 0.0], [1.0, 0.5], [-0.5, 1.0], [0.3, -1.2]])
SIZES = [2000, 500, 1000, 3000]


def stream(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.fixture(scope="module")
def fitted():
    x, origin = gaussian_clients(MEANS, SIZES, stream())
    return x, origin, *fit_client_head(x, origin, len(SIZES))


def covariance(x: np.ndarray, gamma: np.ndarray, xi: np.ndarray) -> np.ndarray:
    """Inverse Fisher information of (γ_l, ξ_l), l = 1..m−1, client 0 being pinned: (m−1, 1+d, m−1, 1+d)."""
    p = softmax(gamma + x @ xi.T, axis=1)[:, 1:]
    z = np.column_stack([np.ones(len(x)), x])
    spread = np.einsum("nl,lk->nlk", p, np.eye(p.shape[1])) - np.einsum("nl,nk->nlk", p, p)
    information = np.einsum("nlk,na,nb->lakb", spread, z, z)
    rows = p.shape[1] * z.shape[1]
    return np.linalg.inv(information.reshape(rows, rows)).reshape(information.shape)


def true_head() -> np.ndarray:
    """Rows (γ_l − γ_0, ξ_l − ξ_0) = (log(n_l/n_0) − (‖μ_l‖² − ‖μ_0‖²)/2, μ_l − μ_0), l = 1..m−1."""
    squares = (MEANS**2).sum(axis=1)
    gamma = np.log(np.array(SIZES) / SIZES[0]) - (squares - squares[0]) / 2
    return np.column_stack([gamma, MEANS - MEANS[0]])[1:]


def test_clients_are_standard_normal_about_their_means():
    x, origin = gaussian_clients(MEANS, SIZES, stream(1))
    assert x.dtype == np.float64 and np.bincount(origin).tolist() == SIZES
    for client, (mean, size) in enumerate(zip(MEANS, SIZES, strict=True)):
        own = x[origin == client]
        assert np.abs(own.mean(axis=0) - mean).max() < 4 / np.sqrt(size)
        assert np.abs(own.var(axis=0) - 1).max() < 4 * np.sqrt(2 / size)


def test_the_client_head_recovers_means_and_sizes(fitted):
    """Unit test 1 of the spec. Sizes are fixed here, which only makes γ less variable than the information says."""
    x, _, gamma, xi = fitted
    estimate = np.column_stack([gamma - gamma[0], xi - xi[0]])[1:]
    errors = np.sqrt(np.einsum("lala->la", covariance(x, gamma, xi)))
    assert np.abs((estimate - true_head()) / errors).max() < 4
    assert errors.max() < 0.1  # the test has something to say


def test_the_density_ratio_follows_after_the_prior_is_subtracted(fitted):
    """Over all x at once the squared error, in its own variance, stays below a χ² of 1 + d degrees (Scheffé)."""
    _, _, gamma, xi = fitted
    x = stream(2).uniform(-2, 2, size=(200, 2))
    error = (log_density_ratio(x, gamma, xi, SIZES) - log_density_ratio_true(x, MEANS))[:, 1:]
    z = np.column_stack([np.ones(len(x)), x])
    blocks = np.einsum("lalb->lab", covariance(fitted[0], gamma, xi))
    variance = np.einsum("na,lab,nb->nl", z, blocks, z)
    assert (error**2 / variance).max() < stats.chi2.ppf(1 - 1e-4 / 3, df=3)


def test_the_true_ratio_is_that_of_the_normal_densities():
    x = stream(3).normal(size=(5, 2))
    density = np.column_stack([stats.multivariate_normal(mean).logpdf(x) for mean in MEANS])
    np.testing.assert_allclose(log_density_ratio_true(x, MEANS), density - density[:, :1], atol=1e-12)


def test_the_empirical_likelihood_meets_its_constraints(fitted):
    """Unit test 2 of the spec."""
    x, _, gamma, xi = fitted
    p = empirical_likelihood(x, gamma, xi, SIZES)
    assert p.shape == (len(x),) and (p > 0).all()
    assert np.abs(constraint_residuals(p, x, gamma, xi, SIZES)).max() < 1e-6


def test_away_from_the_optimum_the_constraints_fail(fitted):
    x, _, gamma, xi = fitted
    bent = xi + np.array([[0.0, 0.0], [0.1, 0.0], [0.0, 0.0], [0.0, 0.0]])
    assert np.abs(constraint_residuals(empirical_likelihood(x, gamma, bent, SIZES), x, gamma, bent, SIZES)).max() > 1e-3


def test_the_reference_measure_is_a_choice(fitted):
    """A vector added to every ξ and a number to every γ: routing and client constraints stay, the total moves."""
    x, _, gamma, xi = fitted
    gamma_moved, xi_moved = gamma + 0.7, xi + np.array([0.2, -0.1])
    ratio, moved = log_density_ratio(x, gamma, xi, SIZES), log_density_ratio(x, gamma_moved, xi_moved, SIZES)
    np.testing.assert_allclose(moved, ratio, atol=1e-12)
    p = empirical_likelihood(x, gamma_moved, xi_moved, SIZES)
    total, *clients = constraint_residuals(p, x, gamma_moved, xi_moved, SIZES)
    assert np.abs(clients).max() < 1e-6 and abs(total) > 0.1


def test_two_clients_are_a_binary_regression():
    x, origin = gaussian_clients(MEANS[:2], [300, 600], stream(4))
    gamma, xi = fit_client_head(x, origin, 2)
    assert gamma[0] == pytest.approx(np.log(1 / 3)) and xi.shape == (2, 2) and not xi[0].any()
    residuals = constraint_residuals(empirical_likelihood(x, gamma, xi, [300, 600]), x, gamma, xi, [300, 600])
    assert np.abs(residuals).max() < 1e-6


def test_the_head_gradient_is_minus_that_of_the_cross_entropy():
    """Unit test 3 of the spec."""
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(7, 3, generator=generator, dtype=torch.float64)
    gamma = torch.randn(4, generator=generator, dtype=torch.float64, requires_grad=True)
    xi = torch.randn(4, 3, generator=generator, dtype=torch.float64, requires_grad=True)
    logits = gamma + features @ xi.T
    torch.nn.functional.cross_entropy(logits, torch.full((7,), 2)).backward()
    ours = client_head_gradient(features.numpy(), logits.detach().numpy(), client=2)
    np.testing.assert_allclose(ours[0], -gamma.grad.numpy(), atol=1e-12)
    np.testing.assert_allclose(ours[1], -xi.grad.numpy(), atol=1e-12)


def test_rows_of_other_clients_are_minus_their_weighted_features():
    features, logits = stream(5).normal(size=(7, 3)), stream(6).normal(size=(7, 4))
    by_gamma, by_xi = client_head_gradient(features, logits, client=2)
    p = softmax(logits, axis=1)
    for other in (0, 1, 3):
        np.testing.assert_allclose(by_xi[other], -(p[:, other, None] * features).mean(axis=0), atol=1e-12)
        assert by_gamma[other] < 0 < by_gamma[2]
    assert by_gamma.sum() == pytest.approx(0, abs=1e-12)


def test_density_and_posterior_routing_coincide_for_equal_sizes_only(fitted):
    """Unit test 4 of the spec."""
    x, _, gamma, xi = fitted
    posterior = (gamma + x @ xi.T).argmax(axis=1)
    assert (log_density_ratio(x, gamma, xi, [9, 9, 9, 9]).argmax(axis=1) == posterior).all()
    density = log_density_ratio(x, gamma, xi, SIZES).argmax(axis=1)
    assert (density == 1).sum() > (posterior == 1).sum()  # the smallest client gains
    assert (density == 3).sum() < (posterior == 3).sum()  # the largest loses


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: gaussian_clients(MEANS, [5, 5], stream()), "4 means but 2 sizes"),
        (lambda: gaussian_clients(MEANS[:2], [5, 0], stream()), "size of client 1: 0 is out of range"),
        (lambda: fit_client_head(np.zeros((3, 2)), np.array([0, 0, 2]), 3), r"their counts are \[2 0 1\]"),
        (lambda: fit_client_head(np.zeros((3, 2)), np.array([0, 1, 2]), 2), r"their counts are \[1 1 1\]"),
        (lambda: fit_client_head(np.zeros((3, 2)), np.zeros(3, dtype=int), 1), "clients: 1 is out of range"),
        (
            lambda: fit_client_head(*gaussian_clients(20 * MEANS[:2], [50, 50], stream()), 2),
            "no finite optimum .* move their means closer",
        ),
    ],
)
def test_impossible_inputs_are_refused(call, message):
    with pytest.raises(FedlibError, match=message):
        call()
