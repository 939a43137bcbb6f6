"""Running notebooks: what is refused before anything runs, what becomes of a good, a failing and a dying one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import Project

from fedlib import batch, fresh, notebooks, report
from fedlib.batch import Interrupted, Outcome, reproduce
from fedlib.checks import FedlibError
from fedlib.display import Progress
from fedlib.paths import SCALES, check_writable

GOOD = """
import json, os, pathlib
with open(os.environ["FEDLIB_PROGRESS"], "a") as events:
    for event in ({"event": "plan", "total": 3, "kept": 1}, {"event": "round", "key": "k", "round": 1, "rounds": 2},
                  {"event": "trained", "key": "k", "seconds": 1.0}, {"event": "trained", "key": "m", "seconds": 1.0}):
        print(json.dumps(event), file=events)
figures = pathlib.Path(os.environ["FEDLIB_FIGURES"]) / "smoke" / "here"
figures.mkdir(parents=True, exist_ok=True)
(figures / "good.claims.csv").write_text(
    "id,statement,threshold,effect,low,high,n,verdict,note\\n"
    "A1,a <b> & c,0.0,1.23456,0.5,2,3,holds,\\nA2,d,0,1,1,1,3,holds,\\nA3,e,0,nan,nan,nan,1,undecided,few\\n"
)
(figures / "good.png").write_bytes(b"a picture")
print(lr, os.getcwd(), *(os.environ[name] for name in ("FEDLIB_JOBS", "OMP_NUM_THREADS", "FEDLIB_DATA")))
"""


@pytest.fixture(scope="module")
def ended(shared_project: Project) -> tuple[Project, dict[str, Outcome]]:
    """A good, a failing and a dying notebook, run together."""
    shared_project.notebook("here/good", GOOD, parameters="lr = 0.1", item="Fig. 3", shows="good things")
    shared_project.params("here/good", "lr: 2")
    shared_project.notebook("here/bad", "ready = True", "# the sum\nraise ValueError('no <such> sum\\nand more')")
    shared_project.notebook("there/dying", "import os", "os._exit(7)")
    out = shared_project.root / "build"
    outcomes = reproduce(notebooks.discover(), "smoke", out, jobs=3, data=Path("some data"))
    return shared_project, {outcome.notebook: outcome for outcome in outcomes}


def outputs(notebook: Path) -> str:
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return "".join(text for cell in cells for output in cell["outputs"] for text in output.get("text", []))


def test_a_good_notebook_is_kept_with_its_runs_and_verdicts(ended: tuple[Project, dict[str, Outcome]]) -> None:
    project, outcomes = ended
    good = outcomes["here/good"]
    assert (good.status, good.trained, good.kept, good.error) == ("ok", 2, 1, None)
    assert good.verdicts == {"holds": 2, "undecided": 1}
    assert notebooks.in_words(good.verdicts) == "2 hold, 1 undecided"
    folder = project.root / "notebooks" / "here"
    data = Path("some data").resolve()
    assert outputs(project.root / "build/here/good.ipynb") == f"2 {folder} 1 1 {data}\n"


def test_a_failing_notebook_is_kept_apart_with_its_cell_and_message(ended: tuple[Project, dict[str, Outcome]]) -> None:
    project, outcomes = ended
    bad = outcomes["here/bad"]
    assert (bad.status, bad.cell) == ("failed", "cell [3] # the sum")
    assert bad.error == "ValueError: no <such> sum\nand more"
    assert bad.in_words() == "cell [3] # the sum: ValueError: no <such> sum"
    assert (project.root / "build/failed/here/bad.ipynb").is_file()
    assert not (project.root / "build/here/bad.ipynb").exists()


def test_a_dead_kernel_is_a_failure_with_papermills_last_words(ended: tuple[Project, dict[str, Outcome]]) -> None:
    _, outcomes = ended
    dying = outcomes["there/dying"]
    assert dying.status == "failed"
    assert "Kernel died" in (dying.error or "")


def test_nothing_half_done_is_left_and_the_outcomes_are_recorded(ended: tuple[Project, dict[str, Outcome]]) -> None:
    project, outcomes = ended
    out = project.root / "build"
    assert sorted(path.name for path in out.iterdir() if path.is_dir()) == ["failed", "here"]
    assert batch.recorded(out) == outcomes


def test_the_report_needs_no_other_file(ended: tuple[Project, dict[str, Outcome]]) -> None:
    project, outcomes = ended
    comparison = (
        "table,setting,method,metric,paper,ours,low,high,n\nTable 1,mid,FedDRM,system@pooled,,61.2345,60,62,3\n"
    )
    project.file("figures/smoke/here/good.comparison.csv", comparison)
    page = report.write(project.root / "build", "smoke", outcomes).read_text(encoding="utf-8")
    assert "data:image/png;base64,YSBwaWN0dXJl" in page
    assert "a &lt;b&gt; &amp; c" in page and "no &lt;such&gt; sum" in page and "<such>" not in page
    assert "0.5 to 2" in page and "1.235" in page and "nan" not in page
    assert '<td>FedDRM</td><td>system@pooled</td><td class="n"></td><td class="n">61.23</td>' in page  # unknown: blank
    assert 'href="here/good.ipynb"' in page and 'href="failed/here/bad.ipynb"' in page
    assert "http" not in page.replace("charset", "")


def test_the_report_shows_any_comparison(ended: tuple[Project, dict[str, Outcome]]) -> None:
    """A notebook may lay its own columns beside the paper's."""
    project, outcomes = ended
    project.file("figures/smoke/here/good.comparison.csv", "setting,paper least,ours least\nown,1.41,-3.6818\n")
    page = report.write(project.root / "build", "smoke", outcomes).read_text(encoding="utf-8")
    assert '<th>setting</th><th class="n">paper least</th><th class="n">ours least</th>' in page
    assert '<td>own</td><td class="n">1.41</td><td class="n">-3.682</td>' in page


