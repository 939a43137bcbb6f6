"""Domain-skewed data sets: PACS and its like, in folders, and sets combined of others, each member a domain.

What is combined are ten digits, as different collections show them. F²DC takes MNIST, USPS, SVHN and SYN (spec, 3.1);
copies of SYN differ from paper to paper, so `digits4_mnist_m` has MNIST-M in its place, and `digits6` adds FEMNIST's
digits and scikit-learn's. Images are resized to 32x32 by Pillow, bilinearly; grey ones are repeated to RGB. Each member
keeps its own split.

MNIST-M's digits are MNIST's on photographs: a test digit of one may be a training digit of the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from PIL import Image

from fedlib.checks import FedlibError
from fedlib.data.folders import Layout
from fedlib.data.pool import Pool
from fedlib.streams import derive

SIDE = 32
DIGITS = tuple("0123456789")
SMALL = (2000, 500)
"""Images of a member, train and test, that "<name>:small" takes at most."""

COMBINED: Mapping[str, Mapping[str, str]] = {
    "digits4_mnist_m": {"mnist": "mnist", "usps": "usps", "svhn": "svhn", "mnist_m": "mnist_m"},
    "digits4_syn": {"mnist": "mnist", "usps": "usps", "svhn": "svhn", "syn": "syn"},
    "digits6": {
        "mnist": "mnist",
        "usps": "usps",
        "svhn": "svhn",
        "mnist_m": "mnist_m",
        "femnist": "femnist_digits_12clients",
        "digits": "digits",
    },
}
"""Members of each set: the domain's name -> the data set that it is. Domains are in this order."""

_PARTS = "in folders it has train and test in the place of the domains, and in both of them the classes 0 to 9"

_PACS = Layout(
    128,
    {
        "photo": [],
        "art_painting": ["art", "art painting", "art-painting", "artpainting"],
        "cartoon": [],
        "sketch": [],
    },
    "PACS by Li, Yang, Song, Hospedales, ICCV 2017: 9,991 pictures, to be had from the authors' page and from most "
    "domain-generalisation collections; its folders are these already. data: shapes is embedded, drawn, and no "
    "replacement",
    classes=7,
    held_out=True,
)

FOLDERS: Mapping[str, Layout] = {
    "pacs": _PACS,
    "pacs_64": replace(_PACS, size=64),
    "office_caltech": Layout(
        32,
        {"caltech": ["caltech10", "caltech-10", "caltech_10", "caltech256"], "amazon": [], "webcam": [], "dslr": []},
        "Office-Caltech-10 by Gong, Shi, Sha, Grauman, CVPR 2012: 2,533 pictures of the ten classes that Office-31 and "
        "Caltech-256 share, to be had from the authors' pages or cut from those two sets",
        classes=10,
        held_out=True,
    ),
    "office_home": Layout(
        64,
        {
            "Art": [],
            "Clipart": [],
            "Product": [],
            "Real World": ["RealWorld", "Real_World", "Real-World", "Real"],
        },
        "Office-Home by Venkateswara, Eusebio, Chakraborty, Panchanathan, CVPR 2017: some 15,500 pictures, to be had "
        "from the authors' page; its folders are these already",
        classes=65,
        held_out=True,
    ),
    "mnist_m": Layout(32, source=f"MNIST-M by Ganin et al., JMLR 2016, is in most archives of Digits-Five; {_PARTS}"),
    "syn": Layout(
        32,
        source="SYN, the synthetic digits of Ganin & Lempitsky, ICML 2015, is in most archives of Digits-Five, whose "
        f"numbers of images differ; {_PARTS}. data: digits4_mnist_m does without it",
    ),
    "femnist_digits_12clients": Layout(
        28,
        source="the digits of a dozen clients of LEAF's FEMNIST, black on white; "
        f"{_PARTS}. data: digits4_mnist_m does without them",
    ),
}
"""Sets of domains in folders: those of F²DC (spec, 3.1 and 3.2), Office-Home, and the digits that COMBINED asks for."""

