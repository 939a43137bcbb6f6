"""Crowd and evaluate, against full passes and values counted by hand."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import tiny
import torch

from fedlib.methods.fedavg import FedAvg
from fedlib.methods.fedavg_ft import FedAvgFT
from fedlib.methods.feddrm import FedDRM
from fedlib.methods.fedper import FedPer
from fedlib.methods.method import (
    Answer,
    Method,
    Server,
    initial_state,
)
from fedlib.metrics import Crowd, local
from fedlib.rounds import Plan
from fedlib.training import Local, prepare

LOCAL = Local(steps=3, batch_size=16, crop=False)
PLAN = Plan(3, 0.05)


def met(method: Method, fed, plan: Plan = PLAN) -> tuple[Crowd, list[int]]:
    """The crowd after training, and a list that grows with each forward pass of its model."""
    now = tiny.train(method, fed, plan, LOCAL)
    model, _, _ = initial_state(method, tiny.task(fed))
    passes: list[int] = []
    model.register_forward_hook(lambda *_: passes.append(1))
    return Crowd(method, model, now.server, now.memories, fed), passes


def test_a_router_costs_one_model_evaluation_and_a_vote_of_whole_models_m():
    fed = tiny.federation()
    routed, passes = met(FedDRM(), fed)
    FedDRM().route(routed)
    assert len(passes) == 1
    voted, passes = met(FedAvgFT(ft_rounds=1), fed)
    voted.method.route(voted)
    assert len(passes) == 3
    shared, passes = met(FedAvg(), fed)
    shared.method.route(shared)
    assert len(passes) == 1


@pytest.mark.parametrize("method", [FedAvg(), FedPer(), FedDRM(), FedAvgFT(ft_rounds=1)])
@pytest.mark.parametrize("participation", [1.0, 0.34])
def test_the_crowd_s_short_cuts_equal_a_full_pass_of_every_client(method: Method, participation: float):
    fed = tiny.federation()
    got, _ = met(method, fed, Plan(2, 0.05, participation=participation))
    images = prepare(fed.pooled_test()[0].images)
    for i, (memory, logits) in enumerate(zip(got.memories, got.logits(), strict=True)):
        got.model.load_state_dict(method.personal_model(got.server, i, memory))
        with torch.no_grad():
            torch.testing.assert_close(logits, method.class_logits(got.model(images)), rtol=1e-5, atol=1e-5)


def test_only_methods_with_a_whole_global_model_have_its_logits():
    fed = tiny.federation()
    assert met(FedPer(), fed)[0].global_logits() is None
    tuned, _ = met(FedAvgFT(ft_rounds=1), fed)
    tuned.model.load_state_dict(tuned.server.weights)
    with torch.no_grad():
        torch.testing.assert_close(tuned.global_logits(), tuned.model(prepare(tuned.samples.images)))


class Oracle:
    """A crowd of two clients over four queries, three of them client 0's, whose logits are written down."""

    def __init__(self, logits: list[list[list[float]]], one: list[list[float]] | None, origin: list[int]) -> None:
        self.method, self.server = Voter(), Server({}, 7)
        self.samples = SimpleNamespace(labels=torch.tensor([0, 1, 1, 0]))
        self.origin = torch.tensor([0, 0, 0, 1])
        self.shares = torch.tensor([0.2, 0.8])
        self.answer = torch.tensor(origin)
        self.logits = lambda: torch.tensor(logits)
        self.global_logits = lambda: None if one is None else torch.tensor(one)


@dataclass(frozen=True)
class Voter(Method):
    def route(self, crowd: Oracle) -> dict[str, Answer]:
        return {"first": Answer(torch.tensor([0, 1, 0, 0]), crowd.answer), "second": Answer(torch.tensor([1, 1, 1, 1]))}


A, B = [1.0, 0.0], [0.0, 1.0]


def test_every_metric_by_hand():
    """Client 0 predicts 0, 1, 0 for its own 0, 1, 1; client 1 predicts 1 for its own 0; shares 0.2, 0.8."""
    rows = local(Oracle([[A, B, A, A], [B, B, B, B]], [A, A, A, A], origin=[0, 1, 0, 1]), "after_local")
    got = {(row.metric, row.client): (row.value, row.moment) for row in rows}
    assert {row.round for row in rows} == {7}
    two_thirds = pytest.approx(2 / 3)
    assert got == {
        ("personal@local", 0): (two_thirds, "after_local"),
        ("personal@local", 1): (0.0, "after_local"),
        ("personal@local", -1): (pytest.approx(0.2 * 2 / 3), "after_local"),
        ("personal@local[plain mean]", -1): (pytest.approx(1 / 3), "after_local"),
        ("worst@local", -1): (0.0, "after_local"),
        ("global@local", -1): (pytest.approx(0.2 / 3 + 0.8), "after_aggregation"),
        ("global@pooled", -1): (0.5, "after_aggregation"),
        ("system@pooled[first]", -1): (0.75, "after_local"),
        ("system@pooled", -1): (0.75, "after_local"),
        ("router@pooled[first]", -1): (pytest.approx(0.2 * 2 / 3 + 0.8), "after_local"),
        ("router@pooled", -1): (pytest.approx(0.2 * 2 / 3 + 0.8), "after_local"),
        ("system@pooled[second]", -1): (0.5, "after_local"),
        ("system@pooled[first]", 0): (two_thirds, "after_local"),
        ("system@pooled[first]", 1): (1.0, "after_local"),
        ("system@pooled[second]", 0): (two_thirds, "after_local"),
        ("system@pooled[second]", 1): (0.0, "after_local"),
        ("router@pooled[first]", 0): (two_thirds, "after_local"),
        ("router@pooled[first]", 1): (1.0, "after_local"),
    }


def test_there_is_no_global_metric_without_a_global_model():
    rows = local(Oracle([[A, B, A, A], [B, B, B, B]], None, origin=[0, 0, 0, 0]), "after_aggregation")
    assert not [row.metric for row in rows if row.metric.startswith("global")]
