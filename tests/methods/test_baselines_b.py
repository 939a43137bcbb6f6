"""FedPAC and FedALA against closed forms, identities and sums by hand; bounds, resuming and engines for all eight.

FedAS and ConFREE: test_fedas_confree.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import tiny
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from test_methods import LOCAL, PLAN

from fedlib.checks import FedlibError
from fedlib.data.federation import Federation
from fedlib.engines import Processes, Serial
from fedlib.methods import known
from fedlib.methods.confree import ConFREE
from fedlib.methods.fedala import FedALA, layers
from fedlib.methods.fedas import FedAS
from fedlib.methods.fedavg import FedAvg
from fedlib.methods.fedpac import FedPAC, centroids, class_moments, combination, combined_heads, features
from fedlib.methods.fedrep import FedRep
from fedlib.methods.method import Method, Server, State, Upload, Work, initial_state, weighted_mean
from fedlib.methods.released.feddrm import (
    ConFREEAsReleased,
    FedALAAsReleased,
    FedASAsReleased,
    FedPACAsReleased,
    FedRepAsReleased,
)
from fedlib.rounds import Plan, Snapshot, federate
from fedlib.store import load_snapshot, save_snapshot
from fedlib.training import Batch, Local, prepare

RELEASED: tuple[Method, ...] = (FedPACAsReleased(), FedALAAsReleased(), FedASAsReleased(), ConFREEAsReleased())
METHODS: tuple[Method, ...] = (FedPAC(), FedALA(), FedAS(), ConFREE(), *RELEASED)


def name_of(method: Method) -> str:
    return type(method).__name__


def work_on(
    fed: Federation, method: Method, memory: State | None = None, local: Local = LOCAL, model: str = "small_cnn"
) -> Work:
    """Client 0's work in round 2, from the initial network."""
    network, server, _ = initial_state(method, tiny.task(fed, model=model))
    given = memory or {}
    stream = torch.Generator().manual_seed(3)
    return Work(0, fed.clients[0].train, server.weights, given, network, local, 0.05, 2, 3, stream)


def personal_models(method: Method, now: Snapshot) -> list[State]:
    return [method.personal_model(now.server, i, memory) for i, memory in enumerate(now.memories)]


@pytest.mark.parametrize("method", METHODS, ids=name_of)
def test_runs_with_some_of_the_clients_and_goes_on_bit_for_bit(method: Method, tmp_path):
    fed, plan = tiny.federation((40, 24, 33, 20)), Plan(3, 0.05, participation=0.5, evaluate_every=1)
    path = tmp_path / "snapshot.safetensors"

    def keep(now: Snapshot) -> None:
        if now.server.round == 1:
            save_snapshot(path, now)

    whole = tiny.train(method, fed, plan, LOCAL, after_round=keep)
    again = federate(method, fed, tiny.task(fed), LOCAL, plan, Serial(), resume=load_snapshot(path))
    assert tiny.same_snapshots(whole, again) and tiny.same(whole.server.memory, again.server.memory)
    local = [row for row in whole.history if row.metric == "personal@local"]
    assert len(local) == 3 * 5 and all(0.0 <= row.value <= 1.0 for row in local)
    assert {row.moment for row in local} == {method.moment(1, 3)}
    network = set(initial_state(FedAvg(), tiny.task(fed))[0].state_dict())
    assert all(set(own) == network for own in personal_models(method, whole))


