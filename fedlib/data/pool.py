"""Pool: the images, or texts, of one data set before they are divided among clients."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from fedlib.checks import FedlibError


@dataclass(frozen=True, eq=False)
class Pool:
    """Samples and labels of one data set, train and test together. Its arrays are made read-only: pools are shared.

    images: uint8, (N, C, H, W) with C = 3 (grey sets are repeated to RGB). Of a set of texts: int32, (N, L), each text
        a row of token numbers, index into `words`.
    labels: int64, (N,), index into `classes`; or (N, U) of 0 and 1 where a sample may have several of the U classes.
    split: uint8, (N,), 0 = official train, 1 = official test.
    partition_labels: int64, (N,), what label partitions go by; differs from `labels` for CIFAR-20, which is
        partitioned by its 100 fine labels (FedDRM spec, 3.1). All 0 where samples have several labels.
    domains: int64, (N,) index into `domain_names`, or None.
    words: the vocabulary of a set of texts, of which word 0 is the padding; empty for images.

    Raises FedlibError for a wrong type or shape, a token, label, split or domain out of range, and a class without a
    sample. Of several labels, one may be without.
    """

    name: str
    images: np.ndarray
    labels: np.ndarray
    classes: tuple[str, ...]
    split: np.ndarray
    partition_labels: np.ndarray
    domains: np.ndarray | None = None
    domain_names: tuple[str, ...] = ()
    words: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        where = f"data set {self.name!r}"
        self._check_samples(where)
        self._check_labels(where)
        self._check_index("split", 2, "0 means train and 1 test")
        self._check_index("partition_labels", None, "labels start at 0")
        if self.domains is not None:
            self._check_index("domains", len(self.domain_names), f"there are {len(self.domain_names)} domain names")
        for array in (self.images, self.labels, self.split, self.partition_labels, self.domains):
            if array is not None:
                array.setflags(write=False)

    def _check_samples(self, where: str) -> None:
        """Refuse `images` unless they are pixels, or token numbers of `words`."""
        given, shape = f"{where}: images are {self.images.dtype} {self.images.shape}", self.images.shape
        if self.words and (self.images.dtype != np.int32 or len(shape) != 2):
            raise FedlibError(f"{given}, not int32 (N, L), which the token numbers of a vocabulary (`words`) are")
        if not self.words and (self.images.dtype != np.uint8 or len(shape) != 4 or shape[1] != 3):
            raise FedlibError(f"{given}, not uint8 (N, 3, H, W)")
        if not self.images.size:
            raise FedlibError(f"{where}: it holds no {'word' if self.words else 'image'}")
        if self.words and (self.images.min() < 0 or self.images.max() >= len(self.words)):
            raise FedlibError(
                f"{where}: tokens run from {self.images.min()} to {self.images.max()}, but there are {len(self.words)} "
                f"words (0 to {len(self.words) - 1})"
            )

    def _check_labels(self, where: str) -> None:
        """Refuse `labels` unless they are one class a sample, and every class is there; or 0 and 1 for each class."""
        count = len(self.classes)
        if self.several_labels:
            kind, shape = self.labels.dtype, self.labels.shape
            if kind != np.int64 or shape != (len(self.images), count) or not np.isin(self.labels, (0, 1)).all():
                raise FedlibError(
                    f"{where}: labels are {kind} {shape}, not int64 ({len(self.images)}, {count}) of 0 and 1, one for "
                    "each sample and class"
                )
            return
        self._check_index("labels", count, f"there are {count} classes")
        held = np.bincount(self.labels, minlength=count)
        empty = [repr(self.classes[k]) for k in np.flatnonzero(held == 0)]
        if empty:
            raise FedlibError(f"{where}: no sample of class {', '.join(empty)}; remove it from `classes`")

    def _check_index(self, field: str, size: int | None, meaning: str) -> None:
        """Refuse `field` unless it is one whole number a sample, from 0 to below `size`."""
        array = getattr(self, field)
        where = f"data set {self.name!r}: {field}"
        if array.dtype.kind not in "iu" or array.shape != (len(self.images),):
            raise FedlibError(
                f"{where} is {array.dtype} {array.shape}, not one whole number for each of {len(self.images)} samples"
            )
        if array.min() < 0 or (size is not None and array.max() >= size):
            bounds = "" if size is None else f" (0 to {size - 1})"
            raise FedlibError(f"{where} run from {array.min()} to {array.max()}, but {meaning}{bounds}")

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def several_labels(self) -> bool:
        """Whether a sample may have several labels."""
        return self.labels.ndim == 2

    @property
    def shape(self) -> tuple[int, ...]:
        """What a model must know of a sample: (3, H, W), or (V, L) for L token numbers of a vocabulary of V words."""
        return (len(self.words), self.images.shape[1]) if self.words else self.images.shape[1:]

    def counts(self) -> np.ndarray:
        """int64 (domains, 2, U): samples of each class that are train and test; a single domain where there are none.

        One pass over the samples, as there may be thousands of domains. A sample of several labels counts for each.
        """
        classes, many = len(self.classes), max(1, len(self.domain_names))
        part = self.split.astype(np.int64) if self.domains is None else self.domains * 2 + self.split
        if self.several_labels:
            table = np.zeros((many * 2, classes), np.int64)
            np.add.at(table, part, self.labels)
        else:
            table = np.bincount(part * classes + self.labels, minlength=many * 2 * classes)
        return table.reshape(many, 2, classes)

    def take(self, index: np.ndarray) -> Pool:
        """The pool cut to `index`; raises FedlibError if a class is left without a sample."""
        return replace(
            self,
            images=self.images[index],
            labels=self.labels[index],
            split=self.split[index],
            partition_labels=self.partition_labels[index],
            domains=None if self.domains is None else self.domains[index],
        )

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 over the pixels, or words, and labels: part of every run's key."""
        about = f"{self.name} {self.images.shape} {self.classes} {self.domain_names}"
        digest = hashlib.sha256((about + f" {self.words}" if self.words else about).encode())
        for array in (self.images, self.labels, self.split, self.partition_labels, self.domains):
            if array is not None:
                digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()[:16]
