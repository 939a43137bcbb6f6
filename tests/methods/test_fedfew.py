"""FedFew against steps by hand, closed forms on quadratics, identities and what was released of it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import pytest
import tiny
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from personal_tasks import A, near
from test_methods import LOCAL
from torch import Tensor, nn

from fedlib.checks import FedlibError
from fedlib.data.federation import Federation, Samples
from fedlib.engines import Serial
from fedlib.methods import make
from fedlib.methods.fedavg import FedAvg
from fedlib.methods.fedavg_uniform import FedAvgUniform
from fedlib.methods.fedfew import FedFew, finite
from fedlib.methods.method import Method, Server, State, Task, Upload, Work, initial_state
from fedlib.methods.released.fedfew import FedFewAsReleased
from fedlib.methods.several import models
from fedlib.models.network import is_statistic
from fedlib.rounds import Plan, Snapshot, federate, size
from fedlib.store import load_snapshot, save_snapshot
from fedlib.training import Batch, Local, NotFinite, Terms, batches, prepare

BN = {"name": "resnet10", "width": 4}


# The server's step


def uploads(theta: Tensor, L: Tensor, sizes: list[int]) -> list[Upload]:
    """theta (m, K, d): what client i made of model k; L (m, K)."""
    return [
        Upload(i, {f"{k}/w": w for k, w in enumerate(mine)}, {}, n, {}, {"losses": row})
        for i, (mine, row, n) in enumerate(zip(theta, L, sizes, strict=True))
    ]


def server_of(method: FedFew, start: Tensor, clients: int) -> Server:
    """start (K, d)."""
    task = Task({"name": "linear"}, (3, 1, 1), 2, (1,) * clients, 1, 0)
    return Server({f"{k}/w": w for k, w in enumerate(start)}, 4, method.remember(task))


@pytest.mark.parametrize("step", ["plain", "normalised"])
def test_a_step_by_hand(step: str):
    """Losses A at smoothing 1: a = (1/2, 1/2), w = (p, 1 - p) and (1 - p, p), c = 1/2. From 0 and 10."""
    method, p = FedFew(K=2, smoothing=1.0, step=step), 1 / (1 + math.exp(-1))
    start, theta = torch.tensor([[0.0], [10.0]]), torch.tensor([[[1.0], [12.0]], [[3.0], [16.0]]])
    after = method.aggregate(server_of(method, start, 2), uploads(theta, A, [5, 50]))
    c = 0.5 if step == "plain" else 1.0
    expected = [c * (p * 1 + (1 - p) * 3), 10 + c * ((1 - p) * 2 + p * 6)]
    assert [float(after.weights[f"{k}/w"]) for k in (0, 1)] == pytest.approx(expected, rel=1e-6)
    assert after.round == 5 and torch.equal(after.memory["losses"], A)
    near(after.memory["objective"], 1.379885)


def test_absent_clients_have_no_weights():
    """Clients 1 and 3 of 4 take part: sizes count among them alone."""
    method = FedFew(K=2, smoothing=1.0, loss_scale="m_share")
    sent = uploads(torch.ones(4, 2, 1), torch.full((4, 2), 2.0, dtype=torch.float64), [900, 10, 900, 30])
    memory = method.aggregate(server_of(method, torch.zeros(2, 1), 4), [sent[3], sent[1]]).memory
    for name in ("losses", "outer", "inner"):
        assert memory[name].view(4, -1).isnan().all(1).tolist() == [True, False, True, False]
        assert not memory[name][[1, 3]].isnan().any()
    e = math.exp(2 * (30 - 10) * 2 / 40)  # m n_i / n = 1/2 and 3/2
    near(memory["outer"][[1, 3]], [1 / (1 + e), e / (1 + e)], 1e-12)
    lone = method.aggregate(server_of(method, torch.zeros(2, 1), 4), sent[:1])
    assert lone.memory["outer"][0] == 1 and lone.weights["0/w"].tolist() == [0.5]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 6), st.sampled_from(["plain", "normalised"]), st.floats(0.01, 5))
def test_models_stay_in_the_hull_in_any_order_of_arrival(seed: int, m: int, step: str, smoothing: float):
    draw = torch.Generator().manual_seed(seed)
    method = FedFew(K=3, smoothing=smoothing, step=step)
    start, theta = torch.randn(3, 5, generator=draw), torch.randn(m, 3, 5, generator=draw)
    sent = uploads(theta, torch.rand(m, 3, generator=draw, dtype=torch.float64), list(range(1, m + 1)))
    server = server_of(method, start, m)
    after = method.aggregate(server, iter(sent))
    all_ends = torch.cat([start[None], theta])
    got = torch.stack([after.weights[f"{k}/w"] for k in range(3)])
    assert (all_ends.amin(0) <= got).all() and (got <= all_ends.amax(0)).all()
    order = torch.randperm(m, generator=draw).tolist()
    again = method.aggregate(server, [sent[i] for i in order])
    assert tiny.same(after.weights, again.weights) and tiny.same(after.memory, again.memory)
    still = method.aggregate(server, uploads(start.expand(m, 3, 5), torch.rand(m, 3).double(), [1] * m))
    assert tiny.same(still.weights, server.weights)


def test_a_dead_model_stays_and_a_faint_one_takes_the_whole_normalised_step():
    start, theta = torch.zeros(2, 1), torch.ones(2, 2, 1)
    for step, moves in (("plain", 1e-6), ("normalised", 1.0)):
        method = FedFew(K=2, smoothing=1.0, step=step)
        server = server_of(method, start, 2)
        faint = torch.tensor([[0.0, math.log(1e6)]] * 2, dtype=torch.float64)
        assert float(method.aggregate(server, uploads(theta, faint, [1, 1])).weights["1/w"]) == pytest.approx(
            moves, rel=1e-5
        )
        for gap in (20.0, 900.0):
            dead = torch.tensor([[0.0, gap]] * 2, dtype=torch.float64)
            after = method.aggregate(server, uploads(theta, dead, [1, 1]))
            assert after.weights["1/w"].tolist() == [0.0] and after.weights["0/w"].tolist() == pytest.approx([1.0])
            assert after.memory["mass"][1] < 1e-8


# Quadratics


@dataclass(frozen=True)
class FewOnQuadratics(FedFew):
    """Client i's loss is h_i ||b - c_i||^2 / 2, b: the bias of the linear model, ten entries."""

    probe: str = "running"
    selection: str = "train"
    centres: tuple[float, ...] = (1.0, 5.0)
    curvatures: tuple[float, ...] = (1.0, 1.0)

    def loss(self, model: nn.Module, batch: Batch, work: Work) -> Terms:
        i = batch.client
        value = 0.5 * self.curvatures[i] * (model.head.bias - self.centres[i]).square().sum()
        return {"total": value, "target": value}


