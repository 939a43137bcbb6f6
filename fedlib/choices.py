"""Which client chooses which of several models, round by round, and how well that fits groups of clients.

`table` is what runs.run_all or run_groups returns, of runs with the probe few_for_many. Pure functions; a run that
stands in several groups stays in each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from fedlib import summary
from fedlib.analysis.few_for_many import nmi, nmi_by_chance, purity, specialised_at
from fedlib.checks import FedlibError

MEASURES: dict[str, Callable[[Sequence[int], Sequence[int]], float]] = {
    "nmi": nmi,
    "nmi by chance": nmi_by_chance,
    "purity": purity,
}
SPECIALISED = "specialised in round"


def choices(table: pd.DataFrame, groups: Mapping[int, Sequence[int]]) -> pd.DataFrame:
    """A row a run, evaluated round and client: the columns of `table`, with its model `k`, 1 to K, and its `group`.

    groups: {seed: the group of each client}, such as data.skew.class_groups gives. Raises FedlibError for a table
    without choices, and for a seed or a client without a group.
    """
    rows = table[(table["metric"] == "chosen") & (table["client"] != -1)]
    if rows.empty:
        raise FedlibError("choices: no client chooses a model; run FedFew or IFCA with probes: [few_for_many]")
    for seed, client in rows[["seed", "client"]].drop_duplicates().itertuples(index=False):
        if seed not in groups or client >= len(groups[seed]):
            raise FedlibError(f"choices: groups has no client {client} of seed {seed}; give the group of all clients")
    group = [groups[seed][client] for seed, client in zip(rows["seed"], rows["client"], strict=True)]
    return rows.assign(k=rows["value"].astype(int), group=group).drop(columns=["metric", "value"])


def agreement(chosen: pd.DataFrame) -> pd.DataFrame:
    """nmi, nmi by chance and purity of models and groups: rows as a run's over all clients, one a measure.

    chosen: of choices. The rows can be put beside those of its table, and go into the functions of summary.
    """
    found = []
    for labels, rows in _each(chosen, ["client", "k", "group"]):
        k, groups = rows["k"].tolist(), rows["group"].tolist()
        found += [labels | {"metric": name, "value": f(k, groups)} for name, f in MEASURES.items()]
    return pd.DataFrame(found).assign(client=-1)


def specialised(table: pd.DataFrame, level: float = 0.6) -> pd.DataFrame:
    """The first evaluated round of each run in which the mean of max_k w_ik is above `level`: one row a run.

    A run that never gets there has its last round + 1, which is too small. Runs without weights w_ik are left out;
    FedlibError if all are.
    """
    inner = table[(table["metric"] == "inner_max") & (table["client"] == -1)]
    if inner.empty:
        raise FedlibError("specialised: no run has inner_max; run FedFew with probes: [few_for_many]")
    found = []
    for labels, rows in _each(inner, ["round", "metric", "client", "value"]):
        at, last = specialised_at(rows, level), int(rows["round"].max())
        found.append(labels | {"round": last, "value": float(last + 1 if at is None else at)})
    return pd.DataFrame(found).assign(client=-1, metric=SPECIALISED)


def delays(found: pd.DataFrame, first: Mapping[str, Any], second: Mapping[str, Any]) -> list[float]:
    """By how many rounds `first` is specialised later than `second`, in ascending order of the seeds.

    found: of specialised. first, second: as for summary.paired, which refuses what does not fit. Seeds in which
    neither is ever specialised tell nothing, and are left out; where one is not, the number is too small.
    """
    effects = dict(zip(_of(found, first).index, summary.paired(found, SPECIALISED, first, second), strict=True))
    ever = [side["value"] <= side["round"] for side in (_of(found, first), _of(found, second))]
    return [effect for seed, effect in effects.items() if ever[0][seed] or ever[1][seed]]


def _of(found: pd.DataFrame, wanted: Mapping[str, Any]) -> pd.DataFrame:
    """The rows with these values, by seed in ascending order."""
    rows = found[(found[list(wanted)] == pd.Series(wanted)).all(axis=1)]
    return rows.set_index("seed").sort_index()


def _each(table: pd.DataFrame, apart: Sequence[str]) -> Iterator[tuple[dict[Any, Any], pd.DataFrame]]:
    """The groups of rows that differ in the columns `apart` alone, each with the values of all other columns."""
    same = [column for column in table.columns if column not in apart]
    for values, rows in table.groupby(same, dropna=False, sort=False):
        yield dict(zip(same, values, strict=True)), rows
