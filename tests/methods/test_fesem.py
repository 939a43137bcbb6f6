"""FeSEM against distances and a round by hand, Lloyd's algorithm on quadratics, and FedAvg."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
import tiny
import torch
from personal_tasks import DESCENT, PERSONAL, rows
from test_methods import LOCAL, PLAN, Quadratic
from torch import nn

from fedlib.methods.fedavg import FedAvg
from fedlib.methods.fesem import FeSEM, distances
from fedlib.methods.ifca import IFCA
from fedlib.methods.method import Server, State, Task, Upload, initial_state
from fedlib.methods.several import models
from fedlib.metrics import Crowd
from fedlib.rounds import Plan, Snapshot, size


def test_distances_are_over_trained_parameters():
    """(3, 4) and 12 away from the first centre, whatever the statistics are."""
    w = {"w": torch.tensor([3.0, 4.0]), "b": torch.tensor([[12.0]]), "n.running_mean": torch.tensor([7.0])}
    w["n.num_batches_tracked"] = torch.tensor(5)
    zero = {name: torch.zeros_like(tensor) for name, tensor in w.items()}
    near = w | {"w": torch.tensor([3.0, 6.0]), "n.running_mean": torch.tensor([100.0])}
    got = distances(w, [zero, near, w])
    assert got.tolist() == [13.0, 2.0, 0.0] and got.dtype == torch.float64


def test_a_round_by_hand_in_any_order():
    """Client 0 moved over to centre 1; 2 is as near to centre 0 as to 1; 4 is absent; no one is near centre 2."""
    c = {f"{k}/w": torch.tensor([value, 0.0]) for k, value in enumerate((0.0, 4.0, 50.0))}
    before = Server(c, 3, {"membership": torch.tensor([0, 1, 1, 1, 2])})
    ends = {0: ([3.0, 1.0], 10), 1: ([5.0, 0.0], 30), 2: ([2.0, 8.0], 7), 3: ([-1.0, 1.0], 21)}
    sent = [Upload(i, {"0/w": torch.tensor(w)}, {}, n, {}) for i, (w, n) in ends.items()]
    server = FeSEM().aggregate(before, sent)
    assert server.memory["membership"].tolist() == [1, 1, 0, 0, 2] and server.round == 4
    theta = torch.stack([w["w"] for w in models(server.weights)])
    by_hand = [[(7 * 2 - 21) / 28, (7 * 8 + 21) / 28], [(10 * 3 + 30 * 5) / 40, 10 / 40], [50.0, 0.0]]
    torch.testing.assert_close(theta, torch.tensor(by_hand))
    assert server.weights["2/w"] is c["2/w"]
    for seed in range(3):
        other = FeSEM().aggregate(before, random.Random(seed).sample(sent, 4))
        assert tiny.same(other.weights, server.weights) and tiny.same(other.memory, server.memory)


def test_one_centre_is_fedavg_bit_for_bit():
    fed = tiny.federation()
    got, plain = (tiny.train(m, fed, PLAN, LOCAL) for m in (FeSEM(K=1), FedAvg()))
    (theta,) = models(got.server.weights)
    assert tiny.same(theta, plain.server.weights)
    assert rows(got, *PERSONAL) == rows(plain, *PERSONAL) and got.memories == plain.memories
    assert got.server.memory["membership"].tolist() == [0, 0, 0]


@dataclass(frozen=True)
class FeSEMOnQuadratics(FeSEM, Quadratic):
    """||w - c_i||^2 / 2 from centres that differ in w alone. With lr = 1 a step leads to c_i, wherever it starts."""

    init: str = "same"
    starts: tuple[float, ...] = ()

    def begin(self, model: nn.Module, task: Task) -> State:
        theta = super().begin(model, task)
        for k, value in enumerate(self.starts):
            theta[f"{k}/head.bias"].fill_(value)
        return theta


def test_on_quadratics_it_is_k_means_over_the_clients_optima():
    """Weighted k-means of 0, 1, 2, 9, 10, 6 by hand: 1 and 2 change over in the second round. The third centre is
    nobody's and stays."""
    method = FeSEMOnQuadratics(
        centres=(0.0, 1.0, 2.0, 9.0, 10.0, 6.0), curvatures=(1.0,) * 6, starts=(-1.0, 1.25, 1000.0)
    )
    fed, seen = tiny.federation((20, 20, 20, 20, 60, 40), side=1), []
    plan = Plan(3, 1.0, schedule="constant", evaluate_every=3)

    def look(now: Snapshot) -> None:
        seen.append(([float(w["head.bias"].mean()) for w in models(now.server.weights)], now.server.memory))

    tiny.train(method, fed, plan, DESCENT, model="linear", after_round=look)
    expected = [([0, 1, 1, 1, 1, 1], 0.0, 6.75), ([0, 0, 0, 1, 1, 1], 1.0, 8.5), ([0, 0, 0, 1, 1, 1], 1.0, 8.5)]
    for (centres, memory), (membership, low, high) in zip(seen, expected, strict=True):
        assert centres == pytest.approx([low, high, 1000.0], abs=1e-5)
        assert memory["membership"].tolist() == membership


def test_a_client_is_sent_all_centres_once_and_first_trains_the_one_of_least_loss():
    """In round 1 clients 0, 1, 2 are there, 3 joins in round 2. Starts far apart: the choice by loss is IFCA's."""
    fed = tiny.federation((40, 24, 33, 10))
    fesem, ifca = (tiny.train(m(K=3, selection="train"), fed, Plan(1, 0.05), LOCAL) for m in (FeSEM, IFCA))
    assert tiny.same(fesem.server.weights, ifca.server.weights)
    assert tiny.same(fesem.server.memory, ifca.server.memory)
    assert len(set(fesem.server.memory["membership"].tolist())) > 1
    now = tiny.train(FeSEM(K=3), fed, Plan(3, 0.05, joins={3: 2}), LOCAL)
    whole = size(models(now.server.weights)[0])
    assert rows(now, "bytes_down") == [9 * whole, (3 + 3) * whole, 4 * whole]
    assert rows(now, "bytes_up") == [3 * whole, 4 * whole, 4 * whole]


def test_a_client_predicts_with_its_centre_and_chooses_one_before_it_has_any():
    fed, method = tiny.federation((40, 24, 33, 10)), FeSEM(K=3)
    model, server, memories = initial_state(method, tiny.task(fed))
    crowd = Crowd(method, model, server, memories, fed)
    chosen = tiny.train(IFCA(K=3, selection="train"), fed, Plan(1, 0.05), LOCAL).server.memory["membership"].tolist()
    theta = models(server.weights)
    assert all(tiny.same(method.own_model(crowd, i), theta[chosen[i]]) for i in range(4)) and len(set(chosen)) > 1
    other = Server(server.weights, 1, {"membership": torch.tensor([2, 0, 1, 2])})
    crowd = Crowd(method, model, other, memories, fed)
    for i, k in enumerate([2, 0, 1, 2]):
        assert tiny.same(method.own_model(crowd, i), theta[k]) and tiny.same(
            method.personal_model(other, i, {}), theta[k]
        )
        assert method.broadcast(other, i, {}).keys() == {f"{k}/{name}" for name in theta[0]}
    assert len(method.served(other)) == 3


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"name": "FeSEM", "K": 0}, "FeSEM.K: 0 is out of range; give a whole number at least 1"),
        ({"name": "FeSEM", "selection": "test"}, "FeSEM.selection: 'test' is unknown"),
    ],
)
def test_wrong_values_are_refused(spec: dict[str, object], message: str):
    assert message in tiny.refusal(spec)
