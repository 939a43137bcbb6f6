"""Statistics estimated anew: the batches' plain means, nothing else changed, and FedAvg's own where they were right."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedlib.analysis import norms
from fedlib.checks import FedlibError
from fedlib.data.federation import Samples
from fedlib.metrics import accuracy
from fedlib.models.cnn import small_cnn
from fedlib.models.resnet10 import resnet10
from fedlib.training import prepare


def same(logits: torch.Tensor) -> torch.Tensor:
    return logits


def samples(count: int, seed: int = 0) -> Samples:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (count, 3, 16, 16), generator=generator, dtype=torch.uint8)
    return Samples(images, torch.randint(0, 5, (count,), generator=generator))


def test_the_first_norm_gets_the_plain_mean_over_the_batches():
    torch.manual_seed(0)
    network, given = resnet10((3, 16, 16), 5, 4), samples(2 * norms.ESTIMATION_BATCH + 7)
    before = {name: p.detach().clone() for name, p in network.named_parameters()}
    norms.reestimate(network, given)
    with torch.no_grad():
        maps = [network.backbone.stem.conv(prepare(given.images[i * 128 : (i + 1) * 128])) for i in range(2)]
    norm = network.backbone.stem.norm
    torch.testing.assert_close(norm.running_mean, torch.stack([m.mean((0, 2, 3)) for m in maps]).mean(0))
    torch.testing.assert_close(norm.running_var, torch.stack([m.var((0, 2, 3)) for m in maps]).mean(0))
    assert norm.momentum == 0.1 and not network.training
    assert all(torch.equal(p, before[name]) for name, p in network.named_parameters())


def test_one_small_batch_is_used_whole():
    torch.manual_seed(0)
    network, given = resnet10((3, 16, 16), 5, 4), samples(9)
    norms.reestimate(network, given)
    with torch.no_grad():
        inner = network.backbone.stem.conv(prepare(given.images))
    torch.testing.assert_close(network.backbone.stem.norm.running_mean, inner.mean((0, 2, 3)))


def test_estimating_twice_changes_nothing():
    torch.manual_seed(0)
    network, given = resnet10((3, 16, 16), 5, 4), samples(40)
    norms.reestimate(network, given)
    once = accuracy(network, given, same), {k: v.clone() for k, v in network.state_dict().items()}
    norms.reestimate(network, given)
    assert accuracy(network, given, same) == once[0]
    assert all(torch.equal(v, once[1][k]) for k, v in network.state_dict().items())


def test_accuracy_counts():
    class Constant(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.one_hot(torch.full((len(x),), 2), 5).float()

    given = samples(60)
    assert accuracy(Constant(), given, same) == pytest.approx(float((given.labels == 2).float().mean()))


def test_a_network_without_batch_norm_is_refused():
    with pytest.raises(FedlibError, match="no BatchNorm; take resnet10"):
        norms.reestimate(small_cnn((3, 16, 16), 5), samples(4))
