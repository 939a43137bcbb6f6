"""The figures about choosing K, and among K models, draw what they are given: read back from the axes."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import FillBetweenPolyCollection, PathCollection
from matplotlib.figure import Figure

from fedlib import plots
from fedlib.analysis.choose_k import HALVES, SAME
from fedlib.analysis.selection_noise import DRAWN, HELD_OUT, NORMAL, RANDOM, TOGETHER
from fedlib.checks import FedlibError

T_975 = 4.302653  # Student's t, two degrees of freedom
SEEDS = (0, 1, 2)

ACCURACY = pd.DataFrame([(K, seed, 10 * K + seed) for K in (4, 1, 2) for seed in SEEDS], columns=["K", "seed", "value"])
LOSSES = pd.DataFrame(
    [
        (moment, samples, K, seed, 3.0 - 0.1 * K + 0.01 * seed - (moment == "end") - 0.5 * (samples == SAME))
        for moment in ("early", "end")
        for samples in (HALVES, SAME)
        for K in (4, 1, 2)
        for seed in SEEDS
    ],
    columns=["moment", "samples", "K", "seed", "value"],
)
ENOUGH = {("early", 0): 2, ("early", 1): 2, ("early", 2): 4, ("end", 0): 1, ("end", 1): 3, ("end", 2): 3}
COVERAGE = pd.DataFrame(
    [
        (moment, size, seed, 5.0 - size + 0.1 * seed + (moment == "end"), 1.0 if size < enough else 0.0, 0.5)
        for (moment, seed), enough in ENOUGH.items()
        for size in (1, 2, 3, 4)
    ],
    columns=["moment", "size", "seed", "loss", "gain", "noise"],
)
CHOICES = pd.DataFrame(
    [(rule, seed, place + seed) for place, rule in enumerate(("fixed", "held out")) for seed in SEEDS],
    columns=["rule", "seed", "regret"],
)


def figure() -> Figure:
    return plots.count_choice(ACCURACY, LOSSES, COVERAGE, CHOICES, margin=1.5)


def lines(axes: Axes) -> dict[str, list[list[float]]]:
    return {str(line.get_label()): np.asarray(line.get_xydata()).tolist() for line in axes.lines}


def bands(axes: Axes) -> list[np.ndarray]:
    found = [band for band in axes.collections if isinstance(band, FillBetweenPolyCollection)]
    return [band.get_paths()[0].vertices for band in found]


def dots(axes: Axes) -> dict[str, np.ndarray]:
    found = [dots for dots in axes.collections if isinstance(dots, PathCollection)]
    return {str(one.get_label()): np.asarray(one.get_offsets()) for one in found}


def test_accuracy_by_k_with_its_band_and_each_seeds_best():
    truth = figure().axes[0]
    assert lines(truth)["test accuracy"] == [[1, 11], [2, 21], [4, 41]]
    (band,) = bands(truth)
    assert band[:, 1].min() == pytest.approx(11 - T_975 / math.sqrt(3), rel=1e-6)
    assert band[:, 1].max() == pytest.approx(41 + T_975 / math.sqrt(3), rel=1e-6)
    assert dots(truth)["best K of a seed"].tolist() == [[4, 40], [4, 41], [4, 42]]
    assert [tick.get_text() for tick in truth.get_xticklabels()] == ["1", "2", "4"]


def test_losses_by_k_a_line_a_moment_and_kind_of_samples():
    loss = figure().axes[1]
    found = lines(loss)
    assert list(found) == [f"{moment}, {samples}" for moment in ("early", "end") for samples in (HALVES, SAME)]
    for moment, samples, start in (
        ("early", HALVES, 3.0),
        ("early", SAME, 2.5),
        ("end", HALVES, 2.0),
        ("end", SAME, 1.5),
    ):
        expected = [[K, pytest.approx(start - 0.1 * K + 0.01)] for K in (1, 2, 4)]
        assert found[f"{moment}, {samples}"] == expected
    assert len(bands(loss)) == 2 and [line.get_linestyle() for line in loss.lines] == ["-", ":", "-", ":"]


def test_coverage_with_what_each_seed_takes_as_enough_side_by_side():
    cover = figure().axes[2]
    assert lines(cover)["end"] == [[size, pytest.approx(6.1 - size)] for size in (1, 2, 3, 4)]
    early, end = dots(cover)["enough, a seed (early)"], dots(cover)["enough, a seed (end)"]
    assert early.ravel().tolist() == pytest.approx([2.07, 3.1, 2.14, 3.1, 4.07, 1.1])
    assert end.ravel().tolist() == pytest.approx([1.07, 5.1, 3.07, 3.1, 3.14, 3.1])
    assert cover.get_title() == "coverage, K = 4"


def test_regrets_by_rule_with_interval_seeds_and_what_may_be_lost():
    regret = figure().axes[3]
    assert [text.get_text() for text in regret.get_yticklabels()] == ["fixed", "held out"]
    assert [bar[0].get_xydata().tolist()[0] for bar in regret.containers] == [[1, 0], [2, 1]]
    low, high = regret.containers[1][2][0].get_segments()[0][:, 0]
    assert (low, high) == pytest.approx((2 - T_975 / math.sqrt(3), 2 + T_975 / math.sqrt(3)), rel=1e-6)
    assert [one.get_offsets()[:, 0].tolist() for one in regret.collections[-1:]] == [[1, 2, 3]]
    assert [1.5, 1.5] in [list(line.get_xdata()) for line in regret.lines] and regret.yaxis_inverted()


def test_one_seed_has_no_interval():
    one = [table[table["seed"] == 0] for table in (ACCURACY, LOSSES, COVERAGE, CHOICES)]
    alone = plots.count_choice(*one, margin=1.0)
    assert alone.get_suptitle() == "one seed: no interval"
    assert [bar[0].get_xydata().tolist()[0] for bar in alone.axes[3].containers] == [[0, 0], [1, 1]]


NOISE = pd.DataFrame(
    [
        (partition, rule, n, metric, seed, base + 10 * p + place + seed)
        for p, partition in enumerate(("groups", "skewed"))
        for metric, base, rules in (
            ("accuracy", 900.0, (HELD_OUT,)),
            ("right", 50.0, (HELD_OUT, RANDOM)),
            ("regret", 5.0, (HELD_OUT, RANDOM, TOGETHER)),
            ("swapped", 20.0, (DRAWN, NORMAL)),
        )
        for rule in rules
        for place, n in enumerate([math.nan] if rule in (RANDOM, TOGETHER) else [1.0, 20.0, math.inf])
        for seed in SEEDS
    ],
    columns=["partition", "rule", "size", "metric", "seed", "value"],
)


def test_the_noise_a_row_a_partition_and_n_at_equal_distances():
    drawn = plots.noisy_choice(NOISE.sample(frac=1, random_state=0))
    assert len(drawn.axes) == 6
    order = [axes.get_ylabel().split("\n")[0] for axes in drawn.axes[::3]]
    for row, partition in enumerate(order):
        high = 10 * ("groups", "skewed").index(partition)
        right, regret, swapped = drawn.axes[3 * row : 3 * row + 3]
        assert lines(right)[HELD_OUT] == [[x, 51 + high + x] for x in range(3)]
        assert lines(right)[RANDOM] == [[0, 51 + high], [1, 51 + high]]
        assert lines(regret).keys() == {HELD_OUT, RANDOM, TOGETHER}
        assert lines(regret)[TOGETHER] == [[0, 6 + high], [1, 6 + high]]
        assert lines(swapped)[NORMAL] == lines(swapped)[DRAWN] == [[x, 21 + high + x] for x in range(3)]
        assert [len(bands(axes)) for axes in (right, regret, swapped)] == [1, 1, 2]
    assert [tick.get_text() for tick in drawn.axes[-1].get_xticklabels()] == ["1", "20", "all"]
    legend = {text.get_text() for text in drawn.legends[0].get_texts()}
    assert legend == {HELD_OUT, RANDOM, TOGETHER, DRAWN, NORMAL}


def test_bad_tables_are_named():
    with pytest.raises(FedlibError, match="count_choice: accuracy: two rows have K 4, seed 0; give one"):
        plots.count_choice(pd.concat([ACCURACY, ACCURACY]), LOSSES, COVERAGE, CHOICES, margin=1.0)
    with pytest.raises(FedlibError, match="count_choice: losses: the table has no column 'samples'"):
        plots.count_choice(ACCURACY, LOSSES.drop(columns="samples"), COVERAGE, CHOICES, margin=1.0)
    with pytest.raises(FedlibError, match="noisy_choice: the table has no column 'partition'"):
        plots.noisy_choice(NOISE.drop(columns="partition"))
    with pytest.raises(FedlibError, match="noisy_choice: no row has a number of samples n"):
        plots.noisy_choice(NOISE[NOISE["size"].isna()])
