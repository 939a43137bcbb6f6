"""FEMNIST by writer, in the layout that LEAF writes: <set>/train/*.json and <set>/test/*.json.

Each file is one object: `users` (names of writers), `num_samples` (one number a writer), and `user_data`, in which each
writer has `x` (images, each 784 numbers from 0 to 1, row by row) and `y` (labels: 0 to 9 the digits, 10 to 35 the upper
and 36 to 61 the lower case). Ink is dark on a white ground, unlike MNIST's: it stays as it is. Other keys are left
unread. LEAF puts about a hundred writers into a file, some hundred megabytes: files are read one at a time.

LEAF, Caldas et al., 2018, arXiv 1812.01097. Which writers there are, and how their samples are split, is LEAF's doing
(its options --sf and -t).
"""

from __future__ import annotations

import json
import string
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedlib.checks import FedlibError
from fedlib.data.pool import Pool

CLASSES = (*string.digits, *string.ascii_uppercase, *string.ascii_lowercase)
SIDE = 28
PARTS = ("train", "test")
HEAD = 2**20
"""Characters of a file in which its writers' numbers of samples are looked for before all of it is read."""


class Writer(NamedTuple):
    """One writer's samples in one file. images: uint8, (n, SIDE, SIDE). labels: int64, (n,)."""

    name: str
    images: np.ndarray
    labels: np.ndarray


class _Shared(dict[str, float]):
    """Numbers by their spelling, so that equal ones are one object: grey levels are few, and pixels 10⁸ a file."""

    def __missing__(self, text: str) -> float:
        self[text] = float(text)
        return self[text]


def read(folder: Path, name: str) -> Pool:
    """The set in `folder` as the data set `name`: a writer is a domain, in the order of their names.

    Images are in the order of the files. Raises FedlibError naming the file, and the writer, that is damaged.
    """
    home: dict[tuple[int, str], Path] = {}
    images: list[np.ndarray] = []
    labels: list[np.ndarray] = []
    for split, path in _files(folder):
        for writer in _writers(path):
            other = home.setdefault((split, writer.name), path)
            if other is not path:
                raise FedlibError(f"{path}: writer {writer.name!r} is in {other.name}, too; keep one run of LEAF")
            images.append(writer.images)
            labels.append(writer.labels)
    names = sorted({writer for _, writer in home})
    sizes = [len(own) for own in labels]
    split_of = np.repeat(np.array([split for split, _ in home], np.uint8), sizes)
    domains = np.repeat(np.searchsorted(names, [writer for _, writer in home]), sizes)
    y = np.concatenate(labels)
    absent = [CLASSES[k] for k in np.flatnonzero(np.bincount(y, minlength=len(CLASSES)) == 0)]
    if absent:
        raise FedlibError(
            f"{folder}: none of its {len(names)} writers has a sample of {', '.join(absent)}; take a larger part of "
            "LEAF's writers (its option --sf)"
        )
    planes = np.repeat(np.concatenate(images)[:, None], 3, axis=1)
    return Pool(name, planes, y, CLASSES, split_of, y, domains.astype(np.int64), tuple(names))


def outline(folder: Path) -> tuple[int, int]:
    """Numbers of images and classes, as the files state them; as a rule no image is read."""
    return sum(sum(_header(path)["num_samples"]) for _, path in _files(folder)), len(CLASSES)


def _files(folder: Path) -> list[tuple[int, Path]]:
    """The files with their split, 0 train and 1 test, by name within each."""
    found = []
    for split, part in enumerate(PARTS):
        paths = sorted((folder / part).glob("[!.]*.json"))
        if not paths:
            raise FedlibError(f"{folder / part}: no .json is in it; the layout is LEAF's, {{train,test}}/*.json")
        found += [(split, path) for path in paths]
    return found


def _document(path: Path) -> dict[str, Any]:
    """The whole file, with its keys checked."""
    try:
        with path.open(encoding="utf-8") as file:
            document = json.load(file, parse_float=_Shared().__getitem__)
    except (OSError, ValueError, RecursionError) as error:
        raise FedlibError(f"{path} is not readable JSON ({error}); it may be cut short: write it again") from error
    header = _checked(path, document)
    if not isinstance(document.get("user_data"), dict):
        raise FedlibError(f"{path}: 'user_data' is missing; this is no file of LEAF")
    for writer in header["users"]:
        if writer not in document["user_data"]:
            raise FedlibError(f"{path}: 'user_data' lacks writer {writer!r}, whom 'users' names")
    return document


def _header(path: Path) -> dict[str, Any]:
    """`users` and `num_samples`, read off the file's beginning where they stand there, as in LEAF's own files."""
    try:
        with path.open(encoding="utf-8") as file:
            head, found, _ = file.read(HEAD).partition('"user_data"')
        document = json.loads(head.rstrip().rstrip(",") + "}") if found else {}
    except (OSError, ValueError):
        document = {}
    return _checked(path, document) if "num_samples" in document else _document(path)


def _checked(path: Path, document: Any) -> dict[str, Any]:
    """`document`, refused unless it names writers and says how many samples each has."""
    users = document.get("users") if isinstance(document, dict) else None
    sizes = document.get("num_samples") if isinstance(document, dict) else None
    if not isinstance(users, list) or not isinstance(sizes, list) or len(users) != len(sizes):
        raise FedlibError(f"{path}: 'users' and 'num_samples' are not two lists of one length; this is no file of LEAF")
    for writer, size in zip(users, sizes, strict=True):
        if not isinstance(writer, str) or type(size) is not int or size < 1:
            raise FedlibError(f"{path}: writer {writer!r} has {size!r} samples, not a whole number of at least 1")
    return document


def _writers(path: Path) -> Iterator[Writer]:
    document = _document(path)
    for writer, size in zip(document["users"], document["num_samples"], strict=True):
        yield _writer(f"{path}: writer {writer!r}", writer, size, document["user_data"].pop(writer, None))


def _writer(where: str, name: str, size: int, data: Any) -> Writer:
    """One writer's `data`, {"x": …, "y": …}, of `size` samples."""
    try:
        pixels, labels = np.array(data["x"], dtype=np.float32), np.array(data["y"])
    except (KeyError, TypeError, ValueError) as error:
        raise FedlibError(f"{where} has no x and y of numbers ({error}); write the file again") from error
    if pixels.shape != (size, SIDE * SIDE) or labels.shape != (size,):
        raise FedlibError(
            f"{where} has x of shape {pixels.shape} and y of {labels.shape}, not ({size}, {SIDE * SIDE}) and ({size},)"
        )
    if not ((pixels >= 0) & (pixels <= 1)).all():
        raise FedlibError(f"{where}: pixels run from {pixels.min()} to {pixels.max()}, out of 0 to 1")
    if labels.dtype.kind not in "iu" or labels.min() < 0 or labels.max() >= len(CLASSES):
        raise FedlibError(f"{where}: labels y are not whole numbers from 0 to {len(CLASSES) - 1}")
    return Writer(name, np.rint(255 * pixels).astype(np.uint8).reshape(-1, SIDE, SIDE), labels.astype(np.int64))
