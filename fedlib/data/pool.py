"""Pool: the images of one data set before they are divided among clients."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from fedlib.checks import FedlibError


@dataclass(frozen=True, eq=False)
class Pool:
    """Images and labels of one data set, train and test together. Its arrays are made read-only: pools are shared.

    images: uint8, (N, C, H, W) with C = 3 (grey sets are repeated to RGB).
    labels: int64, (N,), index into `classes`.
    split: uint8, (N,), 0 = official train, 1 = official test.
    partition_labels: int64, (N,), what label partitions go by; differs from `labels` for CIFAR-20, which is
        partitioned by its 100 fine labels (FedDRM spec, 3.1).
    domains: int64, (N,) index into `domain_names`, or None.

    Raises FedlibError for a wrong type or shape, a label, split or domain out of range, and a class without a sample.
    """

    name: str
    images: np.ndarray
    labels: np.ndarray
    classes: tuple[str, ...]
    split: np.ndarray
    partition_labels: np.ndarray
    domains: np.ndarray | None = None
    domain_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        where = f"data set {self.name!r}"
        if self.images.dtype != np.uint8 or self.images.ndim != 4 or self.images.shape[1] != 3:
            raise FedlibError(f"{where}: images are {self.images.dtype} {self.images.shape}, not uint8 (N, 3, H, W)")
        if not len(self.images):
            raise FedlibError(f"{where}: it holds no image")
        self._check_index("labels", len(self.classes), f"there are {len(self.classes)} classes")
        self._check_index("split", 2, "0 means train and 1 test")
        self._check_index("partition_labels", None, "labels start at 0")
        if self.domains is not None:
            self._check_index("domains", len(self.domain_names), f"there are {len(self.domain_names)} domain names")
        held = np.bincount(self.labels, minlength=len(self.classes))
        empty = [repr(self.classes[k]) for k in np.flatnonzero(held == 0)]
        if empty:
            raise FedlibError(f"{where}: no sample of class {', '.join(empty)}; remove it from `classes`")
        for array in (self.images, self.labels, self.split, self.partition_labels, self.domains):
            if array is not None:
                array.setflags(write=False)

    def _check_index(self, field: str, size: int | None, meaning: str) -> None:
        """Refuse `field` unless it is one whole number an image, from 0 to below `size`."""
        array = getattr(self, field)
        where = f"data set {self.name!r}: {field}"
        if array.dtype.kind not in "iu" or array.shape != (len(self.images),):
            raise FedlibError(
                f"{where} is {array.dtype} {array.shape}, not one whole number for each of {len(self.images)} images"
            )
        if array.min() < 0 or (size is not None and array.max() >= size):
            bounds = "" if size is None else f" (0 to {size - 1})"
            raise FedlibError(f"{where} run from {array.min()} to {array.max()}, but {meaning}{bounds}")

    def __len__(self) -> int:
        return len(self.labels)

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
        """SHA-256 over the pixels and labels: part of every run's key."""
        digest = hashlib.sha256(f"{self.name} {self.images.shape} {self.classes} {self.domain_names}".encode())
        for array in (self.images, self.labels, self.split, self.partition_labels, self.domains):
            if array is not None:
                digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()[:16]