def test_processes_give_the_same_bits():
    fed, plan, engine = tiny.federation(), Plan(3, 0.05), Processes(2)
    try:
        for method in (FedPAC(), FedALA(), FedAS(), FedASAsReleased()):
            assert tiny.same_snapshots(*(tiny.train(method, fed, plan, LOCAL, at) for at in (Serial(), engine)))
    finally:
        engine.close()


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"name": "FedPAC", "lam": -0.1}, "FedPAC.lam: -0.1 is out of range; give a number at least 0.0"),
        ({"name": "FedPAC", "head_steps": 0}, "FedPAC.head_steps: 0 is out of range"),
        ({"name": "FedALA", "top_layers": 0}, "FedALA.top_layers: 0 is out of range; give a whole number at least 1"),
        ({"name": "FedALA", "eta": -1}, "FedALA.eta: -1 is out of range"),
        ({"name": "FedALA", "data_share": 80}, "FedALA.data_share: 80 is out of range; give a number above 0.0"),
        ({"name": "FedALA", "threshold": 0}, "FedALA.threshold: 0 is out of range"),
        ({"name": "FedALA", "most_passes": 1.5}, "FedALA.most_passes: 1.5 is float, not a whole number"),
        ({"name": "FedAS", "align_steps": -1}, "FedAS.align_steps: -1 is out of range"),
        ({"name": "FedAS", "align_lr": 0}, "FedAS.align_lr: 0 is out of range; give a number above 0.0"),
        ({"name": "FedASAsReleased", "align_steps": 2}, "method FedASAsReleased: unknown key 'align_steps'"),
        ({"name": "ConFREE", "radius": 1.0}, "ConFREE.radius: 1.0 is out of range; give a number at least 0.0 and"),
        ({"name": "FedPACAsReleased", "mu": -1}, "FedPACAsReleased.mu: -1 is out of range"),
        ({"name": "ConFREEAsReleased", "radius": 0.5}, "method ConFREEAsReleased: unknown key 'radius'"),
    ],
)
def test_wrong_hyper_parameters_are_refused(spec, message: str):
    assert message in tiny.refusal(spec)


def test_all_are_found_by_name():
    assert all(known()[name_of(method)] is type(method) for method in METHODS)


# FedPAC


@pytest.mark.parametrize(("V0", "V1", "apart"), [(1.0, 2.0, 3.0), (0.5, 0.0, 0.0), (0.0, 1.0, 2.0), (1e-6, 3e-6, 1.0)])
def test_two_clients_combine_as_the_closed_form_says(V0: float, V1: float, apart: float):
    """(1 - t)^2 V0 + t^2 (V1 + ||h0 - h1||^2) is least at t = V0 / (V0 + V1 + ||h0 - h1||^2)."""
    h = torch.tensor([[1.0, 2.0], [1.0, 2.0 + apart]], dtype=torch.float64)
    a = combination(torch.tensor([V0, V1], dtype=torch.float64), h, 0)
    t = V0 / (V0 + V1 + apart**2)
    assert a.tolist() == pytest.approx([1 - t, t], abs=1e-9)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 12), st.integers(1, 5), st.floats(-4, 3))
def test_combination_weights_are_optimal_on_the_simplex_even_if_the_matrix_is_singular(seed, m, d, size):
    """Karush-Kuhn-Tucker: (Pa)_j = a'Pa where a_j > 0, and no smaller anywhere. With m > d, P has rank d at most."""
    draw = np.random.default_rng(seed)
    V = torch.from_numpy(draw.exponential(size=m) * (draw.random(m) < draw.choice([0.0, 0.5, 1.0])))
    h = torch.from_numpy(draw.normal(size=(m, d)) * 10.0**size)
    i = seed % m
    a = combination(V, h, i)
    P = torch.diag(V) + (h - h[i]) @ (h - h[i]).T
    assert a.min() >= 0 and a.sum().item() == pytest.approx(1.0, abs=1e-12)
    assert (P @ a).min() >= a @ P @ a - 1e-9 * P.max()


def test_equal_clients_share_their_head_and_clients_without_variance_keep_their_own():
    V, h = torch.full((4,), 0.3, dtype=torch.float64), torch.ones(4, 6, dtype=torch.float64)
    assert combination(V, h, 2).tolist() == pytest.approx([0.25] * 4)
    assert combination(0 * V, h, 2).tolist() == [0, 0, 1, 0]
    statistics = {"V": torch.tensor(0.3), "h": torch.ones(3, 2), "head.bias": torch.tensor([0.1, 0.7, -3.0])}
    statistics["head.weight"] = torch.randn(3, 2, generator=torch.Generator().manual_seed(0))
    memory = {f"{i}/{name}": tensor for i in (0, 1, 7) for name, tensor in statistics.items()}
    for name, psi in combined_heads(memory, [1, 7]).items():
        torch.testing.assert_close(psi, statistics[name.rpartition("/")[2]])


