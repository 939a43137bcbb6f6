"""Specs: a mapping {"name": function, setting: value, …} that names one function and its settings."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

from fedlib.checks import FedlibError, check_choice, check_keys

Function = TypeVar("Function", bound=Callable[..., Any])


def resolve(
    where: str, functions: Mapping[str, Function], spec: Mapping[str, Any], supplied: Collection[str]
) -> tuple[Function, dict[str, Any]]:
    """The function that `spec` names and its settings, checked against the function's own signature.

    supplied: names of the parameters that the caller gives (data, a generator): they are no settings.
    Raises FedlibError for a spec that is no mapping, an unknown name or key, and a missing setting.
    """
    if not isinstance(spec, Mapping) or "name" not in spec:
        raise FedlibError(f"{where}: {spec!r} has no name; write a mapping such as {{name: {next(iter(functions))}}}")
    name = check_choice(f"{where}: name", spec["name"], functions)
    settings = {key: value for key, value in spec.items() if key != "name"}
    parameters = [p for p in inspect.signature(functions[name]).parameters.values() if p.name not in supplied]
    check_keys(f"{where} {name!r}", settings, [parameter.name for parameter in parameters])
    missing = [p.name for p in parameters if p.default is inspect.Parameter.empty and p.name not in settings]
    if missing:
        raise FedlibError(f"{where} {name!r}: {', '.join(missing)} is missing; add it beside the name")
    return functions[name], settings
