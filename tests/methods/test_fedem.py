"""FedEM: its E- and M-step by hand, identities, and planted groups whose mixtures become their own."""

from __future__ import annotations

from dataclasses import replace

import pytest
import tiny
import torch
import torch.nn.functional as F
from personal_tasks import DESCENT, GROUPS, near, planted, rows, work_of
from test_methods import LOCAL, PLAN
from torch import Tensor

from fedlib.checks import FedlibError
from fedlib.data.federation import Samples, Visitor
from fedlib.methods import known
from fedlib.methods.fedavg import FedAvg
from fedlib.methods.fedem import PI, FedEM, Mixture, networks, posterior
from fedlib.methods.method import State, Work, initial_state
from fedlib.methods.several import INITS, Several, models
from fedlib.metrics import Crowd
from fedlib.rounds import Plan, Snapshot, cohorts, size
from fedlib.training import prepare

EXACT, LOSS = ("personal@local", "worst@local", "bytes_up", "bytes_down"), "train_loss[total]"
TRAINED = Plan(25, 0.5, schedule="constant", evaluate_every=25)


def work_at(method: FedEM, pi: list[float], i: int = 0) -> Work:
    """A client's work on the planted groups with linear models, one step on all its samples."""
    work = work_of(planted(), method, i, memory={PI: torch.tensor(pi)})
    return replace(work, model=method.build(tiny.task(planted(), model="linear")))


def theta_of(state: State, k: int) -> State:
    """theta_k, under plain names."""
    own = f"models.{k}."
    return {name.removeprefix(own): tensor for name, tensor in state.items() if name.startswith(own)}


def on_groups(method: FedEM) -> tuple[Snapshot, Tensor]:
    """Trained on the planted groups: (the end, pi (m, K))."""
    now = tiny.train(method, planted(), TRAINED, replace(DESCENT, steps=5), model="linear")
    return now, torch.stack([memory[PI] for memory in now.memories])


def test_the_e_step_by_hand():
    """q of (0.25 · 0.8, 0.75 · 0.4) = (0.2, 0.3) and of (0.25 · 0.6, 0.75 · 0.1) = (0.15, 0.075)."""
    likelihood = torch.tensor([[0.8, 0.4], [0.6, 0.1]], dtype=torch.float64)
    near(posterior(torch.tensor([0.25, 0.75]), likelihood.log()), [[0.4, 0.6], [2 / 3, 1 / 3]], 1e-12)
    near(posterior(torch.tensor([0.0, 1.0]), likelihood.log()), [[0.0, 1.0], [0.0, 1.0]], 0.0)
    near(posterior(torch.tensor([0.5, 0.5]), torch.tensor([[-2000.0, -2001.0]])), [[0.7310586, 0.2689414]])


def test_a_clients_round_by_hand():
    """One full-batch step: theta_k - lr d/dtheta_k (1/n) sum_j q_jk l_j(theta_k), and pi_k = mean q_jk."""
    method, pi = FedEM(K=3), [0.2, 0.5, 0.3]
    work = work_at(method, pi)
    x, y, n = prepare(work.samples.images).flatten(1), work.samples.labels, len(work.samples)
    theta = [theta_of(work.message, k) for k in range(3)]
    w = [(t["head.weight"].clone().requires_grad_(), t["head.bias"].clone().requires_grad_()) for t in theta]
    losses = torch.stack([-(x @ W.T + b).log_softmax(-1)[torch.arange(n), y] for W, b in w], dim=-1)
    joint = torch.tensor(pi) * (-losses.detach()).exp()
    q = joint / joint.sum(-1, keepdim=True)
    ((q * losses).sum() / n).backward()
    sent = method.client_update(work)
    near(sent.memory[PI].double(), q.mean(0).double())
    assert q.std(0).min() > 0.01 and list(sent.memory) == [PI] and not sent.extra
    for k, (W, b) in enumerate(w):
        got = theta_of(sent.weights, k)
        torch.testing.assert_close(got["head.weight"], W - 0.1 * W.grad)
        torch.testing.assert_close(got["head.bias"], b - 0.1 * b.grad)
    assert sent.losses["total"] == pytest.approx(float((q * losses.detach()).sum() / n), rel=1e-5)


