import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlib.checks import FedlibError
from fedlib.data import partition as p

CIFAR10 = np.repeat(np.arange(10), 6000)
CIFAR100 = np.repeat(np.arange(100), 600)


def generator(seed=0):
    return np.random.default_rng(seed)


def sizes(parts):
    return np.array([len(part) for part in parts])


specs = st.one_of(
    st.just({"name": "iid"}),
    st.builds(
        lambda alpha, rule: {"name": "dirichlet", "alpha": alpha, "rule": rule, "minimum": 1},
        st.floats(0.3, 100),
        st.sampled_from(["capped", "practical", "plain"]),
    ),
    st.builds(lambda s: {"name": "shards", "per_client": s}, st.integers(1, 5)),
    st.builds(lambda c: {"name": "pathological", "classes_per_client": c}, st.integers(2, 4)),
    st.builds(lambda alpha: {"name": "quantity", "alpha": alpha, "minimum": 2}, st.floats(0.01, 100)),
)


@settings(max_examples=80, deadline=None)
@given(specs, st.integers(2, 6), st.integers(0, 2**32), st.lists(st.integers(30, 60), min_size=4, max_size=4))
def test_every_index_goes_to_exactly_one_client_and_the_seed_decides(spec, clients, seed, class_sizes):
    labels = generator(seed).permutation(np.repeat([0, 2, 3, 7], class_sizes))
    parts = p.partition(spec, labels, clients, generator(seed))
    assert len(parts) == clients and min(sizes(parts)) >= 1
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(len(labels)))
    assert all((np.diff(part) > 0).all() for part in parts)
    again = p.partition(spec, labels, clients, generator(seed))
    assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))


@pytest.mark.parametrize(
    "spec", [{"name": "iid"}, {"name": "dirichlet", "alpha": 0.3}, {"name": "shards", "per_client": 5}]
)
def test_another_seed_is_another_partition(spec):
    first, second = (p.partition(spec, CIFAR10, 8, generator(seed)) for seed in (0, 1))
    assert any(not np.array_equal(a, b) for a, b in zip(first, second, strict=True))


def test_iid_sizes_differ_by_at_most_one():
    assert sorted(sizes(p.iid(CIFAR10[:1003], 8, generator()))) == [125] * 5 + [126] * 3


def test_cifar10_in_five_shards_has_the_published_sizes():
    """FedDRM spec, 3.2: 40 shards of 1,500, four a class; 7,500 samples and at most five classes a client."""
    table = p.counts(CIFAR10, p.shards(CIFAR10, 8, generator(), per_client=5), 10)
    assert (table % 1500 == 0).all()
    assert (table.sum(axis=0) == 4 * 1500).all()
    assert (table.sum(axis=1) == 7500).all()
    assert ((table > 0).sum(axis=1) <= 5).all()


def test_cifar100_in_25_shards_has_the_published_sizes():
    """FedDRM spec, 3.2: 200 shards of 300, two a fine class; at most 25 fine classes a client."""
    table = p.counts(CIFAR100, p.shards(CIFAR100, 8, generator(), per_client=25), 100)
    assert (table % 300 == 0).all()
    assert (table.sum(axis=1) == 7500).all()
    assert ((table > 0).sum(axis=1) <= 25).all()


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32))
def test_capped_dirichlet_meets_its_minimum_and_its_soft_cap(seed):
    """Every client holds at least as many samples as there are classes, and less than N/m and one whole class."""
    held = sizes(p.dirichlet(CIFAR10, 8, generator(seed), alpha=0.3))
    assert held.min() >= 10
    assert held.max() < 7500 + 6000


def test_the_minimum_is_the_number_of_classes_present():
    """FedDRM spec, 3.2: 100 for CIFAR-20, which is partitioned by its fine labels."""
    assert all(sizes(p.dirichlet(CIFAR100, 27, generator(seed), alpha=0.1)).min() >= 100 for seed in range(3))


def test_capped_sizes_vary_less_than_plain_ones():
    spread = {
        rule: np.mean([sizes(p.dirichlet(CIFAR10, 8, generator(s), 0.3, rule)).std() for s in range(20)])
        for rule in ("capped", "plain")
    }
    assert spread["capped"] < 0.75 * spread["plain"]


