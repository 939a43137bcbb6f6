"""Runs notebooks through papermill, several at once, and keeps what came of each.

A good output goes to <out>/<paper>/<notebook>.ipynb, a half-done one to <out>/failed/..., and the outcomes of all to
<out>/outcomes.json. Each notebook is a process of its own: what fails there, fails there only.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any

from filelock import FileLock

from fedlib import fresh
from fedlib.checks import FedlibError, check_number
from fedlib.display import Line, Progress, display
from fedlib.notebooks import Notebook, check_params, verdicts
from fedlib.paths import check_writable, figures_folder, project_root, runs_folder

LOOK_EVERY = 0.2  # seconds
GRACE = 20.0  # seconds that a notebook has, after Ctrl-C, to save its checkpoint before it is killed


@dataclass(frozen=True)
class Outcome:
    """What came of one notebook: `status` is ok, failed or stopped; `cell` and `error` say where and why it failed.

    stamp: of what it was a function of (see fresh); saved: whether it left a figure. unchanged: it was not run again,
    because the last outcome still holds.
    """

    notebook: str
    status: str
    seconds: float
    trained: int
    kept: int
    verdicts: dict[str, int] = field(default_factory=dict)
    cell: str | None = None
    error: str | None = None
    stamp: str = ""
    saved: bool = False
    unchanged: bool = False

    def in_words(self) -> str:
        """The failure in one line: where, then what; empty for a notebook that ended well."""
        return ": ".join(part for part in (self.cell, (self.error or "").strip().split("\n")[0]) if part)


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during `reproduce`; carries the outcomes so far, those of unchanged notebooks too."""

    def __init__(self, outcomes: list[Outcome]) -> None:
        super().__init__()
        self.outcomes = outcomes