def test_the_e_step_is_one_pass_a_model():
    method = FedEM(K=2)
    work, seen = work_at(method, [0.5, 0.5]), []
    for k, network in enumerate(networks(work.model)):
        network.register_forward_pre_hook(lambda net, x, k=k: seen.append((k, net.training, len(x[0]))))
    method.client_update(work)
    n = len(work.samples)
    assert sorted(seen) == sorted((k, training, n) for k in (0, 1) for training in (False, True))


def test_the_prediction_is_the_mean_of_probabilities_under_pi():
    p = torch.tensor([[[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]]])
    mixture = Mixture([torch.nn.Identity(), torch.nn.Identity()])
    mixture.head.pi.copy_(torch.tensor([0.25, 0.75]))
    near(mixture.head(p.log() + 3.0).exp().double(), [[0.2, 0.15, 0.65]])
    mixture.head.pi.copy_(torch.tensor([1.0, 0.0]))
    near(mixture.head(p.log()).exp().double(), [[0.5, 0.3, 0.2]])
    near(mixture(p[:, 1].log()).exp().double(), [[0.1, 0.1, 0.8]])


def test_one_model_is_fedavg_bit_for_bit():
    fed = tiny.federation()
    got, plain = (tiny.train(method, fed, PLAN, LOCAL) for method in (FedEM(K=1), FedAvg()))
    assert tiny.same(theta_of(got.server.weights, 0), plain.server.weights)
    assert rows(got, *EXACT) == rows(plain, *EXACT) and len(rows(got, *EXACT)) > 5
    assert rows(got, LOSS) == pytest.approx(rows(plain, LOSS), rel=1e-6) and len(rows(got, LOSS)) == 3
    assert all(memory[PI].tolist() == [1.0] for memory in got.memories)


def test_clients_of_a_planted_group_come_to_share_one_model():
    """Concept shift: pi_i becomes one-hot, with the same model in a group and another one in the other."""
    now, pi = on_groups(FedEM(K=2))
    first = pi[0].round()
    for group, own in zip(GROUPS, pi, strict=True):
        near(own.double(), (first if group == GROUPS[0] else 1 - first).double(), 0.02)
    assert rows(now, "worst@local")[-1] > 0.8


@pytest.mark.parametrize("init", INITS)
def test_models_begin_as_several_do(init: str):
    task = tiny.task(tiny.federation())
    before = torch.get_rng_state()
    _, server, memories = initial_state(FedEM(K=3, init=init), task)
    assert torch.equal(torch.get_rng_state(), before)
    for k, state in enumerate(models(initial_state(Several(K=3, init=init), task)[1].weights)):
        assert tiny.same(theta_of(server.weights, k), state)
    assert tiny.same(theta_of(server.weights, 0), initial_state(FedAvg(), task)[1].weights)
    assert all(list(memory) == [PI] and memory[PI].tolist() == pytest.approx([1 / 3] * 3) for memory in memories)


def test_a_model_that_nobody_weighs_stays_as_it_is():
    """Bit for bit, though weight decay moves what it meets; so do the running statistics of BatchNorm."""
    method, fed = FedEM(K=2), tiny.federation((12, 20))
    task = replace(tiny.task(fed), model={"name": "resnet10", "width": 2})
    model, server, _ = initial_state(method, task)
    local, memory = replace(LOCAL, steps=2), {PI: torch.tensor([1.0, 0.0])}
    sent = []
    for i, client in enumerate(fed.clients):
        stream = torch.Generator().manual_seed(i)
        work = Work(i, client.train, server.weights, memory, model, local, 0.05, 1, 3, stream)
        sent.append(method.client_update(work))
        assert sent[-1].memory[PI].tolist() == [1.0, 0.0]
    after = method.aggregate(server, sent).weights
    assert tiny.same(theta_of(after, 1), theta_of(server.weights, 1))
    assert not any(
        torch.equal(tensor, server.weights[name])
        for name, tensor in after.items()
        if name.startswith("models.0.") and name.endswith("running_mean")
    )
    assert not torch.equal(after["models.0.head.weight"], server.weights["models.0.head.weight"])


