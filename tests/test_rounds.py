"""The round loop: who takes part, when it is evaluated, what travels, and how it stops."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import pytest
import tiny
import torch

from fedlib.checks import FedlibError
from fedlib.data.federation import Client
from fedlib.engines import ClientError
from fedlib.methods.fedavg import FedAvg
from fedlib.methods.feddrm import FedDRM
from fedlib.methods.fedper import FedPer
from fedlib.methods.method import Answer, Method, Server, Upload, Work
from fedlib.rounds import Plan, Snapshot, cohorts, size
from fedlib.store import load_snapshot, save_snapshot
from fedlib.training import Local

LOCAL = Local(steps=1, batch_size=16, crop=False)


def parts_taken(method: Method, plan: Plan) -> list[list[int]]:
    """Which clients' memories changed in each round."""
    seen: list[list[int]] = []
    last: list = []

    def look(now: Snapshot) -> None:
        if last:
            seen.append([i for i, memory in enumerate(now.memories) if memory is not last[i]])
        last[:] = now.memories

    tiny.train(method, tiny.federation((20,) * 6), plan, LOCAL, after_round=look)
    return seen


def test_all_methods_meet_the_same_cohorts():
    plan = Plan(4, 0.05, participation=0.5, evaluate_every=4)
    drawn = cohorts(0, 6, plan)
    assert all(len(cohort) == 3 and cohort == sorted(set(cohort)) for cohort in drawn)
    assert len(set(map(tuple, drawn))) > 1
    assert parts_taken(FedPer(), plan) == parts_taken(FedDRM(), plan) == drawn[1:]
    assert cohorts(1, 6, plan) != drawn and cohorts(0, 6, plan) == drawn


def test_cohorts_of_a_longer_plan_begin_like_those_of_a_shorter_one():
    assert cohorts(0, 9, Plan(9, 0.1, participation=0.3))[:4] == cohorts(0, 9, Plan(4, 0.1, participation=0.3))
    assert [len(c) for c in cohorts(0, 9, Plan(1, 0.1, participation=0.01))] == [1]
    assert cohorts(0, 3, Plan(2, 0.1)) == [[0, 1, 2]] * 2


def test_due_rounds():
    plan = Plan(10, 0.1, evaluate_every=4, evaluate_last=3)
    assert [t for t in range(1, 11) if plan.due(t)] == [4, 8, 9, 10]
    now = tiny.train(FedAvg(), tiny.federation((20, 20)), Plan(5, 0.05, evaluate_every=2), LOCAL)
    assert sorted({row.round for row in now.history if row.metric == "worst@local"}) == [2, 4, 5]


SMALL_CNN, HEAD = 23_130, 64 * 10 + 10


@pytest.mark.parametrize(("method", "sent"), [(FedAvg(), SMALL_CNN), (FedPer(), SMALL_CNN - HEAD)])
def test_bytes_are_counted_from_what_travels(method: Method, sent: int):
    now = tiny.train(method, tiny.federation((20,) * 4), Plan(2, 0.05, participation=0.5), LOCAL)
    for metric in ("bytes_down", "bytes_up"):
        assert [row.value for row in now.history if row.metric == metric] == [2 * 4 * sent] * 2


def test_the_training_loss_is_weighted_by_samples():
    """Round 1 of lr -> 0: every client's loss is that of the initial network."""
    fed = tiny.federation((48, 16))
    alone = [replace(client, index=0) for client in fed.clients]
    local = Local(steps=None, epochs=1, batch_size=48, crop=False)

    def loss_of(*clients: Client) -> float:
        now = tiny.train(FedAvg(), replace(fed, clients=clients), Plan(1, 1e-12), local)
        return next(row.value for row in now.history if row.metric == "train_loss[total]")

    assert loss_of(*fed.clients) == pytest.approx((48 * loss_of(alone[0]) + 16 * loss_of(alone[1])) / 64, rel=1e-5)


def test_a_loss_that_is_no_number_stops_the_run_and_names_client_and_step():
    said = "^Explodes, round 3, client 1, client_update: NotFinite: step 2 of 3: the total loss is nan; lower lr$"
    reached: list[int] = []
    with pytest.raises(ClientError, match=said):
        tiny.train(
            tiny.Explodes(),
            tiny.federation((32, 20)),
            Plan(4, 0.05),
            Local(steps=3, batch_size=16, crop=False),
            after_round=lambda now: reached.append(now.server.round),
        )
    assert reached == [1, 2]


def test_too_high_a_learning_rate_is_found_out():
    with pytest.raises(ClientError, match=r"FedAvg, round \d, client \d, client_update: NotFinite: .*lower lr"):
        tiny.train(FedAvg(), tiny.federation((20, 20)), Plan(5, 1e30), Local(steps=5, crop=False))


class Lost(FedAvg):
    def route(self, crowd) -> dict[str, Answer]:
        raise KeyError("way")


