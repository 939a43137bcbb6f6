"""The figures of visitors and newcomers draw what they are given: read back from the axes."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import PathCollection
from matplotlib.colors import to_rgb

from fedlib import plots
from fedlib.checks import FedlibError
from fedlib.plots.strangers import WORDS
from fedlib.style import colours

NUMBERS = pd.DataFrame(
    [
        ("match", "P(X)", "FEROMA", 90.0, 80.0, 100.0, 3),
        ("match", "P(X)", "by lot", 30.0, 20.0, 40.0, 3),
        ("match", "P(Y|X)", "FEROMA", 31.0, 10.0, 52.0, 5),
        ("accuracy", "P(X)", "FEROMA", 70.0, 60.0, 80.0, 3),
        ("accuracy", "P(X)", "FedAvg", 60.0, math.nan, math.nan, 1),
    ],
    columns=["panel", "setting", "who", "mean", "low", "high", "n"],
)
PAIRS = pd.DataFrame(
    [
        (0, 0, 2, 1, 4.0, False),
        (0, 1, 2, 2, 1.0, True),
        (0, 2, 2, 1, 3.0, False),
        (1, 0, 1, 1, 5.0, False),
        (1, 1, 1, 2, 2.0, True),
        (1, 2, 1, 1, 6.0, False),
    ],
    columns=["visitor", "client", "visits", "holds", "distance", "nearest"],
).assign(panel="P(X)")


def dots(axes):
    """{label: (x and y of its dots, x of its whiskers' ends)} of error bars."""
    found = {}
    for box in axes.containers:
        line, _, bars = box
        ends = [segment[:, 0].tolist() for segment in bars[0].get_segments() if len(segment)]
        found[box.get_label()] = ([tuple(map(float, at)) for at in zip(*line.get_data(), strict=True)], ends)
    return found


def test_a_line_a_setting_and_a_colour_a_name_in_all_panels():
    figure = plots.answers(NUMBERS)
    match, accuracy = figure.axes
    assert [axes.get_title() for axes in figure.axes] == ["match", "accuracy"]
    assert [tick.get_text() for tick in match.get_yticklabels()] == ["P(X)", "P(Y|X)"]
    assert match.get_ylim()[0] > match.get_ylim()[1]  # top down
    at, ends = dots(match)["FEROMA"]
    assert at == [pytest.approx((90, -0.175)), pytest.approx((31, 0.825))] and ends == [[80, 100], [10, 52]]
    assert dots(match)["by lot"][0] == [pytest.approx((30, 0.175))]
    assert dots(accuracy)["FedAvg"][1] == []  # no interval is known
    own = {box.get_label(): to_rgb(box[0].get_color()) for axes in figure.axes for box in axes.containers}
    assert [own[name] for name in ("FEROMA", "by lot", "FedAvg")] == colours(3)
    assert figure.get_suptitle() == "mean and 95 % interval over 1 to 5 seeds"


def test_visitors_and_clients_are_sorted_by_distribution_and_who_answers_is_marked():
    figure = plots.visitor_distances(PAIRS)
    axes = figure.axes[0]
    np.testing.assert_array_equal(axes.images[0].get_array(), [[5, 6, 2], [4, 3, 1]])
    assert axes.images[0].norm.vmin == 1 and axes.images[0].norm.vmax == 6
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["1", "1", "2"]
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["1", "2"]
    frames = [(patch.get_xy(), patch.get_width(), patch.get_height()) for patch in axes.patches]
    assert frames == [((-0.5, -0.5), 2, 1), ((1.5, 0.5), 1, 1)]
    marks = [c for c in axes.collections if isinstance(c, PathCollection)]
    looks = {tuple(c.get_offsets()[0]): to_rgb(c.get_facecolor()[0]) for c in marks}
    assert looks == {(2, 0): to_rgb("tab:orange"), (2, 1): to_rgb("w")}


def test_distances_have_a_panel_a_setting_three_in_a_row():
    four = pd.concat([PAIRS.assign(panel=f"kind {i}") for i in range(4)])
    axes = plots.visitor_distances(four).axes
    assert [a.get_title() for a in axes if a.get_visible()] == ["kind 0", "kind 1", "kind 2", "kind 3"]
    assert len(axes) == 6


CURVES = pd.DataFrame(
    [
        (label, line, since, seed, value + since + 2 * seed)
        for label, line, value in (
            ("FEROMA", "newcomer", 60.0),
            ("FedAvg", "newcomer", 50.0),
            ("FEROMA", "peers", 62.0),
            ("FedAvg", "worked", 55.0),
        )
        for since in (1, 0, -1)
        for seed in (0, 1)
    ],
    columns=["label", "line", "since", "seed", "value"],
)


def test_curves_are_means_over_seeds_and_the_first_round_stands_beside_them():
    figure = plots.newcomers(CURVES)
    left, right = figure.axes
    lines = [(to_rgb(line.get_color()), line.get_linestyle(), line.get_ydata().tolist()) for line in left.lines[:4]]
    feroma, average = colours(2)
    assert lines == [
        (feroma, "-", [60, 61, 62]),
        (feroma, ":", [62, 63, 64]),
        (average, "-", [50, 51, 52]),
        (average, "--", [55, 56, 57]),
    ]
    assert left.lines[0].get_xdata().tolist() == [-1, 0, 1]
    names = [tick.get_text() for tick in right.get_yticklabels()]
    assert names == [
        f"FEROMA: {WORDS['newcomer']}",
        f"FEROMA: {WORDS['peers']}",
        f"FedAvg: {WORDS['newcomer']}",
        f"FedAvg: {WORDS['worked']}",
    ]
    assert [float(box[0].get_xdata()[0]) for box in right.containers] == [61, 63, 51, 56]
    assert [float(box[0].get_ydata()[0]) for box in right.containers] == [0, 1, 2, 3]


def test_wrong_tables_are_refused():
    with pytest.raises(FedlibError, match="answers: two rows have panel match, setting P\\(X\\), who FEROMA"):
        plots.answers(pd.concat([NUMBERS, NUMBERS]))
    with pytest.raises(FedlibError, match="visitor_distances: the table is empty"):
        plots.visitor_distances(PAIRS[:0])
    with pytest.raises(FedlibError, match="newcomers: line: 'peer'"):
        plots.newcomers(CURVES.replace({"line": {"peers": "peer"}}))
