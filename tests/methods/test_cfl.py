"""CFL against all bipartitions, splits by hand, quadratics and planted groups."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import dataclass, replace

import numpy as np
import pytest
import tiny
import torch
from personal_tasks import DESCENT, grouped, planted, rows
from test_methods import Quadratic

from fedlib.methods.cfl import CFL, bipartition, cosines, norms
from fedlib.methods.fedavg import FedAvg
from fedlib.methods.method import Server, Upload, initial_state
from fedlib.methods.several import models
from fedlib.rounds import Plan, size


def sent_by(client: int, values: list[float], n: int, k: str = "") -> Upload:
    return Upload(client, {f"{k}w": torch.tensor(values)}, {}, n, {})


def test_the_bipartition_is_the_best_of_all():
    for seed in range(60):
        rng = np.random.default_rng(seed)
        n = 2 + seed % 6
        D = rng.normal(size=(n, 3)) + (seed % 3) * rng.normal(size=3)
        cosine = np.corrcoef(D) if seed % 2 else np.round((D @ D.T) / np.outer(*[np.linalg.norm(D, axis=1)] * 2), 1)
        best = min(
            cosine[np.ix_(part, [j for j in range(n) if j not in part])].max()
            for r in range(1, n)
            for part in map(list, itertools.combinations(range(n), r))
        )
        c1, c2 = bipartition(cosine)
        assert sorted(c1 + c2) == list(range(n)) and c1[0] == 0 and c2
        assert cosine[np.ix_(c1, c2)].max() == pytest.approx(best, abs=1e-12)


def test_norms_and_cosines_are_over_trained_parameters():
    theta = {"w": torch.tensor([1.0, 1.0]), "b": torch.tensor([0.0]), "n.running_mean": torch.tensor([0.0])}
    theta["n.num_batches_tracked"] = torch.tensor(0)
    ends = [([4.0, 1.0], [4.0], 50.0), ([1.0, 1.0], [-5.0], 80.0), ([1.0, 1.0], [0.0], 9.0)]
    members = [
        Upload(i, {"w": torch.tensor(w), "b": torch.tensor(b), "n.running_mean": torch.tensor([s])}, {}, 1, {})
        for i, (w, b, s) in enumerate(ends)
    ]  # D = (3, 0, 4), (0, 0, -5), 0
    mean, largest = norms(theta, members, [2.0, 1.0, 1.0])
    assert mean == pytest.approx(math.hypot(6 / 4, 3 / 4)) and largest == 5.0
    np.testing.assert_allclose(cosines(theta, members), [[1, -0.8, 0], [-0.8, 1, 0], [0, 0, 0]], atol=1e-12)


def after(method: CFL, sent: list[Upload], membership: list[int], theta: list[list[float]]) -> Server:
    weights = {f"{k}/w": torch.tensor(value) for k, value in enumerate(theta)}
    return method.aggregate(Server(weights, 4, {"membership": torch.tensor(membership)}), sent)


def test_a_split_by_hand_with_absent_clients_in_any_order():
    """Clients 1, 3 pull against 4, 5, 6; 0 and 2 are absent: they stay where more are. Cluster 1 does not see it."""
    ends = {1: [-3.0, 0.0], 3: [-3.0, 0.3], 4: [2.0, 0.0], 5: [2.0, 0.1], 6: [2.1, 0.0], 7: [8.0, 9.0]}
    n = {1: 10, 3: 10, 4: 10, 5: 10, 6: 10, 7: 99}
    sent, before = [sent_by(i, w, n[i]) for i, w in ends.items()], [0] * 7 + [1]
    server = after(CFL(eps1=0.2, eps2=2.9), sent, before, [[0.0, 0.0], [8.0, 8.0]])
    assert server.memory["membership"].tolist() == [0, 2, 0, 2, 0, 0, 0, 1] and server.round == 5
    served = [w["w"].tolist() for w in CFL().served(server)]  # to clients that are unknown: every cluster's model
    assert served == [w["w"].tolist() for w in models(server.weights)] and len(served) == 3
    theta = torch.stack([w["w"] for w in models(server.weights)])
    torch.testing.assert_close(theta, torch.tensor([[6.1 / 3, 0.1 / 3], [8.0, 9.0], [-3.0, 0.15]]))
    for seed in range(3):
        shuffled = random.Random(seed).sample(sent, len(sent))
        other = after(CFL(eps1=0.2, eps2=2.9), shuffled, before, [[0.0, 0.0], [8.0, 8.0]])
        assert tiny.same(other.weights, server.weights) and tiny.same(other.memory, server.memory)


@pytest.mark.parametrize(
    ("options", "splits"),
    [
        ({"eps1": 1.03, "eps2": 1.0}, True),
        ({"eps1": 1.01, "eps2": 1.0}, False),
        ({"eps1": 1.03, "eps2": 3.0}, False),
        ({"eps1": 1.03, "eps2": 1.0, "gamma_max": 0.707}, True),
        ({"eps1": 1.03, "eps2": 1.0, "gamma_max": 0.708}, False),
    ],
)
def test_when_a_cluster_is_split(options: dict[str, float], splits: bool):
    """D = (0, 0.3), (3, 0) and (0, 0.3) weigh the same: the mean (1, 0.2) is 1.0198 long; across, the cosine is 0."""
    sent = [sent_by(i, [3.0, 0.0] if i == 1 else [0.0, 0.3], 7) for i in range(3)]
    server = after(CFL(**options), sent, [0, 0, 0], [[0.0, 0.0]])
    assert server.memory["membership"].tolist() == ([0, 1, 0] if splits else [0, 0, 0])


def test_relative_thresholds_are_fractions_of_the_first_round_s_norms_over_all_clients():
    """Round 1: D = (3, 0) and (1, 0), norms 2 and 3, no split at a mean of exactly the threshold or above. Round 2:
    (1, 0) and (-1, 0), mean 0; the largest, 1, is above 0.3 of 3, not above 0.4 of it. Round 2's norms set nothing."""
    for eps2, splits in ((0.3, True), (0.4, False)):
        method = CFL(eps1=0.5, eps2=eps2, relative=True)
        start = Server({"0/w": torch.zeros(2)}, 0, {"membership": torch.tensor([0, 0]), "first_norms": torch.zeros(2)})
        first = method.aggregate(start, [sent_by(0, [3.0, 0.0], 5), sent_by(1, [1.0, 0.0], 5)])
        assert first.memory["first_norms"].tolist() == [2.0, 3.0] and first.memory["membership"].tolist() == [0, 0]
        second = method.aggregate(first, [sent_by(0, [3.0, 0.0], 5), sent_by(1, [1.0, 0.0], 5)])
        assert second.memory["first_norms"].tolist() == [2.0, 3.0]
        assert second.memory["membership"].tolist() == ([0, 1] if splits else [0, 0])


