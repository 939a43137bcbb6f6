"""Who answers clients that are met at test time alone, and what is counted of it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import tiny
import torch
from torch import Tensor

from fedlib.analysis.visitors import visitors
from fedlib.data.federation import Client, Federation, Samples, Visitor
from fedlib.engines import Serial
from fedlib.forward import class_scores
from fedlib.methods.fedavg import FedAvg
from fedlib.methods.ifca import IFCA
from fedlib.methods.method import Crowd as Asked
from fedlib.methods.method import Method, Server, State
from fedlib.metrics import Crowd
from fedlib.rounds import Plan, Snapshot, federate
from fedlib.training import Local

LOCAL = Local(steps=1, batch_size=8, crop=False)


def met(distributions: tuple[int, ...], few: int = 0) -> Federation:
    """Three clients, and one visitor each, whose distributions are given for both, in this order."""
    fed = tiny.federation()
    clients = [replace(client, distribution=d) for client, d in zip(fed.clients, distributions, strict=False)]
    seen = []
    for client, d in zip(clients, distributions[3:], strict=True):
        part = Samples(client.test.images[:few], client.test.labels[:few])
        seen.append(Visitor(client.index, client.test, part, d))
    return replace(fed, clients=tuple(clients), visitors=tuple(seen))


def crowd_of(method: Method, fed: Federation) -> Crowd:
    now = tiny.train(method, fed, Plan(1, 0.05), LOCAL)
    model = tiny.task(fed).network()
    return Crowd(method, model, now.server, now.memories, fed)


@dataclass(frozen=True)
class SendsToTheSecond(FedAvg):
    """Lets client 1 answer everyone, who always says class 3."""

    def match(self, crowd: Asked, visitor: Visitor) -> int | None:
        return 1

    def answer(self, crowd: Asked, visitor: Visitor, client: int | None) -> Tensor:
        scores = torch.zeros(len(visitor.samples), 10)
        scores[:, 3] = 1.0
        return scores


def values(rows: list, metric: str) -> list[float]:
    return [row.value for row in rows if row.metric == metric]


def test_matches_chances_and_accuracies_by_hand():
    fed = met((0, 1, 1, 1, 0, 2))
    rows = visitors(crowd_of(SendsToTheSecond(), fed), fed)
    assert values(rows, "match@visitors") == pytest.approx([1, 0, 0, 1 / 3])
    assert values(rows, "chance@visitors") == pytest.approx([2 / 3, 1 / 3, 0, 1 / 3])
    threes = [float((v.samples.labels == 3).float().mean()) for v in fed.visitors]
    assert values(rows, "served@visitors") == pytest.approx([*threes, sum(threes) / 3])
    assert [row.client for row in rows if row.metric == "served@visitors"] == [0, 1, 2, -1]


def test_fedavg_serves_its_one_model_and_matches_no_one():
    fed = met((0, 0, 0, 0, 0, 0))
    rows = visitors(crowd_of(FedAvg(), fed), fed)
    assert values(rows, "served@visitors") == values(rows, "personal@visitors")
    assert not values(rows, "match@visitors")
    assert visitors(crowd_of(FedAvg(), tiny.federation()), tiny.federation()) == []


def test_several_models_answer_by_their_mean_or_by_the_best_on_few_labelled_samples():
    fed = met((0,) * 6, few=4)
    crowd = crowd_of(IFCA(K=3, selection="train"), fed)
    visitor = fed.visitors[0]
    logits, losses = [], []
    for state in crowd.method.served(crowd.server):
        crowd.model.load_state_dict(state)
        logits.append(class_scores(crowd.model, visitor.samples.images))
        chances = logits[-1][:4].log_softmax(-1)
        losses.append(-float(chances[range(4), visitor.few.labels].mean()))
    best = logits[losses.index(min(losses))].softmax(-1)
    torch.testing.assert_close(crowd.method.visit(crowd, visitor), best)
    nothing = replace(visitor, few=Samples(visitor.few.images[:0], visitor.few.labels[:0]))
    mean = torch.stack(logits).softmax(-1).mean(0)
    torch.testing.assert_close(crowd.method.visit(crowd, nothing), mean)
    assert not torch.allclose(best, mean)


@dataclass(frozen=True)
class Counts(FedAvg):
    """Clients report how many samples they hold; the server keeps that, and sends it down as theta's first entry."""

    def report(
        self, server: Server, model: torch.nn.Module, client: Client, memory: State, generator: torch.Generator
    ) -> State:
        return {"n": torch.tensor([len(client.train)]), "draw": torch.rand(1, generator=generator)}

    def receive(self, server: Server, reports: dict[int, State]) -> Server:
        heard = {f"{i}/{name}": tensor for i, report in reports.items() for name, tensor in report.items()}
        return replace(server, memory=server.memory | heard)


@dataclass(frozen=True)
class Swaps(Federation):
    """From round 2 on, clients 0 and 1 have each other's samples."""

    def at(self, round: int) -> Federation:
        if round < 2:
            return self
        first, second, *rest = self.clients
        swapped = (replace(second, index=0), replace(first, index=1), *rest)
        return replace(self, clients=swapped)


def test_reports_are_of_the_round_s_samples_and_come_before_it_and_count_as_bytes():
    fed = tiny.federation()
    drifting = Swaps(fed.name, fed.clients, fed.classes, fed.shape)
    seen: list[Snapshot] = []
    states: list[dict[str, float]] = []

    def look(now: Snapshot) -> None:
        seen.append(now)
        states.append({name: float(tensor) for name, tensor in now.server.memory.items()})

    tiny.train(Counts(), drifting, Plan(2, 0.05), LOCAL, after_round=look)
    assert [states[0][f"{i}/n"] for i in range(3)] == [40, 24, 33]
    assert [states[1][f"{i}/n"] for i in range(3)] == [24, 40, 33]
    assert len({states[t][f"{i}/draw"] for t in (0, 1) for i in range(3)}) == 6
    up = [row.value for row in seen[-1].history if row.metric == "bytes_up"]
    plain = tiny.train(FedAvg(), fed, Plan(1, 0.05), LOCAL)
    assert up[0] == next(row.value for row in plain.history if row.metric == "bytes_up") + 3 * (8 + 4)


def test_a_report_that_fails_names_method_round_client_and_stage():
    @dataclass(frozen=True)
    class Mute(FedAvg):
        def report(self, server, model, client, memory, generator):  # type: ignore[no-untyped-def]
            if (server.round, client.index) == (1, 2):
                raise KeyError("tongue")
            return {}

    with pytest.raises(Exception, match="Mute, round 2, client 2, report: KeyError: 'tongue'"):
        tiny.train(Mute(), tiny.federation(), Plan(2, 0.05), LOCAL)


def test_work_is_done_on_the_samples_of_the_round():
    """With one client's samples swapped for another's from round 2 on, round 1 is the same, and round 2 is not."""
    fed = tiny.federation()
    drifting = Swaps(fed.name, fed.clients, fed.classes, fed.shape)
    task = tiny.task(fed, 2)
    kept: dict[str, list[State]] = {"still": [], "drift": []}
    for name, one in (("still", fed), ("drift", drifting)):

        def keep(now: Snapshot, into: list[State] = kept[name]) -> None:
            into.append(now.server.weights)

        federate(FedAvg(), one, task, LOCAL, Plan(2, 0.05), Serial(), after_round=keep)
    assert tiny.same(kept["still"][0], kept["drift"][0])
    assert not tiny.same(kept["still"][1], kept["drift"][1])
