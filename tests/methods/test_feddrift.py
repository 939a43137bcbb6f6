"""FedDrift against losses written by hand, complete linkage by hand, FedAvg, and clients that drift."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import numpy as np
import pytest
import tiny
import torch
import torch.nn.functional as F
from personal_tasks import DESCENT, GROUPS, PERSONAL, planted, rows
from test_methods import LOCAL, PLAN

from fedlib.data.federation import Client, Federation
from fedlib.methods.fedavg import FedAvg
from fedlib.methods.feddrift import FedDrift, cluster_distances, complete_linkage, merging
from fedlib.methods.method import Server, State, Upload, initial_state
from fedlib.methods.several import models
from fedlib.rounds import Plan, size


def told(losses: list[list[float]], n: list[int] | None = None, clients: list[int] | None = None) -> dict[int, State]:
    """Reports of these clients, or of 0, 1, ...; of 10 samples each, unless n is given."""
    values = zip(clients or range(len(losses)), losses, n or [10] * len(losses), strict=True)
    return {i: {"losses": torch.tensor(l_i, dtype=torch.float64), "n": torch.tensor(n_i)} for i, l_i, n_i in values}


def holding(theta: list[float], membership: list[int], best: list[float], used: list[int]) -> Server:
    """The server after round 5."""
    memory = {"membership": torch.tensor(membership), "used": torch.tensor(used)}
    memory["best"] = torch.tensor(best, dtype=torch.float64)
    return Server({f"{k}/w": torch.tensor([value]) for k, value in enumerate(theta)}, 5, memory)


def read(server: Server) -> tuple[list[float], list[int], list[float], list[int]]:
    """(theta, membership, best, used)."""
    memory = (server.memory[name].tolist() for name in ("membership", "best", "used"))
    return [float(state["w"]) for state in models(server.weights)], *memory


def test_a_jump_makes_a_new_model_and_no_jump_makes_none():
    """Client 1's loss rises by more than delta, those of the others by less, or they fall; in the first round, none is
    known to have risen. All three are of the least loss of this round afterwards."""
    before, losses = holding([7.0], [0, 0, 0], [0.2, 0.2, 0.5], [5]), [[0.3], [0.31], [0.1]]
    got = FedDrift(delta=0.105).receive(before, told(losses))
    assert read(got) == ([7.0, 7.0], [0, 1, 0], [0.3, 0.31, 0.1], [6, 6]) and got.round == 5
    assert read(FedDrift(delta=0.115).receive(before, told(losses))) == ([7.0], [0, 0, 0], [0.3, 0.31, 0.1], [6])
    first = holding([7.0], [0, 0, 0], [torch.inf] * 3, [0])
    assert read(FedDrift(delta=0.01).receive(first, told([[9.0], [8.0], [7.0]])))[0] == [7.0]


def test_who_has_not_drifted_goes_to_its_best_model_and_a_drifted_one_gets_a_copy_of_that():
    """Client 0 changes over to model 1 (the old concept of client 3, say); client 2's best model is 1, too, but bad."""
    before = holding([1.0, 2.0], [0, 0, 0, 1], [0.1, 0.1, 0.1, 0.1], [5, 5])
    losses = [[0.9, 0.1], [0.1, 0.9], [0.8, 0.6], [0.9, 0.1]]
    got = FedDrift(delta=0.2).receive(before, told(losses))
    assert read(got) == ([1.0, 2.0, 2.0], [1, 0, 2, 1], [0.1, 0.1, 0.6, 0.1], [6, 6, 6])
    tie = FedDrift(delta=0.2).receive(before, told([[0.1, 0.1]], clients=[3]))
    assert read(tie)[1] == [0, 0, 0, 0]


def test_two_isolated_models_of_one_concept_become_their_weighted_mean():
    """In round 5 clients 1 and 3 drifted to one concept: models 1 and 2. Model 0 keeps 0, and 2, who is absent; 4, who
    is absent too, is in model 2 and goes along."""
    before = holding([0.0, 4.0, 8.0], [0, 1, 0, 2, 2], [0.1, 0.5, 0.1, 0.5, 0.3], [5, 5, 5])
    losses = [[0.1, 0.7, 0.7], [0.9, 0.1, 0.15], [0.8, 0.12, 0.1]]
    reports = told(losses, [10, 30, 10], [0, 1, 3])
    got = FedDrift(delta=0.06).receive(before, reports)
    assert read(got) == ([0.0, 5.0], [0, 1, 0, 1, 1], [0.1, 0.1, 0.1, 0.1, 0.3], [6, 6])
    apart = FedDrift(delta=0.04).receive(before, reports)
    assert read(apart)[0] == [0.0, 4.0, 8.0] and apart.weights["1/w"] is before.weights["1/w"]


