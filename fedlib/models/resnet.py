"""ResNet-18: with GroupNorm, as FedDRM uses it (spec, 2.2), and with BatchNorm, as FedFew does (spec, 2.2)."""

from __future__ import annotations

from collections import OrderedDict
from functools import partial

from torch import nn
from torchvision.models.resnet import BasicBlock, ResNet

from fedlib.checks import check_number
from fedlib.models.network import Network, dense
from fedlib.models.resnet10 import Block, pooled


def resnet18_gn(shape: tuple[int, int, int], classes: int) -> Network:
    """ResNet-18 for small images: 3x3 stem without max-pool, GroupNorm of 16 groups, 512 features -> 256 units -> head.

    The residual blocks are torchvision's. Any image size, thanks to the global pool. 11,303,242 parameters for RGB and
    ten classes. The second GroupNorm of each block starts at weight 0, so that every block starts as its shortcut.
    """
    backbone = ResNet(BasicBlock, [2, 2, 2, 2], zero_init_residual=True, norm_layer=partial(nn.GroupNorm, 16))
    backbone.conv1 = nn.Conv2d(shape[0], 64, 3, padding=1, bias=False)
    backbone.maxpool = nn.Identity()
    backbone.fc = nn.Identity()
    return Network(backbone, partial(dense, 512, 256), 256, classes, initialise=_kaiming)


def resnet18(shape: tuple[int, int, int], classes: int, width: int = 64) -> Network:
    """torchvision's ResNet-18, the same function of the same weights under names of this collection (is_norm).

    7x7 stem of stride 2 with max-pool, then two blocks each of width, 2, 4 and 8 times width at 1/4, 1/8, 1/16, 1/32
    of the size; the backbone ends in that map, the transform pools it. 11,180,616 parameters for RGB, width 64 and
    eight classes. Fresh weights follow torchvision's rule, as the released code has them: none are pre-trained. width
    is an addition of this collection, for small machines.
    """
    check_number("model resnet18: width", width, least=1, whole=True)
    stem = nn.Sequential(
        OrderedDict(
            conv=nn.Conv2d(shape[0], width, 7, 2, padding=3, bias=False),
            norm=nn.BatchNorm2d(width),
            relu=nn.ReLU(),
            pool=nn.MaxPool2d(3, 2, padding=1),
        )
    )
    layers: OrderedDict[str, nn.Module] = OrderedDict(stem=stem, layer1=_stage(width, width, 1))
    for k in (2, 3, 4):
        layers[f"layer{k}"] = _stage(2 ** (k - 2) * width, 2 ** (k - 1) * width, 2)
    return Network(nn.Sequential(layers), pooled, 8 * width, classes, initialise=_kaiming_convolutions)


def _stage(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    return nn.Sequential(Block(inputs, outputs, stride), Block(outputs, outputs, 1))


def _kaiming_convolutions(module: nn.Module) -> None:
    """Kaiming-normal convolutions by fan-out; linear layers keep PyTorch's default, norms start as the identity."""
    if isinstance(module, nn.Conv2d):
        nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


def _kaiming(module: nn.Module) -> None:
    """Kaiming-normal weights, by fan-out for convolutions and by fan-in with zero bias for linear layers."""
    if isinstance(module, nn.Conv2d):
        nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    elif isinstance(module, nn.Linear):
        nn.init.kaiming_normal_(module.weight, mode="fan_in", nonlinearity="relu")
        nn.init.zeros_(module.bias)
