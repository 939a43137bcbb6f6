"""FedRCL against its terms by hand, loops over pairs, and the levels of the networks."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import tiny
import torch
from domain_tasks import LOCAL, metric, task, train
from torch import Tensor, nn

from fedlib.methods.fedavg import FedAvg
from fedlib.methods.fedrcl import FedRCL, blocks, recorded, relaxed_contrastive
from fedlib.methods.method import Work, initial_state
from fedlib.models.network import Network
from fedlib.training import Batch, prepare


def at(*degrees: float, lengths: float = 1.0) -> Tensor:
    """Vectors of the plane at these angles: their cosines are those of the angles between them."""
    angles = torch.tensor(degrees, dtype=torch.float64).deg2rad()
    return (lengths * torch.stack([angles.cos(), angles.sin()], 1)).float()


def test_the_contrast_of_three_vectors_by_hand():
    """Labels 0, 0, 1 at 0, 60, 90 degrees: s_01 = 1/2, s_02 = 0, s_12 = sqrt(3) / 2; tau = 1/2.

    The first two have p = 1/2 and one stranger each; the third is alone: p = 1, two strangers.
    """
    near = math.sqrt(3) / 2
    by_hand = [
        math.log(1 + math.exp(-0.5 / 0.5)),
        math.log(1 + math.exp((near - 0.5) / 0.5)),
        math.log(1 + math.exp((near - 1) / 0.5) + math.exp(-1 / 0.5)),
    ]
    y = torch.tensor([0, 0, 1])
    scl, div = relaxed_contrastive(at(0, 60, 90), y, 0.5, 0.7)
    assert scl.item() == pytest.approx(sum(by_hand) / 3, rel=1e-5) and div.item() == 0.0
    by_hand[2] = math.log(1 + math.exp((near - 1) / 0.5))
    assert relaxed_contrastive(at(0, 60, 90), y, 0.5, 0.7, negatives=1)[0].item() == pytest.approx(sum(by_hand) / 3)


@pytest.mark.parametrize(("cosine", "penalised"), [(0.69, False), (0.71, True), (0.95, True), (1.0, True)])
def test_only_samples_of_a_class_nearer_than_the_threshold_are_penalised(cosine: float, penalised: bool):
    angle = math.degrees(math.acos(cosine))
    expected = math.log(1 + math.exp((cosine - 1) / 0.05)) if penalised else 0.0
    together, apart = torch.tensor([3, 3]), torch.tensor([3, 4])
    assert relaxed_contrastive(at(0, angle), together, 0.05, 0.7)[1].item() == pytest.approx(expected, rel=1e-4)
    assert relaxed_contrastive(at(0, angle), apart, 0.05, 0.7)[1].item() == 0.0
    assert relaxed_contrastive(at(0, angle), together, 0.05, 1.0)[1].item() == 0.0


def test_a_threshold_of_1_is_no_penalty_though_cosines_are_rounded():
    g = torch.randn((50, 7), generator=torch.Generator().manual_seed(0)).repeat(2, 1)
    assert relaxed_contrastive(g, torch.arange(50).repeat(2), 0.05, 1.0)[1].item() == 0.0


def test_it_is_the_least_similar_sample_of_the_class_that_counts():
    """At 0, 30, 60 degrees only the middle one has its whole class nearer than 0.7."""
    div = relaxed_contrastive(at(0, 30, 60), torch.zeros(3, dtype=torch.long), 0.05, 0.7)[1].item()
    assert div == pytest.approx(math.log(1 + math.exp((math.sqrt(3) / 2 - 1) / 0.05)) / 3, rel=1e-5)


@pytest.mark.parametrize("count", [1, 3])
def test_a_batch_of_one_class_has_no_contrast_and_no_slope(count: int):
    g = at(*range(0, 100 * count, 100)).requires_grad_()
    scl, div = relaxed_contrastive(g, torch.zeros(count, dtype=torch.long), 0.05, 0.7)
    (slope,) = torch.autograd.grad(scl + div, g)
    assert scl.item() == 0.0 and div.item() == 0.0 and torch.equal(slope, torch.zeros_like(g))


def test_the_penalty_drives_a_class_apart_and_the_contrast_draws_it_together():
    """At 0 and 10 degrees, with a stranger at 40: along the negative gradient the pair's angle grows, or shrinks."""
    for term, sign in ((0, -1), (1, 1)):
        g = at(0, 10, 40).requires_grad_()
        (slope,) = torch.autograd.grad(relaxed_contrastive(g, torch.tensor([0, 0, 1]), 0.05, 0.7)[term], g)
        turned = torch.atan2(*(g - 1e-3 * slope).detach().flip(1).T).rad2deg()
        assert sign * (turned[1] - turned[0] - 10) > 1e-3


