"""MOON against values by hand, and a loop over copies of the networks."""

from __future__ import annotations

import copy
import math

import pytest
import tiny
import torch
import torch.nn.functional as F
from domain_tasks import batch_of, task, train, work_on
from test_methods import LOCAL, PLAN
from torch import nn

from fedlib.engines import one_thread
from fedlib.methods.fedavg import FedAvg
from fedlib.methods.method import State, Upload, initial_state, weighted_mean
from fedlib.methods.moon import MOON, embed_under, model_contrast
from fedlib.rounds import Plan
from fedlib.streams import torch_stream
from fedlib.training import batches


def test_the_contrast_by_hand():
    """s(z, z_glob), s(z, z_prev) = (1, 0), (1, -1) and (0.6, 0.8); lengths do not count."""
    z, z_glob = torch.tensor([[2.0, 0.0], [0.0, 3.0], [0.5, 0.0]]), torch.tensor([[1.0, 0.0], [0.0, 7.0], [3.0, 4.0]])
    z_prev = torch.tensor([[0.0, 5.0], [0.0, -1.0], [8.0, 6.0]])
    for tau in (0.5, 2.0):
        expected = [math.log(1 + math.exp(d / tau)) for d in (-1.0, -2.0, 0.2)]
        assert model_contrast(z, z_glob, z_prev, tau).item() == pytest.approx(sum(expected) / 3, rel=1e-6)
        a, b = math.exp(0.6 / tau), math.exp(0.8 / tau)
        assert expected[2] == pytest.approx(-math.log(a / (a + b)))


def test_where_both_models_are_the_same_the_contrast_is_log_2_without_a_gradient():
    generator = torch.Generator().manual_seed(1)
    z = torch.randn(5, 7, generator=generator, dtype=torch.float64, requires_grad=True)
    other = torch.randn(5, 7, generator=generator, dtype=torch.float64)
    value = model_contrast(z, other, other, 0.5)
    value.backward()
    assert value.item() == pytest.approx(math.log(2), rel=1e-12) and z.grad.abs().max() < 1e-15
    fed = tiny.federation((40, 24))
    now, plain = (tiny.train(m, fed, Plan(1, 0.05), LOCAL) for m in (MOON(), FedAvg()))
    contrast = [row.value for row in now.history if row.metric == "train_loss[contrast]"]
    assert contrast == [pytest.approx(math.log(2))] and tiny.same(now.server.weights, plain.server.weights)


def test_features_under_other_weights_are_those_of_a_network_that_has_them():
    work = work_on(tiny.federation((40,)), MOON())
    other = {n: w + 0.1 if w.is_floating_point() else w for n, w in work.message.items()}
    loaded, x = copy.deepcopy(work.model), batch_of(work).x
    loaded.load_state_dict(other)
    before, training = copy.deepcopy(work.model.state_dict()), work.model.train()
    z = embed_under(other, work.model, x)
    assert torch.equal(z, loaded.eval().embed(x)) and not z.requires_grad and training.training
    assert tiny.same(work.model.state_dict(), before) and not torch.equal(z, work.model.eval().embed(x))


def test_moon_is_its_loop_by_hand():
    """Two clients, three rounds, with copies of the networks; the second client's previous model is not the first's."""
    fed, method = tiny.federation((40, 24)), MOON(mu=3.0, tau=0.4)
    got = train(method, fed, PLAN, LOCAL)
    with one_thread():
        model, server, _ = initial_state(FedAvg(), task(fed))
        theta, last = server.weights, [server.weights] * 2
        for t in (1, 2, 3):
            ends = [moon_by_hand(model, fed, i, t, theta, last[i], method) for i in (0, 1)]
            last, sent = ends, [Upload(i, w, {}, n, {}) for i, (w, n) in enumerate(zip(ends, (40, 24), strict=True))]
            theta = weighted_mean(theta, sent)
    torch.testing.assert_close(got.server.weights, theta, rtol=1e-4, atol=1e-5)
    for memory, kept in zip(got.memories, last, strict=True):
        assert set(memory) == {f"last/{name}" for name in kept}
        torch.testing.assert_close({f"last/{name}": w for name, w in kept.items()}, memory, rtol=1e-4, atol=1e-5)


def moon_by_hand(model: nn.Module, fed, i: int, t: int, theta: State, last: State, method: MOON) -> State:
    live, glob, prev = (copy.deepcopy(model) for _ in range(3))
    for network, weights in ((live, theta), (glob, theta), (prev, last)):
        network.load_state_dict(weights)
    optimiser = torch.optim.SGD(live.parameters(), PLAN.rate(t), LOCAL.momentum, weight_decay=LOCAL.weight_decay)
    for batch in batches(fed.clients[i].train, LOCAL, i, torch_stream(0, "client", t, i)):
        z = live.train().embed(batch.x)
        s_glob = F.cosine_similarity(z, glob.eval().embed(batch.x).detach())
        s_prev = F.cosine_similarity(z, prev.eval().embed(batch.x).detach())
        near = torch.stack([s_glob, s_prev], 1).div(method.tau).log_softmax(1)[:, 0]
        optimiser.zero_grad()
        (F.cross_entropy(live.head(z), batch.y) - method.mu * near.mean()).backward()
        optimiser.step()
    return {name: w.detach().clone() for name, w in live.state_dict().items()}
