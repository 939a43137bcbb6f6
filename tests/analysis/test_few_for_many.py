"""Who uses which model: the probe against its formulas and a choice by hand, and measures of known assignments."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import permutations
from statistics import fmean

import pandas as pd
import pytest
import tiny
import torch
import torch.nn.functional as F

from fedlib.analysis.few_for_many import few_for_many, nmi, nmi_by_chance, purity, specialised_at
from fedlib.checks import FedlibError
from fedlib.data.federation import Federation
from fedlib.engines import Serial
from fedlib.methods.fedavg import FedAvg
from fedlib.methods.fedfew import FedFew
from fedlib.methods.method import Crowd as Asked
from fedlib.methods.method import Method, State, initial_state
from fedlib.methods.several import Several, models
from fedlib.metrics import Crowd, Row
from fedlib.probes import load
from fedlib.rounds import Plan, cohorts, federate
from fedlib.training import Local, prepare

LOCAL = Local(steps=3, batch_size=16, crop=False)


def untrained(method: Method, fed: Federation) -> Crowd:
    model, server, memories = initial_state(method, tiny.task(fed))
    return Crowd(method, model, server, memories, fed)


def by_name(rows: list[Row]) -> dict[tuple[str, int], float]:
    return {(row.metric, row.client): row.value for row in rows}


def choice_by_hand(fed: Federation, theta: list[State]) -> list[int]:
    model = initial_state(FedAvg(), tiny.task(fed))[0].eval()
    found = []
    for client in fed.clients:
        L = []
        for one in theta:
            model.load_state_dict(one)
            with torch.no_grad():
                L.append(F.cross_entropy(model(prepare(client.train.images)), client.train.labels).item())
        found.append(1 + L.index(min(L)))
    return found


def test_the_rows_of_a_round_are_those_of_its_losses_and_absent_clients_have_none():
    fed, plan = tiny.federation((40, 24, 33, 28)), Plan(2, 0.05, participation=0.5)
    method = FedFew(K=3, smoothing=0.05, selection="train")
    now = federate(method, fed, tiny.task(fed, 2), LOCAL, plan, Serial(), probes=load(["few_for_many"]))
    present = cohorts(0, 4, plan)[1]
    got = by_name([row for row in now.history if row.round == 2])
    L = torch.tensor([[got[f"loss[{k}]", i] for k in (1, 2, 3)] for i in present], dtype=torch.float64)
    S = (-L / 0.05).exp().sum(1)
    a, w = (1 / S) / (1 / S).sum(), (-L / 0.05).softmax(1)
    assert len(present) == 2 and got["objective", -1] == pytest.approx(0.05 * math.log((1 / S).sum()))
    assert [got["outer", i] for i in present] == pytest.approx(a.tolist())
    assert [got["inner_max", i] for i in present] == pytest.approx(w.amax(1).tolist())
    assert got["inner_max", -1] == pytest.approx(float(w.amax(1).mean()))
    assert [got[f"mass[{k}]", -1] for k in (1, 2, 3)] == pytest.approx((a @ w).tolist())
    assert sorted(i for name, i in got if name == "outer") == present
    k = choice_by_hand(fed, models(now.server.weights))
    assert [got["chosen", i] for i in range(4)] == k and got["models_chosen", -1] == len(set(k))


@dataclass(frozen=True)
class Copies(Several):
    """Clients predict with a copy of their model."""

    def own_model(self, crowd: Asked, client: int) -> State:
        return {name: tensor.clone() for name, tensor in super().own_model(crowd, client).items()}


@pytest.mark.parametrize("kind", [Several, Copies])
def test_any_method_with_several_models_says_who_chooses_what(kind: Callable[..., Several]):
    fed = tiny.federation((6, 5, 4, 3, 2, 2))
    crowd = untrained(kind(K=3, selection="train"), fed)
    rows = few_for_many(crowd, fed)
    expected = choice_by_hand(fed, models(crowd.server.weights))
    assert len(set(expected)) > 1 and [row.value for row in rows if row.metric == "chosen"] == expected
    assert {row.metric for row in rows} == {"chosen", "models_chosen"} and rows[-1].value == len(set(expected))


def test_ties_go_to_the_first_model():
    fed = tiny.federation()
    got = by_name(few_for_many(untrained(Several(K=3, init="same", selection="train"), fed), fed))
    assert [got["chosen", i] for i in range(3)] == [1.0] * 3 and got["models_chosen", -1] == 1.0


def test_a_method_with_one_model_has_no_rows():
    fed = tiny.federation()
    assert few_for_many(untrained(FedAvg(), fed), fed) == []


def test_measures_of_known_assignments():
    assert nmi([3, 3, 1, 1], [0, 0, 7, 7]) == pytest.approx(1.0) and purity([3, 3, 1, 1], [0, 0, 7, 7]) == 1.0
    assert nmi([1, 2, 1, 2], [0, 0, 1, 1]) == pytest.approx(0.0) and purity([1, 2, 1, 2], [0, 0, 1, 1]) == 0.5
    assert nmi([2] * 4, [0, 0, 1, 1]) == 0.0 and purity([2] * 4, [0, 0, 0, 1]) == 0.75
    H_chosen, H_groups = math.log(2), math.log(4) - 0.75 * math.log(3)
    H_both = 0.5 * math.log(2) + 0.5 * math.log(4)
    expected = (H_chosen + H_groups - H_both) / ((H_chosen + H_groups) / 2)
    assert nmi([1, 1, 2, 2], [0, 0, 0, 1]) == pytest.approx(expected) and purity([1, 1, 2, 2], [0, 0, 0, 1]) == 0.75
    for measure in (nmi, purity):
        with pytest.raises(FedlibError, match="2 clients' models and 1 groups; give one of each a client"):
            measure([1, 2], [0])


@pytest.mark.parametrize(
    ("chosen", "groups"),
    [([1, 1, 2, 2], [0, 0, 1, 1]), ([3, 1, 1, 2, 1], [0, 0, 1, 1, 2]), ([2, 2, 2, 2], [0, 1, 1, 1]), ([1, 1], [4, 4])],
)
def test_chance_is_the_mean_over_all_permutations(chosen, groups):
    expected = fmean(nmi(chosen, deal) for deal in permutations(groups))
    assert nmi_by_chance(chosen, groups) == pytest.approx(expected, abs=1e-12)


def test_chance_of_known_assignments_and_bad_input():
    assert nmi_by_chance([1, 1, 2, 2], [0, 0, 1, 1]) == pytest.approx(1 / 3)  # 2 of the 6 deals agree, 4 tell nothing
    assert nmi_by_chance([1, 2, 3], [0, 1, 2]) == pytest.approx(1.0)  # each client alone: no deal tells less
    with pytest.raises(FedlibError, match="nmi_by_chance: 2 clients' models and 1 groups"):
        nmi_by_chance([1, 2], [0])


def test_the_round_of_specialisation():
    rows = [(t, "inner_max", -1, value) for t, value in ((30, 0.9), (10, 0.5), (20, 0.6), (40, 0.4))]
    rows += [(10, "inner_max", 2, 0.99), (10, "outer", -1, 0.99)]
    history = pd.DataFrame(rows, columns=["round", "metric", "client", "value"])
    assert specialised_at(history) == 30 and specialised_at(history, 0.55) == 20
    assert specialised_at(history, 0.95) is None
    with pytest.raises(FedlibError, match=r"no inner_max; run FedFew with probes: \[few_for_many\]"):
        specialised_at(history[history["metric"] == "outer"])
    with pytest.raises(FedlibError, match=r"specialised_at: level: 1.0 is out of range"):
        specialised_at(history, 1.0)
