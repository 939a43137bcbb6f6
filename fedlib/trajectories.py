"""Runs over their rounds: when a level is first reached, what picking the best round would gain, how a term changes.

`table` is what runs.run_all returns, with one run a seed. Pure functions; accuracies in percent.
"""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from fedlib import summary
from fedlib.checks import FedlibError, check_choice


def over_rounds(table: pd.DataFrame, metric: str) -> pd.DataFrame:
    """`metric` at every evaluated round: a row a round, a column a seed. FedlibError if a seed lacks a round."""
    rows = summary.overall(table)
    rows = rows[rows["metric"] == check_choice("over_rounds: metric", metric, rows["metric"].unique())]
    if rows.duplicated(["round", "seed"]).any():
        raise FedlibError(f"over_rounds: {metric} has two runs of one seed; choose one method and setting first")
    found = rows.pivot(index="round", columns="seed", values="value").sort_index()
    if found.isna().any(axis=None):
        raise FedlibError(f"over_rounds: a seed lacks {metric} in a round that another has; run all alike")
    return found


def first_reached(table: pd.DataFrame, metric: str, levels: Mapping[int, float]) -> pd.Series:
    """The first evaluated round with `metric` at or above the seed's level; the last round + 1 where there is none.

    So a run that never reaches its level counts as one that would with the next round: its number is too small.
    """
    found = over_rounds(table, metric)
    reached = {}
    for seed in map(int, found.columns):
        values = found[seed]
        if seed not in levels:
            raise FedlibError(f"first_reached: seed {seed} has no level; give one for each of {list(found.columns)}")
        rounds = values.index[values >= levels[seed]]
        reached[seed] = rounds[0] if len(rounds) else found.index[-1] + 1
    return pd.Series(reached, name="round")


def last_value(table: pd.DataFrame, metric: str) -> pd.Series:
    """`metric` in the last round, a value a seed."""
    return over_rounds(table, metric).iloc[-1]


def change(table: pd.DataFrame, metric: str) -> pd.Series:
    """`metric` in the last evaluated round minus the first, a value a seed."""
    found = over_rounds(table, metric)
    return found.iloc[-1] - found.iloc[0]


def test_selected_gain(table: pd.DataFrame) -> pd.Series:
    """The mean of each domain's best round, minus the average of the last round: what choosing on the test set gains.

    In points, a value a seed; never below 0, however good the last round is.
    """
    names = table["metric"].drop_duplicates()
    domains = names[names.str.match(r"^domain@central\[")]
    if domains.empty:
        raise FedlibError("test_selected_gain: no domain@central[…] in the table; run with test_share: 0.0")
    best = sum(over_rounds(table, metric).max() for metric in domains) / len(domains)
    return best - last_value(table, "domain@central")
