"""FEROMA and what was released of it: planted groups on quadratics, identities, drift of who is there."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from feroma_tasks import (
    CENTRES,
    GROUPS,
    LR,
    OnQuadratics,
    ReleasedOnQuadratics,
    W,
    by_group,
    draw,
    ends,
    grouped,
    near,
    played,
    start,
    step,
)
from personal_tasks import DESCENT, rows
from test_methods import Quadratic

from fedlib.checks import FedlibError
from fedlib.engines import Assignment, Serial, perform
from fedlib.methods import make
from fedlib.methods.feroma import FEROMA, local_model, mixture, present
from fedlib.methods.method import Server, Site, Task, initial_state
from fedlib.profiles import regime
from fedlib.rounds import Plan, federate, size
from fedlib.streams import torch_stream


def test_two_groups_are_warmed_up_together_and_then_each_client_starts_from_its_groups_mean():
    """The whole course by hand: FedAvg, one mean of all in round W + 1, then means within groups."""
    fed = grouped(same=True)
    seen = played(OnQuadratics(samplings=0), fed, 5)
    w = step(start(fed)).mean(0)
    near(seen[0].server.weights["head.bias"], w, 1e-5)
    theta = step(w)
    near(torch.from_numpy(ends(seen[1])), theta, 1e-5)
    near(seen[1].server.memory["embedding/head.bias"], theta.mean(0), 1e-5)
    theta = step(theta.mean(0))
    near(torch.from_numpy(ends(seen[2])), theta, 1e-5)
    near(seen[2].server.memory["w_bar"], np.full((6, 6), 1 / 6))
    assert (seen[2].server.memory["w"] == -1).all()
    for now in seen[3:]:
        theta = step(by_group(theta))
        near(torch.from_numpy(ends(now)), theta, 1e-5)
        survive = now.server.memory["w_bar"] > 0
        assert survive.tolist() == [[g == h for h in GROUPS] for g in GROUPS]
        torch.testing.assert_close(now.server.memory["w_bar"].sum(1), torch.ones(6, dtype=torch.float64))
        assert {regime(w, 1.5) for w in now.server.memory["w"]} == {"clustered"}


def test_weights_and_models_are_those_of_the_distances_in_memory():
    seen = played(OnQuadratics(temperature=0.7), grouped(), 4)
    kept = seen[-1].server.memory
    a = (-kept["D"] / 0.7).exp()
    torch.testing.assert_close(kept["w"], a / a.sum(1, keepdim=True))
    assert (kept["D"] > 0).all() and not torch.allclose(kept["D"], kept["D"].T)  # of rounds 4 and 3: halves anew
    kept_w = torch.where(kept["w"] >= 1.5 / 6, kept["w"], 0.0)
    w_bar = kept_w / kept_w.sum(1, keepdim=True)
    torch.testing.assert_close(kept["w_bar"], w_bar)
    assert (kept_w.sum(1) > 0).all() and w_bar.unique().numel() > 7
    near(torch.from_numpy(ends(seen[-1])), step(w_bar.numpy() @ ends(seen[-2])), 1e-5)


def test_warm_up_is_fedavg_bit_for_bit():
    fed = grouped(sizes=(30, 10, 25, 30, 12, 30))
    method, plain = OnQuadratics(warmup=3), Quadratic(CENTRES, (1.0,) * 6)
    seen, other = played(method, fed, 4), []
    plan = Plan(4, LR, schedule="constant", evaluate_every=4)
    tiny.train(plain, fed, plan, DESCENT, model="linear", after_round=lambda now: other.append(now.server.weights))
    assert tiny.same(seen[0].server.weights, other[0]) and tiny.same(seen[1].server.weights, other[1])
    assert tiny.same(method.embedding_of(seen[3].server), other[2])


def test_an_untrained_embedding_is_the_network_at_the_start():
    for warmup in (1, 2):
        fed, method = grouped(), OnQuadratics(embedding="untrained", warmup=warmup)
        first = initial_state(method, tiny.task(fed, model="linear"))[1].weights
        assert tiny.same(method.embedding_of(played(method, fed, 3)[-1].server), first)


def test_equal_profiles_make_it_fedavg():
    """The same samples everywhere, each once: D = 0, all weights 1 / m < tau, and the fallback is FedAvg's mean."""
    fed = grouped((0,) * 6, same=True)
    seen, plain = played(OnQuadratics(samplings=0), fed, 6), start(fed)
    for now in seen:
        theta = step(plain)
        plain = theta.mean(0)
        if now.server.round >= W:
            near(torch.from_numpy(ends(now)), theta, 1e-5)
    kept = seen[-1].server.memory
    assert (kept["D"] == 0).all()
    near(kept["w"], np.full((6, 6), 1 / 6), 1e-12)
    assert {regime(w, 1.5) for w in kept["w"]} == {"global"}


