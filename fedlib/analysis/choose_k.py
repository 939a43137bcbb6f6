"""How many models? K from the clients' held-out samples, during training and without test data.

held: for each client i, the cross-entropy (n_i, K) of K server models on its held-out samples. A client takes the
model of least mean loss, and a minimum over more models is lower even if all are equally good: on the samples that
chose it, its loss is too low, and the more so the larger K. So a loss is measured on one half of the held-out samples,
and the choice made on the other.

held-out loss   one run for each K: take the K whose clients' chosen models have the least mean loss
coverage        one run with many models: the least number of them to which one more adds nothing beyond noise
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from fedlib.analysis.answers import answers
from fedlib.checks import FedlibError, check_choice, check_number
from fedlib.runs import Run
from fedlib.streams import numpy_stream

HALVES, SAME = "two halves", "the same samples"
RANDOM, PRUNED = "K at random", "coverage, pruned"


class Losses(NamedTuple):
    """Mean losses (P, m, K) of P divisions of the samples, m clients, K models: to choose by, and to be judged by."""

    choose: np.ndarray
    score: np.ndarray


def halves(held: Sequence[np.ndarray], splits: int, seed: int) -> Losses:
    """Losses on two halves of each client's held-out samples, divided at random; P = 2 splits, for halves change roles.

    The division depends on seed, split, client and n_i alone: runs of other K meet the same one. Raises FedlibError
    for a client with fewer than two samples.
    """
    check_number("halves: splits", splits, least=1, whole=True)
    for i, losses in enumerate(held):
        if len(losses) < 2:
            raise FedlibError(
                f"halves: client {i} has {len(losses)} held-out samples, too few for two halves; raise validation_share"
            )
    parts = []
    for split in range(splits):
        orders = [numpy_stream(seed, "halves", split, i).permutation(len(losses)) for i, losses in enumerate(held)]
        cut = [(losses[order], len(order) // 2) for losses, order in zip(held, orders, strict=True)]
        first = np.stack([losses[:half].mean(0) for losses, half in cut])
        second = np.stack([losses[half:].mean(0) for losses, half in cut])
        parts += [(first, second), (second, first)]
    choose, score = map(np.stack, zip(*parts, strict=True))
    return Losses(choose, score)


def held_out_loss(losses: Losses) -> float:
    """The mean over clients and divisions of the chosen models' losses."""
    k = losses.choose.argmin(2)
    return float(np.take_along_axis(losses.score, k[..., None], 2).mean())


def greedy(L: np.ndarray) -> np.ndarray:
    """Facility location: (P, m, K) -> (P, K), models in the order in which each lowers mean_i min_{k in S} L_ik most.

    S: it and those before it. Ties go to the lowest index.
    """
    P, m, K = L.shape
    best = np.full((P, m, 1), np.inf)
    taken = np.zeros((P, K), dtype=bool)
    order = np.empty((P, K), dtype=int)
    for size in range(K):
        mean = np.where(taken, np.inf, np.minimum(best, L).mean(1))
        order[:, size] = mean.argmin(1)
        np.put_along_axis(taken, order[:, size, None], True, 1)
        best = np.minimum(best, np.take_along_axis(L, order[:, None, size, None], 2))
    return order


def curve(losses: Losses) -> np.ndarray:
    """(K,): by |S| = 1 … K, the mean score of what the clients choose among the first |S| models of greedy(choose).

    With score = choose: mean_i min_{k in S} L_ik, which never rises. With accuracies to be judged by: theirs.
    """
    order = greedy(losses.choose)[:, None]
    chosen_by = np.take_along_axis(losses.choose, order, 2)
    least = np.minimum.accumulate(chosen_by, 2)
    better = np.ones(chosen_by.shape, dtype=bool)
    better[..., 1:] = chosen_by[..., 1:] < least[..., :-1]
    k = np.maximum.accumulate(np.where(better, np.arange(chosen_by.shape[2]), 0), 2)
    return np.take_along_axis(np.take_along_axis(losses.score, order, 2), k, 2).mean((0, 1))


def coverage(losses: Losses, draws: int, stream: np.random.Generator) -> pd.DataFrame:
    """By size |S|: loss (curve), gain of one more model (NaN for the last), and its noise.

    noise: the standard deviation of that gain over `draws` bootstrap samples of the clients, in each of which the
    models are ordered anew.
    """
    check_number("coverage: draws", draws, least=2, whole=True)
    m, K = losses.choose.shape[1:]
    loss = curve(losses)
    again = [
        curve(Losses(losses.choose[:, rows], losses.score[:, rows])) for rows in stream.integers(m, size=(draws, m))
    ]
    noise = -np.diff(np.stack(again), axis=1)
    last = [np.nan]
    return pd.DataFrame(
        {
            "size": np.arange(1, K + 1),
            "loss": loss,
            "gain": np.concatenate([-np.diff(loss), last]),
            "noise": np.concatenate([noise.std(0, ddof=1), last]),
        }
    )


