"""Tiny federations, runs and misbehaving methods for the tests of the core; importable by worker processes too."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fedlib.checks import FedlibError
from fedlib.data.federation import Client, Federation, Samples
from fedlib.engines import Engine, Serial
from fedlib.experiment import Experiment, make_experiment
from fedlib.methods import make
from fedlib.methods.fedavg import FedAvg
from fedlib.methods.method import Method, State, Task, Upload, Work
from fedlib.methods.names import named
from fedlib.methods.several import Several, models, numbered
from fedlib.rounds import Plan, Snapshot, federate
from fedlib.runs import run
from fedlib.training import Batch, Local, Terms

SETTINGS: dict[str, Any] = {"samples": 240, "clients": 3, "rounds": 3, "lr": 0.05, "steps": 2, "crop": False}


def federation(sizes: tuple[int, ...] = (40, 24, 33), side: int = 8, classes: int = 10, test: int = 9) -> Federation:
    """Clients of random pixels and labels: `sizes` for training, `test` for testing each."""
    generator = torch.Generator().manual_seed(0)

    def draw(count: int) -> Samples:
        images = torch.randint(0, 256, (count, 3, side, side), generator=generator, dtype=torch.uint8)
        return Samples(images, torch.randint(0, classes, (count,), generator=generator))

    clients = tuple(Client(i, draw(size), draw(0), draw(test)) for i, size in enumerate(sizes))
    return Federation("random", clients, tuple(map(str, range(classes))), (3, side, side))


def task(fed: Federation, rounds: int = 3, model: str = "small_cnn") -> Task:
    return Task({"name": model}, fed.shape, len(fed.classes), fed.sizes, rounds, seed=0)


def train(
    method: Method,
    fed: Federation,
    plan: Plan,
    local: Local,
    engine: Engine | None = None,
    after_round: Callable[[Snapshot], None] | None = None,
    model: str = "small_cnn",
) -> Snapshot:
    """All rounds, in this process unless another engine is given."""
    engine = engine or Serial()
    return federate(method, fed, task(fed, plan.rounds, model), local, plan, engine, after_round=after_round)


def experiment(method: Method | None = None, **settings: Any) -> Experiment:
    """A run of about a tenth of a second on `digits`."""
    return make_experiment(method or FedAvg(), **SETTINGS | settings)


def same(one: State, other: State) -> bool:
    """Whether two states are equal bit for bit."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def same_snapshots(one: Snapshot, other: Snapshot) -> bool:
    """Whether weights, the server's and the clients' memories, and history are equal bit for bit."""
    memories = len(one.memories) == len(other.memories) and all(map(same, one.memories, other.memories))
    servers = same(one.server.weights, other.server.weights) and same(one.server.memory, other.server.memory)
    return memories and servers and one.history == other.history


def refusal(spec: str | Mapping[str, Any]) -> str:
    """What is said when a method is refused."""
    try:
        method = make(spec)
    except FedlibError as error:
        return str(error)
    raise AssertionError(f"{spec} is not refused: {method}")


@dataclass(frozen=True)
class Dealt(Several):
    """Client i trains model i mod K, and sends it up."""

    def client_update(self, work: Work) -> Upload:
        k = work.client % self.K
        sent = super().client_update(replace(work, message=models(work.message)[k]))
        return replace(sent, weights=named(k, sent.weights))


def with_dropout(task: Task) -> nn.Module:
    """The task's network, with dropout before the head."""
    network = task.network()
    network.transform = nn.Sequential(network.transform, nn.Dropout(0.5))
    return network


def leaning(*gaps: float) -> State:
    """theta of linear models on three channels that say the second class with probability sigma(gap), whatever the
    image."""
    return numbered([{"head.weight": torch.zeros(2, 3), "head.bias": torch.tensor([0.0, gap])} for gap in gaps])


@dataclass(frozen=True)
class Breaks(Method):
    """FedAvg whose client 1 raises an error in round 2."""

    def loss(self, model: torch.nn.Module, batch: Batch, work: Work) -> Terms:
        if (work.round, work.client) == (2, 1):
            raise IndexError("out of cheese")
        return super().loss(model, batch, work)


@dataclass(frozen=True)
class Explodes(Method):
    """FedAvg whose client 1 meets a loss that is no number at the end of a pass, from round `at` on."""

    at: int = 3

    def loss(self, model: torch.nn.Module, batch: Batch, work: Work) -> Terms:
        terms = super().loss(model, batch, work)
        ends = len(batch.y) < work.local.batch_size
        if ends and work.client == 1 and work.round >= self.at:
            terms["total"] = terms["total"] * float("nan")
        return terms


@dataclass(frozen=True)
class Poisons(Method):
    """FedAvg whose client 1 sends weights that are no numbers, though its losses were."""

    def upload(self, work: Work, losses: dict[str, float]) -> Upload:
        sent = super().upload(work, losses)
        if work.client == 1:
            sent.weights["head.bias"].fill_(float("nan"))
        return sent


def run_in(folder: str, events: str, asked: Experiment) -> None:
    """What a separate process does: train with a checkpoint after every round, kept in `folder`."""
    os.environ["FEDLIB_RUNS"] = folder
    run(asked, checkpoint_seconds=0, events=events)


def rounds_told(events: Path) -> list[int]:
    """The rounds that an events file reports, in its order."""
    lines = events.read_text(encoding="utf-8").splitlines() if events.is_file() else []
    return [event["round"] for event in map(json.loads, lines) if event["event"] == "round"]
