"""The README's table of notebooks, and the files that say what is installed."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml
from conftest import Project
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from fedlib import readme
from fedlib.checks import FedlibError

ROOT = Path(readme.__file__).parents[1]
PAGE = f"# Title\n\n{readme.BEGIN}\n{readme.END}\n\nThe rest.\n"


@pytest.fixture
def page(project: Project) -> Path:
    """A README with an empty table, beside two notebooks of which one has been run."""
    project.notebook("start_here")
    project.notebook("feddrm/lambda_sweep", item="Fig. 4", shows="accuracy | lambda")
    project.file("figures/laptop/feddrm/lambda_sweep.json", '{"seconds": 420.0}')
    project.file("figures/laptop/feddrm/lambda_sweep.claims.csv", "id,verdict\nA,holds\nB,fails\nC,fails\n")
    return project.file("README.md", PAGE)


def test_the_table_says_what_is_known_and_leaves_the_rest_blank(page: Path) -> None:
    assert readme.update(page)
    lines = page.read_text(encoding="utf-8").split("\n")
    assert lines[5:7] == [
        "| [feddrm/lambda_sweep](notebooks/feddrm/lambda_sweep.ipynb) | Fig. 4 | accuracy \\| lambda |  | 7.0 "
        "| 1 holds, 2 fail | `fedlib reproduce feddrm/lambda_sweep --scale laptop` |",
        "| [start_here](notebooks/start_here.ipynb) |  |  |  |  | — | `fedlib reproduce start_here --scale laptop` |",
    ]
    assert lines[:3] == ["# Title", "", readme.BEGIN]
    assert lines[7:] == [readme.END, "", "The rest.", ""]
    assert not readme.update(page)


def test_the_table_is_stale_when_the_figures_change(project: Project, page: Path) -> None:
    assert readme.is_stale(page)
    readme.update(page)
    assert not readme.is_stale(page)
    project.file("figures/laptop/feddrm/lambda_sweep.claims.csv", "id,verdict\nA,undecided\n")
    assert readme.is_stale(page)


def test_all_verdicts_stand_in_one_file(project: Project, page: Path) -> None:
    readme.update(page)
    assert readme.claims_file().read_text(encoding="utf-8").split("\n") == [
        "notebook,id,verdict",
        "feddrm/lambda_sweep,A,holds",
        "feddrm/lambda_sweep,B,fails",
        "feddrm/lambda_sweep,C,fails",
        "",
    ]
    readme.claims_file().write_text("notebook,id,verdict\n", encoding="utf-8")
    assert readme.is_stale(page) and readme.update(page) and not readme.is_stale(page)


def test_smoke_minutes_stay_though_their_figures_are_not_committed(project: Project, page: Path) -> None:
    smoke = project.file("figures/smoke/feddrm/lambda_sweep.json", '{"seconds": 30}')
    readme.update(page)
    assert "accuracy \\| lambda | 0.5 | 7.0 |" in page.read_text(encoding="utf-8")
    smoke.write_text('{"seconds": 60}', encoding="utf-8")
    assert not readme.is_stale(page)
    smoke.unlink()
    assert not readme.is_stale(page) and not readme.update(page)


@pytest.mark.parametrize("text", ["", f"{readme.END}\n{readme.BEGIN}", readme.BEGIN])
def test_missing_marks_are_named(page: Path, text: str) -> None:
    page.write_text(text, encoding="utf-8")
    with pytest.raises(FedlibError, match="the table's marks are missing; write <!-- notebooks:begin -->"):
        readme.update(page)


def test_a_figure_file_without_seconds_is_named(project: Project, page: Path) -> None:
    project.file("figures/laptop/feddrm/lambda_sweep.json", "{}")
    with pytest.raises(FedlibError, match=r"lambda_sweep\.json: holds no seconds .*run feddrm/lambda_sweep again"):
        readme.update(page)


def test_the_collections_own_table_is_up_to_date(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDLIB_PROJECT", raising=False)
    assert not readme.is_stale(ROOT / "README.md"), "run `fedlib readme`"


def locked() -> dict[str, Requirement]:
    """The pins of requirements.lock by name."""
    lines = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
    pins = [Requirement(line) for line in lines if not line.startswith("#")]
    return {canonicalize_name(pin.name): pin for pin in pins}


def test_every_package_is_pinned_once_and_the_cuda_build_only_where_it_exists() -> None:
    lines = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
    pins = locked()
    assert len(pins) == sum(not line.startswith("#") for line in lines)
    assert all(re.fullmatch(r"==[\w.]+", str(pin.specifier)) for pin in pins.values())
    assert str(pins["torch"].specifier) == "==2.14.1" and str(pins["torchvision"].specifier) == "==0.29.1"
    mac = {"sys_platform": "darwin", "platform_machine": "arm64"}
    assert not [n for n, p in pins.items() if n.startswith(("nvidia-", "cuda-", "triton")) and p.marker is None]
    assert not [n for n, p in pins.items() if n.startswith(("nvidia-", "cuda-", "triton")) and p.marker.evaluate(mac)]


def test_every_dependency_of_the_package_is_in_the_lock() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["dev"], "setuptools", "wheel"]
    assert {canonicalize_name(Requirement(line).name) for line in wanted} <= set(locked())


def test_conda_users_get_the_same_set() -> None:
    environment = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    *conda, pip = environment["dependencies"]
    assert pip == {"pip": ["-r requirements.lock", "-e ."]}
    pins = locked()
    for line in conda:
        name, _, version = line.partition("=")
        if name in pins:
            assert f"=={version.lstrip('=')}" == str(pins[name].specifier)
    assert "python=3.11" in conda