def test_an_error_in_evaluation_says_where():
    with pytest.raises(FedlibError, match=r"^Lost, round 1, evaluation: KeyError: 'way'$"):
        tiny.train(Lost(), tiny.federation((20, 20)), Plan(1, 0.05), LOCAL)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rounds": 0}, "rounds: 0 is out of range; give a whole number at least 1"),
        ({"rounds": 2.0}, "rounds: 2.0 is float, not a whole number"),
        ({"lr": 0}, "lr: 0 is out of range; give a number above 0.0"),
        ({"lr": float("nan")}, "lr: nan is out of range"),
        ({"lr": float("inf")}, "lr: inf is out of range"),
        ({"lr": "fast"}, "lr: 'fast' is str, not a number"),
        ({"lr": "1e-3"}, "YAML reads 1e-3 as text: write 1.0e-3 or 0.001"),
        ({"lr": True}, "lr: True is bool, not a number"),
        ({"schedule": "cosin"}, "schedule: 'cosin' is unknown; did you mean 'cosine'?"),
        ({"participation": 0}, "participation: 0 is out of range; give a number above 0.0 and at most 1.0"),
        ({"participation": 1.2}, "participation: 1.2 is out of range"),
        ({"evaluate_every": 0}, "evaluate_every: 0 is out of range"),
        ({"evaluate_last": 4}, "evaluate_last: 4 is out of range; give a whole number at least 1 and at most 3"),
    ],
)
def test_a_wrong_plan_is_refused(settings: dict, message: str):
    with pytest.raises(FedlibError) as caught:
        Plan(**{"rounds": 3, "lr": 0.1} | settings)
    assert message in str(caught.value)


def test_clients_join_and_leave():
    plan = Plan(4, 0.05, joins={2: 3}, leaves={0: 2})
    assert cohorts(0, 3, plan) == [[0, 1], [0, 1], [1, 2], [1, 2]]
    half = cohorts(0, 5, Plan(6, 0.05, participation=0.5, joins={4: 4}))
    assert [len(cohort) for cohort in half] == [2] * 6 and not any(4 in cohort for cohort in half[:3])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"joins": {3: 2}}, "joins and leaves: client: 3 is out of range; give a number at most 2"),
        ({"joins": {1: 9}}, "joins: round of client 1: 9 is out of range"),
        ({"leaves": {"a": 2}}, "leaves: client: 'a' is str, not a whole number"),
        ({"joins": {0: 2, 1: 2, 2: 2}}, "no client is present in round 1; let one join earlier"),
    ],
)
def test_wrong_joins_and_leaves_are_refused_before_any_training(settings: dict, message: str):
    with pytest.raises(FedlibError, match=message):
        tiny.experiment(clients=3, rounds=4, **settings)


@dataclass(frozen=True)
class Counts(Method):
    """FedAvg whose server counts its uploads in a memory of its own, from an extra that each client sends."""

    def upload(self, work: Work, losses: dict[str, float]) -> Upload:
        return replace(super().upload(work, losses), extra={"one": torch.ones(1)})

    def aggregate(self, server: Server, uploads: Iterable[Upload]) -> Server:
        arrived = list(uploads)
        seen = server.memory.get("seen", torch.zeros(1)) + sum(upload.extra["one"] for upload in arrived)
        return replace(super().aggregate(server, arrived), memory={"seen": seen})


def test_a_server_s_own_memory_goes_from_round_to_round_and_extras_are_counted(tmp_path):
    now = tiny.train(Counts(), tiny.federation(), Plan(3, 0.05), LOCAL)
    assert now.server.memory["seen"].item() == 9
    up = next(row.value for row in now.history if row.metric == "bytes_up")
    assert up == 3 * (size(now.server.weights) + 4)
    save_snapshot(tmp_path / "a.safetensors", now)
    again = load_snapshot(tmp_path / "a.safetensors")
    assert tiny.same(again.server.memory, now.server.memory) and tiny.same_snapshots(again, now)


def test_an_error_in_aggregation_says_where():
    @dataclass(frozen=True)
    class Drops(Method):
        def aggregate(self, server: Server, uploads: Iterable[Upload]) -> Server:
            list(uploads)
            raise KeyError("head.bias")

    with pytest.raises(FedlibError, match=r"Drops, round 1, aggregate: KeyError: 'head.bias'"):
        tiny.train(Drops(), tiny.federation(), Plan(1, 0.05), Local(steps=1, crop=False))


def test_weights_that_are_no_numbers_stop_the_last_round_before_its_evaluation():
    with pytest.raises(FedlibError, match=r"Poisons, round 1: the averaged head.bias is not finite; lower lr"):
        tiny.train(tiny.Poisons(), tiny.federation(), Plan(1, 0.05), Local(steps=1, crop=False))


def test_a_phase_without_parameters_is_refused():
    """FedPer on a linear model would train nothing but the head; FedRep's body phase has nothing left."""
    from fedlib.methods.fedrep import FedRep

    with pytest.raises(FedlibError, match="no parameter is left to train in this phase; take a model with a backbone"):
        tiny.train(FedRep(), tiny.federation(), Plan(1, 0.05), Local(steps=1, crop=False), model="linear")


def test_what_the_server_remembers_is_drawn_from_the_seed_and_moves_no_weight():
    @dataclass(frozen=True)
    class Remembers(Method):
        def remember(self, task):
            return {"noise": torch.randn(4)}

    servers = [tiny.train(Remembers(), tiny.federation(), Plan(1, 0.05), Local(steps=1, crop=False)).server]
    servers += [tiny.train(Remembers(), tiny.federation(), Plan(1, 0.05), Local(steps=1, crop=False)).server]
    plain = tiny.train(FedAvg(), tiny.federation(), Plan(1, 0.05), Local(steps=1, crop=False)).server
    assert tiny.same(servers[0].memory, servers[1].memory) and len(servers[0].memory["noise"]) == 4
    assert tiny.same(servers[0].weights, plain.weights)
