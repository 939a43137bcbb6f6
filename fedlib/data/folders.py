"""Image data sets as folders of files: <set>/<domain>/<class>/*.jpg, a folder a domain (a clinic, a style).

Between domain and class there may be a level of official parts, Training and Testing (or train and test), as in the
retina archive of FedLGD: both are read, and `split` tells them apart. A set whose outermost folders are those parts,
<set>/train/<class>, has no domains, nor has one whose class folders lie right in it (Layout.flat). What has no
official parts is train, or divided by `tenths` (Layout.held_out).
Upper and lower case are one, and names that begin with "." or "__" are left out.

Images are read by Pillow, turned to RGB and resized to a square, bilinearly as in FedDRM's code.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from fedlib.checks import FedlibError
from fedlib.data.pool import Pool

PARTS = {"training": 0, "train": 0, "testing": 1, "test": 1}
LISTS = (".csv", ".json", ".txt")
ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".tif", ".tiff", ".webp", ".gif", ".ppm", ".pgm")


@dataclass(frozen=True)
class Layout:
    """What is known of a set beforehand.

    size: side of the square, in pixels. domains: their names in the order of the domains' indices, each with the other
    names that its folder may have; further folders are left unread. Empty: every folder is a domain, in alphabetical
    order. source: where to get it, a clause for the error when it is missing. classes: how many it has; 0: any number.
    held_out: a domain without official parts is divided by `tenths`; without this, all of it is train.
    flat: there is no level of domains.
    """

    size: int = 64
    domains: Mapping[str, Sequence[str]] = field(default_factory=dict)
    source: str = ""
    classes: int = 0
    held_out: bool = False
    flat: bool = False

    def __str__(self) -> str:
        if self.flat:
            return "<class>/*.jpg"
        names = [" or ".join([name, *others]) for name, others in self.domains.items()]
        return "<domain>/<class>/*.jpg" + (f" with the domains {', '.join(names)}" if names else "")


class Files(NamedTuple):
    """A set's files in the order of its images: by domain, part, class and name.

    labels, split: one number a file. domains: the same, or None where the set has no domains.
    """

    paths: list[Path]
    labels: list[int]
    split: list[int]
    domains: list[int] | None
    classes: tuple[str, ...]
    domain_names: tuple[str, ...]


def read(folder: Path, name: str, layout: Layout) -> Pool:
    """The set in `folder` as the data set `name`. Raises FedlibError naming the path that is damaged or misplaced."""
    return read_files(scan(folder, layout), name, layout.size)


def read_files(files: Files, name: str, size: int) -> Pool:
    """The data set `name` of these files, size x size pixels. Raises FedlibError naming the file that is damaged."""
    images, labels = pictures(files.paths, size), np.array(files.labels, np.int64)
    split = np.array(files.split, np.uint8)
    domains = None if files.domains is None else np.array(files.domains, np.int64)
    return Pool(name, images, labels, files.classes, split, labels, domains, files.domain_names)


def scan(folder: Path, layout: Layout) -> Files:
    """The files of a set, none of them opened. Raises FedlibError, naming the path, where the layout is not kept."""
    homes = _domains(folder, layout)
    parts = [(index, *part) for index, home in enumerate(homes.values()) for part in _parts(home)]
    held = [(index, split, _classes(part, layout)) for index, part, split in parts]
    names = _agreed(list(homes.values()), [(index, classes) for index, _, classes in held])
    if layout.classes not in (0, len(names)):
        where = "there are" if layout.flat else "each domain has"
        raise FedlibError(
            f"{folder}: {where} {len(names)} class folders, but this set has {layout.classes} classes; "
            "complete it, or give yours another name"
        )
    rows = [row for index, split, classes in held for row in _rows(index, split, classes, list(names), layout)]
    paths, labels, split, domains = (list(column) for column in zip(*rows, strict=True))
    if homes.keys() == {""}:
        return Files(paths, labels, split, None, tuple(names.values()), ())
    return Files(paths, labels, split, domains, tuple(names.values()), tuple(homes))


def tenths(count: int) -> list[int]:
    """The split of a domain's images in folder order: two of every ten are test (F²DC spec, 3.1).

    Image i, class by class and by name within a class, is train (0) where i mod 10 <= 7, else test (1).
    """
    return [int(i % 10 > 7) for i in range(count)]


def changed(folder: Path) -> int:
    """When, in ns, a file last came, went or was renamed, or a list (LISTS) changed.

    A picture that is overwritten in place goes unnoticed.
    """
    newest = 0
    for home, _, names in os.walk(folder):
        paths = [home, *(os.path.join(home, name) for name in names if name.lower().endswith(LISTS))]
        newest = max(newest, *(os.stat(path).st_mtime_ns for path in paths))
    return newest


def _folders(folder: Path) -> dict[str, Path]:
    """The folders in `folder` by their names in lower case, in that order."""
    try:
        inside = [path for path in folder.iterdir() if path.is_dir() and not path.name.startswith((".", "__"))]
    except OSError as error:
        raise FedlibError(f"{folder}: cannot be listed ({error.strerror}); mend its permissions") from error
    found: dict[str, Path] = {}
    for path in sorted(inside, key=lambda path: (path.name.lower(), path.name)):
        twin = found.setdefault(path.name.lower(), path)
        if twin is not path:
            raise FedlibError(f"{path} and {twin.name} differ in upper and lower case only; make them one folder")
    return found


def _domains(folder: Path, layout: Layout) -> dict[str, Path]:
    """The folder of each domain by the domain's name; the set's own folder under "" if it has no domains."""
    inside = _folders(folder)
    if layout.flat:
        return {"": folder}
    if layout.domains:
        return {name: _one_of((name, *others), inside, folder) for name, others in layout.domains.items()}
    if not inside:
        raise FedlibError(f"{folder}: no folder is in it; the layout is {layout}")
    return {"": folder} if inside.keys() <= PARTS.keys() else {path.name: path for path in inside.values()}


def _one_of(names: Sequence[str], inside: Mapping[str, Path], folder: Path) -> Path:
    found = [inside[name.lower()] for name in names if name.lower() in inside]
    if not found:
        there = ", ".join(path.name for path in inside.values()) or "nothing"
        raise FedlibError(f"{folder}: domain {' or '.join(names)} is missing; there is {there}. Add its folder")
    if len(found) > 1:
        raise FedlibError(f"{folder}: {' and '.join(path.name for path in found)} are one domain; keep one of them")
    return found[0]


def _parts(home: Path) -> list[tuple[Path, int | None]]:
    """The folders that hold a domain's class folders, each with its split; None where there are no official parts."""
    inside = _folders(home)
    if inside and inside.keys() <= PARTS.keys():
        return [(path, PARTS[key]) for key, path in inside.items()]
    return [(home, None)]


