"""Whether a notebook's last outputs still hold, so that `fedlib reproduce` need not execute it again, as make does.

What they are a function of: the notebook's cells and parameters, the package, the versions of its libraries, the data
folder, and the device. A stamp is the hash of all that. The runs and figures that they tell of have to be there, too.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from fedlib.notebooks import Notebook
from fedlib.paths import runs_folder

LIBRARIES = (
    *("torch", "torchvision", "numpy", "pandas", "scipy", "scikit-learn", "grad-cam"),
    *("matplotlib", "seaborn", "papermill"),
)


def stamp(notebook: Notebook, scale: str, common: str) -> str:
    """16 hexadecimal digits. common: of what all notebooks have in common, see below."""
    digest = hashlib.sha256(json.dumps([notebook.name, scale, common]).encode())
    for cell in notebook.cells():
        digest.update(json.dumps([cell["cell_type"], cell["source"], cell["metadata"].get("tags", [])]).encode())
    digest.update(notebook.params(scale).read_bytes())
    return digest.hexdigest()[:16]


def common_stamp(data: str | None) -> str:
    """Of package, libraries, device and data folder; of the latter, all files' names, sizes and times of change."""
    digest = hashlib.sha256()
    package = Path(__file__).parent
    for path in sorted(package.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            digest.update(str(path.relative_to(package)).encode() + path.read_bytes())
    known = [platform.python_version(), os.environ.get("FEDLIB_DEVICE", ""), *map(_version, LIBRARIES)]
    digest.update(json.dumps([known, _listing(data)]).encode())
    return digest.hexdigest()


def has_saved(notebook: Notebook, scale: str) -> bool:
    """Whether the figure that it writes is there, with its data and where they come from."""
    return all(notebook.figure(scale, suffix).is_file() for suffix in ("png", "csv", "json"))


def runs_are_kept(notebook: Notebook, scale: str) -> bool:
    """Whether every run behind its figure still is; True if it tells of none."""
    provenance = notebook.figure(scale, "json")
    if not provenance.is_file():
        return True
    keys = json.loads(provenance.read_text(encoding="utf-8"))["keys"]
    return all((runs_folder() / key / "history.csv").is_file() for key in keys)


def _version(library: str) -> str:
    try:
        return version(library)
    except PackageNotFoundError:
        return ""


def _listing(data: str | None) -> list[tuple[str, int, int]]:
    """Every file below the data folder; the default is that of data.vision.data_root."""
    root = Path(data or "~/.cache/fedlib").expanduser()
    files = [Path(home) / name for home, _, names in os.walk(root) for name in names]
    return sorted((str(path.relative_to(root)), *_size_and_time(path)) for path in files)


def _size_and_time(path: Path) -> tuple[int, int]:
    try:
        status = path.stat()
    except OSError:  # a dangling link
        return 0, 0
    return status.st_size, status.st_mtime_ns
