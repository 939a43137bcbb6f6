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

from fedlib.checks import FedlibError


@cache
def _path(module: str) -> Path | None:
    try:
        spec = importlib.util.find_spec(module)
    except ModuleNotFoundError:
        return None
    return Path(spec.origin) if spec and spec.origin and spec.origin.endswith(".py") else None


@cache
def _imports(path: Path, changed: float, module: str) -> frozenset[str]:
    """What `module`, whose code is at `path`, imports of its own package; relative imports too."""
    found, package = set(), module.split(".")[0]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            home = module.rsplit(".", node.level)[0] if node.level else ""
            name = ".".join(part for part in (home, node.module) if part)
            if name.split(".")[0] == package:
                found |= {name, *(f"{name}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.split(".")[0] == package}
    return frozenset(found)


class _WithoutWords(ast.NodeTransformer):
    """Leaves out docstrings, those of attributes too: every statement that is only a text."""

    def visit_Expr(self, node: ast.Expr) -> ast.Expr | None:
        return None if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str) else node


@cache
def _digest(path: Path, changed: float) -> str:
    text = ast.unparse(_WithoutWords().visit(ast.parse(path.read_text(encoding="utf-8"))))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


_first_seen: dict[Path, str] = {}


def fingerprints(modules: Iterable[str]) -> dict[str, str]:
    """{module: fingerprint} of `modules` and of every module of the same package that they import, in turn.

    Raises FedlibError if code has changed since it was first asked for: Python still runs the old one, and its result
    would be kept under the new code's key.
    """
    waiting, seen = list(modules), {}
    while waiting:
        module = waiting.pop()
        path = _path(module)
        if module in seen or path is None:
            continue
        changed = path.stat().st_mtime
        seen[module] = _digest(path, changed)
        if _first_seen.setdefault(path, seen[module]) != seen[module]:
            raise FedlibError(f"{path} has changed, but the old code is still loaded; restart Python (or the kernel)")
        waiting += sorted(_imports(path, changed, module))
    return dict(sorted(seen.items()))
