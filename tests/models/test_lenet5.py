"""LeNet-5: FEROMA's parameter counts and latent sizes, its function written a second time, and which images it takes.

All numbers are those of the FEROMA spec, 1.4 and 2.2.
"""

from __future__ import annotations

import pickle

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from fedlib import models
from fedlib.checks import FedlibError
from fedlib.models.lenet5 import lenet5


def by_hand(state: dict[str, Tensor], x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Latent, the head's input and logits of images x, from the spec's text; tensors in the order of the layers."""
    w1, b1, w2, b2, v1, c1, v2, c2, u, d = state.values()
    x = F.avg_pool2d(F.conv2d(x, w1, b1, padding=2).clamp(min=0), 2)
    x = F.avg_pool2d(F.conv2d(x, w2, b2).clamp(min=0), 2)
    latent = x.reshape(len(x), -1)
    units = (latent @ v1.T + c1).clamp(min=0)
    units = (units @ v2.T + c2).clamp(min=0)
    return latent, units, units @ u.T + d


def seeded(shape: tuple[int, int, int], classes: int = 10):
    """A network with weights of a fixed seed, and images uniform in [0, 1]."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return lenet5(shape, classes), torch.rand(5, *shape)


@pytest.mark.parametrize(("shape", "count"), [((1, 28, 28), 61_706), ((3, 28, 28), 62_006), ((3, 32, 32), 83_126)])
def test_the_specs_counts(shape, count):
    assert sum(p.numel() for p in lenet5(shape, 10).parameters()) == count


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 28, 28), (3, 32, 32), (2, 16, 16), (3, 12, 21)])
def test_it_is_the_function_that_the_spec_describes(shape):
    network, x = seeded(shape)
    latent, units, logits = by_hand(network.state_dict(), x)
    torch.testing.assert_close(network.backbone(x), latent)
    torch.testing.assert_close(network.embed(x), units)
    torch.testing.assert_close(network(x), logits)


@pytest.mark.parametrize(("side", "latent"), [(28, 400), (32, 576), (16, 64), (12, 16)])
def test_the_latent_has_the_specs_size_and_is_not_negative(side, latent):
    network, x = seeded((3, side, side))
    z = network.backbone(x)
    assert z.shape == (5, latent)
    assert z.min() >= 0 and z.max() > 0


def test_a_gradient_reaches_every_parameter():
    network, x = seeded((3, 28, 28), classes=4)
    F.cross_entropy(network(x), torch.tensor([0, 1, 2, 3, 0])).backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0, name


def test_it_can_be_pickled_and_makes_further_branches():
    network, x = seeded((3, 16, 16))
    twin = pickle.loads(pickle.dumps(network))
    assert torch.equal(twin(x), network(x))
    assert twin.make_head(3)(twin.make_transform()(twin.backbone(x))).shape == (5, 3)


@pytest.mark.parametrize(("shape", "size"), [((3, 8, 8), "8x8"), ((3, 11, 32), "11x32"), ((1, 28, 11), "28x11")])
def test_images_too_small_are_refused(shape, size):
    message = f"model lenet5: images of {size} pixels are too small; it takes 12x12 and more: use small_cnn"
    with pytest.raises(FedlibError, match=message):
        models.build({"name": "lenet5"}, shape, 10)


def test_an_option_is_refused():
    with pytest.raises(FedlibError, match="model lenet5: unknown key 'width'"):
        models.build({"name": "lenet5", "width": 4}, (3, 28, 28), 10)
