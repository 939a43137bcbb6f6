"""How the data set `shapes` renders a shape: photo, painting, cartoon, sketch, and four more.

A rendering turns distances to the shape's outline and random numbers into colours. It uses only operations that IEEE
754 defines to the last bit (no sine, no power, no sum whose order is free), so that every machine gets the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

SIDE = 32
HALF = np.float32(0.5)
X, Y = np.meshgrid(*[np.arange(SIDE, dtype=np.float32) + HALF] * 2)
"""The centres of the pixels, in pixels: two arrays (SIDE, SIDE)."""


class Shapes(Protocol):
    """n shapes: the distance in pixels, (n, SIDE, SIDE), negative inside, at the pixels moved by (right, down)."""

    def __call__(self, right: np.ndarray | float = 0.0, down: np.ndarray | float = 0.0) -> np.ndarray: ...


@dataclass(frozen=True)
class Draws:
    """Random numbers for `count` images at once."""

    stream: np.random.RandomState
    count: int

    def between(self, low: float, high: float, *shape: int) -> np.ndarray:
        """Uniform numbers (count, *shape), float32."""
        return (low + (high - low) * self.stream.random_sample((self.count, *shape))).astype(np.float32)

    def pick(self, share: float) -> np.ndarray:
        """True with probability `share`: (count, 1, 1)."""
        return self.stream.random_sample((self.count, 1, 1)) < share


def smooth(draws: Draws, cells: int) -> np.ndarray:
    """Smooth noise from -1 to 1, (n, SIDE, SIDE): random values on a grid of cells, interpolated bilinearly."""
    values = draws.between(-1, 1, cells + 1, cells + 1)
    place = (np.arange(SIDE, dtype=np.float32) + HALF) * np.float32(cells / SIDE)
    cell = place.astype(int)
    share = place - cell.astype(np.float32)
    share = share * share * (3 - 2 * share)
    rows = values[:, cell] + share[:, None] * (values[:, cell + 1] - values[:, cell])
    return rows[:, :, cell] + share * (rows[:, :, cell + 1] - rows[:, :, cell])


def grain(draws: Draws) -> np.ndarray:
    """Noise of independent pixels, mean 0 and standard deviation 0.41: (n, SIDE, SIDE)."""
    return draws.between(-0.5, 0.5, SIDE, SIDE) + draws.between(-0.5, 0.5, SIDE, SIDE)


def wave(phase: np.ndarray) -> np.ndarray:
    """A triangle wave from -1 to 1 of period 1."""
    return 4 * np.abs(phase - np.floor(phase) - HALF) - 1


def direction(draws: Draws, low: float = -1.0, high: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Unit vectors (x, y), each (n, 1, 1); low and high: of the tangent of half the angle to the x axis."""
    half = draws.between(low, high, 1, 1)
    return (1 - half * half) / (1 + half * half), 2 * half / (1 + half * half)


def coverage(distance: np.ndarray, softness: float = 1.0) -> np.ndarray:
    """How much of a pixel lies inside, 0 to 1, with an edge `softness` pixels wide."""
    return (HALF - distance / np.float32(softness)).clip(0, 1)


def line(distance: np.ndarray, width: float | np.ndarray) -> np.ndarray:
    """How much of a pixel a line along distance 0 covers, 0 to 1; width in pixels."""
    return (HALF + width / 2 - np.abs(distance)).clip(0, 1)


def tone(luma: np.ndarray, hue: np.ndarray, strength: np.ndarray | float) -> np.ndarray:
    """Colours (n, 3, 1, 1) of the given luma, hue (in turns) and strength of colour, each (n, 1, 1)."""
    ramps = [np.abs((6 * hue + shift) % 6 - 3) - 1 for shift in (0, 4, 2)]
    red, green, blue = (ramp.clip(0, 1) for ramp in ramps)
    grey = np.float32(0.3) * red + np.float32(0.59) * green + np.float32(0.11) * blue
    return np.stack([luma + strength * (plane - grey) for plane in (red, green, blue)], axis=1).clip(0, 1)


def lumas(draws: Draws, low: float, high: float, gap: float, lighter: float) -> tuple[np.ndarray, np.ndarray]:
    """Lumas of ground and figure, (n, 1, 1), from low to high and at least `gap` apart.

    lighter: the share of images in which the figure is the lighter of the two.
    """
    middle = draws.between(low + gap / 2, high - gap / 2, 1, 1)
    dark = low + draws.between(0, 1, 1, 1) * (middle - gap / 2 - low)
    light = middle + gap / 2 + draws.between(0, 1, 1, 1) * (high - middle - gap / 2)
    swap = draws.pick(lighter)
    return np.where(swap, dark, light), np.where(swap, light, dark)


