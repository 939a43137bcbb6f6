import json
import os

import pandas as pd
import pytest

from fedlib import claims, figures, plots
from fedlib.checks import FedlibError
from fedlib.claims import Claim
from fedlib.paths import figures_folder

DATA = pd.DataFrame({"key": ["b", "a", "b"], "seed": [0, 1, 2], "value": [0.1 + 0.2, 1 / 3, float("nan")]})
VERDICT = claims.paired(Claim("A1", "routing beats the vote"), [1.0, 1.1, 1.2])
NAME = "feddrm/sweep"


@pytest.fixture
def figure(project):
    return plots.verdicts([VERDICT])


def written():
    return {path.name: path.read_bytes() for path in (figures_folder("smoke") / "feddrm").iterdir()}


def test_save_writes_exactly_what_it_names(figure):
    figures.save(figure, NAME, "smoke", DATA)
    assert set(written()) == {"sweep.png", "sweep.svg", "sweep.csv", "sweep.json"}
    figures.save(figure, NAME, "smoke", DATA, [VERDICT], comparison=DATA)
    assert set(written()) == {f"sweep.{s}" for s in ("png", "svg", "csv", "claims.csv", "comparison.csv", "json")}
    assert written()["sweep.png"].startswith(b"\x89PNG") and b"<svg" in written()["sweep.svg"]


def test_the_tables_come_back_as_they_were(figure):
    figures.save(figure, NAME, "smoke", DATA, [VERDICT])
    folder = figures_folder("smoke") / "feddrm"
    pd.testing.assert_frame_equal(pd.read_csv(folder / "sweep.csv"), DATA, check_exact=True)
    found = pd.read_csv(folder / "sweep.claims.csv", keep_default_na=False)
    assert found.to_dict("records") == claims.to_frame([VERDICT]).to_dict("records")


def test_the_same_figure_is_the_same_bytes(figure, monkeypatch):
    figures.save(figure, NAME, "smoke", DATA, [VERDICT])
    before = written()
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1")
    for again in (figure, plots.verdicts([VERDICT])):
        figures.save(again, NAME, "smoke", DATA, [VERDICT])
        assert written() == before


def test_verdicts_that_are_no_longer_given_do_not_stay(figure):
    figures.save(figure, NAME, "smoke", DATA, [VERDICT], comparison=DATA)
    figures.save(figure, NAME, "smoke", DATA)
    assert set(written()) == {"sweep.png", "sweep.svg", "sweep.csv", "sweep.json"}


def cost(project, **seconds):
    for key, value in seconds.items():
        project.file(f"runs/{key}/cost.json", json.dumps({"seconds": value}))


def origin():
    return json.loads(written()["sweep.json"])


def test_the_origin_names_each_run_once_and_half_their_seconds(figure, project):
    cost(project, a=10.0, b=30.5, c=99.0)
    figures.save(figure, NAME, "smoke", DATA)
    about = origin()
    assert (about["notebook"], about["scale"], about["keys"], about["seconds"]) == (NAME, "smoke", ["a", "b"], 20.2)
    assert set(about["versions"]) == {"fedlib", "torch", "python"}
    figures.save(figure, NAME, "smoke", DATA, keys=["c"])
    assert (origin()["keys"], origin()["seconds"]) == (["c"], 49.5)


@pytest.mark.parametrize(("keys", "seconds"), [(["a", "lost"], None), ([], 0.0)])
def test_seconds_that_were_not_kept_stay_unknown(figure, project, keys, seconds):
    cost(project, a=10.0)
    figures.save(figure, NAME, "smoke", DATA, keys=keys)
    assert origin()["seconds"] == seconds


def test_output_that_cannot_be_written_is_an_error_before_any_training(project, monkeypatch):
    project.file("figures", "a file where the folder should be")
    with pytest.raises(FedlibError, match=r"figures/smoke/feddrm: cannot write there \(.*\); mend its permissions"):
        figures.check_output(NAME, "smoke")
    monkeypatch.setenv("FEDLIB_FIGURES", str(project.root / "elsewhere"))
    figures.check_output(NAME, "smoke")
    assert (project.root / "elsewhere/smoke/feddrm").is_dir()
    with pytest.raises(FedlibError, match="scale: 'smok' is unknown; did you mean 'smoke'"):
        figures.check_output(NAME, "smok")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_is_named(figure, project):
    folder = figures_folder("smoke") / "feddrm"
    folder.mkdir(parents=True)
    folder.chmod(0o555)
    with pytest.raises(FedlibError, match=r"figures/smoke/feddrm: cannot write there \(Permission denied\)"):
        figures.save(figure, NAME, "smoke", DATA)


def test_a_full_disk_leaves_the_old_figure(figure, monkeypatch):
    figures.save(figure, NAME, "smoke", DATA)
    before = written()

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(figure, "savefig", full)
    with pytest.raises(FedlibError, match=r"cannot write .*sweep\.png: no space left on the disk"):
        figures.save(figure, NAME, "smoke", DATA.head(1))
    assert written() == before
