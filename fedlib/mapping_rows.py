"""From FEROMA's runs to tables of its mapping: who was compared with whom, weights under any rule, and regimes.

`table` is what runs.run_all or run_groups returns, of runs with the probe mapping. Two clients are alike where the one
has now, in this round, the distribution that the other had in the round before: the other's model was trained on it.

Profiles are made with the frozen network of the warm-up, and with neither weights nor thresholds: under one seed, one
run's distances are those of any threshold, temperature and mapping, so that `weighed` needs no other run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import torch

from fedlib import profiles
from fedlib.checks import FedlibError, check_choice
from fedlib.data import drift as drifts
from fedlib.data.drifting import Drifting
from fedlib.data.federation import Federation
from fedlib.methods.feroma import FEROMA

REGIMES = ("clustered", "personal", "global")
MASS, EQUAL, EXPECTED = "same-distribution mass", "equal weights", "expected regime"
DRIFTED = "mass after drift"
"""Metrics of `over_clients`, beside REGIMES."""
FAR = 1.0e3
"""A distance at which exp(-D) is 0."""


def distributions(federation: Federation) -> np.ndarray:
    """int, (T, m): what each client draws from in rounds 1 to T; of a mixture, the larger part."""
    if not isinstance(federation, Drifting):
        raise FedlibError(f"mapping: federation {federation.name!r} does not drift; give one made with a drift")
    main = federation.course.main
    phases = [drifts.phase_of(t, federation.rounds, main.shape[1]) for t in range(1, federation.rounds + 1)]
    return main[:, phases].T


def pairs(table: pd.DataFrame, federations: Mapping[str, Federation], by: Sequence[str] = ()) -> pd.DataFrame:
    """A row a run, round, client k and client j of the round before: the columns `by`, key, seed, round, client (k),
    other (j), distance and weight, what k draws from now (has) and j drew from then (had), and whether these are alike.

    federations: each run's, by key. Raises FedlibError for a table without the probe's rows, or a key without one.
    """
    parts = table["metric"].str.extract(r"^(?P<what>distance|weight)\[(?P<other>\d+)\]$")
    rows = table.assign(**parts)[parts["what"].notna()]
    if rows.empty:
        raise FedlibError("pairs: no run in the table has a mapping; run FEROMA with probes: [mapping]")
    index = [*by, "key", "seed", "round", "client", "other"]
    rows = rows.astype({"other": int}).drop_duplicates([*index, "what"])
    found = rows.pivot(index=index, columns="what", values="value").reset_index().rename_axis(columns=None)
    order = {key: place for place, key in enumerate(rows["key"].unique())}
    found = found.sort_values("key", key=lambda keys: keys.map(order), kind="stable", ignore_index=True)
    held = {}
    for key in found["key"].unique():
        check_choice("pairs: federations: key", key, federations)
        held[key] = distributions(federations[key])
    places = list(zip(found["key"], found["round"], found["client"], found["other"], strict=True))
    has = [int(held[key][t - 1, k]) for key, t, k, _ in places]
    had = [int(held[key][t - 2, j]) for key, t, _, j in places]
    return found.assign(has=has, had=had, alike=np.equal(has, had))


def apart(pairs: pd.DataFrame) -> pd.DataFrame:
    """The same clients under perfect profiles: distance 0 where alike, and else so far that exp(-distance) is 0."""
    return pairs.assign(distance=np.where(pairs["alike"], 0.0, FAR))


def weighed(pairs: pd.DataFrame, method: FEROMA) -> pd.DataFrame:
    """The weights that `method` gives these distances: w, before the threshold, weight, w_bar, and whether w survives.

    The fallback is 1 / |A|, and weights are not multiplied by n_j: what was released is mapping "inverse" and threshold
    0 here, the same for clients of equal sizes.
    """
    tables = []
    for _, rows in pairs.sort_values(["round", "client", "other"]).groupby(["key", "round"], sort=False):
        D = torch.from_numpy(rows["distance"].to_numpy(copy=True).reshape(rows["client"].nunique(), -1))
        w = method.similarity(D)
        rest = torch.full_like(w[0], 1 / w.shape[1])
        w_bar, kept = profiles.mixing_weights(w, method.threshold, rest), profiles.surviving(w, method.threshold)
        tables.append(
            rows.assign(w=w.flatten().numpy(), weight=w_bar.flatten().numpy(), survives=kept.flatten().numpy())
        )
    return pd.concat(tables).sort_index()


def clients(weighed: pd.DataFrame, by: Sequence[str] = ()) -> pd.DataFrame:
    """A row a run, round and client: by, key, seed, round, client, and

    mass, on the alike, and equal, what equal weights would have there; group, how many are alike; survivors, how many
    weights are; drifted, whether the client itself was there and drew from another distribution;
    regime, by its survivors, and expected, by its group: none "global", one "personal", several "clustered".

    weighed: of `weighed`.
    """
    index = [*by, "key", "seed", "round", "client"]
    own = (weighed["other"] == weighed["client"]) & ~weighed["alike"]
    rows = weighed.assign(mass=weighed["weight"].where(weighed["alike"], 0.0), drifted=own)
    found = rows.groupby(index, sort=False, dropna=False).agg(
        mass=("mass", "sum"),
        equal=("alike", "mean"),
        group=("alike", "sum"),
        survivors=("survives", "sum"),
        drifted=("drifted", "any"),
    )
    found = found.assign(regime=_regimes(found["survivors"]), expected=_regimes(found["group"]))
    return found.reset_index()


def _regimes(counts: pd.Series) -> np.ndarray:
    return np.select([counts > 1, counts == 1], REGIMES[:2], REGIMES[2])


def over_clients(clients: pd.DataFrame, by: Sequence[str] = ()) -> pd.DataFrame:
    """Means over clients and rounds, in percent, as summary.paired takes them: by, key, seed, metric, value.

    MASS, and EQUAL, what equal weights have: over clients that are like somebody; DRIFTED, MASS over those of them that
    have just drifted, so that their own last model is none of those looked for. A share of all clients for each of
    REGIMES, and for EXPECTED: the regime is what the distributions ask for. by: with "round" among it, round by round.
    """
    index = [*by, "key", "seed"]
    kinds = {regime: clients["regime"] == regime for regime in REGIMES}
    kinds[EXPECTED] = clients["regime"] == clients["expected"]
    known = clients["group"] > 0
    columns = {MASS: clients["mass"].where(known), DRIFTED: clients["mass"].where(known & clients["drifted"])}
    columns |= {EQUAL: clients["equal"].where(known)} | kinds
    values = clients[index].assign(**{name: 100.0 * column for name, column in columns.items()})
    means = values.groupby(index, sort=False, dropna=False).mean()
    return means.reset_index().melt(index, var_name="metric").dropna(subset="value").reset_index(drop=True)


def matrix(weighed: pd.DataFrame, round: int, column: str = "w") -> pd.DataFrame:
    """One round of one run: a row a client, a column a client of the round before, in the order of what they draw from.

    The index is (has, client), the columns are (had, other). Raises FedlibError for several runs.
    """
    if weighed["key"].nunique() != 1:
        raise FedlibError(f"matrix: {weighed['key'].nunique()} runs; choose one")
    rows = weighed[weighed["round"] == check_choice("matrix: round", round, weighed["round"].unique())]
    table = rows.pivot(index=["has", "client"], columns=["had", "other"], values=column)
    return table.sort_index().sort_index(axis=1)