def test_statistics_are_those_of_the_features_by_class():
    """On the linear model f is the image itself; V is the variance of the mean of 1[y = k] f, all k together."""
    fed = tiny.federation((30,), side=2, classes=3)
    samples, model = fed.clients[0].train, work_on(fed, FedAvg(), model="linear").model
    x = prepare(samples.images).flatten(1).double()
    found = class_moments(model, samples)
    for k in range(3):
        torch.testing.assert_close(found.sums[k], x[samples.labels == k].sum(0))
        assert found.counts[k] == (samples.labels == k).sum()
    z = torch.einsum("nk,nd->nkd", F.one_hot(samples.labels, 3).double(), x).flatten(1)
    h = found.sums / 30
    V = (found.squares / 30 - h.square().sum()) / 30
    torch.testing.assert_close(V, z.var(0, unbiased=False).sum() / 30)


def test_centroids_are_weighted_by_class_counts():
    memory = {"0/counts": torch.tensor([3.0, 0, 0]), "0/sums": 3.0 * torch.tensor([[1.0, 2], [0, 0], [0, 0]])}
    memory |= {"4/counts": torch.tensor([1.0, 5, 0]), "4/sums": torch.tensor([[5.0, 6], [5, 10], [0, 0]])}
    memory |= {f"{i}/V": torch.zeros(()) for i in (0, 4)}
    got = centroids(memory)
    assert got["counts"].tolist() == [4, 5, 0]
    assert got["centroids"].tolist() == [[(3 * 1 + 5) / 4, (3 * 2 + 6) / 4], [1, 2], [0, 0]]


def test_alignment_is_the_squared_distance_to_known_centroids():
    method, fed = FedPAC(lam=0.7), tiny.federation((12,), classes=3)
    work, labels = work_on(fed, FedRep()), fed.clients[0].train.labels
    batch = Batch(prepare(fed.clients[0].train.images), labels, 0)
    assert method.loss(work.model, batch, work)["alignment"] == 0
    c, n = torch.randn(3, 64, generator=torch.Generator().manual_seed(0)), torch.tensor([4.0, 0.0, 1.0])
    terms = method.loss(work.model, batch, replace(work, message=work.message | {"centroids": c, "counts": n}))
    f = features(work.model, batch.x)
    by_hand = sum((f[j] - c[y]).square().sum() / 64 for j, y in enumerate(labels) if y != 1) / 12
    torch.testing.assert_close(terms["alignment"], by_hand)
    torch.testing.assert_close(terms["total"], F.cross_entropy(work.model(batch.x), labels) + 0.7 * by_hand)


def test_fedpac_of_one_client_without_alignment_is_fedrep():
    fed, plan = tiny.federation((40,)), Plan(3, 0.05, evaluate_every=1)
    got, plain, aligned = (tiny.train(m, fed, plan, LOCAL) for m in (FedPAC(lam=0.0), FedRep(), FedPAC(lam=1.0)))
    assert tiny.same(personal_models(FedPAC(), got)[0], personal_models(FedRep(), plain)[0])
    mine, theirs = ([r for r in now.history if r.metric == "personal@local"] for now in (got, plain))
    assert mine == theirs and not tiny.same(got.server.weights, aligned.server.weights)


def test_clients_predict_with_the_combination_of_all_heads_and_keep_nothing():
    fed, method = tiny.federation((40, 24)), FedPAC()
    now = tiny.train(method, fed, Plan(1, 0.05), LOCAL)
    kept = now.server.memory
    apart = (kept["0/h"] - kept["1/h"]).double().square().sum()
    t = (kept["0/V"].double() / (kept["0/V"].double() + kept["1/V"].double() + apart)).float()
    assert 0 < t < 0.5 and now.memories == [{}, {}]
    expected = (1 - t) * kept["0/head.weight"] + t * kept["1/head.weight"]
    torch.testing.assert_close(personal_models(method, now)[0]["head.weight"], expected)


