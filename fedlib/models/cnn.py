"""Small convolutional networks, and the linear model of the closed-form tests."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Literal

from torch import nn

from fedlib.checks import FedlibError, check_number
from fedlib.models.network import Network, dense

Shape = tuple[int, int, int]

TRUNK_PIECES = {"no_share": 0, "shallow": 1, "mid": 2, "deep": 3}
"""How many of LeNetGN's four pieces the branches share, by sharing level (FedDRM spec, 2.3)."""


def small_cnn(shape: Shape, classes: int) -> Network:
    """Two strided 5x5 convolutions (16, 32 channels, GroupNorm of 4 groups), a 2x2 average pool and 128 -> 64 units.

    For smoke and laptop scale, any image size. 23,130 parameters for ten classes; strides come before any wide layer,
    which is what makes it cheap on a CPU.
    """
    backbone = nn.Sequential(
        *_strided(shape[0], 16),
        *_strided(16, 32),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
    )
    return Network(backbone, partial(dense, 128, 64), 64, classes)


def lenet_gn(shape: Shape, classes: int, sharing: Literal["no_share", "shallow", "mid", "deep"] = "deep") -> Network:
    """LeNetGN of FedDRM's study of sharing depth (spec, 2.3): conv 32, conv 64, dense 512-256, dense 128, head.

    sharing: how deep the trunk common to all branches reaches; the rest is each branch's own transform.
    Raises FedlibError for images below 16x16.
    """
    cut = TRUNK_PIECES[sharing]
    return Network(_lenet_part(shape, 0, cut), partial(_lenet_part, shape, cut, 4), 128, classes)


def mcmahan_cnn(shape: Shape, classes: int) -> Network:
    """The CNN of McMahan et al. (AISTATS 2017): conv5x5 32, pool, conv5x5 64, pool, 512 units, head; no normalisation.

    1,663,370 parameters for one channel of 28x28 and ten classes, as published. Raises FedlibError below 4x4.
    """
    channels, height, width = shape
    backbone = nn.Sequential(
        nn.Conv2d(channels, 32, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
    )
    features = _flat_features("mcmahan_cnn", shape, 64, height // 4, width // 4)
    return Network(backbone, partial(_hidden, features, 512), 512, classes)


def cnn4(shape: Shape, classes: int, width: int = 32, hidden: int = 512) -> Network:
    """FedFew's CNN of four layers (spec, 2.2): conv5x5 32, pool, conv5x5 64, pool, 512 units, head; no padding.

    878,538 parameters for 32x32 RGB images and ten classes, as in the released code. FEMNIST's 608,702 are for one
    channel of 28x28 and 62 classes: images here are RGB, which makes 610,302. width, hidden: of the first convolution
    (the second has twice as many channels) and of the units, for small machines (an addition of this collection).
    Raises FedlibError for images below 16x16.
    """
    check_number("model cnn4: width", width, least=1, whole=True)
    check_number("model cnn4: hidden", hidden, least=1, whole=True)
    backbone = nn.Sequential(
        nn.Conv2d(shape[0], width, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
    )
    features = _flat_features("cnn4", shape, 2 * width, *_unpadded(shape))
    return Network(backbone, partial(_hidden, features, hidden), hidden, classes)


def linear(shape: Shape, classes: int) -> Network:
    """Softmax regression on the pixels: for tests against closed forms."""
    channels, height, width = shape
    return Network(nn.Flatten(), nn.Identity, channels * height * width, classes)


def _strided(inputs: int, outputs: int) -> tuple[nn.Module, ...]:
    return nn.Conv2d(inputs, outputs, 5, stride=2, padding=2, bias=False), nn.GroupNorm(4, outputs), nn.ReLU()


def _unpadded(shape: Shape) -> list[int]:
    """Height and width after two 5x5 convolutions without padding, each with a pool behind it."""
    return [((side - 4) // 2 - 4) // 2 for side in shape[1:]]


def _hidden(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, outputs), nn.ReLU())


def _lenet_part(shape: Shape, start: int, stop: int) -> nn.Sequential:
    """LeNetGN's pieces `start` to `stop` (exclusive), with fresh weights; pieces outside draw none."""
    features = _flat_features("lenet_gn", shape, 64, *_unpadded(shape))
    pieces: dict[str, Callable[[], nn.Module]] = {
        "c1": lambda: nn.Sequential(nn.Conv2d(shape[0], 32, 5), nn.GroupNorm(8, 32), nn.ReLU(), nn.MaxPool2d(2)),
        "c2": lambda: nn.Sequential(nn.Conv2d(32, 64, 5), nn.GroupNorm(16, 64), nn.ReLU(), nn.MaxPool2d(2)),
        "fc": lambda: nn.Sequential(nn.Flatten(), *dense(features, 512), *dense(512, 256)),
        "dec": lambda: dense(256, 128),
    }
    return nn.Sequential(OrderedDict((name, make()) for name, make in list(pieces.items())[start:stop]))


def _flat_features(model: str, shape: Shape, channels: int, height: int, width: int) -> int:
    """Number of features after the last pool, or an error when a side has shrunk to nothing."""
    if min(height, width) < 1:
        raise FedlibError(f"model {model}: images of {shape[1]}x{shape[2]} pixels are too small; use small_cnn")
    return channels * height * width
