"""Noise of private profiles and what it does to matches, where both are known otherwise."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny import experiment

from fedlib import privacy
from fedlib.analysis.private_profiles import Kept, budgets, curves, kept, match_rate, releases, typical_distance
from fedlib.checks import FedlibError
from fedlib.methods.fedavg import FedAvg
from fedlib.methods.feroma import FEROMA
from fedlib.profiles import Projection, marginals, statistics
from fedlib.runs import run

ELL, U = 2, 2
CENTRES = torch.tensor([[-0.5, 0.0], [0.5, 0.0], [0.5, 0.2]], dtype=torch.float64)
"""Of three clients, and of three visitors; the last two have one distribution."""


def held(spread: float = 0.1) -> Kept:
    draw = torch.Generator().manual_seed(0)

    def around(centre: torch.Tensor, n: int) -> torch.Tensor:
        return (centre + spread * torch.randn(n, ELL, generator=draw, dtype=torch.float64)).clamp(-1, 1)

    one = torch.ones(ELL, dtype=torch.float64)
    box = Projection(torch.eye(ELL, dtype=torch.float64), 0 * one, -one, one)
    labels = (torch.arange(20) % U,) * 3
    clients, visitors = (tuple(around(c, 20) for c in CENTRES) for _ in range(2))
    return Kept(clients, labels, visitors, torch.tensor([3, 8, 8]), torch.tensor([3, 8, 3]), box, U, False)


def value(table, mechanism, metric, **which):
    rows = table[(table["mechanism"] == mechanism) & (table["metric"] == metric)]
    for column, wanted in which.items():
        rows = rows[rows[column] == wanted]
    return rows["value"].item()


def test_without_noise_there_is_no_error_and_chance_is_the_share_of_pairs():
    table = curves(held(), [], [], [1, 4], 2, 0)
    assert sorted(table["samples"].unique()) == [20, 80]
    assert value(table, "none", "error", samples=20) == 0
    assert value(table, "none", "match", samples=80) == pytest.approx(200 / 3)  # the third visitor is not where it was
    assert value(table, "none", "chance", samples=20) == pytest.approx(100 * (1 + 2 + 1) / 9)


def test_signal_is_the_median_distance_of_clients_that_differ():
    d = torch.tensor([[0.0, 0.0], [3.0, 4.0], [0.0, 7.0]])
    assert typical_distance(held(), d) == 5  # of 5 and 7, the lower; that of clients 1 and 2 is no part of it
    alike = replace(held(), drawn=torch.tensor([1, 1, 1]))
    with pytest.raises(FedlibError, match="all clients have one distribution"):
        typical_distance(alike, d)


@pytest.mark.parametrize("mechanism", ["gaussian", "analytic", "laplace"])
def test_sound_noise_vanishes_with_epsilon_and_with_samples(mechanism):
    table = curves(held(), [mechanism], [1.0, 1e9], [1, 400], 3, 0)
    assert value(table, mechanism, "error", epsilon=1e9, samples=20) < 0.02
    assert value(table, mechanism, "match", epsilon=1e9, samples=20) == pytest.approx(200 / 3)
    few, many = (value(table, mechanism, "error", epsilon=1.0, samples=n) for n in (20, 8000))
    assert few > 0.5 and many < few / 5


def test_the_released_noise_is_the_range_over_n_and_epsilon():
    """Each of 2 l numbers moves by Laplace noise of scale 2 / (n epsilon): the box spans -1 to 1, and holds z."""
    own = held()
    table = curves(own, ["as released"], [0.5], [1, 10], 300, 0)
    signal = typical_distance(own, torch.stack([marginals(g) for g in own.clients]))
    noise = np.random.default_rng(0).laplace(scale=2 / (20 * 0.5), size=(20_000, 2 * ELL))
    expected = np.linalg.norm(noise, axis=1).mean() / signal
    assert value(table, "as released", "error", samples=20) == pytest.approx(expected, rel=0.05)
    assert value(table, "as released", "error", samples=200) == pytest.approx(expected / 10, rel=0.05)


def test_the_same_draws_again_and_others_with_another_seed():
    one, two, other = (curves(held(), ["laplace"], [1.0], [1], 2, seed)["value"] for seed in (0, 0, 1))
    assert one.equals(two) and not one.equals(other)
    with pytest.raises(FedlibError, match="curves: mechanism"):
        curves(held(), ["paper"], [1.0], [1], 2, 0)


def test_matches_are_by_scaled_label_free_parts():
    """The second coordinate has the wider range, so that a scaler for each coordinate, not group, would match 1."""
    own = held()
    d = torch.stack([statistics(g, y, U) for g, y in zip(own.clients, own.labels, strict=True)])
    d[:, : 2 * ELL] = torch.tensor([[0.0, 0.0, 0, 0], [0.0, 1.0, 0, 0], [1.0, 0.0, 0, 0]])
    theirs = torch.tensor([[0.1, 0.2, 0, 0], [0.2, 0.9, 0, 0], [0.4, 0.6, 0, 0]], dtype=torch.float64)
    assert match_rate(d.double(), theirs, own) == pytest.approx(2 / 3)  # clients 0, 1, 1
    theirs[2] = torch.tensor([0.3, 0.2, 0, 0])
    assert match_rate(d.double(), theirs, own) == 1  # clients 0, 1, 0


def drifting(method=None, **settings):
    drift = {"name": "P(X)", "severity": "low", "phases": 2, "phase_samples": 40}
    settings = {"rounds": 4, "validation_share": 0.3, "samples": 400, "steps": 1} | settings
    return experiment(method or FEROMA(warmup=1), drift=drift, clients=3, **settings)


def test_what_a_run_leaves(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDLIB_RUNS", str(tmp_path))
    own = drifting()
    finished = run(own)
    found = kept(finished)
    here = own.federation().at(4)
    assert found.drawn.tolist() == [c.distribution for c in here.clients] and found.n == 12
    assert found.asked.tolist() == [v.distribution for v in here.visitors]
    assert [len(g) for g in found.visitors] == [12] * 3 and found.classes == 10
    exact = FEROMA(warmup=1, samplings=0)
    z = torch.linalg.lstsq(found.projection.axes, found.clients[1].T).solution.T + found.projection.centre
    d = exact.profile(finished.snapshot().server, z, here.clients[1].validation.labels, torch.Generator())
    torch.testing.assert_close(statistics(found.clients[1], found.labels[1], 10).float(), d)
    with pytest.raises(FedlibError, match="kept: round 4 has no profiles yet"):
        kept(replace(finished, experiment=drifting(FEROMA(warmup=4), rounds=6)))
    with pytest.raises(FedlibError, match="kept: a run of FedAvg"):
        kept(replace(finished, experiment=drifting(FedAvg())))


def test_releases_of_a_client():
    assert releases(drifting(FEROMA(warmup=2), rounds=9)) == {"one phase": 6, "all rounds": 7}  # phases start at 1, 4
    with pytest.raises(FedlibError, match="releases: a run of FedAvg"):
        releases(drifting(FedAvg()))


def test_budgets_are_the_accountant_s():
    table = budgets([1.0, 10.0], 50, 3, {"one phase": 2, "all rounds": 9}, ["gaussian", "laplace"])
    gaussian, laplace = (table[table["noise"] == noise].set_index("ε, one round") for noise in ("gaussian", "laplace"))
    assert laplace["ε, all rounds"].tolist() == [9, 90] and laplace["δ"].tolist() == [0, 0]
    assert gaussian["ε, one phase"][10.0] == pytest.approx(privacy.composed(10.0, 1 / 2500, 2, "gaussian")[0])
    assert gaussian["δ"][1.0] == 1 / 2500
    sigma = math.sqrt(8) / 50 * math.sqrt(2 * math.log(1.25 * 2500))
    assert gaussian["deviation"][1.0] == pytest.approx(sigma)
    assert laplace["deviation"][10.0] == pytest.approx(math.sqrt(2) * (2 * math.sqrt(3) + 4) / 50 / 10)
