"""Whom FEROMA compares with whom in a round, and what each client's model is made of (FEROMA spec, 1.5)."""

from __future__ import annotations

from fedlib.data.federation import Federation
from fedlib.metrics import Crowd, Row


def mapping(crowd: Crowd, federation: Federation) -> list[Row]:
    """The probe: for client k of the round and each client j of the round before, distance[j], D_kj, and weight[j],
    w_bar_kj; the row's client is k, and j is counted from 0.

    Nothing of rounds without profiles to compare with (FEROMA's 1 to W + 1), nor of methods without such a mapping.
    """
    memory = crowd.server.memory
    if not memory.keys() >= {"D", "w_bar"}:
        return []
    D, w_bar = (memory[name].cpu() for name in ("D", "w_bar"))
    rows = []
    for k, j in (D >= 0).nonzero().tolist():
        for name, value in (("distance", D[k, j]), ("weight", w_bar[k, j])):
            rows.append(Row(crowd.server.round, f"{name}[{j}]", "during_local", k, float(value)))
    return rows
