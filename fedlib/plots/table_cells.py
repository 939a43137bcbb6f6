"""Accuracies on clients that are met at test time: by kind of drift, and by how severe and how frequent it is."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedlib.checks import FedlibError
from fedlib.plots.common import check_table, finish_rows, over_seeds_in_words, whiskers
from fedlib.style import WIDTH, colours, legend_outside, styled

MARKERS = "os^"
EDGE: dict[str, Any] = {"facecolors": "none", "edgecolors": ".15", "linewidth": 1.2, "s": 40, "zorder": 4}


@styled
def by_kind(table: pd.DataFrame, published: pd.DataFrame | None = None, reference: str = "FedAvg") -> Figure:
    """A row of panels a study, a panel a kind, a line a method: a dot with its interval for each way of answering.

    table: study, kind, method, answered, mean, low, high, n; in percent; all in the order in which they appear, top
    down. A dashed line goes through the first way's dot of `reference`. published: study, kind, method, paper; what is
    known of a drawn panel is a hollow diamond.
    """
    cell = ["study", "kind", "method", "answered"]
    check_table("by_kind", table, [*cell, "mean", "low", "high", "n"], key=cell)
    names = {column: table[column].unique().tolist() for column in cell}
    kinds, methods = names["kind"], names["method"]
    size = (WIDTH * (1.0 if len(kinds) < 4 else 1.2), 1.0 + len(names["study"]) * (0.75 + 0.21 * len(methods)))
    figure, grid = plt.subplots(len(names["study"]), len(kinds), figsize=size, sharey=True, squeeze=False)
    for (row, column), axes in np.ndenumerate(grid):
        study, kind = names["study"][row], kinds[column]
        here = table[(table["study"] == study) & (table["kind"] == kind)]
        if here.empty:
            axes.set_visible(False)
            continue
        _answers(axes, here, methods, names["answered"], reference)
        if published is not None:
            known = published[(published["study"] == study) & (published["kind"] == kind)].dropna(subset="paper")
            known = known[known["method"].isin(here["method"])]
            if len(known):
                axes.scatter(known["paper"], known["method"].map(methods.index), marker="D", label="paper", **EDGE)
        axes.set(title=f"{study}: {kind}" if column == 0 else kind, xlabel="accuracy (%)")
        axes.xaxis.set_major_locator(MaxNLocator(4))
    finish_rows(figure, grid, methods, table["n"], columns=4)
    return figure


def _answers(axes: Axes, here: pd.DataFrame, methods: list[str], ways: list[str], reference: str) -> None:
    for side, (way, colour) in enumerate(zip(ways, colours(len(ways)), strict=True)):
        dots = here[here["answered"] == way]
        places = dots["method"].map(methods.index) + 0.2 * (side - (len(ways) - 1) / 2)
        style: dict[str, Any] = {"color": colour, "markersize": 4.5, "capsize": 2, "elinewidth": 1.1, "label": way}
        axes.errorbar(dots["mean"], places, xerr=whiskers(dots), fmt=MARKERS[side % len(MARKERS)], **style)
        for mean in dots.loc[dots["method"] == reference, "mean"] if side == 0 else ():
            axes.axvline(mean, color=colour, linestyle="--", linewidth=1, zorder=0, label=f"{reference}, {way}")


@styled
def severity_study(table: pd.DataFrame, spreads: pd.DataFrame, published: pd.DataFrame | None = None) -> Figure:
    """A panel a method, all on one axis: accuracy against the number of phases, a line a severity; then the spreads.

    table: method, severity, phases, mean, low, high, n; in percent. published: method, severity, phases, paper; hollow
    diamonds, in the colour of their severity. spreads: method, mean, low, high: what lies between the best and the
    worst point of a method's panel, in points.
    """
    cell = ["method", "severity", "phases"]
    check_table("severity_study", table, [*cell, "mean", "low", "high", "n"], key=cell)
    check_table("severity_study: spreads", spreads, ["method", "mean", "low", "high"], key=["method"])
    methods, severities = (table[column].unique().tolist() for column in ("method", "severity"))
    if set(methods) != set(spreads["method"]):
        raise FedlibError(f"severity_study: panels of {methods}, but spreads of {spreads['method'].tolist()}")
    phases, last = sorted(table["phases"].unique()), 1 + len(methods)
    shape: dict[str, Any] = {"figsize": (WIDTH * 1.15, 3.6), "width_ratios": [1] * len(methods) + [1.1]}
    figure, (panels,) = plt.subplots(1, last, squeeze=False, **shape)
    for axes, method in zip(panels, methods, strict=False):
        if axes is not panels[0]:
            axes.sharey(panels[0])
            axes.tick_params(labelleft=False)
        for side, (severity, colour) in enumerate(zip(severities, colours(len(severities)), strict=True)):
            shift = 0.12 * (side - (len(severities) - 1) / 2)
            mine = _of(table, method, severity, phases)
            style: dict[str, Any] = {"color": colour, "markersize": 4.5, "capsize": 2, "elinewidth": 1.1}
            axes.errorbar(mine["x"] + shift, mine["mean"], whiskers(mine), fmt="o-", label=severity, **style)
            if published is not None:
                known = _of(published, method, severity, phases).dropna(subset="paper")
                hollow = EDGE | {"edgecolors": [colour]}
                if len(known):
                    axes.scatter(known["x"] + shift, known["paper"], marker="D", label=f"paper, {severity}", **hollow)
        axes.set(title=method, xlabel="phases", xlim=(-0.5, len(phases) - 0.5))
        axes.set_xticks(range(len(phases)), phases)
        axes.grid(False, axis="x")
    panels[0].set_ylabel("accuracy on clients met at test time (%)")
    _spreads(panels[-1], spreads.set_index("method").loc[methods].reset_index())
    legend_outside(figure, "severity", panels[:-1], "outside lower center", columns=6, markers_last=True)
    figure.suptitle(over_seeds_in_words(table["n"]), fontsize=9)
    return figure


def _of(rows: pd.DataFrame, method: str, severity: str, phases: list[int]) -> pd.DataFrame:
    mine = rows[(rows["method"] == method) & (rows["severity"] == severity) & rows["phases"].isin(phases)]
    return mine.assign(x=mine["phases"].map(phases.index).astype(float)).sort_values("x")


def _spreads(axes: Axes, spreads: pd.DataFrame) -> None:
    axes.errorbar(spreads["mean"], range(len(spreads)), xerr=whiskers(spreads), fmt="o", color=".2", capsize=3)
    axes.axvline(0, color=".3", linestyle="--", linewidth=1, zorder=1)
    axes.yaxis.tick_right()
    axes.set_yticks(range(len(spreads)), spreads["method"].tolist())
    axes.set(title="spread", xlabel="points", ylim=(len(spreads) - 0.5, -0.5))
    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.grid(False, axis="y")
