"""The collection's figures, in one style.

Every function takes plain values or tidy tables, returns a matplotlib Figure and leaves nothing behind: neither an
open pyplot figure nor a changed rcParam. Intervals are the 95 % Student-t intervals over seeds of summary.over_seeds.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, ParamSpec

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedlib import summary
from fedlib.analysis import density_ratio
from fedlib.checks import FedlibError, check_choice, check_number
from fedlib.claims import Verdict
from fedlib.data.federation import Federation
from fedlib.data.partition import counts, hellinger, jensen_shannon

STYLE: dict[str, Any] = sns.axes_style("whitegrid") | {
    "figure.constrained_layout.use": True,
    "figure.dpi": 100,
    "font.sans-serif": ["DejaVu Sans"],  # comes with matplotlib: the same letters on every machine
    "font.size": 9.0,
    "axes.titlesize": 10.0,
    "axes.labelsize": 9.0,
    "grid.color": ".9",
    "legend.frameon": False,
    "svg.hashsalt": "fedlib",
}
WIDTH = 8.5
"""Inches: a notebook's width."""

VERDICT_STYLE = {"holds": ("#0173b2", "o"), "fails": ("#d55e00", "s"), "undecided": ("#7f7f7f", "D")}
"""Colour (from seaborn's colour-blind safe palette) and marker, so that neither alone carries the meaning."""

P = ParamSpec("P")


