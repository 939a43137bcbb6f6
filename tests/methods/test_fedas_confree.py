"""FedAS, ConFREE and their released variants against closed forms, identities and sums by hand."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace

import numpy as np
import pytest
import tiny
import torch
import torch.nn.functional as F
from test_baselines_b import name_of, personal_models, work_on
from test_methods import LOCAL, PLAN
from torch import Tensor

from fedlib.methods.confree import ConFREE, fairest, guidance
from fedlib.methods.fedas import FedAS, alignment, prototypes
from fedlib.methods.fedavg import FedAvg
from fedlib.methods.fedpac import features
from fedlib.methods.fedper import FedPer
from fedlib.methods.fedrep import FedRep
from fedlib.methods.method import Method, Server, State, Upload, Work
from fedlib.methods.released.feddrm import ConFREEAsReleased, FedASAsReleased, FedRepAsReleased
from fedlib.rounds import Plan
from fedlib.training import Batch, Local, prepare

# FedAS


@dataclass(frozen=True)
class Unsynchronised(FedAS):
    """FedAS whose Fisher traces are all the same."""

    def fisher_trace(self, work: Work) -> Tensor:
        return torch.tensor(3.0)


def test_fedas_without_alignment_and_with_equal_traces_is_fedper():
    fed = tiny.federation((24, 24, 24))
    got, plain = (tiny.train(m, fed, PLAN, LOCAL) for m in (Unsynchronised(align_steps=0), FedPer()))
    torch.testing.assert_close(personal_models(FedAS(), got), personal_models(FedPer(), plain))
    alone = tiny.federation((24,))
    one, plain = (tiny.train(m, alone, PLAN, LOCAL) for m in (FedAS(align_steps=0), FedPer()))
    assert tiny.same(personal_models(FedAS(), one)[0], personal_models(FedPer(), plain)[0])
    assert not tiny.same(one.server.weights, tiny.train(FedAS(), alone, PLAN, LOCAL).server.weights)


@pytest.mark.parametrize("batch_size", [1, 20])
def test_the_fisher_trace_of_softmax_regression_by_hand(batch_size: int):
    """grad = mean_{j in b} (p_j - e_{y_j}) (x_j', 1), squared and summed over the batches b."""
    fed = tiny.federation((20,), side=2, classes=3)
    work = work_on(fed, FedAvg(), local=replace(LOCAL, batch_size=batch_size), model="linear")
    x, y = prepare(work.samples.images).flatten(1), work.samples.labels
    error = work.model(prepare(work.samples.images)).softmax(1) - F.one_hot(y, 3)
    each = torch.einsum("nk,nd->nkd", error, torch.cat([x, torch.ones(20, 1)], 1))
    trace = each.square().sum() if batch_size == 1 else each.mean(0).square().sum()
    torch.testing.assert_close(FedAS().fisher_trace(work).float(), trace.detach(), rtol=1e-4, atol=1e-6)


def test_bodies_are_weighted_by_their_traces():
    server = Server({"w": torch.zeros(1)}, 4)
    sent = [
        Upload(i, {"w": torch.full((1,), v)}, {}, n, {}, {"fisher": torch.tensor(t)})
        for i, (v, n, t) in enumerate([(1.0, 90, 1.0), (5.0, 10, 3.0)])
    ]
    assert FedAS().aggregate(server, sent).weights["w"].item() == (1.0 + 3 * 5.0) / 4
    assert FedASAsReleased().aggregate(server, sent).weights["w"].item() == pytest.approx((90 * 1.0 + 10 * 5.0) / 100)
    vanished = [replace(upload, extra={"fisher": torch.tensor(0.0)}) for upload in sent]
    assert FedAS().aggregate(server, vanished).weights["w"].item() == 3.0


def test_alignment_draws_the_features_to_the_class_means_of_the_last_model():
    """By plain gradient steps on the body: momentum and weight decay of the training are left out."""
    fed, method = tiny.federation((40,), classes=3), FedAS(align_lr=0.02)
    work = work_on(fed, FedPer(), local=replace(LOCAL, batch_size=40, momentum=0.9, weight_decay=0.5))
    x, y = prepare(work.samples.images), work.samples.labels
    before = features(work.model, x)
    p = prototypes(work.model, work.samples)
    torch.testing.assert_close(p, torch.stack([before[y == k].mean(0) for k in range(3)]), rtol=1e-4, atol=1e-5)
    work, batch = replace(work, memory={"prototypes": p + 1.0}), Batch(x, y, 0)
    by_hand = sum((before[y == k] - p[k] - 1.0).square().mean() for k in range(3))
    torch.testing.assert_close(alignment(work.model, batch, p + 1.0), by_hand, rtol=1e-4, atol=1e-4)
    by_steps = copy.deepcopy(work.model)
    body = {name: w for name, w in by_steps.named_parameters() if method.shared(name)}
    for _ in (1, 2):
        slopes = torch.autograd.grad(alignment(by_steps, batch, p + 1.0), list(body.values()))
        with torch.no_grad():
            for w, slope in zip(body.values(), slopes, strict=True):
                w.sub_(0.02 * slope)
    head = work.model.head.weight.clone()
    method.align(work, 2)
    torch.testing.assert_close(dict(work.model.state_dict()), dict(by_steps.state_dict()), rtol=1e-4, atol=1e-5)
    method.align(work, 5)
    assert alignment(work.model, batch, p + 1.0) < by_hand and torch.equal(work.model.head.weight, head)


@pytest.mark.parametrize(
    ("method", "E", "aligning", "training"),
    [
        (FedAS(), 10, 10, 10),
        (FedAS(align_steps=2), 10, 2, 10),
        (FedAS(align_steps=0), 10, 0, 10),
        (FedASAsReleased(), 10, 2, 8),
        (FedASAsReleased(), 7, 1, 6),
        (FedASAsReleased(), 4, 0, 4),
    ],
)
def test_there_is_no_alignment_before_there_is_a_last_model(
    method: Method, E: int, aligning: int, training: int, monkeypatch
):
    aligned: list[tuple[int, int]] = []
    trained: list[int] = []
    descend = Method.descend

    def noted(self, work: Work, **options) -> dict[str, float]:
        trained.append(options.get("steps") or E)
        return descend(self, work, **options)

    monkeypatch.setattr(Method, "descend", noted)
    monkeypatch.setattr(type(method), "align", lambda self, work, *rest: aligned.append((work.round, rest[-1])))
    tiny.train(method, tiny.federation((20,)), Plan(3, 0.01), Local(steps=E, batch_size=16, crop=False))
    assert trained == [training] * 3 and aligned == ([(2, aligning), (3, aligning)] if aligning else [])


def test_released_fedas_compares_image_by_image():
    """A step on the mean over images and features of the squared distance; none where the model has not moved."""
    method, fed = FedASAsReleased(), tiny.federation((20,))
    work = work_on(fed, FedPer(), local=replace(LOCAL, batch_size=20, momentum=0.0, weight_decay=0.0))
    backbone, x = work.model.backbone, prepare(work.samples.images)
    previous, before = copy.deepcopy(backbone), copy.deepcopy(work.model.state_dict())
    method.align(work, previous, 1)
    assert tiny.same(work.model.state_dict(), before)
    with torch.no_grad():
        previous[0].weight.mul_(1.5)
        previous[1].bias.add_(0.3)
    loss = (backbone(x) - previous(x).detach()).square().mean()
    slopes = torch.autograd.grad(loss, list(backbone.parameters()))
    stepped = [w.detach() - 0.05 * slope for w, slope in zip(backbone.parameters(), slopes, strict=True)]
    method.align(work, previous, 1)
    torch.testing.assert_close([w.detach() for w in backbone.parameters()], stepped, rtol=1e-4, atol=1e-6)


def test_released_fedas_looks_back_at_the_client_s_own_backbone(monkeypatch):
    """Which is not the one that comes down, as soon as there are two clients."""
    seen: list[tuple[State, State]] = []

    def look(self, work: Work, previous, steps: int) -> None:
        seen.append((previous.state_dict(), work.message))

    monkeypatch.setattr(FedASAsReleased, "align", look)
    states: list[list[State]] = []
    five = Local(steps=5, batch_size=16, crop=False)
    keep = states.append
    fed = tiny.federation((20, 24))
    tiny.train(FedASAsReleased(), fed, Plan(2, 0.05), five, after_round=lambda now: keep(list(now.memories)))
    for memory, (previous, message) in zip(states[0], seen, strict=True):
        assert tiny.same(
            {f"last/{name}": w for name, w in previous.items()}, {n: memory[n] for n in memory if "last" in n}
        )
        assert not torch.equal(previous["0.weight"], message["backbone.0.weight"])


# ConFREE


def moved(method: Method, updates: list[list[float]], sizes: list[int] | None = None, start: float = 2.0) -> Tensor:
    """Where theta = (start, start, …) goes, minus theta."""
    theta = torch.full((len(updates[0]),), start)
    sizes = sizes or [5] * len(updates)
    sent = [
        Upload(i, {"w": theta + torch.tensor(u)}, {}, n, {})
        for i, (u, n) in enumerate(zip(updates, sizes, strict=True))
    ]
    return method.aggregate(Server({"w": theta}, 3), iter(sent)).weights["w"] - theta


CLASH = [[1.0, 0.0], [-1.0, 1.0]]


@pytest.mark.parametrize("method", [ConFREE(radius=0.0), ConFREEAsReleased()], ids=name_of)
def test_conflicting_updates_are_projected(method: Method):
    """<D_1, D_2> = -1: D_1' = D_1 + D_2 / 2 = (1/2, 1/2), D_2' = D_2 + D_1 = (0, 1)."""
    assert moved(method, CLASH).tolist() == pytest.approx([0.25, 0.75], abs=1e-6)
    assert moved(method, CLASH, [3, 1]).tolist() == pytest.approx([0.375, 0.625], abs=1e-6)
    agreeing = [[1.0, 0.5, 0.0], [0.5, 1.0, 0.0], [0.0, 0.0, 2.0]]
    assert moved(method, agreeing, [1, 2, 5]).tolist() == pytest.approx([0.25, 0.3125, 1.25], abs=1e-6)


def test_the_released_projections_are_of_the_original_updates():
    """Three updates, of which D_1 clashes with both others: both projections count, ConFREE's in turn."""
    updates = [[1.0, 0.0], [-1.0, 1.0], [-1.0, 0.0]]
    D = torch.tensor(updates)
    one = D[0] + D[1] / 2 + D[2]
    two, three = D[1] + D[0], D[2] + D[0]
    assert moved(ConFREEAsReleased(), updates).tolist() == pytest.approx(((one + two + three) / 3).tolist(), abs=1e-6)
    in_turn = D[0] + D[2]
    assert moved(ConFREE(radius=0.0), updates).tolist() == pytest.approx(((in_turn + two + three) / 3).tolist())


def test_conflicts_are_those_of_a_tensor_and_as_released_those_of_the_whole_body():
    theta = {"a": torch.zeros(2), "b": torch.zeros(1)}
    sent = [Upload(i, {"a": torch.tensor(u), "b": torch.ones(1)}, {}, 5, {}) for i, u in enumerate(CLASH)]
    mine, released = (m.aggregate(Server(theta, 1), sent).weights for m in (ConFREE(radius=0.0), ConFREEAsReleased()))
    assert mine["a"].tolist() == pytest.approx([0.25, 0.75]) and mine["b"].item() == pytest.approx(1.0)
    assert released["a"].tolist() == pytest.approx([0.0, 0.5]) and released["b"].item() == pytest.approx(1.0)


@pytest.mark.parametrize("radius", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("updates", [CLASH, [[1.0, 0.2], [0.3, 1.0]], [[3.0, 1.0], [-1.0, 0.1], [0.2, -0.4]]])
def test_the_step_is_the_best_of_the_ball_for_the_client_it_serves_worst(updates: list[list[float]], radius: float):
    D = np.array(updates)
    g = guidance(D @ D.T, np.full(len(D), 1 / len(D)))
    d = (1 + radius**2) * fairest(D @ D.T, g, radius) @ D
    reach = radius * np.linalg.norm(g @ D)
    assert np.linalg.norm(d - g @ D) <= reach * (1 + 1e-9)
    angle = np.linspace(0, 2 * np.pi, 20_001)
    rim = g @ D + reach * np.stack([np.cos(angle), np.sin(angle)], 1)
    assert (D @ d).min() >= (rim @ D.T).min(1).max() - 1e-9
    if len(D) == 2:
        assert (D @ d).min() > (D @ (g @ D)).min()


def test_an_update_of_zero_and_no_updates_at_all_do_no_harm():
    assert torch.equal(moved(ConFREE(), [[0.0, 0.0], [0.0, 0.0]]), torch.zeros(2))
    expected = torch.tensor([0.5, 1.0]) / (1 + 0.25)
    torch.testing.assert_close(moved(ConFREE(), [[1.0, 2.0], [0.0, 0.0]]), expected)


@pytest.mark.parametrize("method", [ConFREE(), ConFREEAsReleased()], ids=name_of)
def test_the_order_of_the_clients_does_not_matter(method: Method):
    updates = np.random.default_rng(5).normal(size=(6, 4)).tolist()
    sizes = [3, 9, 4, 4, 1, 7]
    turned = moved(method, updates[::-1], sizes[::-1])
    torch.testing.assert_close(moved(method, updates, sizes), turned, rtol=1e-5, atol=1e-6)


def test_confree_of_one_client_is_fedrep():
    fed = tiny.federation((40,))
    pairs = ((ConFREE(radius=0.0), FedRep()), (ConFREEAsReleased(), FedRepAsReleased()))
    for method, plain in pairs:
        got, expected = (tiny.train(m, fed, PLAN, LOCAL) for m in (method, plain))
        assert tiny.same_snapshots(got, expected)
    assert moved(ConFREE(radius=0.5), [[1.0, 2.0]]).tolist() == pytest.approx([1.2, 2.4])
