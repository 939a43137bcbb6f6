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
        st.sampled_from(["capped", "plain"]),
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


def test_distances_have_their_closed_forms():
    disjoint = np.array([[5, 0], [0, 7]])
    assert p.hellinger(disjoint) == pytest.approx(1)
    assert p.jensen_shannon(disjoint) == pytest.approx(1)
    alike = np.array([[1, 2, 3], [10, 20, 30]])
    assert p.hellinger(alike) == pytest.approx(0, abs=1e-12)
    assert p.jensen_shannon(alike) == pytest.approx(0, abs=1e-7)
    half = np.array([[1, 1], [1, 0]])
    assert p.hellinger(half) == pytest.approx(np.sqrt(1 - np.sqrt(0.5)))
    assert p.jensen_shannon(half) == pytest.approx(np.sqrt(1.5 - 0.75 * np.log2(3)))
    assert p.hellinger(np.array([[3, 4]])) == 0


def test_the_mean_is_over_pairs():
    assert p.hellinger(np.array([[1, 0], [1, 0], [0, 1]])) == pytest.approx(2 / 3)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(st.integers(0, 1000), min_size=4, max_size=4).filter(any), min_size=2, max_size=5))
def test_distances_are_bounded_and_do_not_see_sizes(table):
    table = np.array(table)
    for distance in (p.hellinger, p.jensen_shannon):
        assert 0 <= distance(table) <= 1 + 1e-9
        assert distance(table) == pytest.approx(distance(table * 3), abs=1e-6)


def test_skew_falls_as_alpha_grows():
    means = [p.hellinger(p.counts(CIFAR10, p.dirichlet(CIFAR10, 8, generator(), a), 10)) for a in (0.1, 1.0, 100.0)]
    assert means[0] > means[1] > means[2]


def test_the_skew_report_has_one_row_a_client():
    labels = np.array([0, 0, 1, 1])
    report = p.skew_report(labels, [np.array([0, 1]), np.array([2, 3])], classes=2)
    assert report.index.name == "client"
    assert report["samples"].tolist() == [2, 2]
    assert report["classes"].tolist() == [1, 1]
    np.testing.assert_allclose(report["hellinger"], np.sqrt(1 - np.sqrt(0.5)))
    np.testing.assert_allclose(report["jensen_shannon"], np.sqrt(1.5 - 0.75 * np.log2(3)))


def test_the_skew_of_wrong_counts_is_refused():
    with pytest.raises(FedlibError, match="client 1 holds no sample"):
        p.hellinger(np.array([[1, 2], [0, 0]]))
    with pytest.raises(FedlibError, match="labels run from 0 to 3, but classes is 3"):
        p.counts(np.array([0, 3]), [np.array([0, 1])], 3)


def test_by_source_gives_each_client_one_domain():
    domains = np.array([2, 0, 0, 1, 2, 2])
    parts = p.partition({"name": "by_source"}, np.zeros(6, dtype=int), 3, generator(), domains)
    assert [part.tolist() for part in parts] == [[1, 2], [3], [0, 4, 5]]
    with pytest.raises(FedlibError, match="4 clients for 3 domains; give as many clients as domains"):
        p.partition({"name": "by_source"}, np.zeros(6, dtype=int), 4, generator(), domains)
    with pytest.raises(FedlibError, match="this data set has no domains"):
        p.partition({"name": "by_source"}, np.zeros(6, dtype=int), 3, generator())
