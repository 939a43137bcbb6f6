"""Federated methods, one file each. A new file in this folder is found by itself: nothing else is edited."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from dataclasses import fields
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from fedlib.checks import FedlibError, check_choice, check_keys

if TYPE_CHECKING:
    from fedlib.data.federation import Federation
    from fedlib.methods.method import Method


@lru_cache(maxsize=1)
def known() -> dict[str, type[Method]]:
    """{name: class} of every method in this folder and in `released`; base classes (`abstract`) are none."""
    from fedlib.methods.method import Method

    for module in pkgutil.walk_packages(__path__, __name__ + "."):
        importlib.import_module(module.name)
    found: dict[str, type[Method]] = {}
    waiting = list(Method.__subclasses__())
    while waiting:
        method = waiting.pop()
        waiting += method.__subclasses__()
        if method.__module__.startswith(__name__) and "abstract" not in vars(method):
            found[method.__name__] = method
    return dict(sorted(found.items()))


def check_labels(method: Method) -> None:
    """Raise FedlibError unless the method is made for samples of several labels, as its own class has to say.

    What a class inherits does not count: a subclass may do more with the labels, and is refused until it says so, too.
    """
    if not vars(type(method)).get("several_labels"):
        able = [name for name, cls in known().items() if vars(cls).get("several_labels")]
        raise FedlibError(
            f"method: {type(method).__name__} is for samples of one label, but here they may have several; take one of "
            f"{', '.join(able)}"
        )


def check_clients(method: Method, federation: Federation) -> None:
    """Raise FedlibError if the method cannot do with these clients' samples, as too few, or of several labels."""
    if federation.several_labels:
        check_labels(method)
    method.check_clients(federation)


def make(spec: str | Mapping[str, Any]) -> Method:
    """A method from its name, or from {"name": "FedDRM", "lam": 0.8}. Raises FedlibError on an unknown name or key."""
    if isinstance(spec, str):
        spec = {"name": spec}
    if not isinstance(spec, Mapping) or "name" not in spec:
        raise FedlibError(f"method: {spec!r} has no name; write for example {{name: FedDRM, lam: 0.8}}")
    cls = known()[check_choice("method", spec["name"], known())]
    options = {key: value for key, value in spec.items() if key != "name"}
    check_keys(f"method {spec['name']}", options, [f.name for f in fields(cls)])
    return cls(**options)
