"""Fashion-MNIST's compressed files: under the data root, where Debian installs them, and what is wrong with them."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import numpy as np
import pytest

from fedlib.checks import FedlibError
from fedlib.data import idx, official, vision

pytestmark = pytest.mark.usefixtures("data_root")

INSTALLED = official.SYSTEM  # as it is before the tests hide it
needs_package = pytest.mark.skipif(
    not (INSTALLED / "fashion-mnist").is_dir(), reason="Debian's package dataset-fashion-mnist is not installed"
)


@pytest.fixture
def system(tmp_path, monkeypatch) -> Path:
    """A folder in the place of Debian's."""
    monkeypatch.setattr(official, "SYSTEM", tmp_path / "system")
    return tmp_path / "system"


def write_idx(path: Path, array: np.ndarray) -> Path:
    """Magic number with the number of dimensions, the dimensions, the bytes; all compressed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    header = np.array([0x0800 + array.ndim, *array.shape], dtype=">i4")
    path.write_bytes(gzip.compress(header.tobytes() + array.astype(np.uint8).tobytes()))
    return path


def write_fashion(home: Path, base: int = 0) -> Path:
    """Ten train and ten test images of 28x28 in home/fashion-mnist; image k is grey level base + k, or 100 + base + k,
    but 200 + k in row 2, column 5, and of label 9 - k."""
    folder = home / "fashion-mnist"
    for part, level in (("train", base), ("t10k", 100 + base)):
        images = np.broadcast_to((np.arange(10) + level)[:, None, None], (10, 28, 28)).copy()
        images[:, 2, 5] = 200 + np.arange(10)
        write_idx(folder / f"{part}-images-idx3-ubyte.gz", images)
        write_idx(folder / f"{part}-labels-idx1-ubyte.gz", np.arange(10)[::-1])
    return folder


@pytest.mark.parametrize("name", ["fashion_mnist", "fashion-mnist"])
@pytest.mark.parametrize("where", ["root", "system"])
def test_fashion_mnist_is_read_from_the_root_and_from_debians_folder(tmp_path, system, where, name):
    folder = write_fashion(tmp_path if where == "root" else system)
    assert vision.find(name) == folder / idx.FIRST
    pool = vision.load(name)
    assert pool.name == name and pool.images.shape == (20, 3, 28, 28) and pool.images.dtype == np.uint8
    assert pool.images[:, 1, 5, 2].tolist() == [*range(10), *range(100, 110)]
    assert pool.images[:, 2, 2, 5].tolist() == [*range(200, 210)] * 2
    assert pool.labels.tolist() == [*range(9, -1, -1)] * 2 and pool.split.tolist() == [0] * 10 + [1] * 10
    assert pool.classes[0] == "T-shirt/top" and pool.classes[9] == "Ankle boot"


def test_the_root_goes_before_debians_folder_and_a_pack_before_both(tmp_path, system):
    write_fashion(system, base=20)
    assert vision.load("fashion_mnist").images[0, 0, 0, 0] == 20
    write_fashion(tmp_path, base=40)
    assert vision.load("fashion_mnist").images[0, 0, 0, 0] == 40
    (tmp_path / "fashion_mnist.npz").touch()
    assert vision.find("fashion_mnist") == tmp_path / "fashion_mnist.npz"


def test_it_is_read_anew_when_its_file_changes(tmp_path):
    path = write_fashion(tmp_path) / idx.FIRST
    first = vision.load("fashion_mnist")
    assert vision.load("fashion_mnist") is first
    write_fashion(tmp_path, base=7)
    os.utime(path, ns=(1, 1))
    assert vision.load("fashion_mnist").images[0, 0, 0, 0] == 7


def test_it_is_listed_once(tmp_path, system):
    write_fashion(tmp_path)
    path = write_fashion(system) / idx.FIRST
    listed = {line.name: line for line in vision.available("/nowhere")}
    assert listed["fashion_mnist"] == ("fashion_mnist", str(path), 70_000, 10, "")
    names = [line.name for line in vision.available(tmp_path)]
    assert names == [*vision.EMBEDDED, "fashion_mnist"]


def test_where_it_is_missing_all_places_are_named(tmp_path, system):
    with pytest.raises(FedlibError) as caught:
        vision.load("fashion_mnist")
    for part in (
        str(tmp_path / "FashionMNIST/raw/train-images-idx3-ubyte"),
        str(tmp_path / "fashion-mnist" / idx.FIRST),
        str(system / "fashion-mnist" / idx.FIRST),
        "install Debian's package dataset-fashion-mnist",
        "FEDLIB_DOWNLOAD=1",
    ):
        assert part in str(caught.value)
    with pytest.raises(FedlibError) as caught:
        vision.load("mnist")
    assert "Debian" not in str(caught.value) and str(system) not in str(caught.value)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def not_compressed(path: Path) -> None:
    path.write_bytes(b"plain text")


def short(path: Path) -> None:
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes())[:-1]))


def header_alone(path: Path) -> None:
    path.write_bytes(gzip.compress(b"\0\0\x08"))


def other_kind(path: Path) -> None:
    write_idx(path, np.zeros((5, 2)))


@pytest.mark.parametrize("name", ["train-images-idx3", "t10k-images-idx3", "train-labels-idx1", "t10k-labels-idx1"])
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (cut, "cannot be read"),
        (not_compressed, "cannot be read"),
        (short, "is no idx file"),
        (header_alone, "is no idx file"),
        (other_kind, "is no idx file of bytes in [13] dimensions"),
    ],
)
def test_a_damaged_file_is_named(tmp_path, system, name, damage, message):
    folder = write_fashion(tmp_path)
    damage(folder / f"{name}-ubyte.gz")
    with pytest.raises(FedlibError, match=f"{name}-ubyte.gz: .*{message}.*; get the file again"):
        vision.load("fashion_mnist")


@pytest.mark.parametrize("name", ["t10k-images-idx3", "train-labels-idx1", "t10k-labels-idx1"])
def test_a_file_that_is_missing_beside_the_first_is_named(tmp_path, name):
    (write_fashion(tmp_path) / f"{name}-ubyte.gz").unlink()
    with pytest.raises(FedlibError, match=f"{name}-ubyte.gz: cannot be read .*No such file"):
        vision.load("fashion_mnist")


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (np.arange(9), "train-labels-idx1-ubyte.gz: 9 labels for 10 images; get the four files again"),
        (np.arange(1, 11), "train-images-idx3-ubyte.gz: .*labels run from 0 to 10, but there are 10 classes"),
    ],
)
def test_labels_that_do_not_fit_are_refused(tmp_path, labels, message):
    write_idx(write_fashion(tmp_path) / "train-labels-idx1-ubyte.gz", labels)
    with pytest.raises(FedlibError, match=message):
        vision.load("fashion_mnist")


@needs_package
def test_debians_package_has_its_documented_counts(monkeypatch):
    monkeypatch.setattr(official, "SYSTEM", INSTALLED)
    table = vision.check("fashion_mnist")
    assert vision.load("fashion_mnist").images.shape == (70_000, 3, 28, 28)
    assert table["train"].tolist() == [6000] * 10 and table["test"].tolist() == [1000] * 10
