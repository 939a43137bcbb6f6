"""bars: what is drawn is the table."""

from __future__ import annotations

import pandas as pd
import pytest

from fedlib import plots
from fedlib.checks import FedlibError


def test_bars_are_the_table_in_its_order():
    rows = pd.DataFrame({"bytes": [1.0, 2.5], "seconds": [3.0, 0.25]}, index=["FedAvg", "F2DC"])
    figure = plots.bars(rows)
    assert [axes.get_xlabel() for axes in figure.axes] == ["bytes", "seconds"]
    for axes, column in zip(figure.axes, rows.columns, strict=True):
        assert [patch.get_width() for patch in axes.patches] == rows[column].tolist()
        assert axes.get_ylim()[0] > axes.get_ylim()[1]
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["FedAvg", "F2DC"]


def test_an_empty_table_is_refused():
    with pytest.raises(FedlibError, match="the table is empty"):
        plots.bars(pd.DataFrame())
