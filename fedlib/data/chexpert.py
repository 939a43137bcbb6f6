"""CheXpert: chest X-rays with several of 14 observations each, in the layout of its published small version.

Irvin et al.: CheXpert: A Large Chest Radiograph Dataset with Uncertainty Labels and Expert Comparison, AAAI 2019. What
FEROMA makes of it (spec, 3.4): the first 100,000 lines of train.csv, grey images of 64x64, repeated to RGB as all grey
sets are here; uncertain (-1) counts as 1, missing as 0. The name says how many distributions there are, which are the
domains:

    chexpert:2    by view: frontal, lateral
    chexpert:4    by view, and age: under 60, 60 and older
    chexpert:8    by view, age, and sex

All of them hold the same images: a line whose sex is unknown is left out of each. valid.csv is not read: all images are
train, so that `test_share` divides them. The released generator has three bugs that a fresh division does not have:
every client of one distribution gets the same first images, since its permutation is not used; the test samples are cut
from the training group; and both come from one cache file. Its numbers, the paper's, are no reference.

A patient has several images here. They are divided as if they were of different patients, by that generator as well,
so one patient may be on both sides.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd

from fedlib.checks import FedlibError
from fedlib.data import tables
from fedlib.data.folders import pictures
from fedlib.data.pool import Pool

FOLDER = "CheXpert-v1.0-small"
OBSERVATIONS = (
    *("No Finding", "Enlarged Cardiomediastinum", "Cardiomegaly", "Lung Opacity", "Lung Lesion", "Edema"),
    *("Consolidation", "Pneumonia", "Atelectasis", "Pneumothorax", "Pleural Effusion", "Pleural Other"),
    *("Fracture", "Support Devices"),
)
ROWS = 100_000
SIDE = 64
OLD = 60
PARTS = (("frontal", "lateral"), ("under 60", "60 and older"), ("female", "male"))
"""What a distribution is made of."""
SUFFIXES = ("2", "4", "8")
"""Distributions of "chexpert:<n>": those of one, two and three of PARTS."""
_VALUES = {"": 0, "0": 0, "0.0": 0, "1": 1, "1.0": 1, "-1": 1, "-1.0": 1}


def read(folder: Path, name: str) -> Pool:
    """The set in `folder` as the data set `name`: "chexpert:2", "chexpert:4" or "chexpert:8"; "chexpert" is the first.

    Images lie where Path says, seen from `folder`, from the folder around it, or, without the first of Path's own
    folders, from `folder`. Raises FedlibError naming the file, and the line, that is wrong.
    """
    table = _table(folder)
    kinds = PARTS[: 1 + SUFFIXES.index(name.partition(":")[2] or SUFFIXES[0])]
    domains = np.zeros(len(table), np.int64)
    for index in _kinds(table)[: len(kinds)]:
        domains = 2 * domains + index
    labels = np.stack([table[column].map(_VALUES.__getitem__) for column in OBSERVATIONS], axis=1).astype(np.int64)
    names = tuple(", ".join(words) for words in product(*kinds))
    images = pictures(_paths(folder, table), SIDE)
    none = np.zeros(len(table), np.int64)
    return Pool(name, images, labels, OBSERVATIONS, none.astype(np.uint8), none, domains, names)


def outline(folder: Path) -> tuple[int, int]:
    """Numbers of images and observations; no image is looked for."""
    return len(_table(folder)), len(OBSERVATIONS)


def changed(folder: Path) -> int:
    """When, in ns, the table last changed: the folders of 65,000 patients are too many to look through each time."""
    try:
        return (folder / "train.csv").stat().st_mtime_ns
    except OSError:
        return 0


def _table(folder: Path) -> pd.DataFrame:
    """The lines of train.csv that are read, all of them checked."""
    path = folder / "train.csv"
    if not path.is_file():
        raise FedlibError(f"{path} is missing; the layout is that of {FOLDER}.zip: unpack it again")
    table = tables.read(path, ROWS)
    absent = [c for c in ("Path", "Sex", "Age", "Frontal/Lateral", *OBSERVATIONS) if c not in table]
    if absent:
        raise FedlibError(f"{path}: column {', '.join(map(repr, absent))} is missing; take CheXpert's own train.csv")
    tables.refuse(path, table, "Path", table["Path"].duplicated(), "new: an earlier line has it, too")
    tables.refuse(path, table, "Sex", ~table["Sex"].isin(("Female", "Male", "Unknown", "")), "Female, Male or Unknown")
    tables.refuse(path, table, "Age", ~table["Age"].str.fullmatch(r"\d+(\.0)?"), "a whole number of years")
    view = "Frontal/Lateral"
    tables.refuse(path, table, view, ~table[view].isin(("Frontal", "Lateral")), "Frontal or Lateral")
    for column in OBSERVATIONS:
        tables.refuse(path, table, column, ~table[column].isin(_VALUES.keys()), "1, 0, -1 or empty")
    table = table[table["Sex"].isin(("Female", "Male"))]
    if table.empty:
        raise FedlibError(f"{path}: no line of a known sex is in it; take CheXpert's own train.csv")
    return table


def _kinds(table: pd.DataFrame) -> list[np.ndarray]:
    """By line, 0 or 1 each, index into PARTS: view, age and sex."""
    view, sex = (table[column].to_numpy() for column in ("Frontal/Lateral", "Sex"))
    age = table["Age"].astype(float).to_numpy()
    return [kind.astype(np.int64) for kind in (view == "Lateral", age >= OLD, sex == "Male")]


def _paths(folder: Path, table: pd.DataFrame) -> list[Path]:
    """Where each line's image lies. Raises FedlibError, naming the line, if one lies nowhere."""
    found = []
    for row, text in table["Path"].items():
        inside = Path(*Path(text).parts[1:])
        places = (folder.parent / text, folder / inside, folder / text)
        lies = next((place for place in places if place.is_file()), None)
        if lies is None:
            raise FedlibError(
                f"{folder / 'train.csv'}, line {int(str(row)) + 2}: Path {text!r} is neither in {folder.parent} nor in "
                f"{folder}; unpack {FOLDER}.zip again, or mend the line"
            )
        found.append(lies)
    return found
