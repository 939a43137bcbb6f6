"""The figures of the quadratic toy draw what they are given: read back from the axes."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from fedlib import plots
from fedlib.analysis import quadratics
from fedlib.checks import FedlibError
from fedlib.style import colours

PROBLEM = quadratics.given(np.array([[0.0, 0.0], [3.0, 0.0], [3.0, 1.0]]))
RUNS = {
    "two": quadratics.descend(PROBLEM, np.array([[0.5, 0.2], [2.0, 0.1]]), 0.3, 0.2, steps=30),
    "one": quadratics.descend(PROBLEM, np.array([[0.5, 0.2]]), 0.3, 0.2, steps=4),
    "alike": quadratics.descend(PROBLEM, np.full((2, 2), 0.5), 0.3, 0.2, steps=4),
}
MARKS = {"mean": np.array([2.0, 0.3]), "minimax": np.array([1.5, 0.5])}


def legend(owner: Figure | Axes) -> list[str]:
    found = owner.legends[0] if isinstance(owner, Figure) else owner.get_legend()
    return [text.get_text() for text in found.get_texts()]


def drawn(axes: Axes) -> list[list[list[float]]]:
    return [line.get_xydata().tolist() for line in axes.lines]


def test_paths_and_the_clients_who_choose_a_model_share_its_colour():
    figure = plots.model_paths(PROBLEM, RUNS, MARKS)
    assert [axes.get_title() for axes in figure.axes] == ["two", "one", "alike"]
    for axes, run in zip(figure.axes, RUNS.values(), strict=True):
        assert drawn(axes) == [run.thetas[:, k].tolist() for k in range(run.thetas.shape[1])]
        assert axes.get_aspect() == 1
    first = figure.axes[0]
    own = [to_rgb(line.get_color()) for line in first.lines]
    assert own == colours(2) and RUNS["two"].chosen().tolist() == [0, 1, 1]
    clients = first.collections[0]
    assert clients.get_offsets().tolist() == PROBLEM.optima.tolist()
    assert [tuple(colour[:3]) for colour in clients.get_facecolors()] == [own[0], own[1], own[1]]


def test_paths_have_a_start_an_end_and_marked_points():
    axes = plots.model_paths(PROBLEM, RUNS, MARKS).axes[0]
    spots = [dots.get_offsets().tolist() for dots in axes.collections[1:5]]
    thetas = RUNS["two"].thetas
    assert spots == [[thetas[place, k].tolist()] for k in (0, 1) for place in (0, -1)]
    marked = [dots.get_offsets().tolist() for dots in axes.collections if dots.get_label() in MARKS]
    assert marked == [[point.tolist()] for point in MARKS.values()]
    names = ["a client's optimum", "a model's start", "its end", "mean", "minimax"]
    assert legend(axes.figure) == names


COVER = pd.DataFrame(
    [(2, "ours", 4, 0.2), (2, "ours", 1, 0.5), (2, "even", 1, 0.4), (3, "ours", 1, 0.7)],
    columns=["clients", "models", "K", "epsilon"],
)
FRONT = np.array([[0.0, 2.0], [0.5, 0.5], [2.0, 0.0]])


def test_the_front_is_drawn_with_what_models_achieve():
    placed = {"one": np.array([[0.5], [0.5]]), "ends": np.array([[0.0, 2.0], [2.0, 0.0]])}
    left = plots.pareto_cover(FRONT, placed, COVER).axes[0]
    assert drawn(left) == [FRONT.tolist()]
    assert [dots.get_offsets().tolist() for dots in left.collections] == [[[0.5, 0.5]], [[0, 2], [2, 0]]]
    assert legend(left) == ["Pareto front", "one", "ends"]


def test_what_is_uncovered_is_drawn_against_k_by_models_and_clients():
    right = plots.pareto_cover(FRONT, {}, COVER).axes[1]
    assert drawn(right) == [[[1, 0.5], [4, 0.2]], [[1, 0.4]], [[1, 0.7]], []]
    assert legend(right) == ["ours, 2 clients", "even, 2 clients", "ours, 3 clients", "even, 3 clients"]
    assert [line.get_linestyle() for line in right.lines] == ["-", "-", "--", "--"]
    assert right.lines[0].get_color() == right.lines[2].get_color() != right.lines[1].get_color()
    assert [text.get_text() for text in right.get_xticklabels()] == ["1", "4"]


REGRET = pd.DataFrame(
    [
        (K, update, seed, 8 / K + seed - (K > 1) * (update == "normalised"))
        for update in ("plain", "normalised")
        for K in (4, 1)
        for seed in (0, 2)
    ],
    columns=["K", "update", "seed", "regret"],
)
REFERENCES = pd.DataFrame({"K": [1, 1, 4, 4], "seed": [0, 2, 0, 2], "best": [1, 3, 0.5, 0.5], "bound": [9, 9, 0, 0]})


def test_regret_is_drawn_as_means_seeds_and_references():
    axes = plots.regret_by_models(REGRET, REFERENCES).axes[0]
    means = [[[1, 9], [4, 3]], [[1, 9], [4, 2]], [[1, 2], [4, 0.5]], [[1, 9]]]
    assert drawn(axes) == means  # the bound of 0 has no place on a logarithmic axis
    assert [dots.get_offsets().tolist() for dots in axes.collections] == [
        [[4, 2], [4, 4], [1, 8], [1, 10]],
        [[4, 1], [4, 3], [1, 8], [1, 10]],
    ]
    names = ["FedFew, plain step", "FedFew, step divided by $c_k$", "best", "bound"]
    assert legend(axes.figure) == names and axes.get_yscale() == "log"


def curves() -> pd.DataFrame:
    """g falls from 10 by 1 a step, or by 1 / K where steps are plain, to 0; seed 2 lies 2 higher."""
    rows = [
        (K, update, seed, step, max(0.0, 10 - step / (K if update == "plain" else 1)) + seed)
        for update in ("plain", "normalised")
        for K in (1, 4)
        for seed in (0, 2)
        for step in range(51)
    ]
    return pd.DataFrame(rows, columns=["K", "update", "seed", "step", "g"]).sample(frac=1, random_state=0)


def test_objectives_are_drawn_by_update_and_k():
    figure = plots.objective_curves(curves())
    by_title = {axes.get_title(): axes for axes in figure.axes}
    plain = by_title["plain step"]
    assert [line.get_ydata()[:3].tolist() for line in plain.lines] == [[11, 10, 9], [11, 10.75, 10.5]]
    whole = by_title["step divided by $c_k$"].lines
    assert [line.get_ydata()[:3].tolist() for line in whole] == [[11, 10, 9]] * 2
    assert plain.get_ylim() == by_title["step divided by $c_k$"].get_ylim()
    assert legend(figure) == ["1", "4"] and figure.axes[0].get_ylabel() == "$g$"


def test_the_steps_that_most_of_the_way_takes_are_counted():
    figure = plots.objective_curves(curves(), share=0.5)
    last = figure.axes[-1]
    lines = dict(zip(legend(last), drawn(last), strict=True))
    assert lines == {"plain": [[1, 5], [4, 20]], "normalised": [[1, 5], [4, 5]]}
    assert last.get_title() == "steps to 50% of the way"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: plots.model_paths(PROBLEM, {}, {}), "model_paths: 0 runs, d = 2; give a run or more, d = 2"),
        (lambda: plots.model_paths(quadratics.given(np.eye(3)), RUNS, {}), "3 runs, d = 3"),
        (lambda: plots.pareto_cover(FRONT, {}, COVER.rename(columns={"epsilon": "eps"})), "no column 'epsilon'"),
        (lambda: plots.pareto_cover(FRONT, {}, pd.concat([COVER, COVER])), "two rows have clients 2, models ours, K 4"),
        (lambda: plots.regret_by_models(REGRET.iloc[:0], REFERENCES), "regret_by_models: the table is empty"),
        (lambda: plots.objective_curves(curves().drop(columns="step")), "objective_curves: the table has no column"),
    ],
)
def test_tables_that_cannot_be_drawn_are_refused(call, message):
    with pytest.raises(FedlibError, match=message):
        call()
