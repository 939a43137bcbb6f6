"""FedFew's ablations: of the number of models, of the smoothing, and of local epochs.

Tables are tidy, with a row a point and seed: what a panel, a line or a bar shows is the mean over the seeds. Accuracies
are in percent. `references` are methods without the setting that is varied: grey lines, each at its mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullFormatter

from fedlib import summary
from fedlib.checks import FedlibError
from fedlib.methods.fedfew import DEAD
from fedlib.plots.common import check_table, hues, over_seeds_in_words
from fedlib.style import WIDTH, colours, legend_outside, styled

FLOOR = 1.0e-6
"""Client weights below it are drawn at it."""
REFERENCE_STYLES = (("--", ".2"), ("-.", ".2"), (":", ".4"), ((0, (1, 3)), ".4"))
"""Of reference lines, in their order: line and grey."""
PAPER: dict[str, Any] = {"marker": "D", "s": 40, "facecolors": "none", "edgecolors": ".15", "zorder": 4}


@styled
def models_study(
    numbers: pd.DataFrame,
    references: pd.DataFrame,
    objectives: pd.DataFrame,
    masses: pd.DataFrame,
    published: pd.DataFrame | None = None,
) -> Figure:
    """By K: numbers, a panel each; below, for each kind of server step, the objective by round and the step masses.

    numbers: panel, line, K, seed, value; references: panel, line, seed, value. objectives: step, K, round, seed, value.
    masses: step, K, seed, value, with K values each; a seed's are sorted, the largest first, and dead ones (below
    1e-8) marked where any seed has one. published: panel, K, value; hollow where known.
    """
    steps = _names("models_study: objectives", objectives, "step", ["step", "K", "round", "seed"])
    _names("models_study: masses", masses, "step", ["step", "K", "seed"], unique=False)
    figure, panels, below = _grid("models_study", numbers, references, "K", rows_below=2, columns=len(steps))
    palette = hues(pd.concat([objectives["K"], masses["K"]]))
    for place, step in enumerate(steps):
        curves, bars = below[0, place], below[1, place]
        _by_round(curves, objectives[objectives["step"] == step], "K", "round", palette)
        curves.set(title=f"objective, {step} step", xlabel="round", ylabel="$g$ + smoothing log K" if not place else "")
        _masses(bars, masses[masses["step"] == step], palette)
        bars.set(title=f"step mass, {step} step", xlabel="K", ylabel="$c_k$, the largest first" if not place else "")
    below[0, 1].sharey(below[0, 0])
    below[0, 0].autoscale(axis="y")
    if published is not None:
        order = sorted(numbers["K"].unique())
        for title, cells in published[published["value"].notna() & published["K"].isin(order)].groupby("panel"):
            x = [order.index(K) - 0.3 for K in cells["K"]]
            panels[str(title)].scatter(x, cells["value"], label="paper", **PAPER)
    legend_outside(figure, "", [*panels.values(), *below[1]], "outside lower center", columns=5, markers_last=True)
    return figure


@styled
def smoothing_study(numbers: pd.DataFrame, references: pd.DataFrame, clients: pd.DataFrame) -> Figure:
    """By smoothing: numbers, a panel each; below, every client's outer weight against its loss and its samples.

    numbers: panel, line, smoothing, seed, value; references: panel, line, seed, value. clients: line (two), outer,
    loss, n.
    """
    check_table("smoothing_study: clients", clients, ["line", "outer", "loss", "n"])
    if clients["line"].nunique() != 2:
        raise FedlibError(f"smoothing_study: clients: lines {clients['line'].unique().tolist()}; give two")
    figure, panels, below = _grid("smoothing_study", numbers, references, "smoothing", rows_below=1, columns=2)
    palette = dict(zip(clients["line"].unique(), (colours(10)[9], colours(10)[5]), strict=True))
    for axes, column, words in zip(below[0], ("loss", "n"), (r"$\min_k L_{ik}$", "$n_i$"), strict=True):
        for line, rows in clients.groupby("line", sort=False):
            height = np.maximum(rows["outer"], FLOOR)
            axes.scatter(rows[column], height, s=16, alpha=0.7, linewidth=0, color=palette[line], label=line)
        axes.set(xlabel=f"client's {words}", ylabel="outer weight $a_i$" if column == "loss" else "", yscale="log")
        axes.set_title("clients, last round")
    legend_outside(figure, "", [*panels.values(), below[0, 0]], "outside lower center", columns=4)
    return figure


@styled
def epochs_study(curves: pd.DataFrame, numbers: pd.DataFrame, references: pd.DataFrame) -> Figure:
    """By local epochs E: accuracy against the round and against all epochs so far; below, numbers of the last round.

    curves: panel, E, round, seed, value. numbers: panel, line, E, seed, value; references: panel, line, seed, value.
    """
    titles = _names("epochs_study: curves", curves, "panel", ["panel", "E", "round", "seed"])
    figure, panels, above = _grid("epochs_study", numbers, references, "E", rows_above=2, columns=len(titles))
    palette, epochs = hues(curves["E"]), curves.assign(epochs=curves["round"] * curves["E"])
    for place, title in enumerate(titles):
        for axes, x, words in ((above[0, place], "round", "round"), (above[1, place], "epochs", "epochs in all")):
            _by_round(axes, epochs[epochs["panel"] == title], "E", x, palette)
            axes.set(title=title, xlabel=words, ylabel="accuracy (%)" if not place else "")
        above[0, place].set_xscale("log", base=2)
        above[0, place].xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        above[0, place].xaxis.set_minor_formatter(NullFormatter())
    legend_outside(figure, "", [*panels.values(), above[0, 0]], "outside lower center", columns=4)
    return figure


def _names(where: str, table: pd.DataFrame, column: str, key: Sequence[str], unique: bool = True) -> list[Any]:
    """The values of a column of a table that has been checked."""
    check_table(where, table, [*key, "value"], key=key if unique else ())
    return table[column].unique().tolist()


def _grid(
    where: str,
    numbers: pd.DataFrame,
    references: pd.DataFrame,
    x: str,
    rows_above: int = 0,
    rows_below: int = 0,
    columns: int = 2,
) -> tuple[Figure, dict[str, Axes], np.ndarray]:
    """A figure with a panel for each of the numbers', drawn, two in a row, and empty rows above or below them."""
    titles = _names(f"{where}: numbers", numbers, "panel", ["panel", "line", x, "seed"])
    check_table(f"{where}: references", references, ["panel", "line", "seed", "value"], key=["panel", "line", "seed"])
    if len(titles) % 2 or columns != 2:
        raise FedlibError(f"{where}: {len(titles)} panels of numbers, {columns} beside each other; give two, or four")
    rows = len(titles) // 2
    down = rows_above + rows + rows_below
    figure, grid = plt.subplots(down, 2, figsize=(WIDTH, 0.8 + 2.3 * down), squeeze=False)
    own = grid[rows_above : rows_above + rows]
    panels = dict(zip(titles, own.flat, strict=True))
    lines, compared = numbers["line"].unique(), references["line"].unique()
    palette = dict(zip(lines, colours(len(lines)), strict=True))
    greys = dict(zip(compared, cycle(REFERENCE_STYLES), strict=False))
    for title, axes in panels.items():
        _settings(axes, numbers[numbers["panel"] == title], x, palette)
        for line, cells in references[references["panel"] == title].groupby("line", sort=False):
            dashes, grey = greys[line]
            axes.axhline(cells["value"].mean(), color=grey, linestyle=dashes, linewidth=1.3, label=line)
        axes.set_title(title)
    seeds = numbers.groupby(["panel", "line", x])["seed"].nunique()
    figure.suptitle(over_seeds_in_words(seeds), fontsize=9)
    return figure, panels, grid[:rows_above] if rows_above else grid[rows:]


