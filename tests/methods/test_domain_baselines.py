"""What the methods for domain skew have in common: they go on from a file, know no order, and refuse wrong values."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from domain_tasks import LOCAL, PLAN, SIZES, first_batch, task, three_clients, train, work_on
from torch import nn

from fedlib.data.federation import Federation
from fedlib.engines import Serial
from fedlib.methods import known, make
from fedlib.methods.f2dc import Calibration
from fedlib.methods.fdse import FDSE
from fedlib.methods.fedavg import FedAvg
from fedlib.methods.fedavg_uniform import FedAvgUniform
from fedlib.methods.fedbn import FedBN
from fedlib.methods.fedheal import FedHEAL, bits
from fedlib.methods.fedrcl import FedRCL
from fedlib.methods.fedsa import FedSA
from fedlib.methods.fedtgp import FedTGP
from fedlib.methods.fpl import FPL
from fedlib.methods.method import Method, State, Task, Upload, Work, initial_state
from fedlib.methods.moon import MOON
from fedlib.rounds import Plan, Snapshot, federate
from fedlib.store import load_snapshot, save_snapshot
from fedlib.training import Batch

CONTRASTS: tuple[Method, ...] = (MOON(), FPL(), FedTGP(server_epochs=3), FPL(hierarchy="last"))
OFF: tuple[Method, ...] = (MOON(mu=0.0), FPL(contrast=0.0, consistency=0.0), FedTGP(lam=0.0, server_epochs=2))
MEANS: tuple[Method, ...] = (FedRCL(), FedHEAL(), FedBN(), FedAvgUniform())
METHODS = (*CONTRASTS, *MEANS, FedSA(), FDSE())


def name_of(method: Method) -> str:
    return type(method).__name__


def resumed(method: Method, given: Task, fed: Federation, path: Path) -> Snapshot:
    """A run with half of the clients a round; it has been made sure that it goes on from a file bit for bit."""
    plan = Plan(3, 0.05, participation=0.5, evaluate_every=3)

    def keep(now: Snapshot) -> None:
        if now.server.round == 1:
            save_snapshot(path, now)

    whole = federate(method, fed, given, LOCAL, plan, Serial(), after_round=keep)
    again = federate(method, fed, given, LOCAL, plan, Serial(), resume=load_snapshot(path))
    assert tiny.same_snapshots(whole, again)
    return whole


@pytest.mark.parametrize("method", CONTRASTS, ids=str)
def test_it_goes_on_from_a_file_bit_for_bit_and_clients_use_theta(method: Method, tmp_path: Path):
    fed = tiny.federation(SIZES)
    whole = resumed(method, task(fed), fed, tmp_path / "snapshot.safetensors")
    for i, memory in enumerate(whole.memories):
        assert tiny.same(method.personal_model(whole.server, i, memory), whole.server.weights)


@pytest.mark.parametrize("method", [*MEANS, FedSA(), FDSE()], ids=name_of)
def test_it_goes_on_from_a_file_bit_for_bit_and_clients_have_a_whole_network(method: Method, tmp_path: Path):
    fed = tiny.federation(SIZES)
    whole = resumed(method, task(fed), fed, tmp_path / "snapshot.safetensors")
    network = set(initial_state(method, task(fed))[0].state_dict())
    states = [method.personal_model(whole.server, i, memory) for i, memory in enumerate(whole.memories)]
    assert all(set(state) == network for state in states)


@pytest.mark.parametrize("method", MEANS, ids=name_of)
def test_clients_may_send_in_any_order(method: Method):
    fed = tiny.federation(SIZES)
    _, server, _ = initial_state(method, task(fed))
    sent = [random_upload(i, server.weights, n) for i, n in enumerate(SIZES)]
    forth, back = (method.aggregate(server, iter(order)) for order in (sent, sent[::-1]))
    torch.testing.assert_close(forth.weights, back.weights, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(forth.memory, back.memory, rtol=1e-12, atol=1e-12)
    assert not tiny.same(forth.weights, server.weights)


def random_upload(i: int, theta: State, samples: int) -> Upload:
    """Of client i, with random updates and masks."""
    generator = torch.Generator().manual_seed(i)
    weights = {n: w + torch.rand(w.shape, generator=generator).to(w.dtype) for n, w in theta.items()}
    masks = {f"kept/{n}": bits(torch.rand(w.shape, generator=generator) > 0.3) for n, w in theta.items()}
    return Upload(i, weights, {}, samples, {}, masks)


@pytest.mark.parametrize("method", [FedSA(), FDSE()])
def test_the_order_of_the_clients_does_not_matter(method: Method):
    fed = three_clients()
    _, server, memories = initial_state(method, task(fed))
    sent: list[Upload] = []
    for i in range(3):
        model, _, _ = initial_state(method, task(fed))
        given = work_on(fed, method, client=i, samples=fed.clients[i].train, model=model, memory=memories[i])
        sent.append(method.client_update(given))
    one, other = method.aggregate(server, sent), method.aggregate(server, [sent[2], sent[0], sent[1]])
    torch.testing.assert_close(other.weights, one.weights)
    torch.testing.assert_close(other.memory, one.memory)


@pytest.mark.parametrize("method", OFF, ids=name_of)
def test_without_its_terms_it_is_fedavg_bit_for_bit_and_leaves_batchnorm_alone(method: Method):
    fed = tiny.federation((40, 24))
    mine, plain, strong = (train(m, fed) for m in (method, FedAvg(), CONTRASTS[OFF.index(method)]))
    assert tiny.same(mine.server.weights, plain.server.weights)
    names = {row.metric for row in plain.history} - {"bytes_up", "bytes_down"}
    assert [row for row in mine.history if row.metric in names] == [r for r in plain.history if r.metric in names]
    assert not tiny.same(strong.server.weights, plain.server.weights)


def test_a_lone_client_is_enough():
    """Its last model is theta: the two sides of MOON's contrast are the same in every round."""
    alone = tiny.federation((40,))
    plain, moon, *others = (tiny.train(m, alone, PLAN, LOCAL).server.weights for m in (FedAvg(), *CONTRASTS))
    torch.testing.assert_close(moon, plain, rtol=1e-5, atol=1e-6)
    assert all((other["head.weight"] - plain["head.weight"]).abs().max() > 1e-4 for other in others)


