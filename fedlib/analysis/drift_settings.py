"""Methods as they are compared under drift: who is told labels, and who could help whom (FEROMA spec, 1.7, 3.3, 6)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedlib.checks import FedlibError, check_choice
from fedlib.data import drift as drifts
from fedlib.data.drift import KINDS
from fedlib.data.drifting import Drifting
from fedlib.data.federation import Federation
from fedlib.methods import make
from fedlib.methods.feroma import FEROMA

TOLD = "P(Y|X)"
"""The kind of drift that inputs do not show, under which visitors give a few labelled samples away."""


def told(spec: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """The spec of a method as it is tested under a kind of drift.

    A FEROMA looks at the labelled samples under P(Y|X), as in the paper, unless the spec says otherwise; every other
    method has its own rule for them (Method.answer) and stays as it is. Raises FedlibError for an unknown kind.
    """
    found = dict(spec)
    if check_choice("told: kind", kind, KINDS) == TOLD and isinstance(make(found), FEROMA):
        found.setdefault("labelled", True)
    return found


def forerunners(federations: Sequence[Federation]) -> tuple[float, float]:
    """Of all clients that have just changed, the share for whom another one had the new distribution a phase before.

    Beside it what is expected of clients that draw from B equally likely ones: 1 - (1 - 1/B)^(m - 1). Of a mixture, the
    larger part counts. Raises FedlibError for a federation that does not drift, for none, and where nobody changes.
    """
    found, expected = list[bool](), list[float]()
    for federation in federations:
        if not isinstance(federation, Drifting):
            raise FedlibError(f"forerunners: federation {federation.name!r} does not drift; give one made with a drift")
        main, count = federation.course.main, len(federation.distributions)
        reached = sorted(
            {drifts.phase_of(t, federation.rounds, main.shape[1]) for t in range(1, federation.rounds + 1)}
        )
        expected.append(1 - (1 - 1 / count) ** (len(main) - 1))
        for before, now in zip(main[:, reached].T, main[:, reached].T[1:], strict=False):
            found += np.isin(now[now != before], before).tolist()
    if not found:
        raise FedlibError(f"forerunners: nobody changes in {len(expected)} federations; give some with more phases")
    return float(np.mean(found)), float(np.mean(expected))