@dataclass(frozen=True)
class CFLOnQuadratics(CFL, Quadratic):
    """||w - c_i||^2 / 2, split by CFL."""


def test_cfl_splits_three_groups_twice_when_it_must_and_then_finds_each_optimum():
    """With E = 1 the mean update in round t is lr (1 - lr)^(t - 1) || w_0 - mean c || long: it falls below eps1 in a
    known round. 12 leaves first, then 4 leaves 0; both know only their sizes' means."""
    centres, lr, eps1 = (0.0, 4.0, 12.0, 0.0, 4.5, 12.0), 0.25, 0.1
    fed = tiny.federation((20, 20, 20, 20, 60, 20), side=1)
    method = CFLOnQuadratics(eps1=eps1, eps2=0.5, centres=centres, curvatures=(1.0,) * 6)
    start = initial_state(FedAvg(), tiny.task(fed, model="linear"))[1].weights["head.bias"]
    mean = sum(n * c for n, c in zip(fed.sizes, centres, strict=True)) / sum(fed.sizes)
    first = next(t for t in itertools.count(1) if lr * (1 - lr) ** (t - 1) * float((start - mean).norm()) < eps1)
    seen: list[Server] = []
    plan = Plan(64, lr, schedule="constant", evaluate_every=64)
    tiny.train(method, fed, plan, DESCENT, model="linear", after_round=lambda now: seen.append(now.server))
    counts = [len(models(server.weights)) for server in seen]
    assert counts[: first - 1] == [1] * (first - 1) and counts[first - 1] == 2 and counts[-1] == 3
    assert seen[first].memory["membership"].tolist() == [0, 0, 1, 0, 0, 1]
    assert seen[-1].memory["membership"].tolist() == [0, 2, 1, 0, 2, 1]
    ends = [theta["head.bias"] for theta in models(seen[-1].weights)]
    for end, value in zip(ends, (0.0, 12.0, (20 * 4.0 + 60 * 4.5) / 80), strict=True):
        torch.testing.assert_close(end, torch.full((10,), value), atol=1e-4, rtol=1e-4)


def test_cfl_finds_the_planted_groups_and_sends_each_client_its_model_alone():
    fed, method = planted(), CFL(eps1=0.1, eps2=0.3)
    now = tiny.train(method, fed, Plan(20, 0.5, schedule="constant"), replace(DESCENT, steps=5), model="linear")
    membership, theta = now.server.memory["membership"].tolist(), models(now.server.weights)
    assert grouped(membership) and len(theta) == 2
    assert all(tiny.same(method.personal_model(now.server, i, {}), theta[k]) for i, k in enumerate(membership))
    assert set(rows(now, "bytes_down", "bytes_up")) == {6 * size(theta[0])}
    assert rows(now, "worst@local")[-1] > 0.7
