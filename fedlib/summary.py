"""From tidy tables to the numbers of a figure: last rounds, means over seeds, paired differences, paper beside ours.

Every function is pure. `table` is what runs.run_all returns; `final`, here and in the plots, is what `final` returns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from fedlib import published
from fedlib.checks import FedlibError, check_choice, check_number
from fedlib.claims import CONFIDENCE

CELL = ["setting", "method", "metric"]


def overall(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of `table` over all clients (client == -1); accuracies (metrics with an @) become percent."""
    rows = table[table["client"] == -1]
    accuracy = rows["metric"].str.contains("@", regex=False)
    return rows.assign(value=rows["value"].where(~accuracy, 100 * rows["value"]))


def final(table: pd.DataFrame, last: int = 1) -> pd.DataFrame:
    """One row a run and metric: its mean over the rounds > T − last at which it was evaluated; accuracies in percent.

    T is the largest round of that run. The columns are those of `table` without round and client.
    """
    check_number("final: last", last, least=1, whole=True)
    begin = table.groupby("key")["round"].max() - last
    rows = overall(table).sort_values("round", kind="stable")
    rows = rows[rows["round"] > rows["key"].map(begin)]
    mean = rows.groupby(["key", "metric"])["value"].transform("mean")
    rows = rows.assign(value=mean).drop_duplicates(["key", "metric"], keep="last")
    return rows.sort_index().drop(columns=["round", "client"]).reset_index(drop=True)


