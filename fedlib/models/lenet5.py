"""LeNet-5 as FEROMA uses it: ReLU, average pools, no normalisation."""

from __future__ import annotations

from collections import OrderedDict
from functools import partial

from torch import nn

from fedlib.checks import FedlibError
from fedlib.models.network import Network


def lenet5(shape: tuple[int, int, int], classes: int) -> Network:
    """conv5x5 6 (padded), pool, conv5x5 16, pool, 120 and 84 units, head, with ReLU between (FEROMA spec, 2.2).

    The backbone ends in FEROMA's latent z >= 0, 16 maps flattened: 400 numbers for 28x28 pixels, 576 for 32x32 and 64
    for 16x16. 61,706 parameters for one channel of 28x28 and ten classes, 62,006 for RGB, 83,126 for RGB of 32x32.
    Initialised as PyTorch does. Raises FedlibError for images below 12x12, of which no map is left.
    """
    channels, *sides = shape
    height, width = ((side // 2 - 4) // 2 for side in sides)
    if min(height, width) < 1:
        raise FedlibError(
            f"model lenet5: images of {sides[0]}x{sides[1]} pixels are too small; it takes 12x12 and more: use "
            "small_cnn or larger images"
        )
    backbone = nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(channels, 6, 5, padding=2),
            relu1=nn.ReLU(),
            pool1=nn.AvgPool2d(2),
            conv2=nn.Conv2d(6, 16, 5),
            relu2=nn.ReLU(),
            pool2=nn.AvgPool2d(2),
            flat=nn.Flatten(),
        )
    )
    return Network(backbone, partial(_units, 16 * height * width), 84, classes)


def _units(features: int) -> nn.Sequential:
    return nn.Sequential(
        OrderedDict(fc1=nn.Linear(features, 120), relu1=nn.ReLU(), fc2=nn.Linear(120, 84), relu2=nn.ReLU())
    )
