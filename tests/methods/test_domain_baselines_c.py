"""FedSA and FDSE against closed forms, identities and sums by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import tiny
import torch
import torch.nn.functional as F
from test_methods import LOCAL, step_by_hand
from torch import Tensor, nn

from fedlib.checks import FedlibError
from fedlib.data.federation import Federation, Samples
from fedlib.engines import Serial, one_thread
from fedlib.methods import known, make
from fedlib.methods.f2dc import Calibration
from fedlib.methods.fdse import FDSE, consensus, inconsistency, kinship, layer_by_layer
from fedlib.methods.fdse_network import Eraser, Moments, is_eraser, is_statistic, watched
from fedlib.methods.fedavg import FedAvg
from fedlib.methods.fedsa import FedSA, class_means, margin_contrast, mean_least_distance
from fedlib.methods.method import Method, Server, State, Task, Upload, Work, initial_state
from fedlib.models.resnet10 import resnet10
from fedlib.rounds import Plan, Snapshot, federate, size
from fedlib.store import load_snapshot, save_snapshot
from fedlib.training import Batch, prepare

PLAN = Plan(2, 0.05, evaluate_every=2)
NARROW = {"name": "resnet10", "width": 2}


def task_of(fed: Federation, rounds: int = 2, seed: int = 0) -> Task:
    return Task(NARROW, fed.shape, len(fed.classes), fed.sizes, rounds, seed)


def train(
    method: Method, fed: Federation, plan: Plan = PLAN, after_round: Callable[[Snapshot], None] | None = None
) -> Snapshot:
    return federate(method, fed, task_of(fed, plan.rounds), LOCAL, plan, Serial(), after_round=after_round)


def federation(sizes: tuple[int, ...] = (20, 24, 18), classes: int = 3) -> Federation:
    return tiny.federation(sizes, side=8, classes=classes, test=4)


def work_on(fed: Federation, method: Method, round: int = 2, **changes: Any) -> Work:
    """Client 0's work, from the initial network."""
    network, server, _ = initial_state(method, task_of(fed))
    message = method.broadcast(server, 0, {})
    given = Work(0, fed.clients[0].train, message, {}, network, LOCAL, 0.05, round, 3, torch.Generator())
    return replace(given, **changes)


def first_batch(fed: Federation, count: int = 8) -> Batch:
    samples = fed.clients[0].train
    return Batch(prepare(samples.images[:count]), samples.labels[:count], 0)


@pytest.mark.parametrize("method", [FedSA(), FDSE()])
def test_goes_on_bit_for_bit_with_some_of_the_clients(method: Method, tmp_path):
    fed, plan = federation((20, 18, 20, 18)), Plan(3, 0.05, participation=0.5, evaluate_every=3)
    path = tmp_path / "snapshot.safetensors"

    def keep(now: Snapshot) -> None:
        if now.server.round == 1:
            save_snapshot(path, now)

    whole = train(method, fed, plan, keep)
    again = federate(method, fed, task_of(fed, 3), LOCAL, plan, Serial(), resume=load_snapshot(path))
    assert tiny.same_snapshots(whole, again)


@pytest.mark.parametrize("method", [FedSA(), FDSE()])
def test_the_order_of_the_clients_does_not_matter(method: Method):
    fed = federation()
    _, server, memories = initial_state(method, task_of(fed))
    sent: list[Upload] = []
    for i in range(3):
        model, _, _ = initial_state(method, task_of(fed))
        given = work_on(fed, method, client=i, samples=fed.clients[i].train, model=model, memory=memories[i])
        sent.append(method.client_update(given))
    one, other = method.aggregate(server, sent), method.aggregate(server, [sent[2], sent[0], sent[1]])
    torch.testing.assert_close(other.weights, one.weights)
    torch.testing.assert_close(other.memory, one.memory)


