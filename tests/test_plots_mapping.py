"""Pictures of FEROMA's mapping, read back from the axes."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from matplotlib.patches import Rectangle

from fedlib import plots
from fedlib.checks import FedlibError

PLAIN = pd.DataFrame([[0.5, 0.4, 0.1], [0.3, 0.3, 0.4], [0.1, 0.8, 0.1]])


def held(table: pd.DataFrame) -> pd.DataFrame:
    """The same with distributions 0, 0, 1 now and 0, 1, 1 before."""
    index, columns = ([(d, i) for i, d in enumerate(own)] for own in ((0, 0, 1), (0, 1, 1)))
    return pd.DataFrame(table.to_numpy(), pd.MultiIndex.from_tuples(index), pd.MultiIndex.from_tuples(columns))


def frames(axes) -> set[tuple[int, int]]:
    boxes = [patch for patch in axes.patches if isinstance(patch, Rectangle)]
    return {(round(box.get_y() + 0.4), round(box.get_x() + 0.44)) for box in boxes}


def test_survivors_are_framed_and_each_row_has_its_regime():
    """tau = 1.5 / 3 = 0.5: one weight is equal to it, one above; with 1.0 the first row has two."""
    for threshold, framed, letters in ((1.5, {(0, 0), (2, 1)}, "PGP"), (1.0, {(0, 0), (0, 1), (1, 2), (2, 1)}, "CPP")):
        (axes,) = plots.weight_matrices({"one": PLAIN}, threshold).axes
        assert frames(axes) == framed
        assert np.array_equal(np.asarray(axes.images[0].get_array()), PLAIN.to_numpy())
        assert "".join(text.get_text() for text in axes.texts if text.get_text() in "CPG") == letters
        assert [text.get_text() for text in axes.texts][:3] == [".50", ".40", ".10"] and axes.get_title() == "one"


def test_squares_have_one_colour_a_distribution():
    (axes,) = plots.weight_matrices({"one": held(PLAIN)}, 1.5).axes
    colours = [tuple(dots.get_facecolor()[0]) for dots in axes.collections]
    rows, columns = colours[:3], colours[3:]
    assert rows[0] == rows[1] == columns[0] != rows[2] == columns[1] == columns[2]


def test_panels_without_a_matrix_are_hidden_and_none_at_all_is_refused():
    figure = plots.weight_matrices(dict.fromkeys("abcd", PLAIN), 1.5, columns=3)
    assert [axes.get_visible() for axes in figure.axes] == [True] * 4 + [False] * 2
    with pytest.raises(FedlibError, match="no matrix"):
        plots.weight_matrices({}, 1.5)


def rounds() -> tuple[pd.DataFrame, pd.DataFrame]:
    shares, masses = [], []
    for seed in (0, 1, 2):
        for t in (5, 6):
            shares += [
                ("low", "clustered", t, seed, 10.0 * t + seed),
                ("low", "global", t, seed, 100 - 10.0 * t - seed),
            ]
            masses += [("low", "FEROMA", t, seed, 80.0 + seed), ("low", "equal weights", t, seed, 30.0)]
    names = ["panel", "metric", "round", "seed", "value"]
    return pd.DataFrame(shares, columns=names), pd.DataFrame(masses, columns=["panel", "line", *names[2:]])


def test_bars_stack_to_all_clients_and_lines_are_means():
    figure = plots.regime_study({"round 5": held(PLAIN)}, 1.5, *rounds())
    shares, masses = figure.axes[1:]
    heights = np.array([bar.get_height() for bar in shares.patches]).reshape(3, 2)
    assert heights.tolist() == [[51, 61], [0, 0], [49, 39]] and shares.get_title() == "low"
    assert [bar.get_y() for bar in shares.patches][4:] == [51, 61]
    assert {line.get_label(): list(line.get_ydata()) for line in masses.lines} == {
        "FEROMA": [81, 81],
        "equal weights": [30, 30],
    }


def test_panels_of_shares_and_masses_have_to_be_the_same():
    shares, masses = rounds()
    with pytest.raises(FedlibError, match="panels"):
        plots.regime_study({"a": PLAIN}, 1.5, shares, masses.assign(panel="high"))


def by_threshold() -> pd.DataFrame:
    rows = [
        (panel, line, c, seed, 40.0 + c + seed)
        for panel in ("mass", "accuracy")
        for line in ("T = 1", "perfect")
        for c in (0.0, 1.5, 4.0)
        for seed in (0, 1, 2)
    ]
    return pd.DataFrame(rows, columns=["panel", "line", "threshold", "seed", "value"])


def test_thresholds_with_means_references_and_the_mark():
    references = pd.DataFrame({"panel": "accuracy", "line": "FedAvg", "seed": [0, 1], "value": [44.0, 46.0]})
    mass, accuracy = plots.threshold_study(by_threshold(), references, plain=["perfect"], mark=1.5).axes
    lines = {line.get_label(): line for line in mass.lines}
    assert list(lines["T = 1"].get_xdata()) == [0, 1.5, 4] and list(lines["T = 1"].get_ydata()) == [41, 42.5, 45]
    assert lines["perfect"].get_linestyle() == "--" and lines["T = 1"].get_linestyle() == "-"
    assert "FedAvg" not in lines and [line.get_xdata() for line in mass.lines][-1] == [1.5, 1.5]
    level = next(line for line in accuracy.lines if line.get_label() == "FedAvg")
    assert list(level.get_ydata()) == [45, 45] and mass.get_ylim() == (32, 54)


def test_unknown_lines_and_panels_are_refused():
    references = pd.DataFrame({"panel": "speed", "line": "FedAvg", "seed": [0], "value": [44.0]})
    with pytest.raises(FedlibError, match="speed"):
        plots.threshold_study(by_threshold(), references)
    with pytest.raises(FedlibError, match="perfekt"):
        plots.threshold_study(by_threshold(), references.assign(panel="mass"), plain=["perfekt"])
