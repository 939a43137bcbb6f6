"""FedMTL against the minimum of its objective, and its relations against their formulas."""

from __future__ import annotations

import numpy as np
import pytest
import tiny
import torch
from personal_tasks import QuadraticMTL, biases, quadratic, start
from scipy.linalg import sqrtm
from torch import Tensor

from fedlib.methods.fedmtl import FedMTL, learned_relations, mean_relations
from fedlib.methods.method import Method, Server, Upload


@pytest.mark.parametrize("lam", [0.3, 1.9])
def test_fedmtl_ends_at_the_minimum_of_its_objective(lam: float):
    """(A + 2 lam Omega) w = A c, A the diagonal of the curvatures: a linear system for each coordinate."""
    a, c, m = (1.0, 2.0, 1.5), np.array([1.0, 5.0, -2.0]), 3
    method = QuadraticMTL(centres=tuple(c), curvatures=a, lam=lam)
    w = np.linalg.solve(np.diag(a) + 2 * lam * (np.eye(m) - 1 / m), np.array(a) * c)
    got = biases(quadratic(method, 55, (30, 10, 20))[-1])
    np.testing.assert_allclose(got, w[:, None] * np.ones(10), rtol=1e-4, atol=1e-4)


def test_a_large_lam_makes_all_models_one_which_seeks_the_minimum_of_the_sum():
    """Not of the mean weighted by n_i: 3, not 2. Steps at lr = 1 / (1 + 2 lam) are exact: lr (c_i + 2 lam w_mean).

    So w_2 - w_1 = 4 lr at once, and two clients do not swap models; w_mean - 3 shrinks by 2 lam lr in each round.
    """
    lam = 500.0
    got = biases(quadratic(QuadraticMTL(lam=lam), 6, lr=1 / (1 + 2 * lam))[-1])
    mean = 3 + (start((30, 10))[0] - 3) * (2 * lam / (1 + 2 * lam)) ** 6
    np.testing.assert_allclose(got.mean(0), mean, atol=1e-5)
    np.testing.assert_allclose(got[1] - got[0], 4 / (1 + 2 * lam), atol=1e-5)


def known_server(method: Method, models: list[Tensor]) -> Server:
    """A server that has been sent these models, one tensor "w" each, by clients 0, 1, …."""
    fed = tiny.federation((20,) * (len(models) + 1))
    empty = Server({}, memory=method.remember(tiny.task(fed)))
    uploads = [Upload(i, {}, {}, 20, {}, {"w": w}) for i, w in enumerate(models)]
    return method.aggregate(empty, uploads)


@pytest.mark.parametrize("relations", ["mean", "learned"])
def test_the_clients_parts_have_the_objectives_gradient_and_bound_it(relations: str):
    """2 q (v_i - u_i) = d tr(W Omega W') / d w_i at W = V, and q sum_i ||w_i - u_i||^2 rises faster everywhere."""
    draw = torch.Generator().manual_seed(0)
    V = torch.randn(4, 7, generator=draw) * torch.tensor([1.0, 1.0, 5.0, 0.2])[:, None]
    method = FedMTL(relations=relations)
    server = known_server(method, list(V))
    omega = server.memory["omega"][:4, :4]
    assert not server.memory["omega"][4].any() and method.broadcast(server, 4, {}) == {}
    messages = [method.broadcast(server, i, {}) for i in range(4)]
    U, q = torch.stack([message["w"] for message in messages]).double(), float(messages[0]["q"])

    def objective(W: Tensor) -> Tensor:
        return (omega * (W @ W.T)).sum()

    W = V.double().requires_grad_()
    (slope,) = torch.autograd.grad(objective(W), W)
    torch.testing.assert_close(2 * q * (V.double() - U), slope, rtol=1e-4, atol=1e-4)
    constant = objective(V.double()) - q * (V - U).square().sum()
    for scale in (0.1, 1.0, 10.0):
        other = V.double() + scale * torch.randn(4, 7, generator=draw)
        assert objective(other) <= constant + q * (other - U).square().sum() + 1e-3 * scale**2
    worst = V.double() + torch.linalg.eigh(omega)[1][:, -1:] * torch.ones(1, 7)
    assert float(objective(worst)) == pytest.approx(float(constant + q * (worst - U).square().sum()), rel=1e-4)


def test_mean_relations_draw_each_model_to_the_mean():
    V = [torch.tensor([1.0, 2.0]), torch.tensor([3.0, -4.0]), torch.tensor([5.0, 5.0])]
    server = known_server(FedMTL(), V)
    for i in range(3):
        message = FedMTL().broadcast(server, i, {})
        torch.testing.assert_close(message["w"], torch.tensor([3.0, 1.0]))
        assert float(message["q"]) == pytest.approx(1.0)
    assert FedMTL().broadcast(known_server(FedMTL(), V[:1]), 0, {}) == {}


def test_learned_relations_are_the_formula_and_wherever_the_models_are_measured_from():
    W, s = np.random.default_rng(0).normal(size=(9, 5)) * np.array([1.0, 1.0, 3.0, 0.1, 0.5]), 0.2
    C = np.eye(5) - 0.2
    R = np.real(sqrtm(C @ W.T @ W @ C))
    expected = C @ np.linalg.inv((1 - s) * 4 * R / np.trace(R) + s * np.eye(5)) @ C
    for origin in (0.0, 7.0):
        G = torch.from_numpy((W - origin).T @ (W - origin))
        np.testing.assert_allclose(learned_relations(G, s).numpy(), expected, atol=1e-9)


def test_learned_relations_are_the_mean_ones_where_all_differences_are_alike_and_tie_models_that_are_near():
    eye = torch.eye(4, dtype=torch.float64)
    torch.testing.assert_close(learned_relations(3 * eye, 0.1), mean_relations(4))
    torch.testing.assert_close(learned_relations(eye[:2, :2], 0.1), mean_relations(2))
    torch.testing.assert_close(learned_relations(0 * eye, 0.25), 4 * mean_relations(4))
    W = torch.tensor([[0.0, 0.1, 5.0, -4.0], [0.0, 0.0, 1.0, 6.0]], dtype=torch.float64)
    omega = learned_relations(W.T @ W, 0.1)
    assert omega[0, 1] < 3 * omega[0, 2] < 0
