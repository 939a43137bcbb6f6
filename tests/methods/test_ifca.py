"""IFCA and what was released of it against a round by hand and planted groups."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import tiny
import torch
import torch.nn.functional as F
from personal_tasks import DESCENT, grouped, planted, rows, work_of
from test_methods import LOCAL, step_by_hand

from fedlib.engines import Serial, one_thread
from fedlib.methods.ifca import IFCA, cluster_means
from fedlib.methods.method import State, initial_state
from fedlib.methods.released.fedfew import IFCAAsReleased
from fedlib.methods.several import models
from fedlib.metrics import Crowd
from fedlib.rounds import Plan, Snapshot, cohorts, federate, size


def snapshot(now: Snapshot) -> tuple[State, list[State]]:
    """(the only model, the clients' memories)."""
    return models(now.server.weights)[0], list(now.memories)


def test_each_clusters_mean_is_over_its_own_clients():
    start = {f"{k}/{name}": torch.tensor(v) for k in range(3) for name, v in (("w", [9.0]), ("count", 9))}
    sent = [(0, 1.0, 1.0, 4), (0, 3.0, 5.0, 5), (2, 2.0, 7.0, 6), (1, 0.0, 8.0, 1)]
    got = cluster_means(start, [(k, p, {"w": torch.tensor([w]), "count": torch.tensor(c)}) for k, p, w, c in sent])
    assert [float(got[f"{k}/w"]) for k in range(3)] == [4.0, 9.0, 7.0]
    assert [int(got[f"{k}/count"]) for k in range(3)] == [5, 9, 6] and got["0/count"].dtype == torch.int64
    assert got["1/w"] is start["1/w"]


def test_a_round_of_ifca_by_hand():
    """Each client trains the model of least training loss; means are by cluster; a model that no one chose stays."""
    fed, method = tiny.federation((40, 24, 33, 10)), IFCA(K=3, selection="train")
    model, server, _ = initial_state(method, tiny.task(fed))
    theta, chosen, ends = models(server.weights), [], []
    with one_thread():
        for i, client in enumerate(fed.clients):
            losses = []
            for state in theta:
                model.load_state_dict(state)
                logits = model.eval()(client.train.images.float() / 127.5 - 1.0)
                losses.append(F.cross_entropy(logits, client.train.labels).item())
            chosen.append(int(np.argmin(losses)))
            model.load_state_dict(theta[chosen[i]])
            step_by_hand(model.train(), fed, i, 1, LOCAL, 0.05)
            ends.append({name: w.clone() for name, w in model.state_dict().items()})
    assert 1 < len(set(chosen)) < 3
    now = tiny.train(method, fed, Plan(1, 0.05), LOCAL)
    assert now.server.memory["membership"].tolist() == chosen
    for k, got in enumerate(models(now.server.weights)):
        members = [i for i in range(4) if chosen[i] == k]
        n = sum(fed.sizes[i] for i in members)
        mean = {name: sum(fed.sizes[i] / n * ends[i][name] for i in members) for name in got} if members else theta[k]
        torch.testing.assert_close(got, mean, rtol=1e-5, atol=1e-6)
        assert tiny.same(got, theta[k]) == (not members)
    whole = size(theta[0])
    assert rows(now, "bytes_down", "bytes_up") == [4 * 3 * whole, 4 * whole]


def test_ifca_finds_the_planted_groups_and_each_client_then_picks_its_groups_model():
    fed, method = planted(), IFCA(K=2, selection="train")
    now = tiny.train(method, fed, Plan(8, 0.5, schedule="constant"), replace(DESCENT, steps=5), model="linear")
    membership = now.server.memory["membership"].tolist()
    assert grouped(membership)
    crowd = Crowd(method, tiny.task(fed, model="linear").network(), now.server, now.memories, fed)
    theta = models(now.server.weights)
    for i, k in enumerate(membership):
        assert tiny.same(crowd.states[i], theta[k])
    assert rows(now, "worst@local")[-1] > 0.7


def test_ifca_keeps_what_it_knows_of_absent_clients():
    fed, plan, method = tiny.federation((20,) * 5), Plan(3, 0.05, participation=0.4), IFCA(K=2, selection="train")
    drawn, known, seen = cohorts(0, 5, plan), [-1] * 5, []
    tiny.train(method, fed, plan, LOCAL, after_round=lambda now: seen.append(now.server.memory["membership"].tolist()))
    assert len({*map(tuple, drawn)}) > 1
    for cohort, membership in zip(drawn, seen, strict=True):
        assert all(k in (0, 1) if i in cohort else k == known[i] for i, k in enumerate(membership))
        known = membership


def test_released_ifca_starts_from_copies_and_rounding_alone_chooses():
    """Equal models have equal losses: IFCA then keeps to the first for ever; summed in another order, they differ."""
    fed = tiny.federation((40, 24, 33, 50, 61, 27, 35, 45))
    plain, released = (
        tiny.train(method, fed, Plan(1, 0.05), LOCAL).server.memory["membership"].tolist()
        for method in (IFCA(K=3, init="same", selection="train"), IFCAAsReleased(K=3))
    )
    assert plain == [0] * 8 and len(set(released)) > 1
    method = IFCAAsReleased(K=3)
    work = work_of(planted(), method)
    theta = models(work.message)
    losses = method.received_losses(work, theta)
    assert tiny.same(theta[0], theta[1]) and tiny.same(theta[0], theta[2])
    (exact,) = IFCA().received_losses(work, theta[:1])
    assert losses == pytest.approx([exact] * 3, rel=1e-5)


def test_released_ifca_averages_parameters_and_takes_a_members_statistics():
    """Of the first member of the cluster, which has them from its own samples alone, over all rounds."""
    fed, method = tiny.federation((12, 20), side=8), IFCAAsReleased(K=1)
    task = replace(tiny.task(fed), model={"name": "resnet10", "width": 2})
    seen: list[tuple[State, list[State]]] = []
    local = replace(LOCAL, steps=2, momentum=0.0, weight_decay=0.0)
    federate(method, fed, task, local, Plan(2, 0.05), Serial(), after_round=lambda now: seen.append(snapshot(now)))
    statistics = {name for name in seen[0][0] if "running" in name or "batches" in name}
    assert statistics and set(seen[1][1][0]) == statistics
    for t, (theta, memories) in enumerate(seen, start=1):
        assert all(torch.equal(theta[name], memories[0][name]) for name in statistics)
        assert not torch.equal(memories[1]["backbone.stem.norm.running_mean"], theta["backbone.stem.norm.running_mean"])
        assert all(int(memory["backbone.stem.norm.num_batches_tracked"]) == 2 * t for memory in memories)
    model, server, _ = initial_state(method, task)
    ends = []
    with one_thread():
        for i in (0, 1):
            model.load_state_dict(models(server.weights)[0])
            step_by_hand(model.train(), fed, i, 1, local, 0.05)
            ends.append({name: w.clone() for name, w in model.state_dict().items() if name not in statistics})
    mean = {name: (12 * ends[0][name] + 20 * ends[1][name]) / 32 for name in ends[0]}
    torch.testing.assert_close({name: seen[0][0][name] for name in mean}, mean, rtol=1e-4, atol=1e-6)