def test_the_terms_are_those_of_loops_over_the_pairs_for_any_scale_and_order():
    generator = torch.Generator().manual_seed(0)
    g, y = torch.randn((12, 3), generator=generator) + 1, torch.randint(0, 6, (12,), generator=generator)
    s = [[float(torch.cosine_similarity(a, b, dim=0)) for b in g] for a in g]
    scl, div = 0.0, 0.0
    for i in range(12):
        p = min(s[i][j] for j in range(12) if y[j] == y[i])
        strangers = sorted(s[i][j] for j in range(12) if y[j] != y[i])[-2:]
        scl += -p / 0.2 + math.log(sum(math.exp(v / 0.2) for v in [p, *strangers]))
        q = min((s[i][j] for j in range(12) if y[j] == y[i] and j != i), default=-1)
        div += math.log(1 + math.exp((q - 1) / 0.2)) if q > 0.1 else 0.0
    assert div > 0
    order = torch.randperm(12, generator=generator)
    maps = (7 * g[order])[:, :, None, None].expand(-1, -1, 2, 5)
    for features, labels in ((g, y), (maps, y[order])):
        found = relaxed_contrastive(features, labels, 0.2, 0.1)
        assert [term.item() for term in found] == pytest.approx([scl / 12, div / 12], rel=1e-4)


def test_fedrcl_of_weight_0_is_fedavg_bit_for_bit():
    fed = tiny.federation((24, 16))
    got, plain, whole = (train(method, fed) for method in (FedRCL(lam=0.0), FedAvg(), FedRCL()))
    assert tiny.same(got.server.weights, plain.server.weights) and got.memories == plain.memories
    assert metric(got, "personal@local") == metric(plain, "personal@local")
    assert metric(got, "train_loss[total]") == metric(plain, "train_loss[total]")
    assert min(metric(whole, "train_loss[contrastive]")) > 0 and not tiny.same(got.server.weights, whole.server.weights)


def test_the_five_levels_of_resnet10_count_alike():
    """The loss from the features that the parts of the network give one after the other; no hook is left behind."""
    fed, method = tiny.federation((24,)), FedRCL(lam=0.5)
    model, server, _ = initial_state(method, task(fed))
    assert isinstance(model, Network)
    batch = Batch(prepare(fed.clients[0].train.images), fed.clients[0].train.labels, 0)
    work = Work(0, fed.clients[0].train, server.weights, {}, model, LOCAL, 0.05, 1, 1, torch.Generator())
    terms = method.loss(model.train(), batch, work)
    levels, x = [], batch.x
    for part in model.backbone.children():
        x = part(x)
        levels.append(x.mean((2, 3)))
    torch.testing.assert_close(levels[-1], model.transform(x))
    found = [relaxed_contrastive(g, batch.y, 0.05, 0.7) for g in levels]
    scl, div = (sum(values) / 5 for values in zip(*found, strict=True))
    torch.testing.assert_close([terms["contrastive"], terms["divergence"]], [scl, div], rtol=1e-4, atol=1e-5)
    target = nn.functional.cross_entropy(model.head(levels[-1]), batch.y)
    torch.testing.assert_close(terms["total"], target + 0.5 * (scl + div), rtol=1e-4, atol=1e-5)
    assert not any(module._forward_hooks for module in model.modules())


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("resnet10", ["stem", "layer1", "layer2", "layer3", "layer4"]),
        ("lenet_gn", ["c1", "c2", "fc"]),
        ("resnet18_gn", ["layer1", "layer2", "layer3", "layer4"]),
        ("small_cnn", []),
        ("linear", []),
    ],
)
def test_levels_are_the_blocks_of_the_backbone(model: str, expected: list[str]):
    network = replace(tiny.task(tiny.federation(side=16)), model={"name": model}).network()
    names = {id(child): name for name, child in network.backbone.named_children()}
    assert [names[id(block)] for block in blocks(network.backbone)] == expected


def test_no_hook_is_left_behind_by_a_pass_that_fails():
    layer = nn.Linear(2, 2)
    with pytest.raises(RuntimeError), recorded([layer]) as outputs:
        layer(torch.ones(1, 3))
    assert not layer._forward_hooks and outputs == []
