"""FedHEAL against rounds of two weights by hand, closed forms and invariances."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import tiny
import torch
from domain_tasks import LOCAL, SIZES, metric, task, train
from torch import Tensor, nn

from fedlib.methods.fedavg import FedAvg
from fedlib.methods.fedavg_uniform import FedAvgUniform
from fedlib.methods.fedheal import FedHEAL, bits, consistent, distance, mask, masked_mean, reweighted
from fedlib.methods.method import Method, Server, State, Task, Upload, Work, initial_state
from fedlib.rounds import Plan


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
