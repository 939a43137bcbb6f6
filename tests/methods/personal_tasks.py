"""Quadratics, planted groups and clients' work on them, for the tests of personalised, clustered and few models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import tiny
import torch
from test_methods import Quadratic
from torch import Tensor

from fedlib.data.federation import Client, Federation, Samples
from fedlib.methods.fedamp import FedAMP
from fedlib.methods.fedavg import FedAvg
from fedlib.methods.fedmtl import FedMTL
from fedlib.methods.method import Method, State, Work, initial_state
from fedlib.rounds import Plan, Snapshot
from fedlib.training import Local

A = torch.tensor([[1.0, 2.0], [2.0, 1.0]], dtype=torch.float64)
"""Losses of two clients with two models."""
DESCENT = Local(steps=1, batch_size=60, momentum=0.0, weight_decay=0.0, crop=False)
GROUPS = (0, 1, 1, 0, 1, 0)
PERSONAL = ("personal@local", "worst@local", "train_loss[total]", "bytes_up", "bytes_down")


def name_of(method: Method) -> str:
    return type(method).__name__


def near(got: Tensor, expected: Any, atol: float = 1e-6) -> None:
    torch.testing.assert_close(got, torch.as_tensor(expected, dtype=torch.float64), rtol=0, atol=atol)


@dataclass(frozen=True)
class QuadraticAMP(FedAMP, Quadratic):
    """a_i ||w - c_i||^2 / 2, and FedAMP's leash."""


@dataclass(frozen=True)
class QuadraticMTL(FedMTL, Quadratic):
    """a_i ||w - c_i||^2 / 2, and FedMTL's."""


def quadratic(
    method: Method, rounds: int, sizes: tuple[int, ...] = (30, 10), lr: float = 0.25, **of_plan: float
) -> list[Snapshot]:
    """The state after each round of one plain gradient step; w is the bias of the linear model, (10,)."""
    fed, seen = tiny.federation(sizes=sizes, side=1), []
    local = Local(steps=1, batch_size=30, momentum=0.0, weight_decay=0.0, crop=False)
    plan = Plan(rounds, lr, schedule="constant", evaluate_every=rounds, **of_plan)

    def look(now: Snapshot) -> None:
        seen.append(Snapshot(now.server, list(now.memories)))

    tiny.train(method, fed, plan, local, after_round=look, model="linear")
    return seen


def biases(now: Snapshot) -> np.ndarray:
    """(m, 10): what each client's model has come to."""
    return torch.stack([memory["head.bias"] for memory in now.memories]).double().numpy()


def start(sizes: tuple[int, ...]) -> np.ndarray:
    """(m, 10): where they all start."""
    task = tiny.task(tiny.federation(sizes=sizes, side=1), model="linear")
    return np.stack([initial_state(FedAvg(), task)[1].weights["head.bias"].double().numpy()] * len(sizes))


def planted(sizes: tuple[int, ...] = (50, 60, 40, 30, 50, 60)) -> Federation:
    """One pixel an image: its brightest channel is the class in group 0, the one after it in group 1."""
    generator = torch.Generator().manual_seed(1)

    def draw(count: int, group: int) -> Samples:
        images = torch.randint(0, 256, (count, 3, 1, 1), generator=generator, dtype=torch.uint8)
        return Samples(images, (images.flatten(1).int().argmax(1) + group) % 3)

    clients = tuple(
        Client(i, draw(n, g), draw(0, g), draw(20, g)) for i, n, g in zip(range(6), sizes, GROUPS, strict=True)
    )
    return Federation("planted", clients, ("a", "b", "c"), (3, 1, 1))


def grouped(labels: list[int]) -> bool:
    """Whether two clients have the same label exactly if they are in the same planted group."""
    return len(set(zip(labels, GROUPS, strict=True))) == len(set(labels)) == len(set(GROUPS))


def work_of(fed: Federation, method: Method, i: int = 0, round: int = 1, memory: State | None = None) -> Work:
    task = tiny.task(fed, model="linear")
    message = initial_state(method, task)[1].weights
    samples, stream = fed.clients[i].train, torch.Generator().manual_seed(0)
    return Work(i, samples, message, memory or {}, task.network(), DESCENT, 0.1, round, 9, stream)


def rows(now: Snapshot, *names: str) -> list[float]:
    return [row.value for row in now.history if row.metric in names]
