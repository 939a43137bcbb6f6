"""Image data sets by name: embedded, from packs (`data.packs`), torchvision's layouts, or folders (`data.folders`)."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from fedlib.checks import FedlibError, check_choice, nearest
from fedlib.data import embedded, folders, fundus, packs
from fedlib.data.cifar import SUPERCLASSES, superclass_of
from fedlib.data.folders import Layout
from fedlib.data.pool import Pool

DIGITS = tuple("0123456789")


@dataclass(frozen=True)
class Official:
    """One of torchvision's data sets: its class there, a file or folder that shows it is present, its full size."""

    dataset: str
    marker: str
    images: int
    classes: int


OFFICIAL: Mapping[str, Official] = {
    "cifar10": Official("CIFAR10", "cifar-10-batches-py", 60_000, 10),
    "cifar100": Official("CIFAR100", "cifar-100-python", 60_000, 100),
    "mnist": Official("MNIST", "MNIST/raw/train-images-idx3-ubyte", 70_000, 10),
    "fashion_mnist": Official("FashionMNIST", "FashionMNIST/raw/train-images-idx3-ubyte", 70_000, 10),
    "svhn": Official("SVHN", "train_32x32.mat", 99_289, 10),
    "usps": Official("USPS", "usps.bz2", 9_298, 10),
}

EMBEDDED: Mapping[str, Callable[[], Pool]] = {
    "digits": embedded.digits,
    "retina_stand_in": fundus.retina_stand_in,
}

FOLDERS: Mapping[str, Layout] = {
    "retina": Layout(
        96,
        {"ACRIMA": ["kaggle_arima"], "RIM": [], "REFUGE": []},
        "take FedLGD's archive retina_balanced, to which FedDRM's README links, under the name retina, or sort the "
        "three sets into such folders yourself; data: retina_stand_in is embedded, synthetic, and no replacement",
    ),
}
"""What is known of sets in folders, FedDRM's RETINA (spec, 3.4); any other is read by the defaults of Layout."""

ALIASES: Mapping[str, str] = {"cifar20": "cifar100:coarse"}


class Available(NamedTuple):
    """One line of `fedlib data list`. images and classes are None where the file cannot be read; `problem` says why."""

    name: str
    where: str
    images: int | None
    classes: int | None
    problem: str = ""


def data_root(root: str | Path | None = None) -> Path:
    """The data folder: the argument, else the variable FEDLIB_DATA, else ~/.cache/fedlib."""
    return Path(root or os.environ.get("FEDLIB_DATA") or "~/.cache/fedlib").expanduser()


def _parse(name: str) -> tuple[str, bool]:
    """The stem of a data set's name and whether its coarse labels are meant: "cifar20" -> ("cifar100", True)."""
    stem, colon, suffix = ALIASES.get(name, str(name)).partition(":")
    if colon:
        check_choice(f"data set {name!r}: suffix", suffix, ["coarse"])
    if not stem or Path(stem).name != stem:
        raise FedlibError(f"data set {name!r} is not a plain name; give a file's stem, and its folder as the data root")
    return stem, bool(colon)


def find(name: str, root: str | Path | None = None) -> Path | None:
    """Where `name` lies under the data root: its pack <root>/<stem>.npz, else torchvision's layout or its folder."""
    stem, _ = _parse(name)
    folder = data_root(root)
    pack, other = folder / f"{stem}.npz", folder / (OFFICIAL[stem].marker if stem in OFFICIAL else stem)
    if pack.exists():
        return pack
    return other if other.is_dir() or (stem in OFFICIAL and other.exists()) else None


def load(name: str, root: str | Path | None = None, download: bool | None = None) -> Pool:
    """The data set `name`: one of EMBEDDED or OFFICIAL, "cifar20", or the stem of any pack or set of folders there.

    "<name>:coarse" takes the coarse labels and leaves partitions to the fine ones; "cifar20" is "cifar100:coarse".
    root: see `data_root`. A pack goes before torchvision's layout and before folders.
    download: let torchvision fetch what is missing; None asks the variable FEDLIB_DOWNLOAD (1: yes).

    Kept in memory by name, file and time of change. Raises FedlibError for a name that is unknown or not here (with
    where it was looked for and how to get it) and for damaged data (with file and array).
    """
    stem, coarse = _parse(name)
    if stem in EMBEDDED:
        if coarse:
            raise FedlibError(f"data set {name!r}: {stem} has no coarse labels; take {stem!r}")
        return EMBEDDED[stem]()
    allowed = os.environ.get("FEDLIB_DOWNLOAD") == "1" if download is None else download
    place = find(name, root)
    if place is None and stem in OFFICIAL and allowed:
        _official_parts(stem, data_root(root), download=True)
        place = find(name, root)
    if place is None:
        raise _missing(name, stem, data_root(root))
    changed = place.stat().st_mtime_ns if place.suffix == ".npz" or stem in OFFICIAL else folders.changed(place)
    return _load_kept(name, place, data_root(root), changed)