def over_seeds(final: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """One row a group of `by` and metric: mean, low, high (95 % Student-t interval; NaN for one seed) and n.

    Raises FedlibError for an unknown column, and when a group holds two runs of one seed: n would not count seeds.
    """
    for column in by:
        check_choice("over_seeds: by", column, final.columns)
    groups = [*by, "metric"]
    _check_one_run_a_seed("over_seeds", final, groups)
    values = final.groupby(groups, sort=False, dropna=False)["value"]
    found = values.agg(["mean", "sem", "count"]).reset_index()
    half = stats.t.ppf((1 + CONFIDENCE) / 2, found["count"] - 1) * found["sem"]
    found = found.assign(low=found["mean"] - half, high=found["mean"] + half, n=found["count"])
    return found[[*groups, "mean", "low", "high", "n"]]


def paired(
    final: pd.DataFrame,
    metric: str,
    first: Mapping[str, Any],
    second: Mapping[str, Any],
    second_metric: str | None = None,
) -> list[float]:
    """`metric` of the runs `first` minus that of the runs `second`, seed by seed in ascending order; in points.

    first, second: the values of columns that pick the runs, e.g. {"method": "FedDRM", "lam": 0.8}. second_metric: the
    metric of `second`, when it is another one. Raises FedlibError for a filter that no run fits or that several runs
    of one seed fit, and for a seed on one side only.
    """
    left = _by_seed(final, {"metric": metric, **first})
    right = _by_seed(final, {"metric": second_metric or metric, **second})
    single = sorted(set(left.index) ^ set(right.index))
    if single:
        sides = f"{_in_words(first)} has {sorted(left.index)} and {_in_words(second)} has {sorted(right.index)}"
        raise FedlibError(f"paired: seeds {single} are on one side only: {sides}; run both with the same seeds")
    return (left - right).sort_index().tolist()


def difference(
    final: pd.DataFrame,
    name: str,
    metric: str,
    first: Mapping[str, Any],
    second: Mapping[str, Any],
    by: Sequence[str],
    second_metric: str | None = None,
) -> pd.DataFrame:
    """`paired` in each group of `by`: the rows of `final` that are `first`, with `name` as metric and the difference.

    They can be drawn like any metric, and compared in turn: whether a lead grows is a paired difference of leads.
    """
    for column in by:
        check_choice("difference: by", column, final.columns)
    tables = []
    for _, group in final.groupby(list(by), sort=False):
        effects = paired(group, metric, first, second, second_metric)
        rows = group[(group[["metric", *first]] == pd.Series({"metric": metric, **first})).all(axis=1)]
        tables.append(rows.sort_values("seed").assign(metric=name, value=effects))
    return pd.concat(tables, ignore_index=True)


def gains(final: pd.DataFrame, over: Mapping[str, str], column: str = "method") -> pd.DataFrame:
    """Every metric of a method minus the same metric of its base, seed by seed, in points.

    over: {method: its base}, values of `column`. Returns the methods' rows of `final` with the difference as value,
    of which over_seeds gives means and intervals as of any metric. Raises FedlibError for an unknown method or base,
    and as `paired` does.
    """
    if not over:
        raise FedlibError("gains: no method is compared with a base; give at least one pair")
    tables = []
    for method, base in over.items():
        own = final[final[column] == check_choice(f"gains: {column}", method, final[column].unique())]
        for metric in own["metric"].unique():
            effects = paired(final, metric, {column: method}, {column: base})
            tables.append(own[own["metric"] == metric].sort_values("seed").assign(value=effects))
    return pd.concat(tables, ignore_index=True)


def interior_gain(final: pd.DataFrame, metric: str, column: str, end: float) -> list[float]:
    """For each seed: `metric` at the best interior value of the sweep over `column`, minus that at its end `end`.

    Best is chosen by the mean over the other seeds. The maximum over a sweep, taken on the seed that chose it, is
    above the ends even when all values are equally good, because it picks the luckiest; on a seed that had no say in
    the choice, the expected gain is then zero. The gain of the chosen value, not of the best one: it never flatters.

    Raises FedlibError for fewer than two seeds or three values, for an `end` that is not the least or the greatest
    value, and when a seed lacks a value.
    """
    sweep = _by_seed_and("interior_gain", final, metric, column)
    seeds, values = sweep.shape
    if seeds < 2 or values < 3:
        raise FedlibError(
            f"interior_gain: {seeds} seeds and {values} values of {column}; give at least two seeds, so that one can "
            "choose for another, and three values, so that one is interior"
        )
    check_choice(f"interior_gain: end of {column}", end, [sweep.columns[0], sweep.columns[-1]])
    _check_complete("interior_gain", sweep, metric)
    return (_best_on_the_others(sweep.iloc[:, 1:-1]) - sweep[end]).tolist()


def lead(final: pd.DataFrame, metric: str, first: str, rivals: Sequence[str]) -> list[float]:
    """For each seed: `metric` of the method `first`, minus that of its best rival; in points.

    The best rival is chosen by the mean over the other seeds, as in interior_gain: on the seed that chooses it, the
    best of many equal rivals is the luckiest, and `first` would seem to fall behind. Raises FedlibError for fewer than
    two seeds, for an unknown method, and when a seed lacks one.
    """
    table = _by_seed_and("lead", final, metric, "method")
    if len(table) < 2:
        raise FedlibError(f"lead: {len(table)} seeds; give at least two, so that one can choose for another")
    for method in (first, *rivals):
        check_choice("lead: method", method, table.columns)
    if not rivals or len({first, *rivals}) != 1 + len(rivals):
        raise FedlibError(
            f"lead: the rivals of {first} are {list(rivals)}; name at least one, each once, and not {first} itself"
        )
    table = table[[first, *rivals]]
    _check_complete("lead", table, metric)
    return (table[first] - _best_on_the_others(table[list(rivals)])).tolist()


def chosen(final: pd.DataFrame, metric: str, column: str, by: str | None = None) -> pd.DataFrame:
    """For each seed, the value of `column` that is chosen, and `metric` there: a row a seed, columns `column`, value.

    by: a metric that has the choice, on the same seed, such as validation accuracy. None: `metric` itself has it, by
    its mean over the other seeds (see interior_gain). The highest wins, and of equals the one with the least value.
    Raises FedlibError when a seed lacks a value, and without `by` for fewer than two seeds.
    """
    table = _by_seed_and("chosen", final, metric, column)
    _check_complete("chosen", table, metric)
    if by is None and len(table) < 2:
        raise FedlibError(f"chosen: {len(table)} seeds; give at least two, so that one can choose for another, or `by`")
    if by is None:
        best = {seed: table.drop(index=seed).mean().idxmax() for seed in table.index}
    else:
        judged = _by_seed_and("chosen: by", final, by, column)
        _check_complete("chosen: by", judged, by)
        best = judged.idxmax(axis=1).to_dict()
    values = [table.loc[seed, best[seed]] for seed in table.index]
    return pd.DataFrame({column: [best[seed] for seed in table.index], "value": values}, index=table.index)


def by_domain(final: pd.DataFrame) -> pd.DataFrame:
    """The rows about the official test part, with the metrics named as in the F²DC paper's tables.

    "domain@central[photo]" becomes "photo", "domain@central" "average" and "domain_std@central" "std"; all in percent.
    """
    words = {"domain@central": "average", "domain_std@central": "std"}
    names = final["metric"].str.extract(r"^domain@central\[(.*)\]$", expand=False)
    names = names.fillna(final["metric"].map(words))
    if names.isna().all():
        raise FedlibError("by_domain: no run was tested on the official test part; set test_share: 0.0")
    return final.assign(metric=names).dropna(subset=["metric"])


def of_clients(table: pd.DataFrame, metric: str, clients: Sequence[int], rounds: Sequence[int]) -> pd.Series:
    """The plain mean of `metric` over these clients and rounds: a value a seed, in percent.

    table: as runs.run_all returns it, with one run a seed. Raises FedlibError for a client or a round without a value.
    """
    rows = table[table["metric"] == check_choice("of_clients: metric", metric, table["metric"].unique())]
    for client in clients:
        check_choice("of_clients: client", client, sorted(set(rows["client"]) - {-1}))
    for round in rounds:
        check_choice("of_clients: round", round, sorted(rows["round"].unique()))
    rows = rows[rows["client"].isin(clients) & rows["round"].isin(rounds)]
    _check_one_run_a_seed("of_clients", rows, ["client", "round"])
    for seed, held in rows.groupby("seed").size().items():
        if held != len(set(clients)) * len(set(rounds)):
            raise FedlibError(f"of_clients: seed {seed} lacks a client or a round that another has; run all alike")
    return 100 * rows.groupby("seed")["value"].mean()


def beside(paper: str, table: str, ours: pd.DataFrame) -> pd.DataFrame:
    """The cells of a published table beside ours: table, setting, method, metric, paper, ours, low, high, n.

    ours: setting, method, metric as the paper names them ("system", "average"), mean, low, high, n. Cells that only
    one side has stay, the published ones first; what is unknown is NaN.
    """
    cells = published.load(paper)
    cells = cells[
        cells["table"] == check_choice(f"published numbers of {paper}: table", table, cells["table"].unique())
    ]
    if ours.duplicated(CELL).any():
        twice = ours[ours.duplicated(CELL)].iloc[0][CELL].to_dict()
        raise FedlibError(f"beside: ours has two rows with {_in_words(twice)}; give one a cell")
    theirs, mine = cells.set_index(CELL)["value"], ours.set_index(CELL)
    columns = {"paper": theirs, "ours": mine["mean"], "low": mine["low"], "high": mine["high"], "n": mine["n"]}
    index = theirs.index.union(mine.index, sort=False)
    joined = pd.DataFrame({name: column.reindex(index) for name, column in columns.items()})
    joined = joined.astype({"n": "Int64"}).reset_index()
    joined.insert(0, "table", table)
    return joined


def _by_seed(final: pd.DataFrame, wanted: Mapping[str, Any]) -> pd.Series:
    """The values of the one run a seed that has all the `wanted` column values, indexed by seed."""
    rows, fitted = final, dict[str, Any]()
    for column, value in wanted.items():
        check_choice("paired: column", column, final.columns)
        where = f"paired: {column}" + (f" where {_in_words(fitted)}" if fitted else "")
        rows = rows[rows[column] == check_choice(where, value, rows[column].unique())]
        fitted[column] = value
    _check_one_run_a_seed(f"paired: {_in_words(wanted)}", rows, [])
    return rows.set_index("seed")["value"]


def _check_one_run_a_seed(where: str, rows: pd.DataFrame, groups: Sequence[str]) -> None:
    """Refuse several rows of one seed in one group, naming the columns that tell them apart."""
    double = rows[rows.duplicated([*groups, "seed"], keep=False)]
    if not len(double):
        return
    _, same = next(iter(double.groupby([*groups, "seed"], sort=False, dropna=False)))
    other = [str(c) for c in same if c not in ("key", "value", "moment") and same[c].nunique(dropna=False) > 1]
    raise FedlibError(
        f"{where}: {len(same)} rows have the same seed, {same['seed'].iloc[0]}; "
        f"they differ in {', '.join(other) or 'key'}: tell them apart by that"
    )


def _by_seed_and(where: str, final: pd.DataFrame, metric: str, column: str) -> pd.DataFrame:
    """The values of `metric`: a row a seed, a column a value of `column`."""
    rows = final[final["metric"] == check_choice(f"{where}: metric", metric, final["metric"].unique())]
    rows = rows.dropna(subset=[check_choice(f"{where}: column", column, final.columns)])
    _check_one_run_a_seed(where, rows, [column])
    return rows.pivot(index="seed", columns=column, values="value")


def _check_complete(where: str, table: pd.DataFrame, metric: str) -> None:
    """Refuse a seed that lacks a value that another has."""
    if table.isna().any(axis=None):
        row, place = np.argwhere(table.isna())[0]
        cell = f"seed {table.index[row]} has no {metric} at {table.columns.name} {table.columns[place]}"
        raise FedlibError(f"{where}: {cell}; run all values on all seeds")


def _best_on_the_others(table: pd.DataFrame) -> pd.Series:
    """For each seed (row): its value in the column whose mean over the other seeds is the highest."""
    chosen = [table.drop(index=seed).mean().idxmax() for seed in table.index]
    return pd.Series([table.loc[seed, best] for seed, best in zip(table.index, chosen, strict=True)], table.index)


def _in_words(values: Mapping[Any, Any]) -> str:
    return ", ".join(f"{column} {value}" for column, value in values.items())
