"""by_domain: the spec's client sizes, one domain a client, nothing twice, the repair step and label skew."""

from __future__ import annotations

import numpy as np
import pytest

from fedlib.checks import FedlibError
from fedlib.data import partition as p

PACS = {"name": "by_domain", "allocation": [2, 3, 2, 3], "share": 0.3}
TRAIN = (1336, 1640, 1876, 3144)


def drawn(spec, sizes=TRAIN, classes=7, clients=10, seed=0):
    labels = np.concatenate([np.arange(n) % classes for n in sizes])
    domains = np.repeat(np.arange(len(sizes)), sizes)
    return labels, domains, p.partition(spec, labels, clients, np.random.default_rng(seed), domains)


@pytest.mark.parametrize(
    ("train", "allocation", "share", "sizes"),
    [
        (TRAIN, [2, 3, 2, 3], 0.3, (400, 492, 562, 943)),
        ((899, 768, 237, 127), [3, 2, 2, 3], 0.2, (179, 153, 47, 25)),
        ((60000, 7291, 73257), [3, 6, 6], 0.01, (600, 72, 732)),
    ],
)
def test_the_fixed_allocation_has_the_published_sizes(train, allocation, share, sizes):
    spec = {"name": "by_domain", "allocation": allocation, "share": share}
    _, domains, parts = drawn(spec, train, 10, sum(allocation))
    homes = [np.unique(domains[part]) for part in parts]
    assert all(len(home) == 1 for home in homes)
    assert np.bincount(np.concatenate(homes)).tolist() == allocation
    assert {int(home[0]): len(part) for home, part in zip(homes, parts, strict=True)} == dict(enumerate(sizes))
    everything = np.concatenate(parts)
    assert len(np.unique(everything)) == len(everything)
    assert all((np.diff(part) > 0).all() for part in parts)


def test_clients_change_places_with_the_seed_alone():
    _, domains, first = drawn(PACS)
    _, _, again = drawn(PACS)
    _, _, other = drawn(PACS, seed=1)
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    order = [[int(domains[part[0]]) for part in parts] for parts in (first, other)]
    assert sorted(order[0]) == sorted(order[1]) and order[0] != order[1]


def test_random_allocation_never_asks_a_domain_for_more_than_it_has():
    seen = set()
    for seed in range(20):
        _, domains, parts = drawn(PACS | {"allocation": "random"}, seed=seed)
        held = np.bincount([domains[part[0]] for part in parts], minlength=4)
        assert held.max() <= 3 and held.sum() == 10
        seen.add(tuple(held))
    assert len(seen) > 3


def test_random_allocation_can_give_each_domain_a_client_first():
    """With five clients of four domains a plain draw often leaves one out; random_each never does."""
    held = {
        name: [
            np.bincount([domains[part[0]] for part in parts], minlength=4)
            for seed in range(40)
            for _, domains, parts in [drawn(PACS | {"allocation": name}, clients=5, seed=seed)]
        ]
        for name in ("random", "random_each")
    }
    assert any(counts.min() == 0 for counts in held["random"])
    assert all(counts.min() == 1 and counts.sum() == 5 for counts in held["random_each"])
    assert len({tuple(counts) for counts in held["random_each"]}) == 4


def test_repair_gives_every_client_every_class_that_its_domain_can_spare():
    labels = np.array([0] * 40 + [1] * 3)
    domains = np.zeros(43, dtype=np.int64)
    spec = {"name": "by_domain", "allocation": [3], "share": 0.25}
    bare = 0
    for seed in range(10):
        rng = np.random.default_rng(seed)
        whole = p.partition(spec, labels, 3, rng, domains)
        loose = p.partition(spec | {"repair": False}, labels, 3, np.random.default_rng(seed), domains)
        bare += sum(len(np.unique(labels[part])) < 2 for part in loose)
        assert [len(part) for part in whole] == [len(part) for part in loose] == [10, 10, 10]
        taken = np.concatenate(whole)
        assert len(np.unique(taken)) == 30
        lacking = [part for part in whole if 1 not in labels[part]]
        assert not lacking or not (set(np.flatnonzero(labels == 1)) - set(taken.tolist()))
    assert bare > 3


