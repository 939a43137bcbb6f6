"""retina_stand_in: three synthetic centres in the place of FedDRM's RETINA case (spec, 3.4); embedded, no download.

A stand-in: no picture in it was taken of an eye. It has what the case needs, a shape that decides the class, and
colours, field of view and sharpness that tell the centres apart, so that the method and the question of normalisation
can be tried without the centres' images. It gives no verdict about those.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from scipy.ndimage import gaussian_filter
from scipy.special import expit

from fedlib.data.pool import Pool

SIDE = 32
SEED = 2026
CLASSES = ("normal", "glaucoma")
CUP_TO_DISC = ((0.40, 0.09), (0.68, 0.09))
"""Mean and standard deviation of the cup's share of the disc's radius, by class. The best threshold errs in 6 %."""
EXPOSURE = 0.8
"""How much images of one centre differ in mean colour, in units of the colours' spread within an image."""
LAYERS = {"disc": (0.4, 0.7, 0.5), "cup": (0.3, 0.9, 1.1), "vessels": (-0.4, -0.7, -0.5), "ground": (0.1, 0.1, 0.1)}
"""Red, green and blue of what is laid on the background, before each centre's own colours."""


class Centre(NamedTuple):
    """One centre. mean, std and ratio are the paper's; all else is ours, the number of images included.

    mean, std: of RGB, 0 to 1, before what is brighter than white is cut. std is that within an image, averaged over
    images: so it is in ACRIMA's public images. ratio: glaucoma to normal. radius: of the disc, in half sides of the
    picture. blur: in pixels. vignette, grain: in units of std.
    """

    name: str
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    ratio: float
    images: int
    radius: float
    blur: float
    vignette: float
    grain: float

    @property
    def positive(self) -> int:
        """Images of class glaucoma."""
        return round(self.images * self.ratio / (1 + self.ratio))


CENTRES = (
    Centre("ACRIMA-like", (0.7238, 0.3767, 0.1002), (0.1001, 0.1057, 0.0503), 1.34, 320, 0.55, 0.5, 0.2, 0.15),
    Centre("RIM-like", (0.5886, 0.2652, 0.1481), (0.1147, 0.0937, 0.0461), 1.94, 200, 0.68, 0.8, 0.5, 0.25),
    Centre("REFUGE-like", (0.7085, 0.4822, 0.3445), (0.1663, 0.1541, 0.1066), 0.46, 360, 0.45, 0.3, 0.8, 0.10),
)


@lru_cache(maxsize=1)
def retina_stand_in() -> Pool:
    """A stand-in of 880 synthetic pictures, 32x32 RGB: an optic disc with its cup and vessels, normal or glaucoma.

    Glaucoma has the larger cup-to-disc ratio (CUP_TO_DISC), with overlap. Domain i is centre i of CENTRES. The split
    puts every fifth picture of a centre and class into test.
    """
    rng = np.random.RandomState(SEED)  # not default_rng: NumPy promises that its stream never changes (NEP 19)
    images = np.concatenate([_pictures(rng, centre) for centre in CENTRES])
    counts = [(centre.images - centre.positive, centre.positive) for centre in CENTRES]
    labels = np.repeat(np.tile([0, 1], len(CENTRES)), np.ravel(counts))
    domains = np.repeat(np.arange(len(CENTRES)), np.sum(counts, axis=1))
    split = np.concatenate([np.arange(count) % 5 == 4 for count in np.ravel(counts)]).astype(np.uint8)
    names = tuple(centre.name for centre in CENTRES)
    return Pool("retina_stand_in", images, labels, CLASSES, split, labels, domains, names)


