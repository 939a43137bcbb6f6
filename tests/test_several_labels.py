"""Samples of several labels: loss, score, who may learn from them, and federations that are learned."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tiny
import torch

from fedlib import methods
from fedlib.analysis.visitors import visitors
from fedlib.checks import FedlibError
from fedlib.data.drifting import make_drifting
from fedlib.data.federation import Client, Federation, Samples, Visitor, make_federation
from fedlib.data.pool import Pool
from fedlib.engines import Serial
from fedlib.forward import accuracy, class_scores, mean_loss
from fedlib.labels import known, label_loss, macro_auroc
from fedlib.methods.fedavg import FedAvg
from fedlib.methods.feddrift import FedDrift
from fedlib.methods.fedem import FedEM
from fedlib.methods.feroma import FEROMA
from fedlib.methods.ifca import IFCA
from fedlib.methods.method import Method, initial_state
from fedlib.metrics import Crowd
from fedlib.rounds import Plan, Snapshot, federate
from fedlib.training import Local, prepare

STEP = Local(steps=1, batch_size=100, momentum=0.0, weight_decay=0.0, crop=False)
LEARN = Local(steps=40, batch_size=50, momentum=0.0, weight_decay=0.0, crop=False)
OPTIONS: dict[str, dict[str, Any]] = {
    "FEROMA": {"warmup": 1},
    "FEROMAAsReleased": {"warmup": 1},
    "FedDrift": {"measure": "cross-entropy"},
    "PFedMe": {"lam": 1.0},
}
ABLE = (
    *("APFL", "CFL", "Ditto", "FEROMA", "FEROMAAsReleased", "FeSEM", "FedAMP", "FedAvg", "FedDrift", "FedProx", "IFCA"),
    *("LocalOnly", "PFedMe", "PFedMeInFedRC"),
)


def two_domains(sizes: tuple[int, ...] = (100, 100, 60, 60)) -> Federation:
    """One pixel an image. Label 0: red above the middle in domain 0, below it in domain 1; label 1: green above it.

    Clients take turns between the domains. Blue tells the domain, which no linear model can make use of.
    """
    generator = torch.Generator().manual_seed(0)

    def draw(count: int, domain: int) -> Samples:
        images = torch.randint(0, 256, (count, 3, 1, 1), generator=generator, dtype=torch.uint8)
        images[:, 2] = 255 * domain
        high = (images[:, :2, 0, 0] > 127).long()
        return Samples(images, torch.stack([(high[:, 0] + domain) % 2, high[:, 1]], dim=1))

    clients = tuple(
        Client(i, draw(n, i % 2), draw(40, i % 2), draw(80, i % 2), i % 2, i % 2) for i, n in enumerate(sizes)
    )
    return Federation("two domains", clients, ("red", "green"), (3, 1, 1))


def learned(method: Method, fed: Federation, rounds: int = 2, local: Local = LEARN, lr: float = 0.5) -> Snapshot:
    return tiny.train(method, fed, Plan(rounds, lr, schedule="constant", evaluate_every=rounds), local, model="linear")


def value(now: Snapshot, metric: str, client: int = -1) -> float:
    (found,) = (row.value for row in now.history if (row.metric, row.client) == (metric, client))
    return found


def pool(n: int = 120, domains: int = 2) -> Pool:
    number = np.arange(n)
    labels = np.stack([number % 2, number // 2 % 2, number // 4 % 2], axis=1)
    images = np.zeros((n, 3, 2, 2), np.uint8)
    none = np.zeros(n, np.int64)
    names = tuple(f"domain {d}" for d in range(domains))
    return Pool("several", images, labels, ("a", "b", "c"), none.astype(np.uint8), none, number % domains, names)


# the loss and the score


def test_one_step_of_two_clients_follows_the_mean_gradient_of_the_binary_cross_entropies() -> None:
    """grad W = (sigmoid(z) - y)^T x / (n U), with z = W x + b, in NumPy; FedAvg weights the clients by n_i / n."""
    fed = two_domains((30, 10))
    theta = initial_state(FedAvg(), tiny.task(fed, model="linear"))[1].weights
    W, b = (theta[f"head.{name}"].double().numpy() for name in ("weight", "bias"))
    steps, losses = [], []
    for client in fed.clients:
        x, y = prepare(client.train.images).flatten(1).double().numpy(), client.train.labels.numpy()
        p = 1 / (1 + np.exp(-(x @ W.T + b)))
        losses.append(-np.mean(y * np.log(p) + (1 - y) * np.log(1 - p)))
        g = (p - y) / y.size
        steps.append((W - 0.3 * g.T @ x, b - 0.3 * g.sum(0)))
    now = learned(FedAvg(), fed, rounds=1, local=STEP, lr=0.3)
    for k, name in enumerate(("weight", "bias")):
        expected = 0.75 * steps[0][k] + 0.25 * steps[1][k]
        np.testing.assert_allclose(now.server.weights[f"head.{name}"].numpy(), expected, atol=1e-6)
    assert math.isclose(value(now, "train_loss[total]"), 0.75 * losses[0] + 0.25 * losses[1], rel_tol=1e-5)


def test_mean_loss_is_the_loss_of_all_samples_whatever_the_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedlib.forward.CHUNK", 7)
    fed = two_domains()
    model, samples = initial_state(FedAvg(), tiny.task(fed, model="linear"))[0], fed.clients[0].train
    z = class_scores(model, samples.images).double()
    by_hand = torch.where(samples.labels == 1, -z.sigmoid().log(), -(-z).sigmoid().log()).mean()
    torch.testing.assert_close(mean_loss(model, samples), by_hand)
    assert torch.equal(accuracy(model, samples), macro_auroc(z, samples.labels))


def test_one_label_is_the_cross_entropy_bit_for_bit() -> None:
    z, y = torch.randn(9, 4, generator=torch.Generator().manual_seed(0)), torch.arange(9) % 4
    assert torch.equal(label_loss(z, y), torch.nn.functional.cross_entropy(z, y))


def test_the_macro_auroc_is_the_mean_over_labels_that_have_both_values() -> None:
    """Label 0: of four pairs three are in order. Label 1: all tied, a half. All have label 2, and none label 3."""
    scores = torch.tensor([[0.9, 1.0, 0.1, 0.3], [0.5, 1.0, 0.2, 0.2], [0.4, 1.0, 0.3, 0.1], [0.1, 1.0, 0.4, 0.0]])
    truth = torch.tensor([[1, 1, 1, 0], [0, 0, 1, 0], [1, 0, 1, 0], [0, 0, 1, 0]])
    assert float(macro_auroc(scores, truth)) == (0.75 + 0.5) / 2
    assert macro_auroc(scores[:, 2:], truth[:, 2:]).isnan()


def test_a_client_without_a_score_has_no_row_and_no_part_in_the_means() -> None:
    fed = two_domains()
    silent = Samples(fed.clients[1].test.images, torch.ones_like(fed.clients[1].test.labels))
    fed = replace(fed, clients=(fed.clients[0], replace(fed.clients[1], test=silent), *fed.clients[2:]))
    now = learned(FedAvg(), fed)
    mine = {row.client: row.value for row in now.history if row.metric == "personal@local" and row.client >= 0}
    assert sorted(mine) == [0, 2, 3]
    mean = (100 * mine[0] + 60 * mine[2] + 60 * mine[3]) / 220
    assert math.isclose(value(now, "personal@local"), mean, rel_tol=1e-6)
    assert math.isclose(value(now, "global@local"), mean, rel_tol=1e-6)
    assert math.isclose(value(now, "personal@local[plain mean]"), sum(mine.values()) / 3, rel_tol=1e-6)
    assert value(now, "worst@local") == min(mine.values())
    assert {row.client for row in now.history if row.metric == "system@pooled[mean sigmoid]"} == {-1, 0, 2, 3}


def test_no_score_at_all_is_an_error() -> None:
    with pytest.raises(
        FedlibError, match=r"no client has test samples with and without a same label.*larger test_share"
    ):
        known(torch.tensor([math.nan, math.nan]), "client", several=True)
    assert known(torch.tensor([0.5, math.nan, 0.0]), "client", several=True).tolist() == [True, False, True]


# who answers


def test_served_models_answer_by_their_mean_sigmoids_or_the_one_of_least_loss_on_few() -> None:
    fed, method = two_domains(), IFCA(K=2)
    model, server, memories = initial_state(method, tiny.task(fed, model="linear"))
    crowd, test = Crowd(method, model, server, memories, fed), fed.clients[1].test
    z, losses = [], []
    for state in method.served(server):
        model.load_state_dict(state)
        z.append(class_scores(model, test.images))
        losses.append(float(mean_loss(model, fed.clients[1].train)))
    nothing = Samples(test.images[:0], test.labels[:0])
    mean = torch.stack([1 / (1 + (-one).exp()) for one in z]).mean(0)
    torch.testing.assert_close(method.visit(crowd, Visitor(0, test, nothing, 1)), mean)
    best = z[int(np.argmin(losses))].sigmoid()
    torch.testing.assert_close(method.visit(crowd, Visitor(0, test, fed.clients[1].train, 1)), best)
    assert len(set(losses)) == 2
    (rule,) = FedAvg().route(crowd)
    assert rule == "mean sigmoid"


# what is learned


def test_one_linear_model_cannot_serve_two_domains_that_disagree_on_a_label_and_feroma_can() -> None:
    """FedAvg: 1 for green, and for red what one order of scores is worth in both domains, a on one, 1 - a on the other:
    the mean over the domains is (1 + 1/2) / 2 of equally many clients, for whatever a."""
    one, many = learned(FedAvg(), two_domains()), learned(FEROMA(warmup=1), two_domains(), rounds=4)
    w_bar, domain = many.server.memory["w_bar"], torch.tensor([client.domain for client in two_domains().clients])
    assert (w_bar[domain[:, None] != domain] == 0).all() and (w_bar.sum(1) > 0.99).all()
    assert value(one, "personal@local[plain mean]") == pytest.approx(0.75, abs=0.03)
    assert value(many, "personal@local") > 0.97 and value(many, "worst@local") > 0.95


@pytest.mark.parametrize("name", ABLE)
def test_every_method_that_says_so_learns_several_labels(name: str) -> None:
    """Chance is 0.5; green alone gives 0.75."""
    now = learned(methods.make({"name": name} | OPTIONS.get(name, {})), two_domains())
    assert value(now, "personal@local") > 0.7


def test_ifca_with_one_model_is_fedavg() -> None:
    one, other = learned(IFCA(K=1, selection="train"), two_domains()), learned(FedAvg(), two_domains())
    assert tiny.same({name[2:]: w for name, w in one.server.weights.items()}, other.server.weights)
    assert value(one, "personal@local") == value(other, "personal@local")


def test_feroma_s_groups_of_labels_overlap() -> None:
    """mu_u of the profile is the mean over all samples that have label u, those that have both in both."""
    fed, method = two_domains(), FEROMA(warmup=1, samplings=0)
    now = learned(method, fed, rounds=2)
    own, d = fed.clients[0].validation, now.server.memory["d"][0]
    z = prepare(own.images).flatten(1)
    g = method.projection_for(now.server, z)(z)
    assert bool((own.labels.sum(1) == 2).any()) and d.shape == (2 * 2 * 3,)
    expected = torch.cat([g.mean(0), *(g[own.labels[:, u] == 1].mean(0) for u in range(2))])
    torch.testing.assert_close(torch.cat([d[:2], d[4:8]]).double(), expected, atol=1e-5, rtol=0)


def test_visitors_of_drifting_domains_are_answered_by_a_model_of_their_own_domain() -> None:
    """A score of 1 but for the samples next to the middle; a model of the other domain has 0 for red: 0.5."""
    held = [(client.domain, part) for client in two_domains((300,) * 6).clients for part in (client.train, client.test)]
    images, labels = (torch.cat([getattr(part, name) for _, part in held]) for name in ("images", "labels"))
    domains = np.repeat([domain for domain, _ in held], [len(part) for _, part in held])
    none = np.zeros(len(labels), np.int64)
    split, names = none.astype(np.uint8), ("above", "below")
    data = Pool("two domains", images.numpy(), labels.numpy(), ("red", "green"), split, none, domains, names)
    drift = {"name": "domains", "phases": 2, "phase_samples": 100}
    fed, plan = make_drifting(data, 4, drift, 4, 0, test_share=0.3), Plan(4, 0.5, schedule="constant", evaluate_every=4)
    task = tiny.task(fed, 4, "linear")
    now = federate(FEROMA(warmup=1), fed, task, LEARN, plan, Serial(), probes=[visitors])
    assert {client.distribution for client in fed.at(4).clients} == {0, 1}
    assert value(now, "match@visitors") == 1.0
    assert all(value(now, "served@visitors", k) > 0.95 for k in (-1, 0, 1, 2, 3))


# what is refused


def test_methods_have_to_say_so_themselves() -> None:
    able = [name for name, cls in methods.known().items() if vars(cls).get("several_labels")]
    assert sorted(able) == sorted(ABLE)
    for name, cls in methods.known().items():
        if name not in ABLE:
            with pytest.raises(FedlibError, match=f"method: {name} is for samples of one label.*take one of APFL, CFL"):
                methods.check_labels(cls())
    assert issubclass(methods.known()["FedALAAsReleased"], FedAvg)  # what it inherits does not count


@pytest.mark.parametrize(
    "method, message",
    [
        (FedEM(), "method: FedEM is for samples of one label"),
        (FEROMA(warmup=1, epsilon=1.0), "FEROMA.epsilon: 1.0 is for one label a sample"),
        (FedDrift(), "FedDrift.measure: error is the share of wrong classes.*give measure: cross-entropy"),
    ],
)
def test_a_run_is_refused_before_training(method: Method, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedlib.rounds.initial_state", lambda *_: pytest.fail("training has begun"))
    with pytest.raises(FedlibError, match=message):
        learned(method, two_domains())


@pytest.mark.parametrize(
    "spec",
    [
        {"name": "dirichlet", "alpha": 0.3},
        {"name": "shards", "per_client": 2},
        {"name": "pathological", "classes_per_client": 1},
        {"name": "single_class_chunks"},
        {"name": "by_domain", "allocation": [2, 2], "share": 0.4},
        {"name": "by_domain", "allocation": [2, 2], "share": 0.4, "repair": False, "alpha": 1.0},
    ],
)
def test_partitions_by_label_are_refused(spec: dict[str, Any]) -> None:
    with pytest.raises(FedlibError, match=rf"partition: .*{spec['name']}.* goes by labels, but a sample of 'several'"):
        make_federation(pool(), 4, spec, None, 0)


@pytest.mark.parametrize(
    "spec, counts",
    [
        ({"name": "iid"}, [30] * 4),
        ({"name": "by_domain", "allocation": [2, 2], "share": 0.4, "repair": False}, [24] * 4),
    ],
)
def test_the_others_divide_all_labels_with_their_samples(spec: dict[str, Any], counts: list[int]) -> None:
    fed = make_federation(pool(), 4, spec, None, 0)
    held = [torch.cat([client.train.labels, client.test.labels]) for client in fed.clients]
    assert [one.shape for one in held] == [(n, 3) for n in counts] and fed.several_labels
    _, origin = fed.pooled_test()
    assert origin.tolist() == [client.index for client in fed.clients for _ in range(len(client.test))]
    with pytest.raises(FedlibError, match=r"labels are of shape \(\d+, 3\): a sample may have several"):
        fed.skew()


@pytest.mark.parametrize(
    "drift, message",
    [
        (
            {"name": "P(Y)"},
            r"drift 'P\(Y\)': a sample of 'several' may have several labels.*take 'domains' or 'P\(X\)'",
        ),
        ({"name": "P(Y|X)"}, r"drift 'P\(Y\|X\)'"),
        ({"name": "P(X|Y)"}, r"drift 'P\(X\|Y\)'"),
        ({"name": "domains", "few_per_class": 2}, "few_per_class: 2, but a sample of 'several'.*set few_per_class: 0"),
    ],
)
def test_drift_by_label_is_refused(drift: dict[str, Any], message: str) -> None:
    with pytest.raises(FedlibError, match=message):
        make_drifting(pool(), 2, drift | {"phases": 2}, 4, 0, test_share=0.3)


@pytest.mark.parametrize("change", [lambda y: y + 1, lambda y: y[:, :2], lambda y: y.astype(np.int32)])
def test_labels_that_are_not_0_and_1_of_each_class_are_refused(change: Any) -> None:
    with pytest.raises(
        FedlibError, match=r"'several': labels are int\d\d \(120, \d\), not int64 \(120, 3\) of 0 and 1"
    ):
        replace(pool(), labels=change(pool().labels))