def test_label_skew_within_a_domain_grows_as_alpha_falls():
    from fedlib.data.partition import counts, hellinger

    skews = []
    for alpha in (100.0, 0.5, 0.05):
        labels, _, parts = drawn(PACS | {"alpha": alpha, "share": 0.1, "repair": False})
        assert [len(part) for part in parts] and len(np.unique(np.concatenate(parts))) == sum(map(len, parts))
        skews.append(hellinger(counts(labels, parts, 7)))
    assert skews[0] < 0.15 < skews[1] < skews[2]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"allocation": [2, 3, 5]}, r"allocation \[2, 3, 5\] gives 10 clients to 3 domains"),
        ({"allocation": [2, 3, 2, 2]}, "gives 9 clients to 4 domains, but there are 10 clients"),
        ({"allocation": [4, 2, 2, 2]}, "domain 0 has 1336 samples, too few for 4 clients of 400 each; lower share"),
        (
            {"allocation": [2, 3, 2, 3], "share": 0.0005},
            "share gives no client one of domain 0's 1336 samples; raise it",
        ),
        ({"allocation": "random", "share": 1.0e-6}, "share gives a client no sample of any domain; raise share"),
        ({"allocation": "radnom"}, "did you mean 'random'"),
        ({"allocation": 3}, "3 is neither random, nor random_each, nor a list of clients per domain"),
        ({"allocation": [2, -1, 2, 3]}, "allocation: -1 is out of range"),
        ({"share": 0.0}, "share: 0.0 is out of range"),
        ({"share": 1.1}, "share: 1.1 is out of range"),
        ({"share": None}, "share: None is NoneType"),
        ({"alpha": 0.0}, "alpha: 0.0 is out of range"),
        ({"repair": "yes"}, "repair: 'yes' is unknown"),
        ({"shares": 0.1}, "unknown key 'shares'; did you mean 'share'?"),
        ({"allocation": "random_each", "clients": 3}, "3 clients are too few to give each of 4 domains one"),
        ({"allocation": "random", "share": 0.9}, "10 clients, but the domains last for 4 shares; lower share"),
    ],
)
def test_what_cannot_be_made_is_refused(spec, message):
    clients = spec.pop("clients", 10)
    with pytest.raises(FedlibError, match=message):
        drawn(PACS | spec, clients=clients)


WRITERS = np.array([6, 0, 0, 1, 2, 2, 4, 5, 3, 3, 6, 6])


def sourced(clients, seed=0, domains=WRITERS, **settings):
    labels = np.zeros(len(domains), dtype=int)
    return p.partition({"name": "by_source", **settings}, labels, clients, np.random.default_rng(seed), domains)


def test_by_source_gives_each_client_one_domain():
    assert [part.tolist() for part in sourced(3, domains=np.array([2, 0, 0, 1, 2, 2]))] == [[1, 2], [3], [0, 4, 5]]
    with pytest.raises(FedlibError, match=r"8 clients for 7 domains; give as many clients as domains$"):
        sourced(8)
    with pytest.raises(FedlibError, match=r"3 clients for 7 domains; .*, or surplus: merge .* or leave"):
        sourced(3)


def test_merged_domains_stay_whole_and_are_dealt_evenly():
    dealt = set()
    for seed in range(10):
        parts = sourced(3, seed, surplus="merge")
        assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(len(WRITERS)))
        assert all((np.diff(part) > 0).all() for part in parts)
        homes = [frozenset(WRITERS[part].tolist()) for part in parts]
        assert [len(home) for home in homes] == [3, 2, 2] and len(frozenset.union(*homes)) == 7
        dealt.add(tuple(homes))
    assert len(dealt) > 5


def test_a_client_a_domain_leaves_the_others():
    drawn = set()
    for seed in range(30):
        parts = sourced(3, seed, surplus="leave")
        homes = [int(WRITERS[part[0]]) for part in parts]
        assert homes == sorted(homes)
        assert [part.tolist() for part in parts] == [np.flatnonzero(home == WRITERS).tolist() for home in homes]
        drawn.update(homes)
    assert drawn == set(range(7))


def test_a_domain_without_samples_is_nobodys():
    """Writers of the test part alone, where clients divide the training part."""
    gaps = np.array([1, 1, 3, 3, 5])
    assert [part.tolist() for part in sourced(3, domains=gaps, surplus="leave")] == [[0, 1], [2, 3], [4]]
    with pytest.raises(FedlibError, match="4 clients for 3 domains"):
        sourced(4, domains=gaps, surplus="merge")


def test_a_set_without_domains_is_refused():
    with pytest.raises(FedlibError, match="'by_source': this data set has no domains"):
        p.partition({"name": "by_source"}, np.zeros(6, dtype=int), 3, np.random.default_rng(0))
    with pytest.raises(FedlibError, match="'by_domain': this data set has no domains"):
        p.partition(PACS, np.zeros(20, dtype=int), 10, np.random.default_rng(0))
