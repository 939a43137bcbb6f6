"""Several models on the server: how they begin, which one a client chooses, and what evaluating them costs."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import combinations

import pytest
import tiny
import torch
from test_methods import step_by_hand
from tiny import Dealt, leaning, with_dropout
from torch import Tensor, nn

from fedlib.checks import FedlibError
from fedlib.data.federation import Client, Federation, Samples
from fedlib.engines import Assignment, Processes, Serial, one_thread, perform
from fedlib.experiment import make_experiment
from fedlib.forward import mean_loss
from fedlib.methods import known, make
from fedlib.methods.fedavg import FedAvg
from fedlib.methods.fedper import FedPer
from fedlib.methods.method import Method, Server, Site, State, Task, initial_state
from fedlib.methods.several import INITS, Several, choose, models, numbered
from fedlib.metrics import Crowd, evaluate
from fedlib.rounds import Plan
from fedlib.streams import derive
from fedlib.training import Local, prepare

LOCAL = Local(steps=3, batch_size=16, crop=False)
PLAN = Plan(2, 0.05, evaluate_every=1)


@dataclass(frozen=True)
class Dropped(Dealt):
    """With dropout before the head."""

    def build(self, task: Task) -> nn.Module:
        return with_dropout(task)


# How they begin


def begun(init: str, K: int = 3, seed: int = 0) -> list[State]:
    """The K models at the start; the network has BatchNorm, which counts its batches in whole numbers."""
    given = replace(tiny.task(tiny.federation()), model={"name": "resnet10", "width": 4}, seed=seed)
    return models(initial_state(Several(K=K, init=init), given)[1].weights)


@pytest.mark.parametrize("init", INITS)
def test_the_first_model_is_what_fedavg_starts_from(init: str):
    given = replace(tiny.task(tiny.federation()), model={"name": "resnet10", "width": 4})
    before = torch.get_rng_state()
    first, *others = begun(init)
    assert tiny.same(first, initial_state(FedAvg(), given)[1].weights)
    assert all(list(one) == list(first) for one in others) and len(others) == 2
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("init", INITS)
def test_a_model_depends_on_the_seed_and_its_number_alone(init: str):
    assert all(tiny.same(*pair) for pair in zip(begun(init, 2), begun(init, 3), strict=False))
    assert not any(tiny.same(*pair) for pair in zip(begun(init), begun(init, seed=1), strict=True))


def test_same_begins_with_copies():
    first, *others = begun("same")
    assert all(tiny.same(one, first) for one in others)
    assert all(one[name] is not tensor for one in others for name, tensor in first.items())


def differences(one: State, other: State) -> Tensor:
    """Of all real numbers, one after the other."""
    return torch.cat([(one[name] - w).flatten() for name, w in other.items() if w.is_floating_point()])


def test_noise_of_a_hundredth_in_every_tensor_of_real_numbers_and_no_other():
    """About 20,000 of them: the sample deviation is within 0.5 % of the true one, as often as two times in three."""
    first, *others = begun("noise")
    for one in others:
        noise = differences(one, first)
        assert noise.std().item() == pytest.approx(0.01, rel=0.03) and noise.mean().abs() < 5e-4
        for name, tensor in first.items():
            assert one[name].dtype == tensor.dtype
            assert torch.equal(one[name], tensor) != tensor.is_floating_point()
    between = differences(*others)  # of two independent draws: sqrt(2) times as much
    assert between.std().item() == pytest.approx(math.sqrt(2) * 0.01, rel=0.03)


def test_independent_models_have_nothing_to_do_with_each_other():
    """Cosines of 320 weights are about 0 +- 1 / sqrt(320) = 0.056; and each is as large as any draw."""
    heads = [one["head.weight"].flatten() for one in begun("independent")]
    for one, other in combinations(heads, 2):
        assert torch.cosine_similarity(one, other, dim=0).abs() < 0.25
        assert float(one.norm() / other.norm()) == pytest.approx(1.0, abs=0.2)


def test_models_go_by_their_numbers_and_are_not_copied():
    a, b, c, d = (torch.tensor(float(v)) for v in range(4))
    found = models({"10/w": d, "2/w": c, "0/w": a, "0/x/y": b})
    assert found == [{"w": a, "x/y": b}, {"w": c}, {"w": d}] and found[0]["x/y"] is b


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"K": 0}, "Dealt.K: 0 is out of range; give a whole number at least 1"),
        ({"init": "independant"}, "Dealt.init: 'independant' is unknown; did you mean 'independent'?"),
        ({"selection": "test"}, "Dealt.selection: 'test' is unknown"),
    ],
)
def test_wrong_hyper_parameters_are_refused(wrong: dict, message: str):
    with pytest.raises(FedlibError) as caught:
        Dealt(**wrong)
    assert message in str(caught.value)


def test_choosing_by_validation_samples_that_nobody_has_is_refused_before_training():
    with pytest.raises(FedlibError) as caught:
        tiny.experiment(Dealt())
    assert str(caught.value) == (
        "Dealt needs validation samples; set validation_share above 0, such as 0.1, or, where it has that option, "
        "selection: train"
    )
    for method, share in ((Dealt(selection="train"), 0.0), (Dealt(), 0.1)):
        assert tiny.experiment(method, validation_share=share).method == method


# Which one a client chooses


def test_the_mean_loss_by_hand():
    """Over 700 samples, which is more than a chunk; dropout is off, though the network was training."""
    generator = torch.Generator().manual_seed(2)
    images = torch.randint(0, 256, (700, 3, 2, 2), generator=generator, dtype=torch.uint8)
    y = torch.randint(0, 4, (700,), generator=generator)
    network = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(12, 4)).train()
    state = {"2.weight": torch.randn(4, 12, generator=generator), "2.bias": torch.randn(4, generator=generator)}
    logits = (images.flatten(1) / 127.5 - 1.0) @ state["2.weight"].T + state["2.bias"]
    for sign in (1, -1):
        network.load_state_dict(state)
        got = mean_loss(network, Samples(images, y), lambda outputs, sign=sign: sign * outputs)
        pairs = zip((sign * logits).tolist(), y.tolist(), strict=True)
        terms = [math.log(sum(math.exp(v) for v in row)) - row[k] for row, k in pairs]
        assert got.item() == pytest.approx(sum(terms) / 700, rel=1e-6)
    assert (got.dtype, got.shape, got.requires_grad) == (torch.float64, (), False)
    assert not network.training
    assert mean_loss(network, Samples(images, y)).item() != pytest.approx(got.item(), rel=0.1)


def of_labels(*clients: tuple[list[int], list[int], list[int]]) -> Federation:
    """Clients with these training, validation and test labels; every image is one and the same grey pixel."""

    def drawn(labels: list[int]) -> Samples:
        return Samples(torch.full((len(labels), 3, 1, 1), 9, dtype=torch.uint8), torch.tensor(labels))

    members = [Client(i, *map(drawn, parts)) for i, parts in enumerate(clients)]
    return Federation("labels", tuple(members), ("no", "yes"), (3, 1, 1))


def crowd_of(method: Several, fed: Federation, theta: State) -> Crowd:
    model, _, memories = initial_state(method, tiny.task(fed, model="linear"))
    return Crowd(method, model, Server(theta), memories, fed)


@pytest.mark.parametrize(
    ("selection", "gaps", "expected"),
    [
        ("train", (2.0, 0.0, -2.0), 2),
        ("validation", (2.0, 0.0, -2.0), 0),
        ("validation", (9.0, -3.0, 2.0), 2),
        ("train", (0.5, -1.0, -1.0), 1),
        ("validation", (1.0, 1.0, 1.0), 0),
    ],
)
def test_a_client_takes_the_model_of_least_loss_and_of_equals_the_first(
    selection: str, gaps: tuple[float, ...], expected: int
):
    """L = log(1 + e^gap) - p gap, where p say yes: nobody in training, four of five in validation, all in the test."""
    parts = {"train": [0, 0, 0], "validation": [1, 1, 0, 1, 1], "test": [1, 1, 1, 1]}
    p = sum(parts[selection]) / len(parts[selection])
    L = [math.log1p(math.exp(gap)) - p * gap for gap in gaps]
    assert L.index(min(L)) == expected
    crowd = crowd_of(Dealt(selection=selection), of_labels(tuple(parts.values())), leaning(*gaps))
    theta = crowd.method.candidates(crowd.server, 0, crowd.memories[0])
    assert [one["head.bias"][1].item() for one in theta] == list(gaps)
    assert choose(crowd.method, crowd, 0, theta) == expected
    assert tiny.same(crowd.states[0], theta[expected])


def test_one_model_is_chosen_without_looking():
    crowd = crowd_of(Dealt(K=1), of_labels(([0], [], [1])), leaning(4.0))
    passes = watched(crowd)
    assert tiny.same(crowd.states[0], models(leaning(4.0))[0]) and not passes


# What evaluating them costs, and gives


def watched(crowd: Crowd) -> list[int]:
    """A list that grows with each forward pass, by the number of its samples."""
    passes: list[int] = []
    crowd.model.register_forward_pre_hook(lambda _, x: passes.append(len(x[0])))
    return passes


GROUPS = of_labels(([0] * 3, [], [0, 1]), ([1] * 2, [], [1, 1, 0]), ([0] * 2, [], [0, 0, 0, 1]), ([0], [], [0]))


def test_clients_that_share_a_model_are_evaluated_once():
    """Clients 0, 2 and 3 take model 0, client 1 takes model 2; nobody takes model 1. All their tensors differ."""
    method, given = Dealt(selection="train"), tiny.task(GROUPS)
    model, server, memories = initial_state(method, given)
    biases = {name: tensor for name, tensor in leaning(-2.0, 0.0, 2.0).items() if name.endswith("bias")}
    scaled = {name: 0.01 * w if name.endswith("head.weight") else w for name, w in server.weights.items()}
    theta = scaled | biases
    crowd = Crowd(method, model, Server(theta), memories, GROUPS)
    passes = watched(crowd)
    assert [state["head.bias"][1].item() for state in crowd.states] == [-2.0, 2.0, -2.0, -2.0]
    assert passes == [3] * 3 + [2] * 3 + [2] * 3 + [1] * 3  # their own training samples, under each model
    passes.clear()
    logits = crowd.logits()
    assert passes == [10, 10]
    for mine, state in zip(logits, crowd.states, strict=True):
        crowd.model.load_state_dict(state)
        with torch.no_grad():
            assert torch.equal(mine, crowd.model(prepare(crowd.samples.images)))
    copies = numbered([models(theta)[2]] * 3)
    alike = Crowd(method, model, Server(copies), memories, GROUPS)
    assert len(alike.states) == 4
    passes = watched(alike)
    assert alike.logits().shape == (4, 10, 2) and passes == [10]


def test_own_accuracies_by_hand_meet_each_sample_once():
    """Models say no, yes, no, no; shares are 3/8, 2/8, 2/8, 1/8."""
    crowd = crowd_of(Dealt(selection="train"), GROUPS, leaning(-2.0, 0.0, 2.0))
    assert len(crowd.states) == 4
    passes = watched(crowd)
    rows = evaluate(crowd, "after_aggregation", pooled=False)
    assert passes == [2, 3, 4, 1]
    values = [1 / 2, 2 / 3, 3 / 4, 1.0]
    expected = {("personal@local", i): value for i, value in enumerate(values)}
    expected["personal@local", -1] = (3 / 2 + 2 * 2 / 3 + 2 * 3 / 4 + 1.0) / 8
    expected["personal@local[plain mean]", -1] = sum(values) / 4
    expected["worst@local", -1] = 1 / 2
    assert {(row.metric, row.client): pytest.approx(row.value) for row in rows} == expected


@pytest.mark.parametrize("method", [Dealt(selection="train"), FedPer(), FedAvg()], ids=lambda m: type(m).__name__)
def test_without_pooled_queries_the_other_rows_are_the_same(method: Method):
    fed = tiny.federation((40, 24, 33), test=15)
    full, short = (tiny.train(method, fed, replace(PLAN, pooled=pooled), LOCAL) for pooled in (True, False))
    assert all(map(tiny.same, [full.server.weights, *full.memories], [short.server.weights, *short.memories]))
    away = {"global@local", "global@pooled"}
    kept = [row for row in full.history if row.metric not in away and not row.metric.startswith("system@pooled")]
    assert short.history == kept
    assert {"personal@local", "personal@local[plain mean]", "worst@local", "bytes_up"} < {row.metric for row in kept}
    assert any(row.metric == "system@pooled" for row in full.history)


# Dropout


def by_hand(fed: Federation, client: int, round: int, theta: State) -> State:
    """One client's work, with torch's global generator seeded for it alone."""
    with one_thread(), torch.random.fork_rng(devices=[]):
        model, _, _ = initial_state(Dropped(), tiny.task(fed))
        model.load_state_dict(theta)
        torch.manual_seed(derive(0, "dropout", round, client))
        step_by_hand(model.train(), fed, client, round, LOCAL, 0.05)
        return dict(model.state_dict())


def test_dropout_is_the_clients_own_and_leaves_the_global_generator_alone():
    fed, method = tiny.federation((40, 24)), Dropped(K=2, selection="train")
    model, server, memories = initial_state(method, tiny.task(fed))
    site = Site(method, tiny.task(fed), LOCAL, tuple(client.train for client in fed.clients))
    sent = []
    for seed, (client, round) in enumerate([(0, 1), (1, 1), (0, 2), (0, 1)]):
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        with one_thread():
            upload = perform(site, model, Assignment(client, server.weights, memories[client], 0.05, round))
        assert torch.equal(torch.get_rng_state(), before)
        sent.append({name.removeprefix(f"{client}/"): tensor for name, tensor in upload.weights.items()})
        assert tiny.same(sent[-1], by_hand(fed, client, round, models(server.weights)[client]))
    assert tiny.same(sent[0], sent[3]) and not tiny.same(sent[0], sent[2])


def test_rounds_have_other_masks():
    """With all samples in each batch, rounds differ by rounding alone but for dropout."""
    fed, apart = tiny.federation((24,)), []
    for method in (Dealt(K=1), Dropped(K=1)):
        model, server, _ = initial_state(method, tiny.task(fed))
        site = Site(method, tiny.task(fed), Local(steps=2, batch_size=24, crop=False), (fed.clients[0].train,))
        one, two = (perform(site, model, Assignment(0, server.weights, {}, 0.05, t)).weights for t in (1, 2))
        apart.append((one["0/head.weight"] - two["0/head.weight"]).abs().max().item())
    assert apart[0] < 1e-6 and apart[1] > 1e-3


def test_dropout_gives_the_same_bits_serially_and_in_processes():
    fed, method, engine = tiny.federation((24, 20, 16)), Dropped(K=2, selection="train"), Processes(2)
    try:
        alone, spread = (tiny.train(method, fed, PLAN, LOCAL, at) for at in (Serial(), engine))
    finally:
        engine.close()
    assert tiny.same_snapshots(alone, spread)


@pytest.mark.parametrize("name", ["Several", "Prototyped"])
def test_base_classes_are_no_methods(name: str):
    assert name not in known()
    with pytest.raises(FedlibError, match=f"method: '{name}' is unknown"):
        make(name)


@pytest.mark.parametrize("name", ["FedFew", "IFCA", "CFL", "LocalOnly", "APFL", "FedAMP", "FedMTL", "FedSoft"])
def test_networks_of_their_own_are_not_averaged_over_a_domain(name: str):
    with pytest.raises(FedlibError, match=f"those of {name} are networks of their own; set test_share above 0"):
        make_experiment(make(name), rounds=2, lr=0.1, test_share=0.0, validation_share=0.1)
