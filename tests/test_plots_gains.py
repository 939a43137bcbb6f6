"""The figure of paired differences draws what it is given: read back from the axes."""

from __future__ import annotations

import math

import pandas as pd
import pytest
from matplotlib.collections import PathCollection
from matplotlib.colors import to_rgb

from fedlib import plots
from fedlib.checks import FedlibError
from fedlib.style import colours

NAN = math.nan
TABLE = pd.DataFrame(
    [
        ("DaA", "average", "a", 2.0, 1.0, 3.5, 3, 2.04, NAN),
        ("full", "average", "a", 6.0, 5.0, 7.0, 3, 10.08, 11.0),
        ("DaA", "std", "a", -1.0, NAN, NAN, 3, NAN, NAN),
        ("full", "std", "a", -4.0, -5.0, -3.0, 3, -5.91, NAN),
    ],
    columns=["method", "metric", "kind", "mean", "low", "high", "n", "reading A", "reading B"],
)


def drawn(axes, place=0):
    """x and y of the dots of one colour, and the ends of their whiskers."""
    line, _, bars = axes.containers[place]
    segments = [segment for segment in bars[0].get_segments() if len(segment)]
    return list(zip(*line.get_data(), strict=True)), [segment[:, 0].tolist() for segment in segments]


def hollow(axes):
    return [found for found in axes.collections if isinstance(found, PathCollection)]


def test_a_line_has_its_mean_its_interval_and_the_papers_numbers():
    average, std = plots.gains(TABLE, "method", "metric", published=["reading A", "reading B"]).axes
    points, whiskers = drawn(average)
    assert points == [(2.0, 0.0), (6.0, 1.0)]
    assert whiskers == [[1.0, 3.5], [5.0, 7.0]]
    assert average.get_ylim()[0] > average.get_ylim()[1]  # the first stands at the top
    assert [tick.get_text() for tick in average.get_yticklabels()] == ["DaA", "full"]
    first, second = hollow(average)
    assert first.get_offsets().tolist() == [[2.04, 0.0], [10.08, 1.0]]
    assert second.get_offsets().tolist() == [[11.0, 1.0]]
    assert [axes.get_title() for axes in (average, std)] == ["average", "std"]
    points, whiskers = drawn(std)
    assert points == [(-1.0, 0.0), (-4.0, 1.0)]
    assert whiskers == [[-5.0, -3.0]]
    assert [found.get_offsets().tolist() for found in hollow(std)] == [[[-5.91, 1.0]]]


def test_zero_is_marked_and_both_panels_have_one_scale():
    figure = plots.gains(TABLE, "method", "metric")
    for axes in figure.axes:
        (zero,) = [line for line in axes.lines if line.get_linestyle() == "--"]
        assert list(zero.get_xdata()) == [0, 0]
    assert figure.axes[0].get_xlim() == figure.axes[1].get_xlim()
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["ours"]
    assert "mean and 95 % interval over 3 seeds" in figure.get_suptitle()


def test_a_panel_may_have_a_scale_of_its_own():
    average, std = plots.gains(TABLE, "method", "metric", alone=["average"]).axes
    assert average.get_xlim()[0] > 0.5 - 1 and std.get_xlim()[0] < -5
    with pytest.raises(FedlibError, match="gains: alone: 'averge' is unknown; did you mean 'average'"):
        plots.gains(TABLE, "method", "metric", alone=["averge"])


def test_colours_stand_one_under_another_each_with_its_papers_number():
    table = pd.concat([TABLE, TABLE.assign(kind="b", mean=TABLE["mean"] + 1, **{"reading A": NAN})])
    figure = plots.gains(table, "method", "metric", hue="kind", published=["reading A"])
    average = figure.axes[0]
    (above, _), (below, _) = drawn(average, 0), drawn(average, 1)
    assert [x for x, _ in below] == [x + 1 for x, _ in above]
    assert all(a < b for (_, a), (_, b) in zip(above, below, strict=True))
    assert [a + b for (_, a), (_, b) in zip(above, below, strict=True)] == pytest.approx([0, 2])
    (paper,) = hollow(average)
    assert paper.get_offsets()[:, 1].tolist() == [y for _, y in above]
    assert to_rgb(paper.get_edgecolor()[0]) == pytest.approx(colours(2)[0])
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["a", "b", "a, reading A"]


def test_a_wrong_table_is_refused():
    with pytest.raises(FedlibError, match=r"no column 'metrics'.*metric"):
        plots.gains(TABLE, "method", "metrics")
    with pytest.raises(FedlibError, match="two rows have method DaA, metric average"):
        plots.gains(pd.concat([TABLE, TABLE]), "method", "metric")
    with pytest.raises(FedlibError, match="at most 2"):
        plots.gains(TABLE.assign(C=0.0), "method", "metric", published=["reading A", "reading B", "C"])