def test_they_are_found_by_their_names_and_have_the_authors_defaults():
    assert {"FedSA", "FDSE"} <= set(known())
    assert (FDSE().lam, FDSE().beta, FDSE().eraser_tau, FDSE().G) == (0.5, 0.001, 0.5, 2)
    assert (FedSA().calibration, FedSA().regularisation, FedSA().contrast, FedSA().decay) == (1.0, 1.0, 1.0, 0.9999)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"name": "FedSA", "decay": 1.1}, "FedSA.decay: 1.1 is out of range; give a number at least 0.0 and at most 1"),
        ({"name": "FedSA", "contrast": -1}, "FedSA.contrast: -1 is out of range"),
        ({"name": "FDSE", "eraser_tau": 0}, "FDSE.eraser_tau: 0 is out of range; give a number above 0.0"),
        ({"name": "FDSE", "G": 1.5}, "FDSE.G: 1.5 is float, not a whole number"),
        ({"name": "FDSE", "beta": math.inf}, "FDSE.beta: inf is out of range"),
    ],
)
def test_wrong_values_are_refused(spec: dict, message: str):
    with pytest.raises(FedlibError) as caught:
        make(spec)
    assert message in str(caught.value)


# FedSA


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
    fed, weights = federation(), {"calibration": 0.7, "regularisation": 1.3, "contrast": 0.2}
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
        "regularisation": sum((z[j] - a[k]).square().sum() for j, k in enumerate(batch.y)) / (8 * 16),
        "contrast": contrast,
    }
    expected["total"] = expected["target"] + sum(weights[name] * expected[name] for name in weights)
    torch.testing.assert_close(terms, expected)


def replace_labels(batch: Batch, labels: list[int]) -> Batch:
    return batch._replace(y=torch.tensor(labels))


def test_without_its_three_terms_it_is_fedavg_bit_for_bit():
    fed = federation()
    got, plain = (train(m, fed) for m in (FedSA(calibration=0, regularisation=0, contrast=0), FedAvg()))
    assert tiny.same(got.server.weights, plain.server.weights)
    assert all(tiny.same(FedSA().personal_model(got.server, i, got.memories[i]), got.server.weights) for i in range(3))
    assert not tiny.same(train(FedSA(), fed).server.weights, plain.server.weights)


def test_anchors_depend_on_the_seed_alone_and_leave_the_global_generator_alone():
    fed = federation()
    drawn = []
    for seed in (0, 0, 1):
        torch.manual_seed(len(drawn))
        before = torch.get_rng_state()
        drawn.append(FedSA().remember(task_of(fed, seed=seed))["anchors"])
        assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])
    assert drawn[0].shape == (3, 16)


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
    fed, method = federation((20,)), FedSA()
    images, labels = fed.clients[0].train.images, fed.clients[0].train.labels.clamp(max=1)
    upload = method.client_update(work := work_on(fed, method, samples=Samples(images, labels)))
    work.model.eval()
    with torch.no_grad():
        z = work.model.embed(prepare(images))
    expected = torch.stack([z[labels == 0].mean(0), z[labels == 1].mean(0), torch.zeros(16)])
    torch.testing.assert_close(upload.extra["class_means"], expected)
    assert upload.extra["class_counts"].tolist() == [*torch.bincount(labels).tolist(), 0]
    torch.testing.assert_close(upload.memory, {"gap": (expected[0] - expected[1]).norm()})
    means, _ = class_means(work.model, Samples(images[:1], labels[:1]), 3)
    torch.testing.assert_close(means[labels[0]], z[0])


def test_down_go_model_anchors_and_gap_and_up_model_class_means_and_counts():
    now = train(FedSA(), federation(), Plan(1, 0.05))
    sent = {row.metric: row.value for row in now.history if row.metric.startswith("bytes")}
    model = size(now.server.weights)
    assert sent == {"bytes_down": 3 * (model + 4 * (3 * 16 + 1)), "bytes_up": 3 * (model + 4 * (3 * 16 + 3))}


# FDSE: the network


def convolutions(C_in: int, w: int) -> list[tuple[int, int, int]]:
    """(inputs, outputs, side of the kernel) of resnet10, in the order of its forward pass."""
    found = [(C_in, w, 3), (w, w, 3), (w, w, 3)]
    for c in (w, 2 * w, 4 * w):
        found += [(c, 2 * c, 3), (2 * c, 2 * c, 3), (c, 2 * c, 1)]
    return found


def network(w: int = 2, classes: int = 3, C_in: int = 3, G: int = 2, seed: int = 0, device: str = "cpu") -> nn.Module:
    with torch.random.fork_rng(), torch.device(device):
        torch.manual_seed(seed)
        return FDSE(G=G).build(Task({"name": "resnet10", "width": w}, (C_in, 16, 16), classes, (8,), 1, 0))


def count(model: nn.Module) -> int:
    return sum(w.numel() for w in model.parameters())


