"""The weighted mean, for any uploads in any order."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedlib.methods.method import Method, Server, Upload
from fedlib.methods.method import weighted_mean as mean


def uploads(values: list[Tensor], sizes: list[int]) -> list[Upload]:
    return [Upload(i, {"w": v}, {}, n, {}) for i, (v, n) in enumerate(zip(values, sizes, strict=True))]


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 10_000), st.floats(-1e3, 1e3, width=32)), min_size=1, max_size=12),
    st.randoms(use_true_random=False),
)
def test_weighted_mean_is_the_weighted_mean_in_any_order(clients: list[tuple[int, float]], random):
    sizes, values = [n for n, _ in clients], [torch.full((2, 3), v) for _, v in clients]
    exact = math.fsum(n * v for n, v in clients) / sum(sizes)
    got = mean({"w": torch.zeros(2, 3)}, uploads(values, sizes))["w"]
    assert got.dtype == torch.float32
    assert got[0, 0].item() == pytest.approx(exact, rel=1e-6, abs=1e-4)
    assert min(v for _, v in clients) <= got[0, 0].item() <= max(v for _, v in clients)
    shuffled = uploads(values, sizes)
    random.shuffle(shuffled)
    torch.testing.assert_close(mean({"w": torch.zeros(2, 3)}, shuffled)["w"], got, rtol=1e-7, atol=1e-7)


@settings(max_examples=40, deadline=None)
@given(st.floats(-(2.0**100), 2.0**100, width=32), st.lists(st.integers(1, 10_000), min_size=1, max_size=20))
def test_the_mean_of_equal_weights_is_exactly_these_weights(value: float, sizes: list[int]):
    same = torch.full((3,), value)
    assert torch.equal(mean({"w": torch.zeros(3)}, uploads([same] * len(sizes), sizes))["w"], same)


def test_what_no_client_sends_stays_and_whole_numbers_stay_whole():
    start = {"w": torch.ones(2), "kept": torch.ones(2), "count": torch.tensor(0)}
    sent = [Upload(i, {"w": torch.full((2,), 3.0), "count": torch.tensor(4)}, {}, 5, {}) for i in (0, 1)]
    got = mean(start, sent)
    assert got["w"].tolist() == [3.0, 3.0] and got["kept"].tolist() == [1.0, 1.0]
    assert got["count"].item() == 4 and got["count"].dtype == torch.int64
    assert Method().aggregate(Server(start, 6), sent).round == 7


def test_another_weight_may_be_given():
    sent = [
        Upload(i, {"w": torch.full((1,), v)}, {}, 5, {}, {"p": torch.tensor(p)})
        for i, (v, p) in enumerate([(1.0, 3.0), (5.0, 1.0)])
    ]
    assert mean({"w": torch.zeros(1)}, sent, lambda upload: float(upload.extra["p"]))["w"].item() == 2.0


def test_whole_numbers_are_rounded_and_not_cut_off_where_weights_are_fractions():
    sent = [
        Upload(i, {"count": torch.tensor(7)}, {}, 1, {}, {"p": torch.tensor(p)}) for i, p in enumerate((0.01, 0.12))
    ]
    assert (0.01 * 7 + 0.12 * 7) / (0.01 + 0.12) < 7  # in float64: cut off, it would be 6
    assert mean({"count": torch.tensor(0)}, sent, lambda upload: float(upload.extra["p"]))["count"].item() == 7


def test_a_method_s_weight_is_that_of_its_mean():
    class Third(Method):
        def weight(self, server: Server, upload: Upload) -> float:
            return 3.0 if upload.client == server.round else 1.0

    sent = [Upload(i, {"w": torch.tensor([v])}, {}, 5, {}) for i, v in enumerate((1.0, 5.0))]
    assert Third().aggregate(Server({"w": torch.zeros(1)}, 1), sent).weights["w"].item() == 4.0
