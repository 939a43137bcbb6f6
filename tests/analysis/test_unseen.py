"""Visitors unlike all clients: ranks and curves by hand, and distances against FEROMA's own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import tiny
import torch

from fedlib.analysis import unseen
from fedlib.analysis.matching import last_crowd
from fedlib.checks import FedlibError
from fedlib.data import drift as drifts
from fedlib.data.drift import Distribution
from fedlib.data.federation import Samples, Visitor
from fedlib.methods.fedavg import FedAvg
from fedlib.methods.feroma import FEROMA
from fedlib.profiles import scale
from fedlib.runs import Run, run

DRIFT = {"name": "P(X)", "severity": "low", "phases": 2, "phase_samples": 40}
SETTINGS = {"clients": 4, "rounds": 3, "drift": DRIFT, "validation_share": 0.2, "probes": ["visitors"], "pooled": False}
RED = Distribution(colour=0)


@pytest.fixture(scope="module")
def mapped(shared_project) -> Run:
    return run(tiny.experiment(FEROMA(warmup=1, components=3), **SETTINGS))


def test_a_p_value_is_the_rank_among_usual_distances():
    usual = np.array([1.0, 2.0, 3.0, 4.0])
    assert unseen.p_values(np.array([0.5, 2.0, 2.5, 9.0]), usual).tolist() == [1.0, 0.8, 0.6, 0.2]
    with pytest.raises(FedlibError, match="no usual distance"):
        unseen.p_values(usual, np.array([]))


def test_p_values_of_the_usual_are_valid():
    """Of ten distances, each ranked among the nine others, as many lie at or below a level as it says, no more."""
    rng = np.random.default_rng(0)
    D = rng.normal(size=10)
    p = [unseen.p_values(D[i : i + 1], np.delete(D, i))[0] for i in range(10)]
    assert sorted(p) == pytest.approx([(k + 1) / 10 for k in range(10)])


def test_curve_and_area_by_hand():
    seen, strangers = np.array([1.0, 3.0]), np.array([2.0, 3.0, 4.0])
    alarms, detections = unseen.roc(seen, strangers)
    assert alarms.tolist() == [0, 0, 0.5, 0.5, 1]
    assert detections == pytest.approx([0, 1 / 3, 2 / 3, 1, 1])
    assert unseen.area(seen, strangers) == pytest.approx((2 + 2.5) / 6 + 0)
    assert np.trapezoid(detections, alarms) == pytest.approx(unseen.area(seen, strangers))
    with pytest.raises(FedlibError, match="2 seen and 0 unseen"):
        unseen.area(seen, np.array([]))


def test_strangers_are_the_clients_test_samples_under_another_distribution(mapped: Run):
    federation = mapped.experiment.federation()
    plain = unseen.strangers(federation, Distribution())
    red = unseen.strangers(federation, RED)
    for k, (visitor, other) in enumerate(zip(plain, red, strict=True)):
        assert (visitor.index, visitor.distribution, len(visitor.few)) == (k, -1, 0)
        held = federation.at(3).clients[k]
        there, _ = drifts.apply(
            visitor.samples.images, visitor.samples.labels, federation.distributions[held.distribution]
        )
        assert torch.equal(there, held.test.images)
        assert (other.samples.images[:, 0] == 255).all()
        assert torch.equal(other.samples.images[:, 1:], visitor.samples.images[:, 1:])
        assert torch.equal(other.samples.labels, held.test.labels)
    two = unseen.strangers(federation, Distribution(classes=(1, 2)))
    assert set(torch.cat([visitor.samples.labels for visitor in two]).tolist()) == {1, 2}


def test_distributions_without_a_client_are_those_of_the_bank_that_nobody_holds(mapped: Run):
    federation = mapped.experiment.federation()
    held = {client.distribution for client in federation.at(3).clients}
    absent = unseen.without_client(federation)
    assert absent == [one for d, one in enumerate(federation.distributions) if d not in held]
    with pytest.raises(FedlibError, match="does not drift"):
        unseen.without_client(tiny.federation())
    with pytest.raises(FedlibError, match="does not drift"):
        unseen.strangers(tiny.federation(), RED)


def test_other_names_for_the_same_images_are_invisible(mapped: Run):
    found = unseen.met(mapped, {"relabelled": [Distribution(permutation=(1, 2, 3, 4, 5, 6, 7, 8, 9, 0))]})
    seen, renamed = (found[found["kind"] == kind] for kind in (unseen.SEEN, "relabelled"))
    assert renamed["distance"].tolist() == seen["distance"].tolist()
    assert unseen.areas(found)["area"].tolist() == [0.5]
    assert renamed["nearest"].tolist() != seen["nearest"].tolist()
    with pytest.raises(FedlibError, match="visitor 0 has no sample that is classes 12"):
        unseen.met(mapped, {"none": [Distribution(classes=(12,))]})


def test_strangers_of_the_rest_of_the_bank(mapped: Run):
    found, federation = unseen.met_rest(mapped), mapped.experiment.federation()
    rest = found[found["kind"] == unseen.REST]
    expected = [one.label for one in unseen.without_client(federation) for _ in range(4)]
    assert rest["label"].tolist() == expected


def test_distributions_are_read_from_parameters():
    found = unseen.described({"x": [{"colour": 1}, {"rotation": 2, "affected": [0, 1]}]})
    assert found == {"x": [Distribution(colour=1), Distribution(rotation=2, affected=(0, 1))]}
    with pytest.raises(FedlibError, match="strangers: x"):
        unseen.described({"x": [{"color": 1}]})


def test_usual_distances_are_those_among_clients(mapped: Run):
    crowd = last_crowd(mapped)
    found = unseen.usual_distances(crowd)
    kept = crowd.server.memory
    own = scale(kept["d"], kept["low"], kept["span"], 3)[:, :6].numpy()
    among = [min(np.linalg.norm(own[k] - own[j]) for j in range(4) if j != k) for k in range(4)]
    assert found["leave one out"] == pytest.approx(among)
    assert len(found["fresh samples"]) == 4 * 4  # 32 training and 8 validation samples each
    method = mapped.experiment.method
    assert isinstance(method, FEROMA)
    for k, client in enumerate(crowd.federation.clients):
        fresh = Samples(client.train.images[8:16], client.train.labels[8:16])
        D = method.distances_to(crowd, Visitor(k, fresh, replace(fresh, images=fresh.images[:0]), -1))
        assert found["fresh samples"][4 * k + 1] == pytest.approx(float(D.min()))


def test_each_visitor_is_ranked_and_answered(mapped: Run):
    found = unseen.met(mapped, {"colour": [RED, Distribution(colour=1)]})
    assert found["kind"].tolist() == ["seen"] * 4 + ["colour"] * 8
    assert set(found["severity"]) == {"low"}
    assert found["label"].tolist()[4:] == ["0°, red"] * 4 + ["0°, green"] * 4
    crowd = last_crowd(mapped)
    usual = unseen.usual_distances(crowd)["fresh samples"]
    assert found["fresh samples"].tolist() == unseen.p_values(found["distance"].to_numpy(), usual).tolist()
    history = mapped.history().query("round == 3 and metric == 'served@visitors' and client >= 0")
    assert found["nearest"][:4].tolist() == pytest.approx((100 * history["value"]).tolist(), abs=1e-3)
    method = mapped.experiment.method
    assert isinstance(method, FEROMA)
    first = unseen.changed(crowd.federation.visitors[0], RED)
    assert (first.samples.images[:, 0] == 255).all() and first.distribution == -1
    assert torch.equal(first.samples.images[:, 1:], crowd.federation.visitors[0].samples.images[:, 1:])
    cut = replace(first, samples=Samples(first.samples.images[:8], first.samples.labels[:8]))
    assert found["distance"][4] == pytest.approx(float(method.distances_to(crowd, cut).min()))


def test_only_runs_with_profiles_have_distances(shared_project):
    plain = run(tiny.experiment(FedAvg(), **SETTINGS))
    with pytest.raises(FedlibError, match="FedAvg has no profiles"):
        unseen.usual_distances(last_crowd(plain))


def test_alarms_and_areas_by_seed():
    p = [0.05, 0.2, 0.3, 0.1, 0.05, 0.9]
    rows = {"kind": ["seen", "seen", "x", "x", "seen", "x"], "seed": [0, 0, 0, 0, 1, 1]}
    found = pd.DataFrame(
        rows | {"distance": [1.0, 2.0, 1.5, 9.0, 1.0, 0.0], "leave one out": p, "fresh samples": 0.2, "severity": "low"}
    )
    shares = unseen.alarms(found, 0.1).set_index(["kind", "seed"])
    assert shares["leave one out"].to_dict() == {("seen", 0): 50, ("x", 0): 50, ("seen", 1): 100, ("x", 1): 0}
    assert (shares["fresh samples"] == 0).all()
    assert unseen.areas(found).to_dict("records") == [
        {"severity": "low", "kind": "x", "seed": 0, "area": 0.75},
        {"severity": "low", "kind": "x", "seed": 1, "area": 0.0},
    ]
    with pytest.raises(FedlibError, match="alarms: level"):
        unseen.alarms(found, 1.0)
