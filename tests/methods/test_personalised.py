"""What LocalOnly, APFL, FedAMP, FedMTL, FedMGDA+ and what ran in their place have in common."""

from __future__ import annotations

import numpy as np
import pytest
import tiny
import torch
from personal_tasks import QuadraticAMP, QuadraticMTL, biases, name_of, quadratic, start
from test_methods import LOCAL, PLAN

from fedlib.engines import Serial
from fedlib.methods import known
from fedlib.methods.apfl import APFL
from fedlib.methods.fedamp import FedAMP
from fedlib.methods.fedavg import FedAvg
from fedlib.methods.fedmgda import FedMGDAPlus
from fedlib.methods.fedmtl import FedMTL
from fedlib.methods.local_only import LocalOnly
from fedlib.methods.method import Method, State, Upload, initial_state
from fedlib.methods.released.fedfew_personal import APFLAsReleased, FedAMPAsReleased, FedMTLAsReleased
from fedlib.rounds import Plan, Snapshot, cohorts, federate
from fedlib.store import load_snapshot, save_snapshot

RELEASED: tuple[Method, ...] = (APFLAsReleased(), FedAMPAsReleased(), FedMTLAsReleased())
METHODS: tuple[Method, ...] = (LocalOnly(), APFL(), FedAMP(), FedMTL(), FedMTL(relations="learned"), FedMGDAPlus())
NETWORK = 4 * 23_130
"""Bytes of small_cnn on ten classes."""


@pytest.mark.parametrize("method", METHODS + RELEASED, ids=name_of)
def test_runs_with_some_of_the_clients_and_goes_on_bit_for_bit(method: Method, tmp_path):
    fed, plan = tiny.federation((40, 24, 33, 20)), Plan(3, 0.05, participation=0.5, evaluate_every=1)
    path, drawn = tmp_path / "snapshot.safetensors", cohorts(0, 4, plan)
    before: list[State] = []

    def look(now: Snapshot) -> None:
        if now.server.round == 2:
            save_snapshot(path, now)
            before.extend(now.memories)

    whole = tiny.train(method, fed, plan, LOCAL, after_round=look)
    again = federate(method, fed, tiny.task(fed), LOCAL, plan, Serial(), resume=load_snapshot(path))
    assert tiny.same_snapshots(whole, again)
    for i in set(range(4)) - set(drawn[2]):
        assert tiny.same(whole.memories[i], before[i])
    network = set(initial_state(FedAvg(), tiny.task(fed))[0].state_dict())
    assert all(
        set(method.personal_model(whole.server, i, memory)) == network for i, memory in enumerate(whole.memories)
    )