def test_the_fallback_may_weigh_samples():
    fed = grouped((0,) * 6, sizes=(10, 20, 30, 10, 20, 30), same=True)
    n = np.array(fed.sizes) / sum(fed.sizes)
    seen, w = played(OnQuadratics(samplings=0, fallback="samples"), fed, 5), start(fed)
    for _ in seen:
        theta = step(w)
        w = n @ theta
    near(torch.from_numpy(ends(seen[-1])), theta, 1e-5)


def test_a_client_like_no_other_starts_from_its_own_model_bit_for_bit():
    fed, method = grouped(range(6), same=True), OnQuadratics(samplings=0)
    seen = played(method, fed, 5)
    kept = seen[-1].server.memory
    assert torch.equal(kept["w_bar"], torch.eye(6, dtype=torch.float64)) and (kept["D"].diagonal() == 0).all()
    assert {regime(w, 1.5) for w in kept["w"]} == {"personal"}
    for k in range(6):
        assert tiny.same(mixture(seen[3].server, kept["w_bar"][k]), local_model(seen[3].server, k))
    near(torch.from_numpy(ends(seen[4])), step(ends(seen[3])), 1e-6)


def test_the_order_of_messages_changes_no_bit():
    """Guards against trap 2: everything is keyed by the client."""
    fed, method = grouped(sizes=(30, 10, 25, 30, 12, 30)), OnQuadratics()
    task = Task({"name": "linear"}, fed.shape, 3, fed.sizes, 5, seed=0)
    site = Site(method, task, DESCENT, tuple(client.train for client in fed.clients))

    def course(shuffle: random.Random | None) -> list[Server]:
        model, server, memories = initial_state(method, task)
        seen = []
        for t in range(1, 6):
            orders = [list(range(6)) for _ in range(3)]
            for order in orders:
                if shuffle:
                    shuffle.shuffle(order)
            streams = {i: torch_stream(0, "report", t, i) for i in range(6)}
            told = {i: method.report(server, model, fed.clients[i], memories[i], streams[i]) for i in orders[0]}
            server = method.receive(server, told)
            down = {i: method.broadcast(server, i, memories[i]) for i in orders[1]}
            sent = [perform(site, model, Assignment(i, down[i], memories[i], LR, t)) for i in orders[2]]
            server = method.aggregate(server, sent)
            seen.append(server)
        return seen

    plain, moved = course(None), course(random.Random(1))
    assert not plain[-1].weights["0/head.bias"].equal(plain[-1].weights["1/head.bias"])
    for one, other in zip(plain, moved, strict=True):
        assert tiny.same(one.weights, other.weights) and tiny.same(one.memory, other.memory)


def test_who_joins_late_gets_its_groups_model_and_who_was_absent_is_no_candidate():
    fed = grouped(same=True)
    seen = played(OnQuadratics(samplings=0), fed, 7, joins={4: 5}, leaves={3: 4})
    at = {now.server.round: now.server for now in seen}
    assert [present(at[t]).tolist() for t in (2, 4, 5)] == [[0, 1, 2, 3, 5], [0, 1, 2, 3, 5], [0, 1, 2, 4, 5]]
    assert not local_model(at[4], 4)
    bias = {t: {j: local_model(at[t], j).get("head.bias") for j in range(6)} for t in (4, 5, 6)}
    mean = (bias[4][0] + bias[4][2]) / 2
    torch.testing.assert_close(bias[5][4], mean - LR * (mean - 4.0))
    w, w_bar = at[5].memory["w"], at[5].memory["w_bar"]
    assert (w[:, 4] == -1).all() and (w[3] == -1).all() and (w_bar[4, [1, 3, 5]] == 0).all()
    w = at[6].memory["w"]
    assert (w[:, 3] == -1).all() and (w[4, [0, 1, 2, 4, 5]] > 0).all()
    mean = (bias[5][1] + bias[5][5]) / 2  # client 3, of the same group, has gone
    torch.testing.assert_close(bias[6][1], mean - LR * (mean - 8.0))
    method, left = OnQuadratics(), local_model(at[4], 3)
    assert tiny.same(method.personal_model(at[7], 3, {}), left)
    assert len(method.served(at[7])) == 5
    of_all = torch.stack([bias[4][j] for j in (0, 1, 2, 3, 5)]).mean(0)
    for got in (method.personal_model(at[4], 4, {}), method.broadcast(at[4], 4, {})):
        torch.testing.assert_close(got["head.bias"], of_all)