@pytest.mark.parametrize(
    ("w", "G", "classes", "C_in"), [(64, 2, 7, 3), (64, 1, 7, 3), (6, 2, 10, 1), (6, 3, 4, 3), (8, 4, 5, 3)]
)
def test_its_parameters_in_closed_form(w: int, G: int, classes: int, C_in: int):
    with torch.device("meta"):
        plain = count(resnet10((C_in, 16, 16), classes, width=w))
    norms_and_head = 90 * w + 8 * w * classes + classes
    assert plain == 1194 * w**2 + 9 * C_in * w + norms_and_head
    expected = (1194 * w**2 + 9 * C_in * w) // G + 405 * w * (G - 1) // G + norms_and_head
    assert count(network(w, classes, C_in, G, device="meta")) == expected


def test_at_full_width_it_has_half_of_resnet10s_parameters():
    assert count(network(64, 7, device="meta")) == 2_468_487 < 0.504 * 4_901_703


@pytest.mark.parametrize(("w", "G"), [(1, 2), (3, 2), (5, 3), (2, 50)])
def test_its_parameters_where_G_does_not_divide_the_width(w: int, G: int):
    expected = 8 * w * 3 + 3
    for inputs, C, side in convolutions(3, w):
        c = math.ceil(C / G)
        expected += inputs * side**2 * c + 9 * (C - c) + 2 * C
    assert count(network(w, G=G)) == expected


def test_with_G_1_it_is_resnet10_bit_for_bit():
    with torch.random.fork_rng():
        torch.manual_seed(1)
        plain = resnet10((3, 16, 16), 3, width=3)
    split, state = network(3, G=1), {}
    for name, tensor in plain.state_dict().items():
        layer, _, rest = name.rpartition(".")
        before, _, part = layer.rpartition(".")
        new = {"conv": "extractor", "norm": "eraser.norm"}.get(part[:4])
        state[f"{before}.conv{part[4:]}.{new}.{rest}" if new else name] = tensor
    split.load_state_dict(state)
    x = first_batch(federation()).x
    for model in (plain, split):
        model.train()
    assert torch.equal(split(x), plain(x))
    for model in (plain, split):
        model.eval()
    assert torch.equal(split(x), plain(x)) and not any("cheap" in name for name in state)


@pytest.mark.parametrize(("w", "G"), [(4, 2), (3, 2), (5, 3), (1, 2)])
def test_maps_features_and_logits_have_the_shapes_of_resnet10(w: int, G: int):
    plain, split, x = resnet10((3, 16, 16), 3, width=w), network(w, G=G), first_batch(federation()).x
    for layer in ("stem", "layer1", "layer2", "layer3", "layer4"):
        x = plain.backbone.get_submodule(layer)(y := x)
        assert split.backbone.get_submodule(layer)(y).shape == x.shape
    z = split.embed(y := first_batch(federation()).x)
    assert z.shape == (8, 8 * w) == (8, split.width) and split(y).shape == (8, 3)
    split.eval(), plain.eval()
    assert torch.equal(split(y), split.head(split.transform(split.backbone(y))))


def test_remaining_channels_come_from_the_extractors_in_turn():
    """Kernels that are 1 in the middle copy: of two channels, seven come out as 0 1 0 1 0 1 0, over sqrt(1 + eps)."""
    eraser, u = Eraser(2, 7).eval(), torch.randn(3, 2, 4, 5, generator=torch.Generator().manual_seed(0))
    kernel = torch.zeros(5, 1, 3, 3)
    kernel[:, :, 1, 1] = torch.arange(1.0, 6.0)[:, None]
    eraser.cheap.weight.data = kernel
    expected = torch.stack([u[:, 0], u[:, 1], u[:, 0], 2 * u[:, 1], 3 * u[:, 0], 4 * u[:, 1], 5 * u[:, 0]], 1)
    torch.testing.assert_close(eraser(u), expected / math.sqrt(1 + 1e-5))


def test_a_model_without_such_convolutions_is_refused():
    fed = federation()
    with pytest.raises(FedlibError, match=r"FDSE divides .* model small_cnn is not made of these; take resnet10"):
        initial_state(FDSE(), tiny.task(fed))


# FDSE: the consistency


