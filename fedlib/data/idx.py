"""MNIST's file format, idx, compressed by gzip: what Debian's package of Fashion-MNIST installs."""

from __future__ import annotations

import gzip
import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedlib.checks import FedlibError

FIRST = "train-images-idx3-ubyte.gz"
"""The file that shows that a folder has the set; the others are beside it."""


@dataclass(frozen=True)
class Part:
    """Train or test, with the names that torchvision's parts have. data: uint8 (n, H, W). targets: uint8 (n,)."""

    data: np.ndarray
    targets: np.ndarray
    classes: Sequence[str]

    def __len__(self) -> int:
        return len(self.data)


def parts_of(folder: Path, classes: Sequence[str]) -> list[Part]:
    """Train and test of the four files in `folder`. Raises FedlibError naming the file that is missing or damaged."""
    parts = []
    for name in ("train", "t10k"):
        images = read(folder / f"{name}-images-idx3-ubyte.gz", 3)
        path = folder / f"{name}-labels-idx1-ubyte.gz"
        labels = read(path, 1)
        if len(labels) != len(images):
            raise FedlibError(f"{path}: {len(labels)} labels for {len(images)} images; get the four files again")
        parts.append(Part(images, labels, classes))
    return parts


def read(path: Path, dimensions: int) -> np.ndarray:
    """The array of bytes in one file: magic number 0x0800 + dimensions, the sizes (big-endian, 4 bytes), the bytes."""
    try:
        with gzip.open(path) as file:
            content = file.read()
    except (OSError, EOFError, zlib.error) as error:
        raise FedlibError(f"{path}: cannot be read ({error}); get the file again") from error
    start = 4 * (1 + dimensions)
    magic, *sizes = np.frombuffer(content[:start].ljust(start, b"\0"), ">i4").tolist()
    if magic != 0x0800 + dimensions or min(sizes) < 0 or len(content) != start + math.prod(sizes):
        raise FedlibError(f"{path}: it is no idx file of bytes in {dimensions} dimensions; get the file again")
    return np.frombuffer(content, np.uint8, offset=start).reshape(sizes)
