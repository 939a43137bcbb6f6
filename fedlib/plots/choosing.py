"""Beyond the FedFew paper: the number of models chosen without test data, and the noise of choosing among them.

Tables are tidy, with a seed column: lines are means over seeds, bands and bars their 95 % intervals.
"""

from __future__ import annotations

import math
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedlib import summary
from fedlib.analysis.choose_k import HALVES, SAME, best, enough
from fedlib.analysis.selection_noise import DRAWN, NORMAL
from fedlib.checks import FedlibError
from fedlib.plots.common import check_table, hues, over_seeds_in_words
from fedlib.style import WIDTH, colours, legend_outside, styled

GREY = ".4"
FILL = {HALVES: "-", SAME: ":"}


@styled
def count_choice(
    accuracy: pd.DataFrame, losses: pd.DataFrame, coverage: pd.DataFrame, choices: pd.DataFrame, margin: float
) -> Figure:
    """K against test accuracy, against held-out losses, coverage by the number of models, and each rule's regret.

    accuracy, losses, coverage, choices: as analysis.choose_k.choices takes and returns them. margin: the points that a
    claim allows to be lost, drawn as a line.
    """
    check_table("count_choice: accuracy", accuracy, ["K", "seed", "value"], key=["K", "seed"])
    check_table("count_choice: losses", losses, ["moment", "samples", "K", "seed", "value"])
    check_table("count_choice: coverage", coverage, ["moment", "size", "seed", "loss", "gain", "noise"])
    check_table("count_choice: choices", choices, ["rule", "seed", "regret"], key=["rule", "seed"])
    figure, ((truth, loss), (cover, regret)) = plt.subplots(2, 2, figsize=(WIDTH, 6.4))
    _band(truth, accuracy, "K", color=GREY, marker="o", markersize=4, label="test accuracy")
    oracle = best(accuracy)
    star = {"marker": "*", "s": 60, "color": colours(4)[3], "zorder": 4}
    truth.scatter(oracle["K"], oracle["value"], label="best K of a seed", **star)
    palette = hues(losses["moment"])
    for moment, colour in palette.items():
        for samples, dashes in FILL.items():
            rows = losses[(losses["moment"] == moment) & (losses["samples"] == samples)]
            label, style = f"{moment}, {samples}", {"color": colour, "linestyle": dashes}
            _band(loss, rows, "K", shade=samples == HALVES, marker="o", markersize=4, label=label, **style)
        _covered(cover, coverage[coverage["moment"] == moment], colour, moment)
    for axes in (truth, loss):
        axes.set_xticks(sorted(accuracy["K"].unique()))
        axes.set_xlabel("K, models of the run")
    cover.set_xticks(sorted(coverage["size"].unique()))
    truth.set(ylabel="accuracy (%)", title="test accuracy at the end")
    loss.set(ylabel="held-out loss (nats)", title="held-out loss, chosen and scored on")
    cover.set(xlabel="|S|, models kept", ylabel="held-out loss (nats)", title=f"coverage, K = {coverage['size'].max()}")
    _regrets(regret, choices, margin)
    for axes in (truth, loss, cover):
        axes.legend(fontsize=7.5)
    figure.suptitle(over_seeds_in_words(accuracy.groupby("K")["seed"].nunique()), fontsize=9)
    return figure


