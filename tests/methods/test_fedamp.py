"""FedAMP against its attention by hand, closed forms on quadratics and its limits."""

from __future__ import annotations

import numpy as np
import pytest
import tiny
import torch
from personal_tasks import QuadraticAMP, biases, quadratic, start
from scipy.optimize import brentq
from test_methods import LOCAL, PLAN

from fedlib.checks import FedlibError
from fedlib.methods.fedamp import FedAMP, attention, combined, gram, squared_distances
from fedlib.rounds import Plan, cohorts


def attention_by_hand(W: np.ndarray, sigma: float | None, step: float) -> np.ndarray:
    """xi, one pair at a time."""
    m = len(W)
    apart = [[float(((w - v) ** 2).sum()) for v in W] for w in W]
    spread = sum(map(sum, apart)) / (m * (m - 1)) if m > 1 else 1.0
    xi = np.eye(m)
    for i in range(m):
        for j in range(m):
            if i != j:
                xi[i, j] = (
                    np.exp(-apart[i][j] / spread) / m if sigma is None else step / sigma * np.exp(-apart[i][j] / sigma)
                )
        xi[i, i] = 1 - (xi[i].sum() - 1)
    return xi


@pytest.mark.parametrize(("sigma", "participation"), [(None, 1.0), (40.0, 1.0), (None, 0.5)])
def test_fedamp_by_hand(sigma: float | None, participation: float):
    """w_i <- w_i - lr (a_i (w_i - c_i) + lam / step (w_i - u_i)), over the last models of those who have taken part."""
    sizes, c = (30, 10, 20, 20), np.array([1.0, 5.0, 2.0, -1.0])
    method = QuadraticAMP(centres=tuple(c), curvatures=(1.0,) * 4, lam=3.0, step=2.0, sigma=sigma)
    plan = Plan(6, 0.25, participation=participation)
    w, known_now = start(sizes), np.zeros(4, dtype=bool)
    runs = quadratic(method, 6, sizes, participation=participation)
    for now, cohort in zip(runs, cohorts(0, 4, plan), strict=True):
        u, who = w.copy(), np.flatnonzero(known_now)
        if len(who):
            u[who] = attention_by_hand(w[who], sigma, 2.0) @ w[who]
        w[cohort] -= 0.25 * (w[cohort] - c[cohort, None] + 1.5 * (w[cohort] - u[cohort]))
        known_now[cohort] = True
        np.testing.assert_allclose(biases(now), w, rtol=1e-5, atol=1e-5)


def test_two_clients_of_fedamp_end_where_attraction_and_loss_balance():
    """a (w_i - c_i) + lam / sigma exp(-||w_1 - w_2||^2 / sigma) (w_i - w_j) = 0, for ten equal coordinates."""
    lam, sigma = 300.0, 200.0
    method = QuadraticAMP(lam=lam, step=150.0, sigma=sigma)
    d = brentq(lambda d: d - 4 + 2 * lam / sigma * np.exp(-10 * d**2 / sigma) * d, 0.0, 4.0)
    assert 1.0 < d < 3.0
    w = biases(quadratic(method, 70)[-1])
    np.testing.assert_allclose(w, np.array([[3 - d / 2], [3 + d / 2]]) * np.ones(10), rtol=1e-4)


@pytest.mark.parametrize("sigma", [None, 10.0])
def test_on_a_short_leash_each_model_is_its_own_combination(sigma: float | None):
    """One step at lr = 1 / (a + lam) is the exact minimum (a c_i + lam u_i) / (a + lam), which tends to u_i."""
    lam = 1.0e4
    method = QuadraticAMP(lam=lam, sigma=sigma)
    before, after = quadratic(method, 2, lr=1 / (1 + lam))
    for i, c in enumerate((1.0, 5.0)):
        u = method.broadcast(before.server, i, {})["head.bias"]
        torch.testing.assert_close(after.memories[i]["head.bias"], (c + lam * u) / (1 + lam))
        assert (after.memories[i]["head.bias"] - u).abs().max() < 1e-3


def test_attention_of_three_models():
    apart = torch.tensor([[0.0, 1.0, 4.0], [1.0, 0.0, 4.0], [4.0, 4.0, 0.0]], dtype=torch.float64)
    near, far = np.exp(-1 / 3) / 3, np.exp(-4 / 3) / 3
    own = [1 - near - far, 1 - near - far, 1 - 2 * far]
    expected = torch.tensor([[own[0], near, far], [near, own[1], far], [far, far, own[2]]], dtype=torch.float64)
    torch.testing.assert_close(attention(apart, None, 1.0), expected)
    torch.testing.assert_close(attention(7.5 * apart, None, 3.0), expected)
    given_sigma = attention(apart, 2.0, 0.8)
    assert given_sigma[0].tolist() == pytest.approx(
        [1 - 0.4 * (np.exp(-0.5) + np.exp(-2)), 0.4 * np.exp(-0.5), 0.4 * np.exp(-2)]
    )
    assert attention(0 * apart, None, 1.0).tolist() == pytest.approx(np.full((3, 3), 1 / 3))
    torch.testing.assert_close(attention(apart, 1e-9, 1e-10), torch.eye(3, dtype=torch.float64))
    assert attention(apart[:1, :1], None, 1.0).tolist() == [[1.0]]


def test_a_step_that_could_turn_a_clients_own_weight_negative_is_refused():
    fed = tiny.federation((20, 20, 20))
    with pytest.raises(FedlibError, match=r"FedAMP.step: 1.0 is above sigma / \(m - 1\) = 1.5 / 2, so that the weight"):
        tiny.train(FedAMP(sigma=1.5), fed, PLAN, LOCAL)
    assert tiny.train(FedAMP(sigma=2.0), fed, Plan(1, 0.05), LOCAL).server.round == 1


def test_distances_and_combinations_are_over_all_tensors(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("fedlib.methods.fedamp.PIECE", 4)
    draw = torch.Generator().manual_seed(0)
    states = [{"a": torch.randn(3, 5, generator=draw), "b": torch.randn(2, generator=draw)} for _ in range(3)]
    W = torch.stack([torch.cat([state["a"].flatten(), state["b"]]) for state in states]).double()
    torch.testing.assert_close(gram(states), W @ W.T)
    torch.testing.assert_close(squared_distances(states), torch.cdist(W, W).square())
    c = torch.tensor([0.5, 2.0, -1.5], dtype=torch.float64)
    torch.testing.assert_close(combined(states, c)["a"].flatten(), (c @ W)[:15].float())
