"""The noise of k_i = argmin_k of a loss on few samples: how often it misses a client's best model, and what that costs.

held (N, K): the cross-entropy of K server models on a client's N held-out samples. A client with only n of them is
imitated by drawing n without replacement, many times. With n >= N it has all N: nothing is left to chance.

Two models, d = the difference of their losses on a sample, with mean gap >= 0 and standard deviation sd: n samples
order them wrongly when their mean of d is below 0. Where that mean is normal, the chance of it is

    P(wrong) = Phi(-gap / (sd sqrt(1 / n - 1 / N)))

for draws without replacement out of N, and Phi(-gap / (sd / sqrt n)) out of infinitely many.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
from scipy import stats

from fedlib.analysis.answers import answers
from fedlib.checks import FedlibError, check_number
from fedlib.runs import Run
from fedlib.streams import numpy_stream

ALL = math.inf
"""n for all held-out samples."""
HELD_OUT, RANDOM, TOGETHER = "held-out samples", "a model at random", "mean of all logits"
TRAIN, TEST_HALF = "training samples", "half of the test samples"
DRAWN, NORMAL = "orders drawn", "orders by the normal law"
HALVES = 20


def wrong(gap: float, sd: float, n: float, population: float = math.inf) -> float:
    """Phi(-gap / (sd sqrt(1 / n - 1 / population))), with n = population where it is above; 1/2 for no gap and no sd.

    sd: with ddof 1, if it is that of a finite population.
    """
    variance = max(0.0, 1 / n - 1 / population)
    spread = sd * math.sqrt(variance) if variance else 0.0
    if spread == 0:
        return 0.5 if gap == 0 else float(gap < 0)
    return float(stats.norm.cdf(-gap / spread))


def _orders(N: int, draws: int, stream: np.random.Generator) -> np.ndarray:
    """(draws, N): random orders; the first n of each are n samples without replacement."""
    return stream.random((draws, N)).argsort(1)


def shares(held: np.ndarray, sizes: Sequence[float], draws: int, stream: np.random.Generator) -> np.ndarray:
    """(len(sizes), K): how often each model has the least mean loss on n of the N samples; ties to the lowest index."""
    N, K = held.shape
    sums = held[_orders(N, draws, stream)].cumsum(1)
    found = np.zeros((len(sizes), K))
    for place, n in enumerate(sizes):
        k = sums[:, int(n) - 1].argmin(1) if n < N else held.mean(0).argmin(keepdims=True)
        found[place] = np.bincount(k, minlength=K) / len(k)
    return found


def swaps(held: np.ndarray, sizes: Sequence[float], draws: int, stream: np.random.Generator) -> pd.DataFrame:
    """How often n samples prefer the second best model to the best one, both by all N; a tie counts half.

    Columns size, the n, "orders drawn" and "orders by the normal law", both 0 to 1. FedlibError for a single model.
    """
    N, K = held.shape
    if K < 2:
        raise FedlibError("swaps: one model has no second best; give a run with K of at least 2")
    first, second = held.mean(0).argsort(kind="stable")[:2]
    d = held[:, second] - held[:, first]
    gap, sd = float(d.mean()), float(d.std(ddof=1)) if N > 1 else 0.0
    sums = d[_orders(N, draws, stream)].cumsum(1)
    flipped = np.where(sums == 0, 0.5, sums < 0).mean(0)
    rows = [(n, flipped[int(n) - 1] if n < N else 0.5 * (gap == 0), wrong(gap, sd, n, N)) for n in sizes]
    return pd.DataFrame(rows, columns=["size", DRAWN, NORMAL])


def by_half(losses: np.ndarray, right: np.ndarray, stream: np.random.Generator) -> float:
    """The accuracy, 0 to 1, on one half of the samples of the model of least loss on the other; mean of 20 divisions.

    losses, right: (N, K). What the choice would be worth with so many samples more. Both halves have a turn.
    """
    N, found = len(losses), []
    if N < 2:
        raise FedlibError(f"by_half: {N} samples have no two halves; raise test_share")
    for _ in range(HALVES):
        order = stream.permutation(N)
        for one, other in ((order[: N // 2], order[N // 2 :]), (order[N // 2 :], order[: N // 2])):
            found.append(right[other, losses[one].mean(0).argmin()].mean())
    return float(np.mean(found))


def selection(run: Run, sizes: Sequence[int], draws: int) -> pd.DataFrame:
    """Choosing by n held-out samples in a kept run, and what else a client can do: columns rule, size, metric, value.

    size: n, for the rules that draw: sizes, and inf, all of them; NaN for the others. metric, means over clients in
    percent (each client counts once): "accuracy" on its test samples; "regret", the best model's on them minus that;
    "right", how often the choice is the best there, or one of several; and "swapped", of `swaps`, under its two names.
    The best is picked on the samples that score it, so that regrets are a little too high.
    """
    check_number("selection: draws", draws, least=1, whole=True)
    for n in sizes:
        check_number("selection: sizes", n, least=1, whole=True)
    asked = [*map(float, sizes), ALL]
    parts = [answers(run, part) for part in ("validation", "train", "test")]
    tables = []
    for i, (held, train, test) in enumerate(zip(*parts, strict=True)):
        losses, right, seed = held.losses, test.right, run.experiment.seed
        chances = shares(losses, asked, draws, numpy_stream(seed, "held-out draws", i))
        accuracy = right.mean(0)
        rows = [(HELD_OUT, n, *_worth(p, accuracy)) for n, p in zip(asked, chances, strict=True)]
        K = len(accuracy)
        rows.append((RANDOM, np.nan, *_worth(np.full(K, 1 / K), accuracy)))
        rows.append((TRAIN, np.nan, *_worth(np.eye(K)[train.losses.mean(0).argmin()], accuracy)))
        stream = numpy_stream(seed, "halves of the test samples", i)
        for rule, worth in ((TOGETHER, test.right_together.mean()), (TEST_HALF, by_half(test.losses, right, stream))):
            rows.append((rule, np.nan, worth, accuracy.max() - worth, np.nan))
        tables.append(pd.DataFrame(rows, columns=["rule", "size", "accuracy", "regret", "right"]))
        flips = swaps(losses, asked, draws, numpy_stream(seed, "held-out draws", i)).melt("size", var_name="rule")
        tables.append(flips.rename(columns={"value": "swapped"}))
    return _over_clients(pd.concat(tables))


def _worth(p: np.ndarray, accuracy: np.ndarray) -> tuple[float, float, float]:
    """Expected accuracy and regret, and the chance to be right, where model k is chosen with probability p_k."""
    best = accuracy.max()
    return float(p @ accuracy), float(best - p @ accuracy), float(p[accuracy == best].sum())


def _over_clients(table: pd.DataFrame) -> pd.DataFrame:
    """rule, size, metric, value: means over clients, in percent."""
    long = table.melt(["rule", "size"], var_name="metric").dropna(subset=["value"])
    found = long.groupby(["rule", "size", "metric"], sort=False, dropna=False)["value"].mean()
    return (100 * found).reset_index()


def too_few(run: Run, sizes: Sequence[int]) -> pd.Series:
    """By n, the share of clients, in percent, that hold fewer than n held-out samples, and so use all they have."""
    held = np.array([len(client.validation) for client in run.experiment.federation().clients])
    return pd.Series({n: 100 * float((held < n).mean()) for n in sizes}, name="clients with fewer (%)")
