import copy
import pickle

import pytest
import torch
from torch import nn

from fedlib.models.cnn import linear, small_cnn
from fedlib.models.network import Network


def network() -> Network:
    def ones(module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)

    return Network(nn.Flatten(), lambda: nn.Linear(4, 3), width=3, classes=2, initialise=ones)


def test_forward_is_head_after_transform_after_backbone():
    images = torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]])
    assert network()(images).tolist() == [[30.0, 30.0]]  # 10 in each of three units, summed by each of two logits


def test_every_parameter_belongs_to_a_part_and_the_branch_factory_to_none():
    assert list(network().state_dict()) == ["transform.weight", "transform.bias", "head.weight", "head.bias"]
    assert {name.split(".")[0] for name in small_cnn((3, 32, 32), 10).state_dict()} == {"backbone", "transform", "head"}


def test_branches_have_weights_of_their_own_from_the_same_rule():
    net = network()
    before = list(net.state_dict())
    branch, head = net.make_transform(), net.make_head(5)
    with torch.no_grad():
        branch.weight.zero_()
    assert head.weight.shape == (5, 3) and bool((head.weight == 1).all()) and bool((head.bias == 0).all())
    assert bool((net.transform.weight == 1).all()) and list(net.state_dict()) == before


def test_default_initialisation_draws_anew_for_each_branch():
    net = small_cnn((3, 16, 16), 10)
    assert not torch.equal(net.make_transform()[0].weight, net.make_transform()[0].weight)


@pytest.mark.parametrize("twin", [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))])
def test_a_network_can_be_copied_and_sent_to_a_worker(twin):
    net, images = linear((3, 4, 4), 2), torch.arange(48.0).reshape(1, 3, 4, 4)
    assert torch.equal(twin(net)(images), net(images))
