"""FPL against prototypes on known points, and its loss sample by sample."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import pytest
import tiny
import torch
import torch.nn.functional as F
from domain_tasks import at, batch_of, upload_of, work_on

from fedlib.data.federation import Samples
from fedlib.methods.fpl import FPL, cluster_contrast, cluster_prototypes
from fedlib.methods.method import Server
from fedlib.methods.prototypes import class_means


def test_a_prototype_is_the_mean_of_a_class_in_evaluation_mode():
    work = work_on(tiny.federation((40,), classes=5), FPL())
    there = work.samples.labels != 2
    work = replace(work, samples=Samples(work.samples.images[there], work.samples.labels[there]))
    z = copy.deepcopy(work.model).eval().embed(batch_of(work).x).detach()
    sent = class_means(work.model.train(), work.samples)
    assert sent["classes"].tolist() == [0, 1, 3, 4]
    expected = torch.stack([z[work.samples.labels == k].mean(0) for k in (0, 1, 3, 4)])
    torch.testing.assert_close(sent["means"], expected)


def test_clusters_and_unbiased_prototypes_on_known_points():
    """Class 1: {0, 6 degrees, 9} and {90, 97} are clusters; U is the mean of their means, not of the five points."""
    five, lone = torch.from_numpy(at(0, 6, 9, 90, 97)), torch.tensor([[3.0, 4.0]], dtype=torch.float64)
    found = cluster_prototypes(torch.cat([lone, five]), torch.tensor([3, 1, 1, 1, 1, 1]), 4, "first")
    C = torch.stack([five[:3].mean(0), five[3:].mean(0)]).float()
    assert found["classes"].tolist() == [1, 1, 3]
    torch.testing.assert_close(found["clusters"], torch.cat([C, lone.float()]))
    expected = torch.stack([torch.zeros(2), C.mean(0), torch.zeros(2), lone[0].float()])
    torch.testing.assert_close(found["unbiased"], expected)
    assert not torch.allclose(C.mean(0), five.mean(0).float(), atol=0.1)


def test_the_last_partition_is_the_coarsest():
    points, k = torch.from_numpy(at(0, 5, 40, 44, 180, 185, 220, 224)), torch.zeros(8, dtype=torch.int64)
    first, last = (cluster_prototypes(points, k, 1, name)["clusters"] for name in ("first", "last"))
    torch.testing.assert_close(first, points.view(4, 2, 2).mean(1).float())
    torch.testing.assert_close(last, points.view(2, 4, 2).mean(1).float())


def test_with_one_client_a_class_the_prototypes_are_the_clients():
    theta = Server({"head.bias": torch.zeros(4)}, 1)
    sent = [upload_of(0, [[1.0, 2.0], [5.0, 0.0]], [0, 3]), upload_of(1, [[4.0, 4.0]], [2])]
    for order in (sent, sent[::-1]):
        after = FPL().aggregate(theta, iter(order))
        assert after.memory["prototypes/clusters"].tolist() == [[1.0, 2.0], [4.0, 4.0], [5.0, 0.0]]
        assert after.memory["prototypes/classes"].tolist() == [0, 2, 3]
        assert after.memory["prototypes/unbiased"].tolist() == [[1.0, 2.0], [0.0, 0.0], [4.0, 4.0], [5.0, 0.0]]
    later = FPL().aggregate(after, [sent[1]])
    assert later.memory["prototypes/classes"].tolist() == [2] and later.round == 3


def test_the_cluster_contrast_by_hand():
    """Cosines of z to C: 1, 0 and -1. With positives {1}, {1, 0} and none."""
    z, C = torch.tensor([[2.0, 0.0]], requires_grad=True), torch.tensor([[3.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    e = [math.exp(cosine / 0.5) for cosine in (1, 0, -1)]
    for same, expected in (([1, 0, 0], e[0]), ([1, 1, 0], e[0] + e[1]), ([0, 0, 1], e[2])):
        value = cluster_contrast(z, C, torch.tensor([same]) > 0, 0.5)
        assert value.item() == pytest.approx(-math.log(expected / sum(e)), rel=1e-6)
    nobody = cluster_contrast(z, C, torch.zeros(1, 3, dtype=torch.bool), 0.5)
    nobody.backward()
    assert nobody.item() == 0.0 and torch.equal(z.grad, torch.zeros(1, 2))
    both = cluster_contrast(torch.tensor([[2.0, 0.0]] * 2), C, torch.tensor([[1, 0, 0], [0, 0, 0]]) > 0, 0.5)
    assert both.item() == pytest.approx(-math.log(e[0] / sum(e)) / 2, rel=1e-6)


def test_the_loss_of_fpl_sample_by_sample():
    """Class 2 has no prototype, class 0 has two."""
    fed, generator = tiny.federation((40,), classes=5), torch.Generator().manual_seed(4)
    C, U = torch.rand(5, 32, generator=generator), torch.rand(5, 32, generator=generator)
    classes = torch.tensor([0, 0, 1, 3, 4])
    sent = {"prototypes/clusters": C, "prototypes/classes": classes, "prototypes/unbiased": U}
    method, work = FPL(contrast_tau=0.3, contrast=0.7, consistency=2.0), work_on(fed, FPL(), sent)
    method.start(work)
    batch = batch_of(work)
    terms = method.loss(work.model.eval(), batch, work)
    contrast, consistency = 0.0, 0.0
    for z, y in zip(work.model.embed(batch.x).detach(), batch.y.tolist(), strict=True):
        if y != 2:
            e = [float((z @ c / z.norm() / c.norm() / 0.3).exp()) for c in C]
            contrast -= math.log(sum(e[j] for j in range(5) if classes[j] == y) / sum(e)) / 40
            consistency += float((z - U[y]).square().mean()) / 40
    target = F.cross_entropy(work.model(batch.x), batch.y).item()
    assert (batch.y == 2).any()
    assert terms["contrast"].item() == pytest.approx(contrast, rel=1e-4)
    assert terms["consistency"].item() == pytest.approx(consistency, rel=1e-4)
    assert terms["total"].item() == pytest.approx(target + 0.7 * contrast + 2.0 * consistency, rel=1e-4)
