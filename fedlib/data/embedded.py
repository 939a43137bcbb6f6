"""Data sets that come with the package's own dependencies: no download."""

from __future__ import annotations

import colorsys
from functools import lru_cache

import numpy as np
from PIL import Image

from fedlib.data.pool import Pool

TINT_SEED = 2026


def _tints(count: int) -> tuple[np.ndarray, np.ndarray]:
    """The background and the ink of each image: two float arrays (count, 3), RGB from 0 to 1.

    Background: hue from a third of the circle (red to green), saturation 0.3 to 0.7, value 0.2 to 0.55.
    Ink: the opposite hue, the same saturation, value 0.4 higher. A band of hues, because over the whole circle a hue
    shift would leave the distribution as it was, and no client could be told by it.
    """
    # RandomState and not default_rng: NumPy promises that its stream never changes (NEP 19).
    low, high = (0.0, 0.3, 0.2), (1 / 3, 0.7, 0.55)
    hsv = np.random.RandomState(TINT_SEED).uniform(low, high, size=(count, 3))
    background = [colorsys.hsv_to_rgb(h, s, v) for h, s, v in hsv]
    ink = [colorsys.hsv_to_rgb((h + 0.5) % 1, s, v + 0.4) for h, s, v in hsv]
    return np.array(background), np.array(ink)


@lru_cache(maxsize=1)
def digits() -> Pool:
    """scikit-learn's 1,797 scans of handwritten digits (E. Alpaydin & C. Kaynak 1998), coloured, 16x16 RGB.

    The 8x8 scans of 17 grey levels are resized bilinearly; the grey level mixes a background and an ink colour. Both
    are mid-tones, and functions of the image's index alone (`_tints`), hence independent of the label, so that
    shifts of gamma, hue and saturation move the pixels. The split is stratified and fixed: 80 % train, 20 % test.
    """
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    scans = load_digits()
    labels = scans.target.astype(np.int64)
    grey = np.rint(scans.images * (255 / 16)).astype(np.uint8)
    large = np.stack([np.asarray(Image.fromarray(scan).resize((16, 16), Image.Resampling.BILINEAR)) for scan in grey])
    coverage = large[:, None] / 255
    background, ink = (colour[:, :, None, None] for colour in _tints(len(labels)))
    images = np.rint(255 * (background + coverage * (ink - background))).astype(np.uint8)
    test = train_test_split(np.arange(len(labels)), test_size=0.2, stratify=labels, random_state=0)[1]
    split = np.zeros(len(labels), dtype=np.uint8)
    split[test] = 1
    return Pool("digits", images, labels, tuple("0123456789"), split, labels)