def test_models_are_renumbered_when_a_lower_one_is_merged_away_and_one_without_a_client_stays():
    """0 and 1 become one, 2 has no client, 3 is used. The new model of client 3 is in no merger in this round."""
    before = holding([2.0, 4.0, 9.0, 6.0], [0, 1, 3, 3], [0.1] * 4, [5, 5, 2, 5])
    losses = [[0.1, 0.1, 0.5, 0.9], [0.12, 0.1, 0.5, 0.9], [0.9, 0.9, 0.5, 0.1], [0.9, 0.9, 0.5, 0.4]]
    got = FedDrift(delta=0.06).receive(before, told(losses))
    assert read(got) == ([3.0, 9.0, 6.0, 6.0], [0, 0, 2, 3], [0.1, 0.1, 0.1, 0.4], [6, 2, 6, 6])


def test_a_client_that_has_drifted_does_not_count_in_the_merging():
    """With client 2, model 1 would be bad at cluster 0. Its own model is a copy from before the merger."""
    before = holding([2.0, 4.0], [0, 1, 0], [0.1] * 3, [5, 5])
    got = FedDrift(delta=0.06).receive(before, told([[0.1, 0.12], [0.12, 0.1], [0.5, 0.9]], [10, 30, 50]))
    assert read(got)[:2] == ([3.5, 2.0], [0, 0, 1])


def test_the_losses_of_a_cluster_are_weighted_by_samples():
    """L_0(1) = (10 * 0.2 + 30 * 0.4) / 40 = 0.35, d = 0.25; unweighted it would be 0.2."""
    losses, n = np.array([[0.1, 0.1], [0.2, 0.1], [0.4, 0.1]]), np.array([5.0, 10.0, 30.0])
    k = np.array([0, 1, 1])
    assert merging(losses, n, k, 0.26) == ([[0, 1]], {0: 5.0, 1: 40.0})
    assert merging(losses, n, k, 0.24)[0] == [[0], [1]]
    assert merging(losses[:0], n[:0], k[:0], 0.24) == ([], {})


def test_distances_by_hand():
    """max(0.3 - 0.1, 0.4 - 0.2, 0) and so on; where both models are better at the other's samples, it is 0."""
    L = np.array([[0.1, 0.3, 0.5], [0.4, 0.2, 0.1], [0.1, 0.9, 0.6]])
    np.testing.assert_allclose(cluster_distances(L), [[0, 0.2, 0.4], [0.2, 0, 0.3], [0.4, 0.3, 0]])
    np.testing.assert_allclose(cluster_distances(np.array([[0.5, 0.2], [0.1, 0.3]])), np.zeros((2, 2)))


@pytest.mark.parametrize(
    ("delta", "parts"),
    [
        (10, [[0], [1], [2], [3]]),
        (11, [[0, 3], [1], [2]]),
        (12, [[0, 3], [1], [2]]),
        (13, [[0, 3], [1, 2]]),
        (33, [[0, 3], [1, 2]]),
        (34, [[0, 1, 2, 3]]),
    ],
)
def test_complete_linkage_by_hand(delta: float, parts: list[list[int]]):
    """Places 0, 33, 21, 10 on a line. At 12 single linkage would go on to 21, at 13 to all."""
    place = np.array([0, 33, 21, 10])
    assert complete_linkage(np.abs(place[:, None] - place).astype(float), delta) == parts


def test_complete_linkage_keeps_parts_within_delta_and_all_pairs_of_parts_beyond_it():
    for seed in range(40):
        rng = np.random.default_rng(seed)
        d = np.triu(rng.uniform(size=(2 + seed % 9,) * 2), 1)
        d, delta = d + d.T, rng.uniform(0.2, 0.9)
        parts = complete_linkage(d, delta)
        assert sorted(a for part in parts for a in part) == list(range(len(d)))
        assert all(d[np.ix_(part, part)].max() < delta for part in parts)
        assert all(d[np.ix_(p, q)].max() >= delta for p in parts for q in parts if p is not q)


