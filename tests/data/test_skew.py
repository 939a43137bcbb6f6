"""Skew: closed forms of the distances, the fingerprints of FedFew's partitions, and the groups of clients."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlib.checks import FedlibError
from fedlib.data import partition, skew
from fedlib.data.federation import Client, Federation, Samples, make_federation
from fedlib.data.pool import Pool

CIFAR10 = np.repeat(np.arange(10), 6000)
CIFAR100 = np.repeat(np.arange(100), 600)


def test_distances_have_their_closed_forms():
    disjoint = np.array([[5, 0], [0, 7]])
    assert skew.hellinger(disjoint) == pytest.approx(1)
    assert skew.jensen_shannon(disjoint) == pytest.approx(1)
    alike = np.array([[1, 2, 3], [10, 20, 30]])
    assert skew.hellinger(alike) == pytest.approx(0, abs=1e-12)
    assert skew.jensen_shannon(alike) == pytest.approx(0, abs=1e-7)
    half = np.array([[1, 1], [1, 0]])
    assert skew.hellinger(half) == pytest.approx(np.sqrt(1 - np.sqrt(0.5)))
    assert skew.jensen_shannon(half) == pytest.approx(np.sqrt(1.5 - 0.75 * np.log2(3)))
    assert skew.hellinger(np.array([[3, 4]])) == 0


def test_the_mean_is_over_pairs():
    assert skew.hellinger(np.array([[1, 0], [1, 0], [0, 1]])) == pytest.approx(2 / 3)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(st.integers(0, 1000), min_size=4, max_size=4).filter(any), min_size=2, max_size=5))
def test_distances_are_bounded_and_do_not_see_sizes(table):
    table = np.array(table)
    for distance in (skew.hellinger, skew.jensen_shannon):
        assert 0 <= distance(table) <= 1 + 1e-9
        assert distance(table) == pytest.approx(distance(table * 3), abs=1e-6)


def test_skew_falls_as_alpha_grows():
    means = [
        skew.hellinger(skew.counts(CIFAR10, partition.dirichlet(CIFAR10, 8, np.random.default_rng(0), a), 10))
        for a in (0.1, 1.0, 100.0)
    ]
    assert means[0] > means[1] > means[2]


def test_the_skew_report_has_one_row_a_client():
    labels = np.array([0, 0, 1, 1])
    report = skew.skew_report(labels, [np.array([0, 1]), np.array([2, 3])], classes=2)
    assert report.index.name == "client"
    assert report["samples"].tolist() == [2, 2]
    assert report["classes"].tolist() == [1, 1]
    np.testing.assert_allclose(report["hellinger"], np.sqrt(1 - np.sqrt(0.5)))
    np.testing.assert_allclose(report["jensen_shannon"], np.sqrt(1.5 - 0.75 * np.log2(3)))


def test_the_skew_of_wrong_counts_is_refused():
    with pytest.raises(FedlibError, match="client 1 holds no sample"):
        skew.hellinger(np.array([[1, 2], [0, 0]]))
    with pytest.raises(FedlibError, match="labels run from 0 to 3, but classes is 3"):
        skew.counts(np.array([0, 3]), [np.array([0, 1])], 3)


def test_fingerprints_have_their_closed_forms():
    table = np.array([[6, 3, 1], [0, 30, 0]])
    assert skew.majority_accuracy(table) == pytest.approx(36 / 40)
    entropy = -(0.6 * np.log(0.6) + 0.3 * np.log(0.3) + 0.1 * np.log(0.1))
    assert skew.effective_classes(table) == pytest.approx((np.exp(entropy) + 1) / 2)
    even = np.full((3, 8), 5)
    assert skew.majority_accuracy(even) == pytest.approx(1 / 8)
    assert skew.effective_classes(even) == pytest.approx(8)
    for measure in (skew.majority_accuracy, skew.effective_classes):
        with pytest.raises(FedlibError, match="client 1 holds no sample"):
            measure(np.array([[1, 2], [0, 0]]))


SEEDS = 40


def drawn(labels, clients, alpha):
    """The fingerprints, (SEEDS, 2), of as many practical partitions."""
    classes = int(labels.max()) + 1
    tables = (
        skew.counts(labels, partition.dirichlet(labels, clients, np.random.default_rng(s), alpha, "practical"), classes)
        for s in range(SEEDS)
    )
    return np.array([(skew.majority_accuracy(table), skew.effective_classes(table)) for table in tables])


@pytest.mark.parametrize(
    ("labels", "clients", "alpha", "accuracy", "effective"),
    [
        (CIFAR10, 20, 0.1, 0.693, 2.34),
        (CIFAR10, 20, 0.5, 0.406, 4.97),
        (CIFAR10, 10, 0.1, 0.635, None),
        (CIFAR10, 10, 0.5, 0.393, None),
        (CIFAR100, 20, 0.1, 0.155, 17.6),
        (CIFAR100, 20, 0.5, 0.075, 47.2),
    ],
)
def test_practical_partitions_have_the_published_fingerprints(labels, clients, alpha, accuracy, effective):
    """FedFew spec, 3. Each published number is one draw, known to ±.03 in accuracy.

    So the mean over seeds is within .03 of it, and it is within two standard deviations of a single draw of ours.
    """
    ours = drawn(labels, clients, alpha)
    mean, deviation = ours.mean(axis=0), ours.std(axis=0, ddof=1)
    assert abs(mean[0] - accuracy) < 0.03
    assert abs(mean[0] - accuracy) < 2 * deviation[0]
    if effective is not None:
        assert abs(mean[1] - effective) < 2 * deviation[1]


def client(index, train, validation=(), test=()):
    def samples(labels):
        return Samples(torch.zeros(len(labels), 3, 1, 1, dtype=torch.uint8), torch.tensor(labels, dtype=torch.int64))

    return Client(index, samples(train), samples(validation), samples(test))


def test_clients_with_the_same_classes_are_one_group():
    """In whatever numbers and part, and numbered as they first come."""
    members = (
        client(0, [2, 1]),
        client(1, [0]),
        client(2, [1, 1], [1], [2]),
        client(3, [0, 0], test=[0]),
        client(4, [1]),
    )
    assert skew.class_groups(Federation("toy", members, ("a", "b", "c"), (3, 1, 1))) == [0, 1, 0, 1, 2]


def test_pathological_groups_are_found_again():
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(6), 20))
    pool = Pool("toy", np.zeros((120, 3, 2, 2), np.uint8), labels, tuple("abcdef"), np.zeros(120, np.uint8), labels)
    spec = {"name": "pathological", "classes_per_client": 2, "rule": "groups"}
    federation = make_federation(pool, 6, spec, None, seed=0, test_share=0.25)
    assert skew.class_groups(federation) == [0, 0, 1, 1, 2, 2]
