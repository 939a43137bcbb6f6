"""The probe of FEROMA's mapping, on a small federation that drifts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tiny

from fedlib.analysis.mapping import mapping
from fedlib.data.drifting import Drifting, make_drifting
from fedlib.data.pool import Pool
from fedlib.engines import Serial
from fedlib.methods import make
from fedlib.metrics import Row
from fedlib.probes import load
from fedlib.rounds import Plan, Snapshot, federate
from fedlib.training import Local

T, W = 5, 2


def drifting() -> Drifting:
    """Four clients of images that are dark above, turned otherwise in each of five phases."""
    labels = np.arange(240) % 4
    images = np.zeros((240, 3, 8, 8), np.uint8) + 9 * labels[:, None, None, None].astype(np.uint8)
    images[:, :, 4:] += 120
    split = (np.arange(240) // 4 % 3 == 2).astype(np.uint8)
    pool = Pool("halves", images, labels, tuple("abcd"), split, labels)
    return make_drifting(pool, 4, {"name": "P(X)", "phases": 5}, T, 0)


def trained(method: Any, leaves: dict[int, int] | None = None) -> tuple[Snapshot, list[Snapshot]]:
    fed, plan = drifting(), Plan(T, 0.05, leaves=leaves or {}, evaluate_every=1, pooled=False)
    seen: list[Snapshot] = []
    local = Local(steps=2, batch_size=8, crop=False)
    after = lambda now: seen.append(Snapshot(now.server, list(now.memories)))  # noqa: E731
    now = federate(make(method), fed, tiny.task(fed, T), local, plan, Serial(), None, after, load(["mapping"]))
    return now, seen


def of_mapping(rows: list[Row]) -> list[Row]:
    return [row for row in rows if row.metric.startswith(("distance", "weight"))]


def test_rows_are_what_the_server_remembers_of_each_round_with_profiles_to_compare_with():
    now, seen = trained({"name": "FEROMA", "warmup": W})
    rows = of_mapping(now.history)
    assert sorted({row.round for row in rows}) == [4, 5]  # W + 2 on
    assert len(rows) == 2 * 2 * 4 * 4 and {row.moment for row in rows} == {"during_local"}
    for row in rows:
        name, j = row.metric.removesuffix("]").split("[")
        memory = seen[row.round - 1].server.memory
        assert row.value == float(memory["D" if name == "distance" else "w_bar"][row.client, int(j)])
    per_row = {(row.round, row.client): 0.0 for row in rows}
    for row in rows:
        per_row[row.round, row.client] += row.value * row.metric.startswith("weight")
    assert list(per_row.values()) == pytest.approx([1.0] * 8)


def test_who_is_not_there_has_no_row_and_who_was_not_there_no_column():
    now, _ = trained({"name": "FEROMA", "warmup": W}, leaves={3: 3})
    pairs = {(row.round, row.client, row.metric) for row in of_mapping(now.history)}
    assert {k for t, k, _ in pairs if t == 4} == {0, 1, 2} and (4, 0, "distance[3]") in pairs
    assert not [pair for pair in pairs if pair[0] == 5 and pair[2] == "distance[3]"]


def test_distances_are_those_of_any_weights():
    """What mapping_rows.weighed rests on: the profiles do not depend on what was made of earlier ones."""
    methods = ({}, {"threshold": 4.0}, {"temperature": "median"}, {"mapping": "inverse", "threshold": 0.0})
    found = []
    for changed in methods:
        rows = trained({"name": "FEROMA", "warmup": W} | changed)[0].history
        found.append([row for row in rows if row.metric.startswith("distance")])
        found[-1].sort()
    assert found[0] and all(one == found[0] for one in found[1:])
    weights = [
        [row.value for row in of_mapping(trained({"name": "FEROMA", "warmup": W} | c)[0].history)] for c in methods[:2]
    ]
    assert weights[0] != weights[1]


def test_a_method_without_a_mapping_has_no_rows():
    assert not of_mapping(trained("FedAvg")[0].history)
    assert load(["mapping"]) == [mapping]