def styled(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """Draw in STYLE, and leave no figure open in pyplot, even after an error."""

    @wraps(draw)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> Figure:
        before = set(plt.get_fignums())
        try:
            with plt.rc_context(STYLE):
                figure = draw(*args, **kwargs)
                figure.draw_without_rendering()  # ticks take their style from the context they are first drawn in
                return figure
        finally:
            for number in set(plt.get_fignums()) - before:
                plt.close(number)

    return drawn


def colours(count: int) -> list[tuple[float, float, float]]:
    """`count` colours, safe for colour-blind readers up to ten."""
    return sns.color_palette("colorblind" if count <= 10 else "husl", count)


@styled
def partition(federation: Federation) -> Figure:
    """Training samples of each client and class as bubbles, n_i at the side, and the mean skew over pairs of clients."""
    labels = [client.train.labels.cpu().numpy() for client in federation.clients]
    own = np.split(np.arange(sum(federation.sizes)), np.cumsum(federation.sizes)[:-1])
    table = counts(np.concatenate(labels), own, len(federation.classes))
    figure, (left, right) = plt.subplots(
        1, 2, sharey=True, width_ratios=[4, 1], figsize=(WIDTH, 1.4 + 0.3 * len(labels)), squeeze=True
    )
    client, label = np.nonzero(table)
    area = min(260.0, 9000.0 / len(federation.classes)) / table.max()
    dots = left.scatter(label, client, s=table[client, label] * area, color=colours(1)[0], alpha=0.85, linewidth=0)
    _name_ticks(left, federation.classes)
    left.set(xlabel="class", ylabel="client", xlim=(-0.7, len(federation.classes) - 0.3))
    left.set_ylim(len(labels) - 0.4, -0.6)
    left.yaxis.set_major_locator(MaxNLocator("auto", integer=True))
    _size_legend(figure, dots, area)
    bars = right.barh(range(len(labels)), federation.sizes, color=colours(2)[1], height=0.6)
    right.bar_label(bars, fmt="{:,.0f}", padding=3)
    right.set(xlabel="training samples $n_i$", xlim=(0, 1.35 * max(federation.sizes)), xticks=[])
    right.grid(False)
    skew = f"Hellinger {hellinger(table):.2f}, Jensen–Shannon {jensen_shannon(table):.2f}"
    figure.suptitle(f"{federation.name}: {len(labels)} clients; mean distance over pairs of clients: {skew}", fontsize=10)
    return figure


def _name_ticks(axes: Axes, names: Sequence[str]) -> None:
    """Name the classes where there is room, number them where there is not."""
    if len(names) > 20:
        axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
        return
    long = max(map(len, names)) > 3
    axes.set_xticks(range(len(names)), names, rotation=35 if long else 0, ha="right" if long else "center")


def _size_legend(figure: Figure, dots: PathCollection, area: float) -> None:
    handles, texts = dots.legend_elements(prop="sizes", num=3, func=lambda s: s / area, fmt="{x:,.0f}", alpha=0.85)
    figure.legend(handles, texts, title="samples", loc="outside right upper", labelspacing=1.2, handletextpad=1.0)


@styled
def appearances(federation: Federation, per_client: int = 6) -> Figure:
    """A contact sheet: the first `per_client` training images of each client, a row a client, as the client sees them."""
    check_number("appearances: per_client", per_client, least=1, whole=True)
    _, height, width = federation.shape
    gap = max(1, height // 16)
    sheet = np.full((len(federation.clients) * (height + gap) - gap, per_client * (width + gap) - gap, 3), 255, np.uint8)
    for row, client in enumerate(federation.clients):
        for column, image in enumerate(client.train.images[:per_client].cpu().numpy()):
            top, left = row * (height + gap), column * (width + gap)
            sheet[top : top + height, left : left + width] = image.transpose(1, 2, 0)
    inches = min(WIDTH, 0.8 * per_client + 1.2)
    figure, axes = plt.subplots(figsize=(inches, 0.6 + (inches - 1.2) * sheet.shape[0] / sheet.shape[1]))
    axes.imshow(sheet, interpolation="nearest")
    middles = np.arange(len(federation.clients)) * (height + gap) + height / 2
    axes.set_yticks(middles, [f"client {client.index}" for client in federation.clients])
    axes.set(xticks=[], title=f"{federation.name}: training images as each client sees them")
    axes.grid(False)
    sns.despine(ax=axes, left=True, bottom=True)
    return figure


@styled
def curves(
    table: pd.DataFrame, metrics: Sequence[str], hue: str = "method", reference: tuple[float, str] | None = None
) -> Figure:
    """A panel a metric: the mean over seeds against the round with its interval, a line a value of `hue`.

    table: as runs.run_all returns it. reference: a horizontal line and its label, e.g. (1.0, "equal drift").
    """
    rows = _of_metrics("curves", summary.overall(table), metrics)
    found = summary.over_seeds(rows, by=[hue, "round"]).sort_values("round")
    figure, panels = plt.subplots(1, len(metrics), figsize=(WIDTH, 3.4), squeeze=False)
    for axes, metric in zip(panels[0], metrics, strict=True):
        for value, colour in _hues(rows[hue]).items():
            line = found[(found["metric"] == metric) & (found[hue] == value)]
            if len(line):
                axes.plot(line["round"], line["mean"], color=colour, label=str(value))
                axes.fill_between(line["round"], line["low"], line["high"], color=colour, alpha=0.2, linewidth=0)
        if reference is not None:
            axes.axhline(reference[0], color=".3", linestyle="--", linewidth=1)
            axes.annotate(reference[1], (0.99, reference[0]), (0, 3), **_AT_THE_RIGHT)
        axes.set(xlabel="round", ylabel=_with_unit(metric))
        axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
    _legend_outside(figure, hue, panels[0])
    figure.suptitle(_over(found["n"]), fontsize=9)
    return figure


_AT_THE_RIGHT: dict[str, Any] = {
    "xycoords": ("axes fraction", "data"),
    "textcoords": "offset points",
    "ha": "right",
    "va": "bottom",
    "color": ".3",
}


@styled
def sweep(
    final: pd.DataFrame,
    x: str,
    metrics: Sequence[str],
    marks: Mapping[str, float] | None = None,
    together: bool = False,
) -> Figure:
    """Metrics against the experiment's column `x`: the mean with its interval, and each seed as a faint dot.

    A panel a metric, or all lines in one panel (`together`). marks: vertical lines by label, e.g. {"paper: 0.8": 0.8}.
    Runs without a value of `x` are left out.
    """
    check_choice("sweep: x", x, final.columns)
    rows = _of_metrics("sweep", final, metrics).dropna(subset=[x])
    found = summary.over_seeds(rows, by=[x])
    if pd.api.types.is_numeric_dtype(rows[x]):
        found = found.sort_values(x)
    panels = 1 if together else len(metrics)
    figure, grid = plt.subplots(1, panels, figsize=(WIDTH, 3.4), squeeze=False)
    for place, (metric, colour) in enumerate(zip(metrics, colours(len(metrics)), strict=True)):
        axes = grid[0, 0 if together else place]
        line, dots = found[found["metric"] == metric], rows[rows["metric"] == metric]
        errors = (line["high"] - line["mean"]).fillna(0)
        axes.errorbar(line[x], line["mean"], errors, color=colour, marker="o", capsize=3, label=metric)
        axes.scatter(dots[x], dots["value"], color=colour, alpha=0.35, s=14, linewidth=0)
        axes.set(xlabel=x, ylabel="accuracy (%)" if together and "@" in metric else _with_unit(metric))
    for axes in grid[0]:
        _mark(axes, marks or {})
    if together:
        _legend_outside(figure, "", grid[0])
    figure.suptitle(_over(found["n"]), fontsize=9)
    return figure


def _mark(axes: Axes, marks: Mapping[str, float]) -> None:
    """Vertical lines, labelled above the panel."""
    for label, value in marks.items():
        axes.axvline(value, color=".3", linestyle="--", linewidth=1)
        axes.annotate(label, (value, 1), (0, 2), **_ABOVE)


_ABOVE: dict[str, Any] = {
    "xycoords": ("data", "axes fraction"),
    "textcoords": "offset points",
    "ha": "center",
    "va": "bottom",
    "color": ".3",
}


@styled
def comparison(beside: pd.DataFrame) -> Figure:
    """Our mean with its interval beside the paper's number, where it is known: a row of panels a setting.

    beside: as summary.beside returns it. Methods stand in the given order, top down; settings and metrics of which
    nothing is known, neither ours nor the paper's, are left out.
    """
    known = beside[beside[["paper", "ours"]].notna().any(axis=1)]
    if known.empty:
        raise FedlibError("comparison: neither the paper's numbers nor ours are known; give one row with a number")
    settings, metrics, methods = known["setting"].unique(), known["metric"].unique(), beside["method"].unique()
    size = (WIDTH, 0.9 + len(settings) * (0.6 + 0.24 * len(methods)))
    figure, grid = plt.subplots(len(settings), len(metrics), figsize=size, sharey=True, squeeze=False)
    ours, theirs = colours(2)
    for (row, column), axes in np.ndenumerate(grid):
        cells = known[(known["setting"] == settings[row]) & (known["metric"] == metrics[column])]
        if cells.empty:
            axes.set_visible(False)
            continue
        places = [list(methods).index(method) for method in cells["method"]]
        errors = (cells["high"] - cells["ours"]).fillna(0)
        axes.errorbar(cells["ours"], places, xerr=errors, fmt="o", color=ours, capsize=3, label="ours, 95 % interval")
        axes.scatter(cells["paper"], places, marker="D", s=42, facecolors="none", edgecolors=theirs, label="paper", zorder=3)
        axes.set(xlabel=f"{metrics[column]} (%)", title=settings[row])
        axes.set_yticks(range(len(methods)), methods)
        axes.set_ylim(len(methods) - 0.5, -0.5)
        axes.tick_params(labelleft=column == 0 or not grid[row, 0].get_visible())
    _legend_outside(figure, "", grid.flat)
    return figure
