"""Published numbers, one CSV a paper: table, setting, method, metric, value, std, source.

A blank value is a cell that the paper has and that could not be read from any public text; it stays blank beside ours.
Accuracies are in percent. FedDRM: `system` and `average` as the FedDRM spec's section 4 defines them; `…_lead_low` and
`…_lead_high` are the ends of the published range of FedDRM's lead over the baselines, in points.

FedFew: `average`, `std`, `min` and `max` are over the clients of one run, `weighted` is over all test samples. Its
"practical" settings are Dirichlet: 0.5 in the paper's words, 0.1 in the released code. What is known only to lie in a
range is blank, and the source says the range. `fedala` holds anchors of another paper, with the column `std` over runs,
and `reproduction` what a third party measured with FedFew's released code.

FEROMA: `served` is top-1 of a test client by the method's own rule (`auroc` on CheXpert), std over folds; the setting
of `severity_frequency` is data/severity/number of phases in 20 rounds. `fidelity`: the largest and the mean absolute
difference between distances of raw profiles and of distributions, W2 or Jensen-Shannon.
"""

from __future__ import annotations

from importlib.resources import files

import pandas as pd

from fedlib.checks import check_choice

COLUMNS = ("table", "setting", "method", "metric")


def load(paper: str) -> pd.DataFrame:
    """All cells of `paper` (e.g. "feddrm"): text columns, and value and std as float64 with NaN for unknown."""
    tables = {file.name.removesuffix(".csv"): file for file in files(__name__).iterdir() if file.name.endswith(".csv")}
    check_choice("published numbers: paper", paper, tables)
    with tables[paper].open(encoding="utf-8") as file:
        return pd.read_csv(file, dtype={"value": "float64", "std": "float64"})


def value(paper: str, table: str, setting: str, method: str, metric: str) -> float | None:
    """One cell; None where the published number is unknown. A name that the paper does not have is an error."""
    cells = load(paper)
    for column, wanted in zip(COLUMNS, (table, setting, method, metric), strict=True):
        check_choice(f"published numbers of {paper}: {column}", wanted, cells[column].unique())
        cells = cells[cells[column] == wanted]
    known = cells["value"].iloc[0]
    return None if pd.isna(known) else float(known)
