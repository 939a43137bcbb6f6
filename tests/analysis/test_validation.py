"""The validation probe: its values against a count by hand, its names, and its refusal."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import tiny
import torch

from fedlib import probes
from fedlib.analysis.validation import held_out, validation
from fedlib.checks import FedlibError
from fedlib.data.federation import Federation, Samples
from fedlib.engines import Serial
from fedlib.methods.fedavg import FedAvg
from fedlib.methods.feddrm import FedDRM
from fedlib.methods.method import initial_state
from fedlib.metrics import Crowd, evaluate
from fedlib.rounds import Snapshot, federate
from fedlib.training import prepare

SIZES = (7, 4, 12)


def federation() -> Federation:
    """Clients of unequal size with 7, 4 and 12 validation samples, and tests that are not these."""
    fed, drawn = tiny.federation(), tiny.federation(SIZES, test=1)
    pairs = zip(fed.clients, drawn.clients, strict=True)
    return replace(fed, clients=tuple(replace(own, validation=other.train) for own, other in pairs))


def crowd_of(method: FedDRM | FedAvg, fed: Federation) -> Crowd:
    """Untrained, but with personal heads that differ."""
    model, server, memories = initial_state(method, tiny.task(fed))
    generator = torch.Generator().manual_seed(1)
    noisy = [{name: t + torch.randn(t.shape, generator=generator) for name, t in own.items()} for own in memories]
    return Crowd(method, model, server, noisy, fed)


def test_the_values_are_those_of_a_count_by_hand():
    fed, method = federation(), FedDRM()
    crowd = crowd_of(method, fed)
    got = {row.metric: row.value for row in validation(crowd, fed)}
    model, shares = crowd.model, torch.tensor(fed.shares, dtype=torch.float32)
    right, routed, own = 0, torch.zeros(3), torch.zeros(3)
    with torch.no_grad():
        for i, client in enumerate(fed.clients):
            for image, label in zip(client.validation.images, client.validation.labels, strict=True):
                logits = {}
                for j in range(3):
                    model.load_state_dict(crowd.server.weights | crowd.memories[j])
                    a, c = model(prepare(image[None]))
                    logits[j] = a[0]
                r = int((c[0] - shares.log()).argmax())
                right += int(logits[r].argmax() == label)
                routed[i] += r == i
                own[i] += int(logits[i].argmax() == label)
    counts = torch.tensor(SIZES)
    assert got["system@pooled[validation]"] == pytest.approx(right / sum(SIZES))
    assert got["personal@local[validation]"] == pytest.approx(float(shares @ (own / counts)))
    assert got["router@pooled[validation]"] == pytest.approx(float(shares @ (routed / counts)))
    assert 0 < right < sum(SIZES) and len(got) == 3


def test_it_looks_at_validation_samples_alone_and_leaves_the_crowd_as_it_was():
    fed = federation()
    crowd = crowd_of(FedDRM(), fed)
    before, expected = evaluate(crowd, "after_aggregation"), validation(crowd, fed)
    dark = tuple(
        replace(client, test=Samples(torch.zeros_like(client.test.images), client.test.labels))
        for client in fed.clients
    )
    other = replace(fed, clients=dark)
    assert validation(Crowd(crowd.method, crowd.model, crowd.server, crowd.memories, other), other) == expected
    assert evaluate(crowd, "after_aggregation") == before
    assert {(row.moment, row.client, row.round) for row in expected} == {("validation", -1, 0)}


def test_on_the_test_samples_it_is_the_usual_metric():
    fed = tiny.federation()
    fed = replace(fed, clients=tuple(replace(client, validation=client.test) for client in fed.clients))
    crowd = crowd_of(FedDRM(), fed)
    usual = {row.metric: row.value for row in evaluate(crowd, "") if row.client == -1}
    assert all(row.value == usual[row.metric.removesuffix("[validation]")] for row in validation(crowd, fed))


def test_a_method_without_router_has_two_values():
    fed = federation()
    found = [row.metric for row in validation(crowd_of(FedAvg(), fed), fed)]
    assert sorted(found) == ["personal@local[validation]", "system@pooled[validation]"]


def test_a_client_without_validation_samples_is_named():
    fed = federation()
    clients = (*fed.clients[:2], replace(fed.clients[2], validation=tiny.federation().clients[2].validation))
    with pytest.raises(FedlibError, match=r"validation samples, but client 2 has none; set validation_share above 0"):
        held_out(replace(fed, clients=clients))


def trained(**settings: Any) -> Snapshot:
    """A run of three rounds with the probe."""
    asked = tiny.experiment(FedDRM(), probes=("validation",), evaluate_every=3, **settings)
    fed = asked.federation()
    extra = probes.load(asked.probes)
    return federate(asked.method, fed, asked.task(fed), asked.local, asked.plan, Serial(), probes=extra)


def test_a_run_takes_it_by_name():
    rows = [row for row in trained(validation_share=0.2).history if "[validation]" in row.metric]
    assert [row.round for row in rows] == [3, 3, 3] and all(0 <= row.value <= 1 for row in rows)


def test_clients_without_a_split_are_refused():
    with pytest.raises(FedlibError, match=r"probes: validation .* client 0 has none; set validation_share above 0"):
        held_out(tiny.federation())