def test_they_are_found_by_their_names():
    assert all(known()[name_of(method)] is type(method) for method in METHODS)
    assert make("FedRCL") == FedRCL(tau=0.05, threshold=0.7, lam=1.0, negatives=2)
    assert make("FedHEAL") == FedHEAL(threshold=0.3, beta=0.4)


def test_they_have_the_authors_defaults():
    assert (FDSE().lam, FDSE().beta, FDSE().eraser_tau, FDSE().G) == (0.5, 0.001, 0.5, 2)
    assert (FedSA().calibration, FedSA().regularisation, FedSA().contrast, FedSA().decay) == (1.0, 1.0, 1.0, 0.9999)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"name": "MOON", "mu": -1}, "MOON.mu: -1 is out of range; give a number at least 0.0"),
        ({"name": "MOON", "tau": 0}, "MOON.tau: 0 is out of range; give a number above 0.0"),
        ({"name": "FPL", "contrast_tau": 0.0}, "FPL.contrast_tau: 0.0 is out of range; give a number above 0.0"),
        ({"name": "FPL", "contrast": -0.5}, "FPL.contrast: -0.5 is out of range"),
        ({"name": "FPL", "consistency": "1e-1"}, "FPL.consistency: '1e-1' is str, not a number"),
        ({"name": "FPL", "hierarchy": "frist"}, "FPL.hierarchy: 'frist' is unknown; did you mean 'first'?"),
        ({"name": "FedTGP", "lam": -1}, "FedTGP.lam: -1 is out of range"),
        ({"name": "FedTGP", "server_epochs": 1.5}, "FedTGP.server_epochs: 1.5 is float, not a whole number"),
        ({"name": "FedTGP", "server_batch": 0}, "FedTGP.server_batch: 0 is out of range"),
        ({"name": "FedTGP", "gap": "nearby"}, "FedTGP.gap: 'nearby' is unknown; did you mean 'nearest'?"),
        ({"name": "FedRCL", "tau": 0}, "FedRCL.tau: 0 is out of range; give a number above 0.0"),
        ({"name": "FedRCL", "threshold": 1.5}, "FedRCL.threshold: 1.5 is out of range"),
        ({"name": "FedRCL", "lam": -1}, "FedRCL.lam: -1 is out of range; give a number at least 0.0"),
        ({"name": "FedRCL", "negatives": 0}, "FedRCL.negatives: 0 is out of range; give a whole number at least 1"),
        ({"name": "FedHEAL", "threshold": -0.1}, "FedHEAL.threshold: -0.1 is out of range"),
        ({"name": "FedHEAL", "beta": 1.1}, "FedHEAL.beta: 1.1 is out of range; give a number at least 0.0 and"),
        ({"name": "FedBN", "beta": 0.4}, "method FedBN: unknown key 'beta'"),
        ({"name": "FedSA", "decay": 1.1}, "FedSA.decay: 1.1 is out of range; give a number at least 0.0 and at most 1"),
        ({"name": "FedSA", "contrast": -1}, "FedSA.contrast: -1 is out of range"),
        ({"name": "FDSE", "eraser_tau": 0}, "FDSE.eraser_tau: 0 is out of range; give a number above 0.0"),
        ({"name": "FDSE", "G": 1.5}, "FDSE.G: 1.5 is float, not a whole number"),
        ({"name": "FDSE", "beta": math.inf}, "FDSE.beta: inf is out of range"),
    ],
)
def test_wrong_hyper_parameters_are_refused(spec: dict[str, Any], message: str):
    assert message in tiny.refusal(spec)


# With the plug-in of F2DC


@dataclass(frozen=True)
class CalibratedFDSE(Calibration, FDSE):
    """FDSE on a network that decouples and calibrates."""


@dataclass(frozen=True)
class CalibratedFedSA(Calibration, FedSA):
    """FedSA on a network that decouples and calibrates."""


@pytest.mark.parametrize("method", [CalibratedFDSE(), CalibratedFedSA()])
def test_the_plug_in_adds_its_terms_to_the_methods_own(method: Method):
    fed = three_clients()
    plain = FDSE() if isinstance(method, FDSE) else FedSA()
    now = train(method, fed)
    named = {row.metric: row.value for row in now.history if row.round == 2 and row.metric.startswith("train_loss")}
    assert {f"train_loss[{name}]" for name in plain.loss(*loss_inputs(fed, plain))} < set(named)
    alone = sum(
        weight * named[f"train_loss[{name}]"]
        for name, weight in {
            "target": 1.0,
            "consistency": 0.5,
            "calibration": 1.0,
            "regularisation": 1.0,
            "contrast": 1.0,
        }.items()
        if f"train_loss[{name}]" in named
    )
    added = method.lam1 * named["train_loss[decoupling]"] + method.lam2 * named["train_loss[correction]"]
    assert named["train_loss[total]"] == pytest.approx(alone + added, rel=1e-5)


def loss_inputs(fed: Federation, method: Method) -> tuple[nn.Module, Batch, Work]:
    work = work_on(fed, method)
    return work.model, first_batch(fed), work