def test_practical_is_capped_with_a_minimum_of_its_own():
    """FedFew spec, 3: the smallest client has at least min(40, N / M / 2) samples."""
    for seed in range(5):
        ours = p.dirichlet(CIFAR10, 20, generator(seed), 0.1, "practical")
        assert sizes(ours).min() >= 40
        same = p.dirichlet(CIFAR10, 20, generator(seed), 0.1, "capped", minimum=40)
        assert all(np.array_equal(a, b) for a, b in zip(ours, same, strict=True))
    few = np.repeat(np.arange(2), 15)
    loose, tight = (
        [sizes(p.dirichlet(few, 4, generator(seed), 0.3, "practical", minimum)).min() for seed in range(30)]
        for minimum in (1, None)
    )
    assert min(loose) < 4 <= min(tight)  # 30 / 4 / 2 = 3.75


def test_plain_proportions_have_dirichlets_mean_and_variance():
    """Dir(a·1_m): mean 1/m, variance (1/m)(1 - 1/m) / (m·a + 1)."""
    m, alpha = 5, 1.0
    labels = np.repeat(np.arange(200), 100)
    shares = p.counts(labels, p.dirichlet(labels, m, generator(), alpha, "plain"), 200) / 100
    assert shares.mean() == pytest.approx(1 / m)
    assert shares.var() == pytest.approx((1 / m) * (1 - 1 / m) / (m * alpha + 1), rel=0.1)


def test_a_large_alpha_is_nearly_iid():
    table = p.counts(CIFAR10, p.dirichlet(CIFAR10, 8, generator(), alpha=1e6, rule="plain"), 10)
    assert (np.abs(table - 750) <= 10).all()


@pytest.mark.parametrize(("clients", "per_client"), [(8, 3), (10, 2), (7, 10), (100, 2)])
def test_pathological_gives_each_client_its_classes_and_each_class_its_holders(clients, per_client):
    table = p.counts(CIFAR10, p.pathological(CIFAR10, clients, generator(), per_client), 10)
    assert ((table > 0).sum(axis=1) == per_client).all()
    holders = (table > 0).sum(axis=0)
    assert holders.max() - holders.min() <= 1
    for column in table.T:
        assert np.ptp(column[column > 0]) <= 1


