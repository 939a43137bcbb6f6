"""What a method does at test time with a client of which nothing is known (FEROMA spec, 1.7): seen from outside."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from fedlib.checks import FedlibError
from fedlib.data.federation import Samples, Visitor
from fedlib.metrics import Crowd

ROUNDING = 1.0e-3
"""Of probabilities: passes in other chunks and batches differ by less."""


def in_turn(first: Samples, second: Samples) -> Samples:
    """One sample of the first, one of the second, and so on, as long as there are both."""
    n = min(len(first), len(second))
    images = torch.stack([first.images[:n], second.images[:n]], dim=1).flatten(0, 1)
    return Samples(images, torch.stack([first.labels[:n], second.labels[:n]], dim=1).flatten(0, 1))


def looks_at(crowd: Crowd) -> dict[str, bool]:
    """{"inputs", "labels"}: whether any visitor's answers depend on its other inputs, and on labels that it gives away.

    inputs: a visitor is asked again with the images of another one, the first of another distribution, each after one
    of its own, so that no batch stays what it was; if its own images are then answered otherwise, the method adapts to
    whom it meets, without labels.
    labels: its first samples become labelled ones (`few`), once with their labels and once with all of them moved on by
    one class; if the answers differ, the method uses labels where it gets them.

    Raises FedlibError where all visitors have one distribution.
    """
    visitors = crowd.federation.visitors
    others = [[w for w in visitors if w.distribution != v.distribution] for v in visitors]
    pairs = [(v, found[0]) for v, found in zip(visitors, others, strict=True) if found]
    if not pairs:
        raise FedlibError(f"looks_at: the {len(visitors)} visitors have one distribution; take more clients")
    return {
        "inputs": any(_in_company(crowd, v, w) for v, w in pairs),
        "labels": any(_by_labels(crowd, v) for v in visitors),
    }


def _chances(crowd: Crowd, visitor: Visitor) -> Tensor:
    return crowd.method.visit(crowd, visitor).softmax(-1)


def _in_company(crowd: Crowd, visitor: Visitor, other: Visitor) -> bool:
    after = _chances(crowd, replace(visitor, samples=in_turn(visitor.samples, other.samples)))[::2]
    return bool((_chances(crowd, visitor)[: len(after)] - after).abs().max() > ROUNDING)


def _by_labels(crowd: Crowd, visitor: Visitor) -> bool:
    classes, count = len(crowd.federation.classes), max(2, len(visitor.samples) // 3)
    given = Samples(visitor.samples.images[:count], visitor.samples.labels[:count])
    moved = replace(given, labels=(given.labels + 1) % classes)
    right, wrong = (_chances(crowd, replace(visitor, few=few)) for few in (given, moved))
    return bool((right - wrong).abs().max() > ROUNDING)
