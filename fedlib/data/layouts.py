"""Image data sets that are published in a layout of their own: FEMNIST by writer, FedISIC2019, TinyImageNet, CheXpert.

What lies in plain class folders is in `data.folders`; Kvasir's entry there is here, as it came with the others (FedFew
spec, 3).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pandas as pd

from fedlib.checks import FedlibError
from fedlib.data import chexpert, folders, leaf, tables
from fedlib.data.folders import Files, Layout, pictures_in, read_files
from fedlib.data.pool import Pool

LESIONS = ("MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC")
"""ISIC 2019's diagnoses in the order of their labels: melanoma, naevus, basal cell carcinoma, actinic keratosis, benign
keratosis, dermatofibroma, vascular lesion, squamous cell carcinoma."""


@dataclass(frozen=True)
class Known:
    """A data set whose layout is its own.

    folder: its name under the data root. layout, source: what lies there and where to get it, for the error when it is
    missing. read: folder and name -> the data set. outline: folder -> numbers of images and classes, no image read.
    changed: folder -> when it last did, in ns.
    """

    folder: str
    layout: str
    source: str
    read: Callable[[Path, str], Pool]
    outline: Callable[[Path], tuple[int, int]]
    changed: Callable[[Path], int] = folders.changed


def fed_isic(folder: Path) -> Files:
    """FedISIC2019's files: one table and one folder of pictures; a domain is a centre.

    The table is a .csv with the columns image (a file's name, with or without its ending), center, target or label (0
    to 7, index into LESIONS) and, if there are official parts, fold or split (train or test; without it all is train).
    The pictures are in the folder images, or in the only folder there is. Files that the table does not list are left
    unread. Raises FedlibError naming the table and the line that is wrong.
    """
    path, table = _table(folder)
    label = next(column for column in ("target", "label") if column in table)
    part = next((column for column in ("fold", "split") if column in table), None)
    numbers, parts = [str(k) for k in range(len(LESIONS))], ("train", "test")
    tables.refuse(path, table, label, ~table[label].isin(numbers), f"a whole number from 0 to {len(LESIONS) - 1}")
    tables.refuse(path, table, "center", table["center"] == "", "the name of a centre")
    if part is not None:
        tables.refuse(path, table, part, ~table[part].isin(parts), "train or test")
    absent = [name for name, k in zip(LESIONS, numbers, strict=True) if k not in set(table[label])]
    if absent:
        raise FedlibError(f"{path}: no line is of {', '.join(absent)}; take all of the set, or a part with every label")
    pictures = _by_name(_home(folder))
    tables.refuse(path, table, "image", ~table["image"].isin(pictures.keys()), f"a picture in {_home(folder)}")
    found = table["image"].map(pictures.__getitem__)
    tables.refuse(path, table, "image", found.duplicated(), "new: an earlier line has it, too")
    centres = sorted(set(table["center"]), key=lambda name: (int(name) if name.isdecimal() else math.inf, name))
    rows = sorted(
        zip(
            table["center"].map(centres.index),
            table[part].map(parts.index) if part is not None else [0] * len(table),
            table[label].map(int),
            found,
            strict=True,
        )
    )
    domains, split, labels, paths = (list(column) for column in zip(*rows, strict=True))
    return Files(paths, labels, split, domains, LESIONS, tuple(f"centre {name}" for name in centres))


def _table(folder: Path) -> tuple[Path, pd.DataFrame]:
    """The one table in `folder` that has the columns of `fed_isic`, all of its values as text."""
    found = {}
    for path in sorted(folder.glob("[!.]*.csv")):
        table = tables.read(path)
        if {"image", "center"} <= set(table.columns) and {"target", "label"} & set(table.columns) and len(table):
            found[path] = table
    if len(found) != 1:
        names = " and ".join(path.name for path in found)
        reason = f"{names} could be; keep one of them" if found else "none is; add it"
        raise FedlibError(f"{folder}: one .csv has to be a table with columns image, center, target or label; {reason}")
    return found.popitem()


def _home(folder: Path) -> Path:
    """The folder of FedISIC's pictures."""
    inside = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith((".", "__")))
    named = [path for path in inside if path.name.lower() == "images"] or inside
    if len(named) != 1:
        there = ", ".join(path.name for path in named) or "no folder"
        raise FedlibError(f"{folder}: there is {there}; put the pictures into {folder / 'images'}")
    return named[0]


def _by_name(home: Path) -> dict[str, Path]:
    """The pictures in `home` by their names, with and without ending."""
    paths = pictures_in(home)
    stems = Counter(path.stem for path in paths)
    doubled = [stem for stem, count in stems.items() if count > 1]
    if doubled:
        raise FedlibError(f"{home}: {doubled[0]} is there with two endings; keep one of them")
    return {key: path for path in paths for key in (path.name, path.stem)}


