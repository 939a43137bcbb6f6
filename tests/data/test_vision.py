import bz2
import os
from pathlib import Path

import numpy as np
import pytest
import scipy.io
import torch
from torchvision import datasets

from fedlib.checks import FedlibError
from fedlib.data import vision
from fedlib.data.cifar import SUPERCLASSES, superclass_of

pytestmark = pytest.mark.usefixtures("data_root")

REAL = os.environ.get("FEDLIB_DATA")
needs_real_data = pytest.mark.skipif(not REAL, reason="FEDLIB_DATA does not name a folder of real packs")


def write_pack(path, value=0, **extra):
    np.savez_compressed(
        path,
        images=np.full((4, 6, 6, 3), value, np.uint8),
        labels=np.array([0, 1, 0, 1]),
        classes=np.array(["cat", "dog"]),
        split=np.array([0, 0, 0, 1], np.uint8),
        **extra,
    )


COARSE = {"coarse_labels": np.array([0, 0, 0, 0]), "coarse_classes": np.array(["animal"])}


def write_idx(path, array):
    """The format of MNIST's files: magic number with the number of dimensions, the dimensions, the bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    header = np.array([0x0800 + array.ndim, *array.shape], dtype=">i4")
    path.write_bytes(header.tobytes() + array.astype(np.uint8).tobytes())


def write_mnist(raw):
    """Ten train and ten test images, image k all of grey level k (train) or 100 + k (test), of digit k."""
    for part, base in (("train", 0), ("t10k", 100)):
        levels = np.arange(10) + base
        write_idx(raw / f"{part}-images-idx3-ubyte", np.broadcast_to(levels[:, None, None], (10, 28, 28)))
        write_idx(raw / f"{part}-labels-idx1-ubyte", np.arange(10))


def test_digits_needs_no_root():
    assert len(vision.load("digits", root="/nowhere")) == 1797


def test_a_pack_goes_by_its_own_stem(tmp_path):
    write_pack(tmp_path / "my-set_2.npz", value=7)
    pool = vision.load("my-set_2")
    assert pool.name == "my-set_2" and (pool.images == 7).all()


def test_the_root_is_the_argument_then_the_variable_then_the_cache(tmp_path, monkeypatch):
    assert vision.data_root("/a") == Path("/a")
    assert vision.data_root() == tmp_path
    monkeypatch.delenv("FEDLIB_DATA")
    assert vision.data_root() == Path.home() / ".cache/fedlib"


def test_coarse_labels_by_suffix_and_as_cifar20(tmp_path):
    write_pack(tmp_path / "cifar100.npz", **COARSE)
    for name in ("cifar100:coarse", "cifar20"):
        pool = vision.load(name)
        assert pool.name == name and pool.classes == ("animal",)
        assert pool.partition_labels.tolist() == [0, 1, 0, 1]
    assert vision.load("cifar100").classes == ("cat", "dog")


def test_a_pool_is_kept_until_its_file_changes(tmp_path):
    path = tmp_path / "toy.npz"
    write_pack(path, value=1)
    first = vision.load("toy")
    assert vision.load("toy") is first
    write_pack(path, value=2)
    os.utime(path, ns=(1, 1))
    assert (vision.load("toy").images == 2).all()


def test_mnist_is_read_from_torchvisions_layout(tmp_path):
    write_mnist(tmp_path / "MNIST/raw")
    pool = vision.load("mnist")
    assert pool.images.shape == (20, 3, 28, 28)
    assert pool.images[:, 2, 5, 5].tolist() == [*range(10), *range(100, 110)]
    assert pool.split.tolist() == [0] * 10 + [1] * 10
    assert pool.classes == tuple("0123456789")


def test_fashion_mnist_has_its_class_names(tmp_path):
    write_mnist(tmp_path / "FashionMNIST/raw")
    assert vision.load("fashion_mnist").classes[9] == "Ankle boot"


def test_usps_is_read_from_torchvisions_layout(tmp_path):
    """Text lines "label index:value …", labels from 1, values from -1 to 1."""
    lines = "\n".join(f"{k + 1} " + " ".join(f"{i + 1}:{1 if i == k else -1}" for i in range(256)) for k in range(10))
    for name in ("usps.bz2", "usps.t.bz2"):
        (tmp_path / name).write_bytes(bz2.compress(lines.encode()))
    pool = vision.load("usps")
    assert pool.images.shape == (20, 3, 16, 16)
    assert pool.labels.tolist() == [*range(10)] * 2
    assert pool.images[3, 0, 0].tolist() == [255 if i == 3 else 0 for i in range(16)]


def test_svhn_is_read_from_torchvisions_layout(tmp_path, monkeypatch):
    """Matlab files, H×W×3×N, where the digit 0 is labelled 10."""
    monkeypatch.setattr(datasets.SVHN, "_check_integrity", lambda self: True)
    images = np.zeros((32, 32, 3, 10), np.uint8)
    images[4, 7, 1, 2] = 9
    for part in ("train", "test"):
        scipy.io.savemat(tmp_path / f"{part}_32x32.mat", {"X": images, "y": np.arange(1, 11)[:, None]})
    pool = vision.load("svhn")
    assert pool.images.shape == (20, 3, 32, 32)
    assert pool.images[2, 1, 4, 7] == 9 and pool.images.sum() == 18
    assert pool.labels[:10].tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0]


def test_cifar20_from_torchvisions_layout_maps_fine_to_coarse(tmp_path, monkeypatch):
    (tmp_path / "cifar-100-python").mkdir()
    classes = sorted(name for names in SUPERCLASSES.values() for name in names)

    class Stand:
        """CIFAR-100's attributes after reading, without its pickles."""

        def __init__(self, root, train, download):
            self.data, self.targets, self.classes = np.zeros((100, 32, 32, 3), np.uint8), list(range(100)), classes

        def __len__(self):
            return 100

    monkeypatch.setattr(datasets, "CIFAR100", Stand)
    pool = vision.load("cifar20")
    assert np.bincount(pool.labels).tolist() == [10] * 20
    assert pool.partition_labels.tolist() == [*range(100)] * 2
    assert pool.classes[pool.labels[classes.index("whale")]] == "aquatic_mammals"
    assert pool.classes[pool.labels[classes.index("tractor")]] == "vehicles_2"


