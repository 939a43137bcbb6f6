"""ResNet-9: FEROMA's parameter counts and latent sizes, its function written a second time, and what it refuses.

All numbers are those of the FEROMA spec, 1.4 and 2.2.
"""

from __future__ import annotations

import pickle

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedlib import models
from fedlib.checks import FedlibError
from fedlib.models.network import is_statistic
from fedlib.models.resnet9 import resnet9
from fedlib.models.resnet10 import is_norm


def by_hand(state: dict[str, Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    """Latent and logits of images x in evaluation mode, from the spec's text; tensors in the order of the layers."""
    tensors = iter(state.values())

    def block(x: Tensor) -> Tensor:
        weight, bias, gamma, beta, mean, variance, _ = (next(tensors) for _ in range(7))
        x = F.conv2d(x, weight, bias, padding=1)
        scale = gamma / (variance + 1e-5).sqrt()
        return ((x - mean[:, None, None]) * scale[:, None, None] + beta[:, None, None]).clamp(min=0)

    x = F.max_pool2d(block(block(x)), 2)
    x = x + block(block(x))
    x = F.max_pool2d(block(x), 2)
    x = F.max_pool2d(block(x), 2)
    x = x + block(block(x))
    latent = F.max_pool2d(x, 2).reshape(len(x), -1)
    return latent, latent @ next(tensors).T + next(tensors)


def seeded(shape: tuple[int, int, int], classes: int = 5, width: int = 3):
    """A small network with weights and statistics of a fixed seed, and images uniform in [0, 1]."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = resnet9(shape, classes, width)
        for layer in network.modules():
            if isinstance(layer, nn.BatchNorm2d):
                nn.init.uniform_(layer.running_mean, -0.2, 0.2)
                nn.init.uniform_(layer.running_var, 0.5, 2)
        return network, torch.rand(4, *shape)


@pytest.mark.parametrize(
    ("shape", "classes", "count", "latent"),
    [((3, 32, 32), 100, 6_775_140, 2048), ((1, 64, 64), 14, 6_683_790, 8192), ((3, 64, 64), 20, 6_734_100, 8192)],
    ids=["CIFAR-100", "CheXpert", "Office-Home"],
)
def test_the_specs_counts(shape, classes, count, latent):
    network = resnet9(shape, classes)
    assert sum(p.numel() for p in network.parameters()) == count
    assert network.width == latent


@pytest.mark.parametrize(("side", "latent"), [(16, 512), (28, 512), (32, 2048), (64, 8192)])
@pytest.mark.parametrize("width", [2, 4])
def test_the_latent_has_the_specs_size_and_is_not_negative(side, latent, width):
    network, x = seeded((3, side, side), width=width)
    z = network.backbone(x)
    assert z.shape == (4, latent * width // 64)
    assert z.min() >= 0 and z.max() > 0
    assert network.embed(x).shape == z.shape and network.head.in_features == z.shape[1]


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 28, 28), (4, 16, 35)])
def test_it_is_the_function_that_the_spec_describes(shape):
    network, x = seeded(shape)
    network.eval()
    latent, logits = by_hand(network.state_dict(), x)
    torch.testing.assert_close(network.backbone(x), latent)
    torch.testing.assert_close(network(x), logits)


@pytest.mark.parametrize("training", [False, True])
def test_a_gradient_reaches_every_parameter(training):
    """In training mode all but the convolutions' biases, which BatchNorm takes away again."""
    network, x = seeded((3, 32, 32))
    F.cross_entropy(network.train(training)(x), torch.tensor([0, 1, 2, 3])).backward()
    for name, parameter in network.named_parameters():
        if not (training and name.endswith("conv.bias")):
            assert parameter.grad is not None and parameter.grad.abs().sum() > 1e-6, name


def test_exactly_the_batch_norms_are_norms_and_their_statistics_are_told_apart():
    network = resnet9((3, 32, 32), 5, 2)
    owners = dict(network.named_modules())
    for name in network.state_dict():
        owner = owners[name.rpartition(".")[0]]
        assert is_norm(name) == isinstance(owner, nn.BatchNorm2d), name
    statistics = [name for name in network.state_dict() if is_statistic(name)]
    assert len(statistics) == 3 * 8 and not {name for name, _ in network.named_parameters()} & set(statistics)


def test_it_can_be_pickled_and_makes_further_branches():
    network, x = seeded((3, 16, 16))
    twin = pickle.loads(pickle.dumps(network))
    assert torch.equal(twin.eval()(x), network.eval()(x))
    assert twin.make_head(3)(twin.make_transform()(twin.backbone(x))).shape == (4, 3)


@pytest.mark.parametrize(
    ("option", "shape", "message"),
    [
        ({}, (3, 15, 32), "model resnet9: images of 15x32 pixels are too small; it takes 16x16 and more"),
        ({}, (3, 8, 8), "images of 8x8 pixels are too small; .*: use small_cnn"),
        ({"width": 0}, (3, 32, 32), "model resnet9: width: 0 is out of range"),
        ({"width": 1.5}, (3, 32, 32), "model resnet9: width: 1.5 is float, not a whole number"),
        ({"widht": 4}, (3, 32, 32), "unknown key 'widht'; did you mean 'width'?"),
    ],
)
def test_wrong_sizes_and_options_are_refused(option, shape, message):
    with pytest.raises(FedlibError, match=message):
        models.build({"name": "resnet9", **option}, shape, 5)