def test_models_are_means_by_samples_in_any_order_of_clients():
    method = FedEM(K=2)
    sent = [method.client_update(work_at(method, pi, i)) for i, pi in enumerate([[0.9, 0.1], [0.5, 0.5], [0.2, 0.8]])]
    server = initial_state(method, tiny.task(planted(), model="linear"))[1]
    after = [method.aggregate(server, order).weights for order in (sent, sent[::-1], [sent[1], sent[2], sent[0]])]
    for name, got in after[0].items():
        near(got.double(), sum(n * up.weights[name].double() for n, up in zip((50, 60, 40), sent, strict=True)) / 150)
        torch.testing.assert_close(after[1][name], got, rtol=0, atol=1e-7)
        torch.testing.assert_close(after[2][name], got, rtol=0, atol=1e-7)


def check_the_absent(method: FedEM) -> None:
    """A client's pi changes in the rounds that it takes part in, and in no other."""
    fed, plan, seen = tiny.federation((20,) * 5), Plan(3, 0.05, participation=0.4), []
    tiny.train(method, fed, plan, LOCAL, after_round=lambda now: seen.append([memory[PI] for memory in now.memories]))
    kept, drawn = [torch.full((method.K,), 1.0 / method.K)] * 5, cohorts(0, 5, plan)
    assert len({*map(tuple, drawn)}) > 1
    for cohort, now in zip(drawn, seen, strict=True):
        assert [i for i in range(5) if not torch.equal(now[i], kept[i])] == cohort
        kept = now


def test_absent_clients_keep_their_pi():
    check_the_absent(FedEM(K=2))


def test_clients_predict_with_their_mixture_and_unknown_ones_get_the_models_mean():
    now, pi = on_groups(FedEM(K=2))
    fed, method = planted(), FedEM(K=2)
    model = method.build(tiny.task(fed, model="linear"))
    crowd = Crowd(method, model, now.server, now.memories, fed)
    test = fed.clients[1].test
    x = prepare(test.images).flatten(1)
    theta = [theta_of(now.server.weights, k) for k in (0, 1)]
    p = torch.stack([F.linear(x, t["head.weight"], t["head.bias"]).softmax(-1) for t in theta])
    model.load_state_dict(crowd.states[1])
    torch.testing.assert_close(model(prepare(test.images)).exp(), torch.einsum("k,knu->nu", pi[1], p))
    torch.testing.assert_close(method.visit(crowd, Visitor(1, test, none(test), -1)), p.mean(0))
    best = int(pi[1].argmax())
    torch.testing.assert_close(method.visit(crowd, Visitor(1, test, fed.clients[1].train, -1)), p[best])


def none(samples: Samples) -> Samples:
    return Samples(samples.images[:0], samples.labels[:0])


def test_k_models_go_down_and_up_and_pi_does_not():
    fed = planted()
    now = tiny.train(FedEM(K=3), fed, replace(TRAINED, rounds=1), DESCENT, model="linear")
    whole = 3 * size(initial_state(FedAvg(), tiny.task(fed, model="linear"))[1].weights)
    assert rows(now, "bytes_down", "bytes_up") == [6 * whole] * 2


@pytest.mark.parametrize("K", [0, -1, 2.5, True])
def test_a_number_of_models_that_is_none_is_refused(K: float):
    with pytest.raises(FedlibError, match=r"FedEM\.K"):
        FedEM(K=K)


def test_an_unknown_start_is_refused_and_the_method_found():
    with pytest.raises(FedlibError, match=r"FedEM\.init"):
        FedEM(init="zeros")
    assert known()["FedEM"] is FedEM