def test_variances_are_of_the_body_as_it_came_down_and_centroids_of_the_trained_one():
    method = FedPAC()
    one = tiny.train(method, tiny.federation((40,)), Plan(1, 0.05), LOCAL)
    work = work_on(tiny.federation((40,)), FedRep())
    x, y = prepare(work.samples.images), work.samples.labels
    z = torch.einsum("nk,nd->nkd", F.one_hot(y, 10).float(), features(work.model, x))
    torch.testing.assert_close(one.server.memory["0/h"], z.mean(0))
    torch.testing.assert_close(one.server.memory["0/V"], z.var(0, unbiased=False).sum() / 40)
    work.model.load_state_dict(personal_models(method, one)[0])
    f = features(work.model, x)
    for k in y.unique():
        torch.testing.assert_close(one.server.memory["centroids"][k], f[y == k].mean(0), rtol=1e-4, atol=1e-5)


def test_who_is_absent_keeps_its_head():
    seen: list[State] = []
    plan = Plan(2, 0.05, leaves={0: 1})
    tiny.train(FedPAC(), tiny.federation(), plan, LOCAL, after_round=lambda now: seen.append(now.server.memory))
    before, after = seen
    changed = {name for name in after if not torch.equal(after[name], before[name])}
    assert "1/combined/head.weight" in changed and not any(name.startswith("0/") for name in changed)


def test_released_fedpac_is_fedrep_on_a_leash():
    """mu = 0 is FedRepAsReleased; the leash pulls the body, and by hand is (mu / 2) ||theta_i - theta||^2."""
    fed, ten = tiny.federation(), Local(steps=10, batch_size=16, crop=False)
    loose, plain = (tiny.train(m, fed, PLAN, ten) for m in (FedPACAsReleased(mu=0.0), FedRepAsReleased()))
    assert tiny.same_snapshots(loose, plain)
    work = work_on(fed, FedRep())
    batch = Batch(prepare(work.samples.images), work.samples.labels, 0)
    assert FedPACAsReleased().loss(work.model, batch, work)["total"] == F.cross_entropy(work.model(batch.x), batch.y)
    with torch.no_grad():
        for name, w in work.model.named_parameters():
            w.add_(2.0 if name == "transform.1.bias" or name.startswith("head.") else 0.0)
    terms = FedPACAsReleased(mu=0.5).loss(work.model, batch, work)
    assert (terms["total"] - terms["target"]).item() == pytest.approx(0.25 * 64 * 4.0, rel=1e-4)


# FedALA


def test_fedala_with_fixed_weights_is_fedavg():
    fed, plan = tiny.federation(), Plan(3, 0.05, evaluate_every=1)
    fixed, plain = (tiny.train(method, fed, plan, LOCAL) for method in (FedALA(eta=0.0), FedAvg()))
    assert tiny.same(fixed.server.weights, plain.server.weights) and fixed.history == plain.history
    assert all((memory["W/head.weight"] == 1).all() for memory in fixed.memories)
    learned = tiny.train(FedALA(), fed, plan, LOCAL)
    for memory in learned.memories:
        W = torch.cat([tensor.flatten() for name, tensor in memory.items() if name.startswith("W/")])
        assert W.min() >= 0 and W.max() <= 1 and (W < 1).any()


def test_clients_whose_model_is_the_global_one_learn_no_weights():
    fed, plan = tiny.federation((40,)), Plan(3, 0.05)
    alone, plain = (tiny.train(method, fed, plan, LOCAL) for method in (FedALA(), FedAvg()))
    assert tiny.same(alone.server.weights, plain.server.weights)
    assert set(alone.memories[0]) == {"own/head.weight", "own/head.bias"}


