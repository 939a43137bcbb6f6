"""Image data sets as torchvision lays them out, and downloads them; Fashion-MNIST also as Debian installs it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedlib.checks import FedlibError
from fedlib.data import idx, packs
from fedlib.data.cifar import SUPERCLASSES, superclass_of
from fedlib.data.domains import DIGITS
from fedlib.data.pool import Pool


@dataclass(frozen=True)
class Official:
    """One of torchvision's data sets: its class there, a file or folder that shows it is present, its full size.

    compressed: the folder, under the data root or SYSTEM, that may have its four files as .gz, where Debian's package
    dataset-<compressed> puts them; empty where there is no such package.
    """

    dataset: str
    marker: str
    images: int
    classes: int
    compressed: str = ""


OFFICIAL: Mapping[str, Official] = {
    "cifar10": Official("CIFAR10", "cifar-10-batches-py", 60_000, 10),
    "cifar100": Official("CIFAR100", "cifar-100-python", 60_000, 100),
    "mnist": Official("MNIST", "MNIST/raw/train-images-idx3-ubyte", 70_000, 10),
    "fashion_mnist": Official(
        "FashionMNIST", "FashionMNIST/raw/train-images-idx3-ubyte", 70_000, 10, compressed="fashion-mnist"
    ),
    "svhn": Official("SVHN", "train_32x32.mat", 99_289, 10),
    "usps": Official("USPS", "usps.bz2", 9_298, 10),
}

SYSTEM = Path("/usr/share/datasets")
"""Where Debian's packages put data sets."""


def places(stem: str, root: Path) -> list[Path]:
    """Where the set may lie, the first that exists being taken: torchvision's layout, .gz files there and in SYSTEM."""
    known = OFFICIAL[stem]
    folders = [home / known.compressed for home in (root, SYSTEM)] if known.compressed else []
    return [root / known.marker, *(folder / idx.FIRST for folder in folders)]


def parts_of(stem: str, root: Path, download: bool) -> list[Any]:
    """torchvision's train and test parts.

    CIFAR's files are pickles by design; torchvision unpickles them only after their MD5 sums were found right.
    """
    from torchvision import datasets

    kind = getattr(datasets, OFFICIAL[stem].dataset)
    choices = [{"split": "train"}, {"split": "test"}] if stem == "svhn" else [{"train": True}, {"train": False}]
    try:
        if download:
            root.mkdir(parents=True, exist_ok=True)
        return [kind(root, download=download, **choice) for choice in choices]
    except Exception as error:  # torchvision's readers and downloads raise whatever their parsers do
        action = "downloaded to" if download else "read from"
        raise FedlibError(
            f"data set {stem!r} cannot be {action} {root} ({error}); torchvision refuses damaged files: remove "
            f"{root / OFFICIAL[stem].marker} and get it again"
        ) from error


def _unzipped(stem: str, folder: Path) -> list[Any]:
    from torchvision import datasets

    return idx.parts_of(folder, getattr(datasets, OFFICIAL[stem].dataset).classes)


def read(name: str, stem: str, coarse: bool, root: Path, path: Path) -> Pool:
    """The set `stem` of OFFICIAL, which lies at `path` of `places`, as the data set `name`; coarse: its labels."""
    if coarse and stem != "cifar100":
        raise FedlibError(f"data set {name!r}: {stem} has no coarse labels; cifar100 has")
    parts = _unzipped(stem, path.parent) if path.name == idx.FIRST else parts_of(stem, root, download=False)
    images = np.concatenate([np.asarray(part.data) for part in parts])
    targets = [np.asarray(part.labels if stem == "svhn" else part.targets) for part in parts]
    fine = labels = np.concatenate(targets).astype(np.int64)
    classes = tuple(parts[0].classes) if stem in ("cifar10", "cifar100", "fashion_mnist") else DIGITS
    if coarse:
        labels, classes = np.array(superclass_of(classes))[fine], tuple(SUPERCLASSES)
    split = np.repeat(np.arange(2, dtype=np.uint8), [len(part) for part in parts])
    planes = np.ascontiguousarray(images) if stem == "svhn" else packs.to_planes(images)
    try:
        return Pool(name, planes, labels, classes, split, fine)
    except FedlibError as error:
        raise FedlibError(f"{path}: {error}") from error
