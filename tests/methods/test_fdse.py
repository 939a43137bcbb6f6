"""FDSE: its network, its consistency and its server against closed forms, identities and sums by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import tiny
import torch
import torch.nn.functional as F
from domain_tasks import LOCAL, PLAN, first_batch, task, three_clients, train, work_on
from test_methods import step_by_hand
from torch import Tensor, nn

from fedlib.checks import FedlibError
from fedlib.engines import one_thread
from fedlib.methods.fdse import FDSE, consensus, inconsistency, kinship, layer_by_layer
from fedlib.methods.fdse_network import Eraser, Moments, is_eraser, watched
from fedlib.methods.method import Server, State, Task, Upload, initial_state
from fedlib.models.network import is_statistic
from fedlib.models.resnet10 import resnet10

# The network


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
    x = first_batch(three_clients()).x
    for model in (plain, split):
        model.train()
    assert torch.equal(split(x), plain(x))
    for model in (plain, split):
        model.eval()
    assert torch.equal(split(x), plain(x)) and not any("cheap" in name for name in state)


@pytest.mark.parametrize(("w", "G"), [(4, 2), (3, 2), (5, 3), (1, 2)])
def test_maps_features_and_logits_have_the_shapes_of_resnet10(w: int, G: int):
    plain, split, x = resnet10((3, 16, 16), 3, width=w), network(w, G=G), first_batch(three_clients()).x
    for layer in ("stem", "layer1", "layer2", "layer3", "layer4"):
        x = plain.backbone.get_submodule(layer)(y := x)
        assert split.backbone.get_submodule(layer)(y).shape == x.shape
    z = split.embed(y := first_batch(three_clients()).x)
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
    fed = three_clients()
    with pytest.raises(FedlibError, match=r"FDSE divides .* model small_cnn is not made of these; take resnet10"):
        initial_state(FDSE(), tiny.task(fed))


# The consistency


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
    model, x = network(), first_batch(three_clients()).x
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
    fed, method = three_clients(), FDSE(lam=0.25, beta=0.3)
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
    model, x = network(), first_batch(three_clients()).x
    far = {name: tensor + 1.0 for name, tensor in statistics_of(model, x).items()}
    with watched(model) as seen:
        model(x)
    inconsistency(seen, far, 0.0).backward()
    slopes = {name: w.grad for name, w in model.named_parameters()}
    assert slopes["backbone.stem.conv.extractor.weight"].abs().max() > 1e-4
    assert slopes["backbone.stem.conv.eraser.cheap.weight"].abs().max() > 1e-4
    assert slopes["head.weight"] is None


# The server


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
    fed = three_clients()
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
    fed, method = three_clients((24,)), FDSE(lam=0.0)
    now = train(method, fed)
    with one_thread():
        model, _, _ = initial_state(method, task(fed))
        for t in (1, 2, 3):
            model.train()
            step_by_hand(model, fed, 0, t, LOCAL, PLAN.rate(t))
    torch.testing.assert_close(method.personal_model(now.server, 0, now.memories[0]), dict(model.state_dict()))
    assert train(FDSE(lam=5.0), fed).server.weights["head.bias"].sub(model.head.bias).abs().max() > 1e-5
