"""Data sets by name: embedded, packs (`data.packs`), in torchvision's layouts (`data.official`) or their own
(`data.layouts`), in folders (`data.folders`), or combined of several of these (`data.domains`); and texts
(`data.text`)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from fedlib.checks import FedlibError, check_choice, nearest
from fedlib.data import chexpert, domains, embedded, folders, fundus, layouts, official, packs, shapes, text
from fedlib.data.domains import COMBINED, DIGITS
from fedlib.data.folders import Layout
from fedlib.data.layouts import LAYOUTS
from fedlib.data.official import OFFICIAL
from fedlib.data.pool import Pool
from fedlib.data.topics import topics

EMBEDDED: Mapping[str, Callable[[], Pool]] = {
    "digits": embedded.digits,
    "retina_stand_in": fundus.retina_stand_in,
    "shapes": shapes.shapes,
    "shapes_eight": shapes.shapes_eight,
    "topics": topics,
}

DRAWN: Mapping[str, tuple[int, int]] = {
    "shapes": (sum(shapes.DOMAINS.values()), len(shapes.CLASSES)),
    "shapes_eight": (sum(shapes.MORE_DOMAINS.values()), len(shapes.CLASSES)),
}
"""Images and classes of what takes seconds to draw: `available` need not wait."""

FOLDERS: Mapping[str, Layout] = {
    "retina": Layout(
        96,
        {"ACRIMA": ["kaggle_arima"], "RIM": [], "REFUGE": []},
        "take FedLGD's archive retina_balanced, to which FedDRM's README links, under the name retina, or sort the "
        "three sets into such folders yourself; data: retina_stand_in is embedded, synthetic, and no replacement",
    ),
    **domains.FOLDERS,
    **layouts.FOLDERS,
}
"""What is known of sets in folders: FedDRM's RETINA (spec, 3.4), sets of domains, and Kvasir. Any other is read by the
defaults of Layout."""

ALIASES: Mapping[str, str] = {
    "chexpert": "chexpert:2",
    "cifar20": "cifar100:coarse",
    "fashion-mnist": "fashion_mnist",
    "tiny-imagenet-200": "tiny_imagenet",
}

SUFFIXES: Mapping[str, Sequence[str]] = {
    **dict.fromkeys(COMBINED, ("small",)),
    **{name: (count,) for name, count in domains.FIRST.items()},
    "chexpert": chexpert.SUFFIXES,
}
"""What may stand behind the colon of "<name>:<suffix>"; "coarse" where nothing else is said."""


class Available(NamedTuple):
    """One line of `fedlib data list`. images (or texts) and classes are None where the file cannot be read; `problem`
    says why."""

    name: str
    where: str
    images: int | None
    classes: int | None
    problem: str = ""


def data_root(root: str | Path | None = None) -> Path:
    """The data folder: the argument, else the variable FEDLIB_DATA, else ~/.cache/fedlib."""
    return Path(root or os.environ.get("FEDLIB_DATA") or "~/.cache/fedlib").expanduser()


def _parse(name: str) -> tuple[str, str]:
    """The stem of a data set's name and its suffix, "" for none: "cifar20" -> ("cifar100", "coarse")."""
    stem, colon, suffix = ALIASES.get(name, str(name)).partition(":")
    if colon:
        check_choice(f"data set {name!r}: suffix", suffix, SUFFIXES.get(stem, ("coarse",)))
    if not stem or Path(stem).name != stem:
        raise FedlibError(f"data set {name!r} is not a plain name; give a file's stem, and its folder as the data root")
    return stem, suffix


def find(name: str, root: str | Path | None = None) -> Path | None:
    """Where `name` lies under the data root: its pack <root>/<stem>.npz, else its official layout or its folder.

    A set of texts lies where text.SETS says; Fashion-MNIST may also lie where Debian installs it, outside the root.
    """
    stem, _ = _parse(name)
    folder = data_root(root)
    if stem in text.SETS:
        place = folder / text.SETS[stem]
        return place if place.exists() else None
    pack = folder / f"{stem}.npz"
    if pack.exists():
        return pack
    if stem in OFFICIAL:
        return next((path for path in official.places(stem, folder) if path.exists()), None)
    other = folder / (LAYOUTS[stem].folder if stem in LAYOUTS else stem)
    return other if other.is_dir() else None


