"""The same models tested at two moments: as they stand, and after E more local epochs (the probe `adapted`).

Personalised methods are often tested right after local training, and FedAvg right before it, so that a gain over
FedAvg may be one of fine-tuning. Here every method has both accuracies, and FedAvg's own two stand beside them.
`final`, here and in the plots, is what `by_moment` returns; it goes into the functions of `summary`, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from fedlib import summary
from fedlib.checks import FedlibError, check_choice
from fedlib.client_rows import over_clients
from fedlib.data.federation import Federation
from fedlib.data.skew import effective_classes, majority_accuracy

STANDS = "as it stands"
TUNED = "after E more epochs"
TESTED = {"personal@local": STANDS, "adapted@local": TUNED}
"""The metrics, and when the client's model was tested."""
KINDS = {"mean": "average", "std": "std", "min": "min", "max": "max"}

GAIN, LOCAL, ADDED, MODELS = "all of the gain", "E epochs alone", "FedFew beyond them", "few models alone"
PARTS = {
    GAIN: (("FedFew", TUNED), ("FedAvg", STANDS)),
    LOCAL: (("FedAvg", TUNED), ("FedAvg", STANDS)),
    ADDED: (("FedFew", TUNED), ("FedAvg", TUNED)),
    MODELS: (("FedFew", STANDS), ("FedAvg", STANDS)),
}
"""FedFew's gain over FedAvg as the paper compares them, and its parts: differences of two tested methods."""


def by_moment(table: pd.DataFrame, last: int = 1, clients: Mapping[int, Sequence[int]] | None = None) -> pd.DataFrame:
    """One row a run, moment (column `tested`) and metric: average, std, min, max and weighted, in percent.

    average, std (population), min, max: over the clients, each counting alike; weighted: by n_i. Over the rounds as in
    summary.final. clients: {seed: those that count}; None: all; with it, there is no `weighted`.
    table: as runs.run_all returns it. Raises FedlibError if it lacks a metric, and for a seed or a client it lacks.
    """
    for metric in TESTED:
        check_choice("by_moment: metric", metric, table["metric"].unique())
    rows = table[table["metric"].isin(TESTED)]
    if clients is not None:
        rows = _only(rows, clients)
    kinds = [over_clients(rows, metric, kind) for metric in TESTED for kind in KINDS]
    names = {f"{kind} of {metric}": (word, TESTED[metric]) for metric in TESTED for kind, word in KINDS.items()}
    names |= {metric: ("weighted", tested) for metric, tested in TESTED.items()}
    found = summary.final(pd.concat([rows, *kinds], ignore_index=True), last).drop(columns="moment")
    return found.assign(
        tested=found["metric"].map(lambda metric: names[metric][1]),
        metric=found["metric"].map(lambda metric: names[metric][0]),
    )


def _only(rows: pd.DataFrame, clients: Mapping[int, Sequence[int]]) -> pd.DataFrame:
    """The rows of these clients alone, of each seed its own."""
    for seed in map(int, rows["seed"].unique()):
        if not len(clients.get(seed, ())):
            raise FedlibError(f"by_moment: clients: seed {seed} has none; give at least one for each seed")
        held = sorted(set(rows.loc[rows["seed"] == seed, "client"]) - {-1})
        for client in clients[seed]:
            check_choice(f"by_moment: clients of seed {seed}", client, held)
    chosen = {(seed, client) for seed, own in clients.items() for client in own}
    return rows[[pair in chosen for pair in zip(rows["seed"], rows["client"], strict=True)]]


def smaller_half(sizes: Sequence[int]) -> list[int]:
    """The floor(m / 2) clients with the fewest samples, in ascending order; of equal ones the first."""
    if len(sizes) < 2:
        raise FedlibError(f"smaller_half: {len(sizes)} sizes; give at least two, one a client")
    return sorted(sorted(range(len(sizes)), key=lambda i: sizes[i])[: len(sizes) // 2])


def four_columns(final: pd.DataFrame, metric: str = "average", by: str = "setting") -> pd.DataFrame:
    """Means over seeds, a row a value of `by` and method: as it stands, after E more epochs, and FedAvg's own two."""
    rows = final[final["metric"] == check_choice("four_columns: metric", metric, final["metric"].unique())]
    wide = rows.pivot_table(index=[by, "method"], columns="tested", values="value", sort=False)
    for value, held in rows.groupby(by, sort=False)["method"]:
        check_choice(f"four_columns: method in {value}", "FedAvg", held.unique())
    own = {STANDS: "FedAvg", TUNED: "FedAvg + FT"}
    beside = wide.xs("FedAvg", level="method").rename(columns=own)[list(own.values())]
    return wide[list(own)].rename_axis(columns=None).join(beside, on=by)


def as_compared(final: pd.DataFrame, tuned: Sequence[str]) -> pd.DataFrame:
    """As FedFew's authors compare: the methods in `tuned` after E more epochs, all others as they stand (trap 2)."""
    for method in tuned:
        check_choice("as_compared: method", method, final["method"].unique())
    wanted = final["method"].isin(list(tuned)).map({True: TUNED, False: STANDS})
    return final[final["tested"] == wanted].reset_index(drop=True)


def parts_of_gain(final: pd.DataFrame, metric: str = "average", by: str = "setting") -> pd.DataFrame:
    """FedFew's gain over FedAvg, and its parts (PARTS), seed by seed, in points, in each value of `by`:

    all of the gain = E epochs alone + FedFew beyond them. Rows as those of `final`, with the part as metric.
    """
    found = []
    for part, sides in PARTS.items():
        first, second = ({"method": method, "tested": tested} for method, tested in sides)
        found.append(summary.difference(final, part, metric, first, second, by=[by]))
    return pd.concat(found, ignore_index=True)


def of_part(parts: pd.DataFrame, part: str, setting: str, by: str = "setting") -> list[float]:
    """One part of the gain in one setting, a value a seed, in ascending order of the seeds."""
    rows = parts[parts[by] == check_choice(f"of_part: {by}", setting, parts[by].unique())]
    rows = rows[rows["metric"] == check_choice("of_part: part", part, rows["metric"].unique())]
    return rows.sort_values("seed")["value"].tolist()


def beyond_half(parts: pd.DataFrame, setting: str, by: str = "setting") -> list[float]:
    """E epochs alone minus half of all of the gain, a value a seed: above 0 where they make more than half of it."""
    alone, gain = (of_part(parts, part, setting, by) for part in (LOCAL, GAIN))
    return [a - g / 2 for a, g in zip(alone, gain, strict=True)]


def fingerprint(federation: Federation) -> dict[str, float]:
    """What tells a partition, by training samples: sizes, and, as data.skew defines them, the accuracy (in percent) of
    always predicting each client's most frequent class, and how many classes a client effectively holds."""
    classes = len(federation.classes)
    table = np.stack([np.bincount(client.train.labels.cpu(), minlength=classes) for client in federation.clients])
    return {
        "smallest n_i": min(federation.sizes),
        "largest n_i": max(federation.sizes),
        "majority class (%)": 100 * majority_accuracy(table),
        "effective classes": effective_classes(table),
    }