def biases(method: FedFew, rounds: int, lr: float) -> Snapshot:
    """One whole batch a round: clients of 30 and 10 samples."""
    local = Local(steps=1, batch_size=30, momentum=0.0, weight_decay=0.0, crop=False)
    plan = Plan(rounds, lr, schedule="constant", evaluate_every=rounds)
    return tiny.train(method, tiny.federation((30, 10), side=1), plan, local, model="linear")


def root(slope: Any, low: float, high: float) -> float:
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if slope(middle) < 0 else (low, middle)
    return low


@pytest.mark.parametrize(("smoothing", "lr", "about"), [(2.0, 0.02, 3.54), (30.0, 0.1, 3.6), (1e6, 0.1, 4.0)])
def test_one_model_is_the_softmax_weighted_fixed_point_and_not_fedavg(smoothing: float, lr: float, about: float):
    """sum_i a_i h_i (t - c_i) = 0, a = softmax(f(t) / smoothing): from the minimax point (1 + 5 sqrt 3) / (1 + sqrt 3),
    3.54, to the mean with equal weights, 4; FedAvg's would be (3 + 15) / (3 + 3) = 3."""
    h, c = (1.0, 3.0), (1.0, 5.0)

    def slope(t: float) -> float:
        f = [5 * h_i * (t - c_i) ** 2 / smoothing for h_i, c_i in zip(h, c, strict=True)]
        a = torch.tensor(f, dtype=torch.float64).softmax(0).tolist()
        return sum(a_i * h_i * (t - c_i) for a_i, h_i, c_i in zip(a, h, c, strict=True))

    t = root(slope, 1.0, 5.0)
    assert abs(t - about) < 0.1
    now = biases(FewOnQuadratics(K=1, smoothing=smoothing, curvatures=h), 150, lr)
    torch.testing.assert_close(now.server.weights["0/head.bias"], torch.full((10,), t), atol=2e-3, rtol=0)