def test_moments_and_their_gradients_are_those_of_var_mean():
    generator = torch.Generator().manual_seed(0)
    v = torch.randn(3, 2, 2, 2, generator=generator, dtype=torch.float64, requires_grad=True)
    var, mu = torch.var_mean(v, (0, 2, 3))
    torch.testing.assert_close(Moments.apply(v), (mu, var))
    assert torch.autograd.gradcheck(Moments.apply, (v,))


def statistics_of(model: nn.Module, x: Tensor) -> State:
    """What the running statistics would be if they were this batch's."""
    with torch.no_grad(), watched(model) as seen:
        model(x)
    found = {}
    for name, v in seen:
        var, mu = torch.var_mean(v, (0, 2, 3))
        found |= {f"{name}.running_mean": mu, f"{name}.running_var": var}
    return found


def test_all_twelve_layers_are_watched_in_order_and_only_meanwhile():
    model, x = network(), first_batch(federation()).x
    blocks = [f"layer{b}.{c}" for b in (1, 2, 3, 4) for c in ("conv1", "conv2", "shortcut.conv")]
    layers = ["stem.conv", *(name for name in blocks if name != "layer1.shortcut.conv")]
    with watched(model) as seen:
        model(x)
    assert [name for name, _ in seen] == [f"backbone.{layer}.eraser.norm" for layer in layers]
    assert [v.shape[1] for _, v in seen] == [C for _, C, _ in convolutions(3, 2)]
    model(x)
    assert len(seen) == 12


def test_a_batch_with_the_global_statistics_is_consistent_and_a_known_offset_costs_what_it_should():
    """+3 in each mean is 9 in each layer, and in total; +2 in the variances of one layer alone is 4 w_l."""
    fed, method = federation(), FDSE(lam=0.25, beta=0.3)
    work, batch = work_on(fed, method), first_batch(fed)
    same = statistics_of(work.model, batch.x)
    names = [name for name in same if name.endswith("running_var")]

    def loss(changed: State, round: int = 2) -> State:
        given = replace(work, round=round, message=work.message | same | changed)
        return method.loss(work.model, batch, given)

    terms = loss({})
    assert terms["consistency"].item() == pytest.approx(0.0, abs=1e-9)
    assert terms["target"].item() == pytest.approx(F.cross_entropy(work.model(batch.x), batch.y).item())
    moved = loss({name: same[name] + 3.0 for name in same if name.endswith("mean")})
    assert moved["consistency"].item() == pytest.approx(9.0, rel=1e-5)
    assert moved["total"].item() == pytest.approx(moved["target"].item() + 0.25 * 9.0, rel=1e-5)
    w = np.exp(0.3 * np.arange(1, 13)) / np.exp(0.3 * np.arange(1, 13)).sum()
    for at in (0, 5, 11):
        one = loss({names[at]: same[names[at]] + 2.0})
        assert one["consistency"].item() == pytest.approx(4.0 * w[at], rel=1e-4)
    early = loss({names[0]: same[names[0]] + 2.0}, round=1)
    assert early["consistency"].item() == 0.0 and torch.equal(early["total"], early["target"])


def test_the_consistency_reaches_extractors_and_kernels():
    model, x = network(), first_batch(federation()).x
    far = {name: tensor + 1.0 for name, tensor in statistics_of(model, x).items()}
    with watched(model) as seen:
        model(x)
    inconsistency(seen, far, 0.0).backward()
    slopes = {name: w.grad for name, w in model.named_parameters()}
    assert slopes["backbone.stem.conv.extractor.weight"].abs().max() > 1e-4
    assert slopes["backbone.stem.conv.eraser.cheap.weight"].abs().max() > 1e-4
    assert slopes["head.weight"] is None


# FDSE: the server


def step_of(updates: list[list[float]]) -> list[float]:
    D = np.array(updates)
    return (consensus(D @ D.T) @ D).tolist()


def test_the_consensus_in_closed_form():
    """Of equal updates their own; of two at an angle the middle of the two unit vectors, times the mean norm."""
    assert step_of([[3.0, 4.0]]) == pytest.approx([3.0, 4.0])
    assert step_of([[3.0, 4.0]] * 4) == pytest.approx([3.0, 4.0])
    assert step_of([[1.0, 0.0], [0.0, 1.0]]) == pytest.approx([0.5, 0.5])
    assert step_of([[6.0, 0.0], [0.0, 2.0]]) == pytest.approx([2.0, 2.0])
    assert step_of([[5.0, 0.0], [3.0, 4.0]]) == pytest.approx([4.0, 2.0])
    assert step_of([[5.0, 0.0], [5.0, 0.0], [3.0, 4.0]]) == pytest.approx([4.0, 2.0])
    assert step_of([[1.0, 2.0], [-3.0, -6.0]]) == pytest.approx([0.0, 0.0], abs=1e-9)