def load(name: str, root: str | Path | None = None, download: bool | None = None) -> Pool:
    """The data set `name`: of EMBEDDED, OFFICIAL, LAYOUTS, COMBINED or text.SETS, "cifar20", or the stem of any pack
    or set of folders.

    "<name>:coarse" takes the coarse labels and leaves partitions to the fine ones; "cifar20" is "cifar100:coarse".
    "<name>:small" takes at most domains.SMALL images of each member of a combined set; "office_home:20" takes the
    first 20 classes alone (domains.FIRST); "chexpert:2", ":4" and ":8" have so many domains.
    root: see `data_root`. A pack goes before torchvision's layout and before folders.
    download: let torchvision fetch what is missing; None asks the variable FEDLIB_DOWNLOAD (1: yes).

    Kept in memory by name, file and time of change. Raises FedlibError for a name that is unknown or not here (with
    where it was looked for and how to get it) and for damaged data (with file and array).
    """
    stem, suffix = _parse(name)
    folder = data_root(root)
    allowed = os.environ.get("FEDLIB_DOWNLOAD") == "1" if download is None else download
    if stem in EMBEDDED:
        if suffix:
            raise FedlibError(f"data set {name!r}: {stem} has no coarse labels; take {stem!r}")
        return EMBEDDED[stem]()
    if stem not in COMBINED:
        return _load_kept(name, folder, _place(name, folder, allowed))
    members = COMBINED[stem]
    try:
        places = tuple(None if data in EMBEDDED else _place(data, folder, allowed) for data in members.values())
    except FedlibError as error:
        raise FedlibError(f"data set {name!r} needs all of {', '.join(members)}: {error}") from error
    return _combined_kept(name, folder, places)


class Place(NamedTuple):
    """Where a data set lies, and when it last changed, in ns: that tells a new version from the one in memory."""

    path: Path
    changed: int


def _place(name: str, root: Path, download: bool) -> Place:
    """Where `name` lies, after torchvision has fetched it if it is missing and may be."""
    stem, _ = _parse(name)
    path = find(name, root)
    if path is None and stem in OFFICIAL and download:
        official.parts_of(stem, root, download=True)
        path = find(name, root)
    if path is None:
        raise _missing(name, stem, root)
    if stem in text.SETS:
        return Place(path, text.changed(path))
    if path.suffix == ".npz" or stem in OFFICIAL:
        return Place(path, path.stat().st_mtime_ns)
    return Place(path, LAYOUTS[stem].changed(path) if stem in LAYOUTS else folders.changed(path))


@lru_cache(maxsize=4)
def _load_kept(name: str, root: Path, place: Place) -> Pool:
    return _read(name, root, place.path)


@lru_cache(maxsize=2)
def _combined_kept(name: str, root: Path, places: tuple[Place | None, ...]) -> Pool:
    """places: of the members; None for those that are embedded. Members are not kept: the whole is large enough."""
    stem, suffix = _parse(name)
    lies = dict(zip(COMBINED[stem].values(), places, strict=True))

    def member(data: str) -> Pool:
        place = lies[data]
        return EMBEDDED[data]() if place is None else _read(data, root, place.path)

    return domains.combine(name, suffix == "small", member)


def _read(name: str, root: Path, path: Path) -> Pool:
    """The data set `name`, which lies at `path` under the data root."""
    stem, suffix = _parse(name)
    if stem in domains.FIRST and suffix:
        return domains.first_classes(_read(stem, root, path), name, int(suffix))
    if path.suffix == ".npz":
        return _in_order(packs.read(path, name, bool(suffix)), path, stem)
    if stem in OFFICIAL:
        return official.read(name, stem, bool(suffix), root, path)
    if suffix and stem not in SUFFIXES:
        raise FedlibError(f"data set {name!r}: {path} has no coarse labels; take {stem!r}")
    if stem in text.SETS:
        return text.read(path, name)
    if stem in LAYOUTS:
        return LAYOUTS[stem].read(path, name)
    return folders.read(path, name, FOLDERS.get(stem, Layout()))


def _in_order(pool: Pool, path: Path, stem: str) -> Pool:
    """The pool, whose domains stand in the order that the set of this name is known to have.

    Raises FedlibError for other names or another order, in which `allocation` would give clients to the wrong domains.
    """
    known = tuple(FOLDERS.get(stem, Layout()).domains)
    if known and pool.domain_names != known:
        raise FedlibError(
            f"{path}: its domains are {', '.join(pool.domain_names) or 'none'}, but those of {stem} are "
            f"{', '.join(known)}, by these names and in this order; write domain_names and domains so, or give the "
            "pack another name"
        )
    return pool


