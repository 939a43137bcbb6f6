import pickle

import pytest
import torch
from torch import nn

from fedlib.checks import FedlibError
from fedlib.models.cnn import cnn4, lenet_gn, linear, mcmahan_cnn, small_cnn

RGB32 = (3, 32, 32)
# FedDRM spec, 2.3: target branch and client branch with ten classes and m = 8 clients
SHARING = {"no_share": 2_081_554, "shallow": 2_079_058, "mid": 2_027_666, "deep": 1_075_090}


def count(*modules: nn.Module) -> int:
    return sum(p.numel() for module in modules for p in module.parameters())


@pytest.mark.parametrize(("sharing", "parameters"), SHARING.items())
def test_lenet_gn_has_the_papers_parameters_at_each_sharing_level(sharing, parameters):
    net = lenet_gn(RGB32, 10, sharing)
    assert count(net, net.make_transform(), net.make_head(8)) == parameters


@pytest.mark.parametrize(
    ("sharing", "features"),
    {"no_share": (3, 32, 32), "shallow": (32, 14, 14), "mid": (64, 5, 5), "deep": (256,)}.items(),
)
def test_lenet_gn_trunk_ends_where_the_sharing_level_says(sharing, features):
    net, images = lenet_gn(RGB32, 10, sharing), torch.zeros(2, *RGB32)
    assert net.backbone(images).shape == (2, *features)
    assert net.transform(net.backbone(images)).shape == (2, 128) and net(images).shape == (2, 10)


def test_lenet_gn_computes_the_same_function_at_every_sharing_level():
    images = torch.linspace(-1, 1, 2 * 3 * 32 * 32).reshape(2, *RGB32)
    outputs = []
    for sharing in SHARING:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            outputs.append(lenet_gn(RGB32, 10, sharing)(images))
    assert all(torch.equal(outputs[0], other) for other in outputs[1:])


def test_lenet_gn_normalises_in_groups_of_the_spec_and_never_by_batch():
    modules = list(lenet_gn(RGB32, 10).modules())
    assert [m.num_groups for m in modules if isinstance(m, nn.GroupNorm)] == [8, 16]
    assert not [m for m in modules if isinstance(m, nn.modules.batchnorm._BatchNorm)]


def test_lenet_gn_takes_images_down_to_16_pixels():
    assert lenet_gn((3, 16, 20), 4)(torch.zeros(1, 3, 16, 20)).shape == (1, 4)
    with pytest.raises(FedlibError, match="lenet_gn: images of 15x32 pixels are too small; use small_cnn"):
        lenet_gn((3, 15, 32), 10)


def test_mcmahan_cnn_has_the_published_parameter_count():
    net = mcmahan_cnn((1, 28, 28), 10)
    assert count(net) == 1_663_370
    images = torch.zeros(2, 1, 28, 28)
    assert net.backbone(images).shape == (2, 3136) and net(images).shape == (2, 10)


def test_mcmahan_cnn_takes_its_channels_from_the_images():
    assert count(mcmahan_cnn((3, 28, 28), 10)) == 1_663_370 + 2 * 25 * 32
    with pytest.raises(FedlibError, match="mcmahan_cnn: images of 3x28 pixels are too small"):
        mcmahan_cnn((1, 3, 28), 10)


@pytest.mark.parametrize(
    ("shape", "classes", "features", "parameters"),
    [
        ((3, 32, 32), 10, 1600, 878_538),
        ((3, 32, 32), 100, 1600, 924_708),
        ((3, 64, 64), 200, 10_816, 5_694_600),
        ((1, 28, 28), 62, 1024, 608_702),
        ((3, 28, 28), 62, 1024, 608_702 + 2 * 25 * 32),
    ],
)
def test_cnn4_has_the_parameters_of_fedfews_spec(shape, classes, features, parameters):
    """FedFew spec, 2.2; and of FEMNIST in RGB, as it is here, two channels more of the first filters."""
    net, images = cnn4(shape, classes), torch.zeros(2, *shape)
    assert count(net) == parameters
    assert net.backbone(images).shape == (2, features) and net.transform(net.backbone(images)).shape == (2, 512)
    assert net(images).shape == (2, classes) and count(net.head) == 513 * classes


def test_cnn4_can_be_made_small_and_takes_images_down_to_16_pixels():
    assert count(cnn4((3, 16, 16), 5, width=4, hidden=6)) == (75 + 1) * 4 + (100 + 1) * 8 + (8 + 1) * 6 + (6 + 1) * 5
    with pytest.raises(FedlibError, match="cnn4: images of 15x32 pixels are too small; use small_cnn"):
        cnn4((3, 15, 32), 10)
    with pytest.raises(FedlibError, match="model cnn4: width: 0 is out of range; give a whole number at least 1"):
        cnn4(RGB32, 10, width=0)
    with pytest.raises(FedlibError, match=r"model cnn4: hidden: 1.5 is float, not a whole number"):
        cnn4(RGB32, 10, hidden=1.5)


@pytest.mark.parametrize("side", [16, 28, 32, 64])
def test_small_cnn_takes_any_size_with_the_same_parameters(side):
    net = small_cnn((3, side, side), 10)
    images = torch.zeros(2, 3, side, side)
    assert net.backbone(images).shape == (2, 128) and net(images).shape == (2, 10)
    # convolutions, their GroupNorms, 128 -> 64 with LayerNorm, head
    assert count(net) == (3 * 16 + 16 * 32) * 25 + 2 * (16 + 32) + 129 * 64 + 2 * 64 + 65 * 10 == 23_130


def test_linear_is_an_affine_function_of_the_pixels():
    net, images = linear((3, 2, 2), 4), torch.arange(24.0).reshape(2, 3, 2, 2)
    assert torch.equal(net(images), images.flatten(1) @ net.head.weight.T + net.head.bias)
    assert [name for name, _ in net.named_parameters()] == ["head.weight", "head.bias"]


@pytest.mark.parametrize("builder", [small_cnn, lenet_gn, mcmahan_cnn, cnn4])
def test_a_network_can_be_pickled(builder):
    net = builder(RGB32, 10)
    twin = pickle.loads(pickle.dumps(net))
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), twin.parameters(), strict=True))
    assert count(twin.make_transform()) == count(net.transform)
