"""The figure of two moments draws what it is given: read back from the axes."""

from __future__ import annotations

import math

import pandas as pd
import pytest
from matplotlib.collections import PathCollection

from fedlib import plots
from fedlib.checks import FedlibError

NAN = math.nan
METRICS = {"average": "average (%)", "min": "worst client (%)"}
FIRST, SECOND = "as it stands", "after E more epochs"


def table() -> pd.DataFrame:
    rows = [
        ("a", "FedAvg", FIRST, "average", 30.0, 29.0, 32.0),
        ("a", "FedAvg", SECOND, "average", 80.0, 78.0, 82.0),
        ("a", "FedFew", FIRST, "average", 50.0, NAN, NAN),
        ("a", "FedFew", SECOND, "average", 81.0, 80.0, 82.0),
        ("a", "FedAvg", FIRST, "min", 3.0, 2.0, 4.0),
        ("a", "FedAvg", SECOND, "min", 60.0, 59.0, 61.0),
        ("a", "FedFew", FIRST, "min", 5.0, 4.0, 6.0),
        ("a", "FedFew", SECOND, "min", 66.0, 65.0, 67.0),
        ("b", "FedFew", FIRST, "average", 40.0, 39.0, 41.0),
        ("b", "FedFew", SECOND, "average", 20.0, 19.0, 21.0),
        ("b", "FedFew", FIRST, "min", 1.0, 0.0, 2.0),
        ("b", "FedFew", SECOND, "min", 2.0, 1.0, 3.0),
    ]
    found = pd.DataFrame(rows, columns=["setting", "method", "tested", "metric", "mean", "low", "high"])
    return found.assign(n=3)


PAPER = pd.DataFrame(
    [
        ("a", "FedFew", "average", 88.26),
        ("a", "FedAvg", "average", NAN),
        ("a", "APFL", "average", 87.36),  # not drawn: it was not run
        ("b", "FedAvg", "average", 61.2),  # not drawn: it was not run in this setting
        ("a", "FedFew", "std", 4.79),
    ],
    columns=["setting", "method", "metric", "paper"],
)


def dots(axes, place):
    """x and y of one moment's dots, and the ends of their whiskers."""
    line, _, bars = axes.containers[place]
    segments = [segment for segment in bars[0].get_segments() if len(segment)]
    return list(zip(*line.get_data(), strict=True)), [segment[:, 0].tolist() for segment in segments]


def diamonds(axes):
    return [p.get_offsets().tolist() for p in axes.collections if isinstance(p, PathCollection)]


def test_a_method_has_a_dot_a_moment_with_a_bar_between():
    average = plots.before_after(table(), METRICS).axes[0]
    (stands, bars), (tuned, _) = dots(average, 0), dots(average, 1)
    assert [x for x, _ in stands] == [30.0, 50.0] and [x for x, _ in tuned] == [80.0, 81.0]
    assert [round(y) for _, y in stands] == [round(y) for _, y in tuned] == [0, 1]
    assert all(above < below for (_, above), (_, below) in zip(stands, tuned, strict=True))
    assert bars == [[29.0, 32.0]]  # FedFew's is not known
    assert [segment.tolist() for segment in average.collections[0].get_segments()] == [
        [[30.0, 0.0], [80.0, 0.0]],
        [[50.0, 1.0], [81.0, 1.0]],
    ]
    assert [tick.get_text() for tick in average.get_yticklabels()] == ["FedAvg", "FedFew"]
    assert average.get_ylim()[0] > average.get_ylim()[1]  # the first stands at the top


def test_a_row_a_setting_and_a_panel_a_metric():
    figure = plots.before_after(table(), METRICS)
    assert [axes.get_xlabel() for axes in figure.axes] == ["average (%)", "worst client (%)"] * 2
    assert [axes.get_title() for axes in figure.axes] == ["a", "", "b", ""]
    assert [x for x, _ in dots(figure.axes[1], 1)[0]] == [60.0, 66.0]
    assert dots(figure.axes[2], 0)[0] == [(40.0, pytest.approx(1, abs=0.2))]  # FedFew's line, FedAvg's stays free
    assert figure.axes[2].collections[0].get_segments()[0].tolist() == [[20.0, 1.0], [40.0, 1.0]]
    assert "over 3 seeds" in figure.get_suptitle()


def test_fedavgs_two_are_lines_through_its_panels():
    figure = plots.before_after(table(), METRICS)
    lines = [[line.get_xdata()[0] for line in axes.lines if line.get_linestyle() == "--"] for axes in figure.axes]
    assert lines == [[30.0, 80.0], [3.0, 60.0], [], []]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        f"FedAvg {FIRST}",
        f"FedAvg {SECOND}",
        FIRST,
        SECOND,
    ]


def test_an_axis_ends_with_the_percents_even_where_an_interval_does_not():
    wide = table().assign(low=lambda rows: rows["mean"] - 70, high=lambda rows: rows["mean"] + 70)
    for axes in plots.before_after(wide, METRICS).axes:
        assert axes.get_xlim()[0] == -3
    assert plots.before_after(wide, METRICS).axes[0].get_xlim() == (-3, 103)
    assert 3 < plots.before_after(table(), METRICS).axes[0].get_xlim()[0] < 29


def test_the_papers_numbers_stand_on_the_lines_that_were_drawn():
    figure = plots.before_after(table(), METRICS, PAPER)
    assert [diamonds(axes) for axes in figure.axes] == [[[[88.26, 1.0]]], [], [], []]
    assert "paper" in [text.get_text() for text in figure.legends[0].get_texts()]


def test_a_wrong_table_is_refused():
    with pytest.raises(FedlibError, match="no column 'tested'"):
        plots.before_after(table().drop(columns="tested"), METRICS)
    with pytest.raises(FedlibError, match="two rows have setting a, method FedAvg"):
        plots.before_after(pd.concat([table(), table()]), METRICS)
    with pytest.raises(FedlibError, match="metric: 'worst' is unknown"):
        plots.before_after(table(), {"worst": "worst client"})
