"""Pictures of a federation's heterogeneity: who holds which labels, and how each client's images look."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedlib.checks import check_number
from fedlib.data.federation import Federation
from fedlib.data.partition import hellinger, jensen_shannon
from fedlib.style import WIDTH, colours, styled

_NOTE: dict[str, Any] = {"textcoords": "offset points", "va": "bottom", "color": ".3"}


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