def test_a_missing_set_says_where_it_looked_and_how_to_get_it(tmp_path):
    write_pack(tmp_path / "cifar10_small.npz")
    with pytest.raises(FedlibError) as caught:
        vision.load("cifar10")
    message = str(caught.value)
    for part in (
        "data set 'cifar10' is not here",
        str(tmp_path / "cifar10.npz"),
        str(tmp_path / "cifar-10-batches-py"),
        "packs there: cifar10_small",
        "FEDLIB_DOWNLOAD=1",
        "--data or FEDLIB_DATA",
    ):
        assert part in message


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cifra10", "'cifra10' is not here.*did you mean 'cifar10'"),
        ("minst", "did you mean 'mnist'"),
        ("my_stt", "did you mean 'my_set'"),
        ("cifar100:coarze", "suffix: 'coarze' is unknown; did you mean 'coarse'"),
        ("digits:coarse", "digits has no coarse labels"),
        ("mnist:small", "suffix: 'small' is unknown; valid: coarse"),
        ("digits6:coarse", "suffix: 'coarse' is unknown; valid: small"),
        ("digit6", "did you mean 'digits6'"),
        ("../my_set", "is not a plain name"),
        ("/etc/passwd", "is not a plain name"),
        ("", "is not a plain name"),
    ],
)
def test_a_wrong_name_is_refused(tmp_path, name, message):
    write_pack(tmp_path / "my_set.npz")
    with pytest.raises(FedlibError, match=message):
        vision.load(name)


def test_only_cifar100_has_coarse_labels_in_torchvisions_layout(tmp_path):
    write_mnist(tmp_path / "MNIST/raw")
    with pytest.raises(FedlibError, match="mnist has no coarse labels"):
        vision.load("mnist:coarse")


def test_a_damaged_file_of_torchvisions_layout_is_named(tmp_path):
    write_mnist(tmp_path / "MNIST/raw")
    path = tmp_path / "MNIST/raw/train-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(FedlibError, match=r"'mnist' cannot be read from .*remove .*train-images-idx3-ubyte"):
        vision.load("mnist")


