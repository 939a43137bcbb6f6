"""Drift in pictures: who draws from which distribution when, and what the distributions look like."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import seaborn as sns
import torch
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from fedlib.checks import FedlibError, check_number
from fedlib.data import drift as drifts
from fedlib.data.drift import Distribution
from fedlib.data.drifting import Drifting
from fedlib.data.federation import Federation
from fedlib.style import WIDTH, colours, styled

MOST_NAMED = 12
"""Distributions that a legend or a sheet of images has room for."""


def _checked(where: str, federation: Federation) -> Drifting:
    if not isinstance(federation, Drifting):
        raise FedlibError(f"{where}: federation {federation.name!r} does not drift; give one made with a drift")
    return federation


@styled
def schedule(federation: Federation) -> Figure:
    """Clients x rounds, coloured by distribution, and beside it what each visitor is tested on, in a column.

    Up to ten distributions have colours that colour-blind readers can tell; more go along a scale of growing lightness.
    Numbers, one a phase, index the bank. Of a mixture, the larger part counts.
    """
    drifting = _checked("schedule", federation)
    count, main = len(drifting.distributions), drifting.course.main
    phases = [drifts.phase_of(t, drifting.rounds, main.shape[1]) for t in range(1, drifting.rounds + 1)]
    palette = colours(count) if count <= 10 else sns.color_palette("cividis", count)
    figure, panels = plt.subplots(
        1, 2, sharey=True, figsize=(WIDTH, 1.6 + 0.2 * len(main)), width_ratios=[drifting.rounds, 1.4]
    )
    tested = np.array([[visitor.distribution] for visitor in drifting.visitors])
    _cells(panels[0], main[:, phases], palette)
    _cells(panels[1], tested, palette)
    _numbers(panels[0], main, phases, palette)
    _numbers(panels[1], tested, [0], palette)
    panels[0].set(xlabel="round", ylabel="client")
    panels[0].xaxis.set_major_locator(MaxNLocator(8, integer=True))
    panels[0].yaxis.set_major_locator(MaxNLocator(8, integer=True))
    panels[1].set_xticks([1], ["test"])
    panels[1].tick_params(left=False)
    figure.suptitle(
        f"{drifting.name}: {len(main)} clients, {len(set(phases))} phases, {count} distributions", fontsize=10
    )
    if count <= MOST_NAMED:
        found = [Patch(color=palette[d], label=f"{d}: {each.label}") for d, each in enumerate(drifting.distributions)]
        figure.legend(handles=found, title="distribution", loc="outside right upper")
    return figure


def _cells(axes: Axes, table: np.ndarray, palette: Any) -> None:
    """A cell each; the columns are numbered from 1, as rounds are."""
    extent = (0.5, table.shape[1] + 0.5, len(table) - 0.5, -0.5)
    colormap = ListedColormap([tuple(colour) for colour in palette])
    limits: dict[str, Any] = {"vmin": -0.5, "vmax": len(palette) - 0.5}
    axes.imshow(table, cmap=colormap, aspect="auto", interpolation="nearest", extent=extent, **limits)
    axes.grid(False)


def _numbers(axes: Axes, table: np.ndarray, phases: list[int], palette: Any) -> None:
    """The number of each client's distribution in the middle of each phase, dark on light and light on dark."""
    for phase in sorted(set(phases)):
        rounds = [t for t, own in enumerate(phases, 1) if own == phase]
        axes.axvline(rounds[-1] + 0.5, color="w", linewidth=1)
        for k, d in enumerate(table[:, phase]):
            light = float(np.dot(palette[d], (0.299, 0.587, 0.114)))
            axes.text(
                float(np.mean(rounds)), k, str(d), ha="center", va="center", size=7, color="k" if light > 0.5 else "w"
            )


@styled
def looks(federation: Federation, classes: int = 10) -> Figure:
    """A contact sheet: the same images, the pool's first of each class, under each distribution; a row each.

    Blank: the class is left out. A number in a corner: the label that the image has instead of its own. Where
    distributions are domains, each has images of its own. At most MOST_NAMED rows, and `classes` columns.
    """
    drifting = _checked("looks", federation)
    check_number("looks: classes", classes, least=1, whole=True)
    bank, columns = drifting.distributions[:MOST_NAMED], min(classes, len(drifting.classes))
    _, height, width = drifting.shape
    gap = max(1, height // 14)
    down, across = height + gap, width + gap
    sheet = np.full((len(bank) * down - gap, columns * across - gap, 3), 255, np.uint8)
    inches = (WIDTH - 2.4) / columns
    figure, axes = plt.subplots(figsize=(WIDTH, min(9.0, 0.9 + inches * len(bank))))
    for row, distribution in enumerate(bank):
        for column in range(columns):
            image, label = _example(drifting, distribution, column)
            if image is None:
                continue
            top, left = row * down, column * across
            sheet[top : top + height, left : left + width] = image
            if label != column:
                box: dict[str, Any] = {"facecolor": "w", "edgecolor": "none", "pad": 0.8}
                axes.text(left + width - 1, top, f"→{label}", size=7, ha="right", va="top", bbox=box)
    axes.imshow(sheet, interpolation="nearest")
    names = [f"{d}: {distribution.label}" for d, distribution in enumerate(bank)]
    axes.set_yticks(np.arange(len(bank)) * down + height / 2, names)
    axes.set_xticks(np.arange(columns) * across + width / 2, drifting.classes[:columns])
    axes.tick_params(length=0)
    axes.grid(False)
    sns.despine(ax=axes, left=True, bottom=True)
    whole = "" if len(bank) == len(drifting.distributions) else f"the first {len(bank)} of "
    axes.set_title(f"{drifting.name}: {whole}{len(drifting.distributions)} distributions")
    return figure


def _example(drifting: Drifting, distribution: Distribution, label: int) -> tuple[np.ndarray | None, int]:
    """The pool's first image of a class under a distribution, (H, W, 3), and its label then; None: there is none."""
    pool = drifting.pool
    mine = pool.labels == label
    if distribution.domain is not None and pool.domains is not None:
        mine = mine & (pool.domains == distribution.domain)
    first = np.flatnonzero(mine)[:1]
    images, labels = drifts.apply(
        torch.from_numpy(pool.images[first]), torch.from_numpy(pool.labels[first]), distribution
    )
    return (images[0].permute(1, 2, 0).numpy(), int(labels[0])) if len(labels) else (None, label)
