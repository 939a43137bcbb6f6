"""How steady a method is: over seeds, over settings, and from the best cell of a table to its worst.

`final` is what summary.final returns, with a column `setting` beside `method` and `seed`. Pure functions;
numbers are in the unit of `final`, percent and points for accuracies.
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from fedlib.checks import FedlibError, check_choice

OTHER = {"seed": "setting", "setting": "seed"}


def averaged(final: pd.DataFrame, by: Sequence[str], over: str = "setting") -> pd.DataFrame:
    """The plain mean over settings: a row for each of `by`, seed and metric, with the columns of these and `value`.

    by: method among them, e.g. ["study", "method"]. over: the column whose values count alike. Raises FedlibError for
    two runs of one cell, and for a method that lacks one of the values that another method has under the same other
    columns of `by`: their means would be over different things.
    """
    cell, rest = [*by, "seed", "metric"], [column for column in by if column != "method"]
    for column in (*cell, over):
        check_choice("averaged: column", column, final.columns)
    _check_once("averaged", final, [*cell, over])
    shared = [final[column] for column in rest] or [pd.Series("all", final.index)]
    wanted = final.groupby(shared, sort=False)[over].transform("nunique")
    lacking = final[final.groupby(cell, sort=False)[over].transform("nunique") < wanted]
    if len(lacking):
        row = lacking.iloc[0]
        here, own = (
            set(final.loc[(final[same] == row[same]).all(axis=1), over]) if same else set(final[over])
            for same in (rest, cell)
        )
        raise FedlibError(
            f"averaged: seed {row['seed']} of {row['method']} has no {row['metric']} in {min(here - own)}; run all "
            "methods in all settings, or leave it out of the average"
        )
    return final.groupby(cell, sort=False)["value"].mean().reset_index()


def deviations(final: pd.DataFrame, metric: str, over: str, by: Sequence[str] = ("method",)) -> pd.DataFrame:
    """The sample standard deviation (ddof 1) of `metric` over seeds or over settings.

    over: "seed", which gives a row for each of `by` and setting; "setting", a row for each of `by` and seed. NaN where
    there is a single value. Raises FedlibError for an unknown metric and for two runs of one cell.
    """
    rows = final[final["metric"] == check_choice("deviations: metric", metric, final["metric"].unique())]
    group = [*by, OTHER[check_choice("deviations: over", over, OTHER)]]
    _check_once("deviations", rows, [*group, over])
    return rows.groupby(group, sort=False)["value"].std().reset_index()


def steadier(final: pd.DataFrame, metric: str, over: str, first: str, second: str) -> list[float]:
    """The deviation of the method `first` minus that of `second`: one a setting over seeds, one a seed over settings.

    Below zero where `first` is the steadier one. Where a deviation is not known, there is none.
    """
    found = deviations(final, metric, over)
    for method in (first, second):
        check_choice("steadier: method", method, found["method"].unique())
    table = found.pivot(index=OTHER[over], columns="method", values="value")
    return (table[first] - table[second]).dropna().tolist()


def spread(final: pd.DataFrame, metric: str, column: str = "setting") -> pd.Series:
    """For each seed: `metric` in the best cell of `column` minus that in the worst, both chosen on the other seeds.

    The plain max - min over cells is above zero even for a method that is equally good in all of them, and the more so
    the noisier it is. On a seed that had no say in the choice, such a method's expected spread is zero; it can be
    negative. Raises FedlibError for fewer than two seeds or cells, two runs of one cell, and a seed that lacks a cell.
    """
    rows = final[final["metric"] == check_choice("spread: metric", metric, final["metric"].unique())]
    _check_once("spread", rows, ["seed", check_choice("spread: column", column, rows.columns)])
    table = rows.pivot(index="seed", columns=column, values="value")
    if min(table.shape) < 2:
        raise FedlibError(f"spread: {table.shape[0]} seeds and {table.shape[1]} cells; give at least two of both")
    if table.isna().any(axis=None):
        raise FedlibError("spread: a seed lacks a cell that another has; run all cells on all seeds")
    ends = {}
    for seed in table.index:
        means = table.drop(index=seed).mean()
        ends[seed] = table.loc[seed, means.idxmax()] - table.loc[seed, means.idxmin()]
    return pd.Series(ends, name="spread")


def _check_once(where: str, rows: pd.DataFrame, columns: list[str]) -> None:
    twice = rows[rows.duplicated(columns)]
    if len(twice):
        cell = ", ".join(f"{column} {twice.iloc[0][column]}" for column in columns)
        raise FedlibError(f"{where}: two runs have {cell}; give one")
