"""FEROMA's limits: more and more clients, and visitors whose distribution no client has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from fedlib import summary
from fedlib.analysis import unseen
from fedlib.plots.common import check_table, over_seeds_in_words, whiskers
from fedlib.style import WIDTH, colours, legend_outside, styled

MARKERS = "oDs^vP"
NUMBERS = ["mean", "low", "high", "n"]


@styled
def client_scaling(numbers: pd.DataFrame, log: Sequence[str] = ()) -> Figure:
    """A panel a value of `panel`, its label; a line a `method` against the number of `clients`, with its interval.

    numbers: panel, method, clients, mean, low, high, n. The axis of clients is logarithmic; log: panels whose values'
    axis is, too. A method may be missing from a panel, or from some numbers of clients.
    """
    cell = ["panel", "method", "clients"]
    check_table("client_scaling", numbers, [*cell, *NUMBERS], key=cell)
    panels, methods = (numbers[column].unique().tolist() for column in cell[:2])
    counts = sorted(numbers["clients"].unique().tolist())
    figure, grid = plt.subplots(1, len(panels), figsize=(WIDTH, 3.3), squeeze=False)
    for axes, panel in zip(grid[0], panels, strict=True):
        for method, colour, marker in zip(methods, colours(len(methods)), MARKERS * len(methods), strict=False):
            line = numbers[(numbers["panel"] == panel) & (numbers["method"] == method)].sort_values("clients")
            if len(line):
                style = {"color": colour, "marker": marker, "markersize": 5, "capsize": 2.5, "label": method}
                axes.errorbar(line["clients"], line["mean"], yerr=whiskers(line), **style)
        axes.set(xlabel="clients", ylabel=panel, xscale="log", yscale="log" if panel in log else "linear")
        axes.set_xticks(counts, [str(count) for count in counts])
        axes.set_xticks([], minor=True)
        if panel in log:
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axes.yaxis.set_minor_formatter(
                FuncFormatter(lambda value, _: f"{value:g}" if f"{value:e}"[0] in "25" else "")
            )
    legend_outside(figure, "", grid[0], "outside lower center")
    figure.suptitle(over_seeds_in_words(numbers["n"]), fontsize=9)
    return figure


@styled
def stranger_study(found: pd.DataFrame, level: float) -> Figure:
    """How strangers are told from seen visitors, and how each kind is answered.

    Left: detections against false alarms over all thresholds on the distance, visitors of all seeds together, a line a
    severity and kind of stranger; markers: the two rules at p <= level; dotted: guessing. Right: accuracy by the
    nearest profile's model and by the mean of all models: the mean over seeds with its interval.

    found: rows of analysis.unseen.met, of one or more runs.
    """
    check_table("stranger_study", found, ["severity", "kind", "seed", "distance", "nearest", "mean", *unseen.USUAL])
    found = found.assign(line=found["severity"] + ": " + found["kind"])
    figure, (left, right) = plt.subplots(1, 2, figsize=(WIDTH, 4.2), width_ratios=[1, 1])
    _curves(left, found, level)
    _answered(right, found)
    for axes in (left, right):
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2, fontsize=8)
    return figure


def _curves(axes: Axes, found: pd.DataFrame, level: float) -> None:
    strange = found[found["kind"] != unseen.SEEN]
    lines = strange["line"].unique().tolist()
    for (line, here), colour in zip(strange.groupby("line", sort=False), colours(len(lines)), strict=True):
        seen = found[(found["kind"] == unseen.SEEN) & (found["severity"] == here["severity"].iloc[0])]
        axes.plot(*unseen.roc(seen["distance"].to_numpy(), here["distance"].to_numpy()), color=colour, label=line)
        for rule, marker in zip(unseen.USUAL, MARKERS, strict=False):
            point = ((seen[rule] <= level).mean(), (here[rule] <= level).mean())
            axes.scatter(*point, marker=marker, s=42, facecolors="w", edgecolors=[colour], zorder=4, clip_on=False)
    for rule, marker in zip(unseen.USUAL, MARKERS, strict=False):
        axes.scatter([], [], marker=marker, s=42, facecolors="w", edgecolors=".3", label=f"p ≤ {level:g}, {rule}")
    axes.plot([0, 1], [0, 1], ":", color=".5", linewidth=1)
    axes.set(xlabel="false alarms (share of seen visitors)", ylabel="detections (share of strangers)")
    axes.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), title="told apart by the distance")


def _answered(axes: Axes, found: pd.DataFrame) -> None:
    lines = found["line"].unique().tolist()
    models = {"nearest": "model of the nearest profile", "mean": "mean of all models"}
    rows = found.groupby(["line", "seed"], sort=False)[list(models)].mean().reset_index()
    table = rows.melt(["line", "seed"], var_name="metric", value_name="value").assign(key="")
    numbers = summary.over_seeds(table, by=["line"])
    for (metric, label), colour, marker in zip(models.items(), (".15", ".55"), MARKERS, strict=False):
        here = numbers[numbers["metric"] == metric]
        y = here["line"].map(lines.index) + (0.12 if metric == "mean" else -0.12)
        style: dict[str, Any] = {"color": colour, "markersize": 5, "capsize": 2.5, "label": label}
        axes.errorbar(here["mean"], y, xerr=whiskers(here), fmt=marker, **style)
    axes.set_yticks(range(len(lines)), lines)
    axes.set_ylim(len(lines) - 0.5, -0.5)
    axes.set(xlabel="accuracy (%)", title=over_seeds_in_words(numbers["n"]))
    axes.grid(False, axis="y")
