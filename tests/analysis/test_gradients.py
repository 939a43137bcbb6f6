"""Gradient drift: hand-made gradients, and the four gradients of a client against autograd on the whole loss."""

from __future__ import annotations

import math

import pytest
import tiny
import torch
import torch.nn.functional as F

from fedlib.analysis.gradients import SAMPLES, branch_gradients, drift, relative_drift
from fedlib.checks import FedlibError
from fedlib.data.federation import Client, Federation, Samples
from fedlib.methods.fedavg import FedAvg
from fedlib.methods.feddrm import FedDRM
from fedlib.methods.method import initial_state
from fedlib.metrics import Crowd
from fedlib.training import prepare


def test_relative_drift_by_hand():
    """u = 2.5 e1; sum w ||u_i - u||^2 = 0.25 * 1.5^2 + 0.75 * 0.5^2 = 0.75."""
    ratio, spread = relative_drift(torch.tensor([[1.0, 0.0], [3.0, 0.0]]), torch.tensor([0.25, 0.75]))
    assert spread.item() == pytest.approx(math.sqrt(0.75)) and ratio.item() == pytest.approx(math.sqrt(0.75) / 2.5)


def test_opposite_pulls_drift_more_than_equal_ones():
    """Orthogonal unit gradients of equal weight: u = (1, 1) / 2, so G = 1; equal gradients: 0."""
    even = torch.tensor([0.5, 0.5])
    assert relative_drift(torch.eye(2), even)[0].item() == pytest.approx(1.0)
    assert relative_drift(torch.ones(2, 3), even)[0].item() == 0.0
    assert relative_drift(7 * torch.eye(2), even)[0].item() == pytest.approx(1.0)  # no unit


def network_and(fed: Federation) -> torch.nn.Module:
    return initial_state(FedDRM(), tiny.task(fed))[0]


def test_branch_gradients_are_those_of_the_whole_loss():
    fed = tiny.federation()
    model, client = network_and(fed), fed.clients[1]
    got = branch_gradients(model, client)
    class_logits, client_logits = model(prepare(client.train.images))
    losses = {
        "class": F.cross_entropy(class_logits, client.train.labels),
        "client": F.cross_entropy(client_logits, torch.ones(len(client.train), dtype=torch.int64)),
    }
    for name, head in (("class", model.head), ("client", model.client_head)):
        model.zero_grad()
        losses[name].backward(retain_graph=True)
        for block, module in (("backbone", model.backbone), ("last layer", head)):
            expected = torch.cat([parameter.grad.flatten() for parameter in module.parameters()])
            torch.testing.assert_close(got[f"{name}, {block}"], expected)
    assert len(got) == 4


def test_a_gradient_is_the_slope_of_the_loss():
    """Central difference along the gradient of the client loss in its last layer: its slope is ||g||."""
    fed = tiny.federation()
    model, client = network_and(fed).double(), fed.clients[0]
    x, y = prepare(client.train.images).double(), torch.zeros(len(client.train), dtype=torch.int64)
    gradient = branch_gradients(network_and(fed), client)["client, last layer"].double()
    weight = gradient[: model.client_head.weight.numel()].view_as(model.client_head.weight)
    bias, step = gradient[model.client_head.weight.numel() :], 1e-4 / gradient.norm()

    def loss_at(t: float) -> float:
        features = model.client_transform(model.backbone(x))
        logits = F.linear(features, model.client_head.weight + t * weight, model.client_head.bias + t * bias)
        return F.cross_entropy(logits, y).item()

    slope = (loss_at(step) - loss_at(-step)) / (2 * step)
    assert slope == pytest.approx(float(gradient.square().sum()), rel=1e-4)


def rows_of(fed: Federation) -> dict[str, float]:
    model, server, memories = initial_state(FedDRM(), tiny.task(fed))
    return {row.metric: row.value for row in drift(Crowd(FedDRM(), model, server, memories, fed), fed)}


def test_identical_clients_have_no_class_drift():
    fed = tiny.federation((30, 30))
    twins = tuple(
        Client(i, *[getattr(fed.clients[0], part) for part in ("train", "validation", "test")]) for i in (0, 1)
    )
    values = rows_of(Federation(fed.name, twins, fed.classes, fed.shape))
    assert values["drift[class, backbone]"] == pytest.approx(0.0, abs=1e-6)
    assert values["spread[class, last layer]"] == pytest.approx(0.0, abs=1e-6)
    assert values["drift[client, last layer]"] > 0.1  # the labels of the client loss differ all the same


def test_the_ratio_is_client_drift_over_class_drift():
    values = rows_of(tiny.federation())
    for block in ("backbone", "last layer"):
        expected = values[f"drift[client, {block}]"] / values[f"drift[class, {block}]"]
        assert values[f"drift_ratio[{block}]"] == pytest.approx(expected)
    assert len(values) == 10


def test_samples_are_taken_evenly_through_a_client_s_own():
    """Sorted by class, the first ones would be of one class."""
    fed = tiny.federation((SAMPLES + 5,))
    client = fed.clients[0]
    first = Samples(client.train.images[::2], client.train.labels[::2])
    model = network_and(fed)
    cut = branch_gradients(model, Client(0, first, client.validation, client.test))
    assert all(torch.equal(gradient, cut[name]) for name, gradient in branch_gradients(model, client).items())


def test_a_method_without_client_head_is_refused():
    fed = tiny.federation()
    model, server, memories = initial_state(FedAvg(), tiny.task(fed))
    with pytest.raises(FedlibError, match="drift compares FedDRM's two losses; FedAvg has no client head"):
        drift(Crowd(FedAvg(), model, server, memories, fed), fed)