@lru_cache(maxsize=4)
def _load_kept(name: str, place: Path, root: Path, changed: int) -> Pool:
    """`changed`, the time of the file's last change in ns, only tells a new version from the one in memory."""
    stem, coarse = _parse(name)
    if place.suffix == ".npz":
        return packs.read(place, name, coarse)
    if stem in OFFICIAL:
        return _read_official(name, stem, coarse, root)
    if coarse:
        raise FedlibError(f"data set {name!r}: {place} is a set of folders, without coarse labels; take {stem!r}")
    return folders.read(place, name, FOLDERS.get(stem, Layout()))


def _official_parts(stem: str, root: Path, download: bool) -> list[Any]:
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


def _read_official(name: str, stem: str, coarse: bool, root: Path) -> Pool:
    if coarse and stem != "cifar100":
        raise FedlibError(f"data set {name!r}: {stem} has no coarse labels; cifar100 has")
    parts = _official_parts(stem, root, download=False)
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
        raise FedlibError(f"{root / OFFICIAL[stem].marker}: {error}") from error


def _missing(name: str, stem: str, root: Path) -> FedlibError:
    """The error for a data set that is nowhere: where it was looked for, and how to get it."""
    looked = [str(root / f"{stem}.npz")]
    ways = ["put a pack there (format: fedlib.data.packs)", "name another folder by --data or FEDLIB_DATA"]
    if stem in OFFICIAL:
        looked.append(f"{root / OFFICIAL[stem].marker} (torchvision's layout)")
        ways.insert(0, "set FEDLIB_DOWNLOAD=1 to let torchvision download it")
    else:
        layout = FOLDERS.get(stem, Layout())
        looked.append(f"{root / stem} (folders)")
        ways[0] += f", or folders {root / stem}/{layout}" + (f" ({layout.source})" if layout.source else "")
    here = [pack.stem for pack in _packs(root)]
    if stem in OFFICIAL or stem in FOLDERS:
        hint = f"packs there: {', '.join(here)}" if here else "no pack is there"
    else:
        hint = nearest(name, {*OFFICIAL, *ALIASES, *EMBEDDED, *FOLDERS, *here, *_folder_sets(root)})
    return FedlibError(
        f"data set {name!r} is not here. Looked for {' and '.join(looked)}; {hint}. To get it: {', or '.join(ways)}."
    )


def _packs(root: Path) -> list[Path]:
    return sorted(root.glob("*.npz"))


def _folder_sets(root: Path) -> dict[str, folders.Files | str]:
    """The sets of folders under the root: their files, or what is wrong with one of FOLDERS.

    A folder that is not laid out as a set, and of which nothing is known, is something else and left out.
    """
    found: dict[str, folders.Files | str] = {}
    for path in sorted(root.glob("[!.]*/")):
        try:
            if path.name not in OFFICIAL and find(path.name, root) == path:
                found[path.name] = folders.scan(path, FOLDERS.get(path.name, Layout()))
        except FedlibError as error:
            if path.name in FOLDERS:
                found[path.name] = str(error)
    return found


def available(root: str | Path | None = None) -> list[Available]:
    """Every data set that can be loaded now: embedded, packs, torchvision's layouts, folders; no image is read."""
    folder = data_root(root)
    pools = {name: make() for name, make in EMBEDDED.items()}
    lines = [Available(name, "embedded", len(pool), len(pool.classes)) for name, pool in pools.items()]
    for path in _packs(folder):
        try:
            images, classes, coarse = packs.outline(path)
        except FedlibError as error:
            lines.append(Available(path.stem, str(path), None, None, str(error)))
            continue
        lines.append(Available(path.stem, str(path), images, classes))
        if coarse is not None:
            lines.append(Available(f"{path.stem}:coarse", str(path), images, coarse))
    for name, official in OFFICIAL.items():
        place = find(name, folder)
        if place is not None and place.suffix != ".npz":
            lines.append(Available(name, str(place), official.images, official.classes))
    for name, found in _folder_sets(folder).items():
        if isinstance(found, str):
            lines.append(Available(name, str(folder / name), None, None, found))
        else:
            lines.append(Available(name, str(folder / name), len(found.paths), len(found.classes)))
    return lines


def check(name: str, root: str | Path | None = None) -> pd.DataFrame:
    """Load `name` in full, with every check of `load`, and count: one row a class, columns train and test."""
    pool = load(name, root, download=False)
    columns = {
        part: np.bincount(pool.labels[pool.split == k], minlength=len(pool.classes))
        for k, part in enumerate(("train", "test"))
    }
    return pd.DataFrame(columns, index=pd.Index(pool.classes, name="class"))
