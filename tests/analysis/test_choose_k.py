"""K without test data: halves and facility location by hand, noise that promises what it cannot keep, each rule."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pandas as pd
import pytest

from fedlib.analysis.choose_k import (
    HALVES,
    PRUNED,
    RANDOM,
    SAME,
    Losses,
    best,
    choices,
    coverage,
    coverage_of,
    curve,
    enough,
    greedy,
    halves,
    held_out_loss,
    losses_of,
)
from fedlib.checks import FedlibError
from fedlib.streams import numpy_stream

L = np.array([[1.0, 5.0, 4.0], [5.0, 1.0, 4.0], [9.0, 9.0, 2.0]])
"""Three clients, each with a model of its own. Means 5, 5, 10/3."""


def alike(L: np.ndarray) -> Losses:
    return Losses(L[None], L[None])


def test_greedy_takes_what_lowers_the_cost_most_and_the_lowest_index_of_equals():
    # Model 3 has the least mean; then models 1 and 2 save 3 each for one client.
    assert greedy(L[None]).tolist() == [[2, 0, 1]]
    assert curve(alike(L)) == pytest.approx([10 / 3, 7 / 3, 4 / 3])
    assert greedy(np.zeros((1, 2, 3))).tolist() == [[0, 1, 2]]


def test_the_curve_is_the_facility_location_cost_and_within_its_bound_of_the_optimum():
    drawn = numpy_stream(0, "test").random((9, 6))
    order, cost = greedy(drawn[None])[0], curve(alike(drawn))
    assert sorted(order) == list(range(6)) and (np.diff(cost) <= 0).all()
    assert cost == pytest.approx([drawn[:, order[:size]].min(1).mean() for size in range(1, 7)])
    assert cost[0] == pytest.approx(drawn.mean(0).min()) and cost[-1] == pytest.approx(drawn.min(1).mean())
    # Greedy gains are at least 1 - 1/e of the best ones (a submodular function).
    for size in range(2, 6):
        least = min(drawn[:, list(S)].min(1).mean() for S in combinations(range(6), size))
        assert cost[0] - cost[size - 1] >= (1 - 1 / np.e) * (cost[0] - least) - 1e-12


def test_choosing_looks_at_one_half_and_scoring_at_the_other():
    swapped = Losses(L[None], L[None, :, ::-1])  # what looks best, scores as another
    # Clients take models 1, 2, 3 and score 4, 1, 9.
    assert held_out_loss(swapped) == pytest.approx(14 / 3)
    assert held_out_loss(alike(L)) == pytest.approx(4 / 3)
    # In the order 3, 1, 2: all take 3 and score 1, 5, 9 -> reversed columns give 1, 5, 9.
    assert curve(swapped) == pytest.approx([(1 + 5 + 9) / 3, (4 + 5 + 9) / 3, 14 / 3])


def test_halves_are_disjoint_have_all_samples_between_them_and_change_roles():
    held = [np.arange(5.0)[:, None] ** 2, np.array([[10.0], [20.0]])]
    found = halves(held, splits=3, seed=0)
    assert found.choose.shape == found.score.shape == (6, 2, 1)
    np.testing.assert_array_equal(found.choose[::2], found.score[1::2])
    np.testing.assert_array_equal(found.choose[1::2], found.score[::2])
    assert (2 * found.choose[::2, 0] + 3 * found.score[::2, 0]).ravel() == pytest.approx([30.0] * 3)
    assert (found.choose[:, 1] + found.score[:, 1]).ravel() == pytest.approx([30.0] * 6)
    assert len(np.unique(found.choose[::2, 0])) > 1  # the splits differ


def test_runs_of_other_k_meet_the_same_halves_under_one_seed():
    held = [np.arange(8.0)[:, None], np.arange(6.0)[:, None]]
    wide = [np.repeat(losses, 3, axis=1) for losses in held]
    np.testing.assert_array_equal(halves(held, 2, 1).choose[..., 0], halves(wide, 2, 1).choose[..., 2])
    assert not np.array_equal(halves(held, 2, 1).choose, halves(held, 2, 2).choose)


def test_noise_promises_a_gain_on_the_samples_that_choose_and_none_on_the_others():
    """Equal models: the minimum of K = 8 normal means lies E = 1.42 standard deviations below their mean."""
    stream = numpy_stream(0, "equal models")
    held = [1 + stream.standard_normal((20, 8)) for _ in range(200)]
    means = np.stack([losses.mean(0) for losses in held])
    assert held_out_loss(alike(means)) == pytest.approx(1 - 1.4236 / np.sqrt(20), abs=0.03)
    assert held_out_loss(halves(held, 10, 0)) == pytest.approx(1.0, abs=0.03)


def test_coverage_finds_as_many_models_as_there_are_groups():
    stream = numpy_stream(0, "groups")
    gap = np.ones((30, 6))
    for i in range(30):
        gap[i, i % 3] = 0.0  # models 1, 2, 3 fit a group each; 4, 5, 6 fit nobody
    held = [row + 0.1 * stream.standard_normal((20, 6)) for row in gap]
    found = coverage(halves(held, 5, 0), 100, numpy_stream(0, "draws"))
    assert enough(found) == 3 and found["size"].tolist() == [1, 2, 3, 4, 5, 6]
    assert found["loss"][:3].tolist() == pytest.approx([2 / 3, 1 / 3, 0.0], abs=0.03)
    assert found["gain"][:2].tolist() == pytest.approx([1 / 3, 1 / 3], abs=0.03) and np.isnan(found["gain"][5])


def test_the_noise_of_a_gain_is_that_of_a_mean_over_clients():
    """Two models, and model 1 first in every bootstrap sample: the gain is a mean of independent clients' gains."""
    stream = numpy_stream(0, "gains")
    gains = stream.random(50)
    two = np.stack([np.full(50, 2.0), np.where(stream.random(50) < 0.5, 2.0 - gains, 9.0)], 1)
    own = 2.0 - two.min(1)
    found = coverage(alike(two), 4000, numpy_stream(0, "draws"))
    assert found["gain"][0] == pytest.approx(own.mean())
    assert found["noise"][0] == pytest.approx(own.std() / np.sqrt(50), rel=0.05)


