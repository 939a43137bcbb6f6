"""Ditto and FedBABU against loops written by hand, and what they keep when clients are not drawn."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import tiny
import torch
import torch.nn.functional as F
from test_baselines_a import distance, loss_at, model_from, steps_by_hand
from test_methods import LOCAL, snapshots
from torch import Tensor, nn

from fedlib.data.federation import Federation, Samples
from fedlib.engines import Serial, one_thread
from fedlib.methods.ditto import Ditto
from fedlib.methods.fedavg import FedAvg
from fedlib.methods.fedbabu import FedBABU
from fedlib.methods.fedprox_ft import FedProxFT
from fedlib.methods.fedsam import FedSAMFT
from fedlib.methods.method import Method, Server, State, Work, initial_state
from fedlib.methods.released.feddrm import DittoAsReleased, FedBABUOnCosine
from fedlib.methods.released.fedfew import DittoInFedFew
from fedlib.rounds import Plan, Snapshot, cohorts, federate, size
from fedlib.store import load_snapshot, save_snapshot
from fedlib.streams import torch_stream
from fedlib.training import Batch, Local, batches

HEAD = {"head.weight", "head.bias"}


def personal_by_hand(
    v: nn.Module, fed: Federation, client: int, round: int, theta: State, lam: float, lr: float
) -> None:
    """SGD on F_i(v) + (lam / 2) ||v - theta||^2 over the mini-batches that follow those of the global model."""
    stream, samples = torch_stream(0, "client", round, client), fed.clients[client].train
    list(batches(samples, LOCAL, client, stream))

    def objective(v: nn.Module, batch: Batch) -> Tensor:
        away = sum(((w - theta[name]) ** 2).sum() for name, w in v.named_parameters())
        return loss_at(v, batch) + lam / 2 * away

    steps_by_hand(v, batches(samples, LOCAL, client, stream), lr, objective)


@pytest.mark.parametrize("lam", [0.0, 0.7])
def test_ditto_is_fedavg_and_a_lasting_personal_model_by_hand(lam: float):
    """theta is what came down in the round; at lam = 0 the personal model is local SGD alone."""
    fed, plan = tiny.federation((40, 24)), Plan(3, 0.05)
    seen, plain = snapshots(Ditto(lam=lam), fed, plan), snapshots(FedAvg(), fed, plan)
    assert all(tiny.same(now[0], then[0]) for now, then in zip(seen, plain, strict=True))
    down = [dict(model_from(fed).state_dict()), plain[0][0], plain[1][0]]
    for i in (0, 1):
        with one_thread():
            v = model_from(fed)
            for t, theta in enumerate(down, start=1):
                personal_by_hand(v, fed, i, t, theta, lam, plan.rate(t))
        torch.testing.assert_close(seen[2][1][i], dict(v.state_dict()), rtol=1e-4, atol=1e-6)


def test_a_client_that_comes_later_begins_at_the_global_model():
    fed, plan = tiny.federation((40, 24)), Plan(2, 0.05, joins={1: 2})
    (theta, before), (_, after) = snapshots(Ditto(lam=0.7), fed, plan)
    assert before[1] == {}
    with one_thread():
        v = model_from(fed, theta)
        personal_by_hand(v, fed, 1, 2, theta, 0.7, plan.rate(2))
    torch.testing.assert_close(after[1], dict(v.state_dict()), rtol=1e-4, atol=1e-6)


def test_dittos_personal_model_minimises_its_objective():
    """At its minimum  lam (v - theta) = -grad F_i(v): the larger lam, the nearer v_i is to theta."""
    fed = tiny.federation((30, 20), side=1)
    samples, away = fed.clients[1].train, []
    for lam, lr in ((1.0, 0.5), (4.0, 0.2), (100.0, 0.008)):
        method, local = Ditto(lam=lam), Local(steps=80, batch_size=30, momentum=0.0, weight_decay=0.0, crop=False)
        theta = initial_state(method, tiny.task(fed, model="linear"))[1].weights
        v = tiny.train(method, fed, Plan(1, lr), local, model="linear").memories[1]
        x = (samples.images.flatten(1) / 127.5 - 1.0).float()
        weight, bias = (v[name].clone().requires_grad_() for name in ("head.weight", "head.bias"))
        slope = torch.autograd.grad(F.cross_entropy(F.linear(x, weight, bias), samples.labels), (weight, bias))
        for name, g in zip(("head.weight", "head.bias"), slope, strict=True):
            torch.testing.assert_close(lam * (v[name] - theta[name]), -g, atol=1e-5 * lam, rtol=1e-3)
        away.append(distance(v, theta))
    assert away[0] > 2 * away[1] > 20 * away[2] > 0


def phases(method: Method, steps: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many mini-batches each phase of one client's work takes."""
    taken: list[int] = []
    original = Work.batches

    def counted(work: Work, steps: int | None = None) -> list[Batch]:
        data = list(original(work, steps))
        taken.append(len(data))
        return data

    monkeypatch.setattr(Work, "batches", counted)
    tiny.train(method, tiny.federation((40,)), Plan(1, 0.05), Local(steps=steps, batch_size=16, crop=False))
    return taken


