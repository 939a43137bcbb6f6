"""Methods tested at two moments, side by side, beside FedAvg's two and the paper's numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedlib.checks import check_choice
from fedlib.plots.common import check_table, finish_rows, whiskers
from fedlib.style import WIDTH, colours, styled

MARKERS = "os"


@styled
def before_after(
    table: pd.DataFrame, metrics: Mapping[str, str], published: pd.DataFrame | None = None, reference: str = "FedAvg"
) -> Figure:
    """A row of panels a setting, a panel a metric, a line a method: its dot at each moment, with a bar between them.

    table: summary.over_seeds of moments.by_moment, by setting, method and tested; the methods stand in the order in
    which they appear, top down. metrics: {metric, in percent: words at its axis}; an axis ends at 0 and at 100 even
    where an interval does not. Dashed lines go through the dots of `reference`, where it was run. published: as
    summary.beside returns it; what is known of a drawn line is a hollow diamond.
    """
    cell = ["setting", "method", "tested", "metric"]
    check_table("before_after", table, [*cell, "mean", "low", "high", "n"], key=cell)
    for metric in metrics:
        check_choice("before_after: metric", metric, table["metric"].unique())
    settings, methods = table["setting"].unique().tolist(), table["method"].unique().tolist()
    size = (WIDTH, 1.0 + len(settings) * (0.65 + 0.21 * len(methods)))
    figure, grid = plt.subplots(len(settings), len(metrics), figsize=size, sharey=True, squeeze=False)
    for (row, column), axes in np.ndenumerate(grid):
        metric, words = list(metrics.items())[column]
        here = table[(table["setting"] == settings[row]) & (table["metric"] == metric)]
        _lines(axes, here, methods, table["tested"].unique().tolist(), reference)
        if published is not None:
            _known(axes, published, here, methods)
        axes.set(xlabel=words, title=settings[row] if column == 0 else "")
    finish_rows(figure, grid, methods, table["n"], columns=3)
    return figure


def _lines(axes: Axes, here: pd.DataFrame, methods: list[str], moments: list[str], reference: str) -> None:
    """Both dots of each method, a little above and below its line where their whiskers would hide each other."""
    wide = here.pivot(index="method", columns="tested", values="mean").reindex(columns=moments)
    axes.hlines(wide.index.map(methods.index), wide.min(axis=1), wide.max(axis=1), color=".8", linewidth=3, zorder=1)
    for side, (tested, colour) in enumerate(zip(moments, colours(len(moments)), strict=True)):
        dots = here[here["tested"] == tested]
        places = dots["method"].map(methods.index) + 0.16 * (side - (len(moments) - 1) / 2)
        style: dict[str, Any] = {"color": colour, "markersize": 4.5, "capsize": 2, "elinewidth": 1.1, "label": tested}
        axes.errorbar(dots["mean"], places, xerr=whiskers(dots), fmt=MARKERS[side % len(MARKERS)], **style)
        for mean in dots.loc[dots["method"] == reference, "mean"]:
            label = f"{reference} {tested}"
            axes.axvline(mean, color=colour, linestyle="--", linewidth=1, zorder=0, label=label)


def _known(axes: Axes, published: pd.DataFrame, here: pd.DataFrame, methods: list[str]) -> None:
    """The paper's numbers of the lines that are drawn, as hollow diamonds."""
    cells = published.merge(here[["setting", "method", "metric"]].drop_duplicates()).dropna(subset="paper")
    if len(cells):
        edge: dict[str, Any] = {"facecolors": "none", "edgecolors": ".15", "linewidth": 1.2}
        places = cells["method"].map(methods.index)
        axes.scatter(cells["paper"], places, marker="D", s=40, zorder=4, label="paper", **edge)