def test_at_the_bound_the_model_longest_without_a_client_is_taken_over():
    """Clients 0, 1 and 2 drift on models of their own value. Model 3 has been empty since round 1, model 1 since round
    2; model 2 has an absent client alone."""
    before = holding([1.0, 2.0, 3.0, 4.0], [0, 0, 0, 2], [0.1] * 4, [5, 2, 3, 1])
    reports = told([[0.5, 0.9, 0.9, 0.9]] * 3)
    free = read(FedDrift(delta=0.2).receive(before, reports))
    assert free[:2] == ([1.0, 2.0, 3.0, 4.0, 1.0, 1.0, 1.0], [4, 5, 6, 2])
    room = read(FedDrift(delta=0.2, most=5).receive(before, reports))
    assert room == ([1.0, 1.0, 3.0, 1.0, 1.0], [4, 3, 1, 2], [0.5, 0.5, 0.5, 0.1], [5, 6, 6, 6, 6])
    full = read(FedDrift(delta=0.2, most=4).receive(before, reports))
    assert full[:2] == ([1.0, 1.0, 3.0, 1.0], [3, 1, 0, 2])
    none = holding([1.0], [0] * 4, [0.1] * 4, [5])
    assert read(FedDrift(delta=0.2, most=1).receive(none, told([[0.5]] * 3)))[:2] == ([1.0], [0] * 4)


def test_the_order_of_clients_does_not_matter():
    """Clients 2 and 5 drift, in this order; models 0 and 1 become one."""
    method, before = FedDrift(delta=0.3), holding([1.0, 2.0, 3.0], [0, 1, 2, 0, 1, 2], [0.3] * 6, [5, 5, 5])
    losses = [[0.1, 0.2, 0.9], [0.2, 0.1, 0.9], [0.9, 0.9, 0.8], [0.15, 0.2, 0.9], [0.2, 0.12, 0.9], [0.9, 0.9, 0.75]]
    reports = told(losses, [10, 31, 47, 23, 18, 77])
    sent = [Upload(i, {"w": torch.tensor([float(i)])}, {}, 10 + i, {}) for i in range(6)]
    once = method.receive(before, reports)
    assert read(once)[:2] == ([pytest.approx((33 * 1 + 49 * 2) / 82), 3.0, 3.0, 3.0], [0, 0, 2, 0, 0, 3])
    for seed in range(4):
        order = random.Random(seed).sample(range(6), 6)
        again = method.receive(before, {i: reports[i] for i in order})
        assert tiny.same(again.weights, once.weights) and tiny.same(again.memory, once.memory)
        one, other = method.aggregate(once, sent), method.aggregate(again, [sent[i] for i in order])
        assert tiny.same(one.weights, other.weights)


def test_means_are_by_cluster_and_a_model_without_a_client_stays():
    before = holding([1.0, 2.0, 3.0], [0, 2, 0, 0], [0.1] * 4, [5, 1, 5])
    sent = [Upload(i, {"w": torch.tensor([w])}, {}, n, {}) for i, w, n in ((0, 4.0, 10), (1, 9.0, 5), (2, 8.0, 30))]
    got = FedDrift().aggregate(before, sent)
    assert read(got) == ([7.0, 2.0, 9.0], [0, 2, 0, 0], [0.1] * 4, [5, 1, 5]) and got.round == 6


def test_without_a_drift_it_is_fedavg_bit_for_bit():
    """Beside the reports: one loss of 8 bytes, and n_i."""
    fed = tiny.federation()
    got, plain = (tiny.train(m, fed, PLAN, LOCAL) for m in (FedDrift(delta=1e9), FedAvg()))
    (theta,) = models(got.server.weights)
    assert tiny.same(theta, plain.server.weights) and got.memories == plain.memories
    shared = [name for name in PERSONAL if name != "bytes_up"]
    assert rows(got, *shared) == rows(plain, *shared)
    assert rows(got, "bytes_up") == [value + 3 * 16 for value in rows(plain, "bytes_up")]
    assert got.server.memory["membership"].tolist() == [0, 0, 0]


