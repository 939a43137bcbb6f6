"""FINCH, MOON, FPL and FedTGP against hand-computed values, identities and loops written by hand."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import numpy as np
import pytest
import tiny
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from test_methods import LOCAL, PLAN
from torch import Tensor, nn

from fedlib.checks import FedlibError
from fedlib.data.federation import Federation, Samples
from fedlib.engines import Serial, one_thread
from fedlib.methods import make
from fedlib.methods.fedavg import FedAvg
from fedlib.methods.fedtgp import FedTGP, global_prototypes, margin, margin_contrast
from fedlib.methods.finch import finch, first_neighbours
from fedlib.methods.fpl import FPL, cluster_contrast, cluster_prototypes
from fedlib.methods.method import Method, Server, State, Task, Upload, Work, initial_state, weighted_mean
from fedlib.methods.moon import MOON, embed_under, model_contrast
from fedlib.methods.prototypes import class_means
from fedlib.rounds import Plan, Snapshot, federate
from fedlib.store import load_snapshot, save_snapshot
from fedlib.streams import torch_stream
from fedlib.training import Batch, batches, prepare

METHODS: tuple[Method, ...] = (MOON(), FPL(), FedTGP(server_epochs=3), FPL(partition="last"))
OFF: tuple[Method, ...] = (MOON(mu=0.0), FPL(contrast=0.0, consistency=0.0), FedTGP(lam=0.0, server_epochs=2))
BN = {"name": "resnet10", "width": 4}


def with_norm(fed: Federation, rounds: int = 3) -> Task:
    """The task with a network that has BatchNorm."""
    return replace(tiny.task(fed, rounds), model=BN)


def work_on(fed: Federation, method: Method, message: State, memory: State | None = None) -> Work:
    """Client 0's work in round 2, from the initial network with BatchNorm; `message` is what comes beside theta."""
    model, server, _ = initial_state(method, with_norm(fed))
    stream = torch.Generator().manual_seed(3)
    return Work(0, fed.clients[0].train, server.weights | message, memory or {}, model, LOCAL, 0.05, 2, 3, stream)


def batch_of(work: Work) -> Batch:
    return Batch(prepare(work.samples.images), work.samples.labels, work.client)


def upload_of(client: int, means: list[list[float]], classes: list[int], n: int = 5) -> Upload:
    extra = {"means": torch.tensor(means), "classes": torch.tensor(classes)}
    return Upload(client, {"head.bias": torch.zeros(4)}, {}, n, {}, extra)


def at(*degrees: float) -> np.ndarray:
    """Points of lengths 1, 2, 3, … in these directions of the plane."""
    angle = np.deg2rad(degrees)
    return np.stack([np.cos(angle), np.sin(angle)], 1) * np.arange(1, len(degrees) + 1)[:, None]


def groups(labels: np.ndarray) -> set[frozenset[int]]:
    return {frozenset(np.flatnonzero(labels == j).tolist()) for j in set(labels.tolist())}


# All three


@pytest.mark.parametrize("method", OFF, ids=lambda method: type(method).__name__)
def test_without_its_terms_it_is_fedavg_bit_for_bit_and_leaves_batchnorm_alone(method: Method):
    fed, engine = tiny.federation((40, 24)), Serial()
    mine, plain = (federate(m, fed, with_norm(fed), LOCAL, PLAN, engine) for m in (method, FedAvg()))
    assert tiny.same(mine.server.weights, plain.server.weights)
    names = {row.metric for row in plain.history} - {"bytes_up", "bytes_down"}
    assert [row for row in mine.history if row.metric in names] == [r for r in plain.history if r.metric in names]
    strong = federate(METHODS[OFF.index(method)], fed, with_norm(fed), LOCAL, PLAN, engine)
    assert not tiny.same(strong.server.weights, plain.server.weights)


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_it_goes_on_from_a_file_bit_for_bit_and_clients_use_theta(method: Method, tmp_path):
    fed, plan = tiny.federation((40, 24, 33, 20)), Plan(3, 0.05, participation=0.75)
    path = tmp_path / "snapshot.safetensors"

    def keep(now: Snapshot) -> None:
        if now.server.round == 2:
            save_snapshot(path, now)

    whole = tiny.train(method, fed, plan, LOCAL, after_round=keep)
    again = federate(method, fed, tiny.task(fed), LOCAL, plan, Serial(), resume=load_snapshot(path))
    assert tiny.same_snapshots(whole, again)
    for i, memory in enumerate(whole.memories):
        assert tiny.same(method.personal_model(whole.server, i, memory), whole.server.weights)