@styled
def noisy_choice(table: pd.DataFrame, column: str = "partition") -> Figure:
    """By n: how often the choice is right, its regret beside the other rules', and wrong orders beside the normal law.

    A row a value of `column`. table: of analysis.selection_noise.selection, with `column` and seed.
    """
    check_table("noisy_choice", table, [column, "rule", "size", "metric", "seed", "value"])
    settings = table[column].unique().tolist()
    inches = (WIDTH, 1.0 + 2.7 * len(settings))
    figure, grid = plt.subplots(len(settings), 3, figsize=inches, squeeze=False, sharex=True)
    sizes = sorted(table["size"].dropna().unique())
    if not sizes:
        raise FedlibError("noisy_choice: no row has a number of samples n; take them from selection_noise.selection")
    place = {n: i for i, n in enumerate(sizes)}
    palette = hues(table["rule"]) | {DRAWN: colours(6)[5], NORMAL: (0.2, 0.2, 0.2)}
    for line, setting in zip(grid, settings, strict=True):
        rows = table[table[column] == setting]
        for axes, metric in zip(line, ("right", "regret", "swapped"), strict=True):
            _rules(axes, rows[rows["metric"] == metric], place, palette)
        line[0].set(ylabel=f"{setting}\nclients (%)", ylim=(0, 102), title="choice is best on test")
        line[1].set(ylabel="points", title="regret against the best")
        line[2].set(ylabel="draws (%)", title="second best looks better")
        line[2].set_ylim(bottom=0)
    for axes in grid[-1]:
        axes.set_xticks(range(len(sizes)), ["all" if math.isinf(n) else f"{n:g}" for n in sizes])
        axes.set_xlabel("held-out samples n")
    legend_outside(figure, "", grid.flat, "outside lower center", columns=4)
    figure.suptitle(over_seeds_in_words(table.groupby([column, "rule"])["seed"].nunique()), fontsize=9)
    return figure


def _band(axes: Axes, rows: pd.DataFrame, x: str, shade: bool = True, **style: Any) -> None:
    """The mean over seeds by `x`, with its interval."""
    found = summary.over_seeds(rows.assign(metric=""), by=[x]).sort_values(x)
    axes.plot(found[x], found["mean"], **style)
    if shade:
        axes.fill_between(found[x], found["low"], found["high"], color=style["color"], alpha=0.15, linewidth=0)


def _covered(axes: Axes, rows: pd.DataFrame, colour: Any, moment: str) -> None:
    """The curve, and on it what each seed takes as enough; seeds of the same size stand beside each other."""
    _band(axes, rows.assign(value=rows["loss"]), "size", color=colour, marker="o", markersize=4, label=moment)
    taken = pd.Series({seed: enough(own) for seed, own in rows.groupby("seed")})
    mean = rows.groupby("size")["loss"].mean()
    beside = taken + 0.07 * (taken.groupby(taken).cumcount() + 1)
    style: dict[str, Any] = {"marker": "D", "s": 26, "facecolors": "none", "edgecolors": [colour], "zorder": 4}
    axes.scatter(beside, taken.map(mean), label=f"enough, a seed ({moment})", **style)


def _regrets(axes: Axes, choices: pd.DataFrame, margin: float) -> None:
    """A row a rule: its mean with its interval, each seed as a dot."""
    rules = choices["rule"].unique().tolist()
    found = summary.over_seeds(choices.assign(metric="", value=choices["regret"]), by=["rule"]).set_index("rule")
    for place, rule in enumerate(rules):
        one, seeds = found.loc[rule], choices.loc[choices["rule"] == rule, "regret"]
        half = [[0.0 if math.isnan(one["high"]) else one["high"] - one["mean"]]]
        axes.errorbar([one["mean"]], [place], xerr=half, color=colours(1)[0], marker="o", markersize=4.5, capsize=2.5)
        axes.scatter(seeds, [place + 0.22] * len(seeds), color=colours(1)[0], alpha=0.5, s=12, linewidth=0)
    axes.axvline(margin, color=GREY, linestyle="--", linewidth=1)
    axes.set_yticks(range(len(rules)), rules)
    axes.set_ylim(len(rules) - 0.5, -0.5)
    axes.set(xlabel="points", title="regret against the best K")


def _rules(axes: Axes, rows: pd.DataFrame, place: dict[float, int], palette: dict[str, Any]) -> None:
    """One panel: rules with a size as bands, the others as dashed lines at their means."""
    for rule, own in rows.groupby("rule", sort=False):
        style: dict[str, Any] = {"color": palette[str(rule)], "label": rule}
        if own["size"].isna().any():
            axes.axhline(own["value"].mean(), linestyle="--", linewidth=1.3, **style)
        else:
            style |= {"marker": "s", "linestyle": ":"} if rule == NORMAL else {"marker": "o"}
            _band(axes, own.assign(at=own["size"].map(place)), "at", markersize=4, **style)
