"""Trajectories against tables written by hand."""

from __future__ import annotations

import pandas as pd
import pytest

from fedlib import trajectories as t
from fedlib.checks import FedlibError

A = [0.1, 0.5, 0.3]
B = [0.4, 0.2, 0.2]


def table() -> pd.DataFrame:
    """Two domains over rounds 2, 4, 6; seed 1 is seed 0 plus 0.1."""
    rows = []
    for seed in (0, 1):
        for i, (a, b) in enumerate(zip(A, B, strict=True)):
            values = {"domain@central[a]": a, "domain@central[b]": b, "domain@central": (a + b) / 2}
            shifted = {metric: value + 0.1 * seed for metric, value in values.items()}
            shifted["train_loss[cosine]"] = 0.9 - 0.2 * i
            rows += [
                {"key": f"k{seed}", "seed": seed, "round": 2 * i + 2, "metric": m, "client": -1, "value": v}
                for m, v in shifted.items()
            ]
    return pd.DataFrame(rows)


def test_the_first_round_at_a_level():
    found = t.first_reached(table(), "domain@central", {0: 30.0, 1: 36.0})
    assert found.to_dict() == {0: 4, 1: 4}
    never = t.first_reached(table(), "domain@central", {0: 25.0, 1: 99.0})
    assert never.to_dict() == {0: 2, 1: 7}


def test_the_gain_of_picking_rounds_on_the_test_set():
    """Seed 0: mean of the maxima (50 + 40) / 2 = 45, last average 25; seed 1 is the same, 10 points higher."""
    assert t.test_selected_gain(table()).tolist() == pytest.approx([20.0, 20.0])


def test_the_change_of_a_training_term_is_not_in_percent():
    assert t.change(table(), "train_loss[cosine]").tolist() == pytest.approx([-0.4, -0.4])
    assert t.last_value(table(), "domain@central").tolist() == pytest.approx([25.0, 35.0])


def test_what_is_missing_is_named():
    whole = table()
    with pytest.raises(FedlibError, match=r"seed 1 has no level; give one for each of \[0, 1\]"):
        t.first_reached(whole, "domain@central", {0: 30.0})
    with pytest.raises(FedlibError, match="two runs of one seed"):
        t.over_rounds(pd.concat([whole, whole.assign(key="other")]), "domain@central")
    gap = whole[~((whole["seed"] == 1) & (whole["round"] == 4))]
    with pytest.raises(FedlibError, match="a seed lacks domain@central in a round"):
        t.over_rounds(gap, "domain@central")
    with pytest.raises(FedlibError, match="run with test_share"):
        t.test_selected_gain(whole[whole["metric"] == "train_loss[cosine]"])