FIRST: Mapping[str, str] = {"office_home": "20"}
"""Sets of which "<name>:<n>" takes the first n classes alone, in folders those first in the alphabet: Office-Home's
labels 0 to 19 (FEROMA spec, 3.5)."""


def first_classes(pool: Pool, name: str, count: int) -> Pool:
    """The samples of the first `count` classes of `pool`, as the data set `name`; each keeps its split and domain.

    Raises FedlibError for fewer classes.
    """
    if len(pool.classes) < count:
        raise FedlibError(
            f"data set {name!r}: {pool.name} has {len(pool.classes)} classes; take all of it, {pool.name!r}"
        )
    kept = np.flatnonzero(pool.labels < count)
    home = None if pool.domains is None else pool.domains[kept]
    labels, split = pool.labels[kept], pool.split[kept]
    return Pool(name, pool.images[kept], labels, pool.classes[:count], split, labels, home, pool.domain_names)


class Member(NamedTuple):
    """One domain's images, uint8 (n, 3, SIDE, SIDE), with their labels and split, each (n,)."""

    images: np.ndarray
    labels: np.ndarray
    split: np.ndarray


def combine(name: str, small: bool, load: Callable[[str], Pool]) -> Pool:
    """The set `name` of COMBINED, with or without its suffix ":small".

    small: at most SMALL images of each member, always the same ones, in the member's class proportions.
    load: gives a member by its data set's name; one is held in memory at a time.

    Raises FedlibError for a member whose classes are not the ten digits, or that has no train or no test images.
    """
    members = COMBINED[name.partition(":")[0]]
    parts = [_member(name, domain, load(data), small) for domain, data in members.items()]
    images, labels, split = (np.concatenate(column) for column in zip(*parts, strict=True))
    domains = np.repeat(np.arange(len(parts)), [len(part.labels) for part in parts])
    return Pool(name, images, labels, DIGITS, split, labels, domains, tuple(members))


def _member(name: str, domain: str, pool: Pool, small: bool) -> Member:
    where = f"data set {name!r}, domain {domain}: {pool.name}"
    if pool.classes != DIGITS:
        raise FedlibError(f"{where} has the classes {', '.join(pool.classes)}; name them 0 to 9, in this order")
    chosen = []
    for value, part in enumerate(("train", "test")):
        held = np.flatnonzero(pool.split == value)
        if not len(held):
            raise FedlibError(f"{where} has no {part} images; give it both parts, or leave this set")
        if small:
            rng = np.random.RandomState(
                derive(0, "small", domain, part) % 2**32
            )  # a stream that never changes (NEP 19)
            held = held[stratified(pool.labels[held], SMALL[value], rng)]
        chosen.append(held)
    index = np.sort(np.concatenate(chosen))
    return Member(resized(pool.images[index], SIDE), pool.labels[index], pool.split[index])


def stratified(labels: np.ndarray, most: int, rng: np.random.RandomState) -> np.ndarray:
    """Positions of `most` samples, in ascending order, or of all where there are fewer; labels: whole numbers, (n,).

    A class gets its share most * n_c / n rounded down, and one more by the largest remainders: each is within one
    sample of its share.
    """
    if len(labels) <= most:
        return np.arange(len(labels))
    counts, remainders = np.divmod(most * np.bincount(labels), len(labels))
    counts[np.argsort(-remainders, kind="stable")[: most - counts.sum()]] += 1
    drawn = [rng.permutation(np.flatnonzero(labels == c))[:count] for c, count in enumerate(counts)]
    return np.sort(np.concatenate(drawn))


def resized(images: np.ndarray, side: int) -> np.ndarray:
    """uint8 (n, 3, H, W) as (n, 3, side, side), bilinearly; Pillow widens its filter where it makes images smaller."""
    if images.shape[2:] == (side, side):
        return images
    result = np.empty((len(images), 3, side, side), np.uint8)
    for target, image in zip(result, images, strict=True):
        picture = Image.fromarray(np.ascontiguousarray(image.transpose(1, 2, 0)))
        target[:] = np.asarray(picture.resize((side, side), Image.Resampling.BILINEAR)).transpose(2, 0, 1)
    return result
