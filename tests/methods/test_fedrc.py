"""FedRC: its E-step and label shares by hand; label shift keeps clients together, concept shift parts them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import tiny
import torch
import torch.nn.functional as F
from personal_tasks import DESCENT, GROUPS, near, planted, rows
from test_fedem import TRAINED, check_the_absent, on_groups, theta_of, work_at
from test_methods import LOCAL, PLAN
from torch import Tensor

from fedlib.checks import FedlibError
from fedlib.data.federation import Samples
from fedlib.methods import known
from fedlib.methods.fedavg import FedAvg
from fedlib.methods.fedem import PI, FedEM
from fedlib.methods.fedrc import SHARES, SUMS, FedRC, label_shares
from fedlib.methods.method import Server, Upload, Work, initial_state
from fedlib.rounds import size

LIKELIHOOD = torch.tensor([[0.8, 0.4], [0.6, 0.1], [0.5, 0.5]], dtype=torch.float64)


def given(work: Work, pi: Tensor, y: Tensor, C: Tensor) -> Work:
    """The same for a client with these labels, pi and shares."""
    images = torch.zeros(len(y), 3, 1, 1, dtype=torch.uint8)
    return replace(work, samples=Samples(images, y), message={SHARES: C}, memory={PI: pi})


def work_with(method: FedEM, pi: Tensor, y: Tensor, C: Tensor) -> Work:
    return given(work_at(method, pi.tolist()), pi, y, C)


def test_the_e_step_by_hand():
    """(0.25 · 0.8 / 0.5, 0.75 · 0.4 / 0.3) = (0.4, 1.0), and so on."""
    C = torch.tensor([[0.5, 0.25, 0.25], [0.3, 0.1, 0.6]])
    y = torch.tensor([0, 1, 2])
    work = work_with(FedRC(K=2), torch.tensor([0.25, 0.75]), y, C)
    joint = torch.tensor([[0.4, 1.0], [0.6, 0.75], [0.5, 0.625]], dtype=torch.float64)
    q = FedRC(K=2).expectation(work, -LIKELIHOOD.log())
    near(q, joint / joint.sum(-1, keepdim=True))
    near(
        FedRC(K=2).beside(work, q)[SUMS].double(),
        [[q[0, 0], q[1, 0], q[2, 0]], [q[0, 1], q[1, 1], q[2, 1]]],
    )


def test_a_label_that_no_model_has_met_cancels_and_one_that_some_have_not_goes_to_those():
    y, even = torch.tensor([2, 2, 2]), torch.tensor([0.5, 0.5])
    method = FedRC(K=2)
    unmet, met = torch.tensor([[0.5, 0.5, 0.0], [0.3, 0.7, 0.0]]), torch.tensor([[0.5, 0.5, 0.0], [0.3, 0.3, 0.4]])
    plain = LIKELIHOOD / LIKELIHOOD.sum(-1, keepdim=True)
    near(method.expectation(work_with(method, even, y, unmet), -LIKELIHOOD.log()), plain)
    near(method.expectation(work_with(method, even, y, met), -LIKELIHOOD.log()), [[1.0, 0.0]] * 3)
    floored = replace(method, floor=0.2).expectation(work_with(method, even, y, met), -LIKELIHOOD.log())
    near(floored[1], [0.6 / 0.2 / (0.6 / 0.2 + 0.1 / 0.4), 0.1 / 0.4 / (0.6 / 0.2 + 0.1 / 0.4)])


def test_label_shares_are_rows_over_their_sums_and_stay_where_nothing_came():
    S = torch.tensor([[6.0, 2.0], [0.0, 0.0], [0.0, 3.0]], dtype=torch.float64)
    C = label_shares(S, torch.tensor([[0.5, 0.5], [0.9, 0.1], [0.5, 0.5]]))
    near(C.double(), [[0.75, 0.25], [0.9, 0.1], [0.0, 1.0]], 1e-7)


def test_the_servers_shares_are_of_all_samples_of_the_round_in_any_order():
    """One client in which model 0 has 3 samples of a and 1 of b; one with 1 of a and 3 of b: shares of 1/2."""
    sums = [[[3.0, 1.0], [1.0, 1.0]], [[1.0, 3.0], [0.0, 6.0]], [[0.0, 0.0], [1.0, 7.0]]]
    theta = {"models.0.w": torch.zeros(1)}
    sent = [Upload(i, theta, {}, 5 + i, {}, {SUMS: torch.tensor(S)}) for i, S in enumerate(sums)]
    server = Server(theta, memory={SHARES: torch.full((2, 2), 0.5)})
    for order in (sent, sent[::-1], [sent[1], sent[2], sent[0]]):
        after = FedRC(K=2).aggregate(server, order)
        near(after.memory[SHARES].double(), [[0.5, 0.5], [0.125, 0.875]], 1e-7)
        assert after.round == 1


def shift(method: FedEM, counts: list[list[list[int]]], rounds: int = 40) -> Tensor:
    """pi (m, 2) after rounds in which each M-step is exact: theta_k is the table p_k(y | x), from p_0(y = x | x) = 0.6.

    counts: of each client, samples of (x, y).
    """
    data = [
        torch.tensor([(x, y) for x, row in enumerate(c) for y, n in enumerate(row) for _ in range(n)]) for c in counts
    ]
    p = torch.tensor([[[0.6, 0.4], [0.4, 0.6]], [[0.4, 0.6], [0.6, 0.4]]], dtype=torch.float64)
    any_work, pi, C = work_at(method, [0.5, 0.5]), [torch.tensor([0.5, 0.5])] * len(data), torch.full((2, 2), 0.5)
    for _ in range(rounds):
        tables, sums = torch.zeros_like(p), torch.zeros(2, 2, dtype=torch.float64)
        for i, xy in enumerate(data):
            x, y = xy.T
            work = given(any_work, pi[i], y, C)
            q = method.expectation(work, -p[:, x, y].log().T)
            pi[i] = q.mean(0).float()
            sums += method.beside(work, q).get(SUMS, torch.zeros(2, 2))
            for k in (0, 1):
                tables[k].index_put_((x, y), q[:, k], accumulate=True)
        p = tables / tables.sum(-1, keepdim=True).clamp(min=1e-12)
        C = label_shares(sums, C)
    return torch.stack(pi)


def test_label_shift_parts_clients_under_fedem_and_leaves_them_together_under_fedrc():
    """x says nothing, so that the best model knows label shares alone: FedRC's likelihood ratio is 1, whoever asks.

    Round 1, of uniform C, is FedEM's: 0.9 · 0.6 + 0.1 · 0.4 = 0.58. There FedRC stays.
    """
    counts = [[[9, 1], [0, 0]], [[1, 9], [0, 0]]]
    near(shift(FedRC(K=2), counts).double(), [[0.58, 0.42], [0.42, 0.58]], 1e-5)
    near(shift(FedEM(K=2), counts, rounds=1).double(), [[0.58, 0.42], [0.42, 0.58]])
    apart = shift(FedEM(K=2), counts, rounds=200)
    assert apart[0, 0] > 0.9 and apart[1, 1] > 0.9


@pytest.mark.parametrize("method", [FedEM(K=2), FedRC(K=2)], ids=["FedEM", "FedRC"])
def test_concept_shift_parts_clients_under_both(method: FedEM):
    """y = x at one client, y = 1 - x at the other, with the same labels and the same images at both."""
    near(shift(method, [[[5, 0], [0, 5]], [[0, 5], [5, 0]]]).double(), [[1.0, 0.0], [0.0, 1.0]])


def test_under_both_shifts_at_once_clients_share_a_model_exactly_if_they_share_a_concept():
    """Four clients, two concepts, labels 9 : 1 and 1 : 9 in each."""
    counts = [[[9, 0], [0, 1]], [[1, 0], [0, 9]], [[0, 1], [9, 0]], [[0, 9], [1, 0]]]
    near(shift(FedRC(K=2), counts).double(), [[1.0, 0.0]] * 2 + [[0.0, 1.0]] * 2, 1e-4)


def test_clients_of_a_planted_group_come_to_share_one_model():
    now, pi = on_groups(FedRC(K=2))
    first = pi[0].round()
    for group, own in zip(GROUPS, pi, strict=True):
        near(own.double(), (first if group == GROUPS[0] else 1 - first).double(), 0.02)
    assert rows(now, "worst@local")[-1] > 0.8


def test_a_round_sends_label_sums_up_and_shares_down():
    """C after a round is that of the q of all clients, under the models as they were sent; the first is FedEM's."""
    fed, method = planted(), FedRC(K=2)
    now = tiny.train(method, fed, replace(TRAINED, rounds=1), DESCENT, model="linear")
    server = initial_state(method, tiny.task(fed, model="linear"))[1]
    near(server.memory[SHARES].double(), torch.full((2, 3), 1 / 3, dtype=torch.float64))
    S = torch.zeros(2, 3, dtype=torch.float64)
    for i, client in enumerate(fed.clients):
        work = work_at(FedEM(K=2), [0.5, 0.5], i)
        FedEM(K=2).start(work)
        q = FedEM(K=2).expectation(work, FedEM(K=2).sample_losses(work))
        near(now.memories[i][PI].double(), q.mean(0))
        S += q.T @ F.one_hot(client.train.labels, 3).double()
    near(now.server.memory[SHARES].double(), S / S.sum(-1, keepdim=True))
    whole = 2 * size(theta_of(server.weights, 0)) + 4 * 2 * 3
    assert rows(now, "bytes_down", "bytes_up") == [6 * whole] * 2
    plain = tiny.train(FedEM(K=2), fed, replace(TRAINED, rounds=1), DESCENT, model="linear")
    torch.testing.assert_close(now.server.weights, plain.server.weights)


def test_one_model_is_fedavg_bit_for_bit():
    fed = tiny.federation()
    got, plain = (tiny.train(method, fed, PLAN, LOCAL) for method in (FedRC(K=1), FedAvg()))
    assert tiny.same(theta_of(got.server.weights, 0), plain.server.weights)
    assert rows(got, "personal@local", "worst@local") == rows(plain, "personal@local", "worst@local")


def test_absent_clients_keep_their_pi():
    check_the_absent(FedRC(K=2))


@pytest.mark.parametrize("bad", [{"K": 0}, {"K": 1.5}, {"floor": 0.0}, {"floor": 1.5}])
def test_what_cannot_be_is_refused_and_the_method_found(bad: dict[str, float]):
    with pytest.raises(FedlibError, match=f"FedRC.{next(iter(bad))}"):
        FedRC(**bad)
    assert known()["FedRC"] is FedRC
