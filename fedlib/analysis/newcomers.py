"""Clients that join late, round by round around the first that they take part in, beside those that are like them.

`table` is what runs.run_all returns, of runs that were evaluated in every round. Pure functions; in percent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from fedlib.checks import FedlibError
from fedlib.data.drift import phase_of
from fedlib.data.drifting import Drifting
from fedlib.data.federation import Federation

OWN, WORKED = "personal@local", "adapted@local"


def phase_rounds(federation: Federation, round: int) -> list[int]:
    """All rounds of the phase that this round is in. Raises FedlibError for a federation without drift."""
    drifting = _drifting(federation)
    phases = drifting.course.main.shape[1]
    inside = phase_of(round, drifting.rounds, phases)
    return [t for t in range(1, drifting.rounds + 1) if phase_of(t, drifting.rounds, phases) == inside]


def peers(federation: Federation, joins: Mapping[int, int], newcomer: int) -> list[int]:
    """The clients that have the newcomer's distribution when it joins, and were there before it."""
    drifting, first = _drifting(federation), joins[newcomer]
    held = drifting.course.main[:, phase_of(first, drifting.rounds, drifting.course.main.shape[1])]
    return [k for k, d in enumerate(held) if k != newcomer and d == held[newcomer] and joins.get(k, 1) < first]


def around(
    table: pd.DataFrame, federations: Mapping[int, Federation], joins: Mapping[int, int], by: Sequence[str]
) -> pd.DataFrame:
    """The rounds of the phase in which each newcomer joins: columns `by`, seed, client, since, line, value.

    federations: by seed. since: rounds since it joined; 0 is the first that it takes part in. Lines:

    newcomer   its personal@local; before it joins, what the method would answer it with. Runs in which the same
               client has always been there are told from others by `by`.
    peers      the mean personal@local of the others with its distribution; no rows where there are none.
    worked     its adapted@local of the round before: E epochs, as in this round, from what it was answered with then;
               up to its first round, after which its own work would count twice.
               Under FedAvg that is the model that it would be sent; under FEROMA, for one that was not there yet, the
               plain mean of all clients' models, which is what it would be sent without a map.

    Raises FedlibError for a client that joins in the first round of a phase: no one has been under its distribution.
    """
    wanted = table[table["metric"].isin([OWN, WORKED]) & (table["client"] != -1)]
    values = wanted.groupby([*by, "seed", "metric", "client", "round"], sort=False)["value"].first() * 100
    rows = []
    for label in wanted[[*by, "seed"]].drop_duplicates().itertuples(index=False, name=None):
        federation = federations[label[-1]]
        for newcomer, first in joins.items():
            inside, like = phase_rounds(federation, first), peers(federation, joins, newcomer)
            if first == inside[0]:
                raise FedlibError(
                    f"newcomers: client {newcomer} joins in round {first}, the first of a phase, when all clients have "
                    "new samples; let it join one round later"
                )
            for t in inside:
                about = (*label, newcomer, t - first)
                own = [float(values.get((*label, OWN, k, t), np.nan)) for k in (newcomer, *like)]
                if np.isnan(own).any():
                    raise FedlibError(f"newcomers: round {t} was not evaluated; set evaluate_every: 1")
                rows.append((*about, "newcomer", own[0]))
                rows += [(*about, "peers", sum(own[1:]) / len(like))] if like else []
                worked = values.get((*label, WORKED, newcomer, t - 1))
                rows += [(*about, "worked", worked)] if worked is not None and inside[0] < t <= first else []
    return pd.DataFrame(rows, columns=[*by, "seed", "client", "since", "line", "value"])


def by_seed(rows: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Means over newcomers, one value a seed, `since` and line; only rounds that every newcomer has of that line.

    One line more: gap, newcomer minus peers, over those newcomers that have peers.
    """
    cell = [*by, "seed", "client", "since"]
    wide = rows.pivot(index=cell, columns="line", values="value").reset_index()
    if "peers" in wide:
        both = wide.dropna(subset=["peers"])
        both = both.assign(value=both["newcomer"] - both["peers"], line="gap")
        rows = pd.concat([rows, both[rows.columns]], ignore_index=True)
    groups = rows.groupby([*by, "seed", "line"], sort=False)["client"]
    rows = rows.assign(newcomers=groups.transform("nunique"))
    found = rows.groupby([*by, "seed", "line", "since"], sort=False).agg(
        value=("value", "mean"), count=("value", "size"), newcomers=("newcomers", "first")
    )
    return found[found["count"] == found["newcomers"]]["value"].reset_index()


def _drifting(federation: Federation) -> Drifting:
    if not isinstance(federation, Drifting):
        raise FedlibError(f"newcomers: federation {federation.name!r} does not drift; give drift")
    return federation