def enough(table: pd.DataFrame) -> int:
    """The least size whose next model's gain is not above its noise; the largest one if there is none.

    table: of `coverage`. One step ahead is enough to look at: greedy gains shrink, but for noise.
    """
    table = table.sort_values("size")
    idle = table.loc[~(table["gain"] > table["noise"]), "size"]
    return int(idle.iloc[0])


def losses_of(run: Run, splits: int) -> pd.DataFrame:
    """held_out_loss of a kept run: columns samples ("two halves", "the same samples") and value, in nats."""
    held = [found.losses for found in answers(run, "validation")]
    L = _means(held)
    found = {HALVES: held_out_loss(halves(held, splits, run.experiment.seed)), SAME: held_out_loss(Losses(L, L))}
    return pd.DataFrame({"samples": list(found), "value": list(found.values())})


def coverage_of(run: Run, splits: int, draws: int) -> pd.DataFrame:
    """`coverage` of a kept run on two halves, and accuracy: with only the first |S| models, the mean over clients of
    that of their choice by all held-out samples, on their test samples, in percent."""
    held = [found.losses for found in answers(run, "validation")]
    accuracies = np.stack([100 * found.right.mean(0) for found in answers(run, "test")])
    seed = run.experiment.seed
    found = coverage(halves(held, splits, seed), draws, numpy_stream(seed, "bootstrap"))
    return found.assign(accuracy=curve(Losses(_means(held), accuracies[None])))


def _means(held: Sequence[np.ndarray]) -> np.ndarray:
    """L (1, m, K): each client's mean losses."""
    return np.stack([losses.mean(0) for losses in held])[None]


def choices(losses: pd.DataFrame, coverage: pd.DataFrame, accuracy: pd.DataFrame, fixed: int) -> pd.DataFrame:
    """What each rule chooses, what that is worth and what it costs: columns rule, seed, K, value, regret.

    losses: moment, K, seed, samples, value; coverage: moment, seed, and the columns of coverage_of; at the moments
    "early" and "end". accuracy: K, seed, value: on test data, at the end, of a run with K models.

    value: the accuracy of the run with the chosen K, whenever it was chosen; where coverage names a K without a run,
    of the next larger one. "coverage, pruned": of the run with most models, with only the chosen |S| of them at the
    end. regret: the seed's best value minus it, in points: the best one is picked on the data that score it, so that
    regrets are a little too high. fixed: always this K. "K at random": the mean over all K.
    """
    table = accuracy.pivot(index="seed", columns="K", values="value")
    check_choice("choices: fixed", fixed, table.columns)
    if table.isna().any(axis=None):
        raise FedlibError("choices: a seed lacks a K that another has; run all K on all seeds")
    ks: list[Any] = sorted(table.columns)
    if coverage["size"].max() > ks[-1]:
        raise FedlibError(
            f"choices: coverage of {coverage['size'].max()} models, but the largest K is {ks[-1]}; run it"
        )
    named = [(f"always K = {fixed}", seed, fixed) for seed in table.index]
    named += [(f"held-out loss, {moment}", seed, K) for moment, seed, K in _of_least_loss(losses)]
    found: list[tuple[Any, ...]] = []
    for moment, seed, size, kept in _covering(coverage):
        named.append((f"coverage, {moment}", seed, next(K for K in ks if size <= K)))
        if moment == "end":
            found.append((PRUNED, seed, size, kept))
    found += [(RANDOM, seed, np.nan, row.mean()) for seed, row in table.iterrows()]
    found = [(rule, seed, K, table.loc[seed, K]) for rule, seed, K in named] + found
    chosen = pd.DataFrame(found, columns=["rule", "seed", "K", "value"])
    return chosen.assign(regret=chosen["seed"].map(table.max(axis=1)) - chosen["value"])


def _of_least_loss(losses: pd.DataFrame) -> list[tuple[str, int, int]]:
    """moment, seed, and the K of the least loss on two halves; of equals, the least K."""
    rows = losses[losses["samples"] == HALVES].sort_values("K").reset_index(drop=True)
    least = rows.loc[rows.groupby(["moment", "seed"], sort=False)["value"].idxmin(), ["moment", "seed", "K"]]
    return list(least.sort_values(["moment", "seed"]).itertuples(index=False, name=None))


def _covering(coverage: pd.DataFrame) -> list[tuple[str, int, int, float]]:
    """moment, seed, |S| by `enough`, and the accuracy with these models alone."""
    groups: list[tuple[Any, pd.DataFrame]] = list(coverage.groupby(["moment", "seed"]))
    sizes = [(moment, seed, enough(rows), rows.set_index("size")["accuracy"]) for (moment, seed), rows in groups]
    return [(moment, seed, size, accuracy[size]) for moment, seed, size, accuracy in sizes]


def best(accuracy: pd.DataFrame) -> pd.DataFrame:
    """The oracle: for each seed the K of the highest value; of equals, the least. Columns seed, K, value."""
    rows = accuracy.sort_values(["seed", "K"]).reset_index(drop=True)
    return rows.loc[rows.groupby("seed")["value"].idxmax(), ["seed", "K", "value"]].reset_index(drop=True)
