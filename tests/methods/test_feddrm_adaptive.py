"""FedDRMAdaptive: lambda by hand, FedDRM where the clip leaves no choice, and what a round sends and keeps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tiny
import torch

from fedlib import store
from fedlib.analysis.gradients import branch_gradients, relative_drift
from fedlib.checks import FedlibError
from fedlib.data.federation import Client, Federation, Samples
from fedlib.engines import Processes, Serial, one_thread
from fedlib.methods import make
from fedlib.methods.feddrm import FedDRM
from fedlib.methods.feddrm_adaptive import Drift, FedDRMAdaptive, best_lam
from fedlib.methods.method import Server, Upload, initial_state
from fedlib.rounds import Plan, Snapshot, federate, size
from fedlib.training import Local

LOCAL = Local(steps=3, batch_size=16, crop=False)
PLAN = Plan(4, 0.05, evaluate_every=4)


def number(value: float) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float64)


def told(now: Snapshot) -> list[float]:
    """lam_1, lam_2, … as the history has them."""
    return [row.value for row in now.history if row.metric == "train_loss[lam]"]


@pytest.mark.parametrize(
    ("client", "target", "lam"), [(1.0, 1.0, 0.5), (2.0, 1.0, 0.8), (0.0, 3.0, 0.0), (3.0, 0.0, 1.0)]
)
def test_the_best_lambda_is_the_bounds_minimum(client: float, target: float, lam: float):
    grid = np.linspace(0, 1, 1001)
    bound = (1 - grid) ** 2 * client**2 + grid**2 * target**2
    assert best_lam(number(client**2), number(target**2)).item() == pytest.approx(lam) == grid[bound.argmin()]


def test_the_drift_of_clients_one_by_one_is_the_drift_of_all():
    gradients = torch.randn(5, 40, generator=torch.Generator().manual_seed(0))
    sizes, drift = (3, 10, 1, 7, 4), Drift()
    for u, n in zip(gradients, sizes, strict=True):
        drift.add(u, n)
    expected, _ = relative_drift(gradients.double(), torch.tensor(sizes, dtype=torch.float64) / sum(sizes))
    assert drift.square().sqrt().item() == pytest.approx(expected.item(), rel=1e-12)


CLASS = ([1.0, 0.0], [1.0, 2.0])
CLIENT = ([2.0, 0.0], [-2.0, 0.0])


def after_one(method: FedDRMAdaptive, memory: dict[str, torch.Tensor]) -> Server:
    """One aggregation of two clients with 30 and 10 samples, the gradients above and weights 1 and 5.

    class:  u = (1, 1/2), G^2 = (3/4 * 1/4 + 1/4 * 9/4) / (5/4) = 0.6
    client: u = (1, 0),   G^2 = (3/4 * 1 + 1/4 * 9) / 1 = 3           so that lam* = 3 / 3.6 = 5/6.
    """
    uploads = [
        Upload(i, {"w": torch.tensor([w])}, {}, n, {}, {"class": torch.tensor(t), "client": torch.tensor(c)})
        for i, (w, n, t, c) in enumerate(zip((1.0, 5.0), (30, 10), CLASS, CLIENT, strict=True))
    ]
    return method.aggregate(Server({"w": torch.zeros(1)}, 6, memory), iter(uploads))


@pytest.mark.parametrize(
    ("settings", "before", "after"),
    [
        ({"inertia": 0.0}, 0.6, 5 / 6),
        ({"inertia": 0.0, "high": 0.8}, 0.6, 0.8),
        ({"inertia": 0.0, "low": 0.9, "lam": 0.9}, 0.9, 0.9),
        ({"inertia": 0.75}, 0.6, 0.75 * 0.6 + 0.25 * 5 / 6),
        ({"inertia": 0.5, "lam": 0.7}, None, 0.5 * 0.7 + 0.5 * 5 / 6),
    ],
)
def test_two_clients_by_hand(settings: dict[str, float], before: float | None, after: float):
    server = after_one(FedDRMAdaptive(**settings), {} if before is None else {"lam": number(before)})
    assert server.memory["lam"].item() == pytest.approx(after, rel=1e-12)
    assert (server.weights["w"].item(), server.round, server.memory["lam"].dtype) == (2.0, 7, torch.float64)


@pytest.mark.parametrize("crop", [False, True])
def test_where_the_clip_leaves_no_choice_it_is_feddrm(crop: bool):
    fed, local = tiny.federation(), Local(steps=3, batch_size=16, crop=crop)
    adaptive = tiny.train(FedDRMAdaptive(lam=0.8, low=0.8, high=0.8), fed, PLAN, local)
    fixed = tiny.train(FedDRM(lam=0.8), fed, PLAN, local)
    assert tiny.same(adaptive.server.weights, fixed.server.weights)
    assert all(map(tiny.same, adaptive.memories, fixed.memories))
    assert told(adaptive) == pytest.approx([0.8] * 4)


def test_the_second_rounds_lambda_follows_from_the_first_weights():
    """The gradients are those of analysis.gradients at the weights that came down, not at the trained ones."""
    fed, method = tiny.federation(), FedDRMAdaptive(inertia=0.0, low=0.0, high=1.0)
    with one_thread():
        model, server, memories = initial_state(method, tiny.task(fed, 4))
        found = []
        for client, memory in zip(fed.clients, memories, strict=True):
            model.load_state_dict(server.weights | memory)
            found.append(branch_gradients(model, client))
    shares = torch.tensor(fed.shares)
    squares = {
        s: relative_drift(torch.stack([own[f"{s}, backbone"].double() for own in found]), shares)[0].item() ** 2
        for s in ("class", "client")
    }
    first, second, *_ = told(tiny.train(method, fed, PLAN, LOCAL))
    assert first == pytest.approx(0.5)
    assert second == pytest.approx(squares["client"] / (squares["client"] + squares["class"]), rel=1e-4)
    assert abs(second - 0.5) > 0.01


def test_at_most_so_many_samples_are_measured_evenly_spaced():
    """24 images, at most 10: every third one; the gradients are those of these 8 alone."""
    fed, few = tiny.federation((24,)), FedDRMAdaptive(samples=10)
    train = fed.clients[0].train
    third = Samples(train.images[::3], train.labels[::3])
    alone = Federation(fed.name, (Client(0, third, third, third),), fed.classes, fed.shape)
    sent = []

    class Listening(FedDRMAdaptive):
        def aggregate(self, server, uploads):
            return super().aggregate(server, (sent.append(upload.extra) or upload for upload in uploads))

    for one, method in ((fed, few), (alone, FedDRMAdaptive()), (fed, FedDRMAdaptive())):
        tiny.train(Listening(samples=method.samples), one, Plan(1, 0.05), LOCAL)
    assert tiny.same(sent[0], sent[1]) and not tiny.same(sent[0], sent[2])


def test_one_client_has_no_client_drift_and_keeps_its_lambda():
    assert told(tiny.train(FedDRMAdaptive(lam=0.7), tiny.federation((40,)), PLAN, LOCAL)) == pytest.approx([0.7] * 4)


def test_what_travels_is_counted():
    """Up: two gradients of the backbone more; down: one number more."""
    fed = tiny.federation()
    now = tiny.train(FedDRMAdaptive(), fed, PLAN, LOCAL)
    sent = {name: {row.value for row in now.history if row.metric == name} for name in ("bytes_up", "bytes_down")}
    weights = size(now.server.weights)
    backbone = size({n: t for n, t in now.server.weights.items() if n.startswith("backbone.")})
    assert sent == {"bytes_up": {3 * (weights + 2 * backbone)}, "bytes_down": {3 * (weights + 8)}}


def test_stopped_after_any_round_and_resumed_is_never_stopped(tmp_path: Path):
    fed, method, kept = tiny.federation(), FedDRMAdaptive(inertia=0.5), []

    def keep(now: Snapshot) -> None:
        store.save_snapshot(tmp_path / f"{now.server.round}", now)
        kept.append(now.server.memory["lam"].item())

    whole = tiny.train(method, fed, PLAN, LOCAL, after_round=keep)
    assert len(set(kept)) == 4 and told(whole)[1:] == pytest.approx(kept[:-1])
    for round in (1, 2, 3):
        resume = store.load_snapshot(tmp_path / f"{round}")
        assert resume.server.memory["lam"].item() == kept[round - 1]
        again = federate(method, fed, tiny.task(fed, PLAN.rounds), LOCAL, PLAN, Serial(), resume)
        assert tiny.same_snapshots(again, whole) and tiny.same(again.server.memory, whole.server.memory)


def test_worker_processes_give_the_same_bits():
    fed, engine = tiny.federation(), Processes(2)
    try:
        spread = tiny.train(FedDRMAdaptive(), fed, PLAN, LOCAL, engine)
    finally:
        engine.close()
    serial = tiny.train(FedDRMAdaptive(), fed, PLAN, LOCAL)
    assert tiny.same_snapshots(spread, serial) and tiny.same(spread.server.memory, serial.server.memory)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"lam": 0.3},
            r"FedDRMAdaptive.lam: 0.3 is not between low \(0.5\) and high \(0.95\); give low <= lam <= high",
        ),
        ({"low": 0.9, "high": 0.6, "lam": 0.7}, r"0.7 is not between low \(0.9\) and high \(0.6\)"),
        ({"inertia": 1.0}, "FedDRMAdaptive.inertia: 1.0 is out of range; give a number at least 0.0 and below 1.0"),
        ({"samples": 2.5}, "FedDRMAdaptive.samples: 2.5 is float, not a whole number"),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused(settings: dict[str, float], message: str):
    with pytest.raises(FedlibError, match=message):
        tiny.experiment(make({"name": "FedDRMAdaptive", **settings}))


def test_a_model_without_a_common_backbone_is_refused():
    with pytest.raises(FedlibError, match=r"backbone of .*linear.* has no parameters .* such as small_cnn"):
        tiny.train(FedDRMAdaptive(), tiny.federation(), PLAN, LOCAL, model="linear")
