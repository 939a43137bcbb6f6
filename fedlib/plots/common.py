"""What several figures have in common: tables that are checked, whiskers, colours of a column's values, and words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure

from fedlib.checks import FedlibError, nearest
from fedlib.style import colours, legend_outside


def check_table(where: str, table: pd.DataFrame, columns: Sequence[str], key: Sequence[str] = ()) -> None:
    """FedlibError for a missing column, an empty table, or two rows with the same values of the columns `key`."""
    for column in columns:
        if column not in table.columns:
            raise FedlibError(f"{where}: the table has no column {column!r}; {nearest(column, table.columns)}")
    if table.empty:
        raise FedlibError(f"{where}: the table is empty; give at least one row")
    twice = table.duplicated(list(key)) if key else pd.Series(False, table.index)
    if twice.any():
        cell = ", ".join(f"{column} {table.loc[twice, column].iloc[0]}" for column in key)
        raise FedlibError(f"{where}: two rows have {cell}; give one")


def whiskers(rows: pd.DataFrame) -> np.ndarray:
    """(2, n): from `mean` down to `low` and up to `high`; NaN, and not drawn, where an interval is not known."""
    return np.stack([rows["mean"] - rows["low"], rows["high"] - rows["mean"]])


def hues(values: pd.Series) -> dict[Any, Any]:
    """A colour for each value: along a scale for numbers, in order of appearance for names."""
    distinct = values.dropna().unique().tolist()
    if pd.api.types.is_numeric_dtype(values):
        return dict(zip(sorted(distinct), sns.color_palette("viridis", len(distinct)), strict=True))
    return dict(zip(distinct, colours(len(distinct)), strict=True))


def over_seeds_in_words(n: pd.Series) -> str:
    """What dots and bands are, with the number of seeds."""
    if n.max() == 1:
        return "one seed: no interval"
    return f"mean and 95 % interval over {n.min()}{f' to {n.max()}' if n.max() > n.min() else ''} seeds"


def finish_rows(figure: Figure, grid: np.ndarray, lines: Sequence[str], n: pd.Series, columns: int) -> None:
    """Close a grid of panels in percent that share a line a name, top down: both axes, one legend, and the seeds.

    A panel ends at 0 and at 100 even where an interval does not. columns: of the legend.
    """
    for axes in grid.flat:
        left, right = axes.get_xlim()
        axes.set_xlim(max(left, -3), min(right, 103))
    grid[0, 0].set_yticks(range(len(lines)), lines)
    grid[0, 0].set_ylim(len(lines) - 0.5, -0.5)
    legend_outside(figure, "", grid.flat, "outside lower center", columns=columns, markers_last=True)
    figure.suptitle(over_seeds_in_words(n), fontsize=9)
