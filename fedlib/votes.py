"""Many models' class scores turned into one answer."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def voted(logits: Tensor, several: bool) -> dict[str, Tensor]:
    """What all models together answer, by rule: classes (N,) of logits (m, N, K); of several labels, scores (N, K)."""
    if several:
        return {"mean sigmoid": logits.sigmoid().mean(0)}
    return {"majority vote": majority_vote(logits), "mean softmax": mean_softmax(logits)}


def majority_vote(logits: Tensor) -> Tensor:
    """(m, N, K) -> (N,): the class most clients predict; a tie goes to the lowest class index."""
    votes = F.one_hot(logits.argmax(-1), logits.shape[-1]).sum(0)
    return first_argmax(votes)


def mean_softmax(logits: Tensor) -> Tensor:
    """(m, N, K) -> (N,): the class of the highest mean probability."""
    return first_argmax(logits.softmax(-1).mean(0))


def first_argmax(scores: Tensor) -> Tensor:
    """argmax over the last axis; ties go to the lowest index on every device. Where all is NaN: the last index."""
    last = scores.shape[-1]
    index = torch.arange(last, device=scores.device).expand_as(scores)
    return torch.where(scores == scores.amax(-1, keepdim=True), index, last - 1).amin(-1)
