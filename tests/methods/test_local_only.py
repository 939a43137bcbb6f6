"""LocalOnly against a loop by hand, and the methods that are it without their penalties."""

from __future__ import annotations

import pytest
import tiny
from test_methods import LOCAL, step_by_hand

from fedlib.engines import one_thread
from fedlib.methods.fedamp import FedAMP
from fedlib.methods.fedavg import FedAvg
from fedlib.methods.fedmtl import FedMTL
from fedlib.methods.local_only import LocalOnly
from fedlib.methods.method import Method, initial_state
from fedlib.methods.released.fedfew_personal import FedAMPAsReleased, FedMTLAsReleased
from fedlib.rounds import Plan


def test_local_training_is_sgd_that_goes_on_from_round_to_round():
    fed, plan = tiny.federation((40, 24)), Plan(3, 0.05)
    now = tiny.train(LocalOnly(), fed, plan, LOCAL)
    with one_thread():
        for i in (0, 1):
            model, _, _ = initial_state(FedAvg(), tiny.task(fed))
            for t in (1, 2, 3):
                step_by_hand(model, fed, i, t, LOCAL, plan.rate(t))
            assert tiny.same(now.memories[i], dict(model.state_dict()))
    assert not now.server.weights and not [row for row in now.history if row.metric.startswith("global")]


@pytest.mark.parametrize("method", [FedAMP(lam=0.0), FedMTL(lam=0.0), FedAMPAsReleased(), FedMTLAsReleased()])
def test_without_a_penalty_or_its_gradient_it_is_local_training_bit_for_bit(method: Method):
    fed, plan = tiny.federation((40, 24, 33)), Plan(3, 0.05, participation=0.7, evaluate_every=1)
    got, alone, tied = (tiny.train(m, fed, plan, LOCAL) for m in (method, LocalOnly(), published(method)))
    assert all(map(tiny.same, got.memories, alone.memories))
    mine, theirs = ([row for row in now.history if "@local" in row.metric] for now in (got, alone))
    assert mine == theirs and len(mine) > 3
    assert not all(map(tiny.same, tied.memories, alone.memories))


def published(method: Method) -> Method:
    """The method of the paper, with its penalty."""
    return FedAMP() if isinstance(method, FedAMP) else FedMTL()
