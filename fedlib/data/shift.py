"""Covariate shift: how one client's images look, as a function of its index (FedDRM spec, 3.3), and a random crop."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.nn.functional import grid_sample
from torchvision.transforms import functional

from fedlib.checks import FedlibError, check_choice, check_number
from fedlib.data.spec import resolve

LEVELS: dict[str, dict[str, tuple[float, float]]] = {
    "low": {"gamma": (0.9, 1.1), "hue": (-0.01, 0.01), "saturation": (0.9, 1.1)},
    "mid": {"gamma": (0.75, 1.25), "hue": (-0.05, 0.05), "saturation": (0.7, 1.3)},
    "high": {"gamma": (0.6, 1.4), "hue": (-0.1, 0.1), "saturation": (0.5, 1.5)},
}
"""The two values of each property at each intensity: the first where the client's bit is 0."""


@dataclass(frozen=True)
class Appearance:
    """How a client's images look; the defaults change nothing.

    gamma: I -> 255·(I/255)^gamma, so below 1 brightens.    hue: shift of the hue circle, -0.5 to 0.5.
    saturation: 0 is grey, 1 unchanged.                     posterize_bits: bits kept of each channel, 1 to 8.
    mean, std: of each channel, 0 to 1: standardised, so that ±3 std fill the range (both given, or neither).
    """

    gamma: float = 1.0
    hue: float = 0.0
    saturation: float = 1.0
    posterize_bits: int = 8
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        check_number("appearance: gamma", self.gamma, above=0)
        check_number("appearance: hue", self.hue, least=-0.5, most=0.5)
        check_number("appearance: saturation", self.saturation, least=0)
        check_number("appearance: posterize_bits", self.posterize_bits, least=1, most=8, whole=True)
        for name in ("mean", "std") if (self.mean, self.std) != (None, None) else ():
            row = getattr(self, name)
            if not isinstance(row, tuple) or len(row) != 3:
                raise FedlibError(f"appearance: {name}: {row!r} is not one number a channel; give three, 0 to 1")
            for value in row:
                check_number(f"appearance: {name}", value, least=0 if name == "mean" else 0.001, most=1)


def bit_grid(client: int, level: str = "high") -> Appearance:
    """The paper's default shift: bit 0 of the index selects gamma, bit 1 hue, bit 2 saturation; repeats after 8.

    level: "low", "mid" or "high" (LEVELS; the intensity ablation, "high" is the default setting).
    """
    check_number("shift 'bit_grid': client", client, least=0, whole=True)
    values = LEVELS[check_choice("shift 'bit_grid': level", level, LEVELS)]
    return Appearance(
        gamma=values["gamma"][client & 1],
        hue=values["hue"][client >> 1 & 1],
        saturation=values["saturation"][client >> 2 & 1],
    )


