import math

import pytest
import torch
from torch import nn
from torchvision.models import resnet18 as original_resnet18
from torchvision.models.resnet import BasicBlock

from fedlib.checks import FedlibError
from fedlib.models.network import Network
from fedlib.models.resnet import resnet18, resnet18_gn
from fedlib.models.resnet10 import is_norm


@pytest.fixture(scope="module")
def net() -> Network:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return resnet18_gn((3, 32, 32), 10)


def count(*modules: nn.Module) -> int:
    return sum(p.numel() for module in modules for p in module.parameters())


def test_parts_have_the_specs_parameter_counts(net):
    assert count(net.backbone) == 11_168_832
    assert count(net.transform) == 131_328 + 512
    assert count(net.make_head(8)) == 2_056
    assert count(net.make_transform(), net.make_head(8)) == 133_896


@pytest.mark.parametrize(
    ("classes", "baseline", "feddrm"),
    [(10, 11_303_242, 11_437_138), (20, 11_305_812, 11_439_708), (100, 11_326_372, 11_460_268)],
)
def test_whole_models_have_the_specs_parameter_counts(net, classes, baseline, feddrm):
    with_head = count(net.backbone, net.transform, net.make_head(classes))
    assert with_head == baseline
    assert with_head + count(net.make_transform(), net.make_head(8)) == feddrm


def test_stages_have_the_specs_shapes(net):
    shapes = {}
    hooks = [
        module.register_forward_hook(lambda _, __, output, name=name: shapes.update({name: tuple(output.shape[1:])}))
        for name, module in net.backbone.named_children()
    ]
    images = torch.zeros(1, 3, 32, 32)
    assert net(images).shape == (1, 10) and net.backbone(images).shape == (1, 512)
    for hook in hooks:
        hook.remove()
    expected = {"layer1": (64, 32, 32), "layer2": (128, 16, 16), "layer3": (256, 8, 8), "layer4": (512, 4, 4)}
    assert {"maxpool": (64, 32, 32), **expected}.items() <= shapes.items()


def test_norms_are_group_norms_of_sixteen_groups_and_never_batch_norms(net):
    norms = [m for m in net.modules() if isinstance(m, nn.GroupNorm)]
    assert len(norms) == 20 and {m.num_groups for m in norms} == {16}  # stem, two in each of 8 blocks, 3 shortcuts
    assert not [m for m in net.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    assert not list(net.buffers())


def test_each_block_starts_as_its_shortcut(net):
    blocks = [m for m in net.modules() if isinstance(m, BasicBlock)]
    assert len(blocks) == 8
    assert all(bool((b.bn2.weight == 0).all()) and bool((b.bn2.bias == 0).all()) for b in blocks)
    assert all(bool((b.bn1.weight == 1).all()) for b in blocks)
    x = torch.linspace(0, 1, 64 * 16).reshape(1, 64, 4, 4)  # not negative, so that the last ReLU keeps it
    assert torch.equal(blocks[0](x), x)


def test_weights_are_kaiming_normal_with_zero_bias(net):
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            fan, size = module.out_channels * math.prod(module.kernel_size), module.weight.numel()
            assert module.bias is None
        elif isinstance(module, nn.Linear):
            fan, size = module.in_features, module.weight.numel()
            assert bool((module.bias == 0).all())
        else:
            continue
        # the standard deviation's relative error is about (2 · size)^-1/2: five of those
        assert module.weight.std().item() == pytest.approx(math.sqrt(2 / fan), rel=5 / math.sqrt(2 * size))


def test_client_branch_follows_the_same_rule(net):
    assert bool((net.make_transform()[0].bias == 0).all()) and bool((net.make_head(8).bias == 0).all())


def test_retina_sized_images_work(net):
    assert net(torch.zeros(1, 3, 96, 96)).shape == (1, 10)


@pytest.fixture
def plain() -> Network:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return resnet18((3, 64, 64), 8)


def test_resnet18_has_the_parameters_of_fedfews_spec(plain):
    assert count(plain) == 11_180_616
    assert plain.backbone(torch.zeros(2, 3, 64, 64)).shape == (2, 512, 2, 2)
    assert plain.transform(plain.backbone(torch.zeros(2, 3, 64, 64))).shape == (2, 512)


def test_resnet18_is_torchvisions_function_of_the_same_weights(plain):
    """In training, where it takes the batch's statistics, and afterwards, where it takes those it has kept."""
    original = original_resnet18(num_classes=8)
    theirs, ours = original.state_dict(), plain.state_dict()
    assert [t.shape for t in theirs.values()] == [t.shape for t in ours.values()]
    original.load_state_dict(dict(zip(theirs, ours.values(), strict=True)))
    x = torch.randn(4, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    for _ in range(2):
        torch.testing.assert_close(plain(x), original(x))
    torch.testing.assert_close(plain.eval()(x), original.eval()(x))


def test_exactly_the_batch_norms_of_resnet18_are_norms(plain):
    owners = dict(plain.named_modules())
    for name in plain.state_dict():
        assert is_norm(name) == isinstance(owners[name.rpartition(".")[0]], nn.BatchNorm2d), name
    assert sum(isinstance(m, nn.BatchNorm2d) for m in plain.modules()) == 20


def test_fresh_convolutions_of_resnet18_are_kaiming_normal_by_fan_out(plain):
    convolutions = [m for m in plain.modules() if isinstance(m, nn.Conv2d)]
    assert len(convolutions) == 20
    for conv in convolutions:
        fan, size = conv.out_channels * math.prod(conv.kernel_size), conv.weight.numel()
        assert conv.weight.std().item() == pytest.approx(math.sqrt(2 / fan), rel=5 / math.sqrt(2 * size))


def test_resnet18_may_be_narrower(plain):
    """All convolutions but the first, and the head, shrink by the square or the first power of the width."""
    narrow = resnet18((3, 32, 32), 8, width=8)
    assert narrow.head.in_features == 64 and narrow(torch.zeros(2, 3, 32, 32)).shape == (2, 8)
    inner = [sum(m.weight.numel() for m in n.modules() if isinstance(m, nn.Conv2d)) for n in (plain, narrow)]
    assert (inner[0] - 3 * 49 * 64) == 64 * (inner[1] - 3 * 49 * 8)
    with pytest.raises(FedlibError, match="model resnet18: width: 0 is out of range"):
        resnet18((3, 32, 32), 8, width=0)