def _missing(name: str, stem: str, root: Path) -> FedlibError:
    """The error for a data set that is nowhere: where it was looked for, and how to get it."""
    if stem in text.SETS:
        return text.missing(name, stem, root)
    looked = [str(root / f"{stem}.npz")]
    ways = ["put a pack there (format: fedlib.data.packs)", "name another folder by --data or FEDLIB_DATA"]
    if stem in OFFICIAL:
        theirs, *others = official.places(stem, root)
        looked += [f"{theirs} (torchvision's layout)", *map(str, others)]
        ways.insert(0, "set FEDLIB_DOWNLOAD=1 to let torchvision download it")
        if others:
            ways.insert(0, f"install Debian's package dataset-{OFFICIAL[stem].compressed}")
    elif stem in LAYOUTS:
        own = LAYOUTS[stem]
        looked.append(f"{root / own.folder} (folder)")
        ways[0] += f", or have in {root / own.folder}: {own.layout} ({own.source})"
    else:
        layout = FOLDERS.get(stem, Layout())
        looked.append(f"{root / stem} (folders)")
        ways[0] += f", or folders {root / stem}/{layout}" + (f" ({layout.source})" if layout.source else "")
    here = [pack.stem for pack in _packs(root)]
    if stem in {*OFFICIAL, *LAYOUTS, *FOLDERS}:
        hint = f"packs there: {', '.join(here)}" if here else "no pack is there"
    else:
        known = {*OFFICIAL, *LAYOUTS, *ALIASES, *EMBEDDED, *COMBINED, *FOLDERS, *text.SETS}
        hint = nearest(name, {*known, *here, *_folder_sets(root)})
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
    others = {*OFFICIAL, *(known.folder for known in LAYOUTS.values())}
    for path in sorted(root.glob("[!.]*/")):
        try:
            if path.name not in others and find(path.name, root) == path:
                found[path.name] = folders.scan(path, FOLDERS.get(path.name, Layout()))
        except FedlibError as error:
            if path.name in FOLDERS:
                found[path.name] = str(error)
    return found


def available(root: str | Path | None = None) -> list[Available]:
    """Every data set that can be loaded now: embedded, packs, official layouts, texts, folders, and what is combined
    of them; no image is read."""
    folder = data_root(root)
    lines = [Available(name, "embedded", *_embedded_size(name)) for name in EMBEDDED]
    for path in _packs(folder):
        try:
            images, classes, coarse = packs.outline(path)
        except FedlibError as error:
            lines.append(Available(path.stem, str(path), None, None, str(error)))
            continue
        lines.append(Available(path.stem, str(path), images, classes))
        if coarse is not None:
            lines.append(Available(f"{path.stem}:coarse", str(path), images, coarse))
    for name, theirs in OFFICIAL.items():
        place = find(name, folder)
        if place is not None and place.suffix != ".npz":
            lines.append(Available(name, str(place), theirs.images, theirs.classes))
    for name, known in LAYOUTS.items():
        place = find(name, folder)
        if place is not None and place.suffix != ".npz":
            lines.append(_outlined(name, place, known.outline))
    lines += _texts(folder)
    for name, found in _folder_sets(folder).items():
        if isinstance(found, str):
            lines.append(Available(name, str(folder / name), None, None, found))
        else:
            lines.append(Available(name, str(folder / name), len(found.paths), len(found.classes)))
    return lines + _combined(lines)


def _texts(root: Path) -> list[Available]:
    """The sets of texts under the root."""
    places = {name: find(name, root) for name in text.SETS}
    return [_outlined(name, place, text.outline) for name, place in places.items() if place is not None]


def _outlined(name: str, place: Path, outline: Callable[[Path], tuple[int, int]]) -> Available:
    """The line of what has to be looked into: its numbers of samples and classes, or what is wrong with it."""
    try:
        return Available(name, str(place), *outline(place))
    except FedlibError as error:
        return Available(name, str(place), None, None, str(error))


def unit(name: str) -> str:
    """What the data set's samples are called: "images" or "texts"."""
    return "texts" if _parse(name)[0] in (*text.SETS, "topics") else "images"


def _embedded_size(name: str) -> tuple[int, int]:
    """Images and classes."""
    if name in DRAWN:
        return DRAWN[name]
    pool = EMBEDDED[name]()
    return len(pool), len(pool.classes)


def _combined(lines: list[Available]) -> list[Available]:
    """The combined sets all of whose members are among `lines`."""
    sizes = {line.name: line.images for line in lines if line.images is not None}
    return [
        Available(
            name,
            f"combined of {', '.join(members)}; cut down: {name}:small",
            sum(sizes[data] for data in members.values()),
            len(DIGITS),
        )
        for name, members in COMBINED.items()
        if sizes.keys() >= set(members.values())
    ]


def check(name: str, root: str | Path | None = None) -> pd.DataFrame:
    """Load `name` in full, with every check of `load`, and count: one row a class, columns train and test.

    Where samples have several labels, each is counted in every row of one of its labels.

    A data set with domains has the columns "<domain> train" and "<domain> test" of each behind these two.
    """
    pool = load(name, root, download=False)
    columns = {f"{place}{part}": held[k] for place, held in _held(pool) for k, part in enumerate(("train", "test"))}
    return pd.DataFrame(columns, index=pd.Index(pool.classes, name="class"))


def _held(pool: Pool) -> Iterator[tuple[str, np.ndarray]]:
    """Samples of each class that are train and test, (2, classes): of all, then of each domain, if there are any."""
    table = pool.counts()
    yield "", table.sum(axis=0)
    yield from zip((f"{name} " for name in pool.domain_names), table, strict=False)
