"""Tables of data sets: .csv files whose values are all read as text, so that each can be checked and named."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from fedlib.checks import FedlibError


def read(path: Path, rows: int | None = None) -> pd.DataFrame:
    """The table at `path`, or its first `rows` lines below the header; what is missing is "".

    Raises FedlibError if it cannot be read.
    """
    try:
        return pd.read_csv(path, dtype=str, keep_default_na=False, nrows=rows).fillna("")
    except (OSError, ValueError) as error:
        raise FedlibError(f"{path}: cannot be read as a table ({error}); mend or remove it") from error


def refuse(path: Path, table: pd.DataFrame, column: str, wrong: pd.Series, wanted: str) -> None:
    """Raise FedlibError, naming line and value, if any line of `column` is wrong; wanted: what it had to be."""
    if wrong.any():
        row = int(wrong.to_numpy().argmax())
        raise FedlibError(
            f"{path}, line {row + 2}: {column} {table[column].iloc[row]!r} is not {wanted}; mend the line"
        )
