"""The README's table of notebooks and the one file of all verdicts, made from what the notebooks have written."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Mapping
from pathlib import Path

from fedlib.checks import FedlibError
from fedlib.notebooks import Notebook, discover, in_words, rows, verdicts
from fedlib.paths import figures_folder

BEGIN, END = "<!-- notebooks:begin -->", "<!-- notebooks:end -->"
HEADINGS = ["notebook", "paper item", "what it shows", "smoke min", "laptop min", "verdicts", "command"]
UNKNOWN = "—"


def table(scale: str = "laptop", smoke_minutes: Mapping[str, str] | None = None) -> str:
    """A Markdown table of every notebook, with the verdicts that `scale` gave.

    smoke_minutes: what the column of smoke minutes says, by notebook; None reads the figures at smoke scale, which
    are not kept with the collection. Unknown minutes stay blank.
    """
    lines = [_row(HEADINGS), _row(["---", "---", "---", "--:", "--:", "---", "---"])]
    for notebook in discover():
        about = notebook.about()
        smoke = minutes(notebook, "smoke") if smoke_minutes is None else smoke_minutes.get(notebook.name, "")
        lines.append(
            _row(
                [
                    f"[{notebook.name}](notebooks/{notebook.name}.ipynb)",
                    about.get("item", ""),
                    about.get("shows", ""),
                    smoke,
                    minutes(notebook, "laptop"),
                    in_words(verdicts(notebook, scale)) or UNKNOWN,
                    f"`fedlib reproduce {notebook.name} --scale {scale}`",
                ]
            )
        )
    return "\n".join(lines)


def minutes(notebook: Notebook, scale: str) -> str:
    """The minutes that the notebook's runs took at `scale`, with one digit; blank when it has not been run there."""
    file = notebook.figure(scale, "json")
    if not file.is_file():
        return ""
    try:
        seconds = json.loads(file.read_text(encoding="utf-8"))["seconds"]
        return "" if seconds is None else f"{float(seconds) / 60:.1f}"
    except (ValueError, KeyError, TypeError) as error:
        raise FedlibError(f"{file}: holds no seconds ({error}); run {notebook.name} again") from error


def claims_file() -> Path:
    """figures/laptop/claims.csv."""
    return figures_folder("laptop") / "claims.csv"


def all_claims() -> str:
    """The verdicts of all notebooks at laptop scale as one CSV: the notebook, then what its own claims.csv holds."""
    found = [{"notebook": notebook.name, **row} for notebook in discover() for row in _laptop_claims(notebook)]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(name for row in found for name in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(found)
    return text.getvalue()


def _laptop_claims(notebook: Notebook) -> list[dict[str, str]]:
    return rows(notebook.figure("laptop", "claims.csv"))


def update(readme: Path) -> bool:
    """Write the table into `readme`, between its two marks, and claims_file(); say whether that changed anything."""
    text = readme.read_text(encoding="utf-8")
    known = _smoke_minutes(text)
    measured = {notebook.name: minutes(notebook, "smoke") for notebook in discover()}
    new = _replaced(readme, text, known | {name: value for name, value in measured.items() if value})
    changed = new != text or _claims_are_stale()
    readme.write_text(new, encoding="utf-8")
    claims_file().parent.mkdir(parents=True, exist_ok=True)
    claims_file().write_text(all_claims(), encoding="utf-8")
    return changed


def is_stale(readme: Path) -> bool:
    """Whether the table in `readme` or claims_file() is not what the figures say.

    The smoke minutes, which are not committed, are not judged.
    """
    text = readme.read_text(encoding="utf-8")
    return _replaced(readme, text, _smoke_minutes(text)) != text or _claims_are_stale()


def _claims_are_stale() -> bool:
    file = claims_file()
    return not file.is_file() or file.read_text(encoding="utf-8") != all_claims()


def _replaced(readme: Path, text: str, smoke_minutes: Mapping[str, str]) -> str:
    """The README's text with the table made anew."""
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise FedlibError(
            f"{readme}: the table's marks are missing; write {BEGIN} and {END} once each, on lines of their own"
        )
    head, rest = text.split(BEGIN)
    return f"{head}{BEGIN}\n{table(smoke_minutes=smoke_minutes)}\n{END}{rest.split(END)[1]}"


def _smoke_minutes(text: str) -> dict[str, str]:
    """The smoke minutes that the README says now, by notebook."""
    rows = [(re.match(r"\| \[([^]]+)\]\(notebooks/", line), line) for line in text.splitlines()]
    return {start[1]: _cells(line)[HEADINGS.index("smoke min")] for start, line in rows if start}


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _cells(line: str) -> list[str]:
    """The cells of a table's row."""
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
