"""FedBN: BatchNorm stays where it is, and everything else is FedAvg's."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import tiny
import torch
from domain_tasks import LOCAL, metric, task, train
from test_methods import step_by_hand
from torch import nn

from fedlib.checks import FedlibError
from fedlib.engines import one_thread
from fedlib.methods.fedavg import FedAvg
from fedlib.methods.fedbn import FedBN
from fedlib.methods.method import Method, State, Task, Work, initial_state
from fedlib.models.resnet10 import is_norm
from fedlib.rounds import Plan, size


def norms(state: State) -> State:
    return {name: tensor for name, tensor in state.items() if is_norm(name)}


def others(state: State) -> State:
    return {name: tensor for name, tensor in state.items() if not is_norm(name)}


def test_batch_normalisation_never_travels():
    """12 layers: of the stem, of four blocks twice, and of three projections; four numbers a channel and a counter."""
    fed = tiny.federation((24, 16))
    own, all_shared = (train(method, fed) for method in (FedBN(), FedAvg()))
    channels = 4 + 2 * 4 + (2 + 1) * (8 + 16 + 32)
    away = 4 * 4 * channels + 8 * 12
    for way in ("bytes_up", "bytes_down"):
        assert metric(own, way) == [2 * (size(all_shared.server.weights) - away)] * 3
        assert metric(all_shared, way) == [2 * size(all_shared.server.weights)] * 3
    assert not norms(own.server.weights) and all(set(memory) == set(norms(memory)) for memory in own.memories)
    assert [size(memory) for memory in own.memories] == [away, away]
    assert not metric(own, "global@local") and metric(all_shared, "global@local")


def test_a_first_round_differs_from_fedavg_s_in_batch_normalisation_alone():
    """Which is, for each client, what its own training has left."""
    fed, one = tiny.federation((24, 16)), Plan(1, 0.05)
    own, all_shared = (train(method, fed, one) for method in (FedBN(), FedAvg()))
    assert tiny.same(own.server.weights, others(all_shared.server.weights))
    for i, memory in enumerate(own.memories):
        with one_thread():
            model, _, _ = initial_state(FedAvg(), task(fed))
            model.train()
            step_by_hand(model, fed, i, 1, LOCAL, 0.05)
        assert tiny.same(memory, norms(model.state_dict()))
    first, second = own.memories
    assert all(not torch.equal(w, second[name]) for name, w in first.items() if not name.endswith("_tracked"))


def test_one_client_with_fedbn_is_fedavg():
    fed = tiny.federation((24,))
    own, all_shared = (train(method, fed) for method in (FedBN(), FedAvg()))
    assert tiny.same(own.server.weights | own.memories[0], all_shared.server.weights)


@dataclass(frozen=True)
class FrozenNorm(Method):
    """Neither the parameters nor the statistics of BatchNorm change."""

    def build(self, task: Task) -> nn.Module:
        model = super().build(task)
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.momentum = 0.0
        return model

    def descend(self, work: Work, *_, **__) -> dict[str, float]:
        return super().descend(work, lambda name: not is_norm(name))


@dataclass(frozen=True)
class FrozenFedBN(FrozenNorm, FedBN):
    """FedBN with frozen BatchNorm."""


def test_fedbn_is_fedavg_where_batch_normalisation_is_frozen():
    fed = tiny.federation((24, 16))
    own, all_shared = (train(method, fed) for method in (FrozenFedBN(), FrozenNorm()))
    for memory in own.memories:
        assert tiny.same(own.server.weights | memory, all_shared.server.weights)
    assert not tiny.same(own.server.weights, others(train(FedBN(), fed).server.weights))


def test_who_is_absent_keeps_its_batch_normalisation():
    fed, seen = tiny.federation((24, 16)), list[State]()
    plan = Plan(3, 0.05, joins={1: 3}, evaluate_every=3)
    train(FedBN(), fed, plan, after_round=lambda now: seen.append(now.memories[1]))
    _, _, (_, at_start) = initial_state(FedBN(), task(fed))
    assert tiny.same(seen[1], at_start) and not tiny.same(seen[2], at_start)


@pytest.mark.parametrize("model", ["small_cnn", "linear", "resnet18_gn"])
def test_a_model_without_batch_normalisation_is_refused(model: str):
    with pytest.raises(FedlibError, match=f"model {model} has none; take one with BatchNorm, such as resnet10"):
        initial_state(FedBN(), task(tiny.federation(), model))
