"""The figures of the two tables draw what they are given: read back from the axes."""

from __future__ import annotations

import math

import pandas as pd
import pytest
from matplotlib.collections import PathCollection

from fedlib import plots
from fedlib.checks import FedlibError

NAN = math.nan
RULE, OWN = "by the rule", "by the own model"


def kinds():
    rows = [
        ("mnist", "P(X)", "FedAvg", RULE, 50.0),
        ("mnist", "P(X)", "FedAvg", OWN, 51.0),
        ("mnist", "P(X)", "FEROMA", RULE, 80.0),
        ("mnist", "P(X)", "FEROMA", OWN, 40.0),
        ("mnist", "average", "FedAvg", RULE, 60.0),
        ("mnist", "average", "FEROMA", RULE, 99.0),
        ("cifar10", "P(X)", "FEROMA", RULE, 30.0),
    ]
    table = pd.DataFrame(rows, columns=["study", "kind", "method", "answered", "mean"])
    return table.assign(low=table["mean"] - 8, high=table["mean"] + 8, n=3)


PAPER = pd.DataFrame(
    [
        ("mnist", "average", "FEROMA", 90.7),
        ("mnist", "average", "FedAvg", NAN),
        ("mnist", "average", "FedEM", 30.7),  # not drawn: it was not run
        ("cifar10", "average", "FEROMA", 44.2),  # not drawn: no such panel
    ],
    columns=["study", "kind", "method", "paper"],
)


def dots(axes):
    """{label: [(x, y)]} of the lines with error bars."""
    return {c.get_label(): list(zip(*c[0].get_data(), strict=True)) for c in axes.containers}


def diamonds(axes):
    return [p.get_offsets().tolist() for p in axes.collections if isinstance(p, PathCollection)]


def test_a_row_a_study_and_a_panel_a_kind_with_a_dot_for_each_answer():
    figure = plots.by_kind(kinds())
    shown = [axes.get_title() for axes in figure.axes if axes.get_visible()]
    assert shown == ["mnist: P(X)", "average", "cifar10: P(X)"] and len(figure.axes) == 4
    first = dots(figure.axes[0])
    assert [x for x, _ in first[RULE]] == [50, 80] and [x for x, _ in first[OWN]] == [51, 40]
    assert [round(y) for _, y in first[RULE]] == [round(y) for _, y in first[OWN]] == [0, 1]
    assert [x for x, _ in dots(figure.axes[2])[RULE]] == [30] and dots(figure.axes[2])[OWN] == []
    assert [round(y) for _, y in dots(figure.axes[2])[RULE]] == [1]  # FEROMA's line, FedAvg's stays free
    assert [tick.get_text() for tick in figure.axes[0].get_yticklabels()] == ["FedAvg", "FEROMA"]


def test_fedavg_has_a_line_through_its_panels_and_axes_end_with_the_percents():
    figure = plots.by_kind(kinds())
    lines = [[line.get_xdata()[0] for line in axes.lines if line.get_linestyle() == "--"] for axes in figure.axes]
    assert lines[:3] == [[50], [60], []]
    assert figure.axes[1].get_xlim()[1] == 103


def test_the_papers_numbers_stand_where_they_are_known_and_something_was_drawn():
    figure = plots.by_kind(kinds(), PAPER)
    assert [diamonds(axes) for axes in figure.axes[:3]] == [[], [[[90.7, 1.0]]], []]
    assert "paper" in [text.get_text() for text in figure.legends[0].get_texts()]


def test_by_kind_refuses_two_rows_of_one_dot():
    with pytest.raises(FedlibError, match="two rows have study mnist"):
        plots.by_kind(pd.concat([kinds(), kinds()]))


def cells():
    rows = [
        (method, severity, phases, base + step)
        for method, base in {"FedAvg": 50.0, "FEROMA": 90.0}.items()
        for severity, step in {"low": 0.0, "high": 5.0}.items()
        for phases in (20, 5)  # not in order
    ]
    table = pd.DataFrame(rows, columns=["method", "severity", "phases", "mean"])
    return table.assign(low=table["mean"] - 1, high=table["mean"] + 1, n=3)


SPREADS = pd.DataFrame({"method": ["FEROMA", "FedAvg"], "mean": [0.5, 6.0], "low": [0.0, 2.0], "high": [1.0, 10.0]})
KNOWN = pd.DataFrame(
    [("FEROMA", "low", 5, 90.6), ("FEROMA", "high", 5, NAN), ("FEROMA", "medium", 10, 90.6)],
    columns=["method", "severity", "phases", "paper"],
)


def test_a_panel_a_method_a_line_a_severity_in_order_of_phases():
    figure = plots.severity_study(cells(), SPREADS)
    fedavg, feroma, _ = figure.axes
    assert [fedavg.get_title(), feroma.get_title()] == ["FedAvg", "FEROMA"]
    assert [y for _, y in dots(fedavg)["low"]] == [50, 50] and [y for _, y in dots(feroma)["high"]] == [95, 95]
    assert [round(x) for x, _ in dots(fedavg)["low"]] == [0, 1]
    assert [tick.get_text() for tick in fedavg.get_xticklabels()] == ["5", "20"]
    bottom, top = fedavg.get_ylim()
    assert bottom < 49 and top > 96 and fedavg.get_ylim() == feroma.get_ylim()  # both panels' whiskers are inside
    falling = cells().drop(columns=["low", "high"])
    falling = falling.assign(mean=falling["mean"] - falling["phases"], low=NAN, high=NAN)
    assert [y for _, y in dots(plots.severity_study(falling, SPREADS).axes[0])["low"]] == [45, 30]


def test_spreads_stand_in_the_order_of_the_panels():
    last = plots.severity_study(cells(), SPREADS).axes[-1]
    (points,) = dots(last).values()
    assert points == [(6.0, 0), (0.5, 1)]
    assert [tick.get_text() for tick in last.get_yticklabels()] == ["FedAvg", "FEROMA"]


def test_the_papers_cells_are_hollow_where_known():
    figure = plots.severity_study(cells(), SPREADS, KNOWN)
    found = [[point for points in diamonds(axes) for point in points] for axes in figure.axes]
    assert found[0] == [] and len(found[1]) == 1 and found[1][0][1] == 90.6 and round(found[1][0][0]) == 0
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["low", "high", "paper, low"]


def test_severity_study_refuses_other_methods_in_its_spreads():
    with pytest.raises(FedlibError, match="panels of"):
        plots.severity_study(cells(), SPREADS.iloc[:1])
