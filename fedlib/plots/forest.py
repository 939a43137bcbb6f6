"""Verdicts as a forest plot."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from fedlib.checks import FedlibError
from fedlib.claims import Verdict
from fedlib.style import WIDTH, legend_outside, styled

VERDICT_STYLE = {"holds": ("#0173b2", "o"), "fails": ("#d55e00", "s"), "undecided": ("#7f7f7f", "D")}
"""Colour (from seaborn's colour-blind safe palette) and marker, so that neither alone carries the meaning."""


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
def verdict_grid(verdicts: Mapping[str, Sequence[Verdict]]) -> Figure:
    """The same claims judged in several settings: a row a claim, a column a setting, the cell its verdict and effect.

    verdicts: {setting: its verdicts, the claims in the same order in each}. A claim's id is read up to its first
    comma, behind which the setting may stand.
    """
    if not verdicts or len({len(column) for column in verdicts.values()}) != 1 or not all(verdicts.values()):
        raise FedlibError("verdict_grid: give at least one setting, and as many verdicts in each")
    first = next(iter(verdicts.values()))
    labels = [_wrapped(f"{v.claim.id.partition(',')[0]}  {v.claim.statement}", 40) for v in first]
    lines = max(3, *(label.count("\n") + 1 for label in labels))
    figure, axes = plt.subplots(figsize=(3.2 + 1.15 * len(verdicts), 0.8 + 0.17 * lines * len(first)))
    for column, judged in enumerate(verdicts.values()):
        for row, verdict in enumerate(judged):
            _cell(axes, column, row, verdict)
    axes.set_xlim(-0.5, len(verdicts) - 0.5)
    axes.set_ylim(len(first) - 0.5, -0.5)
    axes.set_xticks(range(len(verdicts)), [name.replace("/", "\n") for name in verdicts])
    axes.set_yticks(range(len(first)), labels)
    axes.tick_params(top=True, labeltop=True, bottom=False, labelbottom=False)
    axes.grid(False)
    return figure


def _cell(axes: Axes, column: int, row: int, verdict: Verdict) -> None:
    """One cell of the grid: coloured and in words, so that colour alone carries nothing."""
    colour, _ = VERDICT_STYLE[verdict.verdict]
    axes.add_patch(Rectangle((column - 0.48, row - 0.46), 0.96, 0.92, color=colour, alpha=0.22, linewidth=0))
    effect = "" if np.isnan(verdict.effect) else f"\n{verdict.effect:+.1f}"
    interval = "" if np.isnan(verdict.low) else f"\n[{verdict.low:+.1f}, {verdict.high:+.1f}]"
    axes.text(column, row, f"{verdict.verdict}{effect}{interval}", ha="center", va="center", fontsize=7.5)
