"""Who answers visitors: against the run's own probe, and against perfect matching and a lot counted by hand."""

from __future__ import annotations

import numpy as np
import pytest
import tiny

from fedlib.analysis import matching
from fedlib.checks import FedlibError
from fedlib.methods.fedavg import FedAvg
from fedlib.methods.feroma import FEROMA
from fedlib.runs import Run, run

DRIFT = {"name": "P(X)", "severity": "low", "phases": 2, "phase_samples": 20, "few_per_class": 1}
SETTINGS = {
    "clients": 4,
    "rounds": 4,
    "drift": DRIFT,
    "validation_share": 0.3,
    "probes": ["visitors"],
    "pooled": False,
    "seed": 1,
}


@pytest.fixture(scope="module")
def mapped(shared_project) -> Run:
    return run(tiny.experiment(FEROMA(warmup=1, components=3), **SETTINGS))


def last(found: Run, metric: str) -> dict[int, float]:
    rows = found.history().query(f"round == 4 and metric == '{metric}'")
    return dict(zip(rows["client"], rows["value"], strict=True))


def test_the_nearest_client_is_the_least_distance_and_matches_as_often_as_the_probe_says(mapped: Run):
    pairs = matching.distances(mapped)
    assert len(pairs) == 16
    nearest = pairs[pairs["nearest"]].set_index("visitor")
    least = pairs.loc[pairs.groupby("visitor")["distance"].idxmin()].set_index("visitor")
    assert nearest["client"].to_dict() == least["client"].to_dict()
    right = (nearest["visits"] == nearest["holds"]).astype(float).to_dict()
    assert right == {k: value for k, value in last(mapped, "match@visitors").items() if k >= 0}


def test_clients_and_visitors_are_those_of_the_last_round(mapped: Run):
    federation = mapped.experiment.federation()
    pairs = matching.distances(mapped)
    held = [client.distribution for client in federation.at(4).clients]
    assert held != [client.distribution for client in federation.clients]  # else the test could not tell
    assert pairs.groupby("client")["holds"].first().tolist() == held
    assert pairs.groupby("visitor")["visits"].first().tolist() == [v.distribution for v in federation.visitors]


def test_with_labels_the_distances_are_those_of_whole_profiles(mapped: Run):
    labelled = run(tiny.experiment(FEROMA(warmup=1, components=3, labelled=True), **SETTINGS))
    whole, part = matching.distances(labelled)["distance"], matching.distances(mapped)["distance"]
    assert (whole > part).all()  # the same training, and more coordinates


def test_the_chosen_clients_models_answer_as_well_as_the_probe_says(mapped: Run):
    table = matching.accuracies(mapped).merge(matching.distances(mapped))
    served = table[table["nearest"]].set_index("visitor")["accuracy"].to_dict()
    assert served == pytest.approx({k: v for k, v in last(mapped, "served@visitors").items() if k >= 0})
    own = table[table["visitor"] == table["client"]].set_index("client")["accuracy"].to_dict()
    assert own == pytest.approx({k: v for k, v in last(mapped, "personal@visitors").items() if k >= 0})


def test_perfect_matching_and_a_lot_are_means_over_a_visitors_clients(mapped: Run):
    table, found = matching.accuracies(mapped), matching.references(mapped).set_index("metric")["value"]
    by_hand = [
        np.mean([row.accuracy for row in rows.itertuples() if row.visits == row.holds])
        for _, rows in table.groupby("visitor")
    ]
    assert found["right@visitors"] == pytest.approx(np.mean(by_hand))
    assert found["any@visitors"] == pytest.approx(table["accuracy"].mean())
    assert found["right@visitors"] != pytest.approx(found["any@visitors"])
    row = matching.references(mapped).iloc[0]
    assert (row["round"], row["moment"], row["client"]) == (4, "after_local", -1)


def test_runs_without_visitors_or_profiles_are_refused(shared_project):
    with pytest.raises(FedlibError, match="'digits' meet no visitors; give a run with drift"):
        matching.accuracies(run(tiny.experiment(FedAvg())))
    with pytest.raises(FedlibError, match="FedAvg has no profiles; give a run of FEROMA"):
        matching.distances(run(tiny.experiment(FedAvg(), **SETTINGS)))
    with pytest.raises(FedlibError, match="no profile in 4 rounds with warmup 4; run longer"):
        early = tiny.experiment(FEROMA(warmup=2), **SETTINGS)
        object.__setattr__(early.method, "warmup", 4)
        matching.distances(run(early))