def test_who_has_not_moved_counts_in_the_mean_norm_alone():
    assert step_of([[0.0, 0.0], [6.0, 8.0]]) == pytest.approx([3.0, 4.0])
    assert step_of([[0.0, 0.0], [0.0, 0.0]]) == [0.0, 0.0]


def test_no_point_of_the_hull_is_shorter():
    """KKT: <d, D_i / ||D_i||> >= ||d||^2 for all i, so every client gains; equal where it has a share in d."""
    D = np.random.default_rng(0).normal(size=(6, 9)) + 0.7
    norms = np.linalg.norm(D, axis=1)
    b = consensus(D @ D.T)
    a, d = b * norms / norms.mean(), b @ D / norms.mean()
    gains = (D / norms[:, None]) @ d
    assert a.sum() == pytest.approx(1.0) and a.min() >= 0 and gains.min() >= d @ d - 1e-9
    assert gains[a > 1e-9] == pytest.approx(d @ d)


def test_weight_and_bias_of_a_layer_move_together_and_layers_apart():
    """The layer's two updates (6, 0) and (0, 2) are one in each of its tensors; the other layer has its own b."""
    one, two, other = np.diag([36.0, 0.0]), np.diag([0.0, 4.0]), np.full((2, 2), 1.0)
    b = layer_by_layer({"head.weight": one, "head.bias": two, "stem.weight": other}, np.full(2, 0.5))
    assert b["head.weight"].tolist() == b["head.bias"].tolist() == pytest.approx([2.0 / 6.0, 2.0 / 2.0])
    assert b["stem.weight"].sum() == pytest.approx(1.0)


def test_kinship_in_closed_form_and_at_its_limits():
    """Cosines 1, 0.6 and 0, whatever the lengths."""
    phi = torch.tensor([[1.0, 0.0], [3.0, 4.0], [0.0, 0.5]])
    cosines = torch.tensor([[1.0, 0.6, 0.0], [0.6, 1.0, 0.8], [0.0, 0.8, 1.0]])
    expected = (cosines / 0.5).exp() / (cosines / 0.5).exp().sum(1, keepdim=True)
    torch.testing.assert_close(kinship(phi, 0.5), expected)
    torch.testing.assert_close(kinship(phi, 1e-3), torch.eye(3))
    torch.testing.assert_close(kinship(phi, 1e6), torch.full((3, 3), 1 / 3), rtol=0, atol=1e-6)
    torch.testing.assert_close(kinship(phi[:1], 0.5), torch.ones(1, 1))


E_NAME, P_NAME, S_NAME = "conv.extractor.weight", "conv.eraser.cheap.weight", "conv.eraser.norm.running_mean"


def sent_layer(i: int, samples: int, E: list[float], phi: list[float], mean: float) -> Upload:
    weights = {E_NAME: torch.tensor(E), P_NAME: torch.tensor(phi), S_NAME: torch.tensor([mean])}
    return Upload(i, weights, {}, samples, {})


