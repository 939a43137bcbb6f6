"""Runs: trained once, kept under their key, resumable, shared by every notebook that asks for them."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pandas as pd
from filelock import FileLock

from fedlib import probes, store
from fedlib.checks import FedlibError, check_number
from fedlib.engines import Processes, Serial, one_thread, worker_pool
from fedlib.experiment import Experiment, device, key_of
from fedlib.methods import check_clients
from fedlib.paths import check_writable, runs_folder
from fedlib.progress import Bar, emit, events_file
from fedlib.rounds import Snapshot, federate
from fedlib.training import check_precision

CHECKPOINT_SECONDS = 5.0


class Planned(Exception):
    """Raised by run_all under FEDLIB_WHY=1, when all that would run has been said."""


@dataclass(frozen=True)
class Run:
    """A finished run."""

    experiment: Experiment
    key: str
    folder: Path

    def history(self) -> pd.DataFrame:
        """Long and tidy: round, metric, moment, client (-1: over all), value."""
        return store.load_history(self.folder / "history.csv")

    def snapshot(self) -> Snapshot:
        """Server and client tensors after the last round."""
        return store.load_snapshot(self.folder / "weights.safetensors")

    def table(self) -> pd.DataFrame:
        """The history with the key and the experiment's own columns beside it."""
        return self.history().assign(key=self.key, **self.experiment.columns())


def is_kept(key: str) -> bool:
    """Whether a finished run lies under this key."""
    return (runs_folder() / key / "history.csv").is_file()


def cost(key: str) -> float:
    """Seconds of training that this run has taken so far, all attempts together."""
    path = runs_folder() / key / "cost.json"
    return float(json.loads(path.read_text())["seconds"]) if path.is_file() else 0.0


def run(
    experiment: Experiment,
    jobs: int = 1,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    events: str | Path | None = None,
    bar: Bar | None = None,
) -> Run:
    """Train, or return what is kept. Two processes that want the same run train it once: the second one waits.

    jobs: worker processes for the clients of this one run. A run that was stopped goes on from its last checkpoint.
    """
    parts = experiment.parts()
    key = key_of(parts)
    folder = check_writable(runs_folder()) / key
    with FileLock(runs_folder() / f"{key}.lock"):
        if not is_kept(key):
            store.write_text(folder / "experiment.json", json.dumps(parts, indent=1, sort_keys=True))
            _train(experiment, key, folder, jobs, checkpoint_seconds, events, bar)
    return Run(experiment, key, folder)


def _train(
    experiment: Experiment,
    key: str,
    folder: Path,
    jobs: int,
    checkpoint_seconds: float,
    events: str | Path | None,
    bar: Bar | None,
) -> None:
    check_precision(experiment.local.precision, device())
    federation = experiment.federation().to(device())
    checkpoint = folder / "checkpoint.safetensors"
    resume = store.load_snapshot(checkpoint).to(device()) if checkpoint.is_file() else None
    saved = time.monotonic()
    if bar is not None and resume is not None:
        bar.advance(resume.server.round)

    def spend() -> float:
        """Add the seconds since the last call to the run's cost.json; return their sum."""
        nonlocal saved
        saved, before = time.monotonic(), saved
        total = cost(key) + saved - before
        store.write_text(folder / "cost.json", json.dumps({"seconds": round(total, 2)}))
        return total

    def after_round(now: Snapshot) -> None:
        emit(events, event="round", key=key, round=now.server.round, rounds=experiment.plan.rounds)
        if bar is not None:
            bar.advance()
        if time.monotonic() - saved >= checkpoint_seconds:
            store.save_snapshot(checkpoint, now)
            spend()

    engine = Processes(jobs) if jobs > 1 and device().type == "cpu" else Serial()
    try:
        task, extra = experiment.task(federation), probes.load(experiment.probes)
        now = federate(
            experiment.method, federation, task, experiment.local, experiment.plan, engine, resume, after_round, extra
        )
    finally:
        engine.close()
    seconds = spend()
    store.save_snapshot(folder / "weights.safetensors", now)
    store.save_history(folder / "history.csv", now.history)
    for superseded in (checkpoint, *folder.glob(".*.part")):
        superseded.unlink(missing_ok=True)
    emit(events, event="trained", key=key, seconds=round(seconds, 2))


