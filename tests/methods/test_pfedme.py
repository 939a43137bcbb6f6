"""pFedMe, and what was released of it, against the fixed points of quadratics, identities and steps by hand."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import tiny
import torch
import torch.nn.functional as F
from personal_tasks import quadratic
from test_methods import LOCAL, Quadratic, bias_after, snapshots

from fedlib.checks import FedlibError
from fedlib.methods import make
from fedlib.methods.fedavg import FedAvg
from fedlib.methods.local_only import LocalOnly
from fedlib.methods.method import Server, initial_state
from fedlib.methods.pfedme import PFedMe
from fedlib.methods.released.feroma_baselines import PFedMeInFedRC
from fedlib.models.network import is_statistic
from fedlib.rounds import Plan
from fedlib.streams import torch_stream
from fedlib.training import Local, batches


@dataclass(frozen=True)
class QuadraticPFedMe(PFedMe, Quadratic):
    """||v - c_k||^2 / 2 + (lam / 2) ||v - w_k||^2, whose minimiser is (c_k + lam w_k) / (1 + lam)."""


@dataclass(frozen=True)
class QuadraticInFedRC(PFedMeInFedRC, Quadratic):
    """||w - c_k||^2 / 2, and the leash to theta."""


EXACT = {"lam": 3.0, "inner": 1, "inner_lr": 0.25}
"""One step at rate 1 / (1 + lam) is the minimiser."""


def is_all(got: torch.Tensor, value: float) -> None:
    torch.testing.assert_close(got, torch.full((10,), value), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("search", [EXACT, {"lam": 3.0, "inner": 10, "inner_lr": 0.2}])
def test_theta_ends_at_the_mean_of_the_optima_and_v_between_theta_and_its_own(search: dict):
    """theta = 3/4 1 + 1/4 5 = 2; v_k = (c_k + lam theta) / (1 + lam)."""
    method = QuadraticPFedMe(**search)
    now = quadratic(method, 30, lr=0.5)[-1]
    is_all(now.server.weights["head.bias"], 2.0)
    for k, c in enumerate((1.0, 5.0)):
        is_all(method.personal_model(now.server, k, now.memories[k])["head.bias"], (c + 3 * 2.0) / 4)


def test_w_goes_towards_v_in_every_step():
    """E = 2: each step leaves q = 1 - eta lam / (1 + lam) of w_k - c_k; v_k belongs to w_k before the last step."""
    task = tiny.task(tiny.federation((30, 10), side=1), model="linear")
    theta, q = initial_state(FedAvg(), task)[1].weights["head.bias"], 1 - 0.2 * 3 / 4
    torch.testing.assert_close(bias_after(QuadraticPFedMe(**EXACT), 1, 2, lr=0.2), 2 + q**2 * (theta - 2))
    local = Local(steps=2, batch_size=30, momentum=0.0, weight_decay=0.0, crop=False)
    fed = tiny.federation((30, 10), side=1)
    now = tiny.train(QuadraticPFedMe(**EXACT), fed, Plan(1, 0.2), local, model="linear")
    for memory, c in zip(now.memories, (1.0, 5.0), strict=True):
        torch.testing.assert_close(memory["head.bias"], (c + 3 * (c + q * (theta - c))) / 4)


@pytest.mark.parametrize("inner_lr", [None, 0.2])
def test_two_rounds_by_hand(inner_lr: float | None):
    """The search starts at theta in a round's first step, at the last v later; weight decay is in it, no momentum."""
    lam, lr, decay, inner = 2.0, 0.3, 0.1, 3
    fed = tiny.federation((30,), side=2, classes=3)
    local = Local(steps=3, batch_size=20, momentum=0.9, weight_decay=decay, crop=False)
    w = [initial_state(FedAvg(), tiny.task(fed, model="linear"))[1].weights[n] for n in ("head.weight", "head.bias")]
    for t in (1, 2):
        v = [tensor.clone() for tensor in w]
        for batch in batches(fed.clients[0].train, local, 0, torch_stream(0, "client", t, 0)):
            for _ in range(inner):
                at = [tensor.clone().requires_grad_() for tensor in v]
                slopes = torch.autograd.grad(F.cross_entropy(F.linear(batch.x.flatten(1), *at), batch.y), at)
                steps = [g + decay * vj + lam * (vj - wj) for g, vj, wj in zip(slopes, v, w, strict=True)]
                v = [vj - (inner_lr or lr) * step for vj, step in zip(v, steps, strict=True)]
            w = [wj - lr * lam * (wj - vj) for wj, vj in zip(w, v, strict=True)]
    method = PFedMe(lam=lam, inner=inner, inner_lr=inner_lr)
    now = tiny.train(method, fed, Plan(2, lr, schedule="constant"), local, model="linear")
    for k, name in enumerate(("head.weight", "head.bias")):
        torch.testing.assert_close(now.server.weights[name], w[k], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(now.memories[0][name], v[k], rtol=1e-4, atol=1e-5)


def test_one_search_step_at_rate_1_over_lam_is_fedavg_of_one_step():
    """v = w - g / lam, so w <- w - eta g."""
    fed, local = tiny.federation((40, 24)), Local(steps=1, batch_size=16, momentum=0.0, weight_decay=0.0, crop=False)
    method = PFedMe(lam=8.0, inner=1, inner_lr=1 / 8)
    got, plain = (tiny.train(m, fed, Plan(3, 0.05), local).server.weights for m in (method, FedAvg()))
    torch.testing.assert_close(got, plain, rtol=1e-4, atol=1e-6)


def test_beta_is_how_far_theta_goes_and_statistics_go_all_the_way():
    fed, local = tiny.federation((8, 6), test=1), Local(steps=1, batch_size=4, crop=False)
    half, whole = (
        tiny.train(PFedMe(beta=beta), fed, Plan(1, 0.02, pooled=False), local, model="resnet10").server.weights
        for beta in (0.5, 1.0)
    )
    start = initial_state(FedAvg(), tiny.task(fed, model="resnet10"))[1].weights
    for name, tensor in half.items():
        expected = whole[name] if is_statistic(name) else (start[name] + whole[name]) / 2
        torch.testing.assert_close(tensor, expected, rtol=1e-4, atol=1e-6)
        assert name.endswith("running_mean") <= (not torch.equal(tensor, start[name]))


def test_rates_that_diverge_are_refused():
    assert make({"name": "PFedMe", "inner_lr": 0.13}).inner_lr == 0.13
    with pytest.raises(FedlibError, match=r"PFedMe.inner_lr: 0.2 times PFedMe.lam = 15 is 3, .* below 0.133333"):
        make({"name": "PFedMe", "inner_lr": 0.2})
    with pytest.raises(FedlibError, match=r"^lr: 0.2 times PFedMe.lam = 15 is 3, "):
        tiny.experiment(PFedMe(), lr=0.2)


def test_who_has_never_taken_part_predicts_with_theta_and_then_with_v():
    method, plan = PFedMe(), Plan(2, 0.05, joins={1: 2})
    (theta, memories), (later, after) = snapshots(method, tiny.federation((40, 24)), plan)
    assert memories[1] == {} and method.personal_model(Server(theta, 1), 1, {}) is theta
    assert tiny.same(method.personal_model(Server(later, 2), 1, after[1]), after[1])
    assert not tiny.same(after[1], later)


def test_the_released_variant_without_its_leash_is_local_training_bit_for_bit():
    fed, plan = tiny.federation((40, 24, 33)), Plan(3, 0.05, participation=0.7, evaluate_every=1)
    got, alone, tied = (tiny.train(m, fed, plan, LOCAL) for m in (PFedMeInFedRC(), LocalOnly(), PFedMeInFedRC(mu=0.5)))
    assert all(map(tiny.same, got.memories, alone.memories))
    mine, theirs = ([row for row in now.history if row.metric == "personal@local"] for now in (got, alone))
    assert mine == theirs and len(mine) > 3
    assert not any(map(tiny.same, tied.memories, alone.memories))


def test_the_released_variants_leash_holds_w_near_theta_and_theta_is_their_mean():
    """w_k = (c_k + mu theta) / (1 + mu) where nothing moves, so theta = 2."""
    method = QuadraticInFedRC(mu=1.0)
    now = quadratic(method, 60)[-1]
    is_all(now.server.weights["head.bias"], 2.0)
    for k, c in enumerate((1.0, 5.0)):
        is_all(method.personal_model(now.server, k, now.memories[k])["head.bias"], (c + 2.0) / 2)
