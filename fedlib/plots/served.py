"""Clients and the models that serve them: who chooses which, whether that fits the groups, and how well each fares."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedlib import summary
from fedlib.checks import FedlibError
from fedlib.plots.common import check_table, over_seeds_in_words
from fedlib.style import WIDTH, colours, legend_outside, styled

AREA = 10.0, 150.0
"""Of a dot, in square points: for no samples, and what the client with the most samples has beyond that."""
SIZES = "flare"
ROUNDS = 8
"""At most so many rounds are shown of the choices."""


@styled
def model_choices(
    chosen: pd.DataFrame, curves: pd.DataFrame, chance: pd.DataFrame, levels: Mapping[str, float] | None = None
) -> Figure:
    """Above, which client chooses which model in which round, a panel a variant; below, numbers by round.

    chosen: row, variant, round, client, group, k, of one run a variant: a row of panels for each `row`, clients ordered
    by group, with lines between groups, and model k in each cell; of many rounds, some that are spread evenly. curves,
    and chance, drawn dotted in the same colour: panel, variant, round, seed, value, two panels in a row. levels:
    {panel: a dashed line there}.
    """
    check_table("model_choices: chosen", chosen, ["row", "variant", "round", "client", "group", "k"])
    for name, table in (("curves", curves), ("chance", chance)):
        key = ["panel", "variant", "round", "seed"]
        check_table(f"model_choices: {name}", table, [*key, "value"], key=key)
    rows = {row: chosen.loc[chosen["row"] == row, "variant"].unique().tolist() for row in chosen["row"].unique()}
    panels = curves["panel"].unique().tolist()
    if len(panels) % 2:
        raise FedlibError(f"model_choices: curves have {len(panels)} panels, which stand in twos; give two, or four")
    wide, down, clients = max(map(len, rows.values())), len(panels) // 2, chosen["client"].nunique()
    heights = [0.55 + 0.11 * clients] * len(rows) + [2.3] * down
    figure = plt.figure(figsize=(WIDTH, 1.2 + sum(heights)))
    grid = figure.add_gridspec(len(heights), 2 * wide, height_ratios=heights)
    for y, (row, variants) in enumerate(rows.items()):
        for x, variant in enumerate(variants):
            axes = figure.add_subplot(grid[y, 2 * x : 2 * x + 2])
            own = chosen[(chosen["row"] == row) & (chosen["variant"] == variant)]
            _heat(axes, own, chosen["k"].max())
            axes.set_title(f"{row}\n{variant.replace(', ', chr(10), 1)}", fontsize=8)
            axes.set_ylabel("client, by group" if x == 0 else "")
    palette = _palette([*chosen["variant"], *curves["variant"]])
    for place, panel in enumerate(panels):
        y, x = divmod(place, 2)
        axes = figure.add_subplot(grid[len(rows) + y, x * wide : (x + 1) * wide])
        _by_round(axes, curves[curves["panel"] == panel], palette, "-")
        _by_round(axes, chance[chance["panel"] == panel], palette, ":")
        if levels and panel in levels:
            axes.axhline(levels[panel], color=".3", linestyle="--", linewidth=1, label=f"level {levels[panel]:g}")
        axes.set(title=panel, xlabel="round")
        axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
    legend_outside(figure, "", figure.axes, "outside lower center", columns=4)
    seeds = curves.groupby(["panel", "variant", "round"])["seed"].nunique()
    figure.suptitle(f"curves: {over_seeds_in_words(seeds)}; dotted: by chance", fontsize=9)
    return figure


def _heat(axes: Axes, own: pd.DataFrame, K: int) -> None:
    """One variant's choices: the model's number and colour in each cell."""
    if own.duplicated(["round", "client"]).any():
        raise FedlibError(f"model_choices: chosen has several runs of {own['variant'].iloc[0]}; give one seed's")
    wide = own.pivot(index=["group", "client"], columns="round", values="k").sort_index()
    wide = wide.iloc[:, np.unique(np.linspace(0, wide.shape[1] - 1, ROUNDS).round().astype(int))]
    palette = sns.color_palette("pastel" if K <= 10 else "husl", K)
    axes.imshow(wide, cmap=ListedColormap(palette), vmin=0.5, vmax=K + 0.5, aspect="auto", interpolation="nearest")
    for (y, x), k in np.ndenumerate(wide.to_numpy()):
        axes.text(x, y, f"{k:.0f}", ha="center", va="center", fontsize=6)
    groups = wide.index.get_level_values("group")
    for y in np.flatnonzero(groups[1:] != groups[:-1]):
        axes.axhline(y + 0.5, color=".15", linewidth=0.9)
    axes.set_xticks(range(wide.shape[1]), wide.columns, fontsize=7)
    axes.set_yticks(range(len(wide)), wide.index.get_level_values("client"), fontsize=6)
    axes.set_xlabel("round", fontsize=8)
    axes.grid(False)


def _palette(variants: list[str]) -> dict[str, Any]:
    """A colour for each, in order of appearance."""
    distinct = list(dict.fromkeys(variants))
    return dict(zip(distinct, colours(len(distinct)), strict=True))


def _by_round(axes: Axes, rows: pd.DataFrame, palette: Mapping[str, Any], linestyle: str) -> None:
    """Means over seeds; solid ones with their intervals, and in the legend."""
    if rows.empty:
        return
    found = summary.over_seeds(rows.assign(metric=""), by=["variant", "round"]).sort_values("round", kind="stable")
    for variant, line in found.groupby("variant", sort=False):
        style: dict[str, Any] = {"color": palette[str(variant)], "linestyle": linestyle}
        if linestyle == "-":
            axes.plot(line["round"], line["mean"], marker="o", markersize=3.5, label=variant, **style)
            axes.fill_between(line["round"], line["low"], line["high"], alpha=0.12, linewidth=0, color=style["color"])
        else:
            axes.plot(line["round"], line["mean"], linewidth=1.2, **style)


@styled
def client_spread(clients: pd.DataFrame, published: pd.DataFrame | None = None) -> Figure:
    """Every client as a dot at its accuracy, its area its samples n_i: a row of panels a setting, a panel a moment.

    clients: setting, tested, method, seed, client, n, value; methods top down as they appear, a seed's clients on one
    level, and a bar at the mean over clients and seeds. published: setting, tested, method, average, min, max; a
    hollow diamond, and a thin line from min to max, where known.
    """
    cell = ["setting", "tested", "method", "seed", "client"]
    check_table("client_spread", clients, [*cell, "n", "value"], key=cell)
    settings, moments = clients["setting"].unique().tolist(), clients["tested"].unique().tolist()
    methods, seeds = clients["method"].unique().tolist(), sorted(clients["seed"].unique())
    size = (WIDTH, 1.3 + len(settings) * (0.6 + 0.4 * len(methods)))
    figure, grid = plt.subplots(len(settings), len(moments), figsize=size, sharex="row", sharey=True, squeeze=False)
    scale = Normalize(0, clients["n"].max())
    for (y, x), axes in np.ndenumerate(grid):
        here = clients[(clients["setting"] == settings[y]) & (clients["tested"] == moments[x])]
        for method, rows in here.groupby("method", sort=False):
            at = methods.index(method)
            for seed, own in rows.sort_values("n", ascending=False).groupby("seed"):
                level = at + 0.5 * ((seeds.index(seed) + 0.5) / len(seeds) - 0.5)
                _dots(axes, own["value"], [level] * len(own), own["n"], scale)
            axes.plot([rows["value"].mean()] * 2, [at - 0.36, at + 0.36], color=".1", linewidth=1.6, label="average")
        if published is not None:
            known = published[(published["setting"] == settings[y]) & (published["tested"] == moments[x])]
            _published(axes, known.dropna(subset=["average"]), methods)
        axes.set(title=f"{settings[y]}, {moments[x]}", xlabel="client's accuracy (%)")
    _size_legend(grid[0, 0], clients["n"], scale)
    grid[0, 0].set_yticks(range(len(methods)), methods)
    grid[0, 0].set_ylim(len(methods) - 0.4, -0.6)
    legend_outside(figure, "", grid.flat, "outside lower center")
    figure.suptitle(f"a dot a client, a level a seed ({len(seeds)}); area: the client's training samples", fontsize=9)
    return figure


def _dots(axes: Axes, x: Any, y: Any, n: pd.Series, scale: Normalize) -> None:
    style: dict[str, Any] = {"cmap": SIZES, "norm": scale, "edgecolor": "w", "linewidth": 0.5, "zorder": 2}
    axes.scatter(x, y, s=_area(n, scale), c=n, **style)


def _area(n: Any, scale: Normalize) -> Any:
    return AREA[0] + AREA[1] * scale(n)


def _published(axes: Axes, known: pd.DataFrame, methods: list[str]) -> None:
    for _, row in known[known["method"].isin(methods)].iterrows():
        at = methods.index(row["method"])
        axes.plot([row["min"], row["max"]], [at, at], color=".15", linewidth=0.9, zorder=3)
        edge: dict[str, Any] = {"facecolors": "w", "edgecolors": ".15", "zorder": 4}
        axes.scatter([row["average"]], [at], marker="D", s=42, label="paper: average, and min to max", **edge)


def _size_legend(axes: Axes, n: pd.Series, scale: Normalize) -> None:
    """The fewest, the median and the most samples, as dots of their size, for the legend."""
    shown = [int(value) for value in (n.min(), n.quantile(0.5, "nearest"), n.max())]
    cmap = sns.color_palette(SIZES, as_cmap=True)
    for value in dict.fromkeys(shown):
        style: dict[str, Any] = {"color": cmap(scale(value)), "edgecolor": "w", "linewidth": 0.5}
        axes.scatter([], [], s=_area(value, scale), label=f"$n_i$ = {value:,}", **style)