def test_enough_is_the_first_size_whose_next_gain_is_noise():
    table = pd.DataFrame({"size": [1, 2, 3, 4], "gain": [0.5, 0.1, 0.3, np.nan], "noise": [0.1, 0.1, 0.1, np.nan]})
    assert enough(table) == 2 and enough(table.iloc[::-1]) == 2
    assert enough(table.assign(noise=0.05)) == 4 and enough(table.assign(noise=0.6)) == 1


ACCURACY = pd.DataFrame(
    [(1, 0, 50.0), (2, 0, 70.0), (4, 0, 60.0), (1, 1, 30.0), (2, 1, 20.0), (4, 1, 40.0)], columns=["K", "seed", "value"]
)
OF_K = {
    ("early", 0): {4: 1.0, 2: 1.0, 1: 2.0},
    ("early", 1): {1: 1.0, 2: 2.0, 4: 3.0},
    ("end", 0): {1: 3.0, 2: 2.0, 4: 1.0},
    ("end", 1): {1: 3.0, 2: 1.0, 4: 2.0},
}
"""By moment and seed."""
LOSSES = pd.DataFrame(
    [
        (moment, K, seed, samples, value + (10 * K if samples == SAME else 0))
        for samples in (HALVES, SAME)
        for (moment, seed), of_K in OF_K.items()
        for K, value in of_K.items()
    ],
    columns=["moment", "K", "seed", "samples", "value"],
)


def covered(moment: str, seed: int, size: int) -> pd.DataFrame:
    """Coverage of four models, of which `size` are enough; with s of them, accuracy is 10 s + seed."""
    sizes = np.arange(1, 5)
    gain = np.where(sizes < size, 1.0, 0.0)
    return pd.DataFrame(
        {"size": sizes, "loss": 0.0, "gain": gain, "noise": 0.5, "accuracy": 10.0 * sizes + seed}
    ).assign(moment=moment, seed=seed)


COVERAGE = pd.concat([covered("early", 0, 2), covered("early", 1, 4), covered("end", 0, 3), covered("end", 1, 1)])


