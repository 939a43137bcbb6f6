"""The one style of the collection's figures."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, ParamSpec

import matplotlib.pyplot as plt
import seaborn as sns
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure

STYLE: dict[Any, Any] = sns.axes_style("whitegrid") | {
    "figure.constrained_layout.use": True,
    "figure.constrained_layout.w_pad": 0.08,
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

P = ParamSpec("P")


def styled(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """Draw in STYLE, and leave no figure open in pyplot, even after an error."""

    @wraps(draw)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> Figure:
        before = set(plt.get_fignums())
        try:
            with plt.rc_context(STYLE):
                figure = draw(*args, **kwargs)
                _settle(figure)
                return figure
        finally:
            for number in set(plt.get_fignums()) - before:
                plt.close(number)

    return drawn


def _settle(figure: Figure) -> None:
    """Draw once for the ticks, which take the style of their first drawing, and once more for the layout; then fix it.

    Constrained layout moves a little with every drawing, so that saving a figure twice would give different bytes.
    """
    for _ in range(2):
        figure.draw_without_rendering()
    figure.set_layout_engine("none")


def colours(count: int) -> list[tuple[float, float, float]]:
    """`count` colours, safe for colour-blind readers up to ten."""
    return sns.color_palette("colorblind" if count <= 10 else "husl", count)


def legend_outside(
    figure: Figure,
    title: str,
    panels: Iterable[Axes],
    loc: str = "outside right upper",
    columns: int | None = None,
    markers_last: bool = False,
    **settings: Any,
) -> None:
    """One legend for all panels, each label once.

    columns: at most so many entries in a row, all when left out; at the right there is one. markers_last: single
    markers, such as published numbers, stand behind lines and bars.
    """
    pairs = [pair for axes in panels for pair in zip(*axes.get_legend_handles_labels(), strict=True)]
    if markers_last:
        pairs.sort(key=lambda pair: isinstance(pair[0], PathCollection))
    found: dict[str, Artist] = {}
    for handle, label in pairs:
        found.setdefault(label, handle)
    settings |= {"loc": loc, "ncols": 1 if "right" in loc else min(columns or len(found), len(found))}
    figure.legend(list(found.values()), list(found), title=title, **settings)
