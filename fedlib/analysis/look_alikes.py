"""Routing among clients that look alike: only the classes that they hold can tell them apart.

FedDRM's default grid of appearances repeats after 8 clients (specification, trap 6). With more clients, a router that
knows appearances perfectly still has to choose between those that share one.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product

import numpy as np
import pandas as pd

from fedlib.analysis import routing
from fedlib.checks import check_choice
from fedlib.data.shift import appearance
from fedlib.experiment import Experiment
from fedlib.runs import run


def split(rates: np.ndarray, shares: np.ndarray, alike: np.ndarray) -> dict[str, float]:
    """Shares of queries, each origin i weighted by shares (m,), from rates (m, m), P(sent to j | from i).

    alike: bool (m, m), whether i and j look the same. "guess" is what a random choice among all that look like the
    chosen client would leave of "its client".
    """
    to_alike = (rates * alike).sum(axis=1)
    return {
        "its client": float(shares @ rates.diagonal()),
        "its client or a look-alike": float(shares @ to_alike),
        "guess among look-alikes": float(shares @ (to_alike / alike.sum(axis=1))),
    }


def sent(experiments: Iterable[Experiment], router: str = "posterior router") -> pd.DataFrame:
    """`split` of runs of FedDRM after their last round, as rows of summary.final: router@pooled[…], in percent."""
    check_choice("look_alikes: router", router, routing.ROUTERS)
    tables = []
    for experiment in experiments:
        done = run(experiment)
        table = routing.sendings(done)
        counts = table[table["router"] == router].pivot(index="origin", columns="client", values="queries").to_numpy()
        looks = [appearance(experiment.shift, i) for i in range(experiment.clients)]
        alike = np.array([a == b for a, b in product(looks, looks)]).reshape(len(looks), len(looks))
        shares = table.groupby("client")["size"].first().to_numpy()
        found = split(counts / counts.sum(axis=1, keepdims=True), shares, alike)
        rows = pd.DataFrame({"metric": [f"router@pooled[{name}]" for name in found], "value": list(found.values())})
        rows["value"] *= 100
        tables.append(rows.assign(moment="after_aggregation", key=done.key, **experiment.columns()))
    return pd.concat(tables, ignore_index=True)