@pytest.mark.parametrize(
    ("method", "steps", "taken"),
    [
        (Ditto(), 7, [7, 7]),
        (Ditto(personal_steps=2), 7, [7, 2]),
        (DittoAsReleased(), 10, [5, 5]),
        (DittoAsReleased(), 7, [3, 3]),
        (DittoAsReleased(), 1, [1, 1]),
    ],
)
def test_the_steps_of_ditto(method: Method, steps: int, taken: list[int], monkeypatch: pytest.MonkeyPatch):
    assert phases(method, steps, monkeypatch) == taken


def test_dittos_whole_model_travels_and_each_client_is_judged_by_its_own():
    fed, method = tiny.federation((40, 24)), Ditto()
    now = tiny.train(method, fed, Plan(2, 0.05), LOCAL)
    sent = [row.value for row in now.history if row.metric in ("bytes_up", "bytes_down")]
    assert sent == [2 * size(now.server.weights)] * 4
    assert {row.metric for row in now.history} > {"train_loss[target]", "train_loss[personal]", "global@pooled"}
    for i, v in enumerate(now.memories):
        assert tiny.same(method.personal_model(now.server, i, v), v) and not tiny.same(v, now.server.weights)


def test_a_client_that_is_not_drawn_keeps_its_model_or_uses_the_global_one():
    fed, plan, method = tiny.federation((20,) * 6), Plan(4, 0.05, participation=0.5), Ditto()
    drawn, before, met = cohorts(0, 6, plan), [{}] * 6, set()
    assert len(set(map(tuple, drawn))) > 1
    for t, (weights, memories) in enumerate(snapshots(method, fed, plan), start=1):
        met |= set(drawn[t - 1])
        for i, memory in enumerate(memories):
            assert tiny.same(memory, before[i]) == (i not in drawn[t - 1])
            mine = method.personal_model(Server(weights, t), i, memory)
            assert tiny.same(mine, memory) if i in met else mine is weights
        before = memories


def test_nothing_of_the_others_reaches_the_released_dittos_personal_models():
    fed, plan = tiny.federation((40, 24)), Plan(2, 0.05)
    flipped = replace(fed.clients[1], train=Samples(fed.clients[1].train.images, 9 - fed.clients[1].train.labels))
    others = replace(fed, clients=(fed.clients[0], flipped))
    for method, alone in ((DittoInFedFew(), True), (Ditto(), False)):
        (theta, mine), (theta_2, mine_2) = (snapshots(method, data, plan)[1] for data in (fed, others))
        assert not tiny.same(theta, theta_2) and tiny.same(mine[0], mine_2[0]) == alone


def test_fedbabu_trains_the_body_around_the_initial_head():
    fed, plan = tiny.federation((40,)), Plan(3, 0.05)
    seen = snapshots(FedBABU(ft_rounds=1), fed, plan)
    with one_thread():
        model = model_from(fed)
        head = {name: w.clone() for name, w in model.state_dict().items() if name in HEAD}
        for t in (1, 2):
            data = batches(fed.clients[0].train, LOCAL, 0, torch_stream(0, "client", t, 0))
            steps_by_hand(model, data, plan.rate(t), part=lambda name: name not in HEAD)
            assert tiny.same(seen[t - 1][0] | head, model.state_dict()) and tiny.same(seen[t - 1][1][0], head)
    assert not HEAD & seen[0][0].keys()
    assert all(not torch.equal(w, seen[0][0][name]) for name, w in seen[1][0].items())


