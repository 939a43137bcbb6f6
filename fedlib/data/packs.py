"""Packs: one .npz file a data set, of plain arrays. A Python object in one is refused, never unpickled.

Arrays: `images` (uint8, N×H×W×3 RGB or N×H×W grey; or `jpeg` and `offsets`: all JPEG files end to end, image i being
jpeg[offsets[i]:offsets[i + 1]]), `labels` (whole numbers, index into `classes`), `classes` (text), `split` (0 train,
1 test); optional `coarse_labels` with `coarse_classes`, and `domains` with `domain_names`. Others are left unread.
"""

from __future__ import annotations

import io
import itertools
import lzma
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from PIL import Image

from fedlib.checks import FedlibError
from fedlib.data.pool import Pool

DAMAGE = (OSError, ValueError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error, lzma.LZMAError)
"""What NumPy and zipfile raise on a file that is cut short or altered."""


def to_planes(images: np.ndarray) -> np.ndarray:
    """uint8 N×H×W×3, or N×H×W grey, as contiguous (N, 3, H, W); grey is repeated."""
    channels_last = np.repeat(images[..., None], 3, axis=3) if images.ndim == 3 else images
    return np.ascontiguousarray(channels_last.transpose(0, 3, 1, 2))


class _Pack:
    """The arrays of one open .npz; each access decompresses, and every error names file and array."""

    def __init__(self, path: Path, file: np.lib.npyio.NpzFile) -> None:
        self.path, self.file = path, file

    def __contains__(self, key: str) -> bool:
        return key in self.file.files

    def __getitem__(self, key: str) -> np.ndarray:
        if key not in self:
            raise FedlibError(f"{self.path}: array {key!r} is missing; the file has {', '.join(self.file.files)}")
        try:
            return self.file[key]
        except DAMAGE as error:
            if "allow_pickle" in str(error):
                raise FedlibError(
                    f"{self.path}: array {key!r} holds pickled Python objects, which are refused; save plain arrays"
                ) from error
            raise FedlibError(f"{self.path}: array {key!r} is damaged ({error}); get the file again") from error

    def numbers(self, key: str, size: int, upper: int) -> np.ndarray:
        """`key` as int64 (size,), refused unless whole numbers from 0 to below `upper`."""
        array = self[key]
        if array.dtype.kind not in "iu" or array.shape != (size,):
            raise FedlibError(
                f"{self.path}: array {key!r} is {array.dtype} {array.shape}, not whole numbers of shape ({size},)"
            )
        if size and (array.min() < 0 or array.max() >= upper):
            raise FedlibError(
                f"{self.path}: array {key!r} runs from {array.min()} to {array.max()}, out of 0 to {upper - 1}"
            )
        return array.astype(np.int64)

    def names(self, key: str) -> tuple[str, ...]:
        """`key` as distinct names."""
        array = self[key]
        if array.dtype.kind != "U" or array.ndim != 1 or len(np.unique(array)) != len(array):
            raise FedlibError(
                f"{self.path}: array {key!r} is {array.dtype} {array.shape}, not a list of distinct names"
            )
        return tuple(array.tolist())

    def pictures(self) -> np.ndarray:
        """uint8 (N, 3, H, W), from `images` or from `jpeg` and `offsets`."""
        images = self._decoded() if "jpeg" in self and "images" not in self else self["images"]
        if images.dtype != np.uint8 or not (images.ndim == 3 or (images.ndim == 4 and images.shape[3] == 3)):
            raise FedlibError(
                f"{self.path}: array 'images' is {images.dtype} {images.shape}, not uint8 N×H×W×3 (RGB) or N×H×W (grey)"
            )
        return to_planes(images)

    def _decoded(self) -> np.ndarray:
        """The JPEG files as uint8 N×H×W×3."""
        jpeg, offsets = self["jpeg"], self["offsets"]
        if jpeg.dtype != np.uint8 or jpeg.ndim != 1:
            raise FedlibError(f"{self.path}: array 'jpeg' is {jpeg.dtype} {jpeg.shape}, not uint8 of one dimension")
        whole = offsets.dtype.kind in "iu" and offsets.ndim == 1 and len(offsets) > 0
        if not whole or offsets[0] != 0 or offsets[-1] != len(jpeg) or (offsets[1:] <= offsets[:-1]).any():
            raise FedlibError(f"{self.path}: array 'offsets' does not rise from 0 to the {len(jpeg)} bytes of 'jpeg'")
        pictures: list[np.ndarray] = []
        for i, (start, stop) in enumerate(itertools.pairwise(offsets)):
            try:
                picture = np.asarray(Image.open(io.BytesIO(jpeg[start:stop].tobytes())).convert("RGB"))
            except (OSError, ValueError, SyntaxError) as error:
                raise FedlibError(f"{self.path}: array 'jpeg': image {i} cannot be decoded ({error})") from error
            if pictures and picture.shape != pictures[0].shape:
                raise FedlibError(
                    f"{self.path}: array 'jpeg': image {i} is {picture.shape[:2]}, the first {pictures[0].shape[:2]}"
                )
            pictures.append(picture)
        return np.stack(pictures) if pictures else np.empty((0, 1, 1, 3), np.uint8)


@contextmanager
def _opened(path: Path) -> Iterator[_Pack]:
    try:
        file = np.load(path, allow_pickle=False)
    except DAMAGE as error:
        raise FedlibError(f"{path} is not a readable .npz ({error}); it may be cut short: get it again") from error
    if not isinstance(file, np.lib.npyio.NpzFile):
        raise FedlibError(f"{path} is a single array, not an .npz; write it with numpy.savez_compressed")
    with file:
        yield _Pack(path, file)


def read(path: Path, name: str, coarse: bool = False) -> Pool:
    """The pack at `path` as the data set `name`, every array checked.

    coarse: `coarse_labels` become the labels, while partitions still go by `labels` (FedDRM spec, 3.1).
    Raises FedlibError naming the file and the array.
    """
    with _opened(path) as pack:
        classes = pack.names("classes")
        images = pack.pictures()
        fine = labels = pack.numbers("labels", len(images), len(classes))
        split = pack.numbers("split", len(images), 2).astype(np.uint8)
        if coarse:
            classes = pack.names("coarse_classes")
            labels = pack.numbers("coarse_labels", len(images), len(classes))
        domain_names = pack.names("domain_names") if "domains" in pack else ()
        domains = pack.numbers("domains", len(images), len(domain_names)) if "domains" in pack else None
    try:
        return Pool(name, images, labels, classes, split, fine, domains, domain_names)
    except FedlibError as error:
        raise FedlibError(f"{path}: {error}") from error


def outline(path: Path) -> tuple[int, int, int | None]:
    """Numbers of images, classes and coarse classes (None: there are none), read without the images."""
    with _opened(path) as pack:
        coarse = len(pack.names("coarse_classes")) if "coarse_labels" in pack else None
        return len(pack["labels"]), len(pack.names("classes")), coarse