def over(base: np.ndarray, colour: np.ndarray, share: np.ndarray) -> np.ndarray:
    """`colour` laid over `base`, both (n, 3, ...), where share (n, SIDE, SIDE) is 1."""
    return base + share[:, None] * (colour - base)


def dabs(draws: Draws, along: np.ndarray, across: np.ndarray, long: float, wide: float) -> np.ndarray:
    """One random value from -1 to 1 a dab, (n, SIDE, SIDE), 2 of them: bricks long x wide pixels, rows displaced."""
    table = draws.between(-1, 1, 2, 16 * 16)
    row = np.floor(across / np.float32(wide)).astype(int)
    column = np.floor(along / np.float32(long) + (row * 5 % 8) / np.float32(8)).astype(int)
    index = (row % 16 * 16 + column % 16).reshape(draws.count, 1, -1)
    return np.take_along_axis(table, index, axis=2).reshape(draws.count, 2, SIDE, SIDE)


def lit(colour: np.ndarray, light: np.ndarray) -> np.ndarray:
    """`colour` times a factor (n, SIDE, SIDE)."""
    return colour * light[:, None]


def photo(shapes: Shapes, draws: Draws) -> np.ndarray:
    """A thing with rounded rims before a wall, on a floor: light from one side, a soft shadow, sensor noise."""
    towards_x, towards_y = direction(draws, -2.4, -0.4)  # the light stands above
    behind, before = lumas(draws, 0.18, 0.82, 0.24, lighter=0.8)
    hue = draws.between(0, 1, 1, 1)
    wall = tone(behind, hue, draws.between(0.05, 0.25, 1, 1))
    floor = tone(behind + draws.between(-0.16, 0.16, 1, 1), hue + draws.between(-0.15, 0.15, 1, 1), 0.15)
    thing = tone(before, draws.between(0, 1, 1, 1), draws.between(0.1, 0.4, 1, 1))
    horizon = draws.between(10, 30, 1, 1) + draws.between(-0.15, 0.15, 1, 1) * (X - SIDE / 2)
    scene = over(wall, floor, coverage(horizon - Y, 3))
    scene = lit(scene, 1 + np.float32(0.16) * smooth(draws, 5) + np.float32(0.08) * smooth(draws, 13))
    reach = draws.between(1.5, 4, 1, 1)
    scene = lit(scene, 1 - HALF * coverage(shapes(reach * towards_x, reach * towards_y) - 1, 5))
    distance = shapes()
    slope_y, slope_x = np.gradient(distance, axis=(1, 2))
    rim = (1 + distance / 4).clip(0, 1)  # 1 on the outline, 0 from 4 pixels inwards
    shade = 1 + np.float32(0.45) * rim * (slope_x * towards_x + slope_y * towards_y)
    thing = lit(thing, shade * (1 + np.float32(0.05) * smooth(draws, 10)))
    scene = over(scene, thing, coverage(distance, 1.7))
    fall = (towards_x * (X - SIDE / 2) + towards_y * (Y - SIDE / 2)) / SIDE
    scene = lit(scene, 1 + draws.between(0.1, 0.5, 1, 1) * fall)
    noise = np.stack([grain(draws) for _ in range(3)], axis=1)
    return scene + draws.between(0.02, 0.09, 1, 1, 1) * noise


def painting(shapes: Shapes, draws: Draws) -> np.ndarray:
    """Dabs of a flat brush on canvas, each of its own colour; ground and shape are brushed in their own directions."""
    behind, before = lumas(draws, 0.2, 0.85, 0.25, lighter=0.2)
    hue = draws.between(0, 1, 1, 1)
    ground = tone(behind, hue, 0.35)
    figure = tone(before, hue + draws.between(0.2, 0.8, 1, 1), 0.45)
    bend_x, bend_y = 3 * smooth(draws, 3), 3 * smooth(draws, 3)
    layers = []
    for colour in (ground, figure):
        x, y = direction(draws)
        dab = dabs(draws, x * (X + bend_x) + y * (Y + bend_y), x * (Y + bend_y) - y * (X + bend_x), 8, 2.2)
        warm = np.stack([dab[:, 1], np.zeros_like(dab[:, 1]), -dab[:, 1]], axis=1)
        layers.append((colour + np.float32(0.1) * dab[:, :1] + np.float32(0.08) * warm, dab[:, 0]))
    (ground, _), (figure, stroke) = layers
    ragged = shapes(np.float32(0.7) * smooth(draws, 8), np.float32(0.7) * smooth(draws, 8)) + np.float32(0.4) * stroke
    canvas = wave(X / 2) * wave(Y / 2)
    light = 1 + np.float32(0.05) * canvas + np.float32(0.1) * smooth(draws, 4)
    return lit(over(ground, figure, coverage(ragged, 0.8)), light)


