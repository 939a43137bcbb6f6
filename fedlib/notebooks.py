"""The notebooks as the command line sees them: their names, their parameters, and what they have written."""

from __future__ import annotations

import ast
import csv
import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from fedlib.checks import FedlibError, check_choice, check_keys, nearest
from fedlib.paths import SCALES, figures_folder, notebooks_folder, params_folder


@dataclass(frozen=True, order=True)
class Notebook:
    """One notebook; its `name` is its path below notebooks/ without the suffix, as in `feddrm/lambda_sweep`."""

    name: str

    @property
    def path(self) -> Path:
        return notebooks_folder() / f"{self.name}.ipynb"

    @property
    def paper(self) -> str:
        """The folder it lies in; empty for a notebook at the top."""
        return self.name.rpartition("/")[0]

    def params(self, scale: str) -> Path:
        """Its parameter file at `scale`."""
        return params_folder() / scale / f"{self.name}.yaml"

    def scales(self) -> list[str]:
        """The scales that have a parameter file."""
        return [scale for scale in SCALES if self.params(scale).is_file()]

    def figure(self, scale: str, suffix: str) -> Path:
        """What it writes at `scale`, by suffix: png, csv, claims.csv, comparison.csv, json."""
        return figures_folder(scale) / f"{self.name}.{suffix}"

    def cells(self) -> list[dict[str, Any]]:
        """Its cells."""
        return self._read()["cells"]

    def about(self) -> dict[str, str]:
        """Its metadata.fedlib: `item` (the paper's figure or table) and `shows` (in words); each may be missing."""
        return self._read()["metadata"].get("fedlib", {})

    def _read(self) -> dict[str, Any]:
        try:
            content: dict[str, Any] = json.loads(self.path.read_text(encoding="utf-8"))
            content["cells"], content["metadata"]
        except (ValueError, KeyError, TypeError) as error:
            raise FedlibError(f"{self.path}: not a notebook of format 4 ({error}); open and save it again") from error
        return content


def discover() -> list[Notebook]:
    """Every notebook of the collection, by name; raise FedlibError if there is none."""
    root = notebooks_folder()
    paths = [path.relative_to(root) for path in root.rglob("*.ipynb")]
    paths = [path for path in paths if not any(part.startswith(".") for part in path.parts)]  # Jupyter's checkpoints
    if not paths:
        raise FedlibError(f"{root}: no notebook there; run from a clone, or name one in FEDLIB_PROJECT")
    return sorted(Notebook(path.with_suffix("").as_posix()) for path in paths)


def find(wanted: list[str]) -> list[Notebook]:
    """The notebooks that `wanted` names, each by its name, its last part, its path, or its paper; all if it is empty.

    Raises FedlibError for a name that fits none (with the nearest) or several notebooks of different papers.
    """
    every = discover()
    if not wanted:
        return every
    return sorted({notebook for name in wanted for notebook in _matching(name, every)})


def _matching(name: str, every: list[Notebook]) -> list[Notebook]:
    """The notebooks that one name stands for."""
    path = Path(name).expanduser().resolve()
    exact = [n for n in every if n.name == name.removesuffix(".ipynb") or n.path == path]
    paper = [n for n in every if n.paper and n.paper == name.rstrip("/").removeprefix("notebooks/")]
    short = [n for n in every if n.name.rpartition("/")[2] == name.removesuffix(".ipynb")]
    found = exact or paper or short
    if not found:
        valid = {n.name for n in every} | {n.paper for n in every if n.paper}
        raise FedlibError(f"notebook {name!r} is unknown; {nearest(name, valid)}")
    if found is short and len(short) > 1:
        raise FedlibError(f"notebook {name!r} is in several papers; say {' or '.join(n.name for n in short)}")
    return found


def defaults(notebook: Notebook) -> dict[str, Any]:
    """The names and values of the notebook's cell tagged `parameters`, which may hold plain assignments only."""
    tagged = [c for c in notebook.cells() if "parameters" in c["metadata"].get("tags", [])]
    if len(tagged) != 1:
        raise FedlibError(f"{notebook.path}: {len(tagged)} cells are tagged 'parameters'; tag exactly one")
    source = "".join(tagged[0]["source"])
    values = {}
    try:
        for statement in ast.parse(source).body:
            match statement:
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    values[name] = ast.literal_eval(value)
                case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                    values[name] = ast.literal_eval(value)
                case _:
                    raise ValueError(ast.unparse(statement))
    except (SyntaxError, ValueError) as error:
        raise FedlibError(
            f"{notebook.path}: its parameters cell must hold only NAME = LITERAL lines: {error}"
        ) from error
    return values