def test_two_models_for_two_clients_find_both_optima_and_identical_ones_never_part():
    now = biases(FewOnQuadratics(K=2, smoothing=1.0), 120, 0.25)
    ends = sorted(now.server.weights[f"{k}/head.bias"].mean().item() for k in (0, 1))
    assert ends == pytest.approx([1.0, 5.0], abs=1e-3)
    assert now.server.memory["inner"].amax(1).tolist() == pytest.approx([1.0, 1.0])
    assert sorted(now.server.memory["inner"].argmax(1).tolist()) == [0, 1]
    near(now.server.memory["mass"], [0.5, 0.5], 1e-3)
    same = biases(FewOnQuadratics(K=2, smoothing=100.0, init="same"), 30, 0.05)
    assert tiny.same(*models(same.server.weights))
    near(same.server.memory["inner"], [[0.5, 0.5]] * 2, 1e-12)
    one = biases(FewOnQuadratics(K=1, smoothing=100.0), 30, 0.025)  # half the step: c = 1/2
    torch.testing.assert_close(models(same.server.weights)[1], models(one.server.weights)[0])


# Clients


def with_norm(fed: Federation, rounds: int = 2) -> Task:
    return replace(tiny.task(fed, rounds), model=BN)


def trained(method: Method, fed: Federation, rounds: int = 2, local: Local = LOCAL) -> Snapshot:
    """With BatchNorm in the network."""
    return federate(method, fed, with_norm(fed, rounds), local, Plan(rounds, 0.05), Serial())


def work_on(method: FedFew, local: Local) -> Work:
    fed = tiny.federation((40,))
    model, server, memories = initial_state(method, with_norm(fed))
    stream = torch.Generator().manual_seed(3)
    return Work(0, fed.clients[0].train, server.weights, memories[0], model, local, 0.05, 1, 2, stream)


def by_hand(model: nn.Module, samples: Samples, local: Local, stream: torch.Generator) -> list[tuple[int, float]]:
    """Plain SGD in place; (size, loss) of each mini-batch."""
    seen = []
    optimiser = torch.optim.SGD(model.train().parameters(), 0.05, local.momentum, weight_decay=local.weight_decay)
    for batch in batches(samples, local, 0, stream):
        optimiser.zero_grad()
        loss = F.cross_entropy(model(batch.x), batch.y)
        loss.backward()
        optimiser.step()
        seen.append((len(batch.y), loss.item()))
    return seen