def test_a_lone_client_is_enough():
    """Its last model is theta: the two sides of MOON's contrast are the same in every round."""
    alone = tiny.federation((40,))
    plain, moon, *others = (tiny.train(m, alone, PLAN, LOCAL).server.weights for m in (FedAvg(), *METHODS))
    torch.testing.assert_close(moon, plain, rtol=1e-5, atol=1e-6)
    assert all((other["head.weight"] - plain["head.weight"]).abs().max() > 1e-4 for other in others)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"name": "MOON", "mu": -1}, "MOON.mu: -1 is out of range; give a number at least 0.0"),
        ({"name": "MOON", "tau": 0}, "MOON.tau: 0 is out of range; give a number above 0.0"),
        ({"name": "FPL", "tau": 0.0}, "FPL.tau: 0.0 is out of range; give a number above 0.0"),
        ({"name": "FPL", "contrast": -0.5}, "FPL.contrast: -0.5 is out of range"),
        ({"name": "FPL", "consistency": "1e-1"}, "FPL.consistency: '1e-1' is str, not a number"),
        ({"name": "FPL", "partition": "frist"}, "FPL.partition: 'frist' is unknown; did you mean 'first'?"),
        ({"name": "FedTGP", "lam": -1}, "FedTGP.lam: -1 is out of range"),
        ({"name": "FedTGP", "server_epochs": 1.5}, "FedTGP.server_epochs: 1.5 is float, not a whole number"),
        ({"name": "FedTGP", "server_batch": 0}, "FedTGP.server_batch: 0 is out of range"),
        ({"name": "FedTGP", "gap": "nearby"}, "FedTGP.gap: 'nearby' is unknown; did you mean 'nearest'?"),
    ],
)
def test_wrong_hyper_parameters_are_refused(spec: dict, message: str):
    with pytest.raises(FedlibError) as caught:
        make(spec)
    assert message in str(caught.value)


# FINCH


def test_finch_on_known_points():
    """Neighbours by angle alone, whatever the lengths: 25 goes with 10, and 200 with 100."""
    assert groups(finch(at(0, 10, 25, 90, 100, 200))[0]) == {frozenset({0, 1, 2}), frozenset({3, 4, 5})}
    pairs = finch(at(0, 5, 40, 44, 180, 185, 220, 224))
    halves = {frozenset({0, 1, 2, 3}), frozenset({4, 5, 6, 7})}
    assert [groups(labels) for labels in pairs] == [{frozenset({i, i + 1}) for i in (0, 2, 4, 6)}, halves]
    assert [labels.tolist() for labels in finch(at(30))] == [[0]]
    assert [labels.tolist() for labels in finch(at(30, 170))] == [[0, 0]]
    assert [labels.tolist() for labels in finch(np.zeros((3, 2)))] == [[0, 0, 0]]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 15), st.integers(2, 6))
def test_first_neighbours_are_the_components_of_the_adjacency_matrix_and_know_no_order(seed: int, n: int, d: int):
    draw = np.random.default_rng(seed)
    points = draw.normal(size=(n, d))
    cosine = [[float(p @ q / np.linalg.norm(p) / np.linalg.norm(q)) for q in points] for p in points]
    v = [max((j for j in range(n) if j != i), key=lambda j, i=i: cosine[i][j]) for i in range(n)]
    A = np.array([[j == v[i] or v[j] == i or v[i] == v[j] for j in range(n)] for i in range(n)])
    reach = np.linalg.matrix_power(A.astype(float) + np.eye(n), n) > 0
    assert groups(first_neighbours(points)) == {frozenset(np.flatnonzero(row).tolist()) for row in reach}
    order = draw.permutation(n)
    turned = {frozenset(order[list(group)].tolist()) for group in groups(first_neighbours(points[order]))}
    assert turned == groups(first_neighbours(points))


# MOON


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
    work = work_on(tiny.federation((40,)), MOON(), {})
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
    got = federate(method, fed, with_norm(fed), LOCAL, PLAN, Serial())
    with one_thread():
        model, server, _ = initial_state(FedAvg(), with_norm(fed))
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


# FPL


def test_a_prototype_is_the_mean_of_a_class_in_evaluation_mode():
    work = work_on(tiny.federation((40,), classes=5), FPL(), {})
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
    method, work = FPL(tau=0.3, contrast=0.7, consistency=2.0), work_on(fed, FPL(), sent)
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


# FedTGP


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
