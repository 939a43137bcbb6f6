"""Who uses which of the few models: FedFew's weights by round, and how well the models fit groups of clients."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from scipy import stats
from sklearn.metrics import normalized_mutual_info_score
from sklearn.metrics.cluster import contingency_matrix, expected_mutual_information

from fedlib.checks import FedlibError, check_number
from fedlib.data.federation import Federation
from fedlib.methods.several import Several, choose
from fedlib.metrics import Crowd, Row

SCALARISED = ("losses", "outer", "inner", "mass", "objective")


def few_for_many(crowd: Crowd, federation: Federation) -> list[Row]:
    """The probe: who chooses which model; for FedFew, the weights of the round that has just ended, too.

    chosen: one value a client, the model that it predicts with, 1 to K; models_chosen: how many different ones.
    objective: g, of the losses as they stand in the exponent; mass[k]: c_k; loss[k], outer: L_ik and a_i, one value a
    client; inner_max: max_k w_ik, one a client, and their mean. Clients that were absent have no such rows; a method
    without several models for all, such as FedAvg, has none at all.
    """
    if not isinstance(crowd.method, Several):
        return []
    k = chosen(crowd)
    found = [("chosen", i, float(one)) for i, one in enumerate(k)] + [("models_chosen", -1, float(len(set(k))))]
    rows = [Row(crowd.server.round, name, "after_aggregation", i, value) for name, i, value in found]
    memory = crowd.server.memory
    if not memory.keys() >= set(SCALARISED):
        return rows
    L, a, w, c, g = (memory[name].cpu() for name in SCALARISED)
    top, present = w.amax(1), (~a.isnan()).nonzero().flatten().tolist()
    found = [("objective", -1, float(g)), ("inner_max", -1, float(top[present].mean()))]
    found += [(f"mass[{k}]", -1, float(c_k)) for k, c_k in enumerate(c, start=1)]
    for i in present:
        found += [("outer", i, float(a[i])), ("inner_max", i, float(top[i]))]
        found += [(f"loss[{k}]", i, float(L_ik)) for k, L_ik in enumerate(L[i], start=1)]
    return rows + [Row(crowd.server.round, name, "during_local", i, value) for name, i, value in found]


def chosen(crowd: Crowd) -> list[int]:
    """The model of each client, 1 to K: the one whose tensors it predicts with."""
    method, found = crowd.method, []
    assert isinstance(method, Several)
    for i, (mine, memory) in enumerate(zip(crowd.states, crowd.memories, strict=True)):
        theta = method.candidates(crowd.server, i, memory)
        same = [k for k, one in enumerate(theta) if all(mine.get(name) is tensor for name, tensor in one.items())]
        found.append(1 + (same[0] if same else choose(method, crowd, i, theta)))
    return found


def nmi(chosen: Sequence[int], groups: Sequence[int]) -> float:
    """Normalised mutual information, 0 to 1, of the clients' models and their true groups (arithmetic mean of the
    entropies): 1 where each tells the other, whatever the numbers are called; 0 where all choose one model and there
    are several groups. By chance it is above 0: compare with nmi_by_chance."""
    _check_lengths("nmi", chosen, groups)
    return float(normalized_mutual_info_score(groups, chosen))


def nmi_by_chance(chosen: Sequence[int], groups: Sequence[int]) -> float:
    """The mean of nmi over all ways to deal the same groups to the clients anew, each as likely as any other.

    Exact, without a draw: a deal changes neither entropy, and the mean mutual information is known in closed form
    (Vinh, Epps, Bailey, ICML 2009). It grows with the numbers of models and of groups, and falls with that of clients.
    """
    _check_lengths("nmi_by_chance", chosen, groups)
    H = [stats.entropy(np.unique(one, return_counts=True)[1]) for one in (chosen, groups)]
    if not any(H):
        return nmi(chosen, groups)  # one model and one group: nothing to deal
    table = contingency_matrix(groups, chosen, sparse=True)
    return float(expected_mutual_information(table, len(chosen)) / np.mean(H))


def purity(chosen: Sequence[int], groups: Sequence[int]) -> float:
    """The share of clients that belong to the most frequent group among those that chose the same model."""
    _check_lengths("purity", chosen, groups)
    table = pd.crosstab(np.asarray(chosen), np.asarray(groups))
    return float(table.max(axis=1).sum() / len(chosen))


def specialised_at(history: pd.DataFrame, level: float = 0.6) -> int | None:
    """The first evaluated round in which the mean inner_max is above `level`; None if there is none.

    history: that of one run, with the probe. Raises FedlibError if it has no mean inner_max.
    """
    check_number("specialised_at: level", level, least=0.0, below=1.0)
    means = history[(history["metric"] == "inner_max") & (history["client"] == -1)]
    if means.empty:
        raise FedlibError("specialised_at: this history has no inner_max; run FedFew with probes: [few_for_many]")
    rounds = means.loc[means["value"] > level, "round"]
    return None if rounds.empty else int(rounds.min())


def _check_lengths(where: str, chosen: Sequence[int], groups: Sequence[int]) -> None:
    if len(chosen) != len(groups) or not len(chosen):
        raise FedlibError(f"{where}: {len(chosen)} clients' models and {len(groups)} groups; give one of each a client")
