"""FEROMA's mapping in pictures: weight matrices, the regimes of clients, and what the threshold does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import offset_copy

from fedlib import summary
from fedlib.checks import FedlibError, check_choice
from fedlib.mapping_rows import REGIMES
from fedlib.plots.common import check_table, over_seeds_in_words
from fedlib.profiles import surviving
from fedlib.style import WIDTH, colours, legend_outside, styled

MOST_WITH_NUMBERS = 6
"""Columns of a matrix whose cells have room for their numbers."""
LEGEND = "weight w before the threshold; framed: w ≥ τ.  Right: C clustered, P personal, G global"


@styled
def weight_matrices(matrices: Mapping[str, pd.DataFrame], threshold: float, columns: int = 3) -> Figure:
    """Weights before the threshold, a panel each: a row a client, a column a client of the round before.

    Survivors of tau = threshold / columns are framed, and each row's regime stands beside it. matrices: by title. With
    an index of pairs, as mapping_rows.matrix gives, the first of each is its distribution, told by a coloured square:
    at the left the present one of the row, above that which the column's client had in the round before.
    """
    height = 0.4 + _height(matrices, columns)
    figure = plt.figure(figsize=(WIDTH if min(columns, len(matrices)) > 1 else 0.7 * WIDTH, height))
    _matrices(figure, matrices, threshold, columns)
    return figure


@styled
def regime_study(
    matrices: Mapping[str, pd.DataFrame], threshold: float, shares: pd.DataFrame, masses: pd.DataFrame, columns: int = 4
) -> Figure:
    """Above, weight_matrices; below, a column a panel: the share of clients in each regime by round, and the weight on
    clients of the same distribution by round.

    shares: panel, metric (of mapping_rows.REGIMES), round, seed, value. masses: panel, line, round, seed, value. Both
    in percent; bars and lines are means over seeds, bands their intervals.
    """
    check_table("regime_study: shares", shares, ["panel", "metric", "round", "seed", "value"])
    check_table("regime_study: masses", masses, ["panel", "line", "round", "seed", "value"])
    titles = shares["panel"].unique().tolist()
    if set(titles) != set(masses["panel"]):
        raise FedlibError(f"regime_study: shares have panels {titles}, masses {masses['panel'].unique().tolist()}")
    above = 0.4 + _height(matrices, columns)
    figure = plt.figure(figsize=(WIDTH, above + 4.6))
    parts = np.asarray(figure.subfigures(2, 1, height_ratios=[above, 4.6]))
    upper, lower = parts.tolist()
    _matrices(upper, matrices, threshold, columns)
    grid = lower.subplots(2, len(titles), sharex="col", sharey="row", squeeze=False)
    for place, title in enumerate(titles):
        _regimes(grid[0, place], shares[shares["panel"] == title])
        _lines(grid[1, place], masses[masses["panel"] == title], "round")
        grid[0, place].set(title=title, ylabel="" if place else "share of clients (%)", ylim=(0, 100))
        grid[1, place].set(xlabel="round", ylabel="" if place else "weight on the same\ndistribution (%)")
        grid[1, place].set_ylim(0, 102)
        grid[1, place].xaxis.set_major_locator(MaxNLocator("auto", integer=True))
    for row in grid:
        _legend(row)
    return figure


@styled
def threshold_study(
    numbers: pd.DataFrame, references: pd.DataFrame, plain: Sequence[str] = (), mark: float | None = None
) -> Figure:
    """Numbers against tau |A|, a panel each, two in a row: means over seeds with their intervals, a line a `line`.

    numbers: panel, line, threshold, seed, value, in percent. references: panel, line, seed, value: a horizontal line
    each, at its mean. plain: lines drawn in dashed grey: bounds, not methods. mark: a threshold to point at. Axes reach
    8 points beyond the seeds' values: bands may be cut.
    """
    check_table("threshold_study", numbers, ["panel", "line", "threshold", "seed", "value"])
    titles, lines = numbers["panel"].unique().tolist(), numbers["line"].unique().tolist()
    for line in plain:
        check_choice("threshold_study: plain", line, lines)
    for title in references["panel"].unique():
        check_choice("threshold_study: references: panel", title, titles)
    palette = _palette([line for line in lines if line not in plain])
    dashes = dict(zip(references["line"].unique(), cycle((":", "-.")), strict=False))
    down = -(-len(titles) // 2)
    figure, grid = plt.subplots(down, 2, figsize=(WIDTH, 0.7 + 2.6 * down), squeeze=False)
    for axes in grid.flat[len(titles) :]:
        axes.set_visible(False)
    for axes, title in zip(grid.flat, titles, strict=False):
        _lines(axes, numbers[numbers["panel"] == title], "threshold", palette)
        for line, rows in references[references["panel"] == title].groupby("line", sort=False):
            axes.axhline(rows["value"].mean(), color=".2", linestyle=dashes[line], linewidth=1.4, label=str(line))
        if mark is not None:
            axes.axvline(mark, color=".6", linewidth=1, zorder=0)
        values = numbers.loc[numbers["panel"] == title, "value"]
        limits = max(0.0, values.min() - 8.0), min(102.0, values.max() + 8.0)
        axes.set(title=title, xlabel="τ |A|", ylabel="%", ylim=limits)
    figure.suptitle(over_seeds_in_words(numbers.groupby(["panel", "line", "threshold"])["seed"].nunique()), fontsize=9)
    legend_outside(figure, "", grid.flat, "outside lower center", columns=4)
    return figure


def _height(matrices: Mapping[str, pd.DataFrame], columns: int) -> float:
    """Inches of a grid of matrices."""
    if not matrices:
        raise FedlibError("weight_matrices: no matrix given; give at least one")
    rows = max(len(table) for table in matrices.values())
    return -(-len(matrices) // columns) * (0.75 + min(2.4, 0.22 * rows))


def _matrices(figure: Figure | SubFigure, matrices: Mapping[str, pd.DataFrame], threshold: float, columns: int) -> None:
    down, across = -(-len(matrices) // columns), min(columns, len(matrices))
    grid = figure.subplots(down, across, squeeze=False)
    count = 1 + max((d for table in matrices.values() for d in _held(table.index) + _held(table.columns)), default=0)
    for axes in grid.flat[len(matrices) :]:
        axes.set_visible(False)
    for axes, (title, table) in zip(grid.flat, matrices.items(), strict=False):
        _matrix(axes, table, threshold, colours(count))
        axes.set_title(title, pad=14 if _held(table.columns) else 6)
    for row in grid:
        row[0].set_ylabel("client")
    figure.suptitle(LEGEND, fontsize=9)


def _held(index: pd.Index) -> list[int]:
    """The distributions in an index of pairs; none of a plain one."""
    return index.get_level_values(0).tolist() if isinstance(index, pd.MultiIndex) else []


def _matrix(axes: Axes, table: pd.DataFrame, threshold: float, palette: Sequence[Any]) -> None:
    w = table.to_numpy(dtype=float)
    rows, columns = w.shape
    axes.imshow(w, cmap="Blues", vmin=0, vmax=1, aspect="auto", interpolation="nearest")
    survives = surviving(torch.tensor(w), threshold).numpy()
    for k, j in np.argwhere(survives):
        axes.add_patch(Rectangle((j - 0.44, k - 0.4), 0.88, 0.8, fill=False, edgecolor="C1", linewidth=1.3))
    if columns <= MOST_WITH_NUMBERS:
        for k, j in np.ndindex(w.shape):
            digits = f"{w[k, j]:.2f}".removeprefix("0")
            axes.text(j, k, digits, ha="center", va="center", size=6.5, color="w" if w[k, j] > 0.6 else ".2")
    for k, count in enumerate(survives.sum(1)):
        letter = "G" if count == 0 else "P" if count == 1 else "C"
        axes.text(columns - 0.3, k, letter, ha="left", va="center", size=8, color=_REGIME_COLOURS[letter])
    square: dict[str, Any] = {"marker": "s", "s": 16, "clip_on": False, "linewidth": 0}
    left = offset_copy(axes.get_yaxis_transform(), axes.get_figure(root=True), x=-7, units="points")
    above = offset_copy(axes.get_xaxis_transform(), axes.get_figure(root=True), y=7, units="points")
    for k, d in enumerate(_held(table.index)):
        axes.scatter(0, k, color=[palette[d]], transform=left, **square)
    for j, d in enumerate(_held(table.columns)):
        axes.scatter(j, 1, color=[palette[d]], transform=above, **square)
    axes.set(xlim=(-0.5, columns - 0.5), ylim=(rows - 0.5, -0.5))
    _ticks(axes, table)
    axes.grid(False)


def _ticks(axes: Axes, table: pd.DataFrame) -> None:
    """The clients' numbers, where there is room."""
    names = [index.get_level_values(-1).tolist() for index in (table.index, table.columns)]
    axes.set_yticks(range(len(names[0])), names[0], size=6.5)
    axes.set_xticks(range(len(names[1])), names[1], size=6.5)
    axes.tick_params(length=0, pad=13 if _held(table.index) else 2, axis="y")
    axes.tick_params(length=0, pad=2, axis="x")


