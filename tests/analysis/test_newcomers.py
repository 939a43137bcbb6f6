"""Clients that join late, on a schedule and numbers made by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import tiny

from fedlib.analysis import newcomers
from fedlib.checks import FedlibError
from fedlib.data.drift import Schedule
from fedlib.data.drifting import Drifting

MAIN = np.array([[0, 1], [0, 2], [1, 1], [0, 1], [2, 0]])  # clients x phases; rounds 1-2 and 3-6
JOINS = {3: 5, 2: 4, 4: 5}
FEDERATION = tiny.federation((10,) * 5)
DRIFTING = Drifting(
    "hand",
    FEDERATION.clients,
    FEDERATION.classes,
    FEDERATION.shape,
    pool=None,  # type: ignore[arg-type]
    rounds=6,
    course=Schedule(MAIN, MAIN, (0, 0)),
    stays=((), ()),
)


def table(seeds=(0,), adapted=True, label="FEROMA"):
    """personal@local of client k in round t of seed s: (10 k + t + 100 s) / 1000; adapted@local: 0.5 more."""
    rows = [
        (label, seed, metric, k, t, (10 * k + t + 100 * seed) / 1000 + more)
        for seed in seeds
        for metric, more in (("personal@local", 0.0), ("adapted@local", 0.5))[: 2 if adapted else 1]
        for k in range(-1, 5)
        for t in range(1, 7)
    ]
    return pd.DataFrame(rows, columns=["label", "seed", "metric", "client", "round", "value"])


def found(rows, line, newcomer):
    own = rows[(rows["line"] == line) & (rows["client"] == newcomer)]
    return {since: pytest.approx(value) for since, value in zip(own["since"], own["value"], strict=True)}


def test_peers_have_the_distribution_of_that_phase_and_were_there_before():
    assert newcomers.phase_rounds(DRIFTING, 5) == [3, 4, 5, 6] and newcomers.phase_rounds(DRIFTING, 1) == [1, 2]
    assert newcomers.peers(DRIFTING, JOINS, 3) == [0, 2]  # client 2 came in round 4
    assert newcomers.peers(DRIFTING, JOINS, 2) == [0]  # client 3 comes later
    assert newcomers.peers(DRIFTING, JOINS, 4) == []


def test_rounds_are_those_of_the_phase_and_local_work_starts_from_the_round_before():
    rows = newcomers.around(table(), {0: DRIFTING}, JOINS, ["label"])
    assert found(rows, "newcomer", 3) == {-2: 3.3, -1: 3.4, 0: 3.5, 1: 3.6}
    assert found(rows, "newcomer", 2) == {-1: 2.3, 0: 2.4, 1: 2.5, 2: 2.6}
    assert found(rows, "peers", 3) == {-2: 1.3, -1: 1.4, 0: 1.5, 1: 1.6}  # of clients 0 and 2
    assert found(rows, "peers", 4) == {}
    assert found(rows, "worked", 3) == {-1: 53.3, 0: 53.4}  # adapted in the round before, in this phase
    assert set(newcomers.around(table(adapted=False), {0: DRIFTING}, JOINS, ["label"])["line"]) == {"newcomer", "peers"}


def test_means_are_over_newcomers_and_only_of_rounds_that_all_of_them_have():
    rows = newcomers.around(table((0, 1)), {0: DRIFTING, 1: DRIFTING}, JOINS, ["label"])
    means = newcomers.by_seed(rows, ["label"]).set_index(["seed", "line", "since"])["value"].sort_index()
    assert means[0, "newcomer"].to_dict() == pytest.approx({-1: 10.1 / 3, 0: 10.4 / 3, 1: 10.7 / 3})
    assert means[1, "newcomer", 0] == pytest.approx(10 + 10.4 / 3)
    assert means[0, "peers", 0] == pytest.approx((1.5 + 0.4) / 2)
    assert means[0, "gap", 0] == pytest.approx((3.5 - 1.5 + 2.4 - 0.4) / 2)  # not of client 4, who has no peers


def test_without_any_peer_there_is_no_gap():
    rows = newcomers.around(table(), {0: DRIFTING}, {4: 5}, ["label"])
    assert set(newcomers.by_seed(rows, ["label"])["line"]) == {"newcomer", "worked"}


def test_joins_that_cannot_be_judged_are_refused():
    with pytest.raises(FedlibError, match=r"client 3 joins in round 3, the first of a phase.*let it join one round"):
        newcomers.around(table(), {0: DRIFTING}, {3: 3}, ["label"])
    some = table().query("round != 4")
    with pytest.raises(FedlibError, match="round 4 was not evaluated; set evaluate_every: 1"):
        newcomers.around(some, {0: DRIFTING}, JOINS, ["label"])
    with pytest.raises(FedlibError, match="federation 'still' does not drift; give drift"):
        newcomers.peers(replace(FEDERATION, name="still"), JOINS, 3)
