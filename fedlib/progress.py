"""Progress: one bar for a person, one line of JSON an event for whoever started the notebook."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from tqdm import tqdm


def emit(path: str | Path | None, **event: Any) -> None:
    """Append one event to the file at `path`, if there is one. A line this short is written whole."""
    if path:
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(event) + "\n")


def events_file() -> str | None:
    """FEDLIB_PROGRESS: where the batch runner wants the events."""
    return os.environ.get("FEDLIB_PROGRESS") or None


def _in_notebook() -> bool:
    try:
        from IPython.core.getipython import get_ipython
    except ImportError:
        return False
    shell = get_ipython()
    return shell is not None and shell.__class__.__name__ == "ZMQInteractiveShell"


class Bar:
    """A progress bar: in a notebook one output that is replaced in place, elsewhere tqdm."""

    def __init__(self, total: int, text: str) -> None:
        self.total, self.done, self.text = total, 0, text
        self.started = self.shown = time.monotonic()
        self.tqdm, self.handle = None, None
        if _in_notebook():
            from IPython.display import HTML, display

            self.handle = display(HTML(self._html()), display_id=True)
        else:
            self.tqdm = tqdm(total=total, desc=text, unit="round", disable=None)

    def _html(self) -> str:
        seconds = time.monotonic() - self.started
        left = (
            f", about {seconds / self.done * (self.total - self.done):.0f} s left" if 0 < self.done < self.total else ""
        )
        bar = f'<progress value="{self.done}" max="{max(self.total, 1)}" style="width: 20em"></progress>'
        return f"{bar} {self.text}: {self.done} of {self.total} rounds, {seconds:.0f} s{left}"

    def advance(self, rounds: int = 1) -> None:
        """So many rounds more are done."""
        self.done += rounds
        if self.tqdm is not None:
            self.tqdm.update(rounds)
        elif time.monotonic() - self.shown > 0.5:
            self._show()

    def _show(self) -> None:
        from IPython.display import HTML

        if self.handle is not None:
            self.handle.update(HTML(self._html()))
        self.shown = time.monotonic()

    def close(self) -> None:
        if self.tqdm is not None:
            self.tqdm.close()
        else:
            self._show()
