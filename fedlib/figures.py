"""What a notebook leaves in figures/<scale>/: its figure, the data drawn, its verdicts, and where they come from.

<name>.png, <name>.svg     the figure
<name>.csv                 the data drawn
<name>.claims.csv          the verdicts, if there are any          <name>.comparison.csv   paper beside ours, if given
<name>.json                notebook, scale, keys of the runs, seconds (on two cores), versions

The same input gives the same bytes, so that a figure that has not changed is no change to commit.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

import matplotlib as mpl
import pandas as pd
import torch
from matplotlib.figure import Figure

from fedlib import claims, runs, store
from fedlib.checks import check_choice
from fedlib.paths import SCALES, check_writable, figures_folder
from fedlib.style import STYLE

DPI = 130
CORES = 2
"""The machine that `seconds` are told for: runs are spread over its cores."""


def check_output(name: str, scale: str) -> None:
    """Make the folder that `save` will write to. FedlibError, before any training, if it cannot be written.

    name: the notebook's, e.g. "feddrm/lambda_sweep".
    """
    check_writable(_base(name, scale).parent)


def save(
    figure: Figure,
    name: str,
    scale: str,
    data: pd.DataFrame,
    verdicts: Sequence[claims.Verdict] = (),
    comparison: pd.DataFrame | None = None,
    keys: Iterable[str] | None = None,
) -> None:
    """Write everything that figures/<scale>/ holds of this notebook, each file whole or not at all.

    data: what the figure draws. keys: of the runs behind it; None takes them from the column "key" of `data`, if it
    has one. Claims and comparison of an earlier call that this one lacks are removed.
    """
    check_output(name, scale)
    base = _base(name, scale)
    with mpl.rc_context(STYLE):
        store.write(_file(base, "png"), partial(figure.savefig, format="png", dpi=DPI))
        store.write(_file(base, "svg"), partial(figure.savefig, format="svg", dpi=DPI, metadata={"Date": None}))
    tables = {"csv": data, "claims.csv": claims.to_frame(verdicts) if verdicts else None, "comparison.csv": comparison}
    for suffix, table in tables.items():
        if table is None:
            _file(base, suffix).unlink(missing_ok=True)
        else:
            store.write(_file(base, suffix), partial(table.to_csv, index=False))
    about = _origin(name, scale, sorted(set(data.get("key", ()) if keys is None else keys)))
    store.write_text(_file(base, "json"), json.dumps(about, indent=1) + "\n")


def _base(name: str, scale: str) -> Path:
    return figures_folder(check_choice("scale", scale, SCALES)) / name


def _file(base: Path, suffix: str) -> Path:
    return base.with_name(f"{base.name}.{suffix}")


def _origin(name: str, scale: str, keys: list[str]) -> dict[str, object]:
    """Where a figure comes from. seconds: what its runs took to train; None if that is not kept of each of them."""
    costs = [runs.cost(key) for key in keys]
    return {
        "notebook": name,
        "scale": scale,
        "keys": keys,
        "seconds": round(sum(costs) / CORES, 1) if all(costs) else None,
        "versions": {"fedlib": store.version(), "torch": torch.__version__, "python": platform.python_version()},
    }