def test_a_forged_cifar_pickle_is_refused_before_it_is_opened(tmp_path, monkeypatch):
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    for name in ("data_batch_1", "test_batch", "batches.meta"):
        (folder / name).write_bytes(b"cos\nsystem\n(S'exit 1'\ntR.")
    monkeypatch.setattr("pickle.load", lambda *_, **__: pytest.fail("unpickled"))
    with pytest.raises(FedlibError, match=r"'cifar10' cannot be read from .*not found or corrupted"):
        vision.load("cifar10")


def test_a_download_is_made_only_when_allowed(tmp_path, monkeypatch):
    calls = []

    def fetch(root, download, **choice):
        calls.append(download)
        if not download:
            raise AssertionError("read before it was fetched")
        raise OSError("no route to host")

    monkeypatch.setattr(datasets, "MNIST", fetch)
    with pytest.raises(FedlibError, match="is not here"):
        vision.load("mnist")
    assert calls == []
    with pytest.raises(FedlibError, match=r"'mnist' cannot be downloaded to .* \(no route to host\)"):
        vision.load("mnist", download=True)
    monkeypatch.setenv("FEDLIB_DOWNLOAD", "1")
    with pytest.raises(FedlibError, match="cannot be downloaded"):
        vision.load("mnist")
    with pytest.raises(FedlibError, match="is not here"):
        vision.load("mnist", download=False)
    assert calls == [True, True]


def test_a_pack_of_a_known_set_has_its_domains_in_the_known_order(tmp_path):
    """An allocation counts on the order: [2, 3, 2, 3] of PACS gives photo two clients, and art_painting three."""
    known = ["photo", "art_painting", "cartoon", "sketch"]
    several = {"domains": np.array([0, 1, 2, 3])}
    write_pack(tmp_path / "pacs_64.npz", domain_names=np.array(known), **several)
    assert vision.load("pacs_64", tmp_path).domain_names == tuple(known)
    write_pack(tmp_path / "pacs_64.npz", 1, domain_names=np.array(sorted(known)), **several)
    with pytest.raises(FedlibError, match=r"pacs_64\.npz: its domains are art_painting, .*by these names and"):
        vision.load("pacs_64", tmp_path)
    write_pack(tmp_path / "pacs_64.npz", 2)
    with pytest.raises(FedlibError, match="its domains are none, but those of pacs_64 are photo, art_painting"):
        vision.load("pacs_64", tmp_path)
    write_pack(tmp_path / "mine.npz", domain_names=np.array(sorted(known)), **several)
    assert vision.load("mine", tmp_path).domain_names == tuple(sorted(known))


def test_find_prefers_a_pack(tmp_path):
    assert vision.find("mnist") is None
    write_mnist(tmp_path / "MNIST/raw")
    assert vision.find("mnist") == tmp_path / "MNIST/raw/train-images-idx3-ubyte"
    write_pack(tmp_path / "mnist.npz")
    assert vision.find("mnist") == tmp_path / "mnist.npz"


def test_available_lists_everything_and_survives_damage(tmp_path):
    write_pack(tmp_path / "fine.npz", **COARSE)
    (tmp_path / "broken.npz").write_bytes(b"PK")
    write_mnist(tmp_path / "MNIST/raw")
    lines = {line.name: line for line in vision.available()}
    assert list(lines) == [*vision.EMBEDDED, "broken", "fine", "fine:coarse", "mnist"]
    assert lines["digits"][1:4] == ("embedded", 1797, 10)
    assert lines["fine"][2:] == (4, 2, "") and lines["fine:coarse"][2:4] == (4, 1)
    assert lines["broken"].images is None and "not a readable .npz" in lines["broken"].problem
    assert lines["mnist"][2:4] == (70000, 10)


def test_what_is_drawn_has_the_size_that_is_listed():
    for name, size in vision.DRAWN.items():
        pool = vision.load(name)
        assert (len(pool), len(pool.classes)) == size


def test_listing_draws_no_shape(monkeypatch):
    def drawn():
        pytest.fail("drawn")

    monkeypatch.setattr(vision, "EMBEDDED", {**vision.EMBEDDED, "shapes": drawn, "shapes_eight": drawn})
    lines = {line.name: line for line in vision.available()}
    assert lines["shapes"][1:4] == ("embedded", *vision.DRAWN["shapes"])


