"""FedAvg, FedAvgFT, FedRep and FedPer against closed forms, identities and loops written by hand."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from types import SimpleNamespace

import pytest
import tiny
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedlib.checks import FedlibError
from fedlib.engines import one_thread
from fedlib.methods import known, make
from fedlib.methods.fedavg import FedAvg
from fedlib.methods.fedavg_ft import FedAvgFT
from fedlib.methods.feddrm import FedDRM
from fedlib.methods.fedrep import FedRep
from fedlib.methods.method import Method, State, Work, initial_state
from fedlib.methods.released.feddrm import FedAvgFTOnCosine, FedDRMAsReleased, FedRepAsReleased
from fedlib.metrics import Row
from fedlib.rounds import Plan, Snapshot, size
from fedlib.streams import torch_stream
from fedlib.training import Batch, Local, Terms, batches

LOCAL = Local(steps=3, batch_size=16, crop=False)
PLAN = Plan(3, 0.05)


def step_by_hand(model: nn.Module, fed, client: int, round: int, local: Local, lr: float, fused: bool = True) -> None:
    """One round of one client as plain PyTorch."""
    optimiser = torch.optim.SGD(model.parameters(), lr, local.momentum, weight_decay=local.weight_decay, fused=fused)
    stream = torch_stream(0, "client", round, client)
    for batch in batches(fed.clients[client].train, local, client, stream):
        optimiser.zero_grad()
        F.cross_entropy(model(batch.x), batch.y).backward()
        optimiser.step()


@dataclass(frozen=True)
class Quadratic(Method):
    """Client i minimises f_i(w) = a_i ||w - c_i||^2 / 2, where w is the bias of the linear model."""

    centres: tuple[float, ...] = (1.0, 5.0)
    curvatures: tuple[float, ...] = (1.0, 1.0)

    def loss(self, model: nn.Module, batch: Batch, work: Work) -> Terms:
        i = batch.client
        return {"total": 0.5 * self.curvatures[i] * (model.head.bias - self.centres[i]).square().sum()}


def bias_after(method: Method, rounds: int, steps: int, lr: float = 0.25, momentum: float = 0.0) -> Tensor:
    fed = tiny.federation(sizes=(30, 10), side=1)
    local = Local(steps=steps, batch_size=30, momentum=momentum, weight_decay=0.0, crop=False)
    plan = Plan(rounds, lr, schedule="constant", evaluate_every=rounds)
    return tiny.train(method, fed, plan, local, model="linear").server.weights["head.bias"]


def test_fedavg_of_one_step_finds_the_minimum_of_the_weighted_sum():
    """With E = 1, w <- w - lr sum_i p_i a_i (w - c_i): w* = sum_i p_i a_i c_i / sum_i p_i a_i, p = (3/4, 1/4)."""
    torch.testing.assert_close(bias_after(Quadratic(), 80, 1), torch.full((10,), 2.0))
    skewed = bias_after(Quadratic(curvatures=(1.0, 3.0)), 80, 1)
    torch.testing.assert_close(skewed, torch.full((10,), (0.75 * 1 + 0.25 * 3 * 5) / (0.75 + 0.75)))


def test_fedavg_of_more_steps_has_the_known_biased_fixed_point():
    """E steps take client i to c_i + r_i (w - c_i) with r_i = (1 - lr a_i)^E, so

        w* = sum_i p_i (1 - r_i) c_i / sum_i p_i (1 - r_i),

    which is not the minimum 3 of the test above unless all a_i are equal (then the r_i cancel).
    """
    r = (0.75**4, 0.25**4)
    weights = (0.75 * (1 - r[0]), 0.25 * (1 - r[1]))
    expected = (weights[0] * 1 + weights[1] * 5) / sum(weights)
    assert abs(expected - 3) > 0.5
    torch.testing.assert_close(bias_after(Quadratic(curvatures=(1.0, 3.0)), 60, 4), torch.full((10,), expected))
    torch.testing.assert_close(bias_after(Quadratic(), 60, 4), torch.full((10,), 2.0))


def test_momentum_restarts_in_every_round():
    """So it does nothing for E = 1; in a round of two steps it is w2 = w1 - lr (momentum g0 + g1)."""
    assert torch.equal(bias_after(Quadratic(), 5, 1, momentum=0.9), bias_after(Quadratic(), 5, 1, momentum=0.0))
    w, lr = initial_state(Quadratic(), tiny.task(tiny.federation((30, 10), side=1), model="linear"))[1], 0.25
    ends = []
    for centre in (1.0, 5.0):
        w0 = w.weights["head.bias"]
        w1 = w0 - lr * (w0 - centre)
        ends.append(w1 - lr * (0.9 * (w0 - centre) + w1 - centre))
    torch.testing.assert_close(bias_after(Quadratic(), 1, 2, momentum=0.9), 0.75 * ends[0] + 0.25 * ends[1])


@pytest.mark.parametrize("crop", [False, True])
def test_fedavg_with_one_client_is_plain_sgd(crop: bool):
    fed, local, plan = tiny.federation((40,)), Local(steps=4, batch_size=16, crop=crop), Plan(3, 0.05)
    got = tiny.train(FedAvg(), fed, plan, local).server.weights
    with one_thread():
        model, _, _ = initial_state(FedAvg(), tiny.task(fed))
        plain, _, _ = initial_state(FedAvg(), tiny.task(fed))
        for t in (1, 2, 3):
            step_by_hand(model, fed, 0, t, local, plan.rate(t))
            step_by_hand(plain, fed, 0, t, local, plan.rate(t), fused=False)
    assert tiny.same(got, model.state_dict())
    torch.testing.assert_close(got, dict(plain.state_dict()), rtol=1e-4, atol=1e-6)


def test_the_cosine_is_constant_within_a_round_and_starts_at_lr():
    """lr (1 + cos(pi (t - 1) / 4)) / 2: 1, (1 + sqrt(1/2)) / 2, 1/2, (1 - sqrt(1/2)) / 2 of lr."""
    plan = Plan(4, 0.02)
    half = math.sqrt(0.5)
    expected = [0.02, 0.01 * (1 + half), 0.01, 0.01 * (1 - half)]
    assert [plan.rate(t) for t in (1, 2, 3, 4)] == pytest.approx(expected)
    assert [Plan(4, 0.02, schedule="constant").rate(t) for t in (1, 4)] == [0.02, 0.02]


def snapshots(method: Method, fed, plan: Plan) -> list[tuple[State, list[State]]]:
    """(server weights, memories) after each round."""
    seen: list[tuple[State, list[State]]] = []

    def look(now: Snapshot) -> None:
        seen.append((dict(now.server.weights), list(now.memories)))

    tiny.train(method, fed, plan, LOCAL, after_round=look)
    return seen


def test_fine_tuning_starts_from_fedavg_and_is_local_sgd_alone():
    fed, plan = tiny.federation((40, 24)), Plan(4, 0.05)
    tuned, plain = snapshots(FedAvgFT(ft_rounds=2, ft_lr=0.03), fed, plan), snapshots(FedAvg(), fed, plan)
    for t in (0, 1):
        assert tiny.same(tuned[t][0], plain[t][0]) and tuned[t][1] == [{}, {}]
    for t in (2, 3):
        assert tiny.same(tuned[t][0], tuned[1][0])
    with one_thread():
        for i in (0, 1):
            model, _, _ = initial_state(FedAvg(), tiny.task(fed))
            model.load_state_dict(tuned[1][0])
            for t in (3, 4):
                step_by_hand(model, fed, i, t, LOCAL, 0.03)
            assert tiny.same(tuned[3][1][i], model.state_dict())


def test_nothing_goes_up_while_fine_tuning_and_the_model_goes_down_once():
    fed, method = tiny.federation((40, 24)), FedAvgFT(ft_rounds=2)
    now = tiny.train(method, fed, Plan(4, 0.05, evaluate_every=4), LOCAL)
    whole = 2 * size(now.server.weights)
    sent = {name: [row.value for row in now.history if row.metric == name] for name in ("bytes_up", "bytes_down")}
    assert sent == {"bytes_up": [whole, whole, 0, 0], "bytes_down": [whole, whole, whole, 0]}
    moments = {row.round: row.moment for row in now.history if row.metric == "worst@local"}
    assert moments == {4: "after_local"} and method.moment(2, 4) == "after_aggregation"


def test_the_released_fine_tuning_goes_on_with_the_cosine():
    fed, plan = tiny.federation((40, 24)), Plan(4, 0.05)
    server, memories = snapshots(FedAvgFTOnCosine(ft_rounds=1), fed, plan)[3]
    with one_thread():
        model, _, _ = initial_state(FedAvg(), tiny.task(fed))
        model.load_state_dict(server)
        step_by_hand(model, fed, 1, 4, LOCAL, plan.rate(4))
    assert tiny.same(memories[1], model.state_dict())


def test_more_tuning_than_rounds_is_refused():
    with pytest.raises(FedlibError, match=r"FedAvgFT.ft_rounds: 3 is not below rounds \(3\); lower one or raise"):
        tiny.experiment(FedAvgFT(ft_rounds=3), rounds=3)


@dataclass(frozen=True)
class Watched(FedRepAsReleased):
    """Notes, for each phase, the names it changed and how many steps it took."""

    seen: list[tuple[set[str], int]] = field(default_factory=list)
    losses: list[int] = field(default_factory=list)

    def loss(self, model: nn.Module, batch: Batch, work: Work) -> Terms:
        self.losses.append(work.client)
        return super().loss(model, batch, work)

    def descend(self, work: Work, *arguments, **options) -> dict[str, float]:
        before = {name: tensor.clone() for name, tensor in work.model.state_dict().items()}
        steps = len(self.losses)
        result = super().descend(work, *arguments, **options)
        changed = {name for name, tensor in work.model.state_dict().items() if not torch.equal(tensor, before[name])}
        self.seen.append((changed, len(self.losses) - steps))
        return result


@pytest.mark.parametrize(("steps", "half"), [(10, 5), (7, 3), (1, 1)])
def test_fedrep_trains_one_part_at_a_time_and_the_released_one_half_as_long(steps: int, half: int):
    fed, method = tiny.federation((40,)), Watched()
    local = Local(steps=steps, batch_size=16, crop=False)
    weights = tiny.train(method, fed, Plan(1, 0.05), local).server.weights
    head, body = method.seen
    assert head == ({"head.weight", "head.bias"}, half)
    assert body == (set(weights), half) and not any(name.startswith("head.") for name in weights)


def test_fedrep_takes_e_steps_of_each_part_unless_told_otherwise():
    work = SimpleNamespace(local=Local(steps=None, epochs=2, batch_size=16), samples=range(40))
    assert FedRep().body_steps(work) == 6 and FedRepAsReleased().body_steps(work) == 3

    @dataclass(frozen=True)
    class Phases(Watched):
        def body_steps(self, work: Work) -> int:
            return FedRep.body_steps(self, work)

    method = Phases(head_steps=2)
    tiny.train(method, tiny.federation((40,)), Plan(1, 0.05), Local(steps=5, crop=False))
    assert [steps for _, steps in method.seen] == [2, 5]


def test_methods_are_found_by_their_class_names():
    assert {"FedAvg", "FedAvgFT", "FedDRM", "FedPer", "FedRep", "FedDRMAsReleased", "FedAvgFTOnCosine"} <= set(known())
    assert make({"name": "FedDRM", "lam": 0.5}) == FedDRM(lam=0.5) and make("FedAvg") == FedAvg()
    assert FedDRMAsReleased().lam == 0.9 and FedDRM().lam == 0.8


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("FedDrm", "method: 'FedDrm' is unknown; did you mean 'FedDRM'?"),
        ({"name": "FedDRM", "lambda": 0.5}, "method FedDRM: unknown key 'lambda'; did you mean 'lam'?"),
        ({"lam": 0.5}, "has no name"),
        ({"name": "FedDRM", "lam": 1.7}, "FedDRM.lam: 1.7 is out of range; give a number at least 0.0 and at most 1.0"),
        ({"name": "FedDRM", "lam": "0.8"}, "FedDRM.lam: '0.8' is str, not a number"),
        ({"name": "FedDRM", "lam": None}, "FedDRM.lam: None is NoneType, not a number"),
        ({"name": "FedAvgFT", "ft_rounds": 2.5}, "FedAvgFT.ft_rounds: 2.5 is float, not a whole number"),
        ({"name": "FedAvgFT", "ft_rounds": None}, "FedAvgFT.ft_rounds: None is NoneType"),
        ({"name": "FedAvgFT", "ft_lr": 0}, "FedAvgFT.ft_lr: 0 is out of range; give a number above 0.0"),
        ({"name": "FedRep", "head_steps": 0}, "FedRep.head_steps: 0 is out of range"),
    ],
)
def test_wrong_names_and_values_are_refused(spec, message: str):
    assert message in tiny.refusal(spec)


def test_what_may_be_left_open_may_be_none():
    assert make({"name": "FedAvgFT", "ft_lr": None}).ft_lr is None and make("FedRep").head_steps is None


def test_one_and_one_point_zero_are_the_same_description():
    assert repr(make({"name": "FedDRM", "lam": 1})) == repr(FedDRM(lam=1.0))
    whole = tiny.experiment(FedDRM(lam=1), lr=1, participation=1, momentum=0)
    assert whole.key() == tiny.experiment(FedDRM(lam=1.0), lr=1.0, participation=1.0, momentum=0.0).key()
    assert make({"name": "FedAvgFT", "ft_rounds": 3}).ft_rounds == 3


def test_no_hyper_parameter_has_the_name_of_a_column_of_a_run_s_table():
    """It would take that column's place: see runs.Run.table."""
    taken = {*Row._fields, "key", *tiny.experiment().columns()} - {"method"}
    for name in known():
        assert not taken & {item.name for item in fields(make({"name": name}))} - {"method"}, name
