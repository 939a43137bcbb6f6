"""The figures beyond the paper draw what they are given: read back from the axes."""

from __future__ import annotations

import math

import pandas as pd
import pytest
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure

from fedlib import plots
from fedlib.checks import FedlibError

T_975 = 4.302653  # Student's t, two degrees of freedom


def legend(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


PATH = pd.DataFrame({"round": [2, 1, 1, 2], "seed": [0, 0, 1, 1], "value": [0.7, 0.5, 0.5, 0.9]})
SWEEP = pd.DataFrame(
    [
        (lam, seed, value)
        for lam, row in {0.9: [50, 60, 40], 0.5: [10, 20, 30]}.items()
        for seed, value in enumerate(row)
    ],
    columns=["lam", "seed", "value"],
).assign(metric="system@pooled")


def choice(*pairs: tuple[float, float]) -> pd.DataFrame:
    """(lam, value) of the seeds 0, 1, 2."""
    return pd.DataFrame(pairs, columns=["lam", "value"], index=pd.Index([0, 1, 2], name="seed"))


CHOICES = {
    "best": choice((0.9, 50.0), (0.9, 60.0), (0.9, 40.0)),
    "drift ratio": choice((0.7, 49.0), (0.8, 58.0), (0.75, 37.0)),
    "fixed": choice((0.5, 50.0), (0.5, 60.0), (0.5, 40.0)),
}


def test_lambda_is_drawn_over_the_rounds_a_line_a_seed():
    left = plots.lambda_choice(PATH, SWEEP, CHOICES, margin=1.0).axes[0]
    assert [line.get_xydata().tolist() for line in left.lines] == [[[1, 0.5], [2, 0.7]], [[1, 0.5], [2, 0.9]]]


def test_choices_lie_on_the_sweep_and_are_told_apart_by_marker_too():
    figure = plots.lambda_choice(PATH, SWEEP, CHOICES, margin=1.0)
    middle = figure.axes[1]
    assert middle.lines[0].get_xydata().tolist() == [[0.5, 20], [0.9, 50]]
    seeds, *marked = middle.collections
    assert seeds.get_offsets().tolist() == SWEEP[["lam", "value"]].to_numpy().tolist()
    assert [dots.get_offsets().tolist() for dots in marked] == [c.to_numpy().tolist() for c in CHOICES.values()]
    assert len({dots.get_paths()[0].vertices.tobytes() for dots in marked}) == 3
    assert legend(figure) == ["sweep, mean over seeds", "sweep, each seed", "best", "drift ratio", "fixed"]


def test_each_choice_is_judged_against_the_first_under_the_same_seed():
    """-1, -2, -3: mean -2, interval t / sqrt(3); the seeds are paired by name, not by place."""
    shuffled = CHOICES | {"drift ratio": CHOICES["drift ratio"].iloc[[2, 0, 1]]}
    right = plots.lambda_choice(PATH, SWEEP, shuffled, margin=1.5).axes[2]
    means = [bar[0].get_xydata().tolist()[0] for bar in right.containers]
    assert means == [[0, -2], [1, 0]]
    low, high = right.containers[0][2][0].get_segments()[0][:, 1]
    assert (low, high) == pytest.approx((-2 - T_975 / math.sqrt(3), -2 + T_975 / math.sqrt(3)), rel=1e-6)
    dots = [found for found in right.collections if isinstance(found, PathCollection)]
    assert [found.get_offsets()[:, 1].tolist() for found in dots] == [[-1, -2, -3], [0, 0, 0]]
    assert [-1.5, -1.5] in [list(line.get_ydata()) for line in right.lines]
    assert [text.get_text() for text in right.get_xticklabels()] == ["drift\nratio", "fixed"]
    assert right.get_title() == "against best"


def test_one_seed_has_no_interval_and_one_choice_nothing_to_be_against():
    one = {name: table.iloc[:1] for name, table in CHOICES.items()}
    right = plots.lambda_choice(PATH, SWEEP, one, margin=1.0).axes[2]
    assert [bar[0].get_xydata().tolist()[0] for bar in right.containers] == [[0, -1], [1, 0]]
    with pytest.raises(FedlibError, match=r"lambda_choice: choices: \['best'\]; give a reference first"):
        plots.lambda_choice(PATH, SWEEP, {"best": CHOICES["best"]}, margin=1.0)


def table() -> pd.DataFrame:
    """Three clients, two seeds, rounds 4 and 2. Client i is at i tenths, with churn a hundredth a round above it."""
    rows = [
        (schedule, churn, seed, round, i, i / 10 + (round / 100 if churn == "late" else 0) + seed / 50)
        for schedule in ("cosine", "constant")
        for churn in ("none", "late")
        for seed in (0, 1)
        for round in (4, 2)
        for i in (-1, 0, 1, 2)
    ]
    frame = pd.DataFrame(rows, columns=["schedule", "churn", "seed", "round", "client", "value"])
    return frame.assign(metric="router@pooled[density router]")


EVENTS = {"late": (2, 3, "joins in")}


def test_a_client_is_drawn_with_and_without_churn_before_the_others():
    figure = plots.churn(table(), "router@pooled[density router]", EVENTS, column="schedule", still="none")
    assert [axes.get_title() for axes in figure.axes] == [
        "client 2 joins in round 3, schedule cosine",
        "client 2 joins in round 3, schedule constant",
    ]
    for axes in figure.axes:
        drawn = [(line.get_xdata().tolist(), line.get_ydata().tolist()) for line in axes.lines[:-1]]
        thick = [line.get_linewidth() for line in axes.lines[:-1]]
        heights = [ys for _, ys in drawn]
        expected = [[3, 5], [13, 15], [20, 20], [22, 22], [21, 21], [22, 24], [24, 26], [23, 25]]
        assert all(xs == [2, 4] for xs, _ in drawn)
        assert [pytest.approx(ys) for ys in expected] == heights
        assert thick == [0.8, 0.8, 0.7, 0.7, 2, 0.7, 0.7, 2]
        assert list(axes.lines[-1].get_xdata()) == [3, 3]
    assert legend(figure) == ["each other client", "the same client, without churn", "the client that joins or leaves"]


def test_an_event_that_nobody_ran_is_named():
    with pytest.raises(FedlibError, match="churn: churn: 'leaves' is unknown; did you mean 'late'"):
        plots.churn(table(), "router@pooled[density router]", {"leaves": (0, 1, "leaves")}, "schedule", "none")
    with pytest.raises(FedlibError, match="churn: metric: 'router@pooled' is unknown; did you mean"):
        plots.churn(table(), "router@pooled", EVENTS, "schedule", "none")