@pytest.mark.parametrize(
    ("method", "down", "up", "extra"),
    [
        (LocalOnly(), 0, 0, 0),
        (APFL(), 3, 3, 0),
        (FedMGDAPlus(), 3, 3, 0),
        (FedAMP(), 2, 3, 0),
        (FedMTL(), 2, 3, 4),
        (FedAMPAsReleased(), 2, 3, 0),
        (APFLAsReleased(), 3, 3, 0),
    ],
    ids=name_of,
)
def test_what_travels_in_three_rounds(method: Method, down: int, up: int, extra: int):
    """In rounds of one network a client; FedAMP and FedMTL have nothing to send down in the first, FedMTL adds q."""
    now = tiny.train(method, tiny.federation((40, 24)), PLAN, LOCAL)
    sent = {name: [row.value for row in now.history if row.metric == name] for name in ("bytes_down", "bytes_up")}
    whole = 2 * (NETWORK + extra)
    assert sent["bytes_down"] == [0] * (3 - down) + [whole] * down
    assert sent["bytes_up"] == [0] * (3 - up) + [2 * NETWORK] * up


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            {"name": "APFL", "mixing": 1.5},
            "APFL.mixing: 1.5 is out of range; give a number at least 0.0 and at most 1.0",
        ),
        ({"name": "APFL", "adaptive": "no"}, "APFL.adaptive: 'no' is unknown"),
        ({"name": "APFL", "mixing_lr": 0}, "APFL.mixing_lr: 0 is out of range; give a number above 0.0"),
        ({"name": "APFL", "alpha": 0.5}, "method APFL: unknown key 'alpha'"),
        ({"name": "FedAMP", "lam": -1}, "FedAMP.lam: -1 is out of range"),
        ({"name": "FedAMP", "step": 0}, "FedAMP.step: 0 is out of range"),
        ({"name": "FedAMP", "sigma": 0}, "FedAMP.sigma: 0 is out of range"),
        ({"name": "FedMTL", "lam": "1e-4"}, "FedMTL.lam: '1e-4' is str, not a number"),
        ({"name": "FedMTL", "relations": "learnt"}, "FedMTL.relations: 'learnt' is unknown; did you mean 'learned'?"),
        ({"name": "FedMTL", "shrinkage": 0}, "FedMTL.shrinkage: 0 is out of range"),
        ({"name": "FedMGDAPlus", "eps": 2}, "FedMGDAPlus.eps: 2 is out of range"),
        ({"name": "FedMGDAPlus", "server_lr": 0}, "FedMGDAPlus.server_lr: 0 is out of range"),
        ({"name": "LocalOnly", "lam": 0}, "method LocalOnly: unknown key 'lam'"),
        ({"name": "APFLAsReleased", "mixing": -1}, "APFLAsReleased.mixing: -1 is out of range"),
    ],
)
def test_wrong_hyper_parameters_are_refused(spec: dict, message: str):
    assert message in tiny.refusal(spec)


def test_all_are_found_by_name():
    assert all(known()[name_of(method)] is type(method) for method in METHODS + RELEASED)


@pytest.mark.parametrize("method", [QuadraticAMP(centres=(3.0, 3.0)), QuadraticMTL(centres=(3.0, 3.0), lam=2.0)])
def test_clients_that_are_alike_stay_alike_and_are_not_held_back(method: Method):
    """u_i = w_i, where the leash has no gradient."""
    got = biases(quadratic(method, 8)[-1])
    np.testing.assert_allclose(got[0], got[1], atol=1e-6)
    np.testing.assert_allclose(got, 3 + 0.75**8 * (start((30, 10)) - 3), atol=1e-5)


@pytest.mark.parametrize("method", [FedAMP(), FedMTL(), FedMTL(relations="learned"), FedMGDAPlus()], ids=name_of)
def test_the_order_of_arrival_changes_no_bit(method: Method):
    fed = tiny.federation((40, 24, 33))
    now = tiny.train(method, fed, Plan(1, 0.05), LOCAL)
    draw = torch.Generator().manual_seed(0)
    theta = initial_state(FedAvg(), tiny.task(fed))[1].weights
    uploads = []
    for i, size in enumerate(fed.sizes):
        sent = {name: w + 0.1 * torch.randn(w.shape, generator=draw) for name, w in theta.items()}
        shared = bool(now.server.weights)
        uploads.append(Upload(i, sent if shared else {}, {}, size, {}, {} if shared else sent))
    one, other = (method.aggregate(now.server, order) for order in (uploads, uploads[::-1]))
    assert tiny.same(one.weights, other.weights)
    assert tiny.same(one.memory, other.memory) and one.round == 2


@pytest.mark.parametrize("kind", [QuadraticAMP, QuadraticMTL])
def test_names_of_clients_do_not_matter(kind: type[Method]):
    centres, order = (1.0, 5.0, 2.0), [2, 0, 1]
    plain, moved = (
        biases(quadratic(kind(centres=tuple(c), curvatures=(1.0,) * 3), 5, (20, 20, 20))[-1])
        for c in (centres, [centres[i] for i in order])
    )
    np.testing.assert_allclose(moved, plain[order], atol=1e-5)