def test_every_rule_chooses_by_its_own_numbers_and_is_judged_by_the_runs_accuracy():
    table = choices(LOSSES, COVERAGE, ACCURACY, fixed=2)
    found = {(row.rule, row.seed): (row.K, row.value, row.regret) for row in table.itertuples()}
    assert found["always K = 2", 0] == (2, 70.0, 0.0) and found["always K = 2", 1] == (2, 20.0, 20.0)
    assert found["held-out loss, early", 0] == (2, 70.0, 0.0)  # of equal losses, the fewer models
    assert found["held-out loss, early", 1] == (1, 30.0, 10.0)
    assert found["held-out loss, end", 0] == (4, 60.0, 10.0) and found["held-out loss, end", 1] == (2, 20.0, 20.0)
    assert found["coverage, early", 0] == (2, 70.0, 0.0) and found["coverage, early", 1] == (4, 40.0, 0.0)
    assert found["coverage, end", 0] == (4, 60.0, 10.0)  # three are enough: the next larger run has four
    assert found["coverage, end", 1] == (1, 30.0, 10.0)
    assert found[PRUNED, 0] == (3, 30.0, 40.0) and found[PRUNED, 1] == (1, 11.0, 29.0)
    assert np.isnan(found[RANDOM, 0][0]) and found[RANDOM, 0][1:] == (60.0, 10.0)
    assert found[RANDOM, 1][1:] == (30.0, 10.0) and len(found) == len(table) == 14
    assert best(ACCURACY).to_numpy().tolist() == [[0, 2, 70], [1, 4, 40]]
    assert best(ACCURACY.assign(value=1.0))["K"].tolist() == [1, 1]


def test_what_cannot_be_judged_is_named():
    with pytest.raises(FedlibError, match="choices: fixed: 3 is unknown; valid: 1, 2, 4"):
        choices(LOSSES, COVERAGE, ACCURACY, fixed=3)
    with pytest.raises(FedlibError, match="choices: a seed lacks a K that another has; run all K on all seeds"):
        choices(LOSSES, COVERAGE, ACCURACY.iloc[1:], fixed=2)
    with pytest.raises(FedlibError, match="choices: coverage of 4 models, but the largest K is 2; run it"):
        choices(LOSSES, COVERAGE, ACCURACY[ACCURACY["K"] < 4], fixed=2)
    with pytest.raises(FedlibError, match="halves: client 1 has 1 held-out samples, too few for two halves; raise"):
        halves([np.zeros((2, 2)), np.zeros((1, 2))], 1, 0)
    with pytest.raises(FedlibError, match="halves: splits: 0 is out of range; give a whole number at least 1"):
        halves([np.zeros((2, 2))], 0, 0)
    with pytest.raises(FedlibError, match="coverage: draws: 1 is out of range; give a whole number at least 2"):
        coverage(alike(L), 1, numpy_stream(0))


def test_a_kept_runs_tables_are_those_of_its_answers(monkeypatch: pytest.MonkeyPatch):
    """Two clients whose held-out samples are of opposite minds; the run itself is answers' business."""
    held = np.array([[0.0, 3.0], [0.0, 3.0]])
    drawn = {"validation": [held, held[:, ::-1]], "test": [np.array([[1.0, 0.0]] * 4), np.array([[0.0, 0.5]] * 4)]}

    class Found:
        def __init__(self, values: np.ndarray) -> None:
            self.losses = self.right = values

    class Asked:
        experiment = type("E", (), {"seed": 0})

    monkeypatch.setattr("fedlib.analysis.choose_k.answers", lambda run, part: [Found(v) for v in drawn[part]])
    table = losses_of(Asked(), splits=2)
    assert table["samples"].tolist() == [HALVES, SAME] and table["value"].tolist() == [0.0, 0.0]
    found = coverage_of(Asked(), splits=2, draws=50)
    assert found["loss"].tolist() == [1.5, 0.0] and found["gain"][0] == 1.5
    assert found["accuracy"].tolist() == [50.0, 75.0]  # model 1 for both: 100 and 0; each its own: 100 and 50
