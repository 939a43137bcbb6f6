"""Where the collection's folders are: beside the package, unless an environment variable says otherwise."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from fedlib.checks import FedlibError

SCALES = ("smoke", "laptop", "paper")


def project_root() -> Path:
    """The folder that holds notebooks/, params/ and figures/ (`FEDLIB_PROJECT`, else the clone that fedlib lies in)."""
    return _folder("FEDLIB_PROJECT", Path(__file__).parents[1])


def notebooks_folder() -> Path:
    """The notebooks: start_here.ipynb and one folder a paper."""
    return project_root() / "notebooks"


def params_folder() -> Path:
    """The parameter files: <scale>/<paper>/<notebook>.yaml."""
    return project_root() / "params"


def figures_folder(scale: str) -> Path:
    """What the notebooks write at `scale`: <paper>/<notebook>.{png,svg,csv,json} (root: `FEDLIB_FIGURES`)."""
    return _folder("FEDLIB_FIGURES", project_root() / "figures") / scale


def runs_folder() -> Path:
    """The kept runs, one folder a key (`FEDLIB_RUNS`)."""
    return _folder("FEDLIB_RUNS", project_root() / "runs")


def check_writable(folder: Path) -> Path:
    """Make `folder` and return it; raise FedlibError if no file can be written in it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        reason = error.strerror or error
        raise FedlibError(f"{folder}: cannot write there ({reason}); mend its permissions or name another") from error
    return folder


def _folder(variable: str, default: Path) -> Path:
    """The folder that an environment variable names, made absolute, or `default` when it is unset or empty."""
    value = os.environ.get(variable)
    return Path(value).expanduser().resolve() if value else default.resolve()
