"""What answers depend on at test time, of methods that are made to depend on one thing alone."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import tiny
import torch
from torch import Tensor

from fedlib.analysis import test_time
from fedlib.checks import FedlibError
from fedlib.data.federation import Federation, Samples, Visitor
from fedlib.methods.fedavg import FedAvg
from fedlib.methods.ifca import IFCA
from fedlib.methods.method import Crowd as Asked
from fedlib.methods.method import Method, initial_state
from fedlib.metrics import Crowd


def crowd_of(method: Method, distributions: tuple[int, ...] = (0, 1, 1)) -> Crowd:
    """Untrained; the visitors of each further distribution are brighter."""
    fed = tiny.federation()
    visitors = []
    for client, d in zip(fed.clients, distributions, strict=True):
        nothing = Samples(client.test.images[:0], client.test.labels[:0])
        images = client.test.images // 2 + 100 * d
        visitors.append(Visitor(client.index, Samples(images, client.test.labels), nothing, d))
    fed = replace(fed, visitors=tuple(visitors))
    model, server, memories = initial_state(method, tiny.task(fed))
    return Crowd(method, model, server, memories, fed)


@dataclass(frozen=True)
class ByMeanPixel(FedAvg):
    """Class 1 for visitors that are bright altogether, else class 0."""

    def answer(self, crowd: Asked, visitor: Visitor, client: int | None) -> Tensor:
        bright = int(visitor.samples.images.float().mean() > 110)
        return torch.eye(10)[bright].expand(len(visitor.samples), 10)


@dataclass(frozen=True)
class ByMeanPixelOfABatch(FedAvg):
    """The same for each batch by itself, of as many samples as a visitor has."""

    def answer(self, crowd: Asked, visitor: Visitor, client: int | None) -> Tensor:
        batches = visitor.samples.images.split(min(len(one.samples) for one in crowd.federation.visitors))
        bright = [int(batch.float().mean() > 110) for batch in batches]
        return torch.cat([torch.eye(10)[b].expand(len(x), 10) for b, x in zip(bright, batches, strict=True)])


@dataclass(frozen=True)
class ByFirstLabel(FedAvg):
    """The class of the first labelled sample, if there is any."""

    def answer(self, crowd: Asked, visitor: Visitor, client: int | None) -> Tensor:
        label = int(visitor.few.labels[0]) if len(visitor.few) else 0
        return torch.eye(10)[label].expand(len(visitor.samples), 10)


@pytest.mark.parametrize(
    ("method", "inputs", "labels"),
    [
        (FedAvg(), False, False),
        (ByMeanPixel(), True, False),
        (ByMeanPixelOfABatch(), True, False),
        (ByFirstLabel(), False, True),
        (IFCA(K=3, selection="train"), False, True),
    ],
)
def test_answers_depend_on_what_the_method_looks_at(method: Method, inputs: bool, labels: bool):
    assert test_time.looks_at(crowd_of(method)) == {"inputs": inputs, "labels": labels}


def test_visitors_that_are_all_alike_cannot_tell():
    fed: Federation = crowd_of(FedAvg()).federation
    assert len(fed.visitors) == 3
    with pytest.raises(FedlibError, match="the 3 visitors have one distribution"):
        test_time.looks_at(crowd_of(FedAvg(), (1, 1, 1)))
