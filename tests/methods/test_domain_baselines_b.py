"""FedRCL, FedHEAL, FedBN and FedAvgUniform against values by hand, closed forms, identities and invariances."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import tiny
import torch
from test_methods import Quadratic, bias_after, step_by_hand
from torch import Tensor, nn

from fedlib.checks import FedlibError
from fedlib.data.federation import Federation
from fedlib.engines import Serial, one_thread
from fedlib.methods import known, make
from fedlib.methods.fedavg import FedAvg
from fedlib.methods.fedavg_uniform import FedAvgUniform
from fedlib.methods.fedbn import FedBN
from fedlib.methods.fedheal import FedHEAL, bits, consistent, distance, mask, masked_mean, reweighted
from fedlib.methods.fedrcl import FedRCL, blocks, recorded, relaxed_contrastive
from fedlib.methods.method import Method, Server, State, Task, Upload, Work, initial_state
from fedlib.models.network import Network
from fedlib.models.resnet10 import is_norm
from fedlib.rounds import Plan, Snapshot, federate, size
from fedlib.store import load_snapshot, save_snapshot
from fedlib.training import Batch, Local, prepare

LOCAL = Local(steps=2, batch_size=8, crop=False)
PLAN = Plan(3, 0.05, evaluate_every=3)
RESNET = {"name": "resnet10", "width": 4}
METHODS: tuple[Method, ...] = (FedRCL(), FedHEAL(), FedBN(), FedAvgUniform())
SIZES = (24, 16, 40, 8)


def task(fed: Federation, model: str | dict = RESNET) -> Task:
    return replace(tiny.task(fed), model={"name": model} if isinstance(model, str) else model)


def train(
    method: Method, fed: Federation, plan: Plan = PLAN, after_round: Callable[[Snapshot], None] | None = None
) -> Snapshot:
    """All rounds with a small ResNet-10."""
    return federate(method, fed, task(fed), LOCAL, plan, Serial(), after_round=after_round)


def metric(now: Snapshot, name: str) -> list[float]:
    return [row.value for row in now.history if row.metric == name]


def norms(state: State) -> State:
    return {name: tensor for name, tensor in state.items() if is_norm(name)}


def others(state: State) -> State:
    return {name: tensor for name, tensor in state.items() if not is_norm(name)}


def name_of(method: Method) -> str:
    return type(method).__name__


# All four


@pytest.mark.parametrize("method", METHODS, ids=name_of)
def test_runs_with_some_of_the_clients_and_goes_on_bit_for_bit(method: Method, tmp_path):
    fed, plan = tiny.federation(SIZES), Plan(3, 0.05, participation=0.5, evaluate_every=3)
    path = tmp_path / "snapshot.safetensors"

    def keep(now: Snapshot) -> None:
        if now.server.round == 1:
            save_snapshot(path, now)

    whole = train(method, fed, plan, keep)
    again = federate(method, fed, task(fed), LOCAL, plan, Serial(), resume=load_snapshot(path))
    assert tiny.same_snapshots(whole, again)
    network = set(initial_state(FedAvg(), task(fed))[0].state_dict())
    states = [method.personal_model(whole.server, i, memory) for i, memory in enumerate(whole.memories)]
    assert all(set(state) == network for state in states)


@pytest.mark.parametrize("method", METHODS, ids=name_of)
def test_clients_may_send_in_any_order(method: Method):
    fed = tiny.federation(SIZES)
    _, server, _ = initial_state(method, task(fed))
    sent = [upload_of(i, server.weights, n) for i, n in enumerate(SIZES)]
    forth, back = (method.aggregate(server, iter(order)) for order in (sent, sent[::-1]))
    torch.testing.assert_close(forth.weights, back.weights, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(forth.memory, back.memory, rtol=1e-12, atol=1e-12)
    assert not tiny.same(forth.weights, server.weights)


def upload_of(i: int, theta: State, samples: int) -> Upload:
    """Of client i, with random updates and masks."""
    generator = torch.Generator().manual_seed(i)
    weights = {n: w + torch.rand(w.shape, generator=generator).to(w.dtype) for n, w in theta.items()}
    masks = {f"kept/{n}": bits(torch.rand(w.shape, generator=generator) > 0.3) for n, w in theta.items()}
    return Upload(i, weights, {}, samples, {}, masks)


def test_they_are_found_by_their_names():
    assert all(known()[name_of(method)] is type(method) for method in METHODS)
    assert make("FedRCL") == FedRCL(tau=0.05, threshold=0.7, lam=1.0, negatives=2)
    assert make("FedHEAL") == FedHEAL(threshold=0.3, beta=0.4)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"name": "FedRCL", "tau": 0}, "FedRCL.tau: 0 is out of range; give a number above 0.0"),
        ({"name": "FedRCL", "threshold": 1.5}, "FedRCL.threshold: 1.5 is out of range"),
        ({"name": "FedRCL", "lam": -1}, "FedRCL.lam: -1 is out of range; give a number at least 0.0"),
        ({"name": "FedRCL", "negatives": 0}, "FedRCL.negatives: 0 is out of range; give a whole number at least 1"),
        ({"name": "FedHEAL", "threshold": -0.1}, "FedHEAL.threshold: -0.1 is out of range"),
        ({"name": "FedHEAL", "beta": 1.1}, "FedHEAL.beta: 1.1 is out of range; give a number at least 0.0 and"),
        ({"name": "FedBN", "beta": 0.4}, "method FedBN: unknown key 'beta'"),
    ],
)
def test_wrong_values_are_refused(spec: dict, message: str):
    with pytest.raises(FedlibError) as caught:
        make(spec)
    assert message in str(caught.value)


# FedAvgUniform


def test_uniform_weights_are_fedavg_s_where_all_clients_have_as_many_samples():
    fed = tiny.federation((24, 24, 24))
    assert tiny.same_snapshots(*(tiny.train(m, fed, PLAN, LOCAL) for m in (FedAvgUniform(), FedAvg())))


def test_uniform_is_the_plain_mean_whatever_the_sizes():
    sent = [
        Upload(i, {"w": torch.tensor([v]), "count": torch.tensor(4)}, {}, n, {})
        for i, (v, n) in enumerate([(1.0, 90), (5.0, 9), (12.0, 1)])
    ]
    start = Server({"w": torch.zeros(1), "count": torch.tensor(0)}, 6, {"kept": torch.ones(1)})
    got = FedAvgUniform().aggregate(start, sent)
    assert got.weights == {"w": torch.tensor([6.0]), "count": torch.tensor(4)}
    assert (got.round, got.memory) == (7, start.memory)


@dataclass(frozen=True)
class UniformQuadratic(FedAvgUniform, Quadratic):
    """||w - c_i||^2 / 2, c = (1, 5)."""


def test_uniform_finds_the_middle_of_two_clients_of_30_and_10_samples():
    """FedAvg finds 2, a quarter of the way from 1 to 5."""
    torch.testing.assert_close(bias_after(UniformQuadratic(), 60, 1), torch.full((10,), 3.0), rtol=1e-6, atol=1e-6)


# FedBN


def test_batch_normalisation_never_travels():
    """12 layers: of the stem, of four blocks twice, and of three projections; four numbers a channel and a counter."""
    fed = tiny.federation((24, 16))
    own, all_shared = (train(method, fed) for method in (FedBN(), FedAvg()))
    channels = 4 + 2 * 4 + (2 + 1) * (8 + 16 + 32)
    away = 4 * 4 * channels + 8 * 12
    for way in ("bytes_up", "bytes_down"):
        assert metric(own, way) == [2 * (size(all_shared.server.weights) - away)] * 3
        assert metric(all_shared, way) == [2 * size(all_shared.server.weights)] * 3
    assert not norms(own.server.weights) and all(set(memory) == set(norms(memory)) for memory in own.memories)
    assert [size(memory) for memory in own.memories] == [away, away]
    assert not metric(own, "global@local") and metric(all_shared, "global@local")


def test_a_first_round_differs_from_fedavg_s_in_batch_normalisation_alone():
    """Which is, for each client, what its own training has left."""
    fed, one = tiny.federation((24, 16)), Plan(1, 0.05)
    own, all_shared = (train(method, fed, one) for method in (FedBN(), FedAvg()))
    assert tiny.same(own.server.weights, others(all_shared.server.weights))
    for i, memory in enumerate(own.memories):
        with one_thread():
            model, _, _ = initial_state(FedAvg(), task(fed))
            model.train()
            step_by_hand(model, fed, i, 1, LOCAL, 0.05)
        assert tiny.same(memory, norms(model.state_dict()))
    first, second = own.memories
    assert all(not torch.equal(w, second[name]) for name, w in first.items() if not name.endswith("_tracked"))


def test_one_client_with_fedbn_is_fedavg():
    fed = tiny.federation((24,))
    own, all_shared = (train(method, fed) for method in (FedBN(), FedAvg()))
    assert tiny.same(own.server.weights | own.memories[0], all_shared.server.weights)


@dataclass(frozen=True)
class FrozenNorm(Method):
    """Neither the parameters nor the statistics of BatchNorm change."""

    def build(self, task: Task) -> nn.Module:
        model = super().build(task)
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.momentum = 0.0
        return model

    def descend(self, work: Work, *_, **__) -> dict[str, float]:
        return super().descend(work, lambda name: not is_norm(name))


@dataclass(frozen=True)
class FrozenFedBN(FrozenNorm, FedBN):
    """FedBN with frozen BatchNorm."""


def test_fedbn_is_fedavg_where_batch_normalisation_is_frozen():
    fed = tiny.federation((24, 16))
    own, all_shared = (train(method, fed) for method in (FrozenFedBN(), FrozenNorm()))
    for memory in own.memories:
        assert tiny.same(own.server.weights | memory, all_shared.server.weights)
    assert not tiny.same(own.server.weights, others(train(FedBN(), fed).server.weights))


def test_who_is_absent_keeps_its_batch_normalisation():
    fed, seen = tiny.federation((24, 16)), list[State]()
    plan = Plan(3, 0.05, joins={1: 3}, evaluate_every=3)
    train(FedBN(), fed, plan, lambda now: seen.append(now.memories[1]))
    _, _, (_, at_start) = initial_state(FedBN(), task(fed))
    assert tiny.same(seen[1], at_start) and not tiny.same(seen[2], at_start)


@pytest.mark.parametrize("model", ["small_cnn", "linear", "resnet18_gn"])
def test_a_model_without_batch_normalisation_is_refused(model: str):
    with pytest.raises(FedlibError, match=f"model {model} has none; take one with BatchNorm, such as resnet10"):
        initial_state(FedBN(), task(tiny.federation(), model))


# FedRCL


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


# FedHEAL


class Two(nn.Module):
    """Two weights and a statistic."""

    def __init__(self, w: tuple[float, float] = (0.0, 0.0), mean: float = 0.0) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(w))
        self.register_buffer("mean", torch.tensor(mean))


def sent_by(client: int, theta: State, w: tuple[float, float], mean: float, memory: State, method: Method) -> Upload:
    """What a client sends whose training went from theta to w."""
    empty = tiny.federation((1,)).clients[0].train
    work = Work(client, empty, theta, memory, Two(w, mean), LOCAL, 0.05, 1, 1, torch.Generator())
    return method.upload(work, {})


def test_three_rounds_of_two_weights_by_hand():
    """The directions of the second weight are down, up, up: in round 2, c = 0 of one round before; in round 3, 1/2.

    The first weight goes up, up, down: in round 3, c = 0 of two.
    """
    method, memory = FedHEAL(), State()
    rounds = [
        ((0.0, 0.0), (1.0, -1.0), [True, True], (1.0, -1.0)),
        ((0.5, 0.5), (1.5, 1.5), [True, False], (1.5, 0.5)),
        ((2.0, 0.0), (1.0, 1.0), [False, True], (2.0, 1.0)),
    ]
    for theta, trained, kept, expected in rounds:
        state = dict(Two(theta).state_dict())
        upload = sent_by(0, state, trained, 7.0, memory, method)
        assert mask(upload.extra["kept/w"], torch.Size([2])).tolist() == kept
        assert upload.weights["w"].tolist() == list(expected) and upload.weights["mean"].item() == 7.0
        assert set(upload.extra) == {"kept/w"}
        memory = upload.memory
    assert memory["consistency/ups/w"].tolist() == [2, 2] and memory["consistency/rounds"].item() == 3


def test_updates_whose_share_of_the_rounds_before_reaches_the_threshold_are_kept():
    """Of 10 rounds, 3 went up: exactly 0.3, and 0.7 went down."""
    up = torch.tensor([True, False, True, False])
    ups = torch.tensor([3, 3, 2, 8], dtype=torch.int32)
    assert consistent(up, ups, 10, 0.3).tolist() == [True, True, False, False]
    assert consistent(up, ups, 10, 0.0).all() and consistent(up, ups, 0, 1.0).all()
    assert consistent(up, ups, 10, 0.71).tolist() == [False] * 4


@pytest.mark.parametrize("shape", [(), (1,), (8,), (3, 5), (2, 3, 3, 3)])
def test_a_mask_is_one_bit_an_entry(shape: tuple[int, ...]):
    M = torch.rand(shape, generator=torch.Generator().manual_seed(1)) > 0.4
    packed = bits(M)
    assert packed.dtype == torch.uint8 and len(packed) == math.ceil(M.numel() / 8)
    assert torch.equal(mask(packed, M.shape), M)


def test_two_clients_of_two_weights_are_averaged_by_hand():
    """Updates (3, 4) and (-5, 12) from theta = (1, 1), the second of the second one discarded: d = (5, 5).

    So both weigh 1/2, the second weight follows the first client alone, and the statistic is the plain mean.
    """
    server = Server(dict(Two((1.0, 1.0)).state_dict()), 4, FedHEAL().remember(task_of(2)))
    went_down = {"consistency/ups/w": torch.tensor([0, 0], dtype=torch.int32), "consistency/rounds": torch.tensor(4)}
    sent = [
        sent_by(0, server.weights, (4.0, 5.0), 2.0, {}, FedHEAL()),
        sent_by(1, server.weights, (-4.0, 13.0), 8.0, went_down, FedHEAL()),
    ]
    got = FedHEAL().aggregate(server, sent)
    assert got.weights["w"].tolist() == [0.0, 5.0] and got.weights["mean"].item() == 5.0
    assert got.memory["p"].tolist() == [0.5, 0.5] and got.memory["Dp"].tolist() == pytest.approx([0.2, 0.2])


def test_the_farther_client_weighs_more_and_an_entry_that_no_one_keeps_stays():
    """d = (3, 9): Dp = 0.4 (1/4, 3/4), p = (1/2 + 0.1, 1/2 + 0.3) / 1.4 = (3/7, 4/7)."""
    server = Server(dict(Two((1.0, 1.0)).state_dict()), 4, FedHEAL().remember(task_of(2)))
    up = {"consistency/ups/w": torch.tensor([2, 2], dtype=torch.int32), "consistency/rounds": torch.tensor(2)}
    sent = [
        sent_by(i, server.weights, (w, -20.0), mean, up, FedHEAL())
        for i, (w, mean) in enumerate([(4.0, 7.0), (10.0, 14.0)])
    ]
    got = FedHEAL().aggregate(server, sent)
    assert got.weights["w"].tolist() == pytest.approx([1 + 3 * 3 / 7 + 9 * 4 / 7, 1.0])
    assert got.weights["w"][1].item() == 1.0 and got.weights["mean"].item() == pytest.approx(3 + 8)
    assert got.memory["p"].tolist() == pytest.approx([3 / 7, 4 / 7])


def task_of(clients: int) -> Task:
    return tiny.task(tiny.federation((9,) * clients))


@pytest.mark.parametrize("beta", [0.0, 0.4, 1.0])
def test_constant_distances_lead_the_weights_to_their_shares(beta: float):
    """With shares q: Dp = s_t q, s_t = 1 - (1 - beta)^t, hence p_t - q = (p_{t-1} - q) / (1 + s_t)."""
    d = torch.tensor([1.0, 2.0, 5.0], dtype=torch.float64)
    p, Dp, q, left = torch.full((3,), 1 / 3, dtype=torch.float64), torch.zeros(3).double(), d / 8, 1.0
    for t in range(1, 8):
        p, Dp = reweighted(p, Dp, d, beta)
        left /= 2 - (1 - beta) ** t
        torch.testing.assert_close(p, q + (1 / 3 - q) * left, rtol=1e-12, atol=0)
    assert p.sum().item() == pytest.approx(1) and (left < 0.03 if beta else left == 1.0)


def test_the_clients_of_a_round_divide_what_they_had_together():
    """p = (0.2, 0.3) are shares 0.4 and 0.6; Dp = 0.4 (1/4, 3/4); (0.4 + 0.1, 0.6 + 0.3) / 1.4 of 0.5."""
    p, Dp = reweighted(torch.tensor([0.2, 0.3]).double(), torch.zeros(2).double(), torch.tensor([2.0, 6.0]), 0.4)
    assert p.tolist() == pytest.approx([0.5 * 0.5 / 1.4, 0.5 * 0.9 / 1.4]) and Dp.tolist() == pytest.approx([0.1, 0.3])


def test_the_distance_is_that_of_all_parameters_together_without_the_statistics():
    theta = {"a": torch.zeros(2), "b": torch.ones(1, 1), "mean": torch.zeros(3)}
    weights = {"a": torch.tensor([2.0, 1.0]), "b": torch.tensor([[3.0]]), "mean": torch.full((3,), 9.0)}
    every = {f"kept/{name}": bits(torch.ones(theta[name].shape)) for name in ("a", "b")}
    assert distance(theta, Upload(0, weights, {}, 5, {}, every)).item() == pytest.approx(3.0)


def test_equal_counters_stay_what_they_are_under_any_weights():
    p = torch.rand((300, 3), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    sent = [Upload(i, {"count": torch.tensor(7)}, {}, 5, {}) for i in range(3)]
    assert all(masked_mean("count", torch.tensor(0), sent, weights).item() == 7 for weights in p.tolist())


def test_no_distance_at_all_is_equal_distances():
    p, Dp = torch.tensor([0.2, 0.8]).double(), torch.zeros(2).double()
    torch.testing.assert_close(reweighted(p, Dp, torch.zeros(2).double(), 0.4), reweighted(p, Dp, p * 0 + 3, 0.4))


def test_weights_of_absent_clients_stay_and_all_sum_to_one():
    fed, plan, seen = tiny.federation(SIZES), Plan(4, 0.05, joins={3: 3}, leaves={0: 1}), list[State]()
    tiny.train(FedHEAL(), fed, plan, LOCAL, after_round=lambda now: seen.append(now.server.memory))
    p = [memory["p"].tolist() for memory in seen]
    assert all(sum(shares) == pytest.approx(1, abs=1e-12) and min(shares) > 0 for shares in p)
    assert p[0][3] == p[1][3] == 0.25 != p[2][3] and p[0][0] == p[1][0] == p[3][0] != 0.25
    assert [memory["Dp"][3].item() for memory in seen[:2]] == [0, 0] and seen[2]["Dp"][3] > 0


def test_a_late_comer_keeps_all_of_its_first_update_and_counts_its_own_rounds():
    fed, plan, seen = tiny.federation((24, 16)), Plan(3, 0.05, joins={1: 3}), list[Upload]()

    @dataclass(frozen=True)
    class Watched(FedHEAL):
        def upload(self, work: Work, losses: dict[str, float]) -> Upload:
            seen.append(super().upload(work, losses))
            return seen[-1]

    now = tiny.train(Watched(), fed, plan, LOCAL)
    assert [int(memory["consistency/rounds"]) for memory in now.memories] == [3, 1]
    kept = [sum(float(b.sum()) for b in map(set_bits, upload.extra.values())) for upload in seen]
    assert [upload.client for upload in seen] == [0, 0, 0, 1]
    assert kept[0] == kept[3] > kept[1] > 0


def set_bits(packed: Tensor) -> Tensor:
    return mask(packed, torch.Size([8 * len(packed)]))


def test_of_equal_distances_without_a_threshold_it_is_the_uniform_mean_bit_for_bit():
    generator = torch.Generator().manual_seed(0)
    theta = {"w": torch.randn(6, 5, generator=generator)}
    update = torch.randn(6, 5, generator=generator)
    every = bits(torch.ones(6, 5, dtype=torch.bool))
    sent = [
        Upload(i, {"w": theta["w"] + sign * update.roll(i)}, {}, n, {}, {"kept/w": every})
        for i, (sign, n) in enumerate([(1, 5), (-1, 90), (1, 7), (-1, 1)])
    ]
    got = FedHEAL().aggregate(Server(theta, 0, FedHEAL().remember(task_of(4))), sent)
    torch.testing.assert_close(got.memory["p"], torch.full((4,), 0.25).double(), rtol=1e-6, atol=0)
    uniform = FedAvgUniform().aggregate(Server(theta, 0), sent).weights
    torch.testing.assert_close(got.weights, uniform, rtol=1e-6, atol=1e-7)


def test_without_threshold_and_momentum_it_is_fedavg_uniform_bit_for_bit():
    fed = tiny.federation(SIZES)
    got, plain, whole = (train(m, fed) for m in (FedHEAL(threshold=0.0, beta=0.0), FedAvgUniform(), FedHEAL()))
    assert tiny.same(got.server.weights, plain.server.weights)
    assert metric(got, "personal@local") == metric(plain, "personal@local")
    assert not tiny.same(got.server.weights, whole.server.weights)


def test_statistics_are_averaged_with_the_clients_weights_and_counters_stay_whole():
    fed, trained = tiny.federation(SIZES), list[Upload]()

    @dataclass(frozen=True)
    class Watched(FedHEAL):
        def upload(self, work: Work, losses: dict[str, float]) -> Upload:
            trained.append(super().upload(work, losses))
            return trained[-1]

    now = train(Watched(), fed)
    p = now.server.memory["p"]
    buffers = [name for name in now.server.weights if "running" in name]
    assert len(buffers) == 24 and not any(f"kept/{name}" in trained[-1].extra for name in buffers)
    for name in buffers:
        mean = sum(p_k * upload.weights[name].double() for p_k, upload in zip(p, trained[-4:], strict=True))
        torch.testing.assert_close(now.server.weights[name], mean.float(), rtol=1e-6, atol=1e-7)
    counters = [w for name, w in now.server.weights.items() if name.endswith("_tracked")]
    assert len(counters) == 12 and all(w.dtype == torch.int64 and w.item() == 6 for w in counters)


def test_an_upload_is_the_model_and_one_bit_an_entry():
    fed = tiny.federation((24, 16))
    heal, plain = (train(method, fed) for method in (FedHEAL(), FedAvg()))
    model = initial_state(FedAvg(), task(fed))[0]
    masks = sum(math.ceil(w.numel() / 8) for w in model.parameters())
    assert metric(heal, "bytes_up") == [up + 2 * masks for up in metric(plain, "bytes_up")]
    assert metric(heal, "bytes_down") == metric(plain, "bytes_down")