def test_only_failed_runs_those_that_did_not_end_well(project: Project) -> None:
    project.notebook("was_good", "raise SystemError('not to be run')")
    project.notebook("was_bad", "print('mended')")
    out = project.root / "build"
    project.file("build/failed/was_bad.ipynb", "half-done")
    for name, status in (("was_good", "ok"), ("was_bad", "failed")):
        batch.record(out, Outcome(name, status, 1.0, 0, 0))
    outcomes = reproduce(notebooks.discover(), "smoke", out, jobs=4, only_failed=True)
    assert [(outcome.notebook, outcome.status) for outcome in outcomes] == [("was_bad", "ok")]
    assert not (out / "failed/was_bad.ipynb").exists()
    assert {name: outcome.status for name, outcome in batch.recorded(out).items()} == {
        "was_good": "ok",
        "was_bad": "ok",
    }
    assert reproduce(notebooks.discover(), "smoke", out, only_failed=True) == []


def test_a_lone_notebook_gets_all_jobs_and_the_slow_ones_go_first(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[list[str]] = []
    jobs: list[str] = []

    def noted(
        waiting: list, scale: str, out: Path, n: int, folder: Path, environment: dict[str, str], stamps: dict
    ) -> list:
        given.append([notebook.name for notebook in waiting])
        jobs.append(environment["FEDLIB_JOBS"])
        return []

    monkeypatch.setattr(batch, "_run_all", noted)
    for name, seconds in (("a", 1.0), ("b", 9.0), ("c", None)):
        project.notebook(name)
        if seconds:
            batch.record(batch.check_writable(project.root / "build"), Outcome(name, "ok", seconds, 0, 0))
    reproduce(notebooks.discover(), "smoke", project.root / "build", jobs=3)
    reproduce(notebooks.find(["a"]), "smoke", project.root / "build", jobs=3)
    assert given == [["c", "b", "a"], ["a"]]
    assert jobs == ["1", "3"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("roundz: 3", r"smoke/x/y\.yaml: unknown key 'roundz'; did you mean 'rounds'\?"),
        ("lr: fast", r"lr: 'fast' is text, but the notebook's default is 0\.1, a number; give a number, such as 0\.1"),
        ("lr: 1e-3", r"lr: '1e-3' is text, .* YAML reads 1e-3 as text: write 0\.001"),
        ("lr: true", r"lr: True is true or false"),
        ("lr:", r"lr: None is nothing"),
        ("rounds: 2.5", r"rounds: 2\.5 is a number, but the notebook's default is 3, a whole number"),
        ("flag: 1", r"flag: 1 is a whole number, but the notebook's default is True, true or false"),
        ("lams: 0.5", r"lams: 0\.5 is a number, but .* a list"),
        ("lams: [0.5, 1e-3]", r"lams: .* write 0\.001"),
        ("sgd: {lr: slow}", r"sgd: .* is a table of names"),
        ("scale: paper", r"scale is 'paper', but the file is in params/smoke"),
        ("- lr", r"holds a list .*give lines of NAME: VALUE"),
        ("lr: [1", r"not readable as YAML"),
    ],
)
def test_wrong_parameters_are_refused_before_anything_runs(project: Project, text: str, message: str) -> None:
    parameters = "lr = 0.1\nrounds = 3\nflag = True\nlams: list[float] = [\n    0.5,  # and\n    1.0,\n]\n"
    project.notebook("x/y", parameters=parameters + "sgd = {'lr': 0.1}\nlimit = None\nscale = 'smoke'")
    project.notebook("a_good_one", "raise SystemError('not to be run')")
    project.params("x/y", text)
    with pytest.raises(FedlibError, match=message):
        reproduce(notebooks.discover(), "smoke", project.root / "build")
    assert not (project.root / "build").exists()