@pytest.mark.parametrize("measure", ["error", "cross-entropy"])
def test_a_report_holds_the_mean_loss_of_every_model_on_the_training_samples(measure: str):
    fed, method = tiny.federation((40, 24)), FedDrift(measure=measure)
    model, one, _ = initial_state(method, tiny.task(fed))
    two = Server({**one.weights, **{name.replace("0/", "1/", 1): 2 * w for name, w in one.weights.items()}})
    got = method.report(two, model, fed.clients[1], {}, torch.Generator())
    expected = []
    for state in models(two.weights):
        model.load_state_dict(state)
        with torch.no_grad():
            logits = model.eval()(fed.clients[1].train.images.float() / 127.5 - 1.0)
        y = fed.clients[1].train.labels
        error = (logits.argmax(-1) != y).double().mean()
        expected.append(error if measure == "error" else F.cross_entropy(logits.double(), y))
    torch.testing.assert_close(got["losses"], torch.stack(expected), rtol=1e-5, atol=1e-6)
    assert int(got["n"]) == 24 and got["losses"].dtype == torch.float64


def test_a_client_is_sent_all_models_trains_its_own_and_predicts_with_it():
    before = holding([1.0, 2.0, 3.0], [2, 0], [0.1] * 2, [5, 1, 5])
    method = FedDrift()
    sent = method.broadcast(before, 0, {})
    assert [float(state["w"]) for state in models(sent)] == [3.0, 1.0, 2.0] and size(sent) == 3 * 4
    assert [float(method.personal_model(before, i, {})["w"]) for i in (0, 1)] == [3.0, 1.0]
    assert [float(state["w"]) for state in method.served(before)] == [1.0, 2.0, 3.0]


@dataclass(frozen=True)
class Drifting(Federation):
    """Other samples in the rounds `away`."""

    elsewhere: tuple[Client, ...] = ()
    away: range = range(0)

    def at(self, round: int) -> Federation:
        return replace(self, clients=self.elsewhere) if round in self.away else self


def drifting(away: range) -> Drifting:
    """All clients are of group 0 (see planted), but of groups of their own in these rounds."""
    fed = planted()

    def of_group_0(client: Client, group: int) -> Client:
        train, test = (replace(s, labels=(s.labels - group) % 3) for s in (client.train, client.test))
        return replace(client, train=train, test=test)

    clients = tuple(map(of_group_0, fed.clients, GROUPS))
    return Drifting(fed.name, clients, fed.classes, fed.shape, elsewhere=fed.clients, away=away)


def test_clients_that_drift_together_share_a_model_one_round_later_and_go_back_with_their_concept():
    """One concept to round 6; then clients 1, 2 and 4 have another, for eight rounds: alone in the first of them,
    together from then on. When the old concept is back, they are with its model at once: no drift is seen, and the
    model of the other concept, which has no client now, is as it was left."""
    seen: list[Server] = []
    plan = Plan(16, 0.5, schedule="constant", evaluate_every=2)
    now = tiny.train(
        FedDrift(delta=0.2),
        drifting(range(7, 15)),
        plan,
        replace(DESCENT, steps=5),
        model="linear",
        after_round=lambda now: seen.append(now.server),
    )
    found = [server.memory["membership"].tolist() for server in seen]
    assert found == [[0] * 6] * 6 + [[0, 1, 2, 0, 3, 0]] + [list(GROUPS)] * 7 + [[0] * 6] * 2
    kept, left = (models(server.weights)[1] for server in (seen[-1], seen[13]))
    assert tiny.same(kept, left) and seen[-1].memory["used"].tolist() == [16, 14]
    plain = size(models(now.server.weights)[0])
    assert rows(now, "bytes_down") == [6 * plain] * 6 + [6 * 4 * plain] + [6 * 2 * plain] * 9
    worst = dict(zip(range(2, 17, 2), rows(now, "worst@local"), strict=True))
    assert min(worst[t] for t in (6, 14, 16)) > 0.7


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"name": "FedDrift", "delta": 0.0}, "FedDrift.delta: 0.0 is out of range; give a number above 0.0"),
        ({"name": "FedDrift", "most": 0}, "FedDrift.most: 0 is out of range; give a whole number at least 1"),
        ({"name": "FedDrift", "measure": "errors"}, "FedDrift.measure: 'errors' is unknown; did you mean 'error'?"),
    ],
)
def test_wrong_values_are_refused(spec: dict[str, object], message: str):
    assert message in tiny.refusal(spec)