def check_params(notebook: Notebook, scale: str) -> None:
    """Refuse a parameter file whose keys or types differ from the notebook's parameters cell.

    Raises FedlibError naming the file, the key, the value and the mend.
    """
    file = notebook.params(check_choice("scale", scale, SCALES))
    if not file.is_file():
        raise FedlibError(f"{notebook.name} has no parameters at {scale} scale: {file} is missing")
    try:
        given = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise FedlibError(f"{file}: not readable as YAML: {' '.join(str(error).split())}") from error
    if given is None:
        given = {}
    if not isinstance(given, dict):
        raise FedlibError(f"{file}: holds {_kind(given)}; give lines of NAME: VALUE")
    valid = defaults(notebook)
    check_values(str(file), given, valid)
    if given.get("scale", None if "scale" in valid else scale) != scale:
        found = f"scale is {given['scale']!r}" if "scale" in given else "it names no scale"
        raise FedlibError(f"{file}: {found}, but the file is in params/{scale}; write scale: {scale}")


def check_values(where: str, given: dict[str, Any], valid: dict[str, Any]) -> None:
    """Refuse a name of `given` that `valid` (see `defaults`) lacks, or a value of another kind than its default."""
    check_keys(where, given, valid)
    for key, value in given.items():
        if not _fits(value, valid[key]):
            raise FedlibError(_mistyped(f"{where}: {key}", value, valid[key]))


def _fits(value: Any, default: Any) -> bool:
    """Whether `value` is of the kind of `default`: a whole number serves as a float, None takes anything."""
    if default is None:
        return True
    if isinstance(default, bool) or isinstance(value, bool):
        return isinstance(default, bool) and isinstance(value, bool)
    if isinstance(default, float):
        return isinstance(value, int | float)
    if isinstance(default, list | tuple):
        return isinstance(value, list) and (not default or all(any(_fits(v, d) for d in default) for v in value))
    if isinstance(default, dict):
        return isinstance(value, dict) and all(_fits(v, default[k]) for k, v in value.items() if k in default)
    return isinstance(value, type(default))


def _mistyped(where: str, value: Any, default: Any) -> str:
    """The error for a `value` that is not of the kind of `default`, with the mend."""
    texts = [v for v in (value if isinstance(value, list) else [value]) if isinstance(v, str)]
    numbers = [v for v in texts if _is_number(v)]
    mend = f"give {_kind(default)}, such as {default!r}"
    if numbers and not _fits(value, default) and not isinstance(default, str):
        mend = f"YAML reads {numbers[0]} as text: write {float(numbers[0])!r}"
    return f"{where}: {value!r} is {_kind(value)}, but the notebook's default is {default!r}, {_kind(default)}; {mend}"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _kind(value: Any) -> str:
    """The kind of a value in words."""
    match value:
        case None:
            return "nothing"
        case bool():
            return "true or false"
        case int():
            return "a whole number"
        case float():
            return "a number"
        case str():
            return "text"
        case list() | tuple():
            inner = {_kind(v) for v in value}
            return "a list" + (f" (of {', '.join(sorted(inner))})" if inner else "")
        case dict():
            return "a table of names"
        case _:
            return type(value).__name__


def rows(file: Path) -> list[dict[str, str]]:
    """The rows of a CSV that a notebook wrote; none if it has written none."""
    if not file.is_file():
        return []
    with file.open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def verdicts(notebook: Notebook, scale: str) -> dict[str, int]:
    """How often each verdict (holds, fails, undecided) stands in the notebook's claims at `scale`."""
    return dict(Counter(row["verdict"] for row in rows(notebook.figure(scale, "claims.csv"))))


def in_words(counts: dict[str, int]) -> str:
    """Verdict counts as read aloud: `3 hold, 1 undecided`; empty if there are none."""
    plural = {"holds": "hold", "fails": "fail"}
    order = ["holds", "fails", "undecided"]
    known = sorted(counts, key=lambda verdict: order.index(verdict) if verdict in order else len(order))
    return ", ".join(f"{counts[v]} {plural.get(v, v) if counts[v] > 1 else v}" for v in known)