_THREE = [colours(10)[place] for place in (0, 1, 7)]
_REGIME_COLOURS = dict(zip("CPG", _THREE, strict=True))


def _regimes(axes: Axes, rows: pd.DataFrame) -> None:
    """Stacked bars, a round each."""
    means = rows.groupby(["round", "metric"])["value"].mean().unstack().reindex(columns=REGIMES)
    bottom = np.zeros(len(means))
    for regime, colour in zip(REGIMES, _THREE, strict=True):
        height = means[regime].fillna(0.0).to_numpy()
        axes.bar(means.index, height, bottom=bottom, width=0.85, color=colour, linewidth=0, label=regime)
        bottom = bottom + height
    axes.grid(False, axis="x")


def _palette(lines: Sequence[str]) -> dict[str, Any]:
    return dict(zip(lines, colours(len(lines)), strict=True))


def _lines(axes: Axes, rows: pd.DataFrame, x: str, palette: Mapping[str, Any] | None = None) -> None:
    """Means over seeds with their intervals, a line a value of `line`; dashed grey without a colour of its own."""
    found = summary.over_seeds(rows.assign(metric=""), by=["line", x]).sort_values(x)
    own = _palette(rows["line"].unique().tolist()) if palette is None else palette
    for line in rows["line"].unique():
        means = found[found["line"] == line]
        style: dict[str, Any] = {"color": own[line], "marker": "o", "markersize": 4} if line in own else {}
        style = style or {"color": ".45", "linestyle": "--", "zorder": 1}
        axes.plot(means[x], means["mean"], label=line, **style)
        if line in own:
            axes.fill_between(means[x], means["low"], means["high"], color=own[line], alpha=0.15, linewidth=0)


def _legend(row: Sequence[Axes]) -> None:
    """At the right of a row of panels."""
    handles, labels = row[-1].get_legend_handles_labels()
    row[-1].legend(handles, labels, loc="center left", bbox_to_anchor=(1.02, 0.5))
