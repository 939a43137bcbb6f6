"""Small tasks with BatchNorm, and clients' work on them, for the tests of the methods for domain skew."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import tiny
import torch

from fedlib.data.federation import Federation
from fedlib.engines import Serial
from fedlib.methods.method import Method, State, Task, Upload, Work, initial_state
from fedlib.rounds import Plan, Snapshot, federate
from fedlib.training import Batch, Local, prepare

LOCAL = Local(steps=2, batch_size=8, crop=False)
PLAN = Plan(3, 0.05, evaluate_every=3)
RESNET = {"name": "resnet10", "width": 4}
SIZES = (24, 16, 40, 8)


def task(fed: Federation, model: str | dict[str, Any] = RESNET, seed: int = 0) -> Task:
    """Three rounds with a small ResNet-10."""
    return replace(tiny.task(fed), model={"name": model} if isinstance(model, str) else model, seed=seed)


def train(
    method: Method,
    fed: Federation,
    plan: Plan = PLAN,
    local: Local = LOCAL,
    after_round: Callable[[Snapshot], None] | None = None,
) -> Snapshot:
    """All rounds with a small ResNet-10."""
    return federate(method, fed, task(fed), local, plan, Serial(), after_round=after_round)


def three_clients(sizes: tuple[int, ...] = (20, 24, 18)) -> Federation:
    """Three clients with three classes."""
    return tiny.federation(sizes, classes=3, test=4)


def work_on(fed: Federation, method: Method, message: State | None = None, **changes: Any) -> Work:
    """Client 0's work in round 2 of 3, from the initial network; `message` is what comes beside theta."""
    network, server, _ = initial_state(method, task(fed))
    down, stream = method.broadcast(server, 0, {}) | (message or {}), torch.Generator().manual_seed(3)
    return replace(Work(0, fed.clients[0].train, down, {}, network, LOCAL, 0.05, 2, 3, stream), **changes)


def batch_of(work: Work) -> Batch:
    """All of the client's samples."""
    return Batch(prepare(work.samples.images), work.samples.labels, work.client)


def first_batch(fed: Federation, count: int = 8) -> Batch:
    """The first samples of client 0."""
    samples = fed.clients[0].train
    return Batch(prepare(samples.images[:count]), samples.labels[:count], 0)


def metric(now: Snapshot, name: str) -> list[float]:
    """Its values over the rounds, and the clients."""
    return [row.value for row in now.history if row.metric == name]


def upload_of(client: int, means: list[list[float]], classes: list[int], n: int = 5) -> Upload:
    """Class prototypes, beside a network of one tensor."""
    extra = {"means": torch.tensor(means), "classes": torch.tensor(classes)}
    return Upload(client, {"head.bias": torch.zeros(4)}, {}, n, {}, extra)


def at(*degrees: float) -> np.ndarray:
    """Points of lengths 1, 2, 3, … in these directions of the plane."""
    angle = np.deg2rad(degrees)
    return np.stack([np.cos(angle), np.sin(angle)], 1) * np.arange(1, len(degrees) + 1)[:, None]
