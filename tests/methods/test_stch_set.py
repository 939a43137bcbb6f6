"""FedFew's pure functions against the specification's vectors, finite differences and limits."""

from __future__ import annotations

import math
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from personal_tasks import A, near
from torch import Tensor

from fedlib.methods.fedfew import moved, scaled, stch_set

B = torch.tensor([[0.2, 0.8, 0.5], [0.9, 0.3, 0.6], [0.7, 0.7, 0.7], [0.1, 0.4, 1.0]], dtype=torch.float64)
THIRD = [1 / 3] * 3
VECTORS: list[tuple[Tensor, float, float, list[float], list[list[float]], list[float]]] = [
    (A, 0.1, 1.069310, [0.5, 0.5], [[0.999955, 0.000045], [0.000045, 0.999955]], [0.5, 0.5]),
    (A, 1.0, 1.379885, [0.5, 0.5], [[0.731059, 0.268941], [0.268941, 0.731059]], [0.5, 0.5]),
    (B, 0.01, 0.689014, [0, 0, 1, 0], [[1, 0, 0], [0, 1, 0], THIRD, [1, 0, 0]], THIRD),
    (
        B,
        0.1,
        0.597697,
        [0.017811, 0.048417, 0.927205, 0.006567],
        [[0.950330, 0.002356, 0.047314], [0.002356, 0.950330, 0.047314], THIRD, [0.952462, 0.047420, 0.000118]],
        [0.332364, 0.355433, 0.312203],
    ),
    (
        B,
        1.0,
        0.836777,
        [0.231039, 0.255338, 0.290722, 0.222901],
        [[0.436752, 0.239694, 0.323554], [0.239694, 0.436752, 0.323554], THIRD, [0.465682, 0.344986, 0.189332]],
        [0.362818, 0.340703, 0.296479],
    ),
]
losses = st.lists(st.lists(st.floats(0, 20), min_size=3, max_size=3), min_size=1, max_size=6)


@pytest.mark.parametrize(("L", "smoothing", "g", "outer", "inner", "mass"), VECTORS)
def test_the_vectors_of_the_specification(L: Tensor, smoothing: float, g: float, outer, inner, mass):
    now = stch_set(L, smoothing)
    atol = 1e-3 if smoothing == 0.01 else 1e-6  # there, the specification says about
    near(now.objective, g)
    for got, expected in ((now.outer, outer), (now.inner, inner), (now.mass, mass)):
        near(got, expected, atol)
    near(now.shares * now.mass, now.outer[:, None] * now.inner, 1e-12)
    near(now.shares.sum(0), torch.ones(L.shape[1]), 1e-12)


def g_by_hand(L: list[list[float]], smoothing: float) -> float:
    """Eq 1 as it is written."""
    return smoothing * math.log(sum(1 / sum(math.exp(-value / smoothing) for value in row) for row in L))


def test_the_weights_are_the_slopes_of_the_objective():
    """By finite differences of Eq 1 itself, and by autograd through the log space."""
    for L, smoothing in product((A, B), (0.1, 0.7)):
        now, h = stch_set(L, smoothing), 1e-5
        for i, k in product(*map(range, L.shape)):
            up, down = L.clone(), L.clone()
            up[i, k] += h
            down[i, k] -= h
            slope = (g_by_hand(up.tolist(), smoothing) - g_by_hand(down.tolist(), smoothing)) / (2 * h)
            assert float(now.outer[i] * now.inner[i, k]) == pytest.approx(slope, abs=1e-7)
        free = L.clone().requires_grad_()
        (slopes,) = torch.autograd.grad(stch_set(free, smoothing).objective, free)
        near(slopes, now.outer[:, None] * now.inner, 1e-12)


