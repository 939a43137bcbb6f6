"""FEROMA's profiles in pictures: read back from the axes."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import PathCollection, PolyCollection
from matplotlib.container import ErrorbarContainer

from fedlib import plots
from fedlib.checks import FedlibError


def pairs():
    """P(X) has 3 pairs of one distribution and 2 of two, low and high; P(Y) one of two, low only."""
    rows = [("low", "P(X)", w2, raw, same) for w2, raw, same in ((1, 1, 1), (2, 5, 1), (3, 3, 1), (8, 4, 0), (9, 8, 0))]
    rows += [("high", "P(X)", 1, 1, 1), ("high", "P(X)", 2, 3, 0), ("low", "P(Y)", 4, 2, 0), ("low", "P(Y)", 6, 3, 0)]
    table = pd.DataFrame(rows, columns=["row", "panel", "w2", "raw", "same"])
    return table.astype({"same": bool, "w2": float, "raw": float})


@pytest.fixture(scope="module")
def distances():
    return plots.profile_distances(pairs(), {("low", "P(X)"): "ρ = 0.5"})


def dots(axes):
    return {c.get_label(): c.get_offsets().tolist() for c in axes.collections if isinstance(c, PathCollection)}


def test_a_row_a_severity_and_a_panel_a_kind_with_its_note(distances):
    low_x, low_y, high_x, high_y = distances.axes
    assert [axes.get_title() for axes in (low_x, low_y, high_x)] == ["P(X), low\nρ = 0.5", "P(Y), low", "P(X), high"]
    assert not high_y.get_visible() and low_x.get_xlabel() == "" and high_x.get_xlabel() == "$W_2$"


def test_every_pair_is_in_a_hexagon_and_the_medians_are_marked(distances):
    low_x, low_y, *_ = distances.axes
    hexagons = next(c for c in low_x.collections if isinstance(c, PolyCollection))
    assert hexagons.get_array().sum() == 5
    one, two = "median pair of one distribution", "median pair of two distributions"
    assert dots(low_x) == {one: [[2, 3]], two: [[8.5, 6]]}
    assert dots(low_y) == {two: [[5, 2.5]]}
    left, right = low_x.get_xlim()
    assert left < 1 and right > 9


def test_the_dashed_line_is_where_both_are_equal(distances):
    (line,) = distances.axes[0].lines
    assert line.get_linestyle() == "--" and line.get_xy1() == (0, 0) and line.get_slope() == 1


def test_pairs_without_distances_are_refused():
    with pytest.raises(FedlibError, match="profile_distances: the table has no column 'w2'"):
        plots.profile_distances(pairs().drop(columns="w2"))


def curves():
    rows = [
        (mechanism, epsilon, n, metric, seed, height + 10 * epsilon + n / 100 + 2 * seed - 1)
        for mechanism, height in (("gaussian", 1), ("laplace", 3))
        for epsilon in (5.0, 0.5)
        for n in (200, 100)
        for metric in ("error", "match")
        for seed in (0, 1)
    ]
    rows += [
        ("none", np.inf, n, m, seed, v)
        for n in (100, 200)
        for m, v in (("match", 80), ("chance", 30))
        for seed in (0, 1)
    ]
    return pd.DataFrame(rows, columns=["mechanism", "epsilon", "samples", "metric", "seed", "value"])


def trained():
    found = {("gaussian", 5.0): 50, ("gaussian", 0.5): 40, ("laplace", 5.0): 45, ("none", np.inf): 70}
    rows = [
        (p, *own, seed, v + 2 * seed - 1)
        for p in ("accuracy", "matched")
        for own, v in found.items()
        for seed in (0, 1)
    ]
    return pd.DataFrame(rows, columns=["panel", "mechanism", "epsilon", "seed", "value"])


REFERENCES = pd.DataFrame(
    [("accuracy", "FedAvg", 0, 60.0), ("accuracy", "FedAvg", 1, 62.0), ("matched", "chance", 0, 25.0)],
    columns=["panel", "line", "seed", "value"],
)


@pytest.fixture(scope="module")
def study():
    return plots.privacy_study(curves(), trained(), REFERENCES).axes


def lines(axes):
    return {line.get_label(): line.get_xydata().tolist() for line in axes.lines}


def test_a_column_a_mechanism_with_a_line_an_epsilon(study):
    error, match, laplace, _ = study[:4]
    assert [axes.get_title() for axes in (error, laplace)] == ["gaussian, not trained", "laplace, not trained"]
    assert lines(error)["ε = 0.5"] == [[100, 7], [200, 8]] and lines(error)["ε = 5"] == [[100, 52], [200, 53]]
    assert lines(laplace)["ε = 0.5"] == [[100, 9], [200, 10]]
    assert lines(error)["as much noise as signal"] == [[0, 1], [1, 1]] and error.get_yscale() == "log"
    assert lines(match)["without noise"] == [[100, 80], [200, 80]]
    assert lines(match)["chance"] == [[100, 30], [200, 30]] and "chance" not in lines(error)
    assert match.get_ylim() == (-4, 104) and error.get_ylim() == laplace.get_ylim()


def test_trained_runs_stand_by_epsilon_with_infinity_at_the_right_end(study):
    accuracy, matched = study[4:]
    assert [accuracy.get_title(), matched.get_title()] == ["accuracy, trained", "matched, trained"]
    assert [tick.get_text() for tick in accuracy.get_xticklabels()] == ["0.5", "5", "∞"]
    found = {c.get_label(): c[0].get_xydata() for c in accuracy.containers if isinstance(c, ErrorbarContainer)}
    np.testing.assert_allclose(found["gaussian"], [[0, 40], [1, 50]], atol=0.1)
    np.testing.assert_allclose(found["laplace"], [[1, 45]], atol=0.1)
    np.testing.assert_allclose(found["trained without noise"], [[2, 70]])
    assert lines(accuracy)["FedAvg"] == [[0, 61], [1, 61]] and lines(matched)["chance"] == [[0, 25], [1, 25]]
    low, high = matched.get_ylim()
    assert low >= -4 and high <= 104


def test_other_than_two_trained_panels_are_refused():
    one = trained().query("panel == 'matched'")
    with pytest.raises(FedlibError, match=r"privacy_study: panels \['matched'\].*give two"):
        plots.privacy_study(curves(), one, REFERENCES)
