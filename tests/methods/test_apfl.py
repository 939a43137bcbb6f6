"""APFL and what was released of it against identities, each client's optimum and steps by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import tiny
import torch
import torch.nn.functional as F
from personal_tasks import name_of, quadratic
from test_methods import LOCAL, Quadratic, bias_after, snapshots
from torch import Tensor

from fedlib.data.federation import Federation
from fedlib.methods.apfl import APFL
from fedlib.methods.fedavg import FedAvg
from fedlib.methods.local_only import LocalOnly
from fedlib.methods.method import Method, Server, initial_state
from fedlib.methods.released.fedfew_personal import APFLAsReleased
from fedlib.rounds import Plan
from fedlib.streams import torch_stream
from fedlib.training import Local, batches


@dataclass(frozen=True)
class QuadraticAPFL(APFL, Quadratic):
    """a_i ||w - c_i||^2 / 2 at w and at the mixture."""


@pytest.mark.parametrize("method", [APFL(), APFL(mixing=0.0, adaptive=False), APFL(mixing=0.9, mixing_lr=5.0)])
def test_apfls_shared_model_is_fedavgs_bit_for_bit(method: APFL):
    fed, plan = tiny.federation((40, 24)), Plan(3, 0.05, evaluate_every=1)
    got, plain = (tiny.train(m, fed, plan, LOCAL) for m in (method, FedAvg()))
    assert tiny.same(got.server.weights, plain.server.weights)
    mine, theirs = ([row for row in now.history if row.metric == "personal@local"] for now in (got, plain))
    assert (mine == theirs) == (method.mixing == 0.0)
    for i, memory in enumerate(got.memories):
        own = method.personal_model(got.server, i, memory)
        assert tiny.same(own, plain.server.weights) == (method.mixing == 0.0)


@pytest.mark.parametrize("model", ["small_cnn", "resnet10"])
def test_apfl_of_its_own_model_alone_is_local_training_and_shares_no_statistics(model: str):
    fed, local = tiny.federation((8, 6), test=1), Local(steps=1, batch_size=4, crop=False)
    plan = Plan(2, 0.05, pooled=False)
    method = APFL(mixing=1.0, adaptive=False)
    got, alone, plain = (tiny.train(m, fed, plan, local, model=model) for m in (method, LocalOnly(), FedAvg()))
    assert tiny.same(got.server.weights, plain.server.weights)
    for i in (0, 1):
        assert tiny.same(method.personal_model(got.server, i, got.memories[i]), alone.memories[i])


def test_apfls_mixtures_end_at_each_clients_optimum():
    """a v_i + (1 - a) theta = c_i, whatever theta: here FedAvg's 2."""
    method, plain = QuadraticAPFL(mixing=0.5, adaptive=False), Quadratic()
    now = quadratic(method, 45, lr=1.0)[-1]
    torch.testing.assert_close(now.server.weights["head.bias"], bias_after(plain, 45, 1, lr=1.0))
    for i, c in enumerate((1.0, 5.0)):
        own = method.personal_model(now.server, i, now.memories[i])["head.bias"]
        torch.testing.assert_close(own, torch.full((10,), c), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(now.memories[i]["v/head.bias"], torch.full((10,), 2 * c - 2.0), rtol=1e-4, atol=1e-4)


PLAIN = Local(steps=3, batch_size=20, momentum=0.0, weight_decay=0.0, crop=False)
Regression = tuple[Tensor, Tensor]


def regression(fed: Federation, steps: Callable[[Regression, Regression, Tensor, Tensor, Tensor], Tensor], a: float):
    """Two rounds of client 0 alone, softmax regression: (w, v, a) at the end; `steps` makes one and returns a."""
    task = tiny.task(fed, model="linear")
    theta = initial_state(FedAvg(), task)[1].weights
    w, v = ([theta[name].clone() for name in ("head.weight", "head.bias")] for _ in range(2))
    mixing = torch.tensor(a)
    for t in (1, 2):
        for batch in batches(fed.clients[0].train, PLAIN, 0, torch_stream(0, "client", t, 0)):
            mixing = steps(tuple(w), tuple(v), mixing, batch.x.flatten(1), batch.y)
    return w, v, mixing


def loss_of(weights: tuple[Tensor, ...], x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(F.linear(x, *weights), y)


@pytest.mark.parametrize("mixing_lr", [None, 2.0])
def test_apfls_steps_by_hand(mixing_lr: float | None):
    """The gradients of F(a v + (1 - a) w) by v and by a, and of F(w) by w, all at the values before the step."""
    fed, lr = tiny.federation((30,), side=2, classes=3), 0.5

    def step(w, v, a, x, y) -> Tensor:
        ws, vs, at = ([t.clone().requires_grad_() for t in group] for group in (w, v, (a,)))
        by_w = torch.autograd.grad(loss_of(tuple(ws), x, y), ws)
        vbar = tuple(at[0] * vj + (1 - at[0]) * wj.detach() for vj, wj in zip(vs, ws, strict=True))
        *by_v, by_a = torch.autograd.grad(loss_of(vbar, x, y), [*vs, at[0]])
        for tensor, slope in zip((*w, *v), (*by_w, *by_v), strict=True):
            tensor.sub_(lr * slope)
        return (a - (lr if mixing_lr is None else mixing_lr) * by_a).clamp(0, 1)

    w, v, a = regression(fed, step, 0.4)
    plan = Plan(2, lr, schedule="constant")
    now = tiny.train(APFL(mixing=0.4, mixing_lr=mixing_lr), fed, plan, PLAIN, model="linear")
    for k, name in enumerate(("head.weight", "head.bias")):
        torch.testing.assert_close(now.server.weights[name], w[k], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(now.memories[0][f"v/{name}"], v[k], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(now.memories[0]["mixing"], a, rtol=1e-4, atol=1e-5)
    assert abs(float(a) - 0.4) > 1e-3 and not torch.allclose(w[0], v[0], atol=1e-2)


def test_released_apfl_by_hand():
    """v's gradient is at v; a follows with v - w after the steps and gradients before them; v ends as the mixture."""
    fed, lr, done = tiny.federation((30,), side=2, classes=3), 0.5, [0]

    def step(w, v, a, x, y) -> Tensor:
        slopes = []
        for group in (w, v):
            at = [t.clone().requires_grad_() for t in group]
            slopes.append(torch.autograd.grad(loss_of(tuple(at), x, y), at))
            for tensor, slope in zip(group, slopes[-1], strict=True):
                tensor.sub_(lr * slope)
        mixed = [a * q + (1 - a) * p for p, q in zip(*slopes, strict=True)]
        by_a = sum(((vj - wj) * g).sum() for vj, wj, g in zip(v, w, mixed, strict=True)) + 0.02 * a
        a = (a - lr * by_a).clamp(0, 1)
        done[0] += 1
        if done[0] % 3 == 0:
            for vj, wj in zip(v, w, strict=True):
                vj.copy_(a * vj + (1 - a) * wj)
        return a

    w, v, a = regression(fed, step, 1.0)
    plan = Plan(2, lr, schedule="constant")
    method = APFLAsReleased()
    now = tiny.train(method, fed, plan, PLAIN, model="linear")
    own = method.personal_model(now.server, 0, now.memories[0])
    for k, name in enumerate(("head.weight", "head.bias")):
        torch.testing.assert_close(now.server.weights[name], w[k], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(own[name], v[k], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(now.memories[0]["mixing"], a, rtol=1e-4, atol=1e-5)
    assert 0 < float(a) < 0.97


@pytest.mark.parametrize("method", [APFL(), APFLAsReleased()], ids=name_of)
def test_who_has_never_taken_part_predicts_with_the_shared_model(method: Method):
    seen = snapshots(method, tiny.federation((40, 24)), Plan(2, 0.05, joins={1: 2}))
    (theta, memories), (later, after) = seen
    assert memories[1] == {} and method.personal_model(Server(theta, 1), 1, {}) is theta
    assert not tiny.same(method.personal_model(Server(later, 2), 1, after[1]), later)
