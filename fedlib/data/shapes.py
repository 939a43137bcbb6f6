"""shapes: seven shapes in four renderings (shapes_eight: in eight), procedural, each with its mask; no download."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache

import numpy as np

from fedlib.data.pool import Pool
from fedlib.data.shapes_rendering import RENDERINGS, SIDE, Draws

SEED = 2026
DOMAINS: Mapping[str, int] = {"photo": 350, "painting": 420, "cartoon": 490, "sketch": 840}
"""Images of each domain. Unequal, so that weighting clients by n_k is not the same as weighting them equally."""
MORE_DOMAINS: Mapping[str, int] = {**DOMAINS, "night": 210, "blueprint": 280, "mosaic": 210, "textile": 280}
"""All renderings. A domain's place here is its number and picks its random stream: new ones go to the end."""
MARGIN = 1.0
"""Pixels kept free between a shape and the edge of the picture."""


def _arc(first: float, last: float, points: int, radius: float = 1.0, centre: float = 0.0) -> np.ndarray:
    """Points of a circle around (centre, 0), from angle `first` to `last` in degrees: (points, 2), x right, y down."""
    angles = np.radians(np.linspace(first, last, points))
    return np.stack([centre + radius * np.cos(angles), radius * np.sin(angles)], axis=1)


def _crescent(stout: float) -> list[np.ndarray]:
    """The unit circle, from its tips at +-55 degrees a second one bites into it, less deeply the stouter it is."""
    x, y = np.cos(np.radians(55)), np.sin(np.radians(55))
    depth = 0.95 - 0.4 * stout
    radius = (y * y + depth * depth) / (2 * depth)  # of the circle through both tips and (x - depth, 0)
    centre = x - depth + radius
    tip = np.degrees(np.arctan2(y, x - centre))
    return [0.95 * np.concatenate([_arc(55, 305, 16), _arc(360 - tip, tip, 10, radius, centre)[1:-1]])]


def _cross(stout: float) -> list[np.ndarray]:
    half = 0.22 + 0.14 * stout
    arm = np.array([[half, -1.0], [half, -half], [1.0, -half]])
    quarter_turn = np.array([[0, 1], [-1, 0]])
    return [np.concatenate([arm @ np.linalg.matrix_power(quarter_turn, k) for k in range(4)])]


def _heart(stout: float) -> list[np.ndarray]:
    """Two lobes above a point; the notch between them is less deep the stouter it is."""
    lobe = [(0.0, -0.3 - 0.2 * stout), (0.12, -0.68), (0.34, -0.88), (0.6, -0.88), (0.85, -0.7), (0.97, -0.38)]
    right = np.array([*lobe, (0.9, -0.02), (0.68, 0.32), (0.38, 0.62), (0.0, 1.0)])
    return [0.95 * np.concatenate([right, right[-2:0:-1] * [-1, 1]])]


def _ring(stout: float) -> list[np.ndarray]:
    return [0.95 * _arc(0, 340, 18), 0.95 * _arc(0, 340, 18, radius=0.66 - 0.22 * stout)]


def _square(stout: float) -> list[np.ndarray]:
    return [0.78 * np.array([[-1.0, -1.0], [1.0, -1.0], [1.0, 1.0], [-1.0, 1.0]])]


def _star(stout: float) -> list[np.ndarray]:
    tips, dents = _arc(-90, 198, 5, 1.1), _arc(-54, 234, 5, 0.42 + 0.12 * stout)
    return [np.stack([tips, dents], axis=1).reshape(10, 2)]


def _triangle(stout: float) -> list[np.ndarray]:
    return [1.08 * _arc(-90, 150, 3)]


OUTLINES: Mapping[str, Callable[[float], list[np.ndarray]]] = {
    "crescent": _crescent,
    "cross": _cross,
    "heart": _heart,
    "ring": _ring,
    "square": _square,
    "star": _star,
    "triangle": _triangle,
}
"""Each class as closed loops of corners about the origin, of size about 1: from the slimmest, 0, to the stoutest, 1."""
CLASSES = tuple(OUTLINES)


def _edges(name: str, stout: float) -> np.ndarray:
    """The outline as edges (E, 2, 2): from and to, x and y. Rounded: sines differ in their last bits by machine."""
    loops = [np.round(loop, 4) for loop in OUTLINES[name](stout)]
    return np.concatenate([np.stack([loop, np.roll(loop, -1, axis=0)], axis=1) for loop in loops])


