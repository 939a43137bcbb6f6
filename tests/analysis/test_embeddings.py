"""Profiles under another embedding: by hand, and of one that sees nothing."""

from __future__ import annotations

import numpy as np
import pytest
import tiny
import torch

from fedlib import profiles
from fedlib.analysis import embeddings
from fedlib.analysis.matching import last_crowd
from fedlib.checks import FedlibError
from fedlib.methods.fedavg import FedAvg
from fedlib.methods.feroma import FEROMA
from fedlib.methods.method import State
from fedlib.runs import Run, run

DRIFT = {"name": "P(X)", "severity": "low", "phases": 2, "phase_samples": 40}
SETTINGS = {"clients": 4, "rounds": 3, "drift": DRIFT, "validation_share": 0.2, "probes": ["visitors"], "pooled": False}


@pytest.fixture(scope="module")
def mapped(shared_project) -> Run:
    return run(tiny.experiment(FEROMA(warmup=1, components=3, samplings=0), **SETTINGS))


def test_profiles_are_made_anew_under_the_embedding(mapped: Run):
    crowd = last_crowd(mapped)
    other = embeddings.at_the_start(mapped)
    server = embeddings.reprofiled(crowd, other)
    crowd.model.load_state_dict(other)
    held = [client.validation for client in crowd.federation.clients]
    z = [profiles.latents(crowd.model, samples.images) for samples in held]
    low, high = min(0.0, *(float(one.min()) for one in z)), 1.02 * max(float(one.max()) for one in z)
    g = profiles.projection(z[0].shape[1], 3, low, high)
    d = torch.stack(
        [profiles.statistics(g(one), samples.labels, 10) for one, samples in zip(z, held, strict=True)]
    ).float()
    torch.testing.assert_close(server.memory["d"], d)
    least, span = profiles.fit_scaler(d, 3)
    torch.testing.assert_close((server.memory["low"], server.memory["span"]), (least, span))
    assert all(torch.equal(server.memory[f"embedding/{name}"], tensor) for name, tensor in other.items())
    assert server.weights is crowd.server.weights


def test_an_embedding_that_sees_nothing_leaves_the_first_client_and_an_even_chance(mapped: Run):
    crowd = last_crowd(mapped)
    blind: State = {name: torch.zeros_like(tensor) for name, tensor in embeddings.at_the_start(mapped).items()}
    found = embeddings.told_apart(crowd, blind)
    first = crowd.federation.clients[0].distribution
    visits = [visitor.distribution for visitor in crowd.federation.visitors]
    assert found == {"match": 100 * np.mean([d == first for d in visits]), "order": 50.0}


def test_the_run_s_own_embedding_is_the_mean_of_the_warm_up_and_the_start_is_fedavg_s(mapped: Run):
    f = embeddings.of_warmup(mapped)
    first = run(tiny.experiment(FedAvg(), **SETTINGS | {"drift": DRIFT}))
    start = embeddings.at_the_start(first)
    assert tiny.same(embeddings.at_the_start(mapped), start)
    assert f.keys() == start.keys() and not tiny.same(f, start)
    untrained = run(tiny.experiment(FEROMA(warmup=1, components=3, embedding="untrained"), **SETTINGS))
    assert tiny.same(embeddings.of_warmup(untrained), start)


def test_other_methods_are_refused(shared_project):
    plain = run(tiny.experiment(FedAvg(), **SETTINGS))
    with pytest.raises(FedlibError, match="embeddings: FedAvg has no profiles"):
        embeddings.of_warmup(plain)
    with pytest.raises(FedlibError, match="embeddings: FedAvg has no profiles"):
        embeddings.told_apart(last_crowd(plain), embeddings.at_the_start(plain))
