"""A check from inside a notebook: are the parameters that papermill injected the notebook's own, and of its types?

papermill itself only warns of an unknown name, and takes any type.
"""

from __future__ import annotations

import ast
import os

from IPython.core.getipython import get_ipython

from fedlib.checks import FedlibError, check_choice
from fedlib.notebooks import check_values, defaults, discover

MARK = "# Parameters"
"""How the cell that papermill injects begins."""


def check_injected(name: str) -> None:
    """Refuse injected parameters that notebook `name` (e.g. "feddrm/lambda_sweep") does not have or that do not fit.

    Refuses, too, another notebook's name when `fedlib reproduce` says which one is running: a copy that still bears
    the original's name would write over its figure. To be called right after the parameters cell. Names and types are
    held against that cell as it stands in notebooks/<name>.ipynb. Raises FedlibError naming the notebook, the key, the
    value and the mend. Does nothing more outside IPython or when nothing was injected.
    """
    running = os.environ.get("FEDLIB_NOTEBOOK", name)
    if running != name:
        raise FedlibError(
            f"notebook {running} calls itself {name!r}; write its own name in check_injected, check_output and save"
        )
    shell = get_ipython()
    if shell is None:
        return
    cells = [source for source in shell.user_ns.get("In", []) if source.startswith(MARK)]
    if not cells:
        return
    notebook = {n.name: n for n in discover()}
    valid = defaults(notebook[check_choice("notebook", name, notebook)])
    given = {key: shell.user_ns[key] for key in _assigned(cells[-1])}
    check_values(f"notebook {name}, injected parameters", given, valid)


def _assigned(source: str) -> list[str]:
    """The names that a cell of plain assignments assigns to."""
    statements = [s for s in ast.parse(source).body if isinstance(s, ast.Assign)]
    return [target.id for s in statements for target in s.targets if isinstance(target, ast.Name)]
