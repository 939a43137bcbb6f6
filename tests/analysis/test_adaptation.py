"""The probe `adapted`: further local steps written by hand, where they begin, and what they leave alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import tiny
import torch
import torch.nn.functional as F
from tiny import Dealt, leaning, with_dropout
from torch import Tensor, nn

from fedlib.analysis import adaptation
from fedlib.analysis.adaptation import adapted
from fedlib.checks import FedlibError
from fedlib.data.federation import Client, Federation, Samples
from fedlib.engines import Serial, one_thread
from fedlib.methods.fedavg import FedAvg
from fedlib.methods.feddrm import FedDRM
from fedlib.methods.fedper import FedPer
from fedlib.methods.method import Method, Server, Site, State, Task, initial_state
from fedlib.metrics import Crowd, Row, accuracy
from fedlib.probes import load
from fedlib.rounds import Plan, Snapshot, federate
from fedlib.streams import torch_stream
from fedlib.training import Local, NotFinite, batches, prepare

LOCAL = Local(steps=5, batch_size=16, crop=False)
PLAN = Plan(2, 0.2, evaluate_every=1)
NAMES = ("adapted@local", "adapted@local[plain mean]")


@dataclass(frozen=True)
class Dropped(Method):
    """FedAvg with dropout before the head."""

    def build(self, task: Task) -> nn.Module:
        return with_dropout(task)


def federation() -> Federation:
    return tiny.federation((40, 24, 33), classes=3, test=60)


def run(method: Method, probed: bool = True) -> Snapshot:
    fed = federation()
    probes = load(["adapted"]) if probed else []
    return federate(method, fed, tiny.task(fed, 2), LOCAL, PLAN, Serial(), probes=probes)


def crowd_of(method: Method, now: Snapshot, lr: float, fed: Federation, local: Local = LOCAL) -> Crowd:
    """All clients after a run, as the round loop shows them to a probe."""
    model, _, _ = initial_state(method, tiny.task(fed))
    site = Site(method, tiny.task(fed), local, tuple(client.train for client in fed.clients))
    return Crowd(method, model, now.server, now.memories, fed, site=site, lr=lr)


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> list[State]:
    """The networks that are tested, in their order, while the probe runs."""
    seen: list[State] = []

    def spy(model: nn.Module, samples: Samples, class_logits: Callable[[Tensor], Tensor]) -> Tensor:
        seen.append({name: tensor.clone() for name, tensor in model.state_dict().items()})
        return accuracy(model, samples, class_logits)

    monkeypatch.setattr(adaptation, "accuracy", spy)
    return seen


def by_hand(method: Method, client: Client, start: State, stream: torch.Generator, lr: float, fed: Federation) -> State:
    """E steps of SGD on the cross-entropy of the class logits."""
    model, _, _ = initial_state(method, tiny.task(fed))
    model.load_state_dict(start)
    optimiser = torch.optim.SGD(model.parameters(), lr, LOCAL.momentum, weight_decay=LOCAL.weight_decay, fused=True)
    for batch in batches(client.train, LOCAL, client.index, stream):
        optimiser.zero_grad()
        F.cross_entropy(method.class_logits(model.train()(batch.x)), batch.y).backward()
        optimiser.step()
    return dict(model.state_dict())


def right(method: Method, samples: Samples, state: State, fed: Federation) -> float:
    """The share of the samples that the network gets right."""
    model, _, _ = initial_state(method, tiny.task(fed))
    model.load_state_dict(state)
    with torch.no_grad():
        guess = method.class_logits(model.eval()(prepare(samples.images))).argmax(1)
    return int((guess == samples.labels).sum()) / len(samples)


@pytest.mark.parametrize("method", [FedAvg(), FedPer(), FedDRM()], ids=lambda method: type(method).__name__)
def test_it_is_e_steps_from_the_clients_own_model_by_hand(method: Method, ends: list[State]):
    """In the last of two rounds, at this round's learning rate; the mini-batches are the probe's own."""
    fed, now = federation(), run(method)
    rows = {(row.metric, row.client): row for row in now.history if row.round == 2}
    values, before = [], []
    with one_thread():
        for i, client in enumerate(fed.clients):
            start = now.server.weights | now.memories[i]
            end = by_hand(method, client, start, torch_stream(0, "adaptation", 2, i, 0), PLAN.rate(2), fed)
            assert tiny.same(end, ends[3 + i]) and not tiny.same(end, start)
            values.append(right(method, client.test, end, fed))
            before.append(right(method, client.test, start, fed))
    got = [rows["adapted@local", i] for i in range(3)]
    assert [row.value for row in got] == pytest.approx(values)
    assert [rows["personal@local", i].value for i in range(3)] == pytest.approx(before)
    mean = sum(n * value for n, value in zip(fed.sizes, values, strict=True)) / sum(fed.sizes)
    assert rows["adapted@local", -1].value == pytest.approx(mean)
    assert rows["adapted@local[plain mean]", -1].value == pytest.approx(sum(values) / 3)
    assert {row.moment for row in rows.values() if row.metric in NAMES} == {"after_local"}


@pytest.mark.parametrize(
    "method", [FedAvg(), FedPer(), Dealt(K=2, selection="train")], ids=lambda method: type(method).__name__
)
def test_without_a_step_s_length_it_is_the_clients_own_model(method: Method):
    fed, now = federation(), run(method, probed=False)
    rows = adapted(crowd_of(method, now, 1e-12, fed), fed)
    own = [row for row in now.history if row.round == 2 and row.metric.startswith("personal@local")]
    assert [row._replace(metric=row.metric.replace("adapted", "personal"), moment="") for row in rows] == [
        row._replace(moment="") for row in own
    ]
    far = adapted(crowd_of(method, now, 0.2, fed), fed)
    assert far != rows


@pytest.mark.parametrize("selection", ["train", "validation"])
def test_it_trains_all_models_and_then_chooses(selection: str, ends: list[State]):
    """White pixels x = (1, 1, 1), all of the second class, z = the logits' difference; of one step,

        z <- z + 2 lr (1 + ||x||^2) (1 - sigma(z)).

    Of the gaps 0 and -1, the first fits better at the start; with lr = 1 it becomes 4, but the second 8 sigma(1) - 1.
    In the validation samples all are of the first class: there the one that has gone less far is the better one.
    """

    def white(labels: list[int]) -> Samples:
        return Samples(torch.full((len(labels), 3, 1, 1), 255, dtype=torch.uint8), torch.tensor(labels))

    fed = Federation("white", (Client(0, white([1] * 4), white([0] * 2), white([1, 0])),), ("no", "yes"), (3, 1, 1))
    method, local = Dealt(K=2, selection=selection), Local(1, None, 4, 0.0, 0.0, False)
    given = tiny.task(fed, model="linear")
    model, _, memories = initial_state(method, given)
    site = Site(method, given, local, (fed.clients[0].train,))
    crowd = Crowd(method, model, Server(leaning(0.0, -1.0), 1), memories, fed, site=site, lr=1.0)
    assert crowd.states[0]["head.bias"][1].item() == (0.0 if selection == "train" else -1.0)
    rows = adapted(crowd, fed)
    z = {name: float((w[1] - w[0]).sum()) for name, w in ends[0].items()}
    expected = 8 / (1 + math.exp(-1)) - 1 if selection == "train" else 4.0
    assert sum(z.values()) == pytest.approx(expected) and len(ends) == 1
    assert [row.value for row in rows] == [0.5] * 3 and rows[0] == Row(1, "adapted@local", "after_local", 0, 0.5)


@pytest.mark.parametrize(
    "method", [FedAvg(), FedPer(), Dealt(K=2, selection="train")], ids=lambda method: type(method).__name__
)
def test_a_run_is_otherwise_the_same(method: Method):
    """After every round, so that the next one would show what the probe has changed."""
    probed, plain = run(method), run(method, probed=False)
    found = [row for row in probed.history if row.metric in NAMES]
    assert tiny.same_snapshots(replace(probed, history=[r for r in probed.history if r not in found]), plain)
    assert [(row.round, row.metric, row.client) for row in found[:5]] == [
        (1, "adapted@local", 0),
        (1, "adapted@local", 1),
        (1, "adapted@local", 2),
        (1, "adapted@local", -1),
        (1, "adapted@local[plain mean]", -1),
    ]
    assert [row.round for row in found] == [1] * 5 + [2] * 5


def test_dropout_is_the_probes_own_and_leaves_the_global_generator_alone(ends: list[State]):
    """So that a run that goes on from a checkpoint has the same values."""
    fed, now = federation(), run(Dropped(), probed=False)
    for seed in (1, 2):
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        adapted(crowd_of(Dropped(), now, 0.2, fed), fed)
        assert torch.equal(torch.get_rng_state(), before)
    assert all(map(tiny.same, ends[:3], ends[3:])) and not tiny.same(ends[0], ends[1])


def test_clients_without_test_samples_of_their_own_are_refused():
    with pytest.raises(FedlibError, match="probes: adapted needs test samples of each client; set test_share above 0"):
        tiny.experiment(probes=("adapted",), test_share=0.0, schedule="constant")


def test_further_work_that_diverges_is_told_as_the_probes():
    fed, now = federation(), run(FedAvg(), probed=False)
    with pytest.raises(NotFinite, match=r"probe adapted, further local work of client 0: .*lower lr"):
        adapted(crowd_of(FedAvg(), now, 1.0e30, fed), fed)