def cube_grid(client: int) -> Appearance:
    """The grid of the number-of-clients study: 3 gammas x 3 hues x 3 saturations, then all posterized to 2 bits.

    It repeats after 54. With 8 clients every saturation is 0.4, so this is not the main setting's shift.
    """
    check_number("shift 'cube_grid': client", client, least=0, whole=True)
    return Appearance(
        gamma=(0.6, 1.0, 1.4)[client % 3],
        hue=(-0.15, 0.0, 0.15)[client // 3 % 3],
        saturation=(0.4, 1.0, 1.6)[client // 9 % 3],
        posterize_bits=(8, 2)[client // 27 % 2],
    )


def standardise(client: int, mean: Sequence[Sequence[float]], std: Sequence[Sequence[float]]) -> Appearance:
    """(x - mean) / std of each channel, by row `client` of mean and std; by their one row, if they have one."""
    for name, rows in (("mean", mean), ("std", std)):
        if not isinstance(rows, Sequence) or not rows or not all(isinstance(row, Sequence) for row in rows):
            raise FedlibError(f"shift 'standardise': {name}: {rows!r} is no list of rows; give [[red, green, blue], …]")
        if len(rows) != len(mean) or (len(rows) != 1 and client >= len(rows)):
            raise FedlibError(
                f"shift 'standardise': {name} has {len(rows)} rows, mean {len(mean)}; give one a client, or one for all"
            )
    row = 0 if len(mean) == 1 else client
    return Appearance(mean=tuple(mean[row]), std=tuple(std[row]))


SHIFTS: dict[str, Callable[..., Appearance]] = {
    "bit_grid": bit_grid,
    "cube_grid": cube_grid,
    "standardise": standardise,
}


def appearance(spec: Mapping[str, Any] | None, client: int) -> Appearance:
    """The look of `client` under `spec`, such as {"name": "bit_grid", "level": "high"}; None is no shift."""
    if spec is None:
        return Appearance()
    function, settings = resolve("shift", SHIFTS, spec, supplied=("client",))
    return function(client, **settings)


def check_spec(spec: Mapping[str, Any] | None) -> None:
    """Raise FedlibError unless `spec` is None or names a shift and fits it."""
    appearance(spec, 0)


def apply(images: torch.Tensor, look: Appearance) -> torch.Tensor:
    """`images` with `look`: saturation, hue, gamma, posterize, standardise, in 8 bits after each (FedDRM spec, 3.3).

    images: uint8, (N, 3, H, W). Returns a new tensor of that type, shape and device. The arithmetic is
    Pillow's, as in the paper's pipeline, hence the same on every machine. A step that is neutral is left out.
    """
    if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] != 3:
        raise FedlibError(f"shift: images are {images.dtype} {tuple(images.shape)}, not uint8 (N, 3, H, W)")
    if look == Appearance() or not len(images):
        return images.clone()
    pixels = images.permute(0, 2, 3, 1).cpu().numpy()
    # Every step treats each pixel by itself, so the whole batch may go through as one tall picture.
    tall = Image.fromarray(np.ascontiguousarray(pixels).reshape(-1, pixels.shape[2], 3))
    if look.saturation != 1:
        tall = functional.adjust_saturation(tall, look.saturation)
    if look.hue != 0:
        tall = functional.adjust_hue(tall, look.hue)
    if look.gamma != 1:
        tall = functional.adjust_gamma(tall, look.gamma)
    if look.posterize_bits != 8:
        tall = functional.posterize(tall, look.posterize_bits)
    looked = np.array(tall).reshape(pixels.shape)
    if look.mean is not None:
        scores = (looked / 255 - np.array(look.mean)) / np.array(look.std)
        looked = np.rint(255 * np.clip(0.5 + scores / 6, 0, 1)).astype(np.uint8)
    return torch.from_numpy(looked).permute(0, 3, 1, 2).to(images.device)


def random_boxes(
    count: int,
    height: int,
    width: int,
    generator: torch.Generator,
    scale: tuple[float, float] = (0.9, 1.0),
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
) -> torch.Tensor:
    """Crop boxes by the rule of torchvision's RandomResizedCrop: int64, (count, 4), rows (top, left, height, width).

    The area's share is uniform in `scale`, the aspect ratio log-uniform in `ratio`, sides are rounded; of ten draws
    the first that fits in the image counts, else the largest centred box with a ratio within `ratio`.
    """
    for name, (low, high), most in (("scale", scale, 1.0), ("ratio", ratio, math.inf)):
        check_number(f"random crop: {name}[0]", low, above=0)
        check_number(f"random crop: {name}[1]", high, least=low, most=most)
    tries = 10
    area, aspect = torch.rand(2, tries, count, generator=generator, device=generator.device, dtype=torch.float64)
    area = height * width * (scale[0] + (scale[1] - scale[0]) * area)
    aspect = torch.exp(math.log(ratio[0]) + (math.log(ratio[1]) - math.log(ratio[0])) * aspect)
    sides = torch.stack([(area / aspect).sqrt(), (area * aspect).sqrt()]).round().long()
    limit = torch.tensor([height, width], device=sides.device)
    fits = ((sides > 0) & (sides <= limit[:, None, None])).all(dim=0)
    first = sides.gather(1, fits.byte().argmax(dim=0).expand(2, 1, count)).squeeze(1)
    fallback = torch.tensor(
        [min(height, round(width / ratio[0])), min(width, round(height * ratio[1]))], device=sides.device
    )
    drawn = fits.any(dim=0)
    size = torch.where(drawn, first, fallback[:, None])
    room = limit[:, None] - size
    place = torch.rand(2, count, generator=generator, device=generator.device, dtype=torch.float64)
    corner = torch.where(drawn, (place * (room + 1)).long(), room // 2)
    return torch.cat([corner, size]).T


def crop_resize(images: torch.Tensor, boxes: torch.Tensor) -> torch.Tensor:
    """Each image cut to its box and resized back to (H, W), bilinearly and without antialiasing.

    images: floating point, (N, C, H, W), of either memory format; both are kept. boxes: as `random_boxes` makes them.
    """
    top_left, sides = boxes.to(images.device).float().split(2, dim=1)
    axes = []
    for axis, size in enumerate(images.shape[-2:]):
        centres = torch.arange(size, device=images.device) + 0.5
        start, side = top_left[:, axis, None], sides[:, axis, None]
        # A crop ends at its outermost pixel centres: clamping keeps pixels beyond it from being blended in.
        source = (start + centres * side / size - 0.5).clamp(start, start + side - 1)
        axes.append((2 * source + 1) / size - 1)
    y, x = axes
    grid = torch.stack(torch.broadcast_tensors(x[:, None, :], y[:, :, None]), dim=-1)
    sampled = grid_sample(images.float(), grid, mode="bilinear", padding_mode="border", align_corners=False)
    return torch.empty_like(images).copy_(sampled)


def random_resized_crop(
    images: torch.Tensor,
    generator: torch.Generator,
    scale: tuple[float, float] = (0.9, 1.0),
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
) -> torch.Tensor:
    """RandomResizedCrop to the images' own size, one box an image (FedDRM spec, 3.3: the default scale and ratio).

    images: floating point, (N, C, H, W). Randomness comes from `generator` only.
    """
    height, width = images.shape[-2:]
    return crop_resize(images, random_boxes(len(images), height, width, generator, scale, ratio))


def padded_crop(images: torch.Tensor, padding: int, generator: torch.Generator) -> torch.Tensor:
    """Each image padded with black and cut back to its size at a random place, as torchvision's RandomCrop does it.

    images: (N, C, H, W). Returns the same shape, channels last in memory.
    """
    count, _, height, width = images.shape
    corner = torch.randint(2 * padding + 1, (2, count, 1), generator=generator, device=generator.device)
    rows, columns = corner.to(images.device) + torch.arange(max(height, width), device=images.device)
    padded = torch.nn.functional.pad(images, [padding] * 4)
    each = torch.arange(count, device=images.device)[:, None, None]
    return padded[each, :, rows[:, :height, None], columns[:, None, :width]].permute(0, 3, 1, 2)


def random_flip(images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Each image mirrored left to right with probability 1/2."""
    mirrored = torch.rand(len(images), generator=generator, device=generator.device) < 0.5
    return torch.where(mirrored.to(images.device)[:, None, None, None], images.flip(-1), images)
