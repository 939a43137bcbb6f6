"""What IFCA, CFL and FedSoft have in common: one cluster is FedAvg, and wrong values are refused."""

from __future__ import annotations

import pytest
import tiny
from personal_tasks import PERSONAL, rows
from test_methods import LOCAL, PLAN

from fedlib.methods.cfl import CFL
from fedlib.methods.fedavg import FedAvg
from fedlib.methods.ifca import IFCA
from fedlib.methods.method import Method
from fedlib.methods.several import models


@pytest.mark.parametrize("method", [IFCA(K=1, selection="train"), CFL(eps1=0.0, eps2=0.0)])
def test_with_one_cluster_it_is_fedavg_bit_for_bit(method: Method):
    fed = tiny.federation()
    got, plain = (tiny.train(m, fed, PLAN, LOCAL) for m in (method, FedAvg()))
    (theta,) = models(got.server.weights)
    assert tiny.same(theta, plain.server.weights)
    assert rows(got, *PERSONAL) == rows(plain, *PERSONAL) and got.memories == plain.memories
    assert got.server.memory["membership"].tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"name": "IFCA", "K": 0}, "IFCA.K: 0 is out of range; give a whole number at least 1"),
        ({"name": "IFCA", "init": "random"}, "IFCA.init: 'random' is unknown"),
        ({"name": "CFL", "eps1": -0.1}, "CFL.eps1: -0.1 is out of range; give a number at least 0.0"),
        ({"name": "CFL", "eps2": "1.6"}, "CFL.eps2: '1.6' is str, not a number"),
        ({"name": "CFL", "gamma_max": 1.0}, "CFL.gamma_max: 1.0 is out of range"),
        ({"name": "FedSoft", "tau": 0}, "FedSoft.tau: 0 is out of range; give a whole number at least 1"),
        ({"name": "FedSoft", "sigma": 2.0}, "FedSoft.sigma: 2.0 is out of range"),
        ({"name": "FedSoft", "lam": -1.0}, "FedSoft.lam: -1.0 is out of range"),
    ],
)
def test_wrong_values_are_refused(spec: dict[str, object], message: str):
    assert message in tiny.refusal(spec)
