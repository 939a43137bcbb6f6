"""FedTGP against its margin and server loss by hand, and what its prototypes do to each other."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import tiny
import torch
import torch.nn.functional as F
from domain_tasks import batch_of, upload_of, work_on
from torch import Tensor

from fedlib.methods.fedtgp import FedTGP, global_prototypes, margin, margin_contrast
from fedlib.methods.method import Server, State, Upload, initial_state


def trained(method: FedTGP, sent: list[Upload], memory: State) -> Server:
    return method.aggregate(Server({"head.bias": torch.zeros(4)}, 6, memory), iter(sent))


def generator_of(d: int, seed: int = 0) -> State:
    """What the server starts with, for four classes and d features."""
    task = replace(tiny.task(tiny.federation((9,), side=1, classes=4), model="linear"), shape=(d, 1, 1), seed=seed)
    return initial_state(FedTGP(), task)[1].memory


SENT = [
    upload_of(0, [[3.0, 0.0, 0.0], [1.0, 4.0, 0.0], [0.0, 0.0, 3.0]], [0, 1, 3]),
    upload_of(1, [[2.0, 1.0, 0.0], [0.0, 1.0, 2.0]], [0, 3], n=9),
]


@pytest.mark.parametrize(("gap", "delta"), [("farthest", 10.0), ("nearest", 5.0)])
def test_the_margin_in_closed_form(gap: str, delta: float):
    """Class means (0, 0), (3, 4) and (6, 8), the middle one of two clients; the number of clients does not shift it."""
    p, c = torch.tensor([[0.0, 0.0], [3.0, 1.0], [6.0, 8.0], [3.0, 7.0]]), torch.tensor([0, 2, 3, 2])
    assert margin(p, c, 100.0, gap).item() == pytest.approx(delta)
    assert margin(p, c, 4.5, gap).item() == 4.5
    assert margin(p[:1], c[:1], 100.0, gap).item() == 0.0


def test_the_server_loss_by_hand():
    """Distances (5, 1) to P and a margin of 2: -log(e^-7 / (e^-7 + e^-1)); and at a prototype itself."""
    P = torch.tensor([[3.0, 4.0], [0.0, 1.0]], requires_grad=True)
    one = margin_contrast(torch.zeros(1, 2), torch.tensor([0]), P, torch.tensor(2.0))
    assert one.item() == pytest.approx(math.log(1 + math.exp(6)))
    same = margin_contrast(torch.tensor([[0.0, 1.0]]), torch.tensor([1]), P, torch.tensor(2.0))
    same.backward()
    assert same.item() == pytest.approx(math.log(1 + math.exp(2 - math.sqrt(18)))) and P.grad.isfinite().all()


def test_an_epoch_of_one_batch_is_a_gradient_step():
    memory, method = generator_of(3), FedTGP(server_epochs=1, server_lr=0.3, server_batch=5)
    after = trained(method, SENT, memory)
    weights = {n: w.clone().requires_grad_() for n, w in memory.items() if n.startswith("generator/")}
    p, c = (torch.cat([upload.extra[name] for upload in SENT]) for name in ("means", "classes"))
    Q = [(p[0] + p[3]) / 2, p[1], (p[2] + p[4]) / 2]
    delta = max(min(float((a - b).norm()) for b in Q if b is not a) for a in Q)
    P = [by_hand(weights, k) for k in range(4)]
    loss: Tensor = sum(loss_by_hand(x, int(k), P, delta) for x, k in zip(p, c, strict=True)) / 5
    for name, slope in zip(weights, torch.autograd.grad(loss, list(weights.values())), strict=True):
        torch.testing.assert_close(after.memory[name], weights[name].detach() - 0.3 * slope)
    assert torch.equal(after.memory["prototypes/global"], global_prototypes(after.memory))


def by_hand(g: State, k: int) -> Tensor:
    hidden = (g["generator/hidden.weight"] @ g["generator/vectors.weight"][k] + g["generator/hidden.bias"]).clamp(min=0)
    return g["generator/output.weight"] @ hidden + g["generator/output.bias"]


def loss_by_hand(x: Tensor, k: int, P: list[Tensor], delta: float) -> Tensor:
    e = [(-(x - P[j]).norm() - delta * (j == k)).exp() for j in range(4)]
    return -(e[k] / sum(e)).log()


def test_training_parts_the_classes_is_repeatable_and_goes_on_from_where_it_was():
    """From a random start, the global prototypes come nearest to those of their class and further apart than these."""
    noise = torch.rand(2, 4, 16, generator=torch.Generator().manual_seed(1))
    means = torch.eye(4, 16) + 0.2 * noise
    sent = [upload_of(i, means[i].tolist(), [0, 1, 2, 3]) for i in (0, 1)]
    memory = generator_of(16)
    none, some, more = (trained(FedTGP(server_epochs=S), sent, memory) for S in (0, 30, 300))
    P0, P = (after.memory["prototypes/global"] for after in (none, more))
    nearest = [torch.cdist(means, prototypes).argmin(-1).tolist() for prototypes in (P0, P)]
    assert nearest[0] != nearest[1] == [[0, 1, 2, 3]] * 2
    assert torch.pdist(P).min() > torch.pdist(means.mean(0)).max() and torch.pdist(P).min() > 2 * torch.pdist(P0).min()
    assert tiny.same(trained(FedTGP(server_epochs=30), sent[::-1], memory).memory, some.memory)
    assert tiny.same(memory, generator_of(16)) and not tiny.same(memory, generator_of(16, seed=1))
    assert tiny.same(trained(FedTGP(server_epochs=0), sent, some.memory).memory, some.memory)


def test_classes_of_which_nobody_has_sent_a_prototype_attract_nothing():
    memory = generator_of(3)
    after = trained(FedTGP(server_epochs=1), SENT, memory)
    assert after.memory["prototypes/known"].tolist() == [True, True, False, True]
    later = trained(FedTGP(server_epochs=1), [upload_of(0, [[1.0, 1.0, 1.0]], [2])], after.memory)
    assert later.memory["prototypes/known"].all()
    fed, P = tiny.federation((40,), classes=4), torch.rand(4, 32, generator=torch.Generator().manual_seed(2))
    work = work_on(fed, FedTGP(), {"prototypes/global": P, "prototypes/known": after.memory["prototypes/known"]})
    method, batch = FedTGP(lam=3.0), batch_of(work)
    method.start(work)
    terms = method.loss(work.model.eval(), batch, work)
    error = (work.model.embed(batch.x) - P[batch.y]).square().mean(1)[batch.y != 2].sum() / 40
    assert terms["attraction"].item() == pytest.approx(error.item(), rel=1e-5)
    target = F.cross_entropy(work.model(batch.x), batch.y)
    assert terms["total"].item() == pytest.approx((target + 3.0 * error).item(), rel=1e-5)
