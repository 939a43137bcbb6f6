"""From FedFew's runs to the tables of its ablations: panels of accuracies, objectives, step masses, client weights.

`table` is what runs.run_all or run_groups returns, of runs with the probe few_for_many; `final` is moments.by_moment's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from scipy import stats

from fedlib import summary
from fedlib.checks import FedlibError, check_choice
from fedlib.client_rows import over_clients
from fedlib.moments import STANDS, TUNED

PANELS = {
    "server-selected, weighted": (STANDS, "weighted"),
    "adapted, weighted": (TUNED, "weighted"),
    "server-selected, plain mean": (STANDS, "average"),
    "adapted, plain mean": (TUNED, "average"),
}
"""Titles, each with the moment and the metric of moments.by_moment."""

MOMENTS = {STANDS: "server-selected", TUNED: "adapted"}
LARGEST = {"max of outer": "largest $a_i$", "inner_max": r"mean of $\max_k w_{ik}$", "largest mass": "largest $c_k$"}
"""Metrics of `largest_weights`, in words."""

OFFSET_FREE = "objective without offset"


def in_panels(
    final: pd.DataFrame, line: str, panels: Mapping[str, tuple[str, str]] = PANELS
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The rows of each panel, with columns panel and line; and those of FedAvg apart, for lines to compare with.

    line: the column whose values become lines. FedAvg after E more epochs is called "FedAvg + FT".
    """
    check_choice("in_panels: line", line, final.columns)
    found = []
    for title, (tested, metric) in panels.items():
        rows = final[final["tested"] == check_choice(f"panel {title!r}: tested", tested, final["tested"].unique())]
        rows = rows[rows["metric"] == check_choice(f"panel {title!r}: metric", metric, rows["metric"].unique())]
        found.append(rows.assign(panel=title))
    rows = pd.concat(found, ignore_index=True)
    fedavg = rows["method"] == "FedAvg"
    called = rows["tested"].map({STANDS: "FedAvg", TUNED: "FedAvg + FT"})
    return rows[~fedavg].assign(line=rows[line]), rows[fedavg].assign(line=called)


def at_both_moments(final: pd.DataFrame, panels: Mapping[str, str]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The same for a metric a panel, with both moments as its lines: "server-selected" and "adapted"."""
    sides = [in_panels(final, "tested", {title: (t, metric) for title, metric in panels.items()}) for t in MOMENTS]
    own, fedavg = (pd.concat(side, ignore_index=True) for side in zip(*sides, strict=True))
    return own.assign(line=own["tested"].map(MOMENTS)), fedavg


def objectives(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of the objective g, and once more as "objective without offset": g + smoothing log K.

    With equal losses of all models, g of K models lies smoothing log K below that of one. Columns K and smoothing are
    the method's own.
    """
    rows = _rows(table, table["metric"] == "objective")
    K = rows["K"].astype(float)
    free = rows.assign(metric=OFFSET_FREE, value=rows["value"] + rows["smoothing"].astype(float) * np.log(K))
    return pd.concat([rows, free], ignore_index=True)


def masses(table: pd.DataFrame) -> pd.DataFrame:
    """The step masses c_1 ... c_K of the last round: a row a run and model, with metric "mass[k]"."""
    rows = _rows(table, table["metric"].str.match(r"mass\[\d+\]$"))
    return rows[rows["round"] == rows.groupby("key")["round"].transform("max")].reset_index(drop=True)


def largest_weights(table: pd.DataFrame) -> pd.DataFrame:
    """How near to one-hot the weights of the last round are, in rows as summary.final's: LARGEST says what they are.

    One-hot client weights have a largest a_i of 1, equal ones 1 / m; so has c_k of K models 1 and 1 / K.
    """
    most = masses(table)
    most = most.loc[most.groupby("key")["value"].idxmax()].assign(metric="largest mass")
    known = table[table["metric"].isin(["outer", "inner_max"])]
    last = summary.final(pd.concat([known, over_clients(known, "outer", "max")]))
    return pd.concat([last, most[last.columns]], ignore_index=True)


def client_weights(table: pd.DataFrame, sizes: Mapping[int, Sequence[int]], by: Sequence[str] = ()) -> pd.DataFrame:
    """FedFew in the last round: a row a run and client, with outer a_i, loss min_k L_ik, and n, its training samples.

    sizes: by seed, n_i in the clients' order (Federation.sizes). by: columns of `table` to keep, beside key and seed.
    Raises FedlibError for a table without these weights, and for a seed or a client without a size.
    """
    rows = _rows(table, table["metric"].str.match(r"(outer|loss\[\d+\])$"))
    rows = rows[rows["round"] == rows.groupby("key")["round"].transform("max")]
    index = [*by, "key", "seed", "client"]
    outer = rows[rows["metric"] == "outer"].groupby(index, sort=False, dropna=False)["value"].min()  # of equal rows
    loss = rows[rows["metric"] != "outer"].groupby(index, sort=False, dropna=False)["value"].min()
    found = pd.DataFrame({"outer": outer, "loss": loss}).reset_index()
    for seed, client in zip(found["seed"], found["client"], strict=True):
        if seed not in sizes or client >= len(sizes[seed]):
            raise FedlibError(f"client_weights: sizes has no client {client} of seed {seed}; give n_i of all clients")
    return found.assign(n=[sizes[s][i] for s, i in zip(found["seed"], found["client"], strict=True)])


def rank_correlation(weights: pd.DataFrame, first: str, second: str) -> pd.Series:
    """Spearman's correlation of two columns over the clients, -1 to 1, a value a seed.

    weights: of client_weights, one run a seed. Raises FedlibError where a column is the same for all clients.
    """
    found = {}
    for seed, rows in _by_seed("rank_correlation", weights):
        for column in (first, second):
            if rows[check_choice("rank_correlation: column", column, rows.columns)].nunique() < 2:
                raise FedlibError(f"rank_correlation: {column} is the same for all clients of seed {seed}: no ranks")
        found[seed] = float(stats.spearmanr(rows[first], rows[second]).statistic)
    return pd.Series(found, name=f"{first} and {second}").sort_index()


def away_from_shares(weights: pd.DataFrame) -> pd.Series:
    """The total variation of a_i and n_i / n, sum_i |a_i - n_i / n| / 2: which share of all weight stands elsewhere
    than in FedAvg's mean. A value a seed; weights: of client_weights, one run a seed."""
    found = {
        seed: float((rows["outer"] - rows["n"] / rows["n"].sum()).abs().sum() / 2)
        for seed, rows in _by_seed("away_from_shares", weights)
    }
    return pd.Series(found, name="total variation").sort_index()


def _rows(table: pd.DataFrame, wanted: pd.Series) -> pd.DataFrame:
    if not wanted.any():
        raise FedlibError("no run in the table has FedFew's weights; run FedFew with probes: [few_for_many]")
    return table[wanted]


def _by_seed(where: str, weights: pd.DataFrame) -> list[tuple[int, pd.DataFrame]]:
    if weights.empty:
        raise FedlibError(f"{where}: no client; choose a method and setting that was run")
    if weights.duplicated(["seed", "client"]).any():
        raise FedlibError(f"{where}: two runs of one seed; choose one method and setting first")
    return [(int(rows["seed"].iloc[0]), rows) for _, rows in weights.groupby("seed")]
