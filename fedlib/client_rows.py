"""From the rows of single clients to numbers over clients.

`table` is what runs.run_all returns. Pure functions; accuracies stay between 0 and 1, as in `table`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from fedlib.checks import check_choice

KINDS: dict[str, Callable[[np.ndarray], Any]] = {"mean": np.mean, "std": np.std, "min": np.min, "max": np.max}


def over_clients(table: pd.DataFrame, metric: str, kind: str) -> pd.DataFrame:
    """mean, std (population: ddof 0), min or max of `metric` over the clients of each run and round.

    Returns rows as those of `table` over all clients, with the metric "std of personal@local", say, so that they can
    be put beside the others. Raises FedlibError for a metric without a value a client.
    """
    number = KINDS[check_choice("over_clients: kind", kind, KINDS)]
    rows = table[table["client"] != -1]
    rows = rows[rows["metric"] == check_choice("over_clients: metric", metric, rows["metric"].unique())]
    same = [column for column in rows.columns if column not in ("client", "value")]
    found = rows.groupby(same, dropna=False, sort=False)["value"].agg(lambda values: number(values.to_numpy()))
    return found.reset_index().assign(client=-1, metric=f"{kind} of {metric}")[table.columns.tolist()]
