"""Numbers over clients against tables written by hand."""

from __future__ import annotations

import math

import pandas as pd
import pytest

from fedlib import client_rows, summary
from fedlib.checks import FedlibError

ACCURACIES = {0: [0.2, 0.6, 0.7], 1: [0.5, 0.5, 0.5]}  # by seed
OUTER = {0: [0.7, 0.2, 0.1], 1: [0.1, 0.3, 0.6]}


def table() -> pd.DataFrame:
    """Two runs of three clients; in round 2 every weight is other than in the last one, round 4."""
    rows = []
    for seed in (0, 1):
        for i in range(3):
            rows += [(seed, 4, "personal@local", i, ACCURACIES[seed][i]), (seed, 2, "personal@local", i, 0.1 * i)]
            rows += [(seed, 4, "outer", i, OUTER[seed][i]), (seed, 2, "outer", i, 1 / 3)]
        rows += [(seed, 4, "train_loss[target]", -1, 0.01), (seed, 4, "personal@local", -1, 0.55)]
    found = pd.DataFrame(rows, columns=["seed", "round", "metric", "client", "value"])
    return found.assign(key="k" + found["seed"].astype(str), K=2, lam=math.nan)


def test_numbers_over_clients_stand_beside_the_others():
    """Seed 0: mean 0.5, squared distances 0.09 + 0.01 + 0.04, a third of which is 0.14 / 3."""
    std = client_rows.over_clients(table(), "personal@local", "std")
    assert set(std["metric"]) == {"std of personal@local"} and set(std["client"]) == {-1}
    last = std[std["round"] == 4].set_index("seed")["value"]
    assert last.tolist() == pytest.approx([math.sqrt(0.14 / 3), 0.0])
    both = pd.concat([table(), std, client_rows.over_clients(table(), "personal@local", "min")])
    final = summary.final(both)
    assert final.query("metric == 'min of personal@local'")["value"].tolist() == pytest.approx([20.0, 50.0])
    assert final.query("metric == 'personal@local'")["value"].tolist() == pytest.approx([55.0, 55.0])


def test_a_run_in_two_groups_stays_in_two_groups():
    twice = pd.concat([table().assign(step="plain"), table().assign(step="normalised")])
    found = client_rows.over_clients(twice, "outer", "max").query("round == 4")
    assert found.groupby("step")["value"].apply(list).to_dict() == {"plain": [0.7, 0.6], "normalised": [0.7, 0.6]}


def test_what_is_missing_is_named():
    with pytest.raises(FedlibError, match=r"kind.*median"):
        client_rows.over_clients(table(), "outer", "median")
    with pytest.raises(FedlibError, match=r"metric.*train_loss"):
        client_rows.over_clients(table(), "train_loss[target]", "std")
