"""FedMGDA+ and its shortest combination against optimality, limits and closed forms."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import tiny
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from personal_tasks import quadratic, start
from test_methods import Quadratic, bias_after

from fedlib.methods.fedavg import FedAvg
from fedlib.methods.fedmgda import FedMGDAPlus, shortest
from fedlib.methods.fedpac import least_on_simplex
from fedlib.methods.method import Server, Upload, initial_state


@dataclass(frozen=True)
class QuadraticMGDA(FedMGDAPlus, Quadratic):
    """a_i ||w - c_i||^2 / 2."""


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 20), st.integers(1, 25), st.sampled_from([0.01, 0.1, 0.4, 1.0]))
def test_the_combination_is_the_shortest_that_is_allowed(seed: int, m: int, d: int, eps: float):
    """No feasible lam is better to first order: the best one fills up where (G lam)_i is least."""
    draw = np.random.default_rng(seed)
    D = draw.normal(size=(m, d)) + draw.choice([0.0, 2.0]) * draw.normal(size=d)
    D /= np.linalg.norm(D, axis=1, keepdims=True)
    D[0] *= draw.choice([0.0, 1.0])
    G, lam0 = D @ D.T, draw.dirichlet(np.ones(m))
    lam = shortest(G, lam0, eps)
    assert lam.min() >= 0 and lam.sum() == pytest.approx(1.0, abs=1e-9) and abs(lam - lam0).max() <= eps + 1e-12
    best = (lam0 - eps).clip(min=0.0)
    left = 1 - best.sum()
    for i in np.argsort(G @ lam):
        more = min(left, min(lam0[i] + eps, 1.0) - best[i])
        best[i], left = best[i] + more, left - more
    assert lam @ G @ lam <= lam @ G @ best + 1e-6
    assert lam @ G @ lam <= lam0 @ G @ lam0 + 1e-12


def test_at_its_ends_it_is_the_least_on_the_simplex_or_the_clients_shares():
    D = np.random.default_rng(0).normal(size=(6, 30)) + 0.5
    D /= np.linalg.norm(D, axis=1, keepdims=True)
    lam0 = np.array([0.3, 0.1, 0.1, 0.2, 0.25, 0.05])
    np.testing.assert_allclose(shortest(D @ D.T, lam0, 1.0), least_on_simplex(D @ D.T), atol=1e-6)
    assert shortest(D @ D.T, lam0, 0.0).tolist() == lam0.tolist()


def test_without_leeway_the_shares_are_taken_as_they_are_even_if_they_do_not_quite_sum_to_one():
    n = np.array([54, 26, 51, 20, 38])
    lam0 = n / n.sum()
    assert lam0.sum() != 1.0
    assert shortest(np.eye(5), lam0, 0.0).tolist() == lam0.tolist()


@pytest.mark.parametrize(("eps", "first"), [(0.0, 0.75), (0.1, 0.65), (0.25, 0.5), (1.0, 0.5)])
def test_two_clients_come_as_near_to_equal_weights_as_eps_lets_them(eps: float, first: float):
    """For two directions of length 1 the least combination is the half of each, at any angle below 180 degrees."""
    G = np.array([[1.0, 0.2], [0.2, 1.0]])
    np.testing.assert_allclose(shortest(G, np.array([0.75, 0.25]), eps), [first, 1 - first], atol=1e-7)


def test_the_server_stands_still_between_the_optima_and_moves_by_server_lr_outside():
    """One coordinate (the others follow): between c = 1 and 5 the directions are opposite, outside they agree."""
    between = start((30, 10))[0].mean()
    assert abs(between) < 1
    theta = start((30, 10))[0]
    method = QuadraticMGDA(eps=1.0, server_lr=0.5, centres=(7.0, 9.0))
    moved = quadratic(method, 1)[0].server.weights["head.bias"].double().numpy() - theta
    assert np.linalg.norm(moved) == pytest.approx(0.5, abs=1e-3) and (moved > 0).all()
    method = replace(method, centres=(-6.0, 6.0))
    still = quadratic(method, 1)[0].server.weights["head.bias"].double().numpy() - theta
    assert np.linalg.norm(still) < 0.05


def test_without_server_lr_directions_that_agree_move_as_fedavg_does():
    """lam0 mixes the same unit vector, and the step is sum_i lam0_i ||theta - theta_i||."""
    same = (30.0, 30.0)
    theta = quadratic(QuadraticMGDA(eps=1.0, server_lr=None, centres=same), 3)[-1].server.weights["head.bias"]
    torch.testing.assert_close(theta, bias_after(Quadratic(centres=same), 3, 1), rtol=1e-4, atol=1e-4)


def test_no_client_is_against_the_step_and_statistics_are_averaged():
    fed = tiny.federation((40, 24, 33))
    theta = initial_state(FedAvg(), tiny.task(fed))[1].weights
    theta |= {"norm.running_mean": torch.zeros(3), "norm.num_batches_tracked": torch.tensor(4)}
    draw = torch.Generator().manual_seed(1)
    uploads = []
    for i, size in enumerate(fed.sizes):
        sent = {n: w + (i + 1.0) * torch.randn(w.shape, generator=draw) for n, w in theta.items() if "norm." not in n}
        sent |= {"norm.running_mean": torch.full((3,), float(i)), "norm.num_batches_tracked": torch.tensor(4 + i)}
        uploads.append(Upload(i, sent, {}, size, {}))
    after = FedMGDAPlus(eps=1.0).aggregate(Server(theta), uploads)
    names = [name for name in theta if "norm." not in name]
    step = torch.cat([(theta[n] - after.weights[n]).flatten() for n in names]).double()
    for upload in uploads:
        d = torch.cat([(theta[n] - upload.weights[n]).flatten() for n in names]).double()
        assert float(step @ d / d.norm()) == pytest.approx(float(step @ step), rel=1e-3)  # equal for all with lam_i > 0
    assert after.weights["norm.running_mean"].tolist() == pytest.approx([(24 + 66) / 97] * 3)
    assert int(after.weights["norm.num_batches_tracked"]) == 5 and after.round == 1


def test_updates_of_nothing_leave_the_model():
    theta = {"w": torch.tensor([1.0, 2.0])}
    uploads = [Upload(i, {"w": theta["w"].clone()}, {}, 10, {}) for i in range(2)]
    for server_lr in (1.0, None):
        assert tiny.same(FedMGDAPlus(server_lr=server_lr).aggregate(Server(theta), uploads).weights, theta)
