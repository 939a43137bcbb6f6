"""Routing among look-alikes: counted by hand, and against what the runs' own histories say."""

from __future__ import annotations

import numpy as np
import pytest
import tiny

from fedlib.analysis import look_alikes
from fedlib.checks import FedlibError
from fedlib.methods.feddrm import FedDRM
from fedlib.runs import run

OWN, ALIKE, GUESS = (
    f"router@pooled[{name}]" for name in ("its client", "its client or a look-alike", "guess among look-alikes")
)


def test_a_split_counted_by_hand():
    """Clients 0 and 2 look alike. Queries of 0 go 50, 20, 30 % to 0, 1, 2; of 1: 0, 80, 20; of 2: 40, 20, 40."""
    rates = np.array([[0.5, 0.2, 0.3], [0.0, 0.8, 0.2], [0.4, 0.2, 0.4]])
    alike = np.array([[1, 0, 1], [0, 1, 0], [1, 0, 1]], dtype=bool)
    found = look_alikes.split(rates, np.array([0.5, 0.25, 0.25]), alike)
    assert found == pytest.approx(
        {
            "its client": 0.5 * 0.5 + 0.25 * 0.8 + 0.25 * 0.4,
            "its client or a look-alike": 0.5 * 0.8 + 0.25 * 0.8 + 0.25 * 0.8,
            "guess among look-alikes": 0.5 * 0.4 + 0.25 * 0.8 + 0.25 * 0.4,
        }
    )


def routed(**settings) -> tuple[dict[str, float], dict[str, float]]:
    """What `sent` finds of a small run, and what the run's history has at its last round."""
    asked = tiny.experiment(FedDRM(), partition={"name": "dirichlet", "alpha": 0.3}, **settings)
    found = look_alikes.sent([asked])
    assert (found["key"] == asked.key()).all() and (found["clients"] == asked.clients).all()
    kept = run(asked).history().query("round == 3 and client == -1").set_index("metric")["value"]
    return found.set_index("metric")["value"].to_dict(), kept.to_dict()


def test_where_all_look_different_only_its_own_client_looks_like_it(shared_project):
    found, kept = routed(clients=3, shift={"name": "cube_grid"})
    assert found[OWN] == pytest.approx(100 * kept["router@pooled[posterior router]"])
    assert found[OWN] == pytest.approx(found[ALIKE]) == pytest.approx(found[GUESS])


def test_where_all_look_the_same_every_client_is_a_look_alike(shared_project):
    found, kept = routed(clients=4, shift=None)
    assert found[OWN] == pytest.approx(100 * kept["router@pooled[posterior router]"])
    assert found[ALIKE] == pytest.approx(100) and found[GUESS] == pytest.approx(25)


def test_the_bit_grid_repeats_after_eight_clients(shared_project):
    """Of ten clients, 0 and 8 look alike, and so do 1 and 9: only queries of these four can be sent to a look-alike."""
    settings = {"samples": 400, "clients": 10, "shift": {"name": "bit_grid", "level": "high"}}
    asked = tiny.experiment(FedDRM(), partition={"name": "iid"}, **settings)
    found = look_alikes.sent([asked]).set_index("metric")["value"]
    table = look_alikes.routing.sendings(run(asked)).query("router == 'posterior router'")
    rate = (
        table["queries"]
        / table.groupby("origin")["queries"].transform("sum")
        * table["origin"].map(dict(enumerate(asked.federation().shares)))
    )
    same = table["origin"] % 8 == table["client"] % 8
    assert found[ALIKE] == pytest.approx(100 * rate[same].sum())
    assert found[GUESS] == pytest.approx(
        100 * (rate[same] / table["origin"][same].isin([0, 1, 8, 9]).map({True: 2, False: 1})).sum()
    )


def test_the_other_router_can_be_asked(shared_project):
    asked = tiny.experiment(FedDRM(), partition={"name": "dirichlet", "alpha": 0.3})
    found = look_alikes.sent([asked], router="density router").set_index("metric")["value"]
    kept = run(asked).history().query("round == 3 and client == -1").set_index("metric")["value"]
    assert found[OWN] == pytest.approx(100 * kept["router@pooled[density router]"])


def test_an_unknown_router_is_refused_before_anything_is_trained():
    with pytest.raises(
        FedlibError, match="look_alikes: router: 'posterior' is unknown; did you mean 'posterior router'"
    ):
        look_alikes.sent([], router="posterior")
