"""Probes: measurements beyond accuracy that are taken during a run, at every evaluated round; by name."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Any

from fedlib.checks import check_choice

PROBES = {
    "adapted": "fedlib.analysis.adaptation:adapted",
    "drift": "fedlib.analysis.gradients:drift",
    "few_for_many": "fedlib.analysis.few_for_many:few_for_many",
    "mapping": "fedlib.analysis.mapping:mapping",
    "random_crop": "fedlib.analysis.random_crop:random_crop",
    "validation": "fedlib.analysis.validation:validation",
    "visitors": "fedlib.analysis.visitors:visitors",
}


def check_probes(names: Iterable[str]) -> None:
    """Refuse an unknown probe, naming the nearest."""
    for name in names:
        check_choice("probes", name, PROBES)


def probe_modules(names: Iterable[str]) -> list[str]:
    """The modules that hold these probes."""
    return [PROBES[name].split(":")[0] for name in names]


def load(names: Iterable[str]) -> list[Any]:
    """The probes themselves."""
    found = [PROBES[name].split(":") for name in names]
    return [getattr(importlib.import_module(module), function) for module, function in found]