@pytest.mark.parametrize("probe", ["received", "running"])
@pytest.mark.parametrize(("epochs", "steps", "last"), [(2, None, 3), (None, 5, 3), (None, 2, 2)])
def test_the_losses_and_the_models_of_a_client_by_hand(probe: str, epochs: int | None, steps: int | None, last: int):
    """40 samples in batches of 16, 16 and 8: a pass is three steps. Each model meets mini-batches of its own."""
    local = Local(epochs=epochs, steps=steps, batch_size=16, crop=False)
    method = FedFew(K=2, probe=probe)
    work = work_on(method, local)
    got = method.client_update(replace(work, generator=torch.Generator().manual_seed(3)))
    twin = initial_state(FedAvg(), with_norm(tiny.federation((40,))))[0]
    for k, theta in enumerate(models(work.message)):
        twin.load_state_dict(theta)
        with torch.no_grad():
            received = F.cross_entropy(twin.eval()(prepare(work.samples.images)), work.samples.labels).item()
        seen = by_hand(twin, work.samples, local, work.generator)[-last:]
        running = sum(n * loss for n, loss in seen) / sum(n for n, _ in seen)
        expected = {"received": received, "running": running}
        assert float(got.extra["losses"][k]) == pytest.approx(expected.pop(probe), rel=1e-4)
        assert float(got.extra["losses"][k]) != pytest.approx(*expected.values(), rel=1e-3)
        torch.testing.assert_close(models(got.weights)[k], dict(twin.state_dict()), rtol=1e-4, atol=1e-5)
    assert got.memory == {} and not torch.equal(got.weights["0/head.bias"], got.weights["1/head.bias"])


def test_with_equal_weights_a_normalised_step_is_fedavg_and_statistics_are_averaged_whole():
    """smoothing to infinity: all a_i, w_ik are equal. The first model meets FedAvg's mini-batches."""
    fed = tiny.federation((40, 24))
    for rounds in (1, 2):
        few, even = (trained(m, fed, rounds).server for m in (smooth("normalised"), FedAvgUniform()))
        torch.testing.assert_close(models(few.weights)[0], even.weights, rtol=1e-4, atol=1e-5)
        assert few.weights["1/backbone.stem.norm.num_batches_tracked"].item() == 3 * rounds
    plain = models(trained(smooth("plain"), fed, 1).server.weights)[0]
    even = trained(FedAvgUniform(), fed, 1).server
    start = initial_state(FedAvg(), with_norm(fed))[1].weights
    for name, w in plain.items():
        whole = is_statistic(name)
        expected = even.weights[name] if whole else start[name] + (even.weights[name] - start[name]) / 2
        torch.testing.assert_close(w, expected, rtol=1e-4, atol=1e-5)


def smooth(step: str) -> FedFew:
    return FedFew(K=2, smoothing=1e9, step=step, selection="train")


def test_local_statistics_never_travel_and_each_client_keeps_k_sets():
    fed, method = tiny.federation((40, 24)), FedFew(K=2, norms="local", selection="train")
    now = trained(method, fed)
    assert not any(map(is_statistic, now.server.weights))
    sent = {name: [row.value for row in now.history if row.metric == name] for name in ("bytes_up", "bytes_down")}
    theta = size(now.server.weights)
    assert sent == {"bytes_up": [2 * (theta + 2 * 8)] * 2, "bytes_down": [2 * theta] * 2}
    names = [name for name in initial_state(FedAvg(), with_norm(fed))[1].weights if is_statistic(name)]
    assert names and all(set(memory) == {f"{k}/{n}" for k in (0, 1) for n in names} for memory in now.memories)
    means = [memory[f"{k}/backbone.stem.norm.running_mean"] for memory in now.memories for k in (0, 1)]
    assert all(not torch.equal(means[a], means[b]) for a in range(4) for b in range(a))
    for i, memory in enumerate(now.memories):
        assert all(memory[f"{k}/backbone.stem.norm.num_batches_tracked"].item() == 6 for k in (0, 1))
        for k, one in enumerate(method.candidates(now.server, i, memory)):
            own = {name: memory[f"{k}/{name}"] for name in names}
            assert tiny.same(one, models(now.server.weights)[k] | own)
    lone = tiny.federation((40,))
    first, plain = trained(method, lone, 1), trained(FedAvg(), lone, 1)
    for name in names:  # in its first round the client starts from the statistics that all networks start with
        torch.testing.assert_close(first.memories[0][f"0/{name}"], plain.server.weights[name], rtol=1e-4, atol=1e-5)


