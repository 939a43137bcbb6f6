"""FedProx and FedSAM against closed forms, identities and loops written by hand; names and bounds of all baselines."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import pytest
import tiny
import torch
import torch.nn.functional as F
from test_methods import LOCAL, Quadratic, bias_after, snapshots, step_by_hand
from torch import Tensor, nn

from fedlib.checks import FedlibError
from fedlib.data.federation import Federation
from fedlib.engines import one_thread
from fedlib.methods import known, make
from fedlib.methods.ditto import Ditto
from fedlib.methods.fedavg import FedAvg
from fedlib.methods.fedavg_ft import FedAvgFT
from fedlib.methods.fedbabu import FedBABU
from fedlib.methods.fedprox import FedProx
from fedlib.methods.fedprox_ft import FedProxFT
from fedlib.methods.fedsam import FedSAM, FedSAMFT
from fedlib.methods.method import Method, State, initial_state
from fedlib.methods.released.feddrm import FedProxFTOnCosine, FedSAMFTOnCosine
from fedlib.methods.released.fedfew import FedProxInFedFew
from fedlib.rounds import Plan
from fedlib.streams import torch_stream
from fedlib.training import Batch, Local, Terms, batches


def loss_at(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch.x), batch.y)


def model_from(fed: Federation, weights: State | None = None) -> nn.Module:
    """The initial network, or one of these weights."""
    model, _, _ = initial_state(FedAvg(), tiny.task(fed))
    if weights is not None:
        model.load_state_dict(weights)
    return model


def steps_by_hand(
    model: nn.Module,
    data: Iterable[Batch],
    lr: float,
    objective: Callable[[nn.Module, Batch], Tensor] = loss_at,
    part: Callable[[str], bool] = lambda name: True,
) -> None:
    """SGD with LOCAL's momentum and weight decay over a part of the parameters, as plain PyTorch."""
    chosen = [w for name, w in model.named_parameters() if part(name)]
    optimiser = torch.optim.SGD(chosen, lr, LOCAL.momentum, weight_decay=LOCAL.weight_decay, fused=True)
    for batch in data:
        model.zero_grad()
        objective(model, batch).backward()
        optimiser.step()


def distance(one: State, other: State) -> float:
    return math.sqrt(sum(float((one[name] - other[name]).square().sum()) for name in one))


@pytest.mark.parametrize(("method", "crop"), [(FedProx(mu=0.0), True), (FedSAM(rho=0.0), True), (FedSAM(rho=0), False)])
def test_at_zero_it_is_fedavg_bit_for_bit(method: Method, crop: bool):
    fed, local = tiny.federation((40, 24)), Local(steps=3, batch_size=16, crop=crop)
    got, plain = (tiny.train(m, fed, Plan(3, 0.05), local) for m in (method, FedAvg()))
    assert tiny.same_snapshots(got, plain)


@dataclass(frozen=True)
class ProximalQuadratic(FedProx, Quadratic):
    """a_i ||w - c_i||^2 / 2 + (mu / 2) ||w - theta||^2."""


def test_fedprox_has_the_known_fixed_point():
    """A step takes w - s_i to q_i (w - s_i): q_i = 1 - lr (a_i + mu), s_i = (a_i c_i + mu theta) / (a_i + mu). So

        theta_i - theta = k_i (c_i - theta),   k_i = (1 - q_i^E) a_i / (a_i + mu),
        theta* = sum_i p_i k_i c_i / sum_i p_i k_i,   p = (3/4, 1/4),

    nearer to the minimum 3 of the weighted sum than FedAvg's.
    """

    def fixed(mu: float) -> float:
        k = [(1 - (1 - 0.25 * (a + mu)) ** 4) * a / (a + mu) for a in (1.0, 3.0)]
        return (0.75 * k[0] * 1.0 + 0.25 * k[1] * 5.0) / (0.75 * k[0] + 0.25 * k[1])

    assert fixed(2.0) == pytest.approx(2.5) and 3 - fixed(2.0) < 3 - fixed(0.5) < 3 - fixed(0.0)
    for mu in (0.0, 0.5, 2.0):
        found = bias_after(ProximalQuadratic(curvatures=(1.0, 3.0), mu=mu), 60, 4)
        torch.testing.assert_close(found, torch.full((10,), fixed(mu)))