def _classes(part: Path, layout: Layout) -> dict[str, Path]:
    inside = _folders(part)
    if not inside:
        raise FedlibError(f"{part}: no class folder is in it; the layout is {layout}")
    return inside


def _agreed(homes: Sequence[Path], held: Sequence[tuple[int, Mapping[str, Path]]]) -> dict[str, str]:
    """The classes, which all domains have to share: name in lower case -> name as it stands in the first domain."""
    names: list[dict[str, str]] = [{} for _ in homes]
    for index, classes in held:
        names[index] |= {key: path.name for key, path in classes.items()}
    for home, own in zip(homes, names, strict=True):
        for key in sorted(own.keys() ^ names[0].keys()):
            has, lacks = (home, homes[0]) if key in own else (homes[0], home)
            raise FedlibError(f"{lacks}: no class {key!r}, which {has} has; all domains need the same class folders")
    return dict(sorted(names[0].items()))


def _rows(
    index: int, split: int | None, classes: Mapping[str, Path], names: Sequence[str], layout: Layout
) -> Iterator[tuple[Path, int, int, int]]:
    """Path, label, split and domain of each image of one part of domain `index`."""
    files = [(path, names.index(key)) for key, home in classes.items() for path in pictures_in(home)]
    own = tenths(len(files)) if layout.held_out and split is None else [split or 0] * len(files)
    for (path, label), part in zip(files, own, strict=True):
        yield path, label, part, index


def pictures_in(home: Path) -> list[Path]:
    """The image files of one folder, by name. Raises FedlibError if there is none."""
    names = sorted(name for name in os.listdir(home) if name.lower().endswith(ENDINGS) and not name.startswith("."))
    if not names:
        raise FedlibError(f"{home}: no image is in it ({', '.join(ENDINGS)}); fill the folder or remove it")
    return [home / name for name in names]


def pictures(paths: Sequence[Path], size: int) -> np.ndarray:
    """uint8 (N, 3, size, size). Raises FedlibError naming the file that is damaged."""
    images = np.empty((len(paths), 3, size, size), np.uint8)  # filled in place: PACS is 0.5 GB
    for image, path in zip(images, paths, strict=True):
        image[:] = _picture(path, size)
    return images


def _picture(path: Path, size: int) -> np.ndarray:
    """uint8 (3, size, size)."""
    try:
        with Image.open(path) as image:
            if image.mode.startswith(("I", "F")):
                raise ValueError(f"its pixels, of mode {image.mode}, have more than 8 bits a channel")
            square = image.convert("RGB").resize((size, size), Image.Resampling.BILINEAR)
    except Exception as error:  # Pillow's readers raise whatever their parsers do
        raise FedlibError(f"{path}: cannot be read as an image ({error}); mend or remove it") from error
    return np.asarray(square).transpose(2, 0, 1)