def same_or_nan(one: State, other: State) -> bool:
    return one.keys() == other.keys() and all(torch.allclose(w, other[n], 0, 0, True) for n, w in one.items())


def test_it_goes_on_from_a_file_bit_for_bit(tmp_path):
    fed, plan, path = tiny.federation((20,) * 4), Plan(3, 0.05, participation=0.5), tmp_path / "now.safetensors"
    method = FedFew(K=2, selection="train")

    def keep(now: Snapshot) -> None:
        if now.server.round == 2:
            save_snapshot(path, now)

    whole = tiny.train(method, fed, plan, LOCAL, after_round=keep)
    again = federate(method, fed, tiny.task(fed), LOCAL, plan, Serial(), resume=load_snapshot(path))
    assert tiny.same(whole.server.weights, again.server.weights) and whole.history == again.history
    assert (
        same_or_nan(whole.server.memory, again.server.memory) and int(whole.server.memory["outer"].isnan().sum()) == 2
    )


@dataclass(frozen=True)
class NoLosses(FedFew):
    """Trains well, but the loss of what it received is no number."""

    def class_logits(self, outputs: Any) -> Tensor:
        return outputs * torch.nan


def test_a_loss_that_is_no_number_stops_the_run():
    with pytest.raises(NotFinite, match="the loss of model 2 of 3 on the client's samples is inf; lower lr"):
        finite(torch.tensor([1.0, torch.inf, torch.nan]))
    with pytest.raises(FedlibError, match=r"NoLosses, round 1, client 0, client_update: .* model 1 of 3 .* is nan"):
        tiny.train(NoLosses(), tiny.federation((40, 24)), Plan(1, 0.05), LOCAL)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"smoothing": 0.0}, "FedFew.smoothing: 0.0 is out of range; give a number at least 1e-06"),
        ({"smoothing": "1e-2"}, "FedFew.smoothing: '1e-2' is str, not a number"),
        ({"loss_scale": "shares"}, "FedFew.loss_scale: 'shares' is unknown; did you mean 'share'?"),
        ({"probe": "recieved"}, "FedFew.probe: 'recieved' is unknown; did you mean 'received'?"),
        ({"step": "normalized"}, "FedFew.step: 'normalized' is unknown; did you mean 'normalised'?"),
        ({"norms": "average"}, "FedFew.norms: 'average' is unknown; did you mean 'averaged'?"),
        ({"init": "sane"}, "FedFew.init: 'sane' is unknown; did you mean 'same'?"),
        ({"K": 0}, "FedFew.K: 0 is out of range; give a whole number at least 1"),
        ({"mu": 0.1}, "method FedFew: unknown key 'mu'"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], message: str):
    assert message in tiny.refusal({"name": "FedFew"} | options)


# As released


def test_the_released_fedfew_has_identical_inits_shares_in_the_exponent_and_local_statistics():
    fed, method = tiny.federation((40, 24)), make("FedFewAsReleased")
    begun = models(initial_state(method, with_norm(fed))[1].weights)
    assert len(begun) == 3 and tiny.same(begun[0], begun[1]) and tiny.same(begun[0], begun[2])
    now = trained(method, fed)
    L = now.server.memory["losses"]
    S = (-L * torch.tensor([[40 / 64], [24 / 64]]) / 0.01).exp().sum(1)
    near(now.server.memory["outer"], (1 / S) / (1 / S).sum(), 1e-9)
    assert not method.needs_validation and not any(map(is_statistic, now.server.weights))
    assert not torch.equal(*(models(now.server.weights)[k]["head.bias"] for k in (0, 1)))
    options = {"smoothing": 0.01, "loss_scale": "share", "probe": "running", "init": "same", "norms": "local"}
    assert tiny.same(trained(FedFew(**options, selection="train"), fed).server.weights, now.server.weights)
    assert not tiny.same(trained(FedFewAsReleased(probe="received"), fed).server.weights, now.server.weights)