@settings(max_examples=100, deadline=None)
@given(losses, st.floats(1e-3, 10))
def test_the_objective_lies_between_its_bounds_and_weights_are_shares(rows: list[list[float]], smoothing: float):
    L = torch.tensor(rows, dtype=torch.float64)
    now, hard = stch_set(L, smoothing), max(min(row) for row in rows)
    assert hard - smoothing * math.log(3) - 1e-9 <= float(now.objective) <= hard + smoothing * math.log(len(L)) + 1e-9
    for shares in (now.outer, now.mass, *now.inner, *now.shares.T):
        assert float(shares.min()) >= 0 and float(shares.sum()) == pytest.approx(1, abs=1e-9)


def test_large_losses_do_not_overflow():
    """The best losses are 800 and 800.0005: half a unit of smoothing apart."""
    now = stch_set(torch.tensor([[800.0, 900.0], [850.0, 800.0005]], dtype=torch.float64), 0.001)
    near(now.inner, [[1, 0], [0, 1]], 1e-12)
    e = math.exp(0.5)
    near(now.outer, [1 / (1 + e), e / (1 + e)], 1e-7)
    near(now.objective, 800 + 0.001 * math.log(1 + e), 1e-9)
    extreme = stch_set(torch.tensor([[0.0, 900.0], [0.0, 900.0]]), 0.001)
    near(extreme.mass, [1, 0], 0)
    near(extreme.shares, [[0.5, 0.5]] * 2, 1e-9)


def test_the_limits_of_smoothing():
    """To 0: max of min, all on one client and its best model; to infinity: equal weights."""
    L = torch.tensor([[0.2, 0.8, 0.5], [0.9, 0.3, 0.6], [0.1, 0.4, 1.0]], dtype=torch.float64)
    hard, soft = stch_set(L, 1e-6), stch_set(L, 1e9)
    near(hard.objective, 0.3, 1e-9)
    near(hard.outer, [0, 1, 0], 0)
    near(hard.inner, [[1, 0, 0], [0, 1, 0], [1, 0, 0]], 0)
    near(soft.outer, THIRD, 1e-8)
    near(soft.inner, [THIRD] * 3, 1e-8)


def test_one_participant_and_ties():
    lone = stch_set(torch.tensor([[0.4, 0.4, 1.4]], dtype=torch.float64), 0.5)
    e = math.exp(-2)
    near(lone.outer, [1.0], 0)
    near(lone.inner, [[1 / (2 + e), 1 / (2 + e), e / (2 + e)]], 1e-12)
    assert lone.inner[0, 0] == lone.inner[0, 1]
    near(stch_set(torch.full((4, 3), 0.7), 0.01).shares, torch.full((4, 3), 0.25), 1e-12)


def test_unequal_sizes_in_the_exponent_are_those_of_the_specification():
    """Its 1.7: six centres; shares in the exponent give the largest almost everything."""
    n = torch.tensor([12413.0, 3954.0, 3363.0, 2259.0, 819.0, 439.0])
    for L, outer in (
        ([0.1] * 6, [0.933, 0.025, 0.019, 0.012, 0.006, 0.005]),
        ([0.3, 0.6, 0.9, 0.9, 1.2, 1.5], [0.949, 0.003, 0.047, 0.0007, 0, 0]),
    ):
        rows = torch.tensor(L, dtype=torch.float64)[:, None].expand(6, 3)
        near(stch_set(scaled(rows, n, "share"), 0.01).outer, outer, 6e-4)
        near(scaled(rows, n, "m_share"), 6 * scaled(rows, n, "share"), 1e-12)
        assert scaled(rows, n, "raw") is rows
    equal, L = torch.full((20,), 7.0), torch.rand(20, 3, dtype=torch.float64)
    near(stch_set(scaled(L, equal, "share"), 0.01).outer, stch_set(L, 0.2).outer, 1e-12)
    near(scaled(L, equal, "m_share"), L, 1e-12)


def test_whole_numbers_stay_whole_and_are_rounded():
    got = moved(torch.tensor(7), [torch.tensor(10), torch.tensor(12)], [0.5, 0.4])
    assert got.item() == 10 and got.dtype == torch.int64  # 7 + 1.5 + 2.0 = 10.5, to the even one
