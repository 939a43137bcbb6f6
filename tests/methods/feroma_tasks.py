"""FEROMA on quadratics: planted groups, its course round by round, and what it comes to by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tiny
import torch
from personal_tasks import DESCENT
from test_methods import Quadratic
from torch import Tensor

from fedlib.data.federation import Client, Federation, Samples
from fedlib.methods.fedavg import FedAvg
from fedlib.methods.feroma import FEROMA
from fedlib.methods.method import initial_state
from fedlib.methods.released.feroma import FEROMAAsReleased
from fedlib.metrics import Crowd
from fedlib.rounds import Plan, Snapshot

CENTRES = (0.0, 8.0, 2.0, 12.0, 4.0, 10.0)
GROUPS = (0, 1, 0, 1, 0, 1)
LR = 0.25
W = 2


@dataclass(frozen=True)
class OnQuadratics(FEROMA, Quadratic):
    """||w - c_i||^2 / 2, mapped by FEROMA."""

    warmup: int = W
    centres: tuple[float, ...] = CENTRES
    curvatures: tuple[float, ...] = (1.0,) * 6


@dataclass(frozen=True)
class ReleasedOnQuadratics(FEROMAAsReleased, Quadratic):
    """The same, mapped as released."""

    warmup: int = W
    centres: tuple[float, ...] = CENTRES
    curvatures: tuple[float, ...] = (1.0,) * 6


def near(got: Tensor, expected: Any, atol: float = 1e-6) -> None:
    torch.testing.assert_close(got.double(), torch.as_tensor(expected, dtype=torch.float64), rtol=0, atol=atol)


def draw(n: int, group: int, seed: int, shift: int = 0, alike: bool = False) -> Samples:
    """Pixels of one colour each; group 0: dark and even, group 1: bright and uneven, others in between. The label is
    the brightest channel, moved on by `shift`."""
    stream = torch.Generator().manual_seed(seed)
    least, most = ((10, 30), (150, 256), (60, 100), (100, 180), (30, 110), (120, 140))[0 if alike else group]
    images = torch.randint(least, most, (n, 3, 1, 1), generator=stream, dtype=torch.uint8)
    return Samples(images, (images.flatten(1).int().argmax(1) + shift) % 3)


def grouped(
    groups: Sequence[int] = GROUPS, sizes: Sequence[int] = (30,) * 6, same: bool = False, **how: Any
) -> Federation:
    """One pixel an image, three classes; same: all clients of a group hold the very same samples."""
    clients = tuple(
        Client(
            i, draw(n, g, 3 * (g if same else i), **how), draw(60, g, 3 * (g if same else i) + 1, **how), draw(9, g, 2)
        )
        for i, (g, n) in enumerate(zip(groups, sizes, strict=True))
    )
    return Federation("grouped", clients, ("a", "b", "c"), (3, 1, 1))


def played(method: FEROMA, fed: Federation, rounds: int, **of_plan: Any) -> list[Snapshot]:
    """The state after each round, of one gradient step."""
    seen: list[Snapshot] = []
    plan = Plan(rounds, LR, schedule="constant", evaluate_every=rounds, **of_plan)

    def look(now: Snapshot) -> None:
        seen.append(Snapshot(now.server, list(now.memories), list(now.history)))

    tiny.train(method, fed, plan, DESCENT, model="linear", after_round=look)
    return seen


def start(fed: Federation) -> np.ndarray:
    """(10,): the bias at the start."""
    task = tiny.task(fed, model="linear")
    return initial_state(FedAvg(), task)[1].weights["head.bias"].double().numpy()


def ends(now: Snapshot, clients: int = 6) -> np.ndarray:
    """(m, 10): every theta_j's bias."""
    return np.stack([now.server.weights[f"{j}/head.bias"].double().numpy() for j in range(clients)])


def step(w: np.ndarray, centres: Sequence[float] = CENTRES) -> np.ndarray:
    """(m, 10) after one step of each client from w, (10,) or (m, 10)."""
    return w - LR * (w - np.array(centres)[:, None])


def by_group(theta: np.ndarray, groups: Sequence[int] = GROUPS) -> np.ndarray:
    """(m, 10): to every client the mean of its group."""
    return np.stack([theta[[j for j, h in enumerate(groups) if h == g]].mean(0) for g in groups])


def crowd_of(method: FEROMA, fed: Federation, now: Snapshot) -> Crowd:
    return Crowd(method, method.build(tiny.task(fed, model="linear")), now.server, now.memories, fed)
