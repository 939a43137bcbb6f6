"""FedDRM: its two losses, its routers, its limits at lambda 0 and 1."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import tiny
import torch
import torch.nn.functional as F

from fedlib.methods.feddrm import FedDRM
from fedlib.methods.fedper import FedPer
from fedlib.methods.method import State, Task, initial_state
from fedlib.rounds import Plan
from fedlib.training import Batch, Local, prepare
from fedlib.votes import majority_vote, mean_softmax

LOCAL = Local(steps=3, batch_size=16, crop=False)
PLAN = Plan(3, 0.05)


def branch(state: State) -> State:
    return {name: tensor for name, tensor in state.items() if name.startswith("client_")}


@pytest.mark.parametrize("weight_decay", [0.0, 0.01])
def test_fedper_is_feddrm_at_lambda_one(weight_decay: float):
    fed, local = tiny.federation(), Local(steps=3, batch_size=16, crop=False, weight_decay=weight_decay)
    drm, per = (tiny.train(method, fed, PLAN, local) for method in (FedDRM(lam=1.0), FedPer()))
    assert tiny.same({n: t for n, t in drm.server.weights.items() if n in per.server.weights}, per.server.weights)
    assert all(map(tiny.same, drm.memories, per.memories))
    first = branch(initial_state(FedDRM(), tiny.task(fed))[1].weights)
    if weight_decay == 0.0:
        assert tiny.same(branch(drm.server.weights), first)
    else:  # every weight has shrunk by the same factor
        ratios = torch.cat([(branch(drm.server.weights)[n] / first[n]).flatten() for n in first])
        ratios = ratios[ratios.isfinite()]
        assert float(ratios.min()) > 0.9 and float(ratios.max() - ratios.min()) < 1e-5 and float(ratios.max()) < 1.0


def test_feddrm_at_lambda_zero_leaves_the_target_heads_alone():
    fed, local = tiny.federation(), Local(steps=3, batch_size=16, crop=False, weight_decay=0.0)
    _, _, first = initial_state(FedDRM(), tiny.task(fed))
    now = tiny.train(FedDRM(lam=0.0), fed, PLAN, local)
    assert all(map(tiny.same, now.memories, first))


def test_feddrm_with_one_client_has_no_client_loss():
    now = tiny.train(FedDRM(lam=0.8), tiny.federation((40,)), PLAN, LOCAL)
    losses = {row.metric: row.value for row in now.history if row.round == 3}
    assert losses["train_loss[client]"] == 0.0
    assert losses["train_loss[total]"] == pytest.approx(0.8 * losses["train_loss[target]"])
    routers = [row.value for row in now.history if row.metric.startswith("router@pooled")]
    assert routers and set(routers) == {1.0}


def test_the_client_head_gradient_has_a_positive_part_for_its_own_row_only():
    """Unit test 3 of the spec: d CE / d xi_k = mean_j (p_k(x_j) - 1{k = i}) h(x_j), the same with h = 1 for gamma."""
    fed, i = tiny.federation(), 1
    model, _, _ = initial_state(FedDRM(), tiny.task(fed))
    batch = Batch(prepare(fed.clients[i].train.images), fed.clients[i].train.labels, i)
    FedDRM(lam=0.0).loss(model, batch, None)["total"].backward()
    with torch.no_grad():
        h = model.client_transform(model.backbone(batch.x))
        p = model(batch.x)[1].softmax(1)
        residual = p - F.one_hot(torch.full_like(batch.y, i), 3)
    torch.testing.assert_close(model.client_head.weight.grad, residual.T @ h / len(h))
    torch.testing.assert_close(model.client_head.bias.grad, residual.mean(0))
    assert bool((model.client_head.weight.grad[[0, 2]] >= 0).all()) and bool((residual[:, i] < 0).all())


@pytest.mark.parametrize(
    ("model", "count"),
    [
        ({"name": "lenet_gn", "sharing": "no_share"}, 2_081_554),
        ({"name": "lenet_gn", "sharing": "shallow"}, 2_079_058),
        ({"name": "lenet_gn", "sharing": "mid"}, 2_027_666),
        ({"name": "lenet_gn", "sharing": "deep"}, 1_075_090),
        ({"name": "resnet18_gn"}, 11_437_138),
    ],
)
def test_feddrm_has_the_parameters_that_the_spec_counts(model: dict[str, str], count: int):
    built = FedDRM().build(Task(model, (3, 32, 32), 10, (100,) * 8, 1, 0))
    assert sum(parameter.numel() for parameter in built.parameters()) == count
    personal = {name for name in built.state_dict() if not FedDRM().shared(name)}
    assert personal == {"head.weight", "head.bias"}


def crowd(shares: list[float], client_logits: list[list[float]], class_logits: list[list[list[float]]]):
    a = torch.tensor(class_logits)
    return SimpleNamespace(
        shares=torch.tensor(shares), logits=lambda: a, outputs=lambda: (a[0], torch.tensor(client_logits))
    )


CLASSES = [[[3.0, 0.0], [0.0, 1.0], [1.0, 0.0]], [[0.0, 2.0], [0.0, 3.0], [5.0, 0.0]]]


def test_the_density_router_takes_the_prior_out_and_the_posterior_router_leaves_it_in():
    """c - log(0.8, 0.2): (1.22, 2.41), (3.22, 2.41), (0.22, 1.61); the query is answered by whom it is sent to."""
    answers = FedDRM().route(crowd([0.8, 0.2], [[1.0, 0.8], [3.0, 0.8], [0.0, 0.0]], CLASSES))
    assert next(iter(answers)) == "density router"
    assert answers["density router"].origin.tolist() == [1, 0, 1]
    assert answers["density router"].labels.tolist() == [1, 1, 0]
    assert answers["posterior router"].origin.tolist() == [0, 0, 0]
    assert answers["posterior router"].labels.tolist() == [0, 1, 0]
    assert answers["majority vote"].origin is None and answers["majority vote"].labels.tolist() == [0, 1, 0]


def test_routers_coincide_for_equal_sizes():
    """Unit test 4 of the spec, on S-SPC."""
    asked = tiny.experiment(FedDRM(), samples=400, clients=4, partition={"name": "shards", "per_client": 2})
    fed = asked.federation()
    now = tiny.train(asked.method, fed, asked.plan, asked.local)
    values = {row.metric: row.value for row in now.history if row.client == -1}
    assert set(fed.sizes) == {70}
    for metric in ("system@pooled", "router@pooled"):
        assert values[f"{metric}[density router]"] == values[f"{metric}[posterior router]"] == values[metric]


def test_votes():
    votes = torch.tensor([[[0.0, 1.0, 0.0]], [[0.0, 0.0, 1.0]], [[0.0, 0.0, 9.0]], [[0.0, 2.0, 0.0]]])
    assert majority_vote(votes).tolist() == [1]  # two for class 1, two for class 2: the lower one
    assert mean_softmax(votes).tolist() == [2]  # the second voter for class 2 is nearly certain
    assert majority_vote(torch.zeros(4, 2, 3)).tolist() == [0, 0] == mean_softmax(torch.zeros(4, 2, 3)).tolist()
