"""The notebooks and their parameter files: complete, of one shape, executed, small, and silent about machines."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest
import yaml

from fedlib.notebooks import Notebook, check_params, defaults, discover
from fedlib.paths import SCALES

NOTEBOOKS = discover()
ROOT = Path(__file__).parents[1]


@pytest.fixture(params=NOTEBOOKS, ids=lambda notebook: notebook.name)
def notebook(request: pytest.FixtureRequest) -> Notebook:
    return request.param


@pytest.mark.parametrize("scale", SCALES)
def test_a_parameter_file_has_the_notebooks_own_keys_and_types(notebook: Notebook, scale: str) -> None:
    check_params(notebook, scale)
    given = yaml.safe_load(notebook.params(scale).read_text(encoding="utf-8"))
    assert given.keys() == defaults(notebook).keys()


def test_the_defaults_are_the_smoke_scale(notebook: Notebook) -> None:
    """nbval runs the stored notebook, so its defaults are what the tests run."""
    assert yaml.safe_load(notebook.params("smoke").read_text(encoding="utf-8")) == defaults(notebook)


def test_no_parameter_file_is_without_a_notebook() -> None:
    files = {path.relative_to(ROOT / "params").with_suffix("").as_posix() for path in ROOT.glob("params/**/*.yaml")}
    assert files == {f"{scale}/{notebook.name}" for scale in SCALES for notebook in NOTEBOOKS}


def test_it_is_stored_executed_from_top_to_bottom(notebook: Notebook) -> None:
    code = [cell for cell in notebook.cells() if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    assert not [out for cell in code for out in cell["outputs"] if out["output_type"] == "error"]
    assert notebook.path.stat().st_size < 400_000


def test_it_is_a_valid_notebook_that_says_what_it_shows(notebook: Notebook) -> None:
    nbformat.validate(nbformat.read(notebook.path, as_version=4))
    assert notebook.about().keys() == {"item", "shows"} and all(notebook.about().values())


def test_its_cells_are_short(notebook: Notebook) -> None:
    for cell in notebook.cells():
        source = "".join(cell["source"])
        if cell["cell_type"] == "code" and "parameters" not in cell["metadata"].get("tags", []):
            assert len(source.splitlines()) <= 20, source


def test_it_names_no_folder_of_a_machine(notebook: Notebook) -> None:
    assert not re.search(r"/(home|root|work|tmp|Users)/", notebook.path.read_text(encoding="utf-8"))