def test_right_parameters_pass(project: Project) -> None:
    parameters = "lr = 0.1\nlams = [0.5]\nlimit = None\nsizes = []\nscale = 'smoke'"
    project.notebook("y", parameters=parameters)
    project.params("y", "lr: 1\nlams: [0, 0.5, 1]\nlimit: anything\nsizes: [1, x]\nscale: smoke")
    notebooks.check_params(notebooks.Notebook("y"), "smoke")


def test_a_missing_parameter_file_and_a_wrong_parameters_cell_are_named(project: Project) -> None:
    path = project.notebook("y", parameters="lr = 2 * 0.1")
    with pytest.raises(FedlibError, match="must hold only NAME = LITERAL"):
        notebooks.check_params(notebooks.Notebook("y"), "smoke")
    path.write_text(path.read_text(encoding="utf-8").replace('"parameters"', '"other"'), encoding="utf-8")
    with pytest.raises(FedlibError, match="0 cells are tagged 'parameters'"):
        notebooks.check_params(notebooks.Notebook("y"), "smoke")
    (project.root / "params/laptop/y.yaml").unlink()
    with pytest.raises(FedlibError, match=r"y has no parameters at laptop scale: .*params/laptop/y\.yaml is missing"):
        notebooks.check_params(notebooks.Notebook("y"), "laptop")


