"""Kept runs: trained once, resumed after any kill, never half written, and the reasons that `why` gives."""

from __future__ import annotations

import errno
import json
import os
import signal
import time
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
import tiny
from filelock import FileLock

from fedlib import runs, store
from fedlib.checks import FedlibError
from fedlib.experiment import Experiment
from fedlib.methods import make
from fedlib.methods.fedavg import FedAvg
from fedlib.methods.feddrm import FedDRM
from fedlib.methods.fedper import FedPer
from fedlib.methods.fedprox import FedProx
from fedlib.methods.feroma import FEROMA
from fedlib.runs import Planned, Run, cost, is_kept, run, run_all, why


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where this test's runs are kept."""
    monkeypatch.setenv("FEDLIB_RUNS", str(tmp_path / "runs"))
    for variable in ("FEDLIB_PROGRESS", "FEDLIB_WHY", "FEDLIB_JOBS"):
        monkeypatch.delenv(variable, raising=False)
    return tmp_path / "runs"


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[dict]]:
    """The events that run_all has written so far."""
    path = tmp_path / "events.jsonl"
    monkeypatch.setenv("FEDLIB_PROGRESS", str(path))
    return lambda: [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def kept(result: Run) -> tuple[bytes, str]:
    """What a run leaves: weights and history, to the byte."""
    return (result.folder / "weights.safetensors").read_bytes(), (result.folder / "history.csv").read_text()


def never_interrupted(asked: Experiment, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> tuple[bytes, str]:
    with monkeypatch.context() as patch:
        patch.setenv("FEDLIB_RUNS", str(tmp_path / "never interrupted"))
        return kept(run(asked))


# Kept


def test_a_kept_run_is_not_trained_again(told: Callable[[], list[dict]], monkeypatch: pytest.MonkeyPatch):
    asked = tiny.experiment(FedDRM(), evaluate_every=1)
    first = run(asked)
    assert sorted(path.name for path in first.folder.iterdir()) == [
        "cost.json",
        "experiment.json",
        "history.csv",
        "weights.safetensors",
    ]
    monkeypatch.setattr(runs, "federate", None)  # any training would now be an error
    again = run(asked)
    assert again == first and kept(again) == kept(first)
    table = run_all([asked, asked])
    assert len(table) == len(first.history()) and set(table["lam"]) == {0.8} and set(table["key"]) == {first.key}
    assert [(event["event"], event["total"], event["kept"]) for event in told()] == [("plan", 1, 1)]


def test_what_is_kept_is_what_was_trained():
    asked = tiny.experiment(FedDRM(), evaluate_every=1)
    result, fresh = run(asked), tiny.train(asked.method, asked.federation(), asked.plan, asked.local)
    assert tiny.same_snapshots(result.snapshot(), fresh)
    assert (
        result.snapshot().server.round == 3 and result.snapshot().server.weights.keys() == fresh.server.weights.keys()
    )
    frame = result.history()
    assert list(map(tuple, frame.itertuples(index=False))) == [tuple(row) for row in fresh.history]
    assert json.loads((result.folder / "experiment.json").read_text())["experiment"] == asked.description()
    assert 0 < cost(result.key) < 60


def test_clients_on_worker_processes_give_the_same_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    asked = tiny.experiment(FedDRM())
    assert kept(run(asked, jobs=2)) == never_interrupted(asked, monkeypatch, tmp_path)


def test_damage_is_named():
    result = run(tiny.experiment())
    (result.folder / "weights.safetensors").write_bytes(b"half a file")
    (result.folder / "history.csv").write_text("round,value\n1,2\n")
    with pytest.raises(FedlibError, match=r"weights.safetensors is damaged \(.*\); delete it and run again"):
        result.snapshot()
    with pytest.raises(FedlibError, match=r"history.csv is damaged \(.*\); delete its folder and run again"):
        result.history()


# Interrupted


def start(asked: Experiment, folder: Path, events: Path) -> BaseProcess:
    """Train in a process of its own."""
    context = get_context("forkserver")
    context.set_forkserver_preload(["fedlib.runs"])
    process = context.Process(target=tiny.run_in, args=(str(folder), str(events), asked))
    process.start()
    return process


def wait_for(condition: Callable[[], bool], process: BaseProcess) -> None:
    while not condition() and process.is_alive():
        time.sleep(0.002)


def stop_after(round: int, how: signal.Signals, asked: Experiment, folder: Path, events: Path) -> int:
    """Train until `round` is told, then a little longer, and send the signal; return the round it began with."""
    before = len(tiny.rounds_told(events))
    process = start(asked, folder, events)
    wait_for(lambda: round in tiny.rounds_told(events)[before:], process)
    time.sleep(0.003 * round)  # somewhere within a round, or while a checkpoint is written
    assert process.pid is not None
    os.kill(process.pid, how)
    process.join()
    assert process.exitcode != 0 and not is_kept(asked.key())
    return tiny.rounds_told(events)[before]


LONG = {"rounds": 30, "steps": 6, "evaluate_every": 5, "participation": 0.7, "crop": True}


def test_killed_at_any_moment_and_resumed_is_never_killed(folder: Path, monkeypatch: pytest.MonkeyPatch):
    asked, events = tiny.experiment(FedDRM(), **LONG), folder.parent / "events.jsonl"
    began = [stop_after(t, signal.SIGKILL, asked, folder, events) for t in (1, 4, 8)]
    # Round t is told before it is saved: what was told before it, is.
    assert began[0] == 1 <= began[1] and began[2] >= 4
    (folder / asked.key() / ".history.csv.part").write_text("what a kill may leave")
    told = len(tiny.rounds_told(events))
    result = run(asked, events=events)
    assert tiny.rounds_told(events)[told] >= 8
    assert kept(result) == never_interrupted(asked, monkeypatch, folder.parent)
    assert not [path.name for path in result.folder.iterdir() if path.name.startswith((".", "checkpoint"))]


def test_ctrl_c_leaves_a_resumable_state(folder: Path, monkeypatch: pytest.MonkeyPatch):
    asked, events = tiny.experiment(FedPer(), **LONG), folder.parent / "events.jsonl"
    assert stop_after(3, signal.SIGINT, asked, folder, events) == 1
    assert store.load_snapshot(folder / asked.key() / "checkpoint.safetensors").server.round >= 2
    assert "goes on from a checkpoint" in why([asked])[0]
    assert kept(run(asked)) == never_interrupted(asked, monkeypatch, folder.parent)


def test_two_processes_that_want_the_same_run_train_it_once(folder: Path, monkeypatch: pytest.MonkeyPatch):
    asked, events = tiny.experiment(rounds=5), folder.parent / "events.jsonl"
    both = [start(asked, folder, events) for _ in range(2)]
    for process in both:
        process.join()
    assert [process.exitcode for process in both] == [0, 0]
    assert events.read_text().count('"trained"') == 1 and tiny.rounds_told(events) == [1, 2, 3, 4, 5]
    assert kept(run(asked)) == never_interrupted(asked, monkeypatch, folder.parent)


def test_a_run_waits_for_its_lock(folder: Path):
    asked, events = tiny.experiment(), folder.parent / "events.jsonl"
    folder.mkdir()
    with FileLock(folder / f"{asked.key()}.lock"):
        waiting = start(asked, folder, events)
        waiting.join(1.0)
        assert waiting.is_alive() and not tiny.rounds_told(events)
    waiting.join()
    assert waiting.exitcode == 0 and is_kept(asked.key())


# The disk


def test_a_full_disk_is_one_clear_error_and_no_half_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    asked, save = tiny.experiment(FedDRM()), store.save_file
    saved: list[Path] = []

    def fills_up(tensors: dict, path: Path, about: dict) -> None:
        if len(saved) == 2:
            path.write_bytes(b"half a file")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        save(tensors, path, about)
        saved.append(path)

    with monkeypatch.context() as patch:
        patch.setattr(store, "save_file", fills_up)
        with pytest.raises(FedlibError, match="no space left on the disk; free some and run again"):
            run(asked, checkpoint_seconds=0)
    folder = runs.runs_folder() / asked.key()
    assert sorted(path.name for path in folder.iterdir()) == ["checkpoint.safetensors", "cost.json", "experiment.json"]
    assert store.load_snapshot(folder / "checkpoint.safetensors").server.round == 2
    assert kept(run(asked)) == never_interrupted(asked, monkeypatch, tmp_path)


def test_a_disk_that_is_full_at_the_end_leaves_no_finished_run(monkeypatch: pytest.MonkeyPatch):
    def full(path: Path, history: list) -> None:
        store.write(path, lambda to: (_ for _ in ()).throw(OSError(errno.EDQUOT, "Disk quota exceeded")))

    with monkeypatch.context() as patch:
        patch.setattr(store, "save_history", full)
        with pytest.raises(FedlibError, match=r"cannot write .*history.csv: no space left on the disk"):
            run(tiny.experiment())
    assert not is_kept(tiny.experiment().key())


def test_a_folder_that_cannot_be_written_is_an_error_before_training(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("FEDLIB_RUNS", str(tmp_path / "file" / "runs"))
    monkeypatch.setattr(runs, "federate", None)
    for attempt in (lambda: run(tiny.experiment()), lambda: run_all([tiny.experiment()])):
        with pytest.raises(FedlibError, match=r"file/runs: cannot write there \(.*\); mend its permissions or name"):
            attempt()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_is_an_error_before_training(folder: Path, monkeypatch: pytest.MonkeyPatch):
    folder.mkdir()
    folder.chmod(0o500)
    monkeypatch.setattr(runs, "federate", None)
    with pytest.raises(FedlibError, match=r"cannot write there \(Permission denied\)"):
        run(tiny.experiment())


# Failures


def test_a_loss_that_is_no_number_keeps_the_last_good_checkpoint_and_says_so_again():
    asked = tiny.experiment(tiny.Explodes(at=3), rounds=4)
    said = "^Explodes, round 3, client 1, client_update: NotFinite: step 2 of 2: the total loss is nan; lower lr$"
    for _ in range(2):
        with pytest.raises(FedlibError, match=said):
            run(asked, checkpoint_seconds=0)
        checkpoint = runs.runs_folder() / asked.key() / "checkpoint.safetensors"
        assert store.load_snapshot(checkpoint).server.round == 2 and not is_kept(asked.key())


def test_a_failing_run_lets_the_others_finish_whatever_the_jobs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    good = [tiny.experiment(FedDRM(), seed=seed) for seed in (0, 1)]
    asked = [good[0], tiny.experiment(tiny.Explodes(at=2)), good[1]]
    found = []
    for jobs in (1, 2):
        monkeypatch.setenv("FEDLIB_RUNS", str(tmp_path / f"{jobs} jobs"))
        with pytest.raises(FedlibError, match=r"Explodes, round 2, client 1.*1 of 3 runs failed, the others are kept"):
            run_all(asked, jobs=jobs)
        found.append([kept(run(experiment)) for experiment in good])
    assert found[0] == found[1]


def test_an_error_outside_client_work_lets_the_others_finish_too(monkeypatch: pytest.MonkeyPatch):
    train = runs._train

    def fails(asked: Experiment, *arguments) -> None:
        if asked.seed == 0:
            raise RuntimeError("cosmic ray")
        train(asked, *arguments)

    monkeypatch.setattr(runs, "_train", fails)
    with pytest.raises(RuntimeError, match="cosmic ray"):
        run_all([tiny.experiment(seed=0), tiny.experiment(seed=1)], jobs=1)
    assert is_kept(tiny.experiment(seed=1).key())


def test_a_federation_that_cannot_be_made_is_an_error_before_any_training():
    with pytest.raises(FedlibError, match="take fewer clients"):
        run_all([tiny.experiment(), tiny.experiment(samples=100, clients=101)], jobs=1)
    assert not is_kept(tiny.experiment().key())


def test_nothing_to_run_is_refused():
    with pytest.raises(FedlibError, match="run_all: no experiment given; is a list in the parameters empty"):
        run_all([])


@pytest.mark.parametrize(("jobs", "message"), [("two", "FEDLIB_JOBS: 'two' is not a whole number"), ("0", "jobs: 0")])
def test_wrong_jobs_are_refused(monkeypatch: pytest.MonkeyPatch, jobs: str, message: str):
    monkeypatch.setenv("FEDLIB_JOBS", jobs)
    with pytest.raises(FedlibError, match=message):
        run_all([tiny.experiment()])


def test_the_table_tells_runs_apart():
    table = run_all([tiny.experiment(FedAvg()), tiny.experiment(FedDRM(lam=0.5))], jobs=1)
    last = table[(table["round"] == 3) & (table["metric"] == "worst@local")]
    assert list(zip(last["method"], last["lam"].fillna(-1), strict=True)) == [("FedAvg", -1), ("FedDRM", 0.5)]
    assert set(table["clients"]) == {3} and set(table["partition"]) == {"iid"} and table["key"].nunique() == 2


# Why


def test_why_says_what_would_run_and_what_changed():
    first, other = tiny.experiment(FedDRM(lam=0.8)), tiny.experiment(FedDRM(lam=0.9))
    assert why([first]) == [f"{first.key()}  FedDRM(), seed 0, digits, iid: would train; nothing is kept yet"]
    run(first)
    assert why([first, other]) == [
        f"{first.key()}  FedDRM(), seed 0, digits, iid: kept",
        f"{other.key()}  FedDRM(lam=0.9), seed 0, digits, iid: would train; nearest kept run differs in "
        "experiment.method.lam: 0.8 -> 0.9",
    ]


def test_why_names_changed_code_and_counts_many_differences(monkeypatch: pytest.MonkeyPatch):
    asked = tiny.experiment()
    run(asked)
    sources = asked.sources()
    monkeypatch.setattr(Experiment, "sources", lambda self: sources | {"fedlib.training": "0123"})
    assert why([asked])[0].endswith("nearest kept run differs in the code of fedlib.training")
    other = why([tiny.experiment(FedProx(mu=0.5), seed=1, clients=4, lr=0.1, rounds=4, steps=1)])[0]
    assert f"  FedProx(mu=0.5), seed 1, {asked.data}, " in other
    assert "FedAvg -> FedProx and 3 more; the code of fedlib.training" in other


def test_fedlib_why_tells_instead_of_training(told: Callable[[], list[dict]], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FEDLIB_WHY", "1")
    monkeypatch.setattr(runs, "federate", None)
    with pytest.raises(Planned, match="nothing was trained"):
        run_all([tiny.experiment()])
    assert told() == [{"event": "why", "lines": why([tiny.experiment()])}]


def test_what_a_later_run_cannot_do_with_its_clients_is_an_error_before_the_first(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(runs, "federate", None)
    private = tiny.experiment(FEROMA(warmup=1, epsilon=1.0), samples=40, clients=8, validation_share=0.2)
    with pytest.raises(FedlibError, match=r"FEROMA.epsilon: a private profile needs two samples, but .* has 1"):
        run_all([tiny.experiment(), private])
    assert not is_kept(tiny.experiment().key())


def test_progress_tells_the_plan_every_round_and_the_end(told: Callable[[], list[dict]]):
    asked = tiny.experiment()
    run_all([asked], jobs=1)
    events = told()
    assert events[0] == {"event": "plan", "total": 1, "kept": 0}
    assert events[1:4] == [{"event": "round", "key": asked.key(), "round": t, "rounds": 3} for t in (1, 2, 3)]
    assert (events[4]["event"], events[4]["key"], len(events)) == ("trained", asked.key(), 5)


def test_weights_that_are_no_numbers_are_not_kept_even_in_the_last_round():
    """The loss of a next step, which would tell, never comes."""
    asked = tiny.experiment(tiny.Poisons(), rounds=1)
    with pytest.raises(FedlibError, match=r"Poisons, round 1: the averaged head.bias is not finite; lower lr"):
        run(asked)
    assert not is_kept(asked.key())


def test_a_network_that_cannot_be_made_is_an_error_before_any_training(told: Callable[[], list[dict]]):
    bad = tiny.experiment(make({"name": "FedALA", "top_layers": 99}))
    with pytest.raises(FedlibError, match=r"FedALA.top_layers: 99 is more than the"):
        run_all([tiny.experiment(), bad], jobs=1)
    assert not is_kept(tiny.experiment().key())


# Groups


def test_groups_share_runs_and_each_row_says_which_group_it_is_of(told: Callable[[], list[dict]]):
    first, second = tiny.experiment(seed=0), tiny.experiment(seed=1)
    table = runs.run_groups({("a", "x"): [first, second], ("b", "y"): [first]}, ["letter", "other"])
    assert sum(event["event"] == "trained" for event in told()) == 2
    rows = {group: set(part["key"]) for group, part in table.groupby(["letter", "other"])}
    assert rows == {("a", "x"): {first.key(), second.key()}, ("b", "y"): {first.key()}}
    alone = run_all([first])
    assert table[table["letter"] == "b"]["value"].tolist() == alone["value"].tolist()


def test_a_line_that_is_still_being_written_is_waited_for(tmp_path: Path):
    """The watcher meets half a line first, as it may when a worker writes while it reads."""
    from concurrent.futures import Future
    from threading import Thread

    class Counted:
        done = 0

        def advance(self, rounds: int = 1) -> None:
            self.done += rounds

    events, future, bar = tmp_path / "events.jsonl", Future(), Counted()
    events.touch()

    def write() -> None:
        line = json.dumps({"event": "round", "key": "k", "round": 3, "rounds": 5}) + "\n"
        with events.open("a", encoding="utf-8") as file:
            for half in (line[:20], line[20:]):
                time.sleep(0.5)
                file.write(half)
                file.flush()
        time.sleep(0.5)
        future.set_result(None)

    writer = Thread(target=write)
    writer.start()
    runs._watch({future}, events, {"k"}, bar)
    writer.join()
    assert bar.done == 3
