"""Who is told labels, under which kind of drift, and who finds somebody with its new distribution."""

from dataclasses import replace

import numpy as np
import pytest

from fedlib.analysis.drift_settings import forerunners, told
from fedlib.checks import FedlibError
from fedlib.data import vision
from fedlib.data.drift import Schedule
from fedlib.data.drifting import make_drifting
from fedlib.data.federation import make_federation


def test_feroma_is_told_labels_where_inputs_do_not_show_the_drift():
    for name in ("FEROMA", "FEROMAAsReleased"):
        spec = {"name": name, "warmup": 3}
        assert told(spec, "P(Y|X)") == {"name": name, "warmup": 3, "labelled": True}
        assert spec == {"name": name, "warmup": 3}
        for kind in ("P(X)", "P(Y)", "P(X|Y)", "domains"):
            assert told(spec, kind) == spec


def test_what_the_spec_says_stays():
    assert told({"name": "FEROMA", "labelled": False}, "P(Y|X)") == {"name": "FEROMA", "labelled": False}


def test_other_methods_have_no_such_switch():
    assert told({"name": "IFCA", "K": 4}, "P(Y|X)") == {"name": "IFCA", "K": 4}


def test_an_unknown_kind_is_refused():
    with pytest.raises(FedlibError, match=r"told: kind: 'P\(Z\)' is unknown"):
        told({"name": "FedAvg"}, "P(Z)")


def drifting(courses, rounds):
    """Four distributions; courses: a row a client, a column a phase."""
    drift = {"name": "P(X)", "phases": len(courses[0]), "phase_samples": 10}
    made = make_drifting(vision.load("digits"), len(courses), drift, rounds, seed=0, test_share=0.3)
    return replace(made, course=Schedule(np.array(courses), np.array(courses), (0,) * len(courses[0])))


def test_forerunners_had_the_new_distribution_one_phase_before():
    # Client 0 changes to 1, which client 1 had; client 1 to 2, which nobody had; then client 0 to 2, which 1 had.
    found, expected = forerunners([drifting([(0, 1, 2), (1, 2, 2)], rounds=6)])
    assert found == pytest.approx(2 / 3)
    assert expected == pytest.approx(1 / 4)
    found, expected = forerunners([drifting([(0, 1), (1, 1)], rounds=4), drifting([(0, 1), (2, 2), (2, 2)], rounds=4)])
    assert found == pytest.approx(1 / 2)
    assert expected == pytest.approx((1 / 4 + 7 / 16) / 2)


def test_a_phase_that_no_round_reaches_does_not_count():
    # With as many phases as rounds, phase 0 is not used: client 0's change to 1 is never seen.
    assert forerunners([drifting([(0, 1, 2), (2, 2, 2)], rounds=3)])[0] == 1
    with pytest.raises(FedlibError, match="nobody changes"):
        forerunners([drifting([(0, 1), (1, 1)], rounds=2)])


def test_clients_that_stand_still_have_no_forerunners():
    still = make_federation(vision.load("digits"), 3, {"name": "iid"}, None, 0, None, 0.3, 0.2)
    with pytest.raises(FedlibError, match="does not drift"):
        forerunners([still])
    with pytest.raises(FedlibError, match="nobody changes in 0"):
        forerunners([])