def test_what_clients_predict_with_and_when():
    fed, method = grouped(), OnQuadratics()
    seen = played(method, fed, 4)
    assert [method.moment(t, 4) for t in (1, 2, 3, 4)] == ["after_aggregation"] * 2 + ["after_local"] * 2
    first, second, last = seen[0].server, seen[1].server, seen[3].server
    assert method.personal_model(first, 0, {}) is first.weights and method.served(first) == [first.weights]
    near(method.personal_model(second, 0, {})["head.bias"], ends(seen[1]).mean(0))
    for j, state in enumerate(method.served(last)):
        assert tiny.same(state, method.personal_model(last, j, {})) and tiny.same(state, local_model(last, j))


def test_counters_are_rounded_and_real_numbers_averaged():
    weights = {"0/w": torch.tensor([1.0]), "0/n": torch.tensor(3), "1/w": torch.tensor([3.0]), "1/n": torch.tensor(6)}
    server = Server(weights, 9, {"embedding/w": torch.zeros(1), "embedding/n": torch.tensor(0)})
    got = mixture(server, torch.tensor([0.25, 0.75, -1.0]))
    assert got["w"].item() == 2.5 and got["n"].item() == 5 and got["n"].dtype == torch.int64


def test_a_profile_travels_up_and_one_model_each_way():
    """d = 2 l (U + 1) = 24 numbers of 4 bytes; in round W, two bounds. The bounds are those of all clients."""
    fed = grouped()
    seen = played(OnQuadratics(), fed, 4)
    one = size(local_model(seen[-1].server, 0))
    assert rows(seen[-1], "bytes_down") == [6 * one] * 4
    assert rows(seen[-1], "bytes_up") == [6 * one, 6 * (one + 8), 6 * (one + 96), 6 * (one + 96)]
    z = torch.cat([client.validation.images for client in fed.clients]).float() / 127.5 - 1.0
    near(seen[-1].server.memory["bounds"], [float(z.min()), 1.02 * float(z.max())])


def test_the_scaler_stays_as_it_was_fitted_on_the_first_profiles():
    seen = played(OnQuadratics(), grouped(), 6)
    first, last = seen[2].server.memory, seen[-1].server.memory
    assert torch.equal(first["low"], last["low"]) and torch.equal(first["span"], last["span"])
    assert (seen[1].server.memory["low"] == 0).all()
    groups = first["d"].double().view(6, 8, 3)
    torch.testing.assert_close(first["low"], groups.amin((0, 2)))
    torch.testing.assert_close(first["low"] + first["span"], groups.amax((0, 2)))
    assert not torch.equal(first["d"], last["d"])


def test_much_privacy_budget_is_as_good_as_none_and_little_is_not():
    fed, far = grouped(), []
    plain = played(OnQuadratics(samplings=0), fed, 3)[-1].server.memory["d"]
    for epsilon in (1e7, 1.0):
        method = OnQuadratics(epsilon=epsilon, noise="laplace")
        server = played(method, fed, 3)[-1].server
        far.append(float((server.memory["d"][:, :6] - plain[:, :6]).abs().max()))
        assert tiny.same(server.memory, played(method, fed, 3)[-1].server.memory)
    assert far[0] < 1e-3 and far[1] > 0.05


def test_released_weights_by_hand():
    """1 / (D + 1e-8) times n_j, nothing cut off, made to sum to 1; in the first mapped round n_j alone."""
    fed = grouped(sizes=(30, 10, 25, 30, 12, 30))
    seen = played(ReleasedOnQuadratics(), fed, 4)
    n = torch.tensor(fed.sizes, dtype=torch.float64)
    torch.testing.assert_close(seen[2].server.memory["w_bar"], (n / n.sum()).expand(6, 6))
    kept = seen[3].server.memory
    raw = n / (kept["D"] + 1e-8)
    torch.testing.assert_close(kept["w_bar"], raw / raw.sum(1, keepdim=True))
    inverse = 1 / (kept["D"] + 1e-8)
    torch.testing.assert_close(kept["w"], inverse / inverse.sum(1, keepdim=True))
    theta = step(kept["w_bar"].numpy() @ ends(seen[2]))
    near(torch.from_numpy(ends(seen[3])), theta, 1e-5)