def _turn(half_tangent: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Cosine and sine of the angle whose half has this tangent: the same bits on every machine."""
    square = half_tangent * half_tangent
    return (1 - square) / (1 + square), 2 * half_tangent / (1 + square)


def _posed(name: str, draws: Draws) -> np.ndarray:
    """The outline in draws.count random poses, in pixels: (n, E, 2, 2).

    Half size 9 to 13 pixels, stretched 0.8 to 1, sheared by up to 0.1, turned by up to 35 degrees either way,
    at any place where it fits.
    """
    slim, stout = _edges(name, 0.0), _edges(name, 1.0)
    edges = slim + draws.between(0, 1, 1, 1, 1) * (stout - slim)
    size, stretch, shear = draws.between(9, 13, 1, 1), draws.between(0.8, 1, 1, 1), draws.between(-0.1, 0.1, 1, 1)
    x, y = edges[..., 0] + shear * edges[..., 1], stretch * edges[..., 1]
    cosine, sine = _turn(draws.between(-0.315, 0.315, 1, 1))
    turned = size[..., None] * np.stack([cosine * x - sine * y, sine * x + cosine * y], axis=-1)
    low, high = turned.min(axis=(1, 2)), turned.max(axis=(1, 2))
    room = SIDE - 2 * MARGIN - (high - low)
    corner = MARGIN + draws.between(0, 1, 2) * room
    return turned + (corner - low)[:, None, None, :]


def _distance(edges: np.ndarray, right: np.ndarray, down: np.ndarray) -> np.ndarray:
    """Distance in pixels from points to outlines, negative inside (even-odd rule).

    edges: (n, E, 2, 2). right, down: the points' places, each to broadcast to (n, SIDE, SIDE).
    """
    nearest, inside = np.float32(np.inf), np.bool_(False)
    for k in range(edges.shape[1]):
        x0, y0, x1, y1 = edges[:, k].reshape(-1, 4).T[:, :, None, None]
        along_x, along_y, from_x, from_y = x1 - x0, y1 - y0, right - x0, down - y0
        share = (from_x * along_x + from_y * along_y) / (along_x * along_x + along_y * along_y)
        share = share.clip(0, 1)
        off_x, off_y = from_x - share * along_x, from_y - share * along_y
        nearest = np.minimum(nearest, off_x * off_x + off_y * off_y)
        spans = (y0 <= down) != (y1 <= down)  # a ray to the right of the point meets this edge, if the next holds too
        inside = inside ^ (spans & ((from_x * along_y < from_y * along_x) == (along_y > 0)))
    return np.where(inside, -np.sqrt(nearest), np.sqrt(nearest))


class _Shapes:
    """The shapes of one domain as a field of distances; image i shows class i mod 7."""

    def __init__(self, draws: Draws) -> None:
        self.count = draws.count
        each = Draws(draws.stream, draws.count // len(CLASSES))
        self.edges = [_posed(name, each).astype(np.float32) for name in CLASSES]

    def __call__(self, right: np.ndarray | float = 0.0, down: np.ndarray | float = 0.0) -> np.ndarray:
        """Distances in pixels, (n, SIDE, SIDE), negative inside, at the pixels' centres moved by (right, down).

        right, down: numbers, or arrays (n, 1, 1) or (n, SIDE, SIDE).
        """
        centres = np.arange(SIDE, dtype=np.float32) + np.float32(0.5)
        x, y = centres[None, None] + right, centres[None, :, None] + down
        x, y = (np.broadcast_to(places, (self.count, *places.shape[1:])) for places in (x, y))
        distances = np.empty((self.count, SIDE, SIDE), np.float32)
        for k, edges in enumerate(self.edges):
            distances[k :: len(CLASSES)] = _distance(edges, x[k :: len(CLASSES)], y[k :: len(CLASSES)])
        return distances


@lru_cache(maxsize=len(MORE_DOMAINS))
def _domain(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Images, uint8 (n, 3, SIDE, SIDE), and masks, bool (n, SIDE, SIDE), of one domain, from a stream of its own."""
    # RandomState and not default_rng: NumPy promises that its stream never changes (NEP 19).
    draws = Draws(np.random.RandomState(SEED + list(MORE_DOMAINS).index(name)), MORE_DOMAINS[name])
    field = _Shapes(draws)
    colours = RENDERINGS[name](field, draws)
    return np.rint(255 * colours.clip(0, 1)).astype(np.uint8), field() <= 0


def _pool(name: str, domains: Mapping[str, int]) -> Pool:
    """Domain after domain; in each, image i shows class i mod 7, and every fifth image of a class is for testing."""
    place = np.concatenate([np.arange(count) for count in domains.values()])
    labels, split = place % len(CLASSES), (place // len(CLASSES) % 5 == 4).astype(np.uint8)
    images = np.concatenate([_domain(domain)[0] for domain in domains])
    number = np.repeat(np.arange(len(domains)), list(domains.values()))
    return Pool(name, images, labels, CLASSES, split, labels, number, tuple(domains))


@lru_cache(maxsize=1)
def shapes() -> Pool:
    """2,100 images of seven shapes, 32x32 RGB, each domain one rendering: photo, painting, cartoon, sketch.

    Size, stretch, angle, place, thickness and colours are drawn alike for all classes: only the form tells them. In
    each class of each domain 80 % of the images are for training and 20 % for testing.
    """
    return _pool("shapes", DOMAINS)


@lru_cache(maxsize=1)
def shapes_eight() -> Pool:
    """The images of `shapes` and 980 more in four further renderings: night, blueprint, mosaic, textile."""
    return _pool("shapes_eight", MORE_DOMAINS)


@lru_cache(maxsize=1)
def masks() -> np.ndarray:
    """The shape's pixels in each image of `shapes`, which are the first of `shapes_eight`: bool (2100, 32, 32).

    A pixel belongs to the shape if its centre does: a drawn outline may reach up to a pixel further. Read-only.
    """
    every = np.concatenate([_domain(domain)[1] for domain in DOMAINS])
    every.setflags(write=False)
    return every
