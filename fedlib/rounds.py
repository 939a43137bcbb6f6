"""The round loop: broadcast, client work, aggregation, evaluation, checkpoint."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import nn

from fedlib.checks import FedlibError, check_choice, check_number, whole_as_float
from fedlib.data.federation import Federation
from fedlib.engines import Assignment, Engine, one_thread
from fedlib.methods import check_clients
from fedlib.methods.method import Method, Server, Site, State, Task, Upload, initial_state
from fedlib.metrics import Crowd, Row, evaluate
from fedlib.streams import numpy_stream, torch_stream
from fedlib.training import Local

Probe = Callable[[Crowd, Federation], list[Row]]


@dataclass(frozen=True)
class Plan:
    """The rounds of one run.

    rounds: T. lr, schedule: "cosine" is lr_t = lr (1 + cos(pi (t - 1) / T)) / 2, constant within a round.
    participation: share of the clients present that take part in a round. joins, leaves: {client: its first, its last
    round}; a client that is not named is present throughout. evaluate_every: in rounds; evaluate_last: each of the
    last so many rounds is evaluated too. pooled: whether queries of unknown origin are put to all clients, too: where
    every client has a model of its own, each then meets everyone's test samples. With the official
    test part as test (test_share 0) there are no such queries.
    """

    rounds: int
    lr: float
    schedule: str = "cosine"
    participation: float = 1.0
    joins: Mapping[int, int] = field(default_factory=dict)
    leaves: Mapping[int, int] = field(default_factory=dict)
    evaluate_every: int = 10
    evaluate_last: int = 1
    pooled: bool = True

    def __post_init__(self) -> None:
        check_number("rounds", self.rounds, least=1, whole=True)
        check_number("lr", self.lr, above=0.0)
        check_choice("schedule", self.schedule, ("cosine", "constant"))
        check_number("participation", self.participation, above=0.0, most=1.0)
        check_number("evaluate_every", self.evaluate_every, least=1, whole=True)
        check_number("evaluate_last", self.evaluate_last, least=1, most=self.rounds, whole=True)
        check_choice("pooled", self.pooled, (True, False))
        for name in ("joins", "leaves"):
            for client, at in getattr(self, name).items():
                check_number(f"{name}: client", client, least=0, whole=True)
                check_number(f"{name}: round of client {client}", at, least=1, most=self.rounds, whole=True)
        whole_as_float(self)

    def rate(self, round: int) -> float:
        """lr_t for t = 1 … T."""
        return (
            self.lr
            if self.schedule == "constant"
            else 0.5 * self.lr * (1 + math.cos(math.pi * (round - 1) / self.rounds))
        )

    def present(self, clients: int, round: int) -> list[int]:
        """The clients that have joined and not left. Raises FedlibError if there is none, or a name is unknown."""
        for client in (*self.joins, *self.leaves):
            check_number("joins and leaves: client", client, most=clients - 1)
        there = [i for i in range(clients) if self.joins.get(i, 1) <= round <= self.leaves.get(i, self.rounds)]
        if not there:
            raise FedlibError(f"joins and leaves: no client is present in round {round}; let one join earlier")
        return there

    def due(self, round: int) -> bool:
        """Whether this round is evaluated."""
        return round % self.evaluate_every == 0 or round > self.rounds - self.evaluate_last


@dataclass
class Snapshot:
    """A run between two rounds: enough to go on with, bit for bit."""

    server: Server
    memories: list[State]
    history: list[Row] = field(default_factory=list)

    def to(self, device: torch.device) -> Snapshot:
        """The same with all tensors on a device."""

        def moved(state: State) -> State:
            return {name: tensor.to(device) for name, tensor in state.items()}

        server = replace(self.server, weights=moved(self.server.weights), memory=moved(self.server.memory))
        return Snapshot(server, [moved(memory) for memory in self.memories], self.history)


def cohorts(seed: int, clients: int, plan: Plan) -> list[list[int]]:
    """Who takes part in each round, drawn before the first one: all methods meet the same cohorts."""
    stream = numpy_stream(seed, "cohorts")
    drawn = []
    for t in range(1, plan.rounds + 1):
        there = np.array(plan.present(clients, t))
        count = max(1, round(plan.participation * len(there)))
        drawn.append(sorted(there[stream.permutation(len(there))[:count]].tolist()))
    return drawn


def federate(
    method: Method,
    federation: Federation,
    task: Task,
    local: Local,
    plan: Plan,
    engine: Engine,
    resume: Snapshot | None = None,
    after_round: Callable[[Snapshot], None] | None = None,
    probes: Sequence[Probe] = (),
) -> Snapshot:
    """T rounds of `method`; `after_round` sees the state after each (for checkpoints and progress).

    Raises FedlibError, before the first, where samples may have several labels and the method is not made for that, and
    where a client has too few samples for it.
    """
    check_clients(method, federation)
    with one_thread():
        model, server, memories = initial_state(method, task)
        device = federation.clients[0].train.labels.device
        model = model.to(device)
        now = resume or Snapshot(server, memories).to(device)
        site = Site(method, task, local, ())
        before: Federation | None = None
        takes_part = cohorts(task.seed, task.clients, plan)
        for t in range(now.server.round + 1, plan.rounds + 1):
            here = federation.at(t)
            if here is not before:
                site, before = replace(site, train=tuple(client.train for client in here.clients)), here
            told = listen(site, model, now, here, takes_part[t - 1])
            step(site, model, now, engine, takes_part[t - 1], plan.rate(t), told)
            if plan.due(t):
                now.history += judge(site, model, now, here, plan, probes)
            if after_round is not None:
                after_round(now)
        return now


def listen(site: Site, model: nn.Module, now: Snapshot, federation: Federation, cohort: list[int]) -> int:
    """The cohort reports and the server takes note, before anything is sent. Returns the bytes that went up."""
    method, t = site.method, now.server.round + 1
    reports: dict[int, State] = {}
    stage = "report"
    try:
        for i in cohort:
            stage = f"client {i}, report"
            stream = torch_stream(site.task.seed, "report", t, i)
            reports[i] = method.report(now.server, model, federation.clients[i], now.memories[i], stream)
        stage = "receive"
        now.server = method.receive(now.server, reports)
    except Exception as error:
        raise FedlibError(f"{type(method).__name__}, round {t}, {stage}: {type(error).__name__}: {error}") from error
    return sum(size(report) for report in reports.values())


def step(
    site: Site, model: nn.Module, now: Snapshot, engine: Engine, cohort: list[int], lr: float, told: int = 0
) -> None:
    """One round: broadcast to the cohort, client work, aggregation as uploads arrive.

    told: bytes that have gone up already, in reports.
    """
    t = now.server.round + 1
    down, up = 0, told
    losses: list[tuple[int, dict[str, float]]] = []

    def given() -> Iterator[Assignment]:
        nonlocal down
        for i in cohort:
            message = site.method.broadcast(now.server, i, now.memories[i])
            down += size(message)
            yield Assignment(i, message, now.memories[i], lr, t)

    def received(uploads: Iterable[Upload]) -> Iterator[Upload]:
        nonlocal up
        for upload in uploads:
            now.memories[upload.client] = upload.memory
            losses.append((upload.samples, upload.losses))
            up += size(upload.weights) + size(upload.extra)
            yield upload

    where = f"{type(site.method).__name__}, round {t}"
    try:
        now.server = site.method.aggregate(now.server, received(engine.map(site, model, given())))
    except FedlibError:
        raise
    except Exception as error:
        raise FedlibError(f"{where}, aggregate: {type(error).__name__}: {error}") from error
    bad = next((name for name, tensor in now.server.weights.items() if not tensor.isfinite().all()), None)
    if bad is not None:
        raise FedlibError(f"{where}: the averaged {bad} is not finite; lower lr")
    total = sum(samples for samples, _ in losses)
    for name in losses[0][1]:
        mean = sum(samples * terms[name] for samples, terms in losses) / total
        now.history.append(Row(t, f"train_loss[{name}]", "during_local", -1, mean))
    now.history += [Row(t, "bytes_down", "during_local", -1, down), Row(t, "bytes_up", "during_local", -1, up)]


def judge(
    site: Site, model: nn.Module, now: Snapshot, federation: Federation, plan: Plan, probes: Sequence[Probe]
) -> list[Row]:
    """All metrics and probes of the round just finished."""
    method, t = site.method, now.server.round
    crowd = Crowd(method, model, now.server, now.memories, federation, site=site, lr=plan.rate(t))
    try:
        rows = evaluate(crowd, method.moment(t, plan.rounds), plan.pooled)
        return rows + [row for probe in probes for row in probe(crowd, federation)]
    except Exception as error:
        raise FedlibError(f"{type(method).__name__}, round {t}, evaluation: {type(error).__name__}: {error}") from error


def size(state: State) -> int:
    """Bytes of the tensors in a message."""
    return sum(tensor.numel() * tensor.element_size() for tensor in state.values())