def test_released_without_resampling_and_drift_is_training_alone():
    """Trap 18: a client's own last profile is at distance 0."""
    kept = played(ReleasedOnQuadratics(samplings=0), grouped(), 4)[-1].server.memory
    near(kept["w_bar"], np.eye(6), 1e-6)


def test_misaligned_columns_give_models_the_weights_of_others():
    fed = grouped()
    plain = played(ReleasedOnQuadratics(), fed, 5)
    mixed = played(ReleasedOnQuadratics(misaligned=True), fed, 5)
    orders = []
    for one, other in zip(plain[3:], mixed[3:], strict=True):
        w, moved = one.server.memory["w_bar"], other.server.memory["w_bar"]
        order = [int((w - column[:, None]).abs().sum(0).argmin()) for column in moved.T]
        assert sorted(order) == list(range(6)) and order != list(range(6))
        torch.testing.assert_close(moved, w[:, order])
        orders.append(order)
    assert orders[0] != orders[1]


def test_batchnorm_goes_along():
    """A network with running statistics: one upload of each client is kept whole, and theta_k^init is whole."""
    fed = tiny.federation((20, 20, 20))
    fed = replace(fed, clients=tuple(replace(client, validation=client.train) for client in fed.clients))
    method, task = FEROMA(warmup=1, components=3), replace(tiny.task(fed), model={"name": "resnet10", "width": 2})
    now = federate(method, fed, task, replace(DESCENT, batch_size=10), Plan(3, 0.05), Serial())
    model = method.build(task)
    assert set(method.broadcast(now.server, 1, {})) == set(model.state_dict()) == set(local_model(now.server, 2))
    counter = next(name for name in model.state_dict() if name.endswith("num_batches_tracked"))
    assert int(local_model(now.server, 0)[counter]) == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"warmup": 0}, "FEROMA.warmup: 0 is out of range"),
        ({"threshold": -1.0}, "FEROMA.threshold"),
        ({"temperature": 0.0}, "FEROMA.temperature"),
        ({"temperature": "mean"}, "temperature .a number, or median.: 'mean'"),
        ({"distance": "euclid"}, "did you mean 'euclidean'"),
        ({"components": 201}, "at most 200"),
        ({"samplings": 1.5}, "FEROMA.samplings"),
        ({"masked": "yes"}, "FEROMA.masked"),
        ({"fallback": "sample"}, "did you mean 'samples'"),
        ({"mapping": "soft"}, "did you mean 'softmax'"),
        ({"embedding": "trained"}, "did you mean 'untrained'"),
        ({"labelled": 20}, "FEROMA.labelled"),
        ({"epsilon": 0.0}, "FEROMA.epsilon"),
        ({"epsilon": 1.0, "delta": 1.0}, "FEROMA.delta"),
        ({"delta": 1e-5}, "without epsilon"),
        ({"noise": "gauss"}, "did you mean 'gaussian'"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], message: str):
    with pytest.raises(FedlibError, match=message):
        make({"name": "FEROMA", **options})


def test_what_does_not_fit_the_experiment_is_refused():
    with pytest.raises(FedlibError, match="warmup: 5 is not below rounds"):
        FEROMA().check(5, 0.1, DESCENT)
    FEROMA().check(6, 0.1, DESCENT)
    with pytest.raises(FedlibError, match=r"components: 4 axes .* 3 latent features .* give at most 3"):
        FEROMA(components=4).build(tiny.task(grouped(), model="linear"))
    with pytest.raises(FedlibError, match="misaligned"):
        make({"name": "FEROMAAsReleased", "misaligned": 1.5})
    for option in ({"threshold": 1.5}, {"fallback": "uniform"}):
        with pytest.raises(FedlibError, match=r"FEROMAAsReleased.threshold: .*: nothing released has either"):
            make({"name": "FEROMAAsReleased"} | option)
    empty = grouped()
    clients = (replace(empty.clients[0], validation=draw(0, 0, 0)), *empty.clients[1:])
    with pytest.raises(FedlibError, match=r"client 0 has no validation sample .* raise validation_share"):
        played(OnQuadratics(), replace(empty, clients=clients), 3)
    assert FEROMA().needs_validation and FEROMA().differs_by_client and math.isclose(FEROMA(threshold=2).threshold, 2.0)
