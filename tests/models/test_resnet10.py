"""ResNet-10: the published parameter counts, sizes of its maps, and which layers are norms."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedlib import models
from fedlib.checks import FedlibError
from fedlib.models.resnet10 import is_norm, resnet10


@pytest.mark.parametrize(("classes", "count"), [(7, 4_901_703), (10, 4_903_242)])
def test_the_published_counts(classes: int, count: int):
    assert sum(p.numel() for p in resnet10((3, 32, 32), classes).parameters()) == count


@pytest.mark.parametrize("width", [4, 6])
@pytest.mark.parametrize(("side", "stem_stride"), [(32, 1), (64, 1), (64, 2), (128, 2)])
def test_maps_halve_three_times(width: int, side: int, stem_stride: int):
    network = resnet10((3, side, side), 5, width, stem_stride)
    x, sizes = torch.randn(2, 3, side, side), []
    for layer in network.backbone:
        x = layer(x)
        sizes.append(tuple(x.shape[1:]))
    s = side // stem_stride
    expected = [(width, s), (width, s), (2 * width, s // 2), (4 * width, s // 4), (8 * width, s // 8)]
    assert sizes == [(c, n, n) for c, n in expected]
    assert (x >= 0).all()
    torch.testing.assert_close(network.transform(x), x.mean((2, 3)))


def test_exactly_the_batch_norms_are_norms():
    network = resnet10((3, 32, 32), 5, 4)
    owners = {name: module for name, module in network.named_modules()}
    for name in network.state_dict():
        owner = owners[name.rpartition(".")[0]]
        assert is_norm(name) == isinstance(owner, nn.BatchNorm2d), name


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"width": 0}, "model resnet10: width: 0 is out of range"),
        ({"stem_stride": 3}, "stem_stride: 3 is out of range"),
        ({"widht": 4}, "unknown key 'widht'; did you mean 'width'?"),
    ],
)
def test_a_wrong_option_is_refused(option, message):
    with pytest.raises(FedlibError, match=message):
        models.build({"name": "resnet10", **option}, (3, 32, 32), 5)
