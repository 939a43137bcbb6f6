"""ResNet-10 with BatchNorm, as F²DC uses it (spec, 2.2)."""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn

from fedlib.checks import check_number
from fedlib.models.network import Network


class Block(nn.Module):
    """ReLU(norm2(conv2(ReLU(norm1(conv1(x))))) + shortcut(x)); 3x3 convolutions, the first one with the stride."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU()
        same = inputs == outputs and stride == 1
        self.shortcut = nn.Identity() if same else _projection(inputs, outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.relu(self.norm1(self.conv1(x)))
        return self.relu(self.norm2(self.conv2(inner)) + self.shortcut(x))


def _projection(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    layers = {"conv": nn.Conv2d(inputs, outputs, 1, stride, bias=False), "norm": nn.BatchNorm2d(outputs)}
    return nn.Sequential(OrderedDict(layers))


def pooled() -> nn.Sequential:
    """F²DC's r^F: global average pool, (N, d, H, W) -> (N, d)."""
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())


def resnet10(shape: tuple[int, int, int], classes: int, width: int = 64, stem_stride: int = 1) -> Network:
    """3x3 stem without max-pool, four blocks of width, 2, 4 and 8 times width at 1, 1/2, 1/4, 1/8 of the size.

    The backbone (r^B: stem, layer1 … layer4) ends in a map (N, d, H, W), d = 8 * width, not negative; the transform
    (r^F) pools it. 4,901,703 parameters for RGB, width 64 and seven classes. stem_stride 2 halves all sizes, for large
    images on a small machine (an addition of this collection).
    """
    check_number("model resnet10: width", width, least=1, whole=True)
    check_number("model resnet10: stem_stride", stem_stride, least=1, most=2, whole=True)
    stem = nn.Sequential(
        OrderedDict(
            conv=nn.Conv2d(shape[0], width, 3, stem_stride, padding=1, bias=False),
            norm=nn.BatchNorm2d(width),
            relu=nn.ReLU(),
        )
    )
    backbone = nn.Sequential(
        OrderedDict(
            stem=stem,
            layer1=Block(width, width, 1),
            layer2=Block(width, 2 * width, 2),
            layer3=Block(2 * width, 4 * width, 2),
            layer4=Block(4 * width, 8 * width, 2),
        )
    )
    return Network(backbone, pooled, 8 * width, classes)


def is_norm(name: str) -> bool:
    """Whether the tensor of this name belongs to a normalisation layer: all models here call those norm, norm1, ...."""
    return any(part.startswith("norm") for part in name.split("."))
