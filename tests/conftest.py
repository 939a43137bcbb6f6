"""A collection in miniature, for the tests of the command line, and an empty data root, for those of data sets."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell without job control starts background jobs deaf to Ctrl-C, and they pass it on to all their children.
    signal.signal(signal.SIGINT, signal.default_int_handler)


class Project:
    """A folder laid out as the collection is."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def notebook(self, name: str, *cells: str, parameters: str = "seed = 0", **about: str) -> Path:
        """Write a notebook with a parameters cell, then `cells`; and empty parameter files for all scales."""
        kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
        content = nbformat.v4.new_notebook(metadata={"kernelspec": kernel} | ({"fedlib": about} if about else {}))
        content.cells = [nbformat.v4.new_code_cell(source) for source in (parameters, *cells)]
        content.cells[0].metadata["tags"] = ["parameters"]
        path = self.root / "notebooks" / f"{name}.ipynb"
        path.parent.mkdir(parents=True, exist_ok=True)
        nbformat.write(content, path)
        for scale in ("smoke", "laptop", "paper"):
            self.params(name, "", scale)
        return path

    def params(self, name: str, text: str, scale: str = "smoke") -> Path:
        """Write a parameter file."""
        return self.file(f"params/{scale}/{name}.yaml", text)

    def file(self, name: str, text: str) -> Path:
        """Write a file below the project's folder."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path


@pytest.fixture(scope="session", autouse=True)
def no_installed_data() -> Iterator[None]:
    """No data set that Debian's packages installed is seen: what tests list is the same on every machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedlib.data.official.SYSTEM", Path("/nowhere"))
        yield


@pytest.fixture
def data_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty data root, and no download, whatever the environment says."""
    monkeypatch.setenv("FEDLIB_DATA", str(tmp_path))
    monkeypatch.delenv("FEDLIB_DOWNLOAD", raising=False)
    return tmp_path


@pytest.fixture(scope="module")
def shared_project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """A project that the tests of one file share."""
    with pytest.MonkeyPatch.context() as patch:
        yield _made(tmp_path_factory.mktemp("project"), patch)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project of this test alone, still empty."""
    return _made(tmp_path, monkeypatch)


def _made(root: Path, patch: pytest.MonkeyPatch) -> Project:
    patch.setenv("FEDLIB_PROJECT", str(root))
    for variable in ("FEDLIB_RUNS", "FEDLIB_FIGURES", "FEDLIB_DATA"):
        patch.delenv(variable, raising=False)
    return Project(root)
