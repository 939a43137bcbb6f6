"""FedFew on quadratics: where the models go, what they cover, how regret falls with K, and how fast."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from fedlib.analysis.quadratics import Descent, Quadratics, steps_to
from fedlib.checks import FedlibError
from fedlib.plots.common import check_table
from fedlib.style import WIDTH, colours, legend_outside, styled

UPDATES = {"plain": "plain step", "normalised": "step divided by $c_k$"}
MARKERS = "Xv^sDP"
MARKS: Sequence[dict[str, Any]] = (
    {"marker": "X", "s": 70, "color": ".25", "edgecolor": "white", "zorder": 5},
    {"marker": "o", "s": 330, "facecolor": "none", "edgecolor": ".25", "linewidth": 1.3, "zorder": 5},
    {"marker": "s", "s": 330, "facecolor": "none", "edgecolor": ".25", "linewidth": 1.3, "zorder": 5},
)
"""Of points in the plane: a cross, and frames around what lies there."""


@styled
def model_paths(problem: Quadratics, runs: Mapping[str, Descent], marks: Mapping[str, np.ndarray]) -> Figure:
    """The plane of theta, a panel a run: optima in the colour of the model that their client takes, and models' paths.

    problem: with d = 2. runs: by title, of at most ten models. marks: points (2,) by label, at most three, drawn in
    every panel.
    """
    if problem.optima.shape[1] != 2 or not runs:
        raise FedlibError(f"model_paths: {len(runs)} runs, d = {problem.optima.shape[1]}; give a run or more, d = 2")
    across = min(2, len(runs))
    down = -(-len(runs) // across)
    size = (WIDTH, 0.7 + 3.2 * down)
    figure, grid = plt.subplots(down, across, figsize=size, squeeze=False, sharex=True, sharey=True)
    for axes in grid.flat[len(runs) :]:
        axes.remove()
    for axes, (title, run) in zip(grid.flat, runs.items(), strict=False):
        _paths(axes, problem, run)
        for (label, point), style in zip(marks.items(), MARKS, strict=False):
            axes.scatter(*point, label=label, **style)
        axes.set(title=title, aspect="equal")
        axes.tick_params(labelbottom=True)
    for axes in grid[-1]:
        axes.set_xlabel("first coordinate")
    for axes in grid[:, 0]:
        axes.set_ylabel("second coordinate")
    legend_outside(figure, "", grid.flat[:1], loc="outside lower center")
    return figure


def _paths(axes: Axes, problem: Quadratics, run: Descent) -> None:
    """One panel. The labels are of things of any colour, so grey stands for them in the legend."""
    palette = colours(run.thetas.shape[1])
    x, y = problem.optima.T
    axes.scatter(x, y, s=22, color=[palette[k] for k in run.chosen()], alpha=0.8, linewidth=0, zorder=2)
    for k, colour in enumerate(palette):
        x, y = run.thetas[:, k].T
        axes.plot(x, y, color=colour, linewidth=1.6, zorder=3)
        axes.scatter(x[0], y[0], s=26, facecolor="white", edgecolor=colour, linewidth=1.4, zorder=4)
        axes.scatter(x[-1], y[-1], s=170, marker="*", color=colour, edgecolor="black", linewidth=0.8, zorder=6)
    of_any_colour: Sequence[dict[str, Any]] = (
        {"marker": "o", "s": 22, "color": ".5", "linewidth": 0, "label": "a client's optimum"},
        {"marker": "o", "s": 26, "facecolor": "white", "edgecolor": ".5", "label": "a model's start"},
        {"marker": "*", "s": 170, "color": ".5", "edgecolor": "black", "label": "its end"},
    )
    for style in of_any_colour:
        axes.scatter([], [], **style)


@styled
def pareto_cover(front: np.ndarray, placed: Mapping[str, np.ndarray], table: pd.DataFrame) -> Figure:
    """Left, two clients' losses: the Pareto front and what models achieve. Right, how far the front is from covered.

    front: (P, 2) losses, in order. placed: {label: losses (2, K) of K models}. table: columns clients, models, K and
    epsilon, a line for each number of clients and each kind of models.
    """
    check_table("pareto_cover", table, ["clients", "models", "K", "epsilon"], ["clients", "models", "K"])
    figure, (left, right) = plt.subplots(1, 2, figsize=(WIDTH, 3.9))
    left.plot(*front.T, color=".6", linewidth=3, label="Pareto front", zorder=1)
    for (label, losses), colour, marker in zip(placed.items(), colours(len(placed)), MARKERS, strict=False):
        left.scatter(
            *losses, s=64, marker=marker, color=colour, edgecolor="white", label=label, zorder=3, clip_on=False
        )
    left.set(xlabel="loss of client 1", ylabel="loss of client 2", title="what K models achieve", aspect="equal")
    left.legend()
    kinds = table["models"].unique().tolist()
    for (clients, own), style in zip(table.groupby("clients"), ("-", "--", ":"), strict=False):
        for kind, colour, marker in zip(kinds, colours(len(kinds)), "os^D", strict=False):
            line = own[own["models"] == kind].sort_values("K")
            look = {"color": colour, "marker": marker, "linestyle": style, "markersize": 5}
            right.plot(line["K"], line["epsilon"], label=f"{kind}, {clients} clients", **look)
    right.set(xlabel="K", ylabel="ε that covers the front, in $Δ_{het}$", title="what is left uncovered")
    _log(right, table["K"], both=True)
    right.legend()
    return figure


@styled
def regret_by_models(table: pd.DataFrame, references: pd.DataFrame) -> Figure:
    """Mean regret against K: means over seeds as lines, each seed as a dot, and lines of what it is compared with.

    table: columns K, update, seed, regret. references: columns K, seed, and one a reference, named as in the legend,
    of which the means over seeds are drawn. Zeros have no place on the logarithmic axis and are left out.
    """
    check_table("regret_by_models", table, ["K", "update", "seed", "regret"], ["K", "update", "seed"])
    check_table("regret_by_models", references, ["K", "seed"], ["K", "seed"])
    figure, axes = plt.subplots(figsize=(WIDTH, 3.9))
    kinds = table["update"].unique().tolist()
    names = [name for name in references.columns if name not in ("K", "seed")]
    palette = colours(len(kinds) + len(names))
    for kind, colour, marker in zip(kinds, palette, "os^D", strict=False):
        own = table[table["update"] == kind]
        mean = own.groupby("K")["regret"].mean()
        axes.plot(mean.index, mean, color=colour, marker=marker, label=f"FedFew, {UPDATES.get(kind, kind)}", zorder=3)
        axes.scatter(own["K"], own["regret"], color=colour, alpha=0.4, s=14, linewidth=0, zorder=2)
    for name, colour, style in zip(names, palette[len(kinds) :], ("--", ":", "-."), strict=False):
        mean = references.groupby("K")[name].mean()
        mean = mean[mean > 0]
        axes.plot(mean.index, mean, color=colour, linestyle=style, linewidth=2, label=name)
    axes.set(xlabel="K", ylabel="mean regret", yscale="log")
    _log(axes, table["K"])
    legend_outside(figure, "", [axes])
    return figure


@styled
def objective_curves(table: pd.DataFrame, share: float = 0.9) -> Figure:
    """g over the steps, a line a K, with plain and with normalised steps; and how many steps a share of the way takes.

    table: columns K, update, seed, step, g, with every step from 0. Lines are means over seeds, dots are seeds. The
    share of the way is from g at the start to the lowest g of the run.
    """
    check_table("objective_curves", table, ["K", "update", "seed", "step", "g"], ["K", "update", "seed", "step"])
    kinds, Ks = table["update"].unique().tolist(), sorted(table["K"].unique())
    figure, grid = plt.subplots(1, len(kinds) + 1, figsize=(WIDTH, 3.6), squeeze=False)
    *panels, last = grid[0]
    hues = dict(zip(Ks, plt.get_cmap("viridis")(np.linspace(0, 0.9, len(Ks))), strict=True))
    for axes, kind in zip(panels, kinds, strict=True):
        for K, own in table[table["update"] == kind].groupby("K"):
            mean = own.groupby("step")["g"].mean()
            axes.plot(mean.index, mean, color=hues[K], linewidth=1.8, label=str(K))
        axes.set(xlabel="step", title=UPDATES.get(kind, kind))
        axes.set_xscale("symlog", linthresh=1)
        axes.xaxis.set_major_formatter("{x:g}")
    for axes, other in pairwise(panels):
        other.sharey(axes)
    panels[0].set_ylabel("$g$")
    _speed(last, table, share)
    legend_outside(figure, "K", panels, loc="outside right upper")
    return figure


def _speed(axes: Axes, table: pd.DataFrame, share: float) -> None:
    """The panel of steps against K."""
    ordered = table.sort_values("step").groupby(["update", "K", "seed"], sort=False)["g"]
    steps = ordered.agg(lambda g: steps_to(g.to_numpy(), share)).rename("steps").reset_index()
    kinds = table["update"].unique().tolist()
    for kind, colour, marker in zip(kinds, colours(len(kinds)), "os^D", strict=False):
        own = steps[steps["update"] == kind]
        mean = own.groupby("K")["steps"].mean()
        axes.plot(mean.index, mean, color=colour, marker=marker, label=kind)
        axes.scatter(own["K"], own["steps"], color=colour, alpha=0.4, s=14, linewidth=0)
    axes.set(xlabel="K", title=f"steps to {share:.0%} of the way")
    _log(axes, table["K"], both=True)
    axes.legend()


def _log(axes: Axes, ticks: pd.Series, both: bool = False) -> None:
    """A logarithmic axis of K with its values as ticks; and one of y. All numbers are written out."""
    axes.set_xscale("log")
    axes.set_xticks(sorted(ticks.unique()))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())
    if both:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 3)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter(NullFormatter())
