"""Checks of what a person typed: every error names the value, where it stands and the mend."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any


class FedlibError(ValueError):
    """A mistake that the reader can mend: bad input, missing data, an impossible setting."""


def nearest(name: str, valid: Iterable[str]) -> str:
    """A half sentence that helps with a wrong `name`: its nearest valid spelling, or all of them."""
    options = sorted(str(v) for v in valid)
    by_letters = {option.lower(): option for option in options}
    close = difflib.get_close_matches(str(name).lower(), by_letters, n=1, cutoff=0.5)
    if close:
        return f"did you mean {by_letters[close[0]]!r}? Valid: {', '.join(options)}"
    return f"valid: {', '.join(options)}"


def check_choice(where: str, value: Any, valid: Iterable[Any]) -> Any:
    """Return `value` if it is one of `valid`, else raise with the nearest name."""
    options = list(valid)
    if value not in options:
        raise FedlibError(f"{where}: {value!r} is unknown; {nearest(value, options)}")
    return value


def check_number(
    where: str,
    value: Any,
    *,
    above: float | None = None,
    least: float | None = None,
    most: float | None = None,
    below: float | None = None,
    whole: bool = False,
) -> Any:
    """Return `value` if it is a number within the bounds (`above`/`below` strict, `least`/`most` not)."""
    kind = "a whole number" if whole else "a number"
    wrong_type = isinstance(value, bool) or not isinstance(value, int if whole else int | float)
    bounds = [
        (above, "above", lambda v, b: v > b),
        (least, "at least", lambda v, b: v >= b),
        (most, "at most", lambda v, b: v <= b),
        (below, "below", lambda v, b: v < b),
    ]
    limits = " and ".join(f"{word} {bound}" for bound, word, _ in bounds if bound is not None)
    wanted = f"{kind} {limits}".rstrip()
    if wrong_type:
        hint = " (YAML reads 1e-3 as text: write 1.0e-3 or 0.001)" if isinstance(value, str) else ""
        raise FedlibError(f"{where}: {value!r} is {type(value).__name__}, not {kind}; give {wanted}{hint}")
    if not math.isfinite(value) or any(bound is not None and not holds(value, bound) for bound, _, holds in bounds):
        raise FedlibError(f"{where}: {value!r} is out of range; give {wanted}")
    return value


def need_fewer(described: Any, name: str, value: int, limit: int, what: str) -> None:
    """Raise unless value, that of the field `name`, is below limit."""
    if value >= limit:
        raise FedlibError(
            f"{type(described).__name__}.{name}: {value} is not below {what} ({limit}); lower one or raise the other"
        )


def check_keys(where: str, given: Mapping[str, Any], valid: Iterable[str]) -> None:
    """Refuse the first key of `given` that is not in `valid`, naming the nearest."""
    options = list(valid)
    for key in given:
        if key not in options:
            raise FedlibError(f"{where}: unknown key {key!r}; {nearest(key, options)}")


def whole_as_float(described: Any) -> None:
    """In a frozen dataclass, 1 becomes 1.0 where a float is declared: equal descriptions then have equal keys."""
    for item in fields(described):
        value = getattr(described, item.name)
        if "float" in str(item.type) and type(value) is int:
            object.__setattr__(described, item.name, float(value))