@pytest.mark.parametrize(
    ("method", "rate", "tuned"),
    [
        (FedBABU(ft_rounds=2, ft_lr=0.03), 0.03, HEAD),
        (FedBABUOnCosine(ft_rounds=2), None, HEAD),
        (FedBABU(ft_rounds=2, ft_lr=0.03, ft_part="all"), 0.03, None),
    ],
)
def test_fedbabu_then_tunes_each_head_or_all(method: FedBABU, rate: float | None, tuned: set[str] | None):
    fed, plan = tiny.federation((40, 24)), Plan(4, 0.05)
    seen = snapshots(method, fed, plan)
    server, ends = seen[3]
    assert tiny.same(server, seen[1][0])
    with one_thread():
        for i in (0, 1):
            model = model_from(fed)
            begun = server | {name: w.clone() for name, w in model.state_dict().items() if name in HEAD}
            model.load_state_dict(begun)
            for t in (3, 4):
                data = batches(fed.clients[i].train, LOCAL, i, torch_stream(0, "client", t, i))
                steps_by_hand(model, data, rate or plan.rate(t), part=lambda name: tuned is None or name in tuned)
            assert tiny.same(ends[i], model.state_dict())
            moved = {name for name, w in ends[i].items() if not torch.equal(w, begun[name])}
            assert moved == (tuned or set(begun))
    assert not torch.equal(ends[0]["head.weight"], ends[1]["head.weight"])


def test_fedbabus_body_alone_travels_and_once_when_tuning_begins():
    now = tiny.train(FedBABU(ft_rounds=2), tiny.federation((40, 24)), Plan(4, 0.05, evaluate_every=4), LOCAL)
    body = 2 * 4 * (23_130 - 650)
    sent = {name: [row.value for row in now.history if row.metric == name] for name in ("bytes_up", "bytes_down")}
    assert sent == {"bytes_up": [body, body, 0, 0], "bytes_down": [body, body, body, 0]}


def test_fedbabu_with_clients_that_are_not_drawn():
    """The common head for who has not tuned yet; the body that was averaged for all."""
    fed, plan, method = tiny.federation((30,) * 4), Plan(4, 0.05, participation=0.5), FedBABU(ft_rounds=1)
    seen, drawn = snapshots(method, fed, plan), cohorts(0, 4, plan)
    head = {name: w for name, w in model_from(fed).state_dict().items() if name in HEAD}
    weights, memories = seen[3]
    assert tiny.same(weights, seen[2][0]) and all(tiny.same(memory, head) for memory in seen[2][1])
    for i, memory in enumerate(memories):
        mine = method.personal_model(Server(weights, 4), i, memory)
        assert tiny.same({name: mine[name] for name in weights}, weights)
        assert tiny.same({name: mine[name] for name in HEAD}, head) == (i not in drawn[3])


@pytest.mark.parametrize(
    "method",
    [Ditto(), FedBABU(ft_rounds=2), FedProxFT(ft_rounds=2), FedSAMFT(ft_rounds=2)],
    ids=lambda m: type(m).__name__,
)
def test_a_saved_snapshot_goes_on_bit_for_bit(method: Method, tmp_path: Path):
    fed, plan, file = tiny.federation((40, 24, 33)), Plan(4, 0.05, participation=0.7), tmp_path / "now.safetensors"
    for saved in (2, 3):

        def keep(now: Snapshot, saved: int = saved) -> None:
            if now.server.round == saved:
                save_snapshot(file, now)

        whole = tiny.train(method, fed, plan, LOCAL, after_round=keep)
        resumed = federate(method, fed, tiny.task(fed, 4), LOCAL, plan, Serial(), resume=load_snapshot(file))
        assert tiny.same_snapshots(resumed, whole)
