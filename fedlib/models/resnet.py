"""ResNet-18 with GroupNorm, as FedDRM uses it (spec, 2.2); the residual blocks are torchvision's."""

from __future__ import annotations

from functools import partial

from torch import nn
from torchvision.models.resnet import BasicBlock, ResNet

from fedlib.models.network import Network, dense


def resnet18_gn(shape: tuple[int, int, int], classes: int) -> Network:
    """ResNet-18 for small images: 3x3 stem without max-pool, GroupNorm of 16 groups, 512 features -> 256 units -> head.

    Any image size, thanks to the global pool. 11,303,242 parameters for RGB and ten classes. The second GroupNorm of
    each block starts at weight 0, so that every block starts as its shortcut.
    """
    backbone = ResNet(BasicBlock, [2, 2, 2, 2], zero_init_residual=True, norm_layer=partial(nn.GroupNorm, 16))
    backbone.conv1 = nn.Conv2d(shape[0], 64, 3, padding=1, bias=False)
    backbone.maxpool = nn.Identity()
    backbone.fc = nn.Identity()
    return Network(backbone, partial(dense, 512, 256), 256, classes, initialise=_kaiming)


def _kaiming(module: nn.Module) -> None:
    """Kaiming-normal weights, by fan-out for convolutions and by fan-in with zero bias for linear layers."""
    if isinstance(module, nn.Conv2d):
        nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    elif isinstance(module, nn.Linear):
        nn.init.kaiming_normal_(module.weight, mode="fan_in", nonlinearity="relu")
        nn.init.zeros_(module.bias)
