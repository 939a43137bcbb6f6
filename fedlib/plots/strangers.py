"""Clients that a method has not met before: who answers them, and how they fare from their first round on."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from fedlib import summary
from fedlib.checks import check_choice
from fedlib.plots.common import check_table, over_seeds_in_words, whiskers
from fedlib.style import WIDTH, colours, legend_outside, styled

STYLES = {"newcomer": "-", "peers": ":", "worked": "--"}
MARKERS = {"newcomer": "o", "peers": "s", "worked": "D"}
WORDS = {"newcomer": "newcomer", "peers": "clients of its distribution", "worked": "local work from the mean model"}


@styled
def answers(numbers: pd.DataFrame) -> Figure:
    """A panel a value of `panel`, a line a `setting`, a colour a `who`: the mean with its interval, in percent.

    numbers: panel, setting, who, mean, low, high, n. Settings stand in the order in which they appear, top down.
    """
    cell = ["panel", "setting", "who"]
    check_table("answers", numbers, [*cell, "mean", "low", "high", "n"], key=cell)
    panels, settings, names = (numbers[column].unique().tolist() for column in cell)
    palette = dict(zip(names, colours(len(names)), strict=True))
    size = (WIDTH, 1.3 + (0.25 + 0.1 * len(names)) * len(settings))
    figure, grid = plt.subplots(1, len(panels), figsize=size, sharey=True, squeeze=False)
    for axes, panel in zip(grid[0], panels, strict=True):
        here = numbers[numbers["panel"] == panel]
        shown = here["who"].unique().tolist()
        for place, who in enumerate(shown):
            rows = here[here["who"] == who]
            y = rows["setting"].map(settings.index) + 0.7 * ((place + 0.5) / len(shown) - 0.5)
            style = {"color": palette[who], "markersize": 5, "capsize": 2.5, "elinewidth": 1.3, "label": who}
            axes.errorbar(rows["mean"], y, xerr=whiskers(rows), fmt="o", **style)
        for edge in range(1, len(settings)):
            axes.axhline(edge - 0.5, color=".8", linewidth=0.8, zorder=0)
        axes.set(title=panel, xlabel="%")
        axes.grid(False, axis="y")
    grid[0, 0].set_yticks(range(len(settings)), settings)
    grid[0, 0].set_ylim(len(settings) - 0.5, -0.5)
    legend_outside(figure, "", grid[0], "outside lower center", columns=4)
    figure.suptitle(over_seeds_in_words(numbers["n"]), fontsize=9)
    return figure


@styled
def visitor_distances(pairs: pd.DataFrame) -> Figure:
    """A panel a value of `panel`: visitors x clients, each sorted by distribution; darker is nearer, from
    the panel's least distance to its largest.

    pairs: panel, visitor, client, visits, holds, distance, nearest, of one run a panel; numbers at the edges are
    distributions. A frame stands round the pairs of one distribution. A disc marks the client that answers; a cross, if
    that one has another distribution than the visitor.
    """
    cell = ["panel", "visitor", "client"]
    check_table("visitor_distances", pairs, [*cell, "visits", "holds", "distance", "nearest"], key=cell)
    panels = pairs["panel"].unique().tolist()
    across = min(3, len(panels))
    down = -(-len(panels) // across)
    figure, grid = plt.subplots(down, across, figsize=(WIDTH, 0.5 + 2.8 * down), squeeze=False)
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    for axes, panel in zip(grid.flat, panels, strict=False):
        _near_and_far(axes, pairs[pairs["panel"] == panel])
        axes.set_title(panel)
    style: dict[str, Any] = {"linestyle": "none", "markeredgecolor": "k", "markersize": 6}
    marks = [
        Line2D([], [], marker="o", color="w", label="answers, and has the visitor's distribution", **style),
        Line2D([], [], marker="X", color="tab:orange", label="answers, and has another", **style),
    ]
    figure.legend(handles=marks, loc="outside lower center", ncols=2)
    return figure


def _near_and_far(axes: Axes, rows: pd.DataFrame) -> None:
    keys = {"index": ["visits", "visitor"], "columns": ["holds", "client"]}
    wide = rows.pivot(values="distance", **keys).sort_index().sort_index(axis=1)
    best = rows.pivot(values="nearest", **keys).reindex_like(wide).astype(bool)
    visits, holds = (np.array([pair[0] for pair in names]) for names in (wide.index, wide.columns))
    axes.imshow(wide, cmap="Blues_r", aspect="auto", interpolation="nearest")
    for d in np.intersect1d(visits, holds):
        y, x = np.flatnonzero(visits == d), np.flatnonzero(holds == d)
        frame: dict[str, Any] = {"fill": False, "edgecolor": "k", "linewidth": 1.4, "zorder": 2}
        axes.add_patch(Rectangle((x[0] - 0.5, y[0] - 0.5), len(x), len(y), **frame))
    for y, x in np.argwhere(best.to_numpy()):
        right = visits[y] == holds[x]
        look: dict[str, Any] = {"marker": "o" if right else "X", "color": "w" if right else "tab:orange"}
        axes.scatter([x], [y], s=34, edgecolors="k", linewidth=0.8, zorder=3, **look)
    axes.set_xticks(range(len(holds)), holds, fontsize=7)
    axes.set_yticks(range(len(visits)), visits, fontsize=7)
    axes.set(xlabel="clients, by distribution", ylabel="visitors, by distribution")
    axes.grid(False)


@styled
def newcomers(curves: pd.DataFrame) -> Figure:
    """Left, accuracy against the rounds since a client joined; right, its first round, mean and interval over seeds.

    curves: label, line, since, seed, value. line: newcomer (solid), peers (dotted) or worked (dashed). A colour a
    label; at the right, a line a label and line, in the order of the table.
    """
    cell = ["label", "line", "since", "seed"]
    check_table("newcomers", curves, [*cell, "value"], key=cell)
    for line in curves["line"].unique():
        check_choice("newcomers: line", line, STYLES)
    labels = curves["label"].unique().tolist()
    palette = dict(zip(labels, colours(len(labels)), strict=True))
    found = summary.over_seeds(curves.assign(metric=""), by=["label", "line", "since"]).sort_values("since")
    first = found[found["since"] == 0]
    names = [pair for pair in curves[["label", "line"]].drop_duplicates().itertuples(index=False, name=None)]
    names = sorted(names, key=lambda pair: labels.index(pair[0]))
    figure, (left, right) = plt.subplots(1, 2, figsize=(WIDTH, max(3.4, 1.4 + 0.24 * len(names))))
    for place, (label, line) in enumerate(names):
        rows = found[(found["label"] == label) & (found["line"] == line)]
        style = {"color": palette[label], "marker": MARKERS[line], "markersize": 4}
        left.plot(rows["since"], rows["mean"], linestyle=STYLES[line], **style)
        dot = first[(first["label"] == label) & (first["line"] == line)]
        right.errorbar(
            dot["mean"], [place] * len(dot), xerr=whiskers(dot), fmt=MARKERS[line], capsize=3, color=palette[label]
        )
    left.axvline(-0.5, color=".3", linestyle="--", linewidth=1)
    left.set(xlabel="rounds since it joined (0: its first)", ylabel="accuracy (%)")
    left.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
    right.set_yticks(range(len(names)), [f"{label}: {WORDS[line]}" for label, line in names])
    right.set_ylim(len(names) - 0.5, -0.5)
    right.set(xlabel="accuracy in its first round (%)")
    figure.suptitle(over_seeds_in_words(first["n"]), fontsize=9)
    return figure
