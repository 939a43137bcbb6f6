"""ATP: learned rates against autograd, adaptation by hand, and FedAvg where nothing is adapted."""

from __future__ import annotations

from dataclasses import replace

import pytest
import tiny
import torch
import torch.nn.functional as F
from personal_tasks import GROUPS, planted
from test_methods import LOCAL, snapshots
from torch import Tensor

from fedlib.checks import FedlibError
from fedlib.data.federation import Samples, Visitor
from fedlib.forward import class_scores
from fedlib.methods.atp import ATP
from fedlib.methods.fedavg import FedAvg
from fedlib.methods.method import Server, State, initial_state
from fedlib.metrics import Crowd
from fedlib.rounds import Plan, Snapshot
from fedlib.training import Local, prepare

NAMES = ("head.weight", "head.bias")


def entropy_slopes(theta: State, x: Tensor) -> list[Tensor]:
    """By hand, of the linear model: dH / dz_j = -p_j (log p_j + H), the mean over the samples of its outer product."""
    p = F.linear(x, *(theta[name] for name in NAMES)).softmax(1)
    H = -(p * p.log()).sum(1, keepdim=True)
    by_z = -p * (p.log() + H) / len(x)
    return [by_z.T @ x, by_z.sum(0)]


def adapted(theta: State, rates: Tensor, slopes: list[Tensor]) -> list[Tensor]:
    return [theta[name] - r * g for name, r, g in zip(NAMES, rates, slopes, strict=True)]


def by_rates(theta: State, rates: Tensor, samples: Samples) -> tuple[Tensor, Tensor]:
    """(CE at the adapted point, its derivative by the rates (2,)), by autograd; g_u is a constant."""
    x, at = prepare(samples.images).flatten(1), rates.clone().requires_grad_()
    loss = F.cross_entropy(F.linear(x, *adapted(theta, at, entropy_slopes(theta, x))), samples.labels)
    return loss.detach(), torch.autograd.grad(loss, at)[0]


@pytest.mark.parametrize("normalise", [False, True])
def test_rates_descend_the_supervised_loss_after_adaptation(normalise: bool):
    """One batch a client, so each round is  rates <- rates - eta sum_k p_k dCE_k / d rates; theta stands still."""
    fed, eta, seen = tiny.federation((18, 12), side=2, classes=3), 0.7, []
    method = ATP(adaptation_rounds=2, rate_lr=eta, normalise=normalise)

    def look(now: Snapshot) -> None:
        seen.append(now.server)

    now = tiny.train(method, fed, Plan(3, 0.5), LOCAL, after_round=look, model="linear")
    theta, rates, size = seen[0].weights, torch.zeros(2), torch.tensor([36.0, 3.0]) if normalise else 1.0
    for t in (2, 3):
        (first, by_first), (second, by_second) = (by_rates(theta, rates, c.train) for c in fed.clients)
        rates = rates - eta * (0.6 * by_first + 0.4 * by_second) / size**0.5
        torch.testing.assert_close(seen[t - 1].memory["rates"], rates, rtol=1e-4, atol=1e-6)
        assert tiny.same(seen[t - 1].weights, theta)
        told = [row.value for row in now.history if (row.round, row.metric) == (t, "train_loss[total]")]
        assert told == pytest.approx([float(0.6 * first + 0.4 * second)], rel=1e-5)
    assert rates.abs().min() > 1e-4


def test_before_its_last_rounds_it_is_fedavg_bit_for_bit_and_after_that_sends_its_rates_alone():
    fed, plan, A = tiny.federation((40, 24)), Plan(5, 0.05), 2
    got, plain = (snapshots(method, fed, plan) for method in (ATP(adaptation_rounds=A), FedAvg()))
    assert all(tiny.same(got[t][0], plain[t][0]) for t in range(3))
    assert tiny.same(got[4][0], plain[2][0]) and not tiny.same(plain[2][0], plain[3][0])
    now, other = (tiny.train(method, fed, plan, LOCAL) for method in (ATP(adaptation_rounds=A), FedAvg()))
    rows, theirs = ([row for row in run.history if row.metric.startswith("bytes")] for run in (now, other))
    assert rows[:6] == theirs[:6]
    rates = 2 * 4 * len(now.server.weights)  # of two clients, 4 bytes a tensor
    down = theirs[0].value + rates
    assert [row.value for row in rows[6:]] == [down, rates, down, rates]


def test_learning_the_rates_lowers_the_loss_after_adaptation():
    """A model that is right and timid: less entropy is less loss, and the rates grow from round to round."""
    fed = planted((60, 60, 40, 40, 60, 80))  # whole batches: their mean loss is that of the samples
    group = [client for client, other in zip(fed.clients, GROUPS, strict=True) if other == 0]  # one rule for all
    fed = replace(fed, clients=tuple(replace(client, index=i) for i, client in enumerate(group)))
    local = Local(steps=10, batch_size=20, crop=False)
    now = tiny.train(ATP(adaptation_rounds=6, rate_lr=10.0), fed, Plan(8, 0.05), local, model="linear")
    losses = [row.value for row in now.history if row.metric == "train_loss[total]"][2:]
    assert losses == sorted(losses, reverse=True) and losses[-1] < losses[0] - 0.05
    assert now.server.memory["rates"][0] > 0