def test_the_released_fedprox_is_fedavg():
    fed, plan = tiny.federation((40, 24)), Plan(2, 0.05)
    methods = (make("FedProxInFedFew"), FedAvg(), FedProxInFedFew(mu=1.0))
    released, plain, leashed = (tiny.train(m, fed, plan, LOCAL).server.weights for m in methods)
    assert tiny.same(released, plain) and not tiny.same(leashed, plain)


@dataclass(frozen=True)
class SharpQuadratic(FedSAM, Quadratic):
    """a_i ||w - c_i||^2 / 2, with SAM."""


def test_sam_on_a_quadratic_is_known():
    """g = a (w - c) points away from c, so grad f(w') = g (1 + rho / ||w - c||): a step keeps the direction of w - c
    and takes its length d to d - lr a (d + rho). The weights of the linear model that have no gradient do not move.
    """
    lr, rho, a = 0.125, 0.4, (1.0, 2.0)
    fed = tiny.federation((30, 10), side=1)
    start = initial_state(FedAvg(), tiny.task(fed, model="linear"))[1].weights["head.bias"]
    ends = []
    for curvature, centre in zip(a, (1.0, 5.0), strict=True):
        d = far = (start - centre).norm()
        for _ in range(3):
            d = d - lr * curvature * (d + rho)
        assert d > 0
        ends.append(centre + (start - centre) * d / far)
    found = bias_after(SharpQuadratic(curvatures=a, rho=rho), 1, 3, lr=lr)
    torch.testing.assert_close(found, 0.75 * ends[0] + 0.25 * ends[1])
    assert not torch.allclose(found, bias_after(Quadratic(curvatures=a), 1, 3, lr=lr), atol=0.01)


def quartic(*parameters: nn.Parameter) -> Callable[[], Terms]:
    return lambda: {"total": sum(w.pow(4).sum() for w in parameters) / 4}


def test_sam_leaves_the_gradient_at_the_worst_point_and_the_weights_as_they_were():
    """The gradient of sum w^4 / 4 is w^3. Adding and subtracting the step would not give the weights back."""
    generator = torch.Generator().manual_seed(0)
    one, two = (nn.Parameter(torch.randn(shape, generator=generator)) for shape in ((5, 3), (7,)))
    unused = nn.Parameter(torch.ones(2))
    before = [w.detach().clone() for w in (one, two)]
    norm = math.sqrt(sum(float(w.pow(6).sum()) for w in before))
    steps = [3.0 * w**3 / norm for w in before]
    assert any(not torch.equal((w + step) - step, w) for w, step in zip(before, steps, strict=True))
    terms = FedSAM(rho=3.0).gradient(quartic(one, two), [one, two, unused])
    assert terms["total"].item() == pytest.approx(sum(float(w.pow(4).sum()) for w in before) / 4)
    for w, old, step in zip((one, two), before, steps, strict=True):
        assert torch.equal(w, old)
        torch.testing.assert_close(w.grad, (old + step) ** 3)
    assert unused.grad is None and torch.equal(unused, torch.ones(2))


@pytest.mark.parametrize("rho", [0.05, 1e6])
def test_sam_at_a_stationary_point_stays_there(rho: float):
    w = nn.Parameter(torch.zeros(4))
    FedSAM(rho=rho).gradient(quartic(w), [w])
    assert torch.equal(w, torch.zeros(4)) and torch.equal(w.grad, torch.zeros(4))


def test_fedsam_is_sam_by_hand_with_momentum_and_weight_decay():
    fed, plan, rho = tiny.federation((40,)), Plan(2, 0.05), 0.1
    got = tiny.train(FedSAM(rho=rho), fed, plan, LOCAL).server.weights
    with one_thread():
        model = model_from(fed)
        for t in (1, 2):
            optimiser = torch.optim.SGD(model.parameters(), plan.rate(t), LOCAL.momentum, weight_decay=5e-4)
            for batch in batches(fed.clients[0].train, LOCAL, 0, torch_stream(0, "client", t, 0)):
                weights = list(model.parameters())
                g = torch.autograd.grad(loss_at(model, batch), weights)
                length = torch.cat([part.flatten() for part in g]).norm()
                climbed = {
                    name: (w + rho * part / length).detach().requires_grad_()
                    for (name, w), part in zip(model.named_parameters(), g, strict=True)
                }
                sharp = F.cross_entropy(torch.func.functional_call(model, climbed, (batch.x,)), batch.y)
                for w, part in zip(weights, torch.autograd.grad(sharp, list(climbed.values())), strict=True):
                    w.grad = part
                optimiser.step()
    torch.testing.assert_close(got, dict(model.state_dict()), rtol=1e-4, atol=1e-6)
    assert distance(got, tiny.train(FedAvg(), fed, plan, LOCAL).server.weights) > 1e-3


