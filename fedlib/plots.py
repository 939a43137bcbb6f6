"""The collection's figures, in one style.

Every function takes plain values or tidy tables, returns a matplotlib Figure and leaves nothing behind: neither an
open pyplot figure nor a changed rcParam. Intervals are the 95 % Student-t intervals over seeds of summary.over_seeds.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import offset_copy

from fedlib import summary
from fedlib.analysis import density_ratio
from fedlib.checks import FedlibError, check_choice, check_number
from fedlib.claims import Verdict
from fedlib.data.federation import Federation
from fedlib.data.partition import hellinger, jensen_shannon
from fedlib.style import WIDTH, colours, legend_outside, styled

PUBLISHED_UNITS = {"system": "system accuracy (%)", "average": "average accuracy (%)"}

VERDICT_STYLE = {"holds": ("#0173b2", "o"), "fails": ("#d55e00", "s"), "undecided": ("#7f7f7f", "D")}
"""Colour (from seaborn's colour-blind safe palette) and marker, so that neither alone carries the meaning."""

_NOTE: dict[str, Any] = {"textcoords": "offset points", "va": "bottom", "color": ".3"}

Metrics = Sequence[str] | Mapping[str, str]
"""Names of metrics, or names with the words that stand for them on an axis."""


@styled
def partition(federation: Federation) -> Figure:
    """Training samples of each client and class as bubbles, n_i at the side, and the mean skew over pairs."""
    clients, classes = len(federation.clients), len(federation.classes)
    table = np.stack([np.bincount(c.train.labels.cpu(), minlength=classes) for c in federation.clients])
    figure, (left, right) = plt.subplots(1, 2, sharey=True, width_ratios=[4, 1], figsize=(WIDTH, 1.4 + 0.3 * clients))
    client, label = np.nonzero(table)
    area = min(260.0, 9000.0 / classes) / table.max()
    dots = left.scatter(label, client, s=table[client, label] * area, color=colours(1)[0], alpha=0.85, linewidth=0)
    _name_ticks(left, federation.classes)
    left.set(xlabel="class", ylabel="client", xlim=(-0.7, classes - 0.3))
    left.set_ylim(clients - 0.4, -0.6)
    left.yaxis.set_major_locator(MaxNLocator("auto", integer=True))
    _size_legend(figure, dots, area)
    bars = right.barh(range(clients), federation.sizes, color=colours(2)[1], height=0.6)
    right.bar_label(bars, fmt="{:,.0f}", padding=3)
    right.set(xlabel="training samples $n_i$", xlim=(0, 1.35 * max(federation.sizes)), xticks=[])
    right.grid(False)
    skew = f"Hellinger {hellinger(table):.2f}, Jensen–Shannon {jensen_shannon(table):.2f}"
    figure.suptitle(f"{federation.name}: {clients} clients; mean distance over pairs of clients: {skew}", fontsize=10)
    return figure


def _name_ticks(axes: Axes, names: Sequence[str]) -> None:
    """Name the classes where there is room, number them where there is not."""
    if len(names) > 20:
        axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
        return
    long = max(map(len, names)) > 3
    axes.set_xticks(range(len(names)), names, rotation=35 if long else 0, ha="right" if long else "center")


def _size_legend(figure: Figure, dots: PathCollection, area: float) -> None:
    handles, texts = dots.legend_elements(
        prop="sizes",
        num=3,
        func=lambda size: size / area,  # type: ignore[operator]
        fmt="{x:,.0f}",
        color=colours(1)[0],
        alpha=0.85,
    )
    figure.legend(handles, texts, title="samples", loc="outside right upper", labelspacing=1.2, handletextpad=1.0)


@styled
def appearances(federation: Federation, per_client: int = 6) -> Figure:
    """A contact sheet: the first `per_client` training images of each client, as it sees them; a row a client."""
    check_number("appearances: per_client", per_client, least=1, whole=True)
    _, height, width = federation.shape
    gap = max(1, height // 16)
    sheet = np.full(
        (len(federation.clients) * (height + gap) - gap, per_client * (width + gap) - gap, 3), 255, np.uint8
    )
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
        for value, colour in _hues(rows[hue]).items():
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
    figure.suptitle(_over(found["n"]), fontsize=9)
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
        axes.errorbar(line[x], line["mean"], errors, color=colour, marker="o", capsize=3, label=_name(metrics, metric))
        beside_it = offset_copy(axes.transData, figure, x=6, units="points")
        axes.scatter(dots[x], dots["value"], color=colour, alpha=0.5, s=14, linewidth=0, transform=beside_it)
        axes.margins(x=0.09)
        axes.set(xlabel=x, ylabel="accuracy (%)" if together and "@" in metric else _label(metrics, metric))
    for axes in grid[0]:
        _mark(axes, marks or {})
    if together:
        legend_outside(figure, "", grid[0])
    figure.suptitle(_over(found["n"]), fontsize=9)
    return figure


def _mark(axes: Axes, marks: Mapping[str, float]) -> None:
    """Vertical lines, labelled above the panel."""
    for label, value in marks.items():
        axes.axvline(value, color=".3", linestyle="--", linewidth=1)
        axes.annotate(label, (value, 1), (0, 2), ("data", "axes fraction"), ha="center", **_NOTE)


@styled
def comparison(beside: pd.DataFrame) -> Figure:
    """Our mean with its interval beside the paper's number, where it is known: a row of panels a setting.

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
    size = (WIDTH, 0.9 + len(settings) * (0.6 + 0.24 * len(methods)))
    figure, grid = plt.subplots(len(settings), len(metrics), figsize=size, sharey=True, squeeze=False)
    ours, theirs = colours(2)
    for (row, column), axes in np.ndenumerate(grid):
        cells = known[(known["setting"] == settings[row]) & (known["metric"] == metrics[column])]
        if cells.empty:
            axes.set_visible(False)
            continue
        places = [methods.index(method) for method in cells["method"]]
        errors = (cells["high"] - cells["ours"]).fillna(0)
        axes.errorbar(cells["ours"], places, xerr=errors, fmt="o", color=ours, capsize=3, label="ours, 95 % interval")
        axes.scatter(
            cells["paper"], places, marker="D", s=42, facecolors="none", edgecolors=theirs, label="paper", zorder=3
        )
        axes.set(xlabel=PUBLISHED_UNITS.get(metrics[column], metrics[column]), title=settings[row])
        axes.set_yticks(range(len(methods)), methods)
        axes.set_ylim(len(methods) - 0.5, -0.5)
        axes.tick_params(labelleft=column == 0 or not grid[row, 0].get_visible())
    legend_outside(figure, "", grid.flat)
    return figure


@styled
def verdicts(verdicts: Sequence[Verdict]) -> Figure:
    """Each claim's effect with its interval against its threshold, coloured by verdict; a panel for each unit.

    A verdict without an effect of its own (claims.all_of) or without an interval shows what it has.
    """
    if not verdicts:
        raise FedlibError("verdicts: none given; judge a claim first")
    labels = {id(v): _wrapped(f"{v.claim.id}  {v.claim.statement}") for v in verdicts}
    units = list(dict.fromkeys(v.claim.unit for v in verdicts))
    groups = [[v for v in verdicts if v.claim.unit == unit] for unit in units]
    line = 0.16 * max(2, *(label.count("\n") + 1 for label in labels.values())) + 0.12
    figure, panels = plt.subplots(
        len(units),
        1,
        figsize=(WIDTH, 0.6 + line * len(verdicts) + 0.5 * len(units)),
        height_ratios=[len(group) for group in groups],
        squeeze=False,
    )
    for axes, unit, group in zip(panels[:, 0], units, groups, strict=True):
        for place, verdict in enumerate(group):
            _verdict(axes, place, verdict)
        axes.set_yticks(range(len(group)), [labels[id(v)] for v in group])
        axes.set_ylim(len(group) - 0.5, -0.5)
        axes.set_xlabel(f"effect ({unit})")
        axes.grid(False, axis="y")
    legend_outside(figure, "", panels.flat, loc="outside upper center")
    return figure


def _wrapped(text: str, width: int = 46) -> str:
    """`text` in as few lines as fit in `width`, all about equally long."""
    lines = -(-len(text) // width)
    return textwrap.fill(text, min(width, len(text) // lines + 6))


def _verdict(axes: Axes, place: int, verdict: Verdict) -> None:
    """One row of the forest plot, its outcome in words at the right."""
    colour, marker = VERDICT_STYLE[verdict.verdict]
    axes.vlines(
        verdict.claim.threshold, place - 0.5, place + 0.5, color=".3", linestyle="--", linewidth=1, label="threshold"
    )
    axes.plot([verdict.low, verdict.high], [place, place], color=colour, linewidth=2)
    axes.plot(verdict.effect, place, color=colour, marker=marker, linestyle="none", label=verdict.verdict)
    numbers = "" if np.isnan(verdict.effect) else f"  {verdict.effect:+.3g}"
    numbers += "" if np.isnan(verdict.low) else f" [{verdict.low:+.3g}, {verdict.high:+.3g}]"
    words = "\n".join([f"{verdict.verdict}{numbers}, n = {verdict.n}", *textwrap.wrap(verdict.note, 34)])
    axes.annotate(
        words, (1.02, place), xycoords=("axes fraction", "data"), va="center", color=colour, annotation_clip=False
    )


@styled
def density_ratios(
    x: np.ndarray, origin: np.ndarray, means: np.ndarray, gamma: np.ndarray, xi: np.ndarray, sizes: Sequence[int]
) -> Figure:
    """Gaussian clients in the plane, what a fitted client head makes of them, and how well it does.

    Left: the samples by client, on the regions that the density router sends to each. Middle: recovered against true
    log density ratios to client 0. Right: what is left of the constraints of the empirical likelihood.
    x: (N, 2), origin: (N,), means: (m, 2), gamma and xi: the head, as analysis.density_ratio has them.
    """
    if x.shape[1] != 2:
        raise FedlibError(f"density_ratios: x is {x.shape}; give samples in the plane, (N, 2)")
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(WIDTH, 3.3))
    _regions(left, x, gamma, xi, sizes)
    true = density_ratio.log_density_ratio_true(x, means)
    recovered = density_ratio.log_density_ratio(x, gamma, xi, sizes)
    for client, colour in enumerate(colours(len(means))):
        points = {"s": 5, "color": colour, "linewidth": 0, "rasterized": True}
        left.scatter(*x[origin == client].T, label=f"client {client}", **points)
        if client:
            middle.scatter(true[:, client], recovered[:, client], alpha=0.5, **points)
    middle.axline((0, 0), slope=1, color=".3", linestyle="--", linewidth=1)
    p = density_ratio.empirical_likelihood(x, gamma, xi, sizes)
    residuals = np.abs(density_ratio.constraint_residuals(p, x, gamma, xi, sizes))
    names = ["Σp", *(f"client {client}" for client in range(len(means)))]
    right.barh(names, residuals, color=[(0.3, 0.3, 0.3), *colours(len(means))], height=0.6)
    right.invert_yaxis()
    right.set(xscale="log", xlim=(1e-17, 10), xlabel="|residual|", title="EL constraints")
    left.set(xlabel="$x_1$", ylabel="$x_2$", title="samples and router's regions")
    middle.set(xlabel="true", ylabel="recovered", title="log density ratio to client 0")
    legend_outside(figure, "", [left], loc="outside lower center", markerscale=3)
    return figure


def _regions(axes: Axes, x: np.ndarray, gamma: np.ndarray, xi: np.ndarray, sizes: Sequence[int]) -> None:
    """The plane around x, coloured by the client that the density router chooses."""
    (left, bottom), (right, top) = x.min(0) - 0.3, x.max(0) + 0.3
    across, up = np.meshgrid(np.linspace(left, right, 300), np.linspace(bottom, top, 300))
    plane = np.column_stack([across.ravel(), up.ravel()])
    chosen = density_ratio.log_density_ratio(plane, gamma, xi, sizes).argmax(1).reshape(across.shape)
    image = np.asarray(colours(len(gamma)))[chosen]
    axes.imshow(image, extent=(left, right, bottom, top), origin="lower", alpha=0.25, aspect="auto")
    axes.grid(False)


def _of_metrics(where: str, rows: pd.DataFrame, metrics: Metrics) -> pd.DataFrame:
    for metric in metrics:
        check_choice(f"{where}: metric", metric, rows["metric"].unique())
    return rows[rows["metric"].isin(list(metrics))]


def _hues(values: pd.Series) -> dict[Any, Any]:
    """A colour for each value: along a scale for numbers, in order of appearance for names."""
    distinct = values.dropna().unique().tolist()
    if pd.api.types.is_numeric_dtype(values):
        return dict(zip(sorted(distinct), sns.color_palette("viridis", len(distinct)), strict=True))
    return dict(zip(distinct, colours(len(distinct)), strict=True))


def _name(metrics: Metrics, metric: str) -> str:
    return metrics[metric] if isinstance(metrics, Mapping) else metric


def _label(metrics: Metrics, metric: str) -> str:
    return f"{_name(metrics, metric)} (%)" if "@" in metric else _name(metrics, metric)


def _over(n: pd.Series) -> str:
    """What dots and bands are, with the number of seeds."""
    if n.max() == 1:
        return "one seed: no interval"
    return f"mean and 95 % interval over {n.min()}{f' to {n.max()}' if n.max() > n.min() else ''} seeds"