class Execution:
    """One notebook's process: its progress while it runs, its outcome when it has ended."""

    def __init__(
        self, notebook: Notebook, scale: str, folder: Path, environment: dict[str, str], stamp: str = ""
    ) -> None:
        self.notebook = notebook
        self.stamp = stamp
        self.scale = scale
        self.output = folder / f"{notebook.name}.ipynb"
        self.output.parent.mkdir(parents=True, exist_ok=True)
        self.log = self.output.with_suffix(".log")
        self.progress = Progress(self.output.with_suffix(".jsonl"))
        self.started = time.monotonic()
        command = [sys.executable, "-m", "papermill", str(notebook.path), str(self.output)]
        command += ["-f", str(notebook.params(scale)), "--cwd", str(notebook.path.parent)]
        command += ["--kernel", "python3", "--no-progress-bar"]
        with self.log.open("wb") as log:
            # In a session of its own, so that a terminal's Ctrl-C reaches it once, through `_stop`.
            self.process = subprocess.Popen(
                command,
                env=environment | {"FEDLIB_PROGRESS": str(self.progress.file), "FEDLIB_NOTEBOOK": notebook.name},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def ended(self) -> bool:
        return self.process.poll() is not None

    def seconds(self) -> float:
        return time.monotonic() - self.started

    def outcome(self, out: Path, stopped: bool = False) -> Outcome:
        """Move the output to where it belongs below `out`, and say what came of it; a stopped one leaves none."""
        status = "ok" if self.process.returncode == 0 else "stopped" if stopped else "failed"
        cell, error = self.failure() if status == "failed" else (None, None)
        failed_place = out / "failed" / f"{self.notebook.name}.ipynb"
        if self.output.is_file() and status != "stopped":
            place = failed_place if status == "failed" else out / f"{self.notebook.name}.ipynb"
            place.parent.mkdir(parents=True, exist_ok=True)
            os.replace(self.output, place)
        if status == "ok":
            failed_place.unlink(missing_ok=True)
        progress = self.progress.update()
        return Outcome(
            notebook=self.notebook.name,
            status=status,
            seconds=round(self.seconds(), 1),
            trained=progress.trained,
            kept=progress.kept,
            verdicts=verdicts(self.notebook, self.scale) if status == "ok" else {},
            cell=cell,
            error=error,
            stamp=self.stamp,
            saved=fresh.has_saved(self.notebook, self.scale),
        )

    def failure(self) -> tuple[str | None, str]:
        """Where and why it failed: from the error in its output, else (a dead kernel) from papermill's last words."""
        for cell in _cells(self.output):
            for output in cell.get("outputs", []):
                if output["output_type"] == "error":
                    first_line = "".join(cell["source"]).strip().split("\n")[0]
                    return f"cell [{cell['execution_count']}] {first_line}", f"{output['ename']}: {output['evalue']}"
        lines = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return None, lines[-1] if lines else f"papermill ended with exit code {self.process.returncode}"


def reproduce(
    notebooks: list[Notebook],
    scale: str,
    out: Path,
    jobs: int | None = None,
    data: Path | None = None,
    only_failed: bool = False,
    again: bool = False,
) -> list[Outcome]:
    """Run `notebooks` at `scale`, `jobs` at a time, and return their outcomes (also merged into <out>/outcomes.json).

    Every parameter file and folder is checked before anything runs (FedlibError). `data` is the data root,
    `only_failed` leaves out those whose last outcome was ok. One whose last outcome still holds is not executed, unless
    `again`. Raises Interrupted on Ctrl-C or SIGTERM.
    """
    jobs = check_number("jobs", os.cpu_count() or 1 if jobs is None else jobs, least=1, whole=True)
    for notebook in notebooks:
        check_params(notebook, scale)
    for needed in (out, figures_folder(scale), runs_folder()):
        check_writable(needed)
    known = recorded(out)
    if only_failed:
        notebooks = [n for n in notebooks if n.name not in known or known[n.name].status != "ok"]
    common = fresh.common_stamp(_environment(1, data).get("FEDLIB_DATA"))
    stamps = {n.name: fresh.stamp(n, scale, common) for n in notebooks}
    held = [known[n.name] for n in notebooks if not again and _holds(n, scale, out, known, stamps)]
    unchanged = [replace(o, seconds=0.0, trained=0, kept=o.trained + o.kept, unchanged=True) for o in held]
    names = {outcome.notebook for outcome in unchanged}
    # The longest first, so that none is left alone at the end; those never timed before any of them.
    waiting = sorted(
        (n for n in notebooks if n.name not in names),
        key=lambda n: -known[n.name].seconds if n.name in known else float("-inf"),
    )
    environment = _environment(max(1, jobs // max(1, len(waiting))), data)
    with tempfile.TemporaryDirectory(prefix="running-", dir=out) as folder:
        try:
            ran = _run_all(waiting, scale, out, jobs, Path(folder), environment, stamps)
        except Interrupted as stop:
            raise Interrupted(_in_order([*stop.outcomes, *unchanged])) from None
    return _in_order([*ran, *unchanged])


def _holds(notebook: Notebook, scale: str, out: Path, known: dict[str, Outcome], stamps: dict[str, str]) -> bool:
    """Whether the last outcome, if there is one, is what executing the notebook again would give."""
    last = known.get(notebook.name)
    if last is None or last.status != "ok" or last.stamp != stamps[notebook.name]:
        return False
    there = (out / f"{notebook.name}.ipynb").is_file() and last.saved == fresh.has_saved(notebook, scale)
    return there and fresh.runs_are_kept(notebook, scale)


def why(notebook: Notebook, scale: str, data: Path | None = None) -> list[str]:
    """What the notebook would train at `scale`, and why, in lines; nothing is trained.

    The notebook is executed up to its runs, with FEDLIB_WHY set; raises FedlibError if it fails before them.
    """
    check_params(notebook, scale)
    with tempfile.TemporaryDirectory() as folder:
        execution = Execution(notebook, scale, Path(folder), _environment(1, data) | {"FEDLIB_WHY": "1"})
        try:
            execution.process.wait()
        finally:
            _stop([execution])
        lines = execution.progress.update().why
        if not lines and execution.process.returncode != 0:
            cell, error = execution.failure()
            raise FedlibError(f"{notebook.name} fails before its runs: {': '.join(filter(None, (cell, error)))}")
        return lines


def recorded(out: Path) -> dict[str, Outcome]:
    """The last outcome of each notebook, by name, from <out>/outcomes.json; empty if there is none."""
    file = out / "outcomes.json"
    if not file.is_file():
        return {}
    try:
        return {name: Outcome(**fields) for name, fields in json.loads(file.read_text(encoding="utf-8")).items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise FedlibError(f"{file}: not readable ({error}); remove it, it is written anew") from error


def _run_all(
    waiting: list[Notebook],
    scale: str,
    out: Path,
    jobs: int,
    folder: Path,
    environment: dict[str, str],
    stamps: dict[str, str],
) -> list[Outcome]:
    """Keep `jobs` notebooks running until all have ended; record each outcome as it comes."""
    names = [notebook.name for notebook in waiting]
    running: list[Execution] = []
    outcomes: dict[str, Outcome] = {}
    with display() as show, _terminations_as_interrupts():
        try:
            while waiting or running:
                while waiting and len(running) < jobs:
                    notebook = waiting.pop(0)
                    running.append(Execution(notebook, scale, folder, environment, stamps[notebook.name]))
                for execution in [e for e in running if e.ended()]:
                    outcomes[execution.notebook.name] = record(out, execution.outcome(out))
                    running.remove(execution)
                show(_lines(names, running, outcomes))
                time.sleep(LOOK_EVERY)
        except KeyboardInterrupt:
            _stop(running)
            for execution in running:
                outcomes[execution.notebook.name] = record(out, execution.outcome(out, stopped=True))
            raise Interrupted(_in_order(outcomes.values())) from None
        finally:
            _stop(running)
    return _in_order(outcomes.values())


def _lines(names: list[str], running: list[Execution], outcomes: dict[str, Outcome]) -> list[Line]:
    """What to show of each notebook now."""
    lines = {name: Line(name) for name in names}
    for execution in running:
        runs = execution.progress.update().in_words()
        lines[execution.notebook.name] = Line(execution.notebook.name, "running", runs, execution.seconds())
    for name, outcome in outcomes.items():
        runs = f"{outcome.trained} trained, {outcome.kept} kept"
        lines[name] = Line(name, outcome.status, runs, outcome.seconds, outcome.in_words())
    return list(lines.values())


def _in_order(outcomes: Iterable[Outcome]) -> list[Outcome]:
    return sorted(outcomes, key=lambda outcome: outcome.notebook)


def _cells(output: Path) -> list[dict[str, Any]]:
    """The cells of an output notebook; none if it was not written, or only in part."""
    try:
        cells: list[dict[str, Any]] = json.loads(output.read_text(encoding="utf-8"))["cells"]
    except (OSError, ValueError):
        return []
    return cells


def _stop(running: list[Execution]) -> None:
    """Ask the notebooks to stop, as Ctrl-C would, and end those that have not within the grace time."""
    alive = [execution.process for execution in running if not execution.ended()]
    for process in alive:
        process.send_signal(signal.SIGINT)
    deadline = time.monotonic() + GRACE
    for process in alive:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except (subprocess.TimeoutExpired, KeyboardInterrupt):  # a second Ctrl-C does not wait
            process.kill()
            process.wait()


def _environment(jobs: int, data: Path | None) -> dict[str, str]:
    """What a notebook's process sees: one thread, `jobs` worker processes, and folders that hold from anywhere."""
    environment = os.environ | {
        "FEDLIB_JOBS": str(jobs),
        "FEDLIB_PROJECT": str(project_root()),
        "FEDLIB_RUNS": str(runs_folder()),
        "FEDLIB_FIGURES": str(figures_folder("smoke").parent),
        "JUPYTER_PREFER_ENV_PATH": "1",
        "OMP_NUM_THREADS": "1",
    }
    root = data or os.environ.get("FEDLIB_DATA")
    if root:
        environment["FEDLIB_DATA"] = str(Path(root).expanduser().resolve())
    return environment


def record(out: Path, outcome: Outcome) -> Outcome:
    """Write the outcome into <out>/outcomes.json, beside those of other notebooks."""
    file = out / "outcomes.json"
    with FileLock(out / "outcomes.lock"):
        every: dict[str, Any] = {name: asdict(o) for name, o in (recorded(out) | {outcome.notebook: outcome}).items()}
        temporary = file.with_suffix(".tmp")
        temporary.write_text(json.dumps(dict(sorted(every.items())), indent=1), encoding="utf-8")
        os.replace(temporary, file)
    return outcome


@contextmanager
def _terminations_as_interrupts() -> Iterator[None]:
    """Treat SIGTERM and a closed terminal as Ctrl-C, so that no notebook outlives its parent."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    numbers = [n for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) is signal.SIG_DFL]
    for number in numbers:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)
