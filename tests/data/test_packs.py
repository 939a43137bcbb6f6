import io

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from fedlib.checks import FedlibError
from fedlib.data import packs


def arrays(**changes):
    """A tiny right pack: six RGB images of two classes; a change to None leaves the array out."""
    given = {
        "images": np.arange(6 * 4 * 5 * 3, dtype=np.uint8).reshape(6, 4, 5, 3),
        "labels": np.array([0, 1, 0, 1, 0, 1]),
        "classes": np.array(["cat", "dog"]),
        "split": np.array([0, 0, 0, 0, 1, 1], np.uint8),
        **changes,
    }
    return {key: value for key, value in given.items() if value is not None}


def jpegs(sizes, quality=95):
    """Flat grey JPEG files of `sizes` end to end, and their offsets."""
    files = []
    for k, size in enumerate(sizes):
        file = io.BytesIO()
        Image.new("RGB", size, (40 * k, 40 * k, 40 * k)).save(file, "JPEG", quality=quality)
        files.append(file.getvalue())
    offsets = np.cumsum([0, *map(len, files)])
    return {"images": None, "jpeg": np.frombuffer(b"".join(files), np.uint8), "offsets": offsets}


@pytest.fixture
def pack(tmp_path):
    def write(**changes):
        np.savez_compressed(tmp_path / "toy.npz", **arrays(**changes))
        return tmp_path / "toy.npz"

    return write


def test_a_pack_is_read_as_it_was_written(pack):
    pool = packs.read(pack(), "toy")
    assert np.array_equal(pool.images, arrays()["images"].transpose(0, 3, 1, 2))
    assert pool.images.flags.c_contiguous
    assert pool.labels.dtype == np.int64 and pool.labels.tolist() == [0, 1, 0, 1, 0, 1]
    assert pool.classes == ("cat", "dog")
    assert pool.split.tolist() == [0, 0, 0, 0, 1, 1]
    assert np.array_equal(pool.partition_labels, pool.labels)
    assert pool.domains is None


def test_grey_images_are_repeated(pack):
    grey = arrays()["images"][..., 0]
    pool = packs.read(pack(images=grey), "toy")
    assert pool.images.shape == (6, 3, 4, 5)
    assert all(np.array_equal(pool.images[:, c], grey) for c in range(3))


def test_jpegs_are_decoded(pack):
    pool = packs.read(pack(**jpegs([(5, 4)] * 6)), "toy")
    assert pool.images.shape == (6, 3, 4, 5)
    assert np.abs(pool.images[:, 0, 0, 0] - 40.0 * np.arange(6)).max() <= 2


def test_coarse_labels_leave_partitions_to_the_fine_ones(pack):
    """FedDRM spec, 3.1: CIFAR-20 is partitioned by CIFAR-100's labels."""
    coarse = {"coarse_labels": np.zeros(6, np.int64), "coarse_classes": np.array(["animal"])}
    pool = packs.read(pack(**coarse), "toy:coarse", coarse=True)
    assert pool.classes == ("animal",) and not pool.labels.any()
    assert pool.partition_labels.tolist() == [0, 1, 0, 1, 0, 1]


def test_domains_are_read(pack):
    domains = {"domains": np.array([0, 0, 0, 1, 1, 1]), "domain_names": np.array(["photo", "sketch"])}
    pool = packs.read(pack(**domains), "toy")
    assert pool.domains.tolist() == [0, 0, 0, 1, 1, 1]
    assert pool.domain_names == ("photo", "sketch")


