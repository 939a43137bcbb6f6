"""FedSA against its margin, gap, loss and anchors by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import tiny
import torch
import torch.nn.functional as F
from domain_tasks import first_batch, task, three_clients, train, work_on

from fedlib.data.federation import Samples
from fedlib.methods.fedavg import FedAvg
from fedlib.methods.fedsa import FedSA, class_means, margin_contrast, mean_least_distance
from fedlib.methods.method import Server, Task, Upload
from fedlib.rounds import Plan, size
from fedlib.training import Batch, prepare


def test_the_margin_by_hand():
    """||z - a|| = 5 and 1; the own class is further by the gap: -(5 + 2) against -1, and -5 against -(1 + 2)."""
    z, a = torch.zeros(1, 2), torch.tensor([[3.0, 4.0], [0.0, 1.0]])
    for y, logit in ((0, 6.0), (1, -2.0)):
        found = margin_contrast(z, torch.tensor([y]), a, torch.tensor(2.0))
        assert found.item() == pytest.approx(math.log1p(math.exp(logit)))
    both = margin_contrast(torch.zeros(2, 2), torch.tensor([0, 1]), a, torch.tensor(0.0))
    assert both.item() == pytest.approx((math.log1p(math.exp(4.0)) + math.log1p(math.exp(-4.0))) / 2)


def test_features_that_lie_on_their_anchor_have_a_gradient():
    z = torch.tensor([[1.0, 2.0]], requires_grad=True)
    margin_contrast(z, torch.tensor([0]), torch.tensor([[1.0, 2.0], [1.0, 5.0]]), torch.tensor(0.0)).backward()
    # The nearest other anchor pushes with its softmax, along the line from it.
    torch.testing.assert_close(z.grad, torch.tensor([[0.0, 1.0 / (1.0 + math.exp(3.0))]]))


def test_the_gap_is_the_mean_of_the_least_distances():
    assert mean_least_distance(torch.tensor([[0.0], [1.0], [3.0]])).item() == pytest.approx((1 + 1 + 2) / 3)
    assert mean_least_distance(torch.tensor([[5.0]])).item() == 0.0 == mean_least_distance(torch.zeros(0, 4)).item()


@pytest.mark.parametrize(("own", "common", "gap"), [(None, 3.0, 3.0), (5.0, 3.0, 5.0), (1.0, 3.0, 3.0)])
def test_the_loss_by_hand(own: float | None, common: float, gap: float):
    """Four terms; the head is calibrated on the anchors of all classes, though the batch has two of the three."""
    fed, weights = three_clients(), {"calibration": 0.7, "regularisation": 1.3, "contrast": 0.2}
    method = FedSA(**weights)
    work = work_on(fed, method, memory={} if own is None else {"gap": torch.tensor(own)})
    work = replace(work, message=work.message | {"gap": torch.tensor(common)})
    batch = replace_labels(first_batch(fed), [0, 2, 2, 0, 0, 2, 0, 2])
    a = work.message["anchors"]
    terms = method.loss(work.model, batch, work)
    z = work.model.embed(batch.x)
    contrast = torch.zeros(())
    for j, k in enumerate(batch.y.tolist()):
        near = [-((z[j] - a[c]).square().sum().sqrt() + (gap if c == k else 0.0)) for c in range(3)]
        contrast = contrast - (near[k] - torch.stack(near).logsumexp(0)) / 8
    expected = {
        "target": F.cross_entropy(work.model.head(z), batch.y),
        "calibration": sum(-work.model.head(a[k]).log_softmax(0)[k] for k in range(3)) / 3,
        "regularisation": sum((z[j] - a[k]).square().sum() for j, k in enumerate(batch.y)) / (8 * 32),
        "contrast": contrast,
    }
    expected["total"] = expected["target"] + sum(weights[name] * expected[name] for name in weights)
    torch.testing.assert_close(terms, expected)


def replace_labels(batch: Batch, labels: list[int]) -> Batch:
    return batch._replace(y=torch.tensor(labels))


def test_without_its_three_terms_it_is_fedavg_bit_for_bit():
    fed = three_clients()
    got, plain = (train(m, fed) for m in (FedSA(calibration=0, regularisation=0, contrast=0), FedAvg()))
    assert tiny.same(got.server.weights, plain.server.weights)
    assert all(tiny.same(FedSA().personal_model(got.server, i, got.memories[i]), got.server.weights) for i in range(3))
    assert not tiny.same(train(FedSA(), fed).server.weights, plain.server.weights)


def test_anchors_depend_on_the_seed_alone_and_leave_the_global_generator_alone():
    fed = three_clients()
    drawn = []
    for seed in (0, 0, 1):
        torch.manual_seed(len(drawn))
        before = torch.get_rng_state()
        drawn.append(FedSA().remember(task(fed, seed=seed))["anchors"])
        assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])
    assert drawn[0].shape == (3, 32)


def test_anchors_have_components_of_variance_one():
    """W r has E |(W r)_j|^2 = 1; over 40 classes and 512 components the mean is within some percent of it."""
    task = Task({"name": "resnet10", "width": 64}, (3, 16, 16), 40, (5,), 1, 3)
    a = FedSA().remember(task)["anchors"]
    assert a.mean().item() == pytest.approx(0.0, abs=0.02) and a.square().mean().item() == pytest.approx(1.0, abs=0.1)


def sent_means(i: int, theta: float, samples: int, mu: list[list[float]], n: list[float]) -> Upload:
    extra = {"class_means": torch.tensor(mu), "class_counts": torch.tensor(n)}
    return Upload(i, {"w": torch.tensor([theta])}, {}, samples, {}, extra)


@pytest.mark.parametrize("decay", [0.0, 0.75, 0.9999, 1.0])
def test_anchors_move_to_the_class_means_and_those_of_a_class_that_nobody_has_stay(decay: float):
    """c_0 = (3 * 1 + 1 * 5) / 4 = 2 and c_1 = 8 along the first axis; nobody has class 2."""
    a = torch.tensor([[0.0, 1.0], [4.0, 0.0], [9.0, 9.0]])
    server = Server({"w": torch.zeros(1)}, 1, {"anchors": a, "gap": torch.tensor(0.0), "kept": torch.tensor(7.0)})
    one = sent_means(0, 1.0, 30, [[1.0, 0.0], [0.0, 0.0], [0.0, 0.0]], [3.0, 0.0, 0.0])
    two = sent_means(1, 5.0, 10, [[5.0, 0.0], [8.0, 0.0], [0.0, 0.0]], [1.0, 2.0, 0.0])
    after = FedSA(decay=decay).aggregate(server, [one, two])
    c = torch.tensor([[2.0, 0.0], [8.0, 0.0]])
    torch.testing.assert_close(after.memory["anchors"][:2], decay * a[:2] + (1 - decay) * c)
    assert torch.equal(after.memory["anchors"][2], a[2])
    assert after.memory["gap"].item() == 6.0 and after.memory["kept"].item() == 7.0
    assert after.weights["w"].item() == pytest.approx((30 * 1.0 + 10 * 5.0) / 40) and after.round == 2


def test_class_means_are_those_of_the_trained_model_and_the_gap_is_kept():
    fed, method = three_clients((20,)), FedSA()
    images, labels = fed.clients[0].train.images, fed.clients[0].train.labels.clamp(max=1)
    upload = method.client_update(work := work_on(fed, method, samples=Samples(images, labels)))
    work.model.eval()
    with torch.no_grad():
        z = work.model.embed(prepare(images))
    expected = torch.stack([z[labels == 0].mean(0), z[labels == 1].mean(0), torch.zeros(32)])
    torch.testing.assert_close(upload.extra["class_means"], expected)
    assert upload.extra["class_counts"].tolist() == [*torch.bincount(labels).tolist(), 0]
    torch.testing.assert_close(upload.memory, {"gap": (expected[0] - expected[1]).norm()})
    means, _ = class_means(work.model, Samples(images[:1], labels[:1]), 3)
    torch.testing.assert_close(means[labels[0]], z[0])


def test_down_go_model_anchors_and_gap_and_up_model_class_means_and_counts():
    now = train(FedSA(), three_clients(), Plan(1, 0.05))
    sent = {row.metric: row.value for row in now.history if row.metric.startswith("bytes")}
    model = size(now.server.weights)
    assert sent == {"bytes_down": 3 * (model + 4 * (3 * 32 + 1)), "bytes_up": 3 * (model + 4 * (3 * 32 + 3))}
