"""Passes over a client's samples, in chunks, in evaluation mode, without gradients. The caller loads the weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from fedlib.data.federation import Samples
from fedlib.labels import macro_auroc, summed_loss
from fedlib.training import prepare

CHUNK = 500
ClassLogits = Callable[[Any], Tensor]


def as_they_are(outputs: Any) -> Tensor:
    """The class logits of a network that gives nothing else."""
    return outputs


def chunks(model: nn.Module, images: Tensor, part: Callable[[Tensor], Any] | None = None) -> Iterator[Any]:
    """The network's raw output, 500 samples at a time; images as Samples has them.

    part: what of the network is asked in its place, such as its backbone. The network stays in evaluation mode.
    """
    model.eval()
    with torch.no_grad():
        for x in images.split(CHUNK):
            yield (model if part is None else part)(prepare(x))


def labelled(
    model: nn.Module, samples: Samples, part: Callable[[Tensor], Any] | None = None
) -> Iterator[tuple[Any, Tensor]]:
    """(what `chunks` gives, the labels of these samples)."""
    return zip(chunks(model, samples.images, part), samples.labels.split(CHUNK), strict=True)


def embeddings(model: nn.Module, samples: Samples) -> Iterator[tuple[Tensor, Tensor]]:
    """(z (n, width), the input of the head; the labels), 500 samples at a time."""
    return labelled(model, samples, model.embed)  # type: ignore[arg-type]


def class_scores(model: nn.Module, images: Tensor, class_logits: ClassLogits = as_they_are) -> Tensor:
    """(N, classes) logits; class_logits: see Method."""
    return torch.cat([class_logits(outputs) for outputs in chunks(model, images)])


def mean_loss(model: nn.Module, samples: Samples, class_logits: ClassLogits = as_they_are) -> Tensor:
    """The mean cross-entropy (), float64; of several labels, see labels.label_loss."""
    total = torch.zeros((), dtype=torch.float64, device=samples.labels.device)
    for outputs, y in labelled(model, samples):
        total += summed_loss(class_logits(outputs).double(), y)
    return total / len(samples)


def accuracy(model: nn.Module, samples: Samples, class_logits: ClassLogits = as_they_are) -> Tensor:
    """Top-1 (), 0 to 1; of several labels, the macro AUROC, NaN where it has none (see labels.macro_auroc)."""
    if samples.labels.ndim == 2:
        return macro_auroc(class_scores(model, samples.images, class_logits), samples.labels)
    right = torch.zeros((), device=samples.labels.device)
    for outputs, y in labelled(model, samples):
        right += (class_logits(outputs).argmax(-1) == y).sum()
    return right / len(samples)
