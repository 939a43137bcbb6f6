"""Experiments under drift: what is refused, what the key holds, and resuming in the middle of a phase."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import tiny

from fedlib.checks import FedlibError
from fedlib.engines import Serial
from fedlib.methods import make
from fedlib.methods.fedavg import FedAvg
from fedlib.rounds import Snapshot, federate

DRIFT: dict[str, Any] = {"name": "P(X)", "severity": "low", "phases": 3, "phase_samples": 30}
UNDER = {"samples": None, "drift": DRIFT, "rounds": 6, "validation_share": 0.2}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"drift": {"name": "P(Z)"}}, "P(Z)"),
        ({"drift": {"name": "P(X)", "phases": 7}}, "phases"),
        ({"drift": {"name": "P(X)", "severty": "low"}}, "severty"),
        ({"partition": {"name": "dirichlet", "alpha": 0.3}}, "drift divides the samples itself; leave one out"),
        ({"shift": {"name": "bit_grid"}}, "drift decides how images look; leave one out"),
        ({"drift": None, "probes": ["visitors"]}, "visitors are met under drift; give drift, or leave the probe out"),
        ({"probes": ["mapping"]}, "mapping tells FEROMA's weights, but FedAvg has none; leave it out"),
        (
            {"method": make({"name": "FEROMA", "labelled": True})},
            "labelled: true, but visitors give no labelled samples",
        ),
        ({"probes": ["adapted"]}, "probes: adapted trains on at the last round's rate, near zero on a cosine"),
        ({"method": make("FEROMA"), "validation_share": 0.0}, "FEROMA needs validation samples"),
        ({"method": make({"name": "FEROMA", "warmup": 6})}, "FEROMA.warmup: 6"),
    ],
)
def test_what_does_not_go_together_is_refused(settings: dict[str, Any], message: str):
    with pytest.raises(FedlibError) as caught:
        tiny.experiment(**UNDER | settings)
    assert message in str(caught.value)


def test_too_few_samples_for_a_private_profile_are_refused_before_the_first_round():
    drift, trained = DRIFT | {"phase_samples": 5}, []
    method = make({"name": "FEROMA", "warmup": 1, "epsilon": 1.0})
    asked = tiny.experiment(**UNDER | {"drift": drift, "method": method})
    federation = asked.federation()
    assert federation.fewest_validation == 1
    with pytest.raises(FedlibError, match=r"FEROMA.epsilon: a private profile needs two samples, .* has 1; raise"):
        federate(
            method, federation, asked.task(federation), asked.local, asked.plan, Serial(), after_round=trained.append
        )
    assert not trained


def test_drift_is_in_the_key_with_its_code_and_names_the_run():
    asked = tiny.experiment(**UNDER)
    changes = [{"severity": "high"}, {"phases": 2}, {"phase_samples": 31}, {"name": "P(Y|X)"}]
    keys = {tiny.experiment(**UNDER | {"drift": DRIFT | change}).key() for change in changes}
    assert len(keys | {asked.key()}) == 5
    assert {"fedlib.data.drift", "fedlib.data.drifting"} <= set(asked.sources())
    assert asked.columns()["drift"] == "P(X)-low-3-30" and tiny.experiment().columns()["drift"] == "none"


def test_one_federation_serves_all_methods_of_a_seed():
    first, second = (tiny.experiment(make(name), **UNDER).federation() for name in ("FedAvg", "FEROMA"))
    assert first is second
    assert tiny.experiment(**UNDER | {"seed": 1}).federation() is not first


@pytest.mark.parametrize("spec", [{"name": "FEROMA", "warmup": 2}, {"name": "FedDrift"}, {"name": "FedAvg"}])
def test_stopped_after_any_round_and_resumed_is_never_stopped(spec: dict[str, Any]):
    asked = tiny.experiment(make(spec), **UNDER, probes=("visitors",), evaluate_every=1)
    fed = asked.federation()

    def go(**options: Any) -> Snapshot:
        return federate(asked.method, fed, asked.task(fed), asked.local, asked.plan, Serial(), **options)

    seen: list[Snapshot] = []
    whole = go(after_round=lambda now: seen.append(copy.deepcopy(now)))
    for t in (1, 3, 4):
        assert tiny.same_snapshots(go(resume=copy.deepcopy(seen[t - 1])), whole)


def test_phases_begin_by_the_paper_s_rule_and_concept_drift_has_labelled_visitors():
    """Six rounds, three phases: they begin in rounds 0, 2 and 4. Under P(Y|X) visitor k has client k's last labels."""
    asked = tiny.experiment(FedAvg(), **UNDER | {"drift": DRIFT | {"name": "P(Y|X)", "few_per_class": 1}})
    fed = asked.federation()
    held = [[client.distribution for client in fed.at(t).clients] for t in range(1, 7)]
    assert held[1] == held[2] and held[3] == held[4] == held[5] and held[0] != held[3]
    assert len(fed.visitors) == 3 and all(len(visitor.few) for visitor in fed.visitors)
    assert [visitor.distribution for visitor in fed.visitors] == held[5]
