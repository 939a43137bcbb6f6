"""The HTML report: one page that needs no other file, with each notebook's figure, claims, and paper beside ours."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from fedlib import store
from fedlib.notebooks import Notebook, discover, in_words, rows

if TYPE_CHECKING:
    from fedlib.batch import Outcome


def write(out: Path, scale: str, outcomes: dict[str, Outcome]) -> Path:
    """Write <out>/report.html about the notebooks that have an outcome (by name) at `scale`; return its path."""
    page = out / "report.html"
    store.write_text(page, render(scale, outcomes, out))
    return page


def render(scale: str, outcomes: dict[str, Outcome], out: Path) -> str:
    """The page as text. Links to executed notebooks are relative to `out`."""
    notebooks = [notebook for notebook in discover() if notebook.name in outcomes]
    environment = Environment(loader=PackageLoader("fedlib"), autoescape=True, undefined=StrictUndefined)
    environment.filters["number"] = number
    environment.trim_blocks = environment.lstrip_blocks = True
    return environment.get_template("report.html").render(
        scale=scale,
        when=datetime.now().strftime("%Y-%m-%d %H:%M"),
        sections=[_section(notebook, scale, outcomes[notebook.name], out) for notebook in notebooks],
    )


def number(text: str) -> str:
    """A number from a CSV with four significant digits; anything else as it stands, and nothing for nan."""
    try:
        value = float(text)
    except ValueError:
        return text
    return "" if value != value else f"{value:.4g}"


def _section(notebook: Notebook, scale: str, outcome: Outcome, out: Path) -> dict[str, Any]:
    """What the template shows of one notebook."""
    executed = out / f"{notebook.name}.ipynb" if outcome.status == "ok" else out / "failed" / f"{notebook.name}.ipynb"
    figure = notebook.figure(scale, "png")
    about = notebook.about()
    comparison = rows(notebook.figure(scale, "comparison.csv"))
    return {
        "name": notebook.name,
        "item": about.get("item", ""),
        "shows": about.get("shows", ""),
        "outcome": outcome,
        "verdicts": in_words(outcome.verdicts),
        "executed": executed.relative_to(out).as_posix() if executed.is_file() else "",
        "figure": base64.b64encode(figure.read_bytes()).decode("ascii") if figure.is_file() else "",
        "claims": rows(notebook.figure(scale, "claims.csv")),
        "comparison": comparison,
        "numeric": {name for name in (comparison or [{}])[0] if _is_numeric(row[name] for row in comparison)},
    }


def _is_numeric(column: Iterable[str]) -> bool:
    """Whether all of a column's cells are numbers or blank."""
    try:
        return bool([float(text or 0) for text in column])
    except ValueError:
        return False
