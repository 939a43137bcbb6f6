"""What `fedlib reproduce` shows: how far each notebook is while they run, and the table of outcomes at the end."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from fedlib.notebooks import in_words

if TYPE_CHECKING:
    from fedlib.batch import Outcome

COLOURS = {"ok": "green", "failed": "red", "stopped": "yellow", "running": "cyan", "waiting": "dim"}


def console() -> Console:
    """A console for standard output; wide enough for the tables when that is a file or a pipe."""
    plain = Console()
    return plain if plain.is_terminal else Console(width=140)


@dataclass
class Progress:
    """How far a notebook's runs are, from the lines of JSON that fedlib.runs appends to `file`.

    Events: plan (total, kept), round (round, rounds), trained, why (lines). A notebook may plan more than once.
    """

    file: Path
    total: int = 0
    kept: int = 0
    trained: int = 0
    round: str = ""
    why: list[str] = field(default_factory=list)
    _read: int = 0

    def update(self) -> Progress:
        """Take in the whole lines that were appended since the last call."""
        if self.file.is_file():
            with self.file.open("rb") as stream:
                stream.seek(self._read)
                for line in stream:
                    if not line.endswith(b"\n"):
                        break
                    self._read += len(line)
                    self._take(json.loads(line))
        return self

    def _take(self, event: dict[str, Any]) -> None:
        match event:
            case {"event": "plan", "total": total, "kept": kept}:
                self.total += total
                self.kept += kept
            case {"event": "round", "round": now, "rounds": rounds}:
                self.round = f"round {now}/{rounds}"
            case {"event": "trained"}:
                self.trained += 1
                self.round = ""
            case {"event": "why", "lines": lines}:
                self.why += lines

    def in_words(self) -> str:
        """The runs done of those planned, and the round that the current one is in."""
        runs = f"{self.kept + self.trained}/{self.total} runs" if self.total else ""
        return "  ".join(part for part in (runs, self.round) if part)


@dataclass(frozen=True)
class Line:
    """What is shown of one notebook: its status, its runs in words, its seconds so far, and its failure if any."""

    notebook: str
    status: str = "waiting"
    runs: str = ""
    seconds: float = 0.0
    failure: str = ""


@contextmanager
def display() -> Iterator[Callable[[list[Line]], None]]:
    """Yield show(lines): a live table on a terminal, else a plain line as each notebook starts and ends."""
    screen = console()
    if screen.is_terminal:
        with Live(console=screen, transient=True, refresh_per_second=4) as live:
            yield lambda lines: live.update(_live_table(lines))
        return
    said: dict[str, str] = {}

    def show(lines: list[Line]) -> None:
        for line in lines:
            if line.status not in ("waiting", said.get(line.notebook)):
                said[line.notebook] = line.status
                ended = f" after {clock(line.seconds)}  {line.runs}  {line.failure}" if line.status != "running" else ""
                screen.print(f"{line.notebook}: {line.status}{ended}".rstrip(), soft_wrap=True, markup=False)

    yield show


def _live_table(lines: list[Line]) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in ("notebook", "status", "runs"):
        table.add_column(heading)
    table.add_column("time", justify="right")
    for line in lines:
        elapsed = "" if line.status == "waiting" else clock(line.seconds)
        table.add_row(line.notebook, _coloured(line.status), line.runs, elapsed)
    return table


def end_table(outcomes: list[Outcome]) -> Table:
    """The table that closes `fedlib reproduce`."""
    table = Table()
    table.add_column("notebook", no_wrap=True)
    table.add_column("status")
    for heading in ("seconds", "trained", "kept"):
        table.add_column(heading, justify="right")
    table.add_column("verdicts")
    for o in outcomes:
        counts = (f"{o.seconds:.0f}", str(o.trained), str(o.kept))
        table.add_row(o.notebook, _coloured(o.status), *counts, in_words(o.verdicts))
    return table


def show_end(screen: Console, outcomes: list[Outcome], folder: Path) -> None:
    """Print the closing table and, below it, each failed notebook's cell, message and half-done output."""
    screen.print(end_table(outcomes))
    for o in outcomes:
        if o.status == "failed":
            screen.print(f"[red]{escape(o.notebook)}[/red]: {escape(o.in_words())}", soft_wrap=True, highlight=False)
            half_done = folder / "failed" / f"{o.notebook}.ipynb"
            if half_done.is_file():
                screen.print(f"    half-done output: {escape(str(half_done))}", soft_wrap=True, highlight=False)


def clock(seconds: float) -> str:
    """Seconds as h:mm:ss or m:ss."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _coloured(status: str) -> str:
    return f"[{COLOURS[status]}]{status}[/]"
