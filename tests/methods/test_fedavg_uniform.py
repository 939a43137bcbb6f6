"""FedAvgUniform against FedAvg, plain means, and the minimum of two clients' quadratics."""

from __future__ import annotations

from dataclasses import dataclass

import tiny
import torch
from domain_tasks import LOCAL, PLAN
from test_methods import Quadratic, bias_after

from fedlib.methods.fedavg import FedAvg
from fedlib.methods.fedavg_uniform import FedAvgUniform
from fedlib.methods.method import Server, Upload


def test_uniform_weights_are_fedavg_s_where_all_clients_have_as_many_samples():
    fed = tiny.federation((24, 24, 24))
    assert tiny.same_snapshots(*(tiny.train(m, fed, PLAN, LOCAL) for m in (FedAvgUniform(), FedAvg())))


def test_uniform_is_the_plain_mean_whatever_the_sizes():
    sent = [
        Upload(i, {"w": torch.tensor([v]), "count": torch.tensor(4)}, {}, n, {})
        for i, (v, n) in enumerate([(1.0, 90), (5.0, 9), (12.0, 1)])
    ]
    start = Server({"w": torch.zeros(1), "count": torch.tensor(0)}, 6, {"kept": torch.ones(1)})
    got = FedAvgUniform().aggregate(start, sent)
    assert got.weights == {"w": torch.tensor([6.0]), "count": torch.tensor(4)}
    assert (got.round, got.memory) == (7, start.memory)


@dataclass(frozen=True)
class UniformQuadratic(FedAvgUniform, Quadratic):
    """||w - c_i||^2 / 2, c = (1, 5)."""


def test_uniform_finds_the_middle_of_two_clients_of_30_and_10_samples():
    """FedAvg finds 2, a quarter of the way from 1 to 5."""
    torch.testing.assert_close(bias_after(UniformQuadratic(), 60, 1), torch.full((10,), 3.0), rtol=1e-6, atol=1e-6)
