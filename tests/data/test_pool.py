import numpy as np
import pytest

from fedlib.checks import FedlibError
from fedlib.data.pool import Pool


def arguments(**changes):
    labels = np.array([0, 1, 0, 1])
    given = {
        "name": "toy",
        "images": np.zeros((4, 3, 2, 2), np.uint8),
        "labels": labels,
        "classes": ("a", "b"),
        "split": np.array([0, 0, 1, 1], np.uint8),
        "partition_labels": labels,
    }
    return {**given, **changes}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"images": np.zeros((4, 3, 2, 2))}, r"images are float64 \(4, 3, 2, 2\), not uint8"),
        ({"images": np.zeros((4, 1, 2, 2), np.uint8)}, r"not uint8 \(N, 3, H, W\)"),
        ({"images": np.zeros((0, 3, 2, 2), np.uint8)}, "it holds no image"),
        ({"labels": np.array([0, 1, 0])}, r"labels is int64 \(3,\), not one whole number for each of 4"),
        ({"labels": np.array([0.0, 1, 0, 1])}, "labels is float64"),
        ({"labels": np.array([0, 2, 0, 1])}, r"labels run from 0 to 2, but there are 2 classes \(0 to 1\)"),
        ({"labels": np.array([0, -1, 0, 1])}, "labels run from -1 to 1"),
        ({"classes": ("a", "b", "c")}, "no sample of class 'c'; remove it"),
        ({"split": np.array([0, 1, 2, 0])}, "split run from 0 to 2, but 0 means train and 1 test"),
        ({"partition_labels": np.array([0, -1, 0, 0])}, "partition_labels run from -1 to 0"),
        ({"domains": np.array([0, 1, 0, 0]), "domain_names": ("x",)}, "domains run from 0 to 1"),
    ],
)
def test_a_wrong_array_is_refused_by_name(changes, message):
    with pytest.raises(FedlibError, match=message):
        Pool(**arguments(**changes))


def text_arguments(**changes):
    return arguments(**{"images": np.array([[1, 2, 0]] * 4, np.int32), "words": ("-", "a", "b"), **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"words": ()}, r"images are int32 \(4, 3\), not uint8 \(N, 3, H, W\)"),
        ({"images": np.zeros((4, 3))}, r"images are float64 \(4, 3\), not int32 \(N, L\)"),
        ({"images": np.zeros(4, np.int32)}, r"images are int32 \(4,\), not int32 \(N, L\)"),
        ({"images": np.zeros((4, 3, 2, 2), np.uint8)}, r"images are uint8 .* not int32 \(N, L\)"),
        ({"images": np.array([[1, 3, 0]] * 4, np.int32)}, r"tokens run from 0 to 3, but there are 3 words \(0 to 2\)"),
        ({"images": np.array([[1, -1, 0]] * 4, np.int32)}, "tokens run from -1 to 1"),
        ({"images": np.zeros((4, 0), np.int32)}, "it holds no word"),
    ],
)
def test_wrong_tokens_are_refused(changes, message):
    with pytest.raises(FedlibError, match=message):
        Pool(**text_arguments(**changes))


def test_the_shape_is_what_a_model_must_know():
    assert Pool(**arguments(images=np.zeros((4, 3, 2, 5), np.uint8))).shape == (3, 2, 5)
    assert Pool(**text_arguments(words=("-", "a", "b", "c"))).shape == (4, 3)


def test_a_pool_of_texts_is_cut_with_its_words_and_told_apart_by_them():
    pool = Pool(**text_arguments(images=np.arange(12, dtype=np.int32).reshape(4, 3), words=tuple("-abcdefghijk")))
    cut = pool.take(np.array([3, 0]))
    assert cut.images.tolist() == [[9, 10, 11], [0, 1, 2]] and cut.words == pool.words
    with pytest.raises(ValueError, match="read-only"):
        pool.images[0] = 1
    variants = [{}, {"words": ("-", "b", "a")}, {"images": np.array([[1, 1, 0]] * 4, np.int32)}]
    assert len({Pool(**text_arguments(**changes)).fingerprint for changes in variants}) == 3


def test_the_fingerprint_sees_pixels_labels_split_and_name():
    images = np.zeros((4, 3, 2, 2), np.uint8)
    images[0, 0, 0, 0] = 1
    variants = [
        {},
        {"name": "other"},
        {"images": images},
        {"labels": np.array([1, 0, 0, 1])},
        {"split": np.array([0, 0, 0, 1], np.uint8)},
        {"partition_labels": np.array([0, 1, 2, 3])},
        {"domains": np.array([0, 0, 0, 0]), "domain_names": ("x",)},
    ]
    assert len({Pool(**arguments(**changes)).fingerprint for changes in variants}) == len(variants)
    assert Pool(**arguments()).fingerprint == Pool(**arguments()).fingerprint


def test_take_cuts_every_array_alike():
    pool = Pool(**arguments(domains=np.array([0, 1, 0, 1]), domain_names=("x", "y"))).take(np.array([3, 0]))
    assert len(pool) == 2
    assert pool.labels.tolist() == [1, 0]
    assert pool.split.tolist() == [1, 0]
    assert pool.partition_labels.tolist() == [1, 0]
    assert pool.domains.tolist() == [1, 0]


def test_a_pool_is_read_only():
    with pytest.raises(ValueError, match="read-only"):
        Pool(**arguments()).images[0] = 1
