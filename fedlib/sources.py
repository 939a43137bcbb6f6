"""Which source files decide a result, and their fingerprints: changed code never serves an old result.

A fingerprint ignores comments, docstrings and layout, so that better words do not train anything again.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
from collections.abc import Iterable
from functools import cache
from pathlib import Path


@cache
def _path(module: str) -> Path | None:
    try:
        spec = importlib.util.find_spec(module)
    except ModuleNotFoundError:
        return None
    return Path(spec.origin) if spec and spec.origin and spec.origin.endswith(".py") else None


@cache
def _tree(path: Path, changed: float) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _imports(tree: ast.Module, package: str) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == package:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.split(".")[0] == package}
    return found


def _without_docstrings(tree: ast.Module) -> str:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return ast.unparse(tree)


@cache
def _digest(path: Path, changed: float) -> str:
    text = _without_docstrings(ast.parse(path.read_text(encoding="utf-8")))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def fingerprints(modules: Iterable[str]) -> dict[str, str]:
    """{module: fingerprint} of `modules` and of every module of the same package that they import, in turn."""
    waiting, seen = list(modules), {}
    while waiting:
        module = waiting.pop()
        path = _path(module)
        if module in seen or path is None:
            continue
        changed = path.stat().st_mtime
        seen[module] = _digest(path, changed)
        waiting += sorted(_imports(_tree(path, changed), module.split(".")[0]))
    return dict(sorted(seen.items()))
