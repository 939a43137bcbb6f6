"""Pictures and separation of features: clusters with known answers, labels without meaning, what must not change."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedlib.analysis.embedding import knn_accuracy, linear_probe, separation, silhouette, tsne
from fedlib.checks import FedlibError


def clusters(each: int = 40, d: int = 8, count: int = 2, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """`count` unit gaussians, 100 apart."""
    noise = np.random.default_rng(seed).normal(size=(count * each, d))
    labels = np.repeat(np.arange(count), each)
    return noise + 100.0 * labels[:, None], labels


def rotation(d: int) -> np.ndarray:
    return np.linalg.qr(np.random.default_rng(9).normal(size=(d, d)))[0]


def test_far_clusters_separate_in_the_features_and_in_their_picture():
    z, y = clusters(count=3)
    table = separation({"features": z, "picture": tsne(z, perplexity=15)}, {"class": y}, neighbours=5)
    assert table["knn"].tolist() == [1.0, 1.0]
    assert table["chance"].tolist() == pytest.approx([1 / 3, 1 / 3])
    assert table["silhouette"][0] > 0.98 and table["silhouette"][1] > 0.7
    assert table["space"].tolist() == ["features", "picture"]


def test_labels_without_meaning_are_at_chance():
    """600 points: the accuracy's deviation is 0.02 for two labels and less for four."""
    stream = np.random.default_rng(2)
    z = stream.normal(size=(600, 5))
    labels = {"class": np.arange(600) % 4, "domain": np.arange(600) // 4 % 2}
    found = separation({"features": z}, labels).set_index("labels")
    assert found["knn"]["class"] == pytest.approx(0.25, abs=0.06)
    assert found["knn"]["domain"] == pytest.approx(0.5, abs=0.07)
    assert found["silhouette"].abs().max() < 0.02
    assert found["chance"].tolist() == [0.25, 0.5]


def test_silhouette_by_hand():
    """On a line, {0, 1} and {4, 6}: a = 1, 1, 2, 2; b = 5, 4, 3.5, 5.5."""
    z, y = np.array([[0.0], [1.0], [4.0], [6.0]]), np.array(["p", "p", "s", "s"])
    assert silhouette(z, y) == pytest.approx((4 / 5 + 3 / 4 + 1.5 / 3.5 + 3.5 / 5.5) / 4)


def test_neighbours_by_hand_leave_the_sample_itself_out():
    """On a line 0 1 3 | 4.5 5: the one at 3 is nearest to the others; counted among its own neighbours it would win."""
    z, y = np.array([[0.0], [1.0], [3.0], [4.5], [5.0]]), np.array([0, 0, 0, 1, 1])
    assert knn_accuracy(z, y, neighbours=1) == pytest.approx(4 / 5)
    assert knn_accuracy(z, y, neighbours=4) == pytest.approx(0.0 + 3 / 5)  # ties of the zeros go to the least label


def test_the_order_of_samples_a_rotation_and_a_scale_change_nothing():
    z, _ = clusters(d=4, count=1, each=80)
    y = (z[:, 0] > 0).astype(int)
    spaces = {"features": z}
    before = separation(spaces, {"class": y})
    order = np.random.default_rng(1).permutation(len(z))
    for space, labels in ((z[order], y[order]), (7 * z @ rotation(4) + 3, y), (torch.tensor(z), torch.tensor(y))):
        after = separation({"features": space}, {"class": labels})
        assert after["knn"].tolist() == before["knn"].tolist()
        assert after["silhouette"].tolist() == pytest.approx(before["silhouette"].tolist())
    assert 0.6 < before["knn"][0] < 1


def test_a_picture_is_the_same_for_the_same_seed_and_leaves_global_streams_alone():
    """With so many features scikit-learn draws random numbers for the principal components."""
    z, _ = clusters(each=15, d=600)
    np.random.seed(4)
    drawn = np.random.get_state()[2]
    first = tsne(z, seed=3)
    assert (first == tsne(z, seed=3)).all() and first.shape == (30, 2) and np.isfinite(first).all()
    assert np.random.get_state()[2] == drawn


@pytest.mark.parametrize("n", [4, 7, 20])
def test_few_samples_have_a_picture_too(n: int):
    z = np.random.default_rng(0).normal(size=(n, 3))
    picture = tsne(z, perplexity=30)
    assert picture.shape == (n, 2) and np.isfinite(picture).all() and np.ptp(picture) > 0


def test_collapsed_features_are_one_point():
    assert tsne(np.ones((9, 3))).tolist() == [[0, 0]] * 9


def linear_task(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Three classes by the largest of three features, among noise of a hundred times their size."""
    z = np.random.default_rng(seed).normal(size=(n, 5))
    y = z[:, :3].argmax(1)
    return z * np.array([0.01, 0.01, 0.01, 1, 1]), y


def test_the_probe_reads_a_linear_rule_in_any_units():
    train, test = linear_task(600, 0), linear_task(400, 1)
    accuracy = linear_probe(*train, *test)
    assert accuracy > 0.95
    units = np.array([1e4, 1e-3, 5, 2, 1])
    assert linear_probe(train[0] * units + 3, train[1], test[0] * units + 3, test[1]) == pytest.approx(accuracy)
    names = np.array(["giraffe", "dog", "house"])
    assert linear_probe(train[0], names[train[1]], test[0], names[test[1]]) == pytest.approx(accuracy, abs=0.01)
    assert linear_probe(torch.tensor(train[0]), torch.tensor(train[1]), *test) == accuracy


def test_the_probe_finds_nothing_where_there_is_nothing_and_cannot_read_what_is_not_linear():
    """The sign of a product: neighbours tell it, no half plane does (the best has 5/8)."""
    (z, y), (z_test, y_test) = linear_task(600, 0), linear_task(400, 1)
    assert linear_probe(z[:, 3:], y, z_test[:, 3:], y_test) == pytest.approx(1 / 3, abs=0.09)
    signs, signs_test = (np.sign(part[:, 0] * part[:, 1]) for part in (z, z_test))
    assert linear_probe(z, signs, z_test, signs_test) < 0.7
    assert knn_accuracy(z[:, :2], signs) > 0.9


def test_a_class_that_training_lacks_is_an_error_of_the_probe():
    z, y = clusters(count=2)
    unseen, labels = clusters(count=3)
    assert linear_probe(z, y, unseen, labels) == pytest.approx(2 / 3)


Z, Y = clusters(each=3, d=2)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: tsne(Z[:3]), "tsne: 3 samples of 2 features; give at least 4"),
        (lambda: tsne(Z[:, :1]), "6 samples of 1 features"),
        (lambda: tsne(Z, perplexity=0), "tsne: perplexity: 0 is out of range"),
        (lambda: knn_accuracy(Z, Y, neighbours=6), "knn_accuracy: neighbours: 6 is out of range; give .* at most 5"),
        (lambda: silhouette(Z, np.zeros(6)), "silhouette: 1 labels for 6 samples"),
        (lambda: silhouette(Z, np.arange(6)), "silhouette: 6 labels for 6 samples"),
        (lambda: separation({"z": Z}, {"class": Y[:4]}, 2), r"labels of shape \(4,\) for 6 samples"),
        (lambda: linear_probe(Z, Y, Z[:, :1], Y), "2 features to train and 1 to test"),
        (lambda: linear_probe(Z, 0 * Y, Z, Y), "all labels are the same"),
        (lambda: linear_probe(Z, Y, Z, Y, strength=0), "strength: 0 is out of range"),
        (lambda: linear_probe(Z, Y, Z[:0], Y[:0]), "linear_probe: test: labels"),
    ],
)
def test_bad_input_is_named(make, message: str):
    with pytest.raises(FedlibError, match=message):
        make()
