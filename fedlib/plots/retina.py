"""The centres as the network sees them under several normalisations, and what each does to accuracy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedlib import summary
from fedlib.checks import check_choice, check_number
from fedlib.data.federation import Client, Federation
from fedlib.style import WIDTH, colours, legend_outside, styled


@styled
def normalisations(
    federations: Mapping[str, Federation],
    final: pd.DataFrame,
    metrics: Mapping[str, str],
    names: Sequence[str],
    per_class: int = 4,
) -> Figure:
    """Above, a contact sheet for each setting: a row a client, its first training images of each class.

    Below, a panel a metric: each method's mean with its interval over seeds, in each setting.

    federations: by setting. final: with a column `setting`. metrics: {metric: its words}; a method without one is left
    out of its panel. names: of the clients.
    """
    check_number("normalisations: per_class", per_class, least=1, whole=True)
    for metric in metrics:
        check_choice("normalisations: metric", metric, final["metric"].unique())
    methods = final["method"].unique().tolist()
    figure = plt.figure(figsize=(WIDTH, 3.2 + 0.3 * len(methods)))
    parts = figure.subfigures(2, 1, squeeze=False, height_ratios=[1.5, 0.8 + 0.25 * len(methods)])
    above, below = parts[:, 0]
    sheets = above.subplots(1, len(federations), squeeze=False)[0]
    for place, (axes, (setting, federation)) in enumerate(zip(sheets, federations.items(), strict=True)):
        _sheet(axes, federation, names if place == 0 else [""] * len(names), per_class)
        axes.set_title(setting)
    panels = below.subplots(1, len(metrics), sharey=True, squeeze=False)[0]
    found = summary.over_seeds(final, by=["setting", "method"])
    for axes, (metric, words) in zip(panels, metrics.items(), strict=True):
        _accuracies(axes, found[found["metric"] == metric], list(federations), methods)
        axes.set_xlabel(f"{words} (%)")
    panels[0].set_yticks(range(len(methods)), methods)
    panels[0].set_ylim(len(methods) - 0.5, -0.5)
    legend_outside(figure, "", panels, loc="outside lower center")
    return figure


def _sheet(axes: Axes, federation: Federation, names: Sequence[str], per_class: int) -> None:
    """The clients' first images of each class, all of one federation in one picture."""
    _, height, width = federation.shape
    rows = [np.concatenate(_first(client, len(federation.classes), per_class), axis=1) for client in federation.clients]
    axes.imshow(np.concatenate(rows), interpolation="nearest")
    axes.set_yticks((np.arange(len(rows)) + 0.5) * height, names)
    middles = (np.arange(len(federation.classes)) + 0.5) * per_class * width
    axes.set_xticks(middles, federation.classes)
    axes.tick_params(length=0)
    axes.grid(False)


def _first(client: Client, classes: int, per_class: int) -> list[np.ndarray]:
    """(H, W, 3) each: the first training images of class 0, of class 1, …; white where a class has too few."""
    images, labels = client.train.images, client.train.labels
    found = []
    for k in range(classes):
        mine = list(images[labels == k][:per_class])
        mine += [torch.full_like(images[0], 255)] * (per_class - len(mine))
        found += [image.permute(1, 2, 0).cpu().numpy() for image in mine]
    return found


def _accuracies(axes: Axes, found: pd.DataFrame, settings: Sequence[str], methods: Sequence[str]) -> None:
    """Settings side by side in each method's row."""
    offsets = (np.arange(len(settings)) - (len(settings) - 1) / 2) * 0.22
    for setting, colour, marker, offset in zip(settings, colours(len(settings)), "osD^v", offsets, strict=False):
        row = found[found["setting"] == setting].set_index("method")
        places = [methods.index(method) + offset for method in row.index]
        errors = (row["high"] - row["mean"]).fillna(0)
        axes.errorbar(
            row["mean"], places, xerr=errors, fmt=marker, color=colour, capsize=3, markersize=5, label=setting
        )