def run_all(experiments: Iterable[Experiment], jobs: int | None = None) -> pd.DataFrame:
    """Run what is not kept, `jobs` runs at a time (FEDLIB_JOBS, else the number of cores), with a progress bar.

    Returns one tidy table: the columns of Run.table() for all experiments. If a run fails, the others still finish
    and are kept; then the first error is raised.
    """
    wanted = list(experiments)
    if not wanted:
        raise FedlibError("run_all: no experiment given; is a list in the parameters empty?")
    jobs = _jobs(jobs)
    keyed = {experiment.key(): experiment for experiment in wanted}
    check_writable(runs_folder())
    if os.environ.get("FEDLIB_WHY"):
        emit(events_file(), event="why", lines=why(wanted))
        raise Planned("FEDLIB_WHY is set: what would run was written, nothing was trained")
    missing = {key: experiment for key, experiment in keyed.items() if not is_kept(key)}
    emit(events_file(), event="plan", total=len(keyed), kept=len(keyed) - len(missing))
    bar = Bar(
        sum(e.plan.rounds for e in missing.values()), f"{len(missing)} runs to train, {len(keyed) - len(missing)} kept"
    )
    try:
        for experiment in missing.values():  # what cannot be made is an error before any training
            federation = experiment.federation()
            check_clients(experiment.method, federation)
            experiment.method.build(experiment.task(federation))
        _train_all(missing, jobs, bar)
    finally:
        bar.close()
    return pd.concat([Run(e, key, runs_folder() / key).table() for key, e in keyed.items()], ignore_index=True)


def run_groups(
    groups: Mapping[tuple[str, ...], Sequence[Experiment]], columns: Sequence[str], jobs: int | None = None
) -> pd.DataFrame:
    """run_all of all groups together; each row says in `columns` which group it is of. A run may be in several.

    groups: {a value for each of `columns`: experiments}, e.g. {("pacs", "FedAvg"): [one for each seed]}.
    """
    table = run_all([experiment for group in groups.values() for experiment in group], jobs)
    rows = dict(list(table.groupby("key", sort=False)))
    named = [
        rows[experiment.key()].assign(**dict(zip(columns, names, strict=True)))
        for names, group in groups.items()
        for experiment in group
    ]
    return pd.concat(named, ignore_index=True)


def _jobs(jobs: int | None) -> int:
    named = os.environ.get("FEDLIB_JOBS")
    if jobs is None and named:
        if not named.isdigit():
            raise FedlibError(f"FEDLIB_JOBS: {named!r} is not a whole number; give the runs to train at a time")
        jobs = int(named)
    if jobs is None:
        jobs = (
            1
            if device().type == "cuda"
            else len(os.sched_getaffinity(0))
            if hasattr(os, "sched_getaffinity")
            else os.cpu_count() or 1
        )
    return check_number("jobs", jobs, least=1, whole=True)


def _train_all(missing: dict[str, Experiment], jobs: int, bar: Bar) -> None:
    if jobs == 1 or len(missing) <= 1:
        failed: list[tuple[Experiment, BaseException]] = []
        for experiment in missing.values():
            try:
                run(experiment, jobs=jobs, events=events_file(), bar=bar)
            except Exception as error:
                failed.append((experiment, error))
        _raise_first(failed, len(missing))
        return
    with tempfile.TemporaryDirectory() as folder:
        events = Path(events_file() or Path(folder) / "events.jsonl")
        events.touch()
        pool = worker_pool(min(jobs, len(missing)))
        futures = {pool.submit(_run_in_worker, e, str(events)): e for e in missing.values()}
        try:
            _watch(set(futures), events, set(missing), bar)
        except BaseException:
            for process in list((pool._processes or {}).values()):  # a stopped run goes on from its checkpoint
                process.terminate()
            raise
        finally:
            pool.shutdown(cancel_futures=True)
        _raise_first([(e, problem) for f, e in futures.items() if (problem := f.exception())], len(missing))


