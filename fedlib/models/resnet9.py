"""ResNet-9 with BatchNorm, as FEROMA uses it (spec, 2.2)."""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn

from fedlib.checks import FedlibError, check_number
from fedlib.models.network import Network


def resnet9(shape: tuple[int, int, int], classes: int, width: int = 64) -> Network:
    """Block of w = width; blocks of 2w, 4w and 8w, each with a pool; two 2w and two 8w blocks added; pool; head.

    prep w -> layer1 2w, pool -> residual1 2w -> layer2 4w, pool -> layer3 8w, pool -> residual3 8w -> pool, flattened.
    The backbone ends in FEROMA's latent z >= 0: for width 64 it has 512 numbers for 28x28 pixels, 2,048 for 32x32 and
    8,192 for 64x64. The transform is the identity, so the head is on z itself. 6,775,140 parameters for RGB of 32x32
    and 100 classes. Initialised as PyTorch does. width: below 64 for small machines (an addition of this collection).
    layer1 and layer3 are head1 and head3 in the spec, which would be mistaken for the network's head.
    Raises FedlibError for images below 16x16, of which four pools leave nothing.
    """
    check_number("model resnet9: width", width, least=1, whole=True)
    channels, *sides = shape
    if min(sides) < 16:
        raise FedlibError(
            f"model resnet9: images of {sides[0]}x{sides[1]} pixels are too small; it takes 16x16 and more: use "
            "small_cnn or larger images"
        )
    backbone = nn.Sequential(
        OrderedDict(
            prep=_block(channels, width),
            layer1=_block(width, 2 * width, pool=True),
            residual1=Added(2 * width),
            layer2=_block(2 * width, 4 * width, pool=True),
            layer3=_block(4 * width, 8 * width, pool=True),
            residual3=Added(8 * width),
            pool=nn.MaxPool2d(2),
            flat=nn.Flatten(),
        )
    )
    return Network(backbone, nn.Identity, 8 * width * (sides[0] // 16) * (sides[1] // 16), classes)


class Added(nn.Module):
    """x + block2(block1(x)), all of the same size: not negative where x is not."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.block1 = _block(channels, channels)
        self.block2 = _block(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.block2(self.block1(x))


def _block(inputs: int, outputs: int, pool: bool = False) -> nn.Sequential:
    """3x3 convolution with bias, BatchNorm, ReLU, and a 2x2 maximum pool where asked for."""
    layers: dict[str, nn.Module] = {
        "conv": nn.Conv2d(inputs, outputs, 3, padding=1),
        "norm": nn.BatchNorm2d(outputs),
        "relu": nn.ReLU(),
    }
    return nn.Sequential(OrderedDict(layers | ({"pool": nn.MaxPool2d(2)} if pool else {})))
