"""The command line as a person meets it: help, names, exit codes, Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import Project

from fedlib import __main__, batch, notebooks
from fedlib.__main__ import main
from fedlib.checks import FedlibError

ROOT = Path(__main__.__file__).parents[1]


def fedlib(*arguments: str) -> subprocess.Popen[str]:
    """The command line in a process of its own, as a person starts it."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "fedlib", *arguments]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ([], ["one executed notebook per published figure", "reproduce", "why", "clean", "examples:", "laptop"]),
        (["reproduce"], ["--only-failed", "--jobs N", "default: build/<scale>", "examples:", "the exit code is 1"]),
        (["why"], ["Nothing is trained", "example:", "--scale SCALE"]),
        (["data"], ["{list,check}", "FEDLIB_DATA", "examples:"]),
        (["readme"], ["--check"]),
        (["clean"], ["--runs", "--yes"]),
        (["list"], ["usage: fedlib list"]),
    ],
)
def test_help_says_what_and_how(command: list[str], words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main([*command, "--help"])
    assert stop.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    assert not [word for word in words if word not in text]


def test_help_is_quick_because_nothing_heavy_is_imported() -> None:
    code = "import sys, fedlib.__main__; print(sorted({'torch', 'papermill', 'rich', 'pandas'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True)
    assert done.stdout == b"[]\n"


def test_no_command_shows_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert capsys.readouterr().out.startswith("usage: fedlib")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["reprodce"], "error: command: 'reprodce' is unknown; did you mean 'reproduce'?"),
        (["reproduce", "lamda_sweep"], "error: notebook 'lamda_sweep' is unknown; did you mean 'feddrm/lambda_sweep'?"),
        (["reproduce", "--scale", "lapto"], "error: --scale: 'lapto' is unknown; did you mean 'laptop'?"),
        (["reproduce", "main_table"], "error: notebook 'main_table' is in several papers; say "),
        (["why", "fedrm"], "error: notebook 'fedrm' is unknown; did you mean 'feddrm'?"),
        (["data", "check", "mnits"], "did you mean 'mnist'?"),
        (["data", "list", "digit"], "error: data set: 'digit' is unknown; did you mean 'digits'?"),
        (["list", "lamda_sweep"], "error: notebook 'lamda_sweep' is unknown; did you mean 'feddrm/lambda_sweep'?"),
        (["reproduce", "--data", "/no/such"], "error: --data: /no/such is no folder; give the one that holds the data"),
        (["readme"], "README.md is missing"),
    ],
)
def test_bad_input_is_one_line_with_the_nearest_name(
    project: Project, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("feddrm/lambda_sweep", "feddrm/main_table", "feroma/main_table", "start_here"):
        project.notebook(name)
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_notebooks_are_found_by_name_last_part_path_and_paper(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("feddrm/lambda_sweep", "feddrm/theory", "start_here"):
        project.notebook(name)
    project.file("notebooks/feddrm/.ipynb_checkpoints/theory-checkpoint.ipynb", "")
    monkeypatch.chdir(project.root / "notebooks")

    def found(*wanted: str) -> list[str]:
        return [notebook.name for notebook in notebooks.find(list(wanted))]

    assert found() == ["feddrm/lambda_sweep", "feddrm/theory", "start_here"]
    for way in ("feddrm/theory", "theory", "theory.ipynb", str(project.root / "notebooks/feddrm/theory.ipynb")):
        assert found(way) == ["feddrm/theory"]
    assert found("feddrm") == found("notebooks/feddrm/") == ["feddrm/lambda_sweep", "feddrm/theory"]
    assert found("start_here", "start_here.ipynb") == ["start_here"]


def test_no_notebook_at_all_is_an_error(project: Project) -> None:
    with pytest.raises(FedlibError, match="no notebook there; run from a clone, or name one in FEDLIB_PROJECT"):
        notebooks.discover()


def test_list_shows_item_scales_and_kept_figures(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    project.notebook("feddrm/lambda_sweep", item="Fig. 4", shows="the trade-off")
    (project.root / "params/paper/feddrm/lambda_sweep.yaml").unlink()
    project.file("figures/laptop/feddrm/lambda_sweep.png", "")
    assert main(["list"]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if "lambda_sweep" in line)
    cells = [cell.strip() for cell in line.strip("│").split("│")]
    assert cells == ["feddrm/lambda_sweep", "Fig. 4", "the trade-off", "smoke laptop", "laptop"]
    project.notebook("feroma/regimes")
    assert main(["list", "feroma"]) == 0
    shown = capsys.readouterr().out
    assert "feroma/regimes" in shown and "lambda_sweep" not in shown


def test_reproduce_tells_of_a_failure_and_exits_with_1(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    project.notebook("bad", "oops")
    assert main(["reproduce"]) == 1
    said = capsys.readouterr().out
    assert said.startswith("bad: running\nbad: failed after 0:")
    assert "bad: cell [2] oops: NameError: name 'oops' is not defined" in said
    assert f"half-done output: {project.root / 'build/smoke/failed/bad.ipynb'}" in said
    assert said.endswith(f"Report: {project.root / 'build/smoke/report.html'}\n")
    assert (project.root / "build/smoke/report.html").is_file()


def test_nothing_failed_means_nothing_to_do(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    project.notebook("good")
    batch.record(batch.check_writable(project.root / "build/smoke"), batch.Outcome("good", "ok", 1.0, 0, 0))
    assert main(["reproduce", "--only-failed"]) == 0
    assert "Nothing to do: no notebook failed." in capsys.readouterr().out


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_lets_its_notebooks_save_and_ends_them(project: Project, number: signal.Signals) -> None:
    kernel = project.root / "kernel"
    project.notebook(
        "slow",
        f"import os, pathlib, time\nkernel = pathlib.Path({str(kernel)!r})\nkernel.write_text(str(os.getpid()))\n"
        "try:\n    time.sleep(60)\nfinally:\n    kernel.with_suffix('.saved').touch()",
    )
    out = project.root / "build/smoke"
    batch.record(batch.check_writable(out), batch.Outcome("quick", "ok", 1.0, 0, 0))
    process = fedlib("reproduce")
    deadline = time.monotonic() + 60
    while not (kernel.is_file() and kernel.read_text()):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.1)
    process.send_signal(number)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert "Stopped. What was trained is kept" in said and "Traceback" not in said
    assert {name: outcome.status for name, outcome in batch.recorded(out).items()} == {"quick": "ok", "slow": "stopped"}
    assert kernel.with_suffix(".saved").exists(), "the kernel was killed before it could save anything"
    with pytest.raises(ProcessLookupError):
        os.kill(int(kernel.read_text()), 0)
    assert not list(out.glob("running-*"))


WHY = """
import json, os
assert os.environ["FEDLIB_WHY"] == "1"
with open(os.environ["FEDLIB_PROGRESS"], "a") as events:
    print(json.dumps({"event": "why", "lines": ["k1: kept", "k2: would train"]}), file=events)
raise RuntimeError("planned")
"""


def test_why_prints_what_would_train(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    project.notebook("some/sweep", WHY)
    assert main(["why", "sweep"]) == 0
    said = capsys.readouterr().out
    assert said == "some/sweep at smoke scale:\n  k1: kept\n  k2: would train\n"
    assert not (project.root / "build").exists()


def test_why_of_a_notebook_that_trains_nothing(
    project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    project.notebook("theory")
    monkeypatch.setattr(batch, "why", lambda *_: [])
    assert main(["why", "theory"]) == 0
    assert "no runs: this notebook trains nothing" in capsys.readouterr().out


def test_why_of_a_notebook_that_fails_before_its_runs(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    project.notebook("sweep", "oops")
    assert main(["why", "sweep"]) == 2
    assert "error: sweep fails before its runs: cell [2] oops: NameError" in capsys.readouterr().err


def test_readme_check_tells_by_its_exit_code(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    project.notebook("start_here")
    project.file("README.md", "<!-- notebooks:begin -->\n<!-- notebooks:end -->\n")
    assert main(["readme", "--check"]) == 1
    assert "stale; run `fedlib readme`" in capsys.readouterr().out
    assert main(["readme"]) == 0
    assert main(["readme", "--check"]) == 0


def test_clean_keeps_runs_unless_told(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("build/smoke/x", "figures/smoke/x", "figures/laptop/x", "runs/key/x"):
        project.file(name, "")
    assert main(["clean"]) == 0
    assert sorted(path.name for path in project.root.iterdir()) == ["figures", "runs"]
    assert not (project.root / "figures/smoke").exists() and (project.root / "figures/laptop").exists()
    assert main(["clean", "--runs"]) == 2
    assert "add --yes" in capsys.readouterr().err and (project.root / "runs").exists()
    assert main(["clean", "--runs", "--yes"]) == 0
    assert not (project.root / "runs").exists()


def test_a_report_that_fails_does_not_hide_the_outcomes(
    project: Project, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: object) -> None:
        raise KeyError("table")

    project.notebook("good", "print(1)")
    monkeypatch.setattr("fedlib.report.write", broken)
    assert main(["reproduce"]) == 1
    said = capsys.readouterr()
    assert "good" in said.out and "ok" in said.out
    assert "error: the report could not be written (KeyError: 'table')" in said.err


def test_a_data_folder_that_torchvision_may_fill_need_not_be_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["data", "list", "digits", "--data", str(tmp_path / "new")]
    monkeypatch.delenv("FEDLIB_DOWNLOAD", raising=False)
    assert main(command) == 2
    monkeypatch.setenv("FEDLIB_DOWNLOAD", "1")
    assert main(command) == 0


def test_data_list_shows_what_is_named_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "list", "shapes", "digits"]) == 0
    _, *lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["digits", "shapes"]


def test_data_check_goes_on_after_a_bad_set(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken.npz").write_bytes(b"PK")
    monkeypatch.setenv("FEDLIB_DATA", str(tmp_path))
    assert main(["data", "check", "broken", "digits"]) == 2
    said = capsys.readouterr()
    assert "error: broken: " in said.err and "digits: good, 1,437 train and 360 test images in 10 classes" in said.out