def _run_in_worker(experiment: Experiment, events: str) -> None:
    with one_thread():
        run(experiment, events=events)


def _watch(futures: set[Future], events: Path, keys: set[str], bar: Bar) -> None:
    """Advance the bar by the rounds that the workers report, until all are done."""
    seen = dict.fromkeys(keys, 0)
    with events.open(encoding="utf-8") as file:
        file.seek(0, os.SEEK_END)
        begun = ""  # of a line that is still being written
        while futures:
            _, futures = wait(futures, timeout=0.3, return_when=FIRST_COMPLETED)
            *lines, begun = (begun + file.read()).split("\n")
            for line in lines:
                event = json.loads(line)
                if event["event"] == "round" and event["key"] in seen:
                    bar.advance(event["round"] - seen[event["key"]])
                    seen[event["key"]] = event["round"]


def _raise_first(failed: Sequence[tuple[Experiment, BaseException]], total: int) -> None:
    if not failed:
        return
    experiment, error = failed[0]
    if isinstance(error, BrokenProcessPool):
        raise FedlibError(
            "a worker process died: either memory ran out (give fewer jobs), or run_all is called by a script outside "
            'of `if __name__ == "__main__":`, which each worker process runs again; what was trained is kept'
        ) from error
    if not isinstance(error, FedlibError):
        raise error
    others = f"; {len(failed)} of {total} runs failed, the others are kept" if total > 1 else ""
    about = f"{type(experiment.method).__name__}, seed {experiment.seed}, {experiment.data}"
    raise FedlibError(f"{error} ({about}{others})") from error


def why(experiments: Iterable[Experiment]) -> list[str]:
    """One line a run: kept, or what has changed against the kept run that is nearest to it."""
    kept = {folder.name: parts for folder in _folders() if is_kept(folder.name) and (parts := store.load_parts(folder))}
    lines = []
    for experiment in experiments:
        parts = experiment.parts()
        key = key_of(parts)
        name = f"{key}  {_in_words(experiment)}"
        if key in kept:
            lines.append(f"{name}: kept")
            continue
        nearest = min((differences(old, parts) for old in kept.values()), key=len, default=None)
        stopped = " (goes on from a checkpoint)" if (runs_folder() / key / "checkpoint.safetensors").is_file() else ""
        reason = "nothing is kept yet" if nearest is None else f"nearest kept run differs in {_summed_up(nearest)}"
        lines.append(f"{name}: would train{stopped}; {reason}")
    return lines


def _in_words(experiment: Experiment) -> str:
    """What tells the runs of a notebook apart; of the method, the hyper-parameters that are not its defaults."""
    method = experiment.method
    own = [(item.name, getattr(method, item.name), item.default) for item in fields(method)]
    changed = [f"{name}={value!r}" for name, value, default in own if value != default]
    columns = experiment.columns()
    settings = [columns[name] for name in ("data", "partition", "shift", "drift") if columns[name] != "none"]
    return f"{type(method).__name__}({', '.join(changed)}), seed {experiment.seed}, {', '.join(settings)}"


def _summed_up(found: list[str], most: int = 4) -> str:
    """The differences of descriptions one by one, then the modules whose code differs."""

    def first(names: list[str]) -> str:
        return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")

    code = [line.partition(":")[0].removeprefix("source.") for line in found if line.startswith("source.")]
    rest = [line for line in found if not line.startswith("source.")]
    return "; ".join(([first(rest)] if rest else []) + ([f"the code of {first(code)}"] if code else []))


def _folders() -> list[Path]:
    return sorted(path for path in runs_folder().iterdir() if path.is_dir()) if runs_folder().is_dir() else []


def differences(old: dict[str, Any], new: dict[str, Any], where: str = "") -> list[str]:
    """Where two descriptions differ, as readable paths: "experiment.method.lam: 0.8 -> 0.9"."""
    found: list[str] = []
    for name in sorted(set(old) | set(new)):
        a, b, path = old.get(name), new.get(name), f"{where}{name}"
        if isinstance(a, dict) and isinstance(b, dict):
            found += differences(a, b, f"{path}.")
        elif a != b:
            found.append(f"{path}: {a} -> {b}")
    return found
