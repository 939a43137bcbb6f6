"""FedSoft against identities, its gradient and fixed point, and planted groups."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import tiny
import torch
import torch.nn.functional as F
from personal_tasks import DESCENT, GROUPS, PERSONAL, grouped, planted, rows, work_of
from test_methods import LOCAL, PLAN, Quadratic, step_by_hand
from torch import Tensor

from fedlib.data.federation import Samples
from fedlib.engines import one_thread
from fedlib.methods.fedavg import FedAvg
from fedlib.methods.fedprox import FedProx
from fedlib.methods.fedsoft import FedSoft, centre, own_weights
from fedlib.methods.method import Method, Server, State, Work, initial_state
from fedlib.methods.several import models
from fedlib.metrics import Crowd
from fedlib.rounds import Plan


def test_with_one_client_and_one_centre_it_is_fedprox_bit_for_bit():
    fed = tiny.federation((40,))
    got, plain = (tiny.train(m, fed, PLAN, LOCAL) for m in (FedSoft(K=1, lam=0.7), FedProx(mu=0.7)))
    assert tiny.same(models(got.server.weights)[0], plain.server.weights)
    assert tiny.same(own_weights(got.memories[0]), plain.server.weights)
    assert rows(got, *PERSONAL[:3]) == rows(plain, *PERSONAL[:3])


def test_without_a_leash_it_is_local_training_from_one_start_and_the_mean_of_it():
    fed = tiny.federation((40, 24))
    now = tiny.train(FedSoft(K=2, lam=0.0), fed, PLAN, LOCAL)
    with one_thread():
        for i in (0, 1):
            model, _, _ = initial_state(FedAvg(), tiny.task(fed))
            for t in (1, 2, 3):
                step_by_hand(model, fed, i, t, LOCAL, PLAN.rate(t))
            assert tiny.same(own_weights(now.memories[i]), model.state_dict())
            assert tiny.same(FedSoft(K=2).personal_model(now.server, i, now.memories[i]), model.state_dict())
    u = torch.stack([memory["fedsoft/u"] for memory in now.memories])
    for k, c in enumerate(models(now.server.weights)):
        v = u[:, k] * torch.tensor([40.0, 24.0])
        mean = {name: sum(v[i] / v.sum() * now.memories[i][name] for i in (0, 1)) for name in c}
        torch.testing.assert_close(c, mean, check_dtype=False, rtol=1e-5, atol=1e-6)


def test_importance_is_the_share_of_samples_that_a_centre_fits_best_and_at_least_sigma():
    images = torch.zeros(4, 3, 1, 1, dtype=torch.uint8)
    fed = planted()
    work = replace(work_of(fed, FedSoft()), samples=Samples(images, torch.tensor([0, 0, 1, 0])))
    c = [{"head.weight": torch.zeros(3, 3), "head.bias": torch.eye(3)[k]} for k in (0, 1, 2)]
    assert FedSoft(sigma=0.01).estimate(work, c).tolist() == [0.75, 0.25, 0.01]
    assert FedSoft(sigma=0.01).estimate(work, [c[2], c[2], c[1]]).tolist() == [0.75, 0.01, 0.25]


def test_the_leash_has_the_gradient_of_all_centres_leashes():
    fed, method = planted(), FedSoft(K=3, lam=0.3)
    work = work_of(fed, method)
    c, u = models(work.message), torch.tensor([0.5, 0.5, 0.1], dtype=torch.float64)
    batch = next(iter(work.batches()))
    names = [name for name, _ in work.model.named_parameters()]
    leash = replace(method, lam=0.3 * 1.1)
    together = leash.loss(work.model, batch, replace(work, message=centre(c, u, names)))["total"]
    away = [sum((w - c_k[name]).square().sum() for name, w in work.model.named_parameters()) for c_k in c]
    apart = Method().loss(work.model, batch, work)["total"] + 0.15 * sum(a * b for a, b in zip(u, away, strict=True))
    weights = list(work.model.parameters())
    for got, wanted in zip(*(torch.autograd.grad(total, weights) for total in (together, apart)), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-6)


@dataclass(frozen=True)
class FedSoftOnQuadratics(FedSoft, Quadratic):
    """a_i ||w - b_i||^2 / 2, with importance that is known."""

    known: tuple[tuple[float, ...], ...] = ((1.0, 0.1), (0.2, 0.8), (0.1, 1.0))

    def importance(self, work: Work, c: list[State]) -> Tensor:
        return torch.tensor(self.known[work.client], dtype=torch.float64)


def test_fedsoft_has_the_known_fixed_point():
    """w_i = (a_i b_i + lam sum_k u_ik c_k) / (a_i + lam sum_k u_ik) and c_k = sum_i v_ik w_i: a linear system."""
    fed, lam = tiny.federation((30, 10, 20), side=1), 0.6
    a, b, n = np.array([1.0, 3.0, 2.0]), np.array([3.0, 5.0, -2.0]), np.array(fed.sizes)
    method = FedSoftOnQuadratics(K=2, lam=lam, centres=tuple(b), curvatures=tuple(a))
    u = np.array(method.known)
    v = u * n[:, None] / (u * n[:, None]).sum(0)
    w = np.linalg.solve(np.diag(a + lam * u.sum(1)) - lam * u @ v.T, a * b)
    plan = Plan(60, 0.2, schedule="constant", evaluate_every=60)
    now = tiny.train(method, fed, plan, replace(DESCENT, steps=2), model="linear")
    assert abs(w[0] - 3.0) > 0.1 and abs((v.T @ w)[0] - (v.T @ w)[1]) > 0.5
    for value, memory in zip(w, now.memories, strict=True):
        torch.testing.assert_close(memory["head.bias"], torch.full((10,), value, dtype=torch.float32))
    for value, c in zip(v.T @ w, models(now.server.weights), strict=True):
        torch.testing.assert_close(c["head.bias"], torch.full((10,), value, dtype=torch.float32))


@dataclass(frozen=True)
class WatchedFedSoft(FedSoft):
    """Notes who estimates its importance when."""

    seen: list[tuple[int, int]] = field(default_factory=list)

    def estimate(self, work: Work, c: list[State]) -> Tensor:
        self.seen.append((work.round, work.client))
        return super().estimate(work, c)


def test_importance_is_estimated_every_tau_rounds_or_when_a_client_is_back():
    fed, method = tiny.federation((20, 20, 20)), WatchedFedSoft(K=2, tau=3)
    tiny.train(method, fed, Plan(7, 0.05, joins={1: 3}, leaves={2: 1}), LOCAL)
    assert method.seen == [(1, 0), (1, 2), (3, 1), (4, 0), (4, 1), (7, 0), (7, 1)]


def test_who_comes_late_starts_at_the_centre_it_fits_and_predicts_with_it_before():
    fed, lr = planted(), 0.1
    method = FedSoft(K=2, lam=0.0)
    work = work_of(fed, method, i=1, round=4)
    good = {"head.weight": 9 * torch.eye(3).roll(1, 0), "head.bias": torch.zeros(3)}  # the rule of group 1
    bad = {"head.weight": 9 * torch.eye(3), "head.bias": torch.zeros(3)}
    message = {f"{k}/{name}": w for k, c in enumerate((bad, good)) for name, w in c.items()}
    sent = method.client_update(replace(work, message=message, memory={}))
    x, y = work.samples.images.flatten(1) / 127.5 - 1.0, work.samples.labels
    weight = good["head.weight"].clone().requires_grad_()
    (slope,) = torch.autograd.grad(F.cross_entropy(x @ weight.T, y), weight)
    torch.testing.assert_close(sent.weights["head.weight"], good["head.weight"] - lr * slope)
    crowd = Crowd(method, work.model, Server(message), [{} for _ in fed.clients], fed)
    for i, group in enumerate(GROUPS):
        assert tiny.same(crowd.states[i], (bad, good)[group])
    assert len(method.candidates(crowd.server, 1, {})) == 2 and len(method.candidates(crowd.server, 1, bad)) == 1


def test_fedsoft_finds_the_planted_groups():
    fed, method = planted(), FedSoft(K=2, lam=0.05)
    now = tiny.train(method, fed, Plan(6, 0.5, schedule="constant"), replace(DESCENT, steps=5), model="linear")
    u = torch.stack([memory["fedsoft/u"] for memory in now.memories])
    assert grouped(u.argmax(1).tolist()) and rows(now, "worst@local")[-1] > 0.7