@pytest.mark.parametrize(
    ("method", "federated", "rate"),
    [
        (FedProxFT(mu=0.5, ft_rounds=2, ft_lr=0.03), FedProx(mu=0.5), 0.03),
        (FedSAMFT(rho=0.2, ft_rounds=2, ft_lr=0.03), FedSAM(rho=0.2), 0.03),
        (FedProxFTOnCosine(mu=0.5, ft_rounds=2), FedProx(mu=0.5), None),
        (FedSAMFTOnCosine(rho=0.2, ft_rounds=2), FedSAM(rho=0.2), None),
    ],
)
def test_only_the_federated_rounds_differ_from_fedavg_ft(method: FedAvgFT, federated: Method, rate: float | None):
    fed, plan = tiny.federation((40, 24)), Plan(4, 0.05)
    tuned, first, plain = (snapshots(m, fed, plan) for m in (method, federated, FedAvg()))
    assert all(tiny.same(tuned[t][0], first[t][0]) and tuned[t][1] == [{}, {}] for t in (0, 1))
    assert not tiny.same(tuned[1][0], plain[1][0])
    with one_thread():
        for i in (0, 1):
            model = model_from(fed, tuned[1][0])
            for t in (3, 4):
                step_by_hand(model, fed, i, t, LOCAL, rate or plan.rate(t))
            assert tiny.same(tuned[3][1][i], model.state_dict())


def test_they_are_found_by_their_names():
    assert {"Ditto", "FedBABU", "FedProx", "FedProxFT", "FedSAM", "FedSAMFT"} <= set(known())
    for name in ("FedProxFT", "FedSAMFT", "FedBABU"):
        assert make(f"{name}OnCosine").ft_lr is None and make(name).ft_lr == FedAvgFT().ft_lr
    assert (FedProx().mu, FedSAM().rho, Ditto().lam, FedBABU().ft_part) == (0.01, 0.05, 1.0, "head")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"name": "FedProx", "mu": -0.1}, "FedProx.mu: -0.1 is out of range; give a number at least 0.0"),
        ({"name": "FedProx", "mu": None}, "FedProx.mu: None is NoneType, not a number"),
        ({"name": "FedProxFT", "mu": "1e-2"}, "FedProxFT.mu: '1e-2' is str, not a number"),
        ({"name": "FedProxFT", "ft_rounds": 0}, "FedProxFT.ft_rounds: 0 is out of range"),
        ({"name": "FedSAM", "rho": -1}, "FedSAM.rho: -1 is out of range; give a number at least 0.0"),
        ({"name": "FedSAM", "rho": math.inf}, "FedSAM.rho: inf is out of range"),
        ({"name": "FedSAMFT", "ft_lr": 0.0}, "FedSAMFT.ft_lr: 0.0 is out of range; give a number above 0.0"),
        ({"name": "Ditto", "lam": -1.0}, "Ditto.lam: -1.0 is out of range; give a number at least 0.0"),
        (
            {"name": "Ditto", "personal_steps": 0},
            "Ditto.personal_steps: 0 is out of range; give a whole number at least 1",
        ),
        ({"name": "Ditto", "personal_steps": 2.5}, "Ditto.personal_steps: 2.5 is float, not a whole number"),
        ({"name": "FedBABU", "ft_part": "heads"}, "FedBABU.ft_part: 'heads' is unknown; did you mean 'head'?"),
        ({"name": "FedBABU", "ft_part": None}, "FedBABU.ft_part: None is unknown"),
        ({"name": "FedBABU", "ft_rounds": True}, "FedBABU.ft_rounds: True is bool, not a whole number"),
    ],
)
def test_wrong_values_are_refused(spec: dict, message: str):
    assert message in tiny.refusal(spec)


@pytest.mark.parametrize("method", [FedProxFT(ft_rounds=3), FedSAMFT(ft_rounds=3), FedBABU(ft_rounds=3)])
def test_more_tuning_than_rounds_is_refused(method: Method):
    with pytest.raises(FedlibError, match=rf"{type(method).__name__}.ft_rounds: 3 is not below rounds \(3\)"):
        tiny.experiment(method, rounds=3)