def test_an_absent_root_has_only_what_is_embedded():
    assert [line.name for line in vision.available("/nowhere")] == list(vision.EMBEDDED)


def test_check_counts_each_class_in_each_split(tmp_path):
    write_pack(tmp_path / "toy.npz")
    table = vision.check("toy")
    assert table.index.tolist() == ["cat", "dog"]
    assert table["train"].tolist() == [2, 1] and table["test"].tolist() == [0, 1]


def test_check_counts_each_domain_too(tmp_path):
    """Images 0 to 3: cat, dog, cat, dog; the last is test; the domains are sea, sea, land, land."""
    write_pack(tmp_path / "toy.npz", domains=np.array([1, 1, 0, 0]), domain_names=np.array(["land", "sea"]))
    assert vision.check("toy").to_dict("list") == {
        "train": [2, 1],
        "test": [0, 1],
        "land train": [1, 0],
        "land test": [0, 1],
        "sea train": [1, 1],
        "sea test": [0, 0],
    }


def test_the_superclasses_partition_cifar100():
    assert len(SUPERCLASSES) == 20
    assert len({fine for members in SUPERCLASSES.values() for fine in members}) == 100
    assert superclass_of(["tulip", "beaver", "tank"]) == [2, 0, 19]


@needs_real_data
@pytest.mark.parametrize(
    ("name", "shape", "train", "test"),
    [
        ("cifar10_12k_3k", (15000, 3, 32, 32), [1200] * 10, [300] * 10),
        ("cifar100_10k_2k", (12000, 3, 32, 32), [100] * 100, [20] * 100),
        ("mnist", (70000, 3, 28, 28), 60000, 10000),
        ("usps", (9298, 3, 16, 16), 7291, 2007),
        ("svhn", (5950, 3, 32, 32), 4462, 1488),
        ("mnist_m", (5950, 3, 28, 28), 4462, 1488),
        ("retina_64", (705, 3, 64, 64), [247, 317], [62, 79]),
    ],
)
def test_real_packs_have_their_documented_counts(name, shape, train, test):
    table = vision.check(name, REAL)
    assert vision.load(name, REAL).images.shape == shape
    for column, expected in (("train", train), ("test", test)):
        counted = table[column].tolist() if isinstance(expected, list) else table[column].sum()
        assert counted == expected


@needs_real_data
def test_the_pack_of_pacs_has_its_documented_counts_by_domain():
    table = vision.check("pacs_64", REAL).sum()
    assert table.filter(like=" train").to_dict() == {
        "photo train": 1337,
        "art_painting train": 1638,
        "cartoon train": 1875,
        "sketch train": 3143,
    }
    assert table.filter(like=" test").tolist() == [333, 410, 469, 786]
    assert table["train"] == 7993 and table["test"] == 1998


@needs_real_data
def test_the_superclasses_are_those_of_the_real_labels():
    pool = vision.load("cifar100_10k_2k:coarse", REAL)
    fine = np.load(Path(REAL) / "cifar100_10k_2k.npz")["classes"]
    assert pool.classes == tuple(SUPERCLASSES)
    assert np.array_equal(np.array(superclass_of(fine))[pool.partition_labels], pool.labels)
    assert np.bincount(pool.labels[pool.split == 0]).tolist() == [500] * 20


@needs_real_data
@pytest.mark.slow
def test_the_real_jpegs_decode():
    table = vision.check("cifar10_full_jpeg", REAL)
    assert table["train"].tolist() == [5000] * 10 and table["test"].tolist() == [1000] * 10


@needs_real_data
def test_torchvision_refuses_the_real_cut_down_cifar():
    """Twenty real images a batch: the layout is right, the MD5 sums are not."""
    with pytest.raises(FedlibError, match="'cifar10' cannot be read"):
        vision.load("cifar10", Path(REAL) / "raw-samples")


def test_images_become_tensors_after_indexing():
    """Pools are read-only; an indexed copy is not, so torch takes it without a warning."""
    assert torch.from_numpy(vision.load("digits").images[np.arange(3)]).shape == (3, 3, 16, 16)
