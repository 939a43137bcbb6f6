"""The loss, the answer and its score, for samples of one label each, (n,), and of several, (n, U) of 0 and 1.

Several labels are learned and judged one by one, as FEROMA does on CheXpert (spec, 2.1 and 4).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fedlib.checks import FedlibError


def label_loss(logits: Tensor, y: Tensor) -> Tensor:
    """(): the mean over samples of the cross-entropy; of several labels, the mean over them of each one's binary one.

    logits: (n, U).
    """
    if y.ndim == 1:
        return F.cross_entropy(logits, y)
    return F.binary_cross_entropy_with_logits(logits, y.to(logits.dtype))


def summed_loss(logits: Tensor, y: Tensor) -> Tensor:
    """(): the sum over samples of what label_loss is the mean of."""
    return F.cross_entropy(logits, y, reduction="sum") if y.ndim == 1 else label_loss(logits, y) * len(y)


def probabilities(logits: Tensor, several: bool) -> Tensor:
    """(…, U): the softmax; of several labels, each one's sigmoid."""
    return logits.sigmoid() if several else logits.softmax(-1)


def answers(scores: Tensor, truth: Tensor) -> Tensor:
    """What is judged of logits, or other scores, (n, U): the class of the highest, (n,); of several labels, all."""
    return scores.argmax(-1) if truth.ndim == 1 else scores


def quality(answer: Tensor, truth: Tensor) -> Tensor:
    """() of `answers`, 0 to 1: the share that is right; of several labels, the macro AUROC."""
    return (answer == truth).float().mean() if truth.ndim == 1 else macro_auroc(answer, truth)


def macro_auroc(scores: Tensor, truth: Tensor) -> Tensor:
    """() float32: the mean, over labels, of how likely a sample that has it is scored above one that has not.

    scores, truth: (n, U). Only labels that both some and not all of these samples have count, since there is nothing to
    compare for the others; NaN if no label does: see `known`.
    """
    from sklearn.metrics import roc_auc_score  # here: it takes a second, and few runs need it

    y, found = truth.cpu().numpy(), scores.detach().double().cpu().numpy()
    both = [u for u in range(y.shape[1]) if 0 < y[:, u].sum() < len(y)]
    mean = sum(roc_auc_score(y[:, u], found[:, u]) for u in both) / len(both) if both else torch.nan
    return torch.tensor(mean, dtype=torch.float32, device=truth.device)


def known(values: Tensor, whose: str, several: bool) -> Tensor:
    """Which values count, bool (n,): of one label a sample all; of several, those that are no NaN.

    The others are left out of histories and means, never counted as 0. Raises FedlibError if none is known; whose:
    those of "client", for one.
    """
    seen = ~values.isnan() if several else torch.ones_like(values, dtype=torch.bool)
    if not seen.any():
        raise FedlibError(
            f"no {whose} has test samples with and without a same label, so there is no AUROC; take more samples, or "
            "a larger test_share"
        )
    return seen
