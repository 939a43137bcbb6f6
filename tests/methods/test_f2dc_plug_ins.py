"""Plug-ins: the base's loss plus F²DC's two terms, the base's own aggregation, and what each sends."""

from __future__ import annotations

import dataclasses

import pytest
import tiny
import torch

from fedlib.engines import Serial
from fedlib.methods.f2dc import F2DC, CalibratedNetwork, Calibration
from fedlib.methods.f2dc_plug_ins import (
    CalibratedFDSE,
    CalibratedFedHEAL,
    CalibratedFedProx,
    CalibratedFPL,
    CalibratedUniform,
    F2DCLocalNorms,
)
from fedlib.methods.fdse import FDSE
from fedlib.methods.fedavg import FedAvg
from fedlib.methods.fedavg_uniform import FedAvgUniform
from fedlib.methods.fedheal import FedHEAL
from fedlib.methods.fedprox import FedProx
from fedlib.methods.fpl import FPL
from fedlib.methods.method import Server, Task, Upload, initial_state
from fedlib.models.resnet10 import is_norm
from fedlib.rounds import Plan, federate
from fedlib.training import Local

CLASSES = 4
MODEL = {"name": "resnet10", "width": 4}
LOCAL = Local(steps=2, batch_size=8, crop=False)
PLUG_INS = [CalibratedFedProx(), CalibratedFPL(), CalibratedFedHEAL(), CalibratedFDSE(), CalibratedUniform()]


def after(method, rounds: int = 2):
    fed = tiny.federation((24, 16, 16), side=16, classes=CLASSES)
    clients = tuple(dataclasses.replace(c, domain=q) for c, q in zip(fed.clients, (0, 1, 1), strict=True))
    fed = dataclasses.replace(fed, clients=clients, central={"a": fed.clients[0].test, "b": fed.clients[1].test})
    task = Task(MODEL, fed.shape, CLASSES, fed.sizes, rounds, 0, (0, 1, 1))
    return federate(method, fed, task, LOCAL, Plan(rounds, 0.01), Serial())


def losses(snapshot, round: int) -> dict[str, float]:
    return {
        r.metric[11:-1]: r.value for r in snapshot.history if r.round == round and r.metric.startswith("train_loss")
    }


@pytest.mark.parametrize("method", PLUG_INS, ids=lambda m: type(m).__name__)
def test_no_hyper_parameter_of_the_base_has_the_name_of_one_of_f2dc(method):
    """The two would be one field, and the base would train with F2DC's default (tau is the name of many)."""
    (base,) = (b for b in type(method).__bases__ if b is not Calibration)
    common = {field.name for field in dataclasses.fields(FedAvg)}
    of_base, of_f2dc = ({field.name for field in dataclasses.fields(m)} - common for m in (base, Calibration))
    assert not of_base & of_f2dc
    assert {name: getattr(method, name) for name in of_base} == {name: getattr(base(), name) for name in of_base}


@pytest.mark.parametrize("method", PLUG_INS, ids=lambda m: type(m).__name__)
def test_the_total_is_the_base_s_terms_and_the_two_of_f2dc(method):
    found = losses(after(method), 2)
    extra = method.lam1 * found["decoupling"] + method.lam2 * found["correction"]
    base = {"CalibratedFPL": ("contrast", "consistency")}.get(type(method).__name__, ())
    named = found["target"] + sum(found[name] for name in base)
    if type(method).__name__ in ("CalibratedFedHEAL", "CalibratedUniform", "CalibratedFPL"):
        assert found["total"] == pytest.approx(named + extra, rel=1e-5)
    else:  # the proximal and the consistency term are not negative
        assert found["total"] >= named + extra - 1e-4


@pytest.mark.parametrize("method", PLUG_INS, ids=lambda m: type(m).__name__)
def test_the_network_is_calibrated(method):
    task = Task(MODEL, (3, 16, 16), CLASSES, (8, 8), 1, 0, (0, 1))
    model = initial_state(method, task)[0]
    assert isinstance(model, CalibratedNetwork)
    f = model.backbone(torch.randn(3, 3, 16, 16))
    parts = model.calibrate(f)
    torch.testing.assert_close(parts.robust + parts.related, f)


@pytest.mark.parametrize(
    ("plug_in", "base"),
    [(CalibratedUniform(), FedAvgUniform()), (CalibratedFedProx(), FedProx()), (Calibration(), FedAvg())],
)
def test_clients_weigh_what_they_weigh_in_the_base(plug_in, base):
    """Equally in CalibratedUniform, by their samples elsewhere."""
    server = Server({"w": torch.zeros(1)}, 0, {})
    uploads = [Upload(i, {"w": torch.full((1,), float(i))}, {}, n, {}) for i, n in enumerate((30, 10))]
    expected = 0.5 if isinstance(base, FedAvgUniform) else 0.25
    for method in (plug_in, base):
        assert float(method.aggregate(server, uploads).weights["w"]) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("plug_in", "base"), [(CalibratedFPL(), FPL()), (CalibratedFedHEAL(), FedHEAL()), (CalibratedFDSE(), FDSE())]
)
def test_what_the_base_sends_and_remembers_is_there_with_the_modules_too(plug_in, base):
    """Prototypes, masks of important weights, erasers: the names are the base's, and the modules' come on top."""
    ours, theirs = after(plug_in), after(base)
    modules = ("decoupler.", "corrector.", "auxiliary.")

    def names(state):
        return {name for name in state if not any(module in name for module in modules)}

    assert names(ours.server.weights) == set(theirs.server.weights)
    assert set(ours.server.weights) - set(theirs.server.weights)
    assert names(ours.server.memory) == set(theirs.server.memory)
    for own, other in zip(ours.memories, theirs.memories, strict=True):
        assert names(own) == set(other)
    assert set(theirs.server.memory) or any(theirs.memories)


def test_without_a_proximal_term_it_is_calibration_bit_for_bit():
    plain, prox = after(Calibration()), after(CalibratedFedProx(mu=0.0))
    for name, tensor in plain.server.weights.items():
        assert torch.equal(tensor, prox.server.weights[name]), name


def test_the_proximal_term_pulls():
    assert losses(after(CalibratedFedProx(mu=10.0)), 2)["total"] != losses(after(Calibration()), 2)["total"]
    assert isinstance(CalibratedFedProx(), FedProx)


def test_local_norms_stay_and_all_else_travels():
    task = Task(MODEL, (3, 16, 16), CLASSES, (8, 8), 1, 0, (0, 1))
    whole = set(initial_state(F2DC(), task)[1].weights)
    rest = set(initial_state(F2DCLocalNorms(), task)[1].weights)
    assert whole - rest == {name for name in whole if is_norm(name)}
    assert {"backbone.stem.norm.running_mean", "decoupler.norm1.weight", "corrector.norm1.running_var"} <= whole - rest


def test_the_released_code_is_calibration_with_three_layers():
    from fedlib.methods.released.f2dc import F2DCAsReleased

    released, named = after(F2DCAsReleased()), after(Calibration(layers=3))
    assert released.server.weights.keys() == named.server.weights.keys()
    assert all(torch.equal(w, named.server.weights[name]) for name, w in released.server.weights.items())
    assert not released.server.memory
    assert "decoupler.conv3.weight" in released.server.weights
