"""Paired differences: what a method adds to its base, beside what the paper says that it adds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedlib.checks import FedlibError, check_choice
from fedlib.plots.common import check_table, over_seeds_in_words, whiskers
from fedlib.style import WIDTH, colours, legend_outside, styled

HOLLOW = "D^"


@styled
def gains(
    table: pd.DataFrame,
    row: str,
    panel: str,
    hue: str | None = None,
    published: Sequence[str] = (),
    ours: str = "ours",
    alone: Sequence[str] = (),
) -> Figure:
    """Differences in points, a panel a value of column `panel`, a line a value of `row`: mean, interval, and zero.

    table: summary.over_seeds of summary.gains, with columns mean, low, high and n. Lines stand in the order in which
    they appear, top down. hue: a column whose values have a colour each, one under another on their line; None: one
    colour, named `ours`. published: columns with numbers of a paper, drawn as hollow markers where they are known.
    alone: panels with a scale of their own, as their differences are smaller; the others have one scale together.
    """
    cell = [row, panel, *([] if hue is None else [hue])]
    check_table("gains", table, [*cell, "mean", "low", "high", "n", *published], key=cell)
    if len(published) > len(HOLLOW):
        raise FedlibError(f"gains: {len(published)} published columns; give at most {len(HOLLOW)}")
    lines, panels = table[row].unique().tolist(), table[panel].unique().tolist()
    hues = [ours] if hue is None else table[hue].unique().tolist()
    step = min(0.3, 0.8 / len(hues))
    size = (WIDTH, 1.1 + (0.2 + 0.13 * len(hues)) * len(lines))
    figure, grid = plt.subplots(1, len(panels), figsize=size, squeeze=False, sharey=True)
    for name in alone:
        check_choice("gains: alone", name, panels)
    together = [axes for axes, title in zip(grid[0], panels, strict=True) if title not in alone]
    for axes in together[1:]:
        axes.sharex(together[0])
    for axes, title in zip(grid[0], panels, strict=True):
        for place, (name, colour) in enumerate(zip(hues, colours(len(hues)), strict=True)):
            here = table[(table[panel] == title) & (True if hue is None else table[hue] == name)]
            y = here[row].map(lines.index) + step * (place - (len(hues) - 1) / 2)
            style = {"color": colour, "markersize": 5, "capsize": 2.5, "elinewidth": 1.3, "label": name}
            axes.errorbar(here["mean"], y, xerr=whiskers(here), fmt="o", **style)
            for column, marker in zip(published, HOLLOW, strict=False):
                label, edge = (column, ".15") if hue is None else (f"{name}, {column}", colour)
                _known(axes, here[column], y, marker=marker, label=label, edgecolors=[edge])
        axes.axvline(0, color=".3", linestyle="--", linewidth=1, zorder=1)
        axes.set(title=title, xlabel="points")
    grid[0, 0].set_yticks(range(len(lines)), lines)
    grid[0, 0].set_ylim(len(lines) - 0.5, -0.5)
    legend_outside(figure, "", grid[0], "outside lower center", columns=4, markers_last=True)
    figure.suptitle(f"differences under the same seed: {over_seeds_in_words(table['n'])}", fontsize=9)
    return figure


def _known(axes: Axes, x: pd.Series, y: pd.Series, **style: Any) -> None:
    """Hollow markers where x is known; nothing, in the legend either, where none is."""
    if x.notna().any():
        axes.scatter(x[x.notna()], y[x.notna()], s=40, facecolors="none", linewidth=1.2, zorder=4, **style)
