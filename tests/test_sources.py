"""Fingerprints: of code, not of words, and never of code that is not the one that runs."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from fedlib import sources
from fedlib.checks import FedlibError
from fedlib.sources import fingerprints

MODULE = '''"""A room."""

import math
from rooms.inner import depth

RADIUS = 2.0
"""How far it goes."""


class Round:
    """A round room."""

    def area(self):
        """In square metres."""
        return math.pi * RADIUS**2 * depth()  # the height is 1
'''


class Rooms:
    """A package on the path: rooms/{__init__,outer,inner,unused}.py."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "rooms"
        self.folder.mkdir()
        for name, text in (("__init__", ""), ("outer", MODULE), ("inner", "def depth(): return 1"), ("unused", "")):
            (self.folder / f"{name}.py").write_text(text)

    def write(self, name: str, text: str) -> dict[str, str]:
        """Replace a module; return the fingerprints afterwards, as a fresh Python would find them."""
        path = self.folder / f"{name}.py"
        later = path.stat().st_mtime + 1
        path.write_text(text)
        os.utime(path, (later, later))
        sources._first_seen.clear()
        return fingerprints(["rooms.outer"])


@pytest.fixture
def rooms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rooms:
    monkeypatch.setattr(sources, "_first_seen", {})
    monkeypatch.syspath_prepend(str(tmp_path))
    sources._path.cache_clear()
    for module in [name for name in sys.modules if name.split(".")[0] == "rooms"]:
        monkeypatch.delitem(sys.modules, module)
    return Rooms(tmp_path)


def test_a_module_is_fingerprinted_with_what_it_imports_of_its_package(rooms: Rooms):
    assert set(fingerprints(["rooms.outer"])) == {"rooms.outer", "rooms.inner"}
    assert set(fingerprints(["rooms.inner"])) == {"rooms.inner"}


def test_words_and_layout_do_not_count(rooms: Rooms):
    before = fingerprints(["rooms.outer"])
    for old, new in [
        ("A room.", "Another room."),
        ("A round room.", "It is round.\n\n    Very round.\n    "),
        ("In square metres.", "In feet."),
        ("How far it goes.", "As far as it goes."),
        ("# the height is 1", "# a comment"),
        ("math.pi * RADIUS**2 * depth()", "(math.pi * RADIUS ** 2\n            * depth())"),
    ]:
        assert rooms.write("outer", MODULE.replace(old, new)) == before
    assert rooms.write("unused", "x = 1") == before


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("outer", MODULE.replace("2.0", "2.5")),
        ("outer", MODULE.replace("RADIUS**2", "RADIUS**3")),
        ("outer", MODULE.replace("return math", "return -math")),
        ("inner", "def depth(): return 2"),
    ],
)
def test_code_counts(rooms: Rooms, name: str, text: str):
    before = fingerprints(["rooms.outer"])
    after = rooms.write(name, text)
    assert {module for module in before if before[module] != after[module]} == {f"rooms.{name}"}


def test_code_that_changed_under_a_running_python_is_refused(rooms: Rooms):
    fingerprints(["rooms.outer"])
    path = rooms.folder / "inner.py"
    path.write_text("def depth(): return 1  # still")
    fingerprints(["rooms.outer"])
    path.write_text("def depth(): return 3")
    os.utime(path, (9, 9))
    with pytest.raises(FedlibError, match=r"inner\.py has changed, but the old code is still loaded; restart Python"):
        fingerprints(["rooms.outer"])


def test_modules_without_source_are_left_out(rooms: Rooms):
    assert fingerprints(["builtins", "math", "no.such.module"]) == {}


def test_relative_imports_count_too(rooms: Rooms):
    first = rooms.write("outer", "from .inner import depth\nfrom . import unused\n")
    assert set(first) == {"rooms", "rooms.outer", "rooms.inner", "rooms.unused"}
    assert rooms.write("inner", "def depth(): return 2")["rooms.inner"] != first["rooms.inner"]