@pytest.mark.parametrize(
    ("classes", "size", "clients", "per_client", "groups"),
    [
        (10, 6000, 20, 2, 5),
        (10, 6000, 10, 2, 5),
        (100, 600, 20, 10, 10),
        (100, 600, 10, 10, 10),
        (200, 550, 10, 20, 10),
    ],
)
def test_groups_are_the_published_ones(classes, size, clients, per_client, groups):
    """FedFew spec, 3: CIFAR-10, CIFAR-100 and TinyImageNet; every group shares its classes in equal parts."""
    labels = generator(1).permutation(np.repeat(np.arange(classes), size))
    parts = p.pathological(labels, clients, generator(), per_client, "groups")
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(len(labels)))
    table, members = p.counts(labels, parts, classes), clients // groups
    own = np.arange(clients)[:, None] // members == np.arange(classes) // per_client
    assert np.array_equal(table, own * (size // members))


def visited(classes, clients, per_client):
    """The spec's words: classes in order, each to the first ceil(m / C * per_client) clients that have quota left."""
    quota, holds = np.full(clients, per_client), np.zeros((clients, classes), dtype=bool)
    for k in range(classes):
        first = np.flatnonzero(quota)[: math.ceil(Fraction(clients, classes) * per_client)]
        holds[first, k] = True
        quota[first] -= 1
    return holds if not quota.any() and holds.any(axis=0).all() else None


def test_groups_are_the_visits_wherever_these_serve_all_clients_and_classes():
    made = 0
    for classes in range(1, 9):
        labels = np.repeat(np.arange(classes), 9)
        for clients in range(1, 10):
            for per_client in range(1, classes + 1):
                expected = visited(classes, clients, per_client)
                if expected is None:
                    with pytest.raises(FedlibError, match="groups, which share"):
                        p.pathological(labels, clients, generator(), per_client, "groups")
                    continue
                parts = p.pathological(labels, clients, generator(), per_client, "groups")
                assert np.array_equal(p.counts(labels, parts, classes) > 0, expected)
                made += 1
    assert made > 80


def test_chunks_of_single_classes_are_the_largest_ones():
    """FedFew spec, trap 3: 20 "writers" of 4 to 6 letters, one label each."""
    class_sizes = generator(0).permutation(np.arange(62) * 13 + 10)
    labels = generator(1).permutation(np.repeat(np.arange(62), class_sizes))
    parts = p.partition({"name": "single_class_chunks"}, labels, 20, generator(2))
    held = [np.unique(labels[part]) for part in parts]
    assert all(len(own) == 1 for own in held)
    largest = np.argsort(-class_sizes)[:5]
    assert np.array_equal(np.unique(np.concatenate(held)), np.sort(largest))
    expected = sorted((size // 4 + (i < size % 4) for size in class_sizes for i in range(4)), reverse=True)
    assert sizes(parts).tolist() == expected[:20]
    assert len(np.unique(np.concatenate(parts))) == sum(map(len, parts))
    again = p.partition({"name": "single_class_chunks"}, labels, 20, generator(3))
    assert any(not np.array_equal(a, b) for a, b in zip(parts, again, strict=True))


def test_equal_chunks_are_taken_class_by_class():
    parts = p.single_class_chunks(CIFAR10, 5, generator(), chunks=3)
    assert [int(CIFAR10[part[0]]) for part in parts] == [0, 0, 0, 1, 1]
    assert sizes(parts).tolist() == [2000] * 5


def test_quantity_skews_sizes_and_not_labels():
    parts = p.quantity(CIFAR10, 8, generator(3), alpha=0.5)
    assert sizes(parts).min() >= 10 and sizes(parts).max() > 15000
    table = p.counts(CIFAR10, parts, 10)
    large = table[sizes(parts) > 2000]
    np.testing.assert_allclose(large / large.sum(axis=1, keepdims=True), 0.1, atol=0.03)


BAD_CALLS = [
    ({"name": "iid"}, 61, "partition 'iid': 61 clients are more than the 60 samples"),
    ({"name": "iid"}, 0, "clients: 0 is out of range; give a whole number.* at least 1"),
    ({"name": "iid"}, 2.0, "clients: 2.0 is float"),
    (
        {"name": "dirichlet", "alpha": 0.3, "minimum": 31},
        2,
        "2 clients of at least 31 samples need 62, but there are 60",
    ),
    ({"name": "dirichlet", "alpha": 1e-4, "minimum": 3}, 20, "in 1000 draws with alpha 0.0001 not every one of 20"),
    ({"name": "shards", "per_client": 31}, 2, "2 clients of 31 shards need 62 samples, but there are 60"),
    (
        {"name": "pathological", "classes_per_client": 7},
        2,
        "classes_per_client: 7 is out of range; give .* at most 6",
    ),
    ({"name": "pathological", "classes_per_client": 2}, 2, "leave some of 6 classes to nobody"),
    ({"name": "pathological", "classes_per_client": 3}, 30, "class [0-5] has 10 samples for 15 clients"),
    (
        {"name": "pathological", "classes_per_client": 2, "rule": "groups"},
        4,
        "4 clients of 2 classes are 2 groups, which share out 4 classes, but there are 6; take a multiple of 3 clients",
    ),
    (
        {"name": "pathological", "classes_per_client": 4, "rule": "groups"},
        6,
        "share out 8 classes, but there are 6; let classes_per_client divide 6, or rule: balanced",
    ),
    ({"name": "pathological", "classes_per_client": 2, "rule": "groups"}, 45, "class 0 has 10 samples for 15 clients"),
    ({"name": "single_class_chunks", "chunks": 2}, 13, "2 chunks of each class make 12 clients at most, but 13"),
    ({"name": "quantity", "alpha": 1.0}, 7, "7 clients of at least 10 samples need 70"),
]


@pytest.mark.parametrize(("spec", "clients", "message"), BAD_CALLS)
def test_a_partition_that_cannot_be_made_raises_at_once(spec, clients, message):
    with pytest.raises(FedlibError, match=message):
        p.partition(spec, np.repeat(np.arange(6), 10), clients, generator())


BAD_SPECS = [
    ({"name": "dirichlet", "alpha": 0}, "alpha: 0 is out of range; give a number.* above 0"),
    ({"name": "dirichlet", "alpha": -1}, "alpha: -1 is out of range"),
    ({"name": "dirichlet", "alpha": float("nan")}, "alpha: nan is out of range"),
    ({"name": "dirichlet", "alpha": float("inf")}, "alpha: inf is out of range"),
    ({"name": "dirichlet", "alpha": "1e-1"}, "alpha: '1e-1' is str, not a number"),
    ({"name": "dirichlet"}, "partition 'dirichlet': alpha is missing"),
    ({"name": "dirichlet", "alpha": 1, "rule": "caped"}, "rule: 'caped' is unknown; did you mean 'capped'"),
    ({"name": "dirichlet", "alpha": 1, "rule": None}, "rule: None is unknown"),
    ({"name": "dirichlet", "alpha": 1, "minimum": 0}, "minimum: 0 is out of range"),
    ({"name": "dirichlet", "alfa": 1}, "partition 'dirichlet': unknown key 'alfa'; did you mean 'alpha'"),
    ({"name": "dirichlet", "labels": 1}, "unknown key 'labels'"),
    ({"name": "shards", "per_client": 2.5}, "per_client: 2.5 is float, not a whole number"),
    ({"name": "shards", "per_client": 0}, "per_client: 0 is out of range"),
    ({"name": "pathological", "classes_per_client": 0}, "classes_per_client: 0 is out of range"),
    (
        {"name": "pathological", "classes_per_client": 2, "rule": "plain"},
        "rule: 'plain' is unknown; .*balanced, groups",
    ),
    ({"name": "dirichlet", "alpha": 1, "rule": "groups"}, "rule: 'groups' is unknown; .*capped, plain, practical"),
    ({"name": "single_class_chunks", "chunks": 0}, "chunks: 0 is out of range"),
    ({"name": "by_source", "surplus": "merged"}, "surplus: 'merged' is unknown; did you mean 'merge'"),
    ({"name": "quantity", "alpha": 0}, "partition 'quantity': alpha: 0 is out of range"),
    ({"name": "shard", "per_client": 2}, "partition: name: 'shard' is unknown; did you mean 'shards'"),
    ({"alpha": 0.3}, "has no name; write a mapping such as {name: iid}"),
    ("iid", "'iid' has no name"),
    (None, "None has no name"),
]


@pytest.mark.parametrize(("spec", "message"), BAD_SPECS)
def test_a_wrong_spec_is_refused_with_and_without_data(spec, message):
    with pytest.raises(FedlibError, match=message):
        p.check_spec(spec)
    with pytest.raises(FedlibError, match=message):
        p.partition(spec, CIFAR10, 8, generator())


@pytest.mark.parametrize("spec", [{"name": "iid"}, {"name": "dirichlet", "alpha": 0.3, "minimum": None}])
def test_a_right_spec_passes(spec):
    p.check_spec(spec)


def test_labels_must_be_one_row_of_whole_numbers():
    with pytest.raises(FedlibError, match=r"labels are float64 \(3,\), not whole numbers"):
        p.iid(np.zeros(3), 2, generator())


@settings(max_examples=100, deadline=None)
@given(st.integers(3, 400), st.integers(0, 2**32), st.sampled_from([0.0, 0.1]))
def test_split_floors_the_train_part(n, seed, validation_share):
    """FedDRM spec, 3.1: 70 % train, floored; the rest test."""
    index = np.arange(n) * 3
    train, validation, test = p.split(index, generator(seed), 0.3, validation_share)
    assert np.array_equal(np.sort(np.concatenate([train, validation, test])), index)
    assert len(train) + len(validation) == 7 * n // 10
    assert len(train) == (9 * (7 * n // 10) // 10 if validation_share else 7 * n // 10)


def test_split_counts_exactly_where_floats_do_not():
    assert [len(part) for part in p.split(np.arange(10), generator(), 0.9)] == [1, 0, 9]


@pytest.mark.parametrize(
    ("n", "test_share", "validation_share", "message"),
    [
        (1, 0.3, 0.0, "of 1 samples leave train empty; take fewer clients"),
        (0, 0.3, 0.1, "leave train and validation and test empty"),
        (2, 0.3, 0.1, "leave train empty"),
        (10, 1.0, 0.0, "test_share: 1.0 is out of range"),
        (10, 0.3, -0.1, "validation_share: -0.1 is out of range"),
    ],
)
def test_split_refuses_an_empty_part(n, test_share, validation_share, message):
    with pytest.raises(FedlibError, match=message):
        p.split(np.arange(n), generator(), test_share, validation_share)