def cartoon(shapes: Shapes, draws: Draws) -> np.ndarray:
    """Flat, strong colours in black outlines: sky and hills, a shape with a darker side."""
    hue = draws.between(0, 1, 1, 1)
    sky = tone(draws.between(0.55, 0.9, 1, 1), hue, 0.7)
    hills = tone(draws.between(0.35, 0.7, 1, 1), hue + draws.between(0.15, 0.85, 1, 1), 0.8)
    fill = tone(draws.between(0.3, 0.85, 1, 1), hue + draws.between(0.2, 0.8, 1, 1), 0.9)
    ridge = draws.between(8, 28, 1, 1) + draws.between(0, 4, 1, 1) * wave(
        X / draws.between(9, 30, 1, 1) + draws.between(0, 1, 1, 1)
    )
    scene = over(over(sky, hills, coverage(ridge - Y)), np.zeros_like(sky), line(ridge - Y, 0.7) * draws.pick(0.5))
    distance = shapes()
    x, y = direction(draws)
    scene = over(scene, fill, coverage(distance))
    lee = coverage(-shapes(3 * x, 3 * y)) * coverage(distance)
    scene = over(scene, fill * np.float32(0.6), lee)
    return over(scene, np.full_like(sky, 0.06), line(distance + HALF, 1.6))


def sketch(shapes: Shapes, draws: Draws) -> np.ndarray:
    """Grey pencil on paper: one or two unsteady outlines of uneven pressure, hatching, stray lines."""
    paper = draws.between(0.8, 0.97, 1, 1) + np.float32(0.04) * smooth(draws, 4)
    pencil = np.zeros_like(paper)
    for share in (1.0, 0.6):
        wobble_x, wobble_y = (np.float32(0.9) * smooth(draws, 6) for _ in range(2))
        pressure = draws.between(0.65, 0.95, 1, 1) + np.float32(0.3) * smooth(draws, 5)
        stroke = line(shapes(wobble_x, wobble_y) + np.float32(0.4), draws.between(0.5, 1.1, 1, 1))
        pencil = np.maximum(pencil, stroke * pressure.clip(0.25, 1) * draws.pick(share))
    inside = coverage(shapes() + 1)
    for area, share in ((inside, 0.5), (1 - coverage(shapes() - 1), 0.35)):
        x, y = direction(draws)
        across = (x * X + y * Y) / draws.between(2.2, 4, 1, 1) + np.float32(0.25) * smooth(draws, 4)
        hatch = (wave(across) - np.float32(0.1)).clip(0, 1) * area * coverage(4 * smooth(draws, 2) - 1)
        pencil = np.maximum(pencil, hatch * draws.between(0.3, 0.6, 1, 1) * draws.pick(share))
    for share in (0.6, 0.4):
        x, y = direction(draws)
        stray = x * (X - draws.between(0, SIDE, 1, 1)) + y * (Y - draws.between(0, SIDE, 1, 1)) + smooth(draws, 2)
        pencil = np.maximum(pencil, line(stray, 0.3) * draws.between(0.3, 0.7, 1, 1) * draws.pick(share))
    grey = paper - pencil * (np.float32(0.75) + np.float32(0.3) * grain(draws)) + np.float32(0.03) * grain(draws)
    return np.repeat(grey[:, None], 3, axis=1)


def night(shapes: Shapes, draws: Draws) -> np.ndarray:
    """A lamp in the dark: a dim blue scene, a shape that glows and lights what is near it, specks, much noise."""
    dark = tone(draws.between(0.05, 0.16, 1, 1), draws.between(0.55, 0.75, 1, 1), 0.08)
    lamp = tone(draws.between(0.4, 0.8, 1, 1), draws.between(0, 1, 1, 1), 0.3)
    distance = shapes()
    halo = (1 - distance / draws.between(5, 12, 1, 1)).clip(0, 1)
    specks = (smooth(draws, 16) - np.float32(0.75)).clip(0, 1) * 3
    scene = (
        lit(dark, 1 + np.float32(0.6) * smooth(draws, 5)) + lamp * (np.float32(0.45) * halo * halo + specks)[:, None]
    )
    scene = over(scene, lit(lamp, 1 + (-distance / 8).clip(0, 0.5)), coverage(distance, 2.2))
    return scene + np.float32(0.12) * np.stack([grain(draws) for _ in range(3)], axis=1)


