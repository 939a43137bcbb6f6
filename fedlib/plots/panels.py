"""Numbers of several kinds for the same methods, side by side."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from fedlib.checks import FedlibError
from fedlib.style import WIDTH, colours, styled


@styled
def bars(rows: pd.DataFrame) -> Figure:
    """A panel a column, a bar a row, each with its number; rows stand in the given order, top down."""
    if rows.empty:
        raise FedlibError("bars: the table is empty; give at least one row and one column")
    size = (WIDTH, 0.9 + 0.24 * len(rows))
    figure, panels = plt.subplots(1, len(rows.columns), figsize=size, sharey=True, squeeze=False)
    for axes, column, colour in zip(panels[0], rows.columns, colours(len(rows.columns)), strict=True):
        drawn = axes.barh(range(len(rows)), rows[column], color=colour, linewidth=0)
        axes.bar_label(drawn, [f"{value:.3g}" for value in rows[column]], padding=2, fontsize=8)
        axes.margins(x=0.2)
        axes.set_xlabel(column)
        axes.set_yticks(range(len(rows)), rows.index.astype(str).tolist())
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.grid(False, axis="y")
    return figure
