"""Drifting federations: sizes by the rule of the FEROMA spec, 3.1, who holds what, and what is made when."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from fedlib.checks import FedlibError
from fedlib.data.drift import apply
from fedlib.data.drifting import Drifting, make_drifting
from fedlib.data.federation import Federation, Samples
from fedlib.data.pool import Pool


def pool(n: int = 900, test: int = 300, side: int = 1, classes: int = 10, domains: int = 0) -> Pool:
    """n train and `test` test images; the pixels spell the image's own index to base 250, labels take turns."""
    number = np.arange(n + test)
    planes = np.stack([number % 250, number // 250, np.zeros_like(number)], axis=1).astype(np.uint8)
    images = np.broadcast_to(planes[:, :, None, None], (n + test, 3, side, side)).copy()
    split = (number >= n).astype(np.uint8)
    where = None if not domains else number // classes % domains
    names = tuple(f"domain {d}" for d in range(domains))
    return Pool(
        "marked", images, number % classes, tuple(map(str, range(classes))), split, number % classes, where, names
    )


def drifting(data: Pool | None = None, clients: int = 4, seed: int = 0, rounds: int = 10, **drift: Any) -> Drifting:
    return make_drifting(data or pool(), clients, {"name": "P(X)"} | drift, rounds, seed)


def marks(samples: Samples) -> list[int]:
    """Which images of the pool these are, where no plane was filled."""
    pixels = samples.images[:, :, 0, 0].long()
    return (pixels[:, 0] + 250 * pixels[:, 1]).tolist()


def trained(fed: Federation, k: int) -> list[int]:
    return marks(fed.clients[k].train) + marks(fed.clients[k].validation)


def all_phases(fed: Drifting) -> Iterator[Federation]:
    seen: list[Federation] = []
    for t in range(1, fed.rounds + 1):
        now = fed.at(t)
        if not seen or now is not seen[-1]:
            seen.append(now)
    yield from seen


@pytest.mark.parametrize("n, phases, clients", [(60_000, 5, 20), (6_000, 10, 20), (6_000, 20, 20), (6_000, 5, 10)])
def test_a_phase_has_a_thirtieth_of_the_training_part_whatever_m_and_e(n, phases, clients):
    """2,000 of MNIST's 60,000."""
    fed = drifting(pool(n, n // 6), clients, phases=phases, rounds=20)
    for stays in fed.stays:
        for stay in stays:
            assert abs(len(stay.train) + len(stay.validation) - n // 30) <= 1
            assert len(stay.validation) == n // 150 and len(stay.test) == n // 6 // clients
    assert [len(v.samples) + len(v.few) for v in fed.visitors] == [n // 6 // clients] * clients


def test_fewer_phases_and_clients_than_thirty_make_no_copies():
    """E m = 20: each client's 225 images are dealt to its five phases, every image once."""
    fed = drifting(clients=4, phases=5)
    for k in range(4):
        held = [mark for now in all_phases(fed) for mark in trained(now, k)]
        assert len(held) == len(set(held)) == 225


def test_shards_are_disjoint_and_the_last_takes_the_remainder():
    """E m = 70 makes copies, of the client's own images alone."""
    fed = drifting(pool(905, 306), clients=7, phases=10)
    own = [{mark for now in all_phases(fed) for mark in trained(now, k)} for k in range(7)]
    tests = [set(marks(client.test)) for client in fed.clients]
    assert sum(map(len, own)) == len(set.union(*own)) <= 905
    assert [len(test) for test in tests] == [43] * 6 + [306 - 6 * 43]
    assert set.union(*tests) == set(range(905, 1211))
    assert all(len(mine) <= 129 for mine in own[:6])
    sizes = [len(stays[0].train) + len(stays[0].validation) for stays in fed.stays]
    assert sum(sizes) == 129 * 70 // 30 and max(sizes) - min(sizes) <= 1


def test_phase_samples_sets_the_size_of_a_phase():
    for samples in (10, 45, 100):
        fed = drifting(clients=4, phases=5, phase_samples=samples)
        assert {len(stay.train) + len(stay.validation) for stays in fed.stays for stay in stays} == {samples}
    scarce = drifting(clients=4, phases=5, phase_samples=45)
    held = [mark for now in all_phases(scarce) for mark in trained(now, 0)]
    assert len(held) == len(set(held)) == 225, "as many as the shard has: no copies"


def test_label_drift_keeps_all_of_its_classes_in_every_phase():
    """The pool of a client, not a chunk of it: 225 images without copies, of which two classes in ten."""
    fed = drifting(name="P(Y)", clients=4, phases=5)
    bank, pooled = fed.distributions, pool()
    for e, now in enumerate(all_phases(fed)):
        for k, client in enumerate(now.clients):
            kept = bank[fed.course.main[k, e]].classes
            everything = torch.cat([client.train.labels, client.validation.labels, client.test.labels])
            assert set(everything.tolist()) == set(kept)
    for k in range(4):
        shard = {mark for e in range(5) for mark in fed.stays[e][k].train.index.tolist()}
        for e, kept in enumerate(bank[d].classes for d in fed.course.main[k]):
            mine = fed.stays[e][k].train.index.tolist() + fed.stays[e][k].validation.index.tolist()
            assert len(mine) == len(set(mine))
            assert {mark for mark in shard if pooled.labels[mark] in kept} <= set(mine)
    few = drifting(name="P(Y)", clients=4, phases=5, phase_samples=12)
    assert all(len(stay.train) + len(stay.validation) <= 12 for stays in few.stays for stay in stays)


def test_the_same_object_within_a_phase_and_another_after_it():
    fed = drifting(phases=5, rounds=20)
    first = fed.at(1)
    assert fed.at(2) is first and fed.at(3) is first and first.clients is fed.clients
    second = fed.at(4)
    assert second is not first and fed.at(7) is second and second.at(1) is second
    assert [client.distribution for client in second.clients] == fed.course.main[:, 1].tolist()
    assert second.visitors is fed.visitors and second.distributions is fed.distributions and not second.central
    anew = fed.at(9)
    assert anew is not second and fed.at(4) is not second
    assert torch.equal(fed.at(4).clients[0].train.images, second.clients[0].train.images)


def test_only_one_later_phase_is_kept():
    fed = drifting(phases=10)
    for t in range(1, 11):
        fed.at(t)
    assert len(fed._made) == 1


@pytest.mark.parametrize("name", ["P(X)", "P(Y)", "P(Y|X)", "P(X|Y)"])
@pytest.mark.parametrize("course", ["random", "gradual"])
def test_what_is_made_late_is_what_apply_makes(name, course):
    data = pool(side=2)
    fed = drifting(data, name=name, severity="medium", course=course, phases=5)
    images, labels = torch.from_numpy(data.images.copy()), torch.from_numpy(data.labels.copy())
    for t in (1, 5, 10):
        for k, client in enumerate(fed.at(t).clients):
            stay = fed.stays[min(t // 2, 4)][k]
            for samples, draws in ((client.train, stay.train), (client.validation, stay.validation)):
                for i, (index, d) in enumerate(zip(draws.index, draws.under, strict=True)):
                    image, label = apply(images[index : index + 1], labels[index : index + 1], fed.distributions[d])
                    assert torch.equal(samples.images[i], image[0]) and samples.labels[i] == label[0]
            assert client.train.images.is_contiguous(memory_format=torch.channels_last)


def test_a_gradual_phase_is_mixed_by_thirds():
    fed = drifting(course="gradual", phases=5, phase_samples=30, severity="high")
    assert np.any(fed.course.first[:, 0] != fed.course.second[:, 0])
    for e, stays in enumerate(fed.stays):
        for k, stay in enumerate(stays):
            under = np.concatenate([stay.train.under, stay.validation.under])
            index = np.concatenate([stay.train.index, stay.validation.index])
            assert len(set(index.tolist())) == len(index) == 30, "no image on both sides of the mixture"
            share = {d: np.mean(under == d) for d in np.unique(under)}
            first, second, thirds = fed.course.first[k, e], fed.course.second[k, e], fed.course.thirds[e]
            if first != second and thirds:
                assert share == pytest.approx({first: 1 - thirds / 3, second: thirds / 3})
            else:
                assert share == {first: 1}
            assert stay.distribution == (second if thirds == 2 else first)


def test_permuted_labels_leave_the_images_alone():
    data = pool()
    fed = drifting(data, name="P(Y|X)", phases=5)
    for t in range(1, 11):
        for client in fed.at(t).clients:
            own = data.labels[marks(client.train)]
            permutation = np.array(fed.distributions[client.distribution].permutation)
            assert client.train.labels.tolist() == permutation[own].tolist()


def test_severity_and_course_leave_the_shards_alone_and_the_seed_does_not():
    def held(fed: Drifting) -> list[list[int]]:
        return [[stay.train.index.tolist(), stay.test.index.tolist()] for stays in fed.stays for stay in stays]

    base = held(drifting(severity="low"))
    assert base == held(drifting(severity="high")) == held(drifting(name="P(Y|X)", course="recurring"))
    assert base == held(drifting()) and base != held(drifting(seed=1))
    assert np.array_equal(drifting(severity="medium").course.main, drifting(name="P(Y)", severity="medium").course.main)


def test_visitors_are_of_what_some_client_was_of_last():
    others = 0
    for seed in range(6):
        fed = drifting(clients=6, severity="high", seed=seed)
        last = fed.course.main[:, -1].tolist()
        mine = [visitor.distribution for visitor in fed.visitors]
        assert set(mine) <= set(last)
        assert [client.distribution for client in fed.at(10).clients] == last
        others += sum(a != b for a, b in zip(mine, last, strict=True))
    assert others > 18, "most of 36 visitors are not their own client's last"


def test_under_permuted_labels_a_visitor_is_its_own_client_s():
    fed = drifting(name="P(Y|X)", clients=6, severity="high")
    assert [visitor.distribution for visitor in fed.visitors] == fed.course.main[:, -1].tolist()


def test_few_are_taken_out_of_what_is_scored():
    """75 test images a client, 7 or 8 of a class, of which three are few; asked for 20, at most half are."""
    data = pool()
    fed = drifting(data, name="P(Y|X)", few_per_class=3)
    for visitor, client in zip(fed.visitors, fed.at(10).clients, strict=True):
        assert np.bincount(visitor.few.labels, minlength=10).max() == 3
        assert not set(marks(visitor.few)) & set(marks(visitor.samples))
        assert set(marks(visitor.few)) | set(marks(visitor.samples)) == set(marks(client.test))
        permutation = np.array(fed.distributions[visitor.distribution].permutation)
        assert visitor.few.labels.tolist() == permutation[data.labels[marks(visitor.few)]].tolist()
    for visitor in drifting(data, few_per_class=20).visitors:
        scored, few = (np.bincount(part.labels, minlength=10) for part in (visitor.samples, visitor.few))
        assert np.array_equal(few, (scored + few) // 2)
    assert all(not len(visitor.few) for visitor in drifting().visitors)


def test_in_a_domain_a_client_draws_from_its_shard_of_it():
    data = pool(1200, 300, domains=3)
    fed = drifting(data, name="domains", clients=4, phases=5)
    own: dict[tuple[int, int], set[int]] = {}
    for now in all_phases(fed):
        for k, client in enumerate(now.clients):
            held = trained(now, k)
            assert {int(data.domains[mark]) for mark in held + marks(client.test)} == {client.domain}
            assert client.domain == client.distribution and len(held) == 20
            own.setdefault((k, client.domain), set()).update(held)
    assert sum(map(len, own.values())) == len(set.union(*own.values()))
    assert [each.label for each in fed.distributions] == list(data.domain_names)


def test_a_mixture_of_two_domains_is_of_none():
    fed = drifting(pool(1200, 300, domains=3), name="domains", course="gradual", phases=5)
    for e, stays in enumerate(fed.stays):
        for k, stay in enumerate(stays):
            mixed = fed.course.thirds[e] and fed.course.first[k, e] != fed.course.second[k, e]
            assert stay.domain == (-1 if mixed else stay.distribution)


def test_a_share_of_the_pool_may_be_the_test_part():
    fed = make_drifting(pool(), 4, {"name": "P(X)"}, 10, 0, samples=1000, test_share=0.25)
    held = {mark for now in all_phases(fed) for k in range(4) for mark in trained(now, k)}
    tests = {mark for client in fed.clients for mark in marks(client.test)}
    assert len(tests) == 250 and len(held) == 750 and not held & tests
    assert min(tests) < 900, "not the official one"


def test_a_device_is_kept_for_later_phases():
    fed = drifting().to(torch.device("meta"))
    later = fed.at(10)
    parts = [later.clients[0].train, fed.clients[0].test, fed.visitors[0].few, fed.at(1).clients[0].train]
    assert {part.images.device.type for part in parts} == {"meta"}


def test_it_travels_between_processes():
    fed = drifting()
    fed.at(10)
    other = pickle.loads(pickle.dumps(fed))
    assert not other._made
    for t in (1, 10):
        for a, b in zip(fed.at(t).clients, other.at(t).clients, strict=True):
            assert torch.equal(a.train.images, b.train.images) and a.distribution == b.distribution


@pytest.mark.parametrize("round", [0, 11])
def test_a_round_out_of_range_is_refused(round):
    with pytest.raises(
        FedlibError, match=f"round: {round} is out of range; give a whole number at least 1 and at most"
    ):
        drifting().at(round)


@pytest.mark.parametrize(
    "data, settings, message",
    [
        (pool(900, 40), {"name": "P(Y)", "clients": 20}, "has no test sample of these; take fewer clients"),
        (pool(30, 30), {"clients": 4, "phases": 10}, "samples to learn from, and needs two; take fewer clients or"),
        (pool(), {"name": "domains"}, "this data set has no domains"),
        (pool(900, 3, classes=3), {"clients": 4}, "the test part of 'marked' has 3 images for 4 clients"),
        (pool(), {"phases": 11}, "drift: phases: 11 is out of range"),
    ],
)
def test_what_cannot_be_made_is_refused(data, settings, message):
    with pytest.raises(FedlibError, match=message):
        drifting(data, **settings)


def test_texts_and_oblong_images_are_refused():
    tokens, labels = np.zeros((40, 3), np.int32), np.arange(40) % 2
    texts = Pool("texts", tokens, labels, ("a", "b"), (labels == 1).astype(np.uint8), labels, words=("x", "y"))
    with pytest.raises(FedlibError, match="'texts' is text; leave drift out"):
        drifting(texts)
    wide = Pool("wide", np.zeros((40, 3, 2, 4), np.uint8), labels, ("a", "b"), labels.astype(np.uint8), labels)
    with pytest.raises(FedlibError, match="90° turns images of 2x4, which are not square"):
        drifting(wide)


def test_a_federation_that_stands_still_is_the_same_in_every_round():
    fed = Federation("still", (), ("a",), (3, 1, 1))
    assert fed.at(1) is fed and fed.at(9) is fed and fed.visitors == ()