def blueprint(shapes: Shapes, draws: Draws) -> np.ndarray:
    """White lines on blue paper: a ruled grid, an outline, its centre lines."""
    paper = tone(draws.between(0.22, 0.42, 1, 1), draws.between(0.56, 0.66, 1, 1), 0.4)
    paper = lit(paper, 1 + np.float32(0.1) * smooth(draws, 4))
    ink = np.zeros((draws.count, SIDE, SIDE), np.float32)
    period, left, top = draws.between(4, 7, 1, 1), draws.between(0, 1, 1, 1), draws.between(0, 1, 1, 1)
    for place in (X / period + left, Y / period + top):
        ink = np.maximum(ink, np.float32(0.3) * line((place - np.floor(place) - HALF) * period, 0.2))
    distance = shapes()
    ink = np.maximum(ink, np.float32(0.12) * coverage(distance))
    ink = np.maximum(ink, line(distance + np.float32(0.4), draws.between(0.5, 1.2, 1, 1)))
    return over(paper, np.full_like(paper, 0.95), ink * (np.float32(0.85) + np.float32(0.15) * smooth(draws, 8)))


def mosaic(shapes: Shapes, draws: Draws) -> np.ndarray:
    """Square tiles in grey joints, each of one colour, mixed where the outline passes through it."""
    behind, before = lumas(draws, 0.2, 0.9, 0.25, lighter=0.5)
    hue = draws.between(0, 1, 1, 1)
    ground, figure = tone(behind, hue, 0.3), tone(before, hue + draws.between(0.2, 0.8, 1, 1), 0.4)
    side = draws.between(2, 2.6, 1, 1)
    x, y = direction(draws, -0.4, 0.4)
    along, across = x * X + y * Y, x * Y - y * X
    to_along = (np.floor(along / side) + HALF) * side - along  # the way to the middle of the pixel's tile
    to_across = (np.floor(across / side) + HALF) * side - across
    share = coverage(shapes(x * to_along - y * to_across, y * to_along + x * to_across) / side)
    glaze = dabs(draws, along / side, across / side, 1, 1)
    tiles = over(ground, figure, share) + np.float32(0.1) * glaze[:, :1]
    joint = coverage(side / 2 - np.maximum(np.abs(to_along), np.abs(to_across)), 0.8)
    return over(tiles, np.full_like(ground, 0.45), np.float32(0.6) * joint)


def textile(shapes: Shapes, draws: Draws) -> np.ndarray:
    """A striped patch sewn on a striped ground: four colours, stripes of about the contrast that the patch has."""
    behind, before = lumas(draws, 0.28, 0.8, 0.22, lighter=0.5)
    hue = draws.between(0, 1, 1, 1)
    cloths = []
    for luma, tint in ((behind, hue), (before, hue + draws.between(0.3, 0.7, 1, 1))):
        x, y = direction(draws)
        weave = (x * X + y * Y + np.float32(0.6) * smooth(draws, 3)) / draws.between(3, 5.5, 1, 1)
        spread = draws.between(0.09, 0.16, 1, 1)
        light, dark = tone(luma + spread, tint, 0.4), tone(luma - spread, tint + np.float32(0.08), 0.4)
        cloths.append(over(dark, light, (HALF + 2 * wave(weave)).clip(0, 1)))
    cloth = over(cloths[0], cloths[1], coverage(shapes()))
    return lit(cloth, 1 + np.float32(0.06) * wave(X / 2) * wave(Y / 2) + np.float32(0.06) * grain(draws))


Rendering = Callable[[Shapes, Draws], np.ndarray]
RENDERINGS: Mapping[str, Rendering] = {
    "photo": photo,
    "painting": painting,
    "cartoon": cartoon,
    "sketch": sketch,
    "night": night,
    "blueprint": blueprint,
    "mosaic": mosaic,
    "textile": textile,
}
"""Colours (n, 3, SIDE, SIDE), 0 to 1 before clipping, of n shapes."""