def _pictures(rng: np.random.RandomState, centre: Centre) -> np.ndarray:
    """All pictures of one centre, normal first: uint8 (n, 3, SIDE, SIDE)."""
    labels = np.repeat([0, 1], [centre.images - centre.positive, centre.positive])
    layers = _layers(rng, labels, centre)
    pattern = sum(layers[name][:, None] * np.reshape(colour, (3, 1, 1)) for name, colour in LAYERS.items())
    pattern = gaussian_filter(pattern, sigma=(0, 0, centre.blur, centre.blur), mode="nearest")
    pattern = _standardised(pattern) - centre.vignette * layers["rim"][:, None]
    pattern = _standardised(pattern + centre.grain * rng.normal(size=pattern.shape))
    lightness, tint = rng.normal(size=(len(labels), 1)), rng.normal(size=(len(labels), 3))
    exposure = EXPOSURE * (0.9 * lightness + 0.4 * tint)
    exposure -= exposure.mean(axis=0)
    mean, std = np.reshape(centre.mean, (3, 1, 1)), np.reshape(centre.std, (3, 1, 1))
    return np.rint(255 * np.clip(mean + std * (pattern + exposure[:, :, None, None]), 0, 1)).astype(np.uint8)


def _standardised(pattern: np.ndarray) -> np.ndarray:
    """(n, 3, H, W) with mean 0 and a spread within an image that is 1 on average, in each channel."""
    spread = pattern.std(axis=(2, 3)).mean(axis=0)
    return (pattern - pattern.mean(axis=(0, 2, 3), keepdims=True)) / spread[:, None, None]


def _layers(rng: np.random.RandomState, labels: np.ndarray, centre: Centre) -> dict[str, np.ndarray]:
    """What each picture shows, each (n, SIDE, SIDE): disc, cup, vessels and rim from 0 to 1, ground around 0."""
    n = len(labels)

    def each(low: float, high: float) -> np.ndarray:
        return rng.uniform(low, high, size=(n, 1, 1))

    axis = (np.arange(SIDE) + 0.5) * 2 / SIDE - 1
    y, x = axis[:, None], axis[None, :]
    across, down = x - each(-0.15, 0.15), (y - each(-0.15, 0.15)) / each(1.0, 1.15)
    radius = centre.radius * each(0.9, 1.1)
    mean, spread = np.transpose(CUP_TO_DISC)
    ratio = np.clip(rng.normal(mean[labels], spread[labels]), 0.15, 0.9)[:, None, None]
    from_disc = np.hypot(across, down)
    from_cup = np.hypot(across - radius * each(-0.08, 0.08), down - radius * each(-0.08, 0.08))
    waves = (np.cos(each(-6, 6) * x + each(-6, 6) * y + each(0, 2 * np.pi)) for _ in range(4))
    return {
        "disc": expit((radius - from_disc) / (0.06 * radius)),
        "cup": expit((ratio * radius - from_cup) / (0.06 * radius)),
        "vessels": _vessels(rng, across, down, 0.1 * radius),
        "ground": sum(waves, np.zeros((n, SIDE, SIDE))),
        "rim": np.broadcast_to((x**2 + y**2) / 2, (n, SIDE, SIDE)),
    }


def _vessels(rng: np.random.RandomState, across: np.ndarray, down: np.ndarray, width: np.ndarray) -> np.ndarray:
    """Three vessels up and three down: curves through the disc's centre, at the angle a + b·r at distance r."""
    distance, angle = np.hypot(across, down), np.arctan2(down, across)
    clear = np.ones_like(distance)
    for towards in (-np.pi / 2, np.pi / 2):
        for lean in (-0.6, 0.0, 0.6):
            a, b = rng.normal(size=(2, len(distance), 1, 1)) * np.reshape([0.2, 0.5], (2, 1, 1, 1))
            off = (angle - towards - lean - a - b * distance + np.pi) % (2 * np.pi) - np.pi
            gap = distance * np.abs(np.sin(off / 2)) * 2
            depth = rng.uniform(0.4, 1.0, size=(len(distance), 1, 1)) * distance / (distance + 4 * width)
            clear *= 1 - depth * np.exp(-((gap / width) ** 2))
    return 1 - clear
