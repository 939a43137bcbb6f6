"""Ablations: a few settings side by side in panels of lines, and networks beside the parameters that they cost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedlib import summary
from fedlib.checks import FedlibError, check_choice, check_number
from fedlib.style import WIDTH, colours, legend_outside, styled

Lines = Mapping[str, Mapping[str, Any]]
"""Labels, each with the values of columns that pick its runs: {"FedAvg": {"method": "FedAvg", "metric": "…"}}."""

PUBLISHED_MARKERS = "Ds^v"


@styled
def ablation(
    final: pd.DataFrame, x: str, panels: Mapping[str, Lines], published: pd.DataFrame | None = None, columns: int = 2
) -> Figure:
    """A panel a title, a line a label over the settings in column `x`: mean, 95 % interval, and each seed as a dot.

    Settings stand at equal distances: numbers in ascending order, names as they appear. Lines are moved apart
    sideways so that none hides another. published: columns panel, label, `x`, value; drawn as hollow markers.
    """
    order = _order(final[check_choice("ablation: x", x, final.columns)])
    labels = list(dict.fromkeys(label for lines in panels.values() for label in lines))
    colour = dict(zip(labels, colours(len(labels)), strict=True))
    rows = -(-len(panels) // columns)
    figure, grid = plt.subplots(rows, columns, figsize=(WIDTH, 0.6 + 2.6 * rows), squeeze=False)
    for axes, (title, lines) in zip(grid.flat, panels.items(), strict=False):
        percent = True
        for side, (label, wanted) in zip(_sides(len(lines)), lines.items(), strict=True):
            picked = _pick(final, label, wanted)
            percent = percent and bool(picked["metric"].str.contains("@", regex=False).all())
            _line(axes, picked, x, order, side, color=colour[label], label=label)
        if not percent:
            axes.axhline(0, color=".3", linestyle="--", linewidth=1, zorder=1)
        axes.set(title=title, xlabel=x, ylabel="accuracy (%)" if percent else "points")
        axes.set_xticks(range(len(order)), [str(value) for value in order])
        axes.set_xlim(-0.5, len(order) - 0.5)
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    if published is not None:
        _publish(dict(zip(panels, grid.flat, strict=False)), panels, published, x, order)
    legend_outside(figure, "", grid.flat, "outside lower center", columns=4, markers_last=True)
    figure.suptitle(_what_dots_are(final), fontsize=9)
    return figure


@styled
def costs(
    parameters: pd.DataFrame,
    final: pd.DataFrame,
    x: str,
    metrics: Mapping[str, str],
    band: tuple[str, str, float] | None = None,
) -> Figure:
    """Parameters as stacked bars, and beside them a panel a metric: mean, 95 % interval, and each seed as a dot.

    parameters: a row a value of `x`, top down, a column a part of the network. metrics: names with their words.
    band: (metric, value of `x`, points): shades the mean there plus and minus so many points.
    """
    order = list(parameters.index)
    missing = set(final[check_choice("costs: x", x, final.columns)].dropna()) - set(order)
    if missing:
        raise FedlibError(f"costs: parameters: no row for {sorted(missing)}; give one a value of {x}")
    if band is not None:
        check_choice("costs: band", band[0], metrics)
    figure, panels = plt.subplots(
        1,
        1 + len(metrics),
        sharey=True,
        width_ratios=[1.6, *[1.0] * len(metrics)],
        figsize=(WIDTH, 1.5 + 0.45 * len(order)),
        squeeze=False,
    )
    _bars(panels[0, 0], parameters)
    ours = colours(len(parameters.columns) + 1)[-1]
    for axes, (metric, words) in zip(panels[0, 1:], metrics.items(), strict=True):
        picked = _pick(final, words, {"metric": metric})
        if band is not None and band[0] == metric:
            _shade(axes, picked, x, check_choice(f"costs: band: {x}", band[1], order), band[2])
        _line(axes, picked, x, order, 0.0, upright=True, color=ours)
        axes.set(xlabel=f"{words} (%)")
    panels[0, 0].set_yticks(range(len(order)), order)
    panels[0, 0].set_ylim(len(order) - 0.5, -0.5)
    legend_outside(figure, "", panels.flat, "outside lower center", columns=4, markers_last=True)
    figure.suptitle(_what_dots_are(final), fontsize=9)
    return figure


def _order(values: pd.Series) -> list[Any]:
    """The distinct settings: numbers ascending, names as they appear."""
    distinct = values.dropna().unique().tolist()
    return sorted(distinct) if pd.api.types.is_numeric_dtype(values) else distinct


def _sides(count: int) -> list[float]:
    """How far each of `count` lines stands beside its setting: symmetric about 0."""
    return [0.16 * (place - (count - 1) / 2) for place in range(count)]


def _pick(final: pd.DataFrame, label: str, wanted: Mapping[str, Any]) -> pd.DataFrame:
    """The rows that have all the wanted column values. Raises FedlibError naming the first that none has."""
    rows = final
    for column, value in wanted.items():
        check_choice(f"line {label!r}: column", column, final.columns)
        rows = rows[rows[column] == check_choice(f"line {label!r}: {column}", value, rows[column].unique())]
    return rows


def _line(
    axes: Axes, rows: pd.DataFrame, x: str, order: list[Any], side: float, upright: bool = False, **style: Any
) -> None:
    """Mean and interval at each setting, moved by `side`, the seeds a little further; upright: settings go down."""
    places = {value: place + side for place, value in enumerate(order)}
    found = summary.over_seeds(rows, by=[x])
    found = found.assign(place=found[x].map(places)).sort_values("place")
    half = (found["high"] - found["mean"]).fillna(0)
    dots = rows[x].map(places) + 0.06 * (3 if upright else 1)
    if upright:
        axes.errorbar(found["mean"], found["place"], xerr=half, fmt="o", markersize=5, capsize=3, **style)
        axes.scatter(rows["value"], dots, color=style["color"], alpha=0.5, s=14, linewidth=0)
    else:
        axes.errorbar(found["place"], found["mean"], yerr=half, marker="o", markersize=5, capsize=3, **style)
        axes.scatter(dots, rows["value"], color=style["color"], alpha=0.5, s=14, linewidth=0)


def _publish(
    axes: Mapping[str, Axes], panels: Mapping[str, Lines], published: pd.DataFrame, x: str, order: list[Any]
) -> None:
    """Hollow markers, left of the lines, where a published number is known and its setting is drawn."""
    labels = published["label"].unique().tolist()
    if len(labels) > len(PUBLISHED_MARKERS):
        raise FedlibError(f"ablation: published has {len(labels)} labels; give at most {len(PUBLISHED_MARKERS)}")
    for panel in published["panel"].unique():
        check_choice("ablation: panel of published", panel, panels)
    known = published[published["value"].notna() & published[x].isin(order)]
    for (panel, label), cells in known.groupby(["panel", "label"], sort=False):
        left = _sides(len(panels[str(panel)]))[0] - 0.14
        axes[str(panel)].scatter(
            [order.index(value) + left for value in cells[x]],
            cells["value"],
            marker=PUBLISHED_MARKERS[labels.index(label)],
            label=label,
            s=46,
            facecolors="none",
            edgecolors=".15",
            linewidth=1.3,
            zorder=4,
        )


def _bars(axes: Axes, parameters: pd.DataFrame) -> None:
    """A stacked bar a row, with its sum written out."""
    begin = np.zeros(len(parameters))
    for part, colour in zip(parameters, colours(len(parameters.columns) + 1), strict=False):
        values = parameters[part].to_numpy()
        axes.barh(range(len(parameters)), values, left=begin, height=0.55, color=colour, label=part)
        begin = begin + values
    for place, total in enumerate(begin):
        axes.annotate(f"{total:,.0f}", (total, place), (4, 0), textcoords="offset points", va="center")
    axes.set(xlabel="parameters", xlim=(0, 1.45 * begin.max()))
    axes.xaxis.set_major_locator(plt.MaxNLocator(3))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value / 1e6:g} M")
    axes.grid(False)


def _shade(axes: Axes, rows: pd.DataFrame, x: str, at: Any, points: float) -> None:
    """From the mean at setting `at` so many points to both sides."""
    check_number("costs: band: points", points, above=0)
    mean = float(rows.loc[rows[x] == at, "value"].mean())
    axes.axvspan(mean - points, mean + points, color=".85", zorder=0, label=f"{at} ± {points:g} points")


def _what_dots_are(final: pd.DataFrame) -> str:
    seeds = final["seed"].nunique()
    return "one seed: no interval" if seeds == 1 else f"mean, 95 % interval, and each of {seeds} seeds as a dot"