def test_an_output_folder_that_cannot_be_written_is_refused_before_anything_runs(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.notebook("y")
    file = project.file("a_file", "")
    with pytest.raises(FedlibError, match=r"a_file/build: cannot write there \(Not a directory\)"):
        reproduce(notebooks.discover(), "smoke", file / "build")

    def full(**_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tempfile.TemporaryFile", full)
    with pytest.raises(FedlibError, match=r"cannot write there \(No space left on device\)"):
        check_writable(project.root / "build")


@pytest.mark.parametrize("jobs", [0, -1])
def test_jobs_out_of_range_are_refused(project: Project, jobs: int) -> None:
    project.notebook("y")
    with pytest.raises(FedlibError, match=r"jobs: .* at least 1"):
        reproduce(notebooks.discover(), "smoke", project.root / "build", jobs=jobs)


def test_progress_takes_in_whole_lines_only(tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    progress = Progress(file)
    assert progress.update().in_words() == ""
    plan = '{"event": "plan", "total": 4, "kept": 1}\n'
    file.write_text(plan + '{"event": "round", "round": 3, "rou', encoding="utf-8")
    assert progress.update().in_words() == "1/4 runs"
    file.write_text(plan + '{"event": "round", "round": 3, "rounds": 9}\n', encoding="utf-8")
    assert progress.update().in_words() == "1/4 runs  round 3/9"
    with file.open("a", encoding="utf-8") as events:
        events.write('{"event": "trained", "key": "k"}\n')
    assert progress.update().in_words() == "2/4 runs"


def test_a_damaged_record_of_outcomes_is_named(tmp_path: Path) -> None:
    (tmp_path / "outcomes.json").write_text("{", encoding="utf-8")
    with pytest.raises(FedlibError, match=r"outcomes\.json: not readable .*remove it"):
        batch.recorded(tmp_path)


def test_every_notebook_of_the_collection_has_good_parameters_at_every_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDLIB_PROJECT", raising=False)
    every = notebooks.discover()
    for notebook in every:
        for scale in SCALES:
            notebooks.check_params(notebook, scale)
    files = {path.relative_to(notebooks.params_folder()) for path in notebooks.params_folder().rglob("*.yaml")}
    assert files == {Path(scale, f"{notebook.name}.yaml") for notebook in every for scale in SCALES}


def counted(project: Project) -> Path:
    """A notebook that appends a line to a file each time it is executed, and the file."""
    tally = project.root / "tally.txt"
    project.notebook("counts", f"with open({str(tally)!r}, 'a') as file:\n    file.write('x')")
    return tally


def test_what_has_not_changed_is_not_executed_again(project: Project) -> None:
    tally, out = counted(project), project.root / "out"
    wanted = notebooks.discover()
    (first,) = batch.reproduce(wanted, "smoke", out)
    (second,) = batch.reproduce(wanted, "smoke", out)
    assert (first.unchanged, second.unchanged, second.status) == (False, True, "ok")
    assert tally.read_text() == "x"
    batch.reproduce(wanted, "smoke", out, again=True)
    assert tally.read_text() == "xx"


@pytest.mark.parametrize("change", ["cell", "parameters", "output", "data"])
def test_what_has_changed_is_executed_again(project: Project, change: str) -> None:
    tally, out, data = counted(project), project.root / "out", project.root / "data"
    data.mkdir()
    batch.reproduce(notebooks.discover(), "smoke", out, data=data)
    if change == "cell":
        project.notebook("counts", f"with open({str(tally)!r}, 'a') as file:\n    file.write('y')")
    elif change == "parameters":
        project.params("counts", "seed: 0\n")
    elif change == "output":
        (out / "counts.ipynb").unlink()
    else:
        (data / "more.npz").write_bytes(b"1")
    (again,) = batch.reproduce(notebooks.discover(), "smoke", out, data=data)
    assert not again.unchanged
    assert len(tally.read_text()) == 2


def test_ctrl_c_tells_of_what_has_not_changed_too(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a_kept", "slow", "z_kept"):
        project.notebook(name)
    out, common = batch.check_writable(project.root / "build"), fresh.common_stamp(None)
    for notebook in notebooks.find(["a_kept", "z_kept"]):
        project.file(f"build/{notebook.name}.ipynb", "its output")
        batch.record(out, Outcome(notebook.name, "ok", 9.0, 2, 1, stamp=fresh.stamp(notebook, "smoke", common)))

    def stopped(waiting: list, *_: object) -> list:
        raise Interrupted([Outcome(notebook.name, "stopped", 1.0, 0, 0) for notebook in waiting])

    monkeypatch.setattr(batch, "_run_all", stopped)
    with pytest.raises(Interrupted) as caught:
        reproduce(notebooks.discover(), "smoke", out)
    told = [(o.notebook, o.status, o.unchanged, o.trained, o.kept) for o in caught.value.outcomes]
    assert told == [("a_kept", "ok", True, 0, 3), ("slow", "stopped", False, 0, 0), ("z_kept", "ok", True, 0, 3)]
