"""Curves over rounds, sweeps over a setting, and the paper's table beside ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import offset_copy

from fedlib import summary
from fedlib.checks import FedlibError, check_choice
from fedlib.plots.common import hues, over_seeds_in_words
from fedlib.style import WIDTH, colours, legend_outside, styled

PUBLISHED_UNITS = {"system": "system accuracy (%)", "average": "average accuracy (%)"}

SYMBOLS = {"lam": "λ", "alpha": "α", "mu": "μ"}
"""How the names of design and code are written on an axis."""

_NOTE: dict[str, Any] = {"textcoords": "offset points", "va": "bottom", "color": ".3"}

Metrics = Sequence[str] | Mapping[str, str]
"""Names of metrics, or names with the words that stand for them on an axis."""


@styled
def curves(
    table: pd.DataFrame,
    metrics: Metrics,
    hue: str = "method",
    reference: tuple[float, str] | None = None,
    log: bool = False,
) -> Figure:
    """A panel a metric: the mean over seeds against the round with its interval, a line a value of `hue`.

    table: as runs.run_all returns it. reference: a horizontal line and its label, e.g. (1.0, "equal drift").
    log: a logarithmic axis.
    """
    rows = _of_metrics("curves", summary.overall(table), metrics)
    found = summary.over_seeds(rows, by=[hue, "round"]).sort_values("round")
    figure, panels = plt.subplots(1, len(metrics), figsize=(WIDTH, 3.4), squeeze=False)
    for axes, metric in zip(panels[0], metrics, strict=True):
        for value, colour in hues(rows[hue]).items():
            line = found[(found["metric"] == metric) & (found[hue] == value)]
            if len(line):
                axes.plot(line["round"], line["mean"], color=colour, label=str(value))
                axes.fill_between(line["round"], line["low"], line["high"], color=colour, alpha=0.2, linewidth=0)
        if reference is not None:
            axes.axhline(reference[0], color=".3", linestyle="--", linewidth=1)
            axes.annotate(reference[1], (0.99, reference[0]), (0, 3), ("axes fraction", "data"), ha="right", **_NOTE)
        axes.set(xlabel="round", ylabel=_label(metrics, metric), yscale="log" if log else "linear")
        axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
    legend_outside(figure, hue, panels[0])
    figure.suptitle(over_seeds_in_words(found["n"]), fontsize=9)
    return figure


@styled
def sweep(
    final: pd.DataFrame,
    x: str,
    metrics: Metrics,
    marks: Mapping[str, float] | None = None,
    together: bool = False,
) -> Figure:
    """Metrics against the experiment's column `x`: the mean with its interval, and each seed as a faint dot.

    A panel a metric, or all lines in one panel (`together`); values of `x` that are no numbers are not joined. marks:
    vertical lines by label, e.g. {"paper: 0.8": 0.8}. Runs without a value of `x` are left out.
    """
    check_choice("sweep: x", x, final.columns)
    rows = _of_metrics("sweep", final, metrics).dropna(subset=[x])
    found = summary.over_seeds(rows, by=[x])
    ordered = pd.api.types.is_numeric_dtype(rows[x])
    if ordered:
        found = found.sort_values(x)
    panels = 1 if together else len(metrics)
    figure, grid = plt.subplots(1, panels, figsize=(WIDTH, 3.4), squeeze=False)
    for place, (metric, colour) in enumerate(zip(metrics, colours(len(metrics)), strict=True)):
        axes = grid[0, 0 if together else place]
        line, dots = found[found["metric"] == metric], rows[rows["metric"] == metric]
        errors = (line["high"] - line["mean"]).fillna(0)
        axes.errorbar(
            line[x],
            line["mean"],
            errors,
            color=colour,
            fmt="o-" if ordered else "o",
            capsize=3,
            label=_name(metrics, metric),
        )
        beside_it = offset_copy(axes.transData, figure, x=6, units="points")
        axes.scatter(dots[x], dots["value"], color=colour, alpha=0.5, s=14, linewidth=0, transform=beside_it)
        axes.margins(x=0.09)
        axes.set(
            xlabel=SYMBOLS.get(x, x), ylabel="accuracy (%)" if together and "@" in metric else _label(metrics, metric)
        )
    for axes in grid[0]:
        _mark(axes, marks or {})
    if together:
        legend_outside(figure, "", grid[0])
    figure.suptitle(over_seeds_in_words(found["n"]), fontsize=9)
    return figure


def _mark(axes: Axes, marks: Mapping[str, float]) -> None:
    """Vertical lines, labelled above the panel."""
    for label, value in marks.items():
        axes.axvline(value, color=".3", linestyle="--", linewidth=1)
        axes.annotate(label, (value, 1), (0, 2), ("data", "axes fraction"), ha="center", **_NOTE)


@styled
def comparison(beside: pd.DataFrame) -> Figure:
    """Our mean with its interval beside the paper's number, where it is known: a row of panels a setting.

    With more than two metrics, each setting has panels for its own ones, such as the names of its domains.

    beside: as summary.beside returns it. Methods stand in the given order, top down; settings and metrics of which
    nothing is known, neither ours nor the paper's, are left out.
    """
    known = beside[beside[["paper", "ours"]].notna().any(axis=1)]
    if known.empty:
        raise FedlibError("comparison: neither the paper's numbers nor ours are known; give one row with a number")
    settings, metrics, methods = (
        known["setting"].unique(),
        known["metric"].unique().tolist(),
        beside["method"].unique().tolist(),
    )
    many = len(metrics) > 2
    own = {s: _summaries_last(known.loc[known["setting"] == s, "metric"]) if many else metrics for s in settings}
    columns = max(map(len, own.values()))
    size = (WIDTH * 1.15 if many else WIDTH, 0.9 + len(settings) * (0.6 + 0.24 * len(methods)))
    figure, grid = plt.subplots(len(settings), columns, figsize=size, sharey=True, squeeze=False)
    ours, theirs = colours(2)
    for (row, column), axes in np.ndenumerate(grid):
        metric = own[settings[row]][column] if column < len(own[settings[row]]) else ""
        cells = known[(known["setting"] == settings[row]) & (known["metric"] == metric)]
        if cells.empty:
            axes.set_visible(False)
            continue
        places = [methods.index(method) for method in cells["method"]]
        errors = (cells["high"] - cells["ours"]).fillna(0)
        axes.errorbar(cells["ours"], places, xerr=errors, fmt="o", color=ours, capsize=3, label="ours, 95 % interval")
        axes.scatter(
            cells["paper"], places, marker="D", s=42, facecolors="none", edgecolors=theirs, label="paper", zorder=3
        )
        unit = metric if many else PUBLISHED_UNITS.get(metric, metric)
        axes.set(xlabel=unit, title="" if many and column else settings[row])
        axes.margins(x=0.12 if many else 0.05)
        axes.set_yticks(range(len(methods)), methods)
        axes.set_ylim(len(methods) - 0.5, -0.5)
        axes.tick_params(labelleft=column == 0 or not grid[row, 0].get_visible())
    legend_outside(figure, "", grid.flat, loc="outside upper center" if many else "outside right upper")
    return figure


def _summaries_last(metrics: pd.Series) -> list[str]:
    """The distinct metrics in their order, with those over all domains at the end."""
    return sorted(metrics.unique(), key=["average", "std"].count)


def _of_metrics(where: str, rows: pd.DataFrame, metrics: Metrics) -> pd.DataFrame:
    for metric in metrics:
        check_choice(f"{where}: metric", metric, rows["metric"].unique())
    return rows[rows["metric"].isin(list(metrics))]


def _name(metrics: Metrics, metric: str) -> str:
    return metrics[metric] if isinstance(metrics, Mapping) else metric


def _label(metrics: Metrics, metric: str) -> str:
    return f"{_name(metrics, metric)} (%)" if "@" in metric else _name(metrics, metric)
