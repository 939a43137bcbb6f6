"""More clients and strangers, in pictures, read back from the axes."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from fedlib import plots
from fedlib.checks import FedlibError


def numbers() -> pd.DataFrame:
    """FEROMA at 10 and 100 clients in both panels; FedDrift at 10 alone, and without seconds."""
    rows = [
        ("accuracy (%)", "FEROMA", 100, 80.0, 78.0, 82.0),
        ("accuracy (%)", "FEROMA", 10, 90.0, 89.0, 91.0),
        ("accuracy (%)", "FedDrift", 10, 60.0, 50.0, 70.0),
        ("seconds", "FEROMA", 10, 2.0, 1.0, 3.0),
        ("seconds", "FEROMA", 100, 4.0, 3.0, 5.0),
    ]
    return pd.DataFrame(rows, columns=["panel", "method", "clients", "mean", "low", "high"]).assign(n=3)


def test_lines_run_over_the_numbers_of_clients_in_order():
    left, right = plots.client_scaling(numbers(), log=["seconds"]).axes
    feroma, drift = (container.lines[0] for container in left.containers)
    assert feroma.get_xydata().tolist() == [[10, 90], [100, 80]]
    assert drift.get_xydata().tolist() == [[10, 60]]
    assert [container.lines[0].get_xydata().tolist() for container in right.containers] == [[[10, 2], [100, 4]]]
    assert (left.get_yscale(), right.get_yscale(), left.get_xscale()) == ("linear", "log", "log")
    assert [text.get_text() for text in left.get_xticklabels()] == ["10", "100"]
    assert feroma.get_color() == right.containers[0].lines[0].get_color() != drift.get_color()


def test_each_number_stands_once():
    twice = pd.concat([numbers(), numbers().tail(1)])
    with pytest.raises(FedlibError, match="client_scaling: two rows have panel seconds, method FEROMA, clients 100"):
        plots.client_scaling(twice)


def strangers() -> pd.DataFrame:
    rows = [
        ("seen", 0, 1.0, 0.8, 0.6, 90.0, 60.0),
        ("seen", 1, 3.0, 0.1, 0.1, 80.0, 50.0),
        ("colour", 0, 2.0, 0.5, 0.1, 10.0, 40.0),
        ("colour", 1, 4.0, 0.1, 0.1, 20.0, 30.0),
    ]
    columns = ["kind", "seed", "distance", "leave one out", "fresh samples", "nearest", "mean"]
    return pd.DataFrame(rows, columns=columns).assign(severity="low")


def test_a_curve_its_two_rules_and_the_answers():
    left, right = plots.stranger_study(strangers(), 0.1).axes
    curve = next(line for line in left.lines if line.get_label() == "low: colour")
    assert curve.get_xydata().tolist() == [[0, 0], [0, 0.5], [0.5, 0.5], [0.5, 1.0], [1.0, 1.0]]
    points = [tuple(np.round(c.get_offsets(), 6)[0]) for c in left.collections if len(c.get_offsets())]
    assert points == [(0.5, 0.5), (0.5, 1.0)]
    drawn = {c.get_label(): c.lines[0].get_xdata().tolist() for c in right.containers}
    assert drawn == {"model of the nearest profile": [85.0, 15.0], "mean of all models": [55.0, 35.0]}
    assert [text.get_text() for text in right.get_yticklabels()] == ["low: seen", "low: colour"]


def test_a_missing_column_is_refused():
    with pytest.raises(FedlibError, match="stranger_study: the table has no column 'mean'"):
        plots.stranger_study(strangers().drop(columns="mean"), 0.1)