def test_each_part_is_aggregated_by_its_own_rule():
    """Clients 0 and 2 of four take part; 1 has before, 3 never has."""
    before = torch.tensor([[9.0, 9.0]] * 4)
    weights = {E_NAME: torch.tensor([1.0, 1.0]), P_NAME: torch.zeros(2), S_NAME: torch.zeros(1)}
    server = Server(weights, 1, {f"eraser/{P_NAME}": before})
    sent = [sent_layer(0, 30, [7.0, 1.0], [1.0, 0.0], 2.0), sent_layer(2, 10, [1.0, 3.0], [0.0, 3.0], 6.0)]
    method = FDSE(eraser_tau=0.5)
    after = method.aggregate(server, sent)
    assert after.weights[E_NAME].tolist() == pytest.approx([1.0 + 2.0, 1.0 + 2.0])
    assert after.weights[P_NAME].tolist() == pytest.approx([0.75, 0.25 * 3.0])
    assert after.weights[S_NAME].item() == pytest.approx(0.75 * 2.0 + 0.25 * 6.0)
    near, far = math.exp(2) / (math.exp(2) + 1), 1 / (math.exp(2) + 1)
    own = {S_NAME: torch.tensor([5.0])}
    erasers = {i: method.personal_model(after, i, {} if i == 3 else own) for i in range(4)}
    assert erasers[0][P_NAME].tolist() == pytest.approx([near, 3 * far])
    assert erasers[2][P_NAME].tolist() == pytest.approx([far, 3 * near])
    assert erasers[1][P_NAME].tolist() == [9.0, 9.0] and torch.equal(erasers[3][P_NAME], after.weights[P_NAME])
    assert erasers[0][S_NAME].item() == 5.0 and torch.equal(erasers[3][S_NAME], after.weights[S_NAME])
    for i in (0, 1, 2):
        message = method.broadcast(after, i, own)
        assert torch.equal(message[P_NAME], erasers[i][P_NAME])
        assert torch.equal(message[S_NAME], after.weights[S_NAME])
    assert server.memory[f"eraser/{P_NAME}"].tolist() == [[9.0, 9.0]] * 4


def test_running_statistics_and_erasers_are_the_clients_own_under_the_same_names():
    fed = federation()
    now = train(FDSE(), fed)
    states = [FDSE().personal_model(now.server, i, now.memories[i]) for i in range(3)]
    assert all(state.keys() == now.server.weights.keys() for state in states)
    for name in states[0]:
        if not is_eraser(name):
            assert states[0][name] is states[1][name] is now.server.weights[name]
        elif name.endswith(("running_mean", "cheap.weight")):
            assert not torch.equal(states[0][name], states[1][name])
    kept = {name for name in states[0] if is_statistic(name)}
    assert set(now.memories[0]) == kept and len(kept) == 3 * 12
    mean = sum(
        n * m["backbone.stem.conv.eraser.norm.running_mean"] for n, m in zip(fed.sizes, now.memories, strict=True)
    )
    name = "backbone.stem.conv.eraser.norm.running_mean"
    torch.testing.assert_close(now.server.weights[name], mean / sum(fed.sizes))


def test_one_client_without_consistency_is_plain_sgd_on_the_divided_network():
    fed, method = federation((24,)), FDSE(lam=0.0)
    now = train(method, fed)
    with one_thread():
        model, _, _ = initial_state(method, task_of(fed))
        for t in (1, 2):
            model.train()
            step_by_hand(model, fed, 0, t, LOCAL, PLAN.rate(t))
    torch.testing.assert_close(method.personal_model(now.server, 0, now.memories[0]), dict(model.state_dict()))
    assert train(FDSE(lam=5.0), fed).server.weights["head.bias"].sub(model.head.bias).abs().max() > 1e-5


# Both with the plug-in of F2DC


@dataclass(frozen=True)
class CalibratedFDSE(Calibration, FDSE):
    """FDSE on a network that decouples and calibrates."""


@dataclass(frozen=True)
class CalibratedFedSA(Calibration, FedSA):
    """FedSA on a network that decouples and calibrates."""


@pytest.mark.parametrize("method", [CalibratedFDSE(), CalibratedFedSA()])
def test_the_plug_in_adds_its_terms_to_the_methods_own(method: Method):
    fed = federation()
    plain = FDSE() if isinstance(method, FDSE) else FedSA()
    now = train(method, fed)
    named = {row.metric: row.value for row in now.history if row.round == 2 and row.metric.startswith("train_loss")}
    assert {f"train_loss[{name}]" for name in plain.loss(*loss_inputs(fed, plain))} < set(named)
    alone = sum(
        weight * named[f"train_loss[{name}]"]
        for name, weight in {
            "target": 1.0,
            "consistency": 0.5,
            "calibration": 1.0,
            "regularisation": 1.0,
            "contrast": 1.0,
        }.items()
        if f"train_loss[{name}]" in named
    )
    added = method.lam1 * named["train_loss[decoupling]"] + method.lam2 * named["train_loss[correction]"]
    assert named["train_loss[total]"] == pytest.approx(alone + added, rel=1e-5)


def loss_inputs(fed: Federation, method: Method) -> tuple[nn.Module, Batch, Work]:
    work = work_on(fed, method)
    return work.model, first_batch(fed), work