def test_the_outline_counts_without_images(pack):
    assert packs.outline(pack(images=None)) == (6, 2, None)
    assert packs.outline(pack(coarse_labels=np.zeros(6), coarse_classes=np.array(["animal"]))) == (6, 2, 1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labels": None}, "array 'labels' is missing; the file has images, classes, split"),
        ({"images": None}, "array 'images' is missing"),
        ({"split": None}, "array 'split' is missing"),
        ({"labels": np.array([0, 1, 0, 1, 0, 2])}, "array 'labels' runs from 0 to 2, out of 0 to 1"),
        ({"labels": np.array([0, 1, 0, 1, 0, -1])}, "array 'labels' runs from -1 to 1"),
        ({"labels": np.full(6, np.nan)}, "array 'labels' is float64"),
        ({"labels": np.array([0, 1])}, r"array 'labels' is int64 \(2,\), not whole numbers of shape \(6,\)"),
        (
            {"labels": np.array([0, 1, "x", 1, 0, 1], dtype=object)},
            "array 'labels' holds pickled Python objects, which are",
        ),
        ({"images": np.array([None] * 6)}, "array 'images' holds pickled Python objects"),
        ({"images": np.zeros((6, 4, 5, 3))}, r"array 'images' is float64 \(6, 4, 5, 3\), not uint8"),
        ({"images": np.zeros((6, 3, 4, 5), np.uint8)}, r"array 'images' is uint8 \(6, 3, 4, 5\), not uint8 N×H×W×3"),
        (
            {"images": np.zeros((0, 4, 5, 3), np.uint8)},
            r"array 'labels' is int64 \(6,\), not whole numbers of shape \(0,\)",
        ),
        ({"classes": np.array(["cat", "cat"])}, "array 'classes' is <U3"),
        ({"classes": np.array([1, 2])}, "array 'classes' is int64"),
        ({"classes": np.array(["cat", "dog", "eel"])}, "no sample of class 'eel'"),
        ({"split": np.array([0, 0, 0, 0, 1, 2])}, "array 'split' runs from 0 to 2"),
        ({"domains": np.array([0] * 6)}, "array 'domain_names' is missing"),
        ({"domains": np.array([1] * 6), "domain_names": np.array(["a"])}, "array 'domains' runs from 1 to 1"),
        (jpegs([(5, 4)] * 5 + [(4, 4)]), r"image 5 is \(4, 4\), the first \(4, 5\)"),
        ({**jpegs([(5, 4)] * 6), "offsets": np.arange(7)}, "array 'offsets' does not rise from 0 to the"),
        ({**jpegs([(5, 4)] * 6), "offsets": None}, "array 'offsets' is missing"),
        ({"images": None, "jpeg": np.zeros(6, np.uint8), "offsets": np.arange(7)}, "image 0 cannot be decoded"),
        ({"images": None, "jpeg": np.zeros(6), "offsets": np.arange(7)}, "array 'jpeg' is float64"),
    ],
)
def test_a_wrong_array_is_named_with_its_file(pack, changes, message):
    with pytest.raises(FedlibError, match=message) as caught:
        packs.read(pack(**changes), "toy")
    assert "toy.npz" in str(caught.value)


def test_coarse_labels_that_are_not_there_are_named(pack):
    with pytest.raises(FedlibError, match="array 'coarse_classes' is missing"):
        packs.read(pack(), "toy:coarse", coarse=True)


class Bomb:
    """Writes a file when it is unpickled."""

    def __init__(self, target):
        self.target = target

    def __reduce__(self):
        return (open, (str(self.target), "w"))


@pytest.mark.parametrize("key", ["images", "labels", "classes", "split", "names"])
def test_nothing_is_ever_unpickled(pack, tmp_path, key):
    target = tmp_path / "unpickled"
    bombs = np.empty(6, dtype=object)
    bombs[:] = [Bomb(target)] * 6
    path = pack(**{key: bombs})
    if key == "names":
        assert len(packs.read(path, "toy")) == 6
    else:
        with pytest.raises(FedlibError, match=f"array '{key}' holds pickled Python objects"):
            packs.read(path, "toy")
    assert not target.exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not a readable .npz"),
        (b"\x80\x04K\x01.", "is not a readable .npz .*pickle"),
        (b"<html>404</html>", "is not a readable .npz"),
    ],
)
def test_a_file_of_another_kind_is_refused(tmp_path, content, message):
    (tmp_path / "toy.npz").write_bytes(content)
    with pytest.raises(FedlibError, match=message):
        packs.read(tmp_path / "toy.npz", "toy")


def test_a_single_array_is_refused(tmp_path):
    with open(tmp_path / "toy.npz", "wb") as file:
        np.save(file, np.zeros(3))
    with pytest.raises(FedlibError, match=r"is a single array, not an \.npz"):
        packs.read(tmp_path / "toy.npz", "toy")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.floats(0, 1, exclude_max=True))
def test_a_file_cut_short_anywhere_is_refused(pack, share):
    path = pack()
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(FedlibError, match=r"toy\.npz is not a readable \.npz"):
        packs.read(path, "toy")


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.floats(0, 1, exclude_max=True), st.integers(1, 255))
def test_an_altered_byte_is_refused_or_harmless(pack, share, change):
    """No other kind of error; and the pixels are right whenever the pack is accepted (zip checks its sums)."""
    path = pack()
    content = bytearray(path.read_bytes())
    content[int(share * len(content))] ^= change
    path.write_bytes(content)
    try:
        pool = packs.read(path, "toy")
    except FedlibError as error:
        assert "toy.npz" in str(error)
    else:
        assert np.array_equal(pool.images, arrays()["images"].transpose(0, 3, 1, 2))
        assert np.array_equal(pool.labels, arrays()["labels"])