RATES = torch.tensor([0.8, -0.3])


def visited(method: ATP, rates: Tensor, count: int = 45) -> tuple[Crowd, Visitor]:
    """A crowd of the linear model with these rates, and a visitor with `count` samples."""
    fed = tiny.federation((30, 20), side=2, classes=3, test=count)
    model, server, memories = initial_state(method, tiny.task(fed, model="linear"))
    server = Server(server.weights, 2, server.memory | {"rates": rates})
    few = fed.clients[0].train
    return Crowd(method, model, server, memories, fed), Visitor(0, fed.clients[1].test, few, -1)


@pytest.mark.parametrize("online", [False, True])
def test_scores_are_those_after_one_step_on_each_batch_by_hand(online: bool):
    """20, 20 and 5 samples; online, the gradients of the batches so far are averaged."""
    method = ATP(online=online)
    crowd, visitor = visited(method, RATES)
    theta, seen, expected = crowd.server.weights, [], []
    for images in visitor.samples.images.split(20):
        x = prepare(images).flatten(1)
        seen.append(entropy_slopes(theta, x))
        last = seen if online else seen[-1:]
        mean = [torch.stack(parts).mean(0) for parts in zip(*last, strict=True)]
        expected.append(F.linear(x, *adapted(theta, RATES, mean)).softmax(1))
    torch.testing.assert_close(method.visit(crowd, visitor), torch.cat(expected), rtol=1e-4, atol=1e-6)
    assert (torch.cat(expected) - FedAvg().visit(crowd, replace(visitor, few=nothing()))).abs().max() > 1e-3


def nothing() -> Samples:
    return tiny.federation((0,), side=2).clients[0].train


def test_at_rates_0_scores_are_fedavgs():
    crowd, visitor = visited(ATP(), torch.zeros(2))
    torch.testing.assert_close(ATP().visit(crowd, visitor), FedAvg().visit(crowd, visitor))


@pytest.mark.parametrize("online", [False, True])
def test_the_visitors_labels_and_labelled_few_do_not_matter(online: bool):
    method = ATP(online=online)
    crowd, visitor = visited(method, RATES)
    images, labels = visitor.samples.images, visitor.samples.labels
    blind = replace(visitor, samples=Samples(images, torch.full_like(labels, -1)), few=nothing())
    assert torch.equal(method.visit(crowd, visitor), method.visit(crowd, blind))


def test_a_visit_leaves_the_crowds_model_as_others_need_it():
    """With theta in it, and parameters that learn: no trace of the adaptation."""
    crowd, visitor = visited(ATP(), RATES)
    before = class_scores(crowd.model, visitor.samples.images)
    with torch.no_grad():
        ATP().visit(crowd, visitor)
    assert torch.equal(class_scores(crowd.model, visitor.samples.images), before)
    assert tiny.same(dict(crowd.model.state_dict()), crowd.server.weights)
    assert all(w.requires_grad and w.grad is None for w in crowd.model.parameters())


def test_statistics_of_batch_norm_stay_as_fedavg_left_them():
    fed, local = tiny.federation((8, 6), test=1), Local(steps=1, batch_size=4, crop=False)
    got, plain = [], []
    for method, seen in ((ATP(adaptation_rounds=1), got), (FedAvg(), plain)):
        plan = Plan(2, 0.02, pooled=False)
        tiny.train(
            method, fed, plan, local, after_round=lambda now, seen=seen: seen.append(now.server), model="resnet10"
        )
    assert tiny.same(got[-1].weights, plain[0].weights)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"batch": 0}, "ATP.batch: 0 is out of range"),
        ({"rate_lr": 0.0}, "ATP.rate_lr: 0.0 is out of range"),
        ({"online": "yes"}, "ATP.online: 'yes' is unknown"),
    ],
)
def test_bad_values_are_refused(bad: dict, message: str):
    with pytest.raises(FedlibError) as caught:
        ATP(**bad)
    assert message in str(caught.value)


def test_there_must_be_a_model_before_its_rates_and_rates_that_are_numbers():
    with pytest.raises(FedlibError, match=r"ATP.adaptation_rounds: 3 is not below rounds \(3\)"):
        ATP(adaptation_rounds=3).check(3, 0.1, LOCAL)
    ATP(adaptation_rounds=2).check(3, 0.1, LOCAL)
    method, fed = ATP(adaptation_rounds=1, rate_lr=1e300), tiny.federation((90, 80), side=2, classes=3)
    with pytest.raises(FedlibError, match=r"round 2, client 0, .*rates are not finite .* lower ATP.rate_lr"):
        tiny.train(method, fed, Plan(2, 0.05), LOCAL, model="linear")