def test_one_step_of_the_weights_by_hand():
    """Softmax regression: dL/dw = mean_j (p_j - e_{y_j}) x_j', at init = own + (theta - own) * W."""
    fed = tiny.federation((20,), side=2, classes=3)
    work = work_on(fed, FedAvg(), local=replace(LOCAL, batch_size=20), model="linear")
    draw = torch.Generator().manual_seed(1)
    theta = work.message
    own = {name: tensor + torch.randn(tensor.shape, generator=draw) for name, tensor in theta.items()}
    W = {name: torch.rand(tensor.shape, generator=draw) for name, tensor in theta.items()}
    got = FedALA(eta=2.0, data_share=1.0).learn(work, own, W)
    init = {name: own[name] + (theta[name] - own[name]) * W[name] for name in theta}
    x, y = prepare(work.samples.images).flatten(1), work.samples.labels
    error = (x @ init["head.weight"].T + init["head.bias"]).softmax(1) - F.one_hot(y, 3)
    slope = {"head.weight": error.T @ x / 20, "head.bias": error.mean(0)}
    for name, s in slope.items():
        by_hand = (W[name] - 2.0 * s * (theta[name] - own[name])).clamp(0, 1)
        torch.testing.assert_close(got[name], by_hand, rtol=1e-4, atol=1e-5)
        assert not torch.equal(got[name], W[name])


def test_clients_train_from_the_mixture_and_predict_with_it():
    """At a rate of almost nothing, what goes up is the start of the training."""
    method = FedALA()
    work = replace(work_on(tiny.federation((40,)), FedAvg()), lr=1e-30)
    theta, draw = work.message, torch.Generator().manual_seed(1)
    own = {name: theta[name] + torch.randn(theta[name].shape, generator=draw) for name in ("head.weight", "head.bias")}
    upload = method.client_update(replace(work, memory={f"own/{name}": tensor for name, tensor in own.items()}))
    W = {name: upload.memory[f"W/{name}"] for name in own}
    mixture = theta | {name: own[name] + (theta[name] - own[name]) * w for name, w in W.items()}
    torch.testing.assert_close(upload.weights, mixture)
    assert not torch.equal(mixture["head.weight"], theta["head.weight"])
    later = {name: tensor + 1.0 for name, tensor in theta.items()}
    kept = {name: upload.weights[name] for name in own}
    expected = later | {name: kept[name] + (later[name] - kept[name]) * w for name, w in W.items()}
    torch.testing.assert_close(method.personal_model(Server(later, 2), 0, upload.memory), expected)


@dataclass(frozen=True)
class Counted(FedALA):
    """Notes (client, round) of each pass."""

    passes: list[tuple[int, int]] = field(default_factory=list)

    def one_pass(self, work: Work, *arguments):
        self.passes.append((work.client, work.round))
        return super().one_pass(work, *arguments)


@pytest.mark.parametrize(("options", "first"), [({"threshold": 1e9}, 11), ({"threshold": 1e-9, "most_passes": 4}, 4)])
def test_weights_are_learned_until_they_settle_then_once_a_round(options: dict, first: int):
    method = Counted(**options)
    tiny.train(method, tiny.federation((20, 20)), Plan(4, 0.05), LOCAL)
    assert [method.passes.count((1, t)) for t in (1, 2, 3, 4)] == [0, first, 1, 1]


def test_the_top_layers_are_counted_from_the_head():
    fed = tiny.federation((20,))
    model = work_on(fed, FedAvg()).model
    assert FedALA().top(model) == ["head.weight", "head.bias"]
    assert FedALA(top_layers=2).top(model) == ["transform.1.weight", "transform.1.bias", "head.weight", "head.bias"]
    count = len(layers(model))
    everything = [name for name, _ in model.named_parameters()]
    assert FedALA(top_layers=count).top(model) == everything
    with pytest.raises(
        FedlibError, match=f"FedALA.top_layers: {count + 1} is more than the {count} layers of this model; give fewer"
    ):
        tiny.train(FedALA(top_layers=count + 1), fed, PLAN, LOCAL)


def test_released_fedala_is_fedavg_of_half_the_steps_seen_before_aggregation():
    fed, six = tiny.federation(), Local(steps=6, batch_size=16, crop=False)
    half = tiny.train(FedALAAsReleased(), fed, PLAN, six)
    plain = tiny.train(FedAvg(), fed, PLAN, LOCAL)
    assert tiny.same(half.server.weights, plain.server.weights)
    assert FedALAAsReleased().moment(1, 3) == "after_local"
    mean = weighted_mean(
        half.server.weights, [Upload(0, m, {}, n, {}) for m, n in zip(half.memories, fed.sizes, strict=True)]
    )
    assert tiny.same(mean, half.server.weights) and not tiny.same(half.memories[0], half.memories[1])