def tiny_imagenet(folder: Path) -> Files:
    """TinyImageNet's files as they are published: train is train, the labelled val is test; test has no labels.

    Classes are the lines of wnids.txt, in alphabetical order, as the folders' order is in most code. Raises FedlibError
    naming the file, and the line, that is wrong.
    """
    classes = sorted(set(_lines(folder / "wnids.txt")))
    train = [
        (path, label, 0) for label, wnid in enumerate(classes) for path in _there(folder / "train" / wnid / "images")
    ]
    test = _validation(folder / "val", classes)
    paths, labels, split = (list(column) for column in zip(*train, *test, strict=True))
    return Files(paths, labels, split, None, tuple(classes), ())


def _validation(folder: Path, classes: Sequence[str]) -> list[tuple[Path, int, int]]:
    """The labelled pictures of val, by class and name: val_annotations.txt has "name<tab>wnid<tab>…" a line."""
    listed = folder / "val_annotations.txt"
    pictures = {path.name: path for path in _there(folder / "images")}
    labels: dict[str, int] = {}
    for number, line in enumerate(_lines(listed), start=1):
        name, _, rest = line.partition("\t")
        wnid = rest.partition("\t")[0]
        if name not in pictures or wnid not in classes or name in labels:
            raise FedlibError(f"{listed}, line {number}: {line!r} does not give a new picture of val/images its class")
        labels[name] = classes.index(wnid)
    bare = sorted(pictures.keys() - labels.keys())
    if bare:
        raise FedlibError(f"{listed}: {bare[0]} of val/images, one of {len(bare)}, has no line; get the file again")
    return [(pictures[name], label, 1) for name, label in sorted(labels.items(), key=lambda item: (item[1], item[0]))]


def _there(home: Path) -> list[Path]:
    if not home.is_dir():
        raise FedlibError(f"{home} is missing; the layout is that of TinyImageNet's archive: get it again")
    return pictures_in(home)


def _lines(path: Path) -> list[str]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise FedlibError(f"{path} cannot be read ({error}); get TinyImageNet's archive again") from error
    if not any(lines):
        raise FedlibError(f"{path} is empty; get TinyImageNet's archive again")
    return [line for line in lines if line]


def _read(scan: Callable[[Path], Files], size: int, folder: Path, name: str) -> Pool:
    return read_files(scan(folder), name, size)


def _outline(scan: Callable[[Path], Files], folder: Path) -> tuple[int, int]:
    files = scan(folder)
    return len(files.paths), len(files.classes)


LAYOUTS: Mapping[str, Known] = {
    "chexpert": Known(
        chexpert.FOLDER,
        "train.csv and train/<patient>/<study>/*.jpg",
        "CheXpert by Irvin et al., AAAI 2019, the small version: CheXpert-v1.0-small.zip as it is unpacked, to be had "
        "from Stanford's page after agreeing to its terms",
        chexpert.read,
        chexpert.outline,
        chexpert.changed,
    ),
    "femnist": Known(
        "femnist",
        "{train,test}/*.json",
        "FEMNIST by writer: what preprocess.sh of github.com/TalwalkarLab/leaf (data/femnist, -s niid -t sample) "
        "writes as data/train and data/test; data: femnist_digits_12clients is no replacement",
        leaf.read,
        leaf.outline,
    ),
    "fed_isic2019": Known(
        "fed_isic2019",
        "*.csv with columns image, center, target or label, and images/*.jpg",
        "FedISIC2019: 23,247 skin lesions of six centres, made from ISIC 2019 by FLamby's scripts for fed_isic2019, or "
        "exported from the data set flwrlabs/fed-isic2019",
        partial(_read, fed_isic, 224),
        partial(_outline, fed_isic),
    ),
    "tiny_imagenet": Known(
        "tiny-imagenet-200",
        "wnids.txt, train/<wnid>/images/*.JPEG, val/images/*.JPEG and val/val_annotations.txt",
        "TinyImageNet of Stanford's course CS231n: 110,000 labelled pictures, tiny-imagenet-200.zip as it is unpacked",
        partial(_read, tiny_imagenet, 64),
        partial(_outline, tiny_imagenet),
    ),
}
"""By the data set's name."""

FOLDERS: Mapping[str, Layout] = {
    "kvasir": Layout(
        64,
        source="Kvasir v2 by Pogorelov et al., MMSys 2017: 8,000 pictures of the gut, kvasir-dataset-v2.zip from "
        "Simula's page, its eight folders under the name kvasir",
        classes=8,
        flat=True,
    ),
}
