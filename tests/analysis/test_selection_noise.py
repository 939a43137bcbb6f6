"""The argmin's noise: against the normal law, counts by hand, and a run's own numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
import tiny
from scipy import stats

from fedlib.analysis.answers import answers
from fedlib.analysis.selection_noise import (
    ALL,
    DRAWN,
    HELD_OUT,
    NORMAL,
    RANDOM,
    TEST_HALF,
    TOGETHER,
    TRAIN,
    by_half,
    selection,
    shares,
    swaps,
    too_few,
    wrong,
)
from fedlib.checks import FedlibError
from fedlib.methods.fedfew import FedFew
from fedlib.runs import Run, run
from fedlib.streams import numpy_stream

SIZES = [1, 2, 5, 10]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDLIB_RUNS", str(tmp_path_factory.mktemp("runs")))
        yield run(tiny.experiment(FedFew(K=3, smoothing=0.05), validation_share=0.2, pooled=False))


def gaussian(N: int, gap: float, sd: float) -> np.ndarray:
    """Losses of two models whose difference has exactly this mean and (ddof 1) standard deviation, and is normal."""
    d = numpy_stream(0, "gaussian").standard_normal(N)
    d = gap + sd * (d - d.mean()) / d.std(ddof=1)
    return np.stack([np.zeros(N), d], 1)


def test_the_closed_form():
    assert wrong(0.3, 1.5, 9) == pytest.approx(stats.norm.cdf(-0.3 / (1.5 / 3)))
    assert wrong(0.0, 1.0, 4) == 0.5 and wrong(-1.0, 1.0, 1) == pytest.approx(stats.norm.cdf(1))
    assert wrong(0.3, 1.5, 9, population=9) == 0.0 and wrong(0.3, 1.5, ALL) == 0.0 and wrong(0.3, 1.5, 20, 9) == 0.0
    assert wrong(0.0, 0.0, 1) == 0.5 and wrong(0.1, 0.0, 1) == 0.0 and wrong(-0.1, 0.0, 1) == 1.0


@pytest.mark.parametrize("n", [1, 4, 25])
def test_two_gaussian_models_are_ordered_wrongly_as_often_as_the_closed_form_says(n: int):
    held = gaussian(1000, 0.3, 1.0)
    drawn = shares(held, [n], 2000, numpy_stream(0, "draws"))[0]
    assert drawn[1] == pytest.approx(stats.norm.cdf(-0.3 * math.sqrt(n)), abs=0.03) and drawn.sum() == 1


def test_draws_without_replacement_are_less_noisy_the_more_of_the_samples_they_are():
    """25 of 32: without the finite population, 0.067 instead of 0.0007."""
    held = gaussian(32, 0.3, 1.0)
    found = swaps(held, [25, 32, ALL], 4000, numpy_stream(0, "draws")).set_index("size")
    assert found[NORMAL][25] == pytest.approx(stats.norm.cdf(-0.3 / math.sqrt(1 / 25 - 1 / 32)))
    assert found[DRAWN][25] < 0.006 and found.loc[32].tolist() == found.loc[ALL].tolist() == [0.0, 0.0]


def test_small_cases_by_hand():
    """Three samples. One: model 1 is best on two of them. Two: sums (1, 2), (6, 4), (5, 4). All: 6 against 5."""
    held = np.array([[0.0, 1.0], [1.0, 1.0], [5.0, 3.0]])
    found = shares(held, [1, 2, 3, 7, ALL], 6000, numpy_stream(0, "draws"))
    assert found[0] == pytest.approx([2 / 3, 1 / 3], abs=0.03) and found[1] == pytest.approx([1 / 3, 2 / 3], abs=0.03)
    assert found[2:].tolist() == [[0.0, 1.0]] * 3
    # The best by all is model 2, ahead by 1 / 3; alone, the samples say 1, a tie, 2.
    flipped = swaps(held, [1, 2, ALL], 6000, numpy_stream(0, "draws"))[DRAWN].tolist()
    assert flipped == [pytest.approx(0.5, abs=0.03), pytest.approx(1 / 3, abs=0.03), 0.0]


def test_the_two_best_of_several_are_compared_and_equal_ones_are_a_coin():
    held = np.stack([np.full(6, 9.0), np.full(6, 1.0), np.full(6, 2.0)], 1)
    assert (swaps(held, [1, ALL], 10, numpy_stream(0))[[DRAWN, NORMAL]] == 0).all(axis=None)
    assert (swaps(held[:, [0, 1, 1]], [1, ALL], 10, numpy_stream(0))[[DRAWN, NORMAL]] == 0.5).all(axis=None)
    with pytest.raises(FedlibError, match="swaps: one model has no second best; give a run with K of at least 2"):
        swaps(held[:, :1], [1], 10, numpy_stream(0))


def test_half_the_samples_choose_for_the_other_half():
    """Model 1 has the lesser loss on every sample and is right on the even ones: always chosen, and right on half."""
    losses, right = np.tile([0.0, 1.0], (6, 1)), np.stack([np.arange(6) % 2 == 0, np.ones(6)], 1)
    assert by_half(losses, right, numpy_stream(0)) == pytest.approx(0.5)
    # Two samples, each of which prefers the model that is wrong on the other.
    assert by_half(np.array([[0.0, 1.0], [1.0, 0.0]]), np.eye(2), numpy_stream(0)) == 0.0
    with pytest.raises(FedlibError, match="by_half: 1 samples have no two halves; raise test_share"):
        by_half(losses[:1], right[:1], numpy_stream(0))


def test_a_runs_table_is_the_clients_mean_of_what_its_answers_say(finished: Run):
    table = selection(finished, SIZES, draws=50)
    values = {(row.rule, row.size, row.metric): row.value for row in table.itertuples() if row.size == row.size}
    plain = {(row.rule, row.metric): row.value for row in table.itertuples() if row.size != row.size}
    held, train, test = (answers(finished, part) for part in ("validation", "train", "test"))
    accuracy = [100 * own.right.mean(0) for own in test]
    best = np.mean([own.max() for own in accuracy])

    def of(found: list) -> float:
        return float(np.mean([own[a.losses.mean(0).argmin()] for own, a in zip(accuracy, found, strict=True)]))

    assert values[HELD_OUT, ALL, "accuracy"] == pytest.approx(of(held))
    history = finished.history()
    last = history[(history["round"] == 3) & (history["metric"] == "personal@local[plain mean]")]["value"].item()
    assert values[HELD_OUT, ALL, "accuracy"] == pytest.approx(100 * last)
    assert plain[TRAIN, "accuracy"] == pytest.approx(of(train))
    assert plain[RANDOM, "accuracy"] == pytest.approx(np.mean(accuracy))
    assert plain[TOGETHER, "accuracy"] == pytest.approx(100 * np.mean([own.right_together.mean() for own in test]))
    for rule in (TRAIN, RANDOM, TOGETHER, TEST_HALF):
        assert plain[rule, "accuracy"] + plain[rule, "regret"] == pytest.approx(best)
    chance = np.mean([(own == own.max()).mean() for own in accuracy])
    assert plain[RANDOM, "right"] == pytest.approx(100 * chance)
    assert (TOGETHER, "right") not in plain and (TEST_HALF, "right") not in plain
    for n in (*SIZES, ALL):
        assert values[HELD_OUT, n, "accuracy"] + values[HELD_OUT, n, "regret"] == pytest.approx(best)
    assert values[DRAWN, ALL, "swapped"] == values[NORMAL, ALL, "swapped"] == 0.0
    assert values[NORMAL, 1, "swapped"] > values[NORMAL, 5, "swapped"] > 0


def test_who_holds_too_few(finished: Run):
    held = sorted(len(client.validation) for client in finished.experiment.federation().clients)
    found = too_few(finished, [1, held[0], held[-1] + 1])
    assert found.iloc[0] == 0.0 and found.iloc[1] == 0.0 and found.iloc[2] == 100.0
    assert found.index.tolist() == [1, held[0], held[-1] + 1]


def test_bad_numbers_are_named(finished: Run):
    with pytest.raises(FedlibError, match="selection: sizes: 0 is out of range; give a whole number at least 1"):
        selection(finished, [0], 10)
    with pytest.raises(FedlibError, match="selection: draws: 0 is out of range; give a whole number at least 1"):
        selection(finished, [1], 0)
