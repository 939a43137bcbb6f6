"""FEROMA's profiles in pictures: their distances beside those of distributions, and what privacy costs them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedlib import summary
from fedlib.checks import FedlibError
from fedlib.plots.common import check_table, over_seeds_in_words, whiskers
from fedlib.style import WIDTH, colours, legend_outside, styled

CELLS = 22
"""Hexagons along a panel."""
SAME, APART, REFERENCE = colours(10)[1], colours(10)[2], colours(10)[3]
NONE = "none"
WORDS = {"error": "noise / distance of clients", "match": "visitors matched (%)"}


@styled
def profile_distances(pairs: pd.DataFrame, notes: Mapping[tuple[str, str], str] | None = None) -> Figure:
    """Profile distance against W2: a row of panels a `row`, a panel a `panel`; darker hexagons hold more pairs.

    pairs: row, panel, w2, raw, same. A circle at the median of the pairs of one distribution, a diamond at that of two,
    where there are any. Dashed: raw = w2, where xi is 0. notes: {(row, panel): words behind the panel's title}.
    """
    check_table("profile_distances", pairs, ["row", "panel", "w2", "raw", "same"])
    rows, columns = pairs["row"].unique().tolist(), pairs["panel"].unique().tolist()
    size = (WIDTH, 0.9 + 2.0 * len(rows))
    figure, grid = plt.subplots(len(rows), len(columns), figsize=size, squeeze=False)
    for (y, x), axes in np.ndenumerate(grid):
        here = pairs[(pairs["row"] == rows[y]) & (pairs["panel"] == columns[x])]
        if here.empty:
            axes.set_visible(False)
            continue
        _density(axes, here)
        note = (notes or {}).get((rows[y], columns[x]), "")
        axes.set_title(f"{columns[x]}, {rows[y]}" + (f"\n{note}" if note else ""), fontsize=9)
        axes.set(xlabel="$W_2$" if y == len(rows) - 1 else "", ylabel="" if x else r"$\|d_a - d_b\|$")
    legend_outside(figure, "", grid.flat, "outside lower center")
    return figure


def _density(axes: Axes, here: pd.DataFrame) -> None:
    axes.hexbin(here["w2"], here["raw"], gridsize=CELLS, bins="log", mincnt=1, cmap="Blues", vmin=0.3, linewidths=0.1)
    limits = axes.get_xlim(), axes.get_ylim()
    axes.axline((0, 0), slope=1, color=".3", linestyle="--", linewidth=1, label=r"$\|d_a - d_b\| = W_2$")
    for same, marker, colour, words in (
        (True, "o", SAME, "one distribution"),
        (False, "D", APART, "two distributions"),
    ):
        own = here[here["same"] == same]
        style: dict[str, Any] = {"marker": marker, "color": colour, "edgecolor": "w", "s": 60, "zorder": 4}
        if len(own):
            axes.scatter(own["w2"].median(), own["raw"].median(), label=f"median pair of {words}", **style)
    axes.set(xlim=limits[0], ylim=limits[1])


@styled
def privacy_study(curves: pd.DataFrame, trained: pd.DataFrame, references: pd.DataFrame) -> Figure:
    """Above, without training, a column a mechanism: error of a profile, and matches, by samples, a line an epsilon.
    Below, of trained runs, two panels by epsilon.

    curves: mechanism, epsilon, samples, metric, seed, value, with the metrics error, match and chance, and mechanism
    "none" for what there is without noise. trained: panel, mechanism, epsilon, seed, value; infinite epsilons of
    "none" stand at the right end. references: panel, line, seed, value; lines at their means.
    """
    check_table("privacy_study: curves", curves, ["mechanism", "epsilon", "samples", "metric", "seed", "value"])
    check_table("privacy_study: trained", trained, ["panel", "mechanism", "epsilon", "seed", "value"])
    mechanisms, titles = [name for name in curves["mechanism"].unique() if name != NONE], trained["panel"].unique()
    if len(titles) != 2 or not mechanisms:
        raise FedlibError(
            f"privacy_study: panels {titles.tolist()}, mechanisms {mechanisms}; give two, and at least one"
        )
    figure = plt.figure(figsize=(WIDTH, 8.4))
    whole, wide = figure.add_gridspec(3, 2 * len(mechanisms), height_ratios=[1, 1, 1.1]), len(mechanisms)
    found = summary.over_seeds(curves, by=["mechanism", "epsilon", "samples"])
    first: list[Axes | None] = [None, None]
    for x, mechanism in enumerate(mechanisms):
        for y, metric in enumerate(("error", "match")):
            axes = figure.add_subplot(whole[y, 2 * x : 2 * x + 2], sharey=first[y])
            first[y] = first[y] or axes
            _by_samples(axes, found, mechanism, metric)
            axes.set_title(f"{mechanism}, not trained" if y == 0 else "")
            axes.set(xlabel="samples n" if y else "", ylabel="" if x else WORDS[metric])
    for x, title in enumerate(titles):
        axes = figure.add_subplot(whole[2, x * wide : (x + 1) * wide])
        _by_epsilon(axes, trained[trained["panel"] == title], references[references["panel"] == title])
        axes.set(title=f"{title}, trained", xlabel="ε of one round", ylabel="%")
    legend_outside(figure, "", figure.axes, "outside lower center", columns=5)
    figure.suptitle(over_seeds_in_words(trained.groupby("panel")["seed"].nunique()), fontsize=9)
    return figure


def _by_samples(axes: Axes, found: pd.DataFrame, mechanism: str, metric: str) -> None:
    """A line an epsilon of this mechanism; without noise dashed, chance dotted."""
    own = found[(found["mechanism"] == mechanism) & (found["metric"] == metric)]
    palette = dict(
        zip(sorted(own["epsilon"].unique()), sns.color_palette("viridis", own["epsilon"].nunique()), strict=True)
    )
    for epsilon, colour in palette.items():
        line = own[own["epsilon"] == epsilon].sort_values("samples")
        axes.plot(line["samples"], line["mean"], "o-", markersize=3.5, color=colour, label=f"ε = {epsilon:g}")
        axes.fill_between(line["samples"], line["low"], line["high"], color=colour, alpha=0.15, linewidth=0)
    if metric == "error":
        axes.axhline(1.0, color=".3", linestyle="-.", linewidth=1, label="as much noise as signal")
        axes.set_yscale("log")
    else:
        plain = found[found["mechanism"] == NONE].sort_values("samples")
        for name, words, style in (("match", "without noise", "--"), ("chance", "chance", ":")):
            line = plain[plain["metric"] == name]
            axes.plot(line["samples"], line["mean"], style, color=".3", linewidth=1.2, label=words)
        axes.set_ylim(-4, 104)
    axes.set_xscale("log")


def _by_epsilon(axes: Axes, trained: pd.DataFrame, references: pd.DataFrame) -> None:
    """Means with intervals at equal distances, and each seed as a faint dot; means of the references as lines."""
    epsilons = sorted(trained["epsilon"].unique())
    named = [name for name in trained["mechanism"].unique() if name != NONE]
    for place, (mechanism, colour) in enumerate(zip([*named, NONE], [*colours(len(named)), ".1"], strict=True)):
        rows = trained[trained["mechanism"] == mechanism].assign(metric="")
        if rows.empty:
            continue
        line = summary.over_seeds(rows, by=["epsilon"]).sort_values("epsilon")
        aside = 0.12 * (place - (len(named) - 1) / 2) if mechanism != NONE else 0.0
        at = [epsilons.index(epsilon) + aside for epsilon in line["epsilon"]]
        style: dict[str, Any] = {"color": colour, "fmt": "o-", "capsize": 3, "markersize": 4}
        axes.errorbar(
            at, line["mean"], whiskers(line), label="trained without noise" if mechanism == NONE else mechanism, **style
        )
        dots = [epsilons.index(epsilon) + aside + 0.06 for epsilon in rows["epsilon"]]
        axes.scatter(dots, rows["value"], color=colour, s=12, alpha=0.4, linewidth=0)
    for name, rows in references.groupby("line", sort=False):
        style = {"color": ".3", "linestyle": ":"} if name == "chance" else {"color": REFERENCE, "linestyle": "--"}
        axes.axhline(rows["value"].mean(), linewidth=1.4, label=name, **style)
    low, high = axes.get_ylim()
    axes.set_ylim(max(low, -4), min(high, 104))  # an interval of few seeds may go far beyond what a share can be
    axes.set_xticks(range(len(epsilons)), ["∞" if np.isinf(epsilon) else f"{epsilon:g}" for epsilon in epsilons])