def _settings(axes: Axes, rows: pd.DataFrame, x: str, palette: dict[str, Any]) -> None:
    """Mean and interval at each setting, at equal distances, beside each seed as a dot; a line a value of `line`."""
    order = sorted(rows[x].unique())
    lines = rows["line"].unique()
    found = summary.over_seeds(rows.assign(metric=""), by=["line", x]).sort_values(x)
    for place, line in enumerate(lines):
        side = 0.14 * (place - (len(lines) - 1) / 2)
        means, dots = found[found["line"] == line], rows[rows["line"] == line]
        at = means[x].map(order.index) + side
        half = (means["high"] - means["mean"]).fillna(0)
        style: dict[str, Any] = {"color": palette[line], "marker": "o", "markersize": 4.5, "capsize": 2.5}
        axes.errorbar(at, means["mean"], yerr=half, label=line, **style)
        beside = dots[x].map(order.index) + side + 0.06
        axes.scatter(beside, dots["value"], color=palette[line], alpha=0.5, s=12, linewidth=0)
    axes.set_xticks(range(len(order)), [f"{value:g}" for value in order])
    axes.set(xlabel=x, xlim=(-0.5, len(order) - 0.5))


def _by_round(axes: Axes, rows: pd.DataFrame, hue: str, x: str, palette: dict[Any, Any]) -> None:
    """Means over seeds with their intervals, a line a value of `hue`, a dot at every evaluated round."""
    found = summary.over_seeds(rows.assign(metric=""), by=[hue, x]).sort_values(x)
    for value in sorted(rows[hue].unique()):
        line = found[found[hue] == value]
        axes.plot(line[x], line["mean"], color=palette[value], marker="o", markersize=3.5, label=f"{hue} = {value:g}")
        axes.fill_between(line[x], line["low"], line["high"], color=palette[value], alpha=0.15, linewidth=0)
    axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))


def _masses(axes: Axes, rows: pd.DataFrame, palette: dict[Any, Any]) -> None:
    """A group of bars for each K, their means over seeds, each seed as a dot, 1 / K as a dashed line."""
    begin, ticks = 0.0, {}
    for K, own in rows.groupby("K"):
        by_seed = [np.sort(one["value"].to_numpy())[::-1] for _, one in own.groupby("seed")]
        if any(len(c) != K for c in by_seed):
            raise FedlibError(f"models_study: masses: K = {K} has a seed with another number of values; give K a seed")
        c = np.stack(by_seed)
        at = begin + np.arange(len(c[0]))
        axes.bar(at, c.mean(0), width=0.85, color=palette[K], linewidth=0, label=f"K = {K:g}")
        axes.scatter(np.tile(at, len(c)), c, color=".25", s=7, linewidth=0, zorder=3)
        axes.plot([at[0] - 0.6, at[-1] + 0.6], [1 / len(at)] * 2, color=".3", linestyle=":", linewidth=1.3, label="1/K")
        dead = at[(c < DEAD).any(0)]
        if len(dead):
            axes.scatter(dead, [0.03] * len(dead), marker="x", color="C3", s=26, zorder=4, label="dead model")
        ticks[f"{K:g}"] = at.mean()
        begin = at[-1] + 2.2
    axes.set_xticks(list(ticks.values()), list(ticks))
    axes.set(ylim=(0, 1.05))
    axes.grid(False, axis="x")
