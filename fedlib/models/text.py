"""TextCNN, as FedFew uses it for AG News (spec, 2.2)."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from fedlib.checks import FedlibError, check_number
from fedlib.models.network import Network

KERNELS = (3, 4, 5)
"""Words that a filter sees at a time."""


class Phrases(nn.Module):
    """Tokens (B, L) -> how strongly each filter's phrase is found anywhere in the text, (B, 3 * filters), not negative.

    Embedding, then a convolution along the text for each of KERNELS, ReLU, and the maximum over all places. The padding
    is word 0: its vector is 0 and has no gradient, and places that lie in it count like all others, as in the original.
    """

    def __init__(self, words: int, width: int, filters: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width, padding_idx=0)
        self.convolutions = nn.ModuleList(nn.Conv1d(width, filters, kernel) for kernel in KERNELS)

    def forward(self, tokens: Tensor) -> Tensor:
        vectors = self.embedding(tokens).transpose(1, 2)
        # ReLU never falls, so that it may follow the maximum: the same values from a small part of the work
        return torch.cat([convolution(vectors).amax(2) for convolution in self.convolutions], dim=1).relu()


def text_cnn(
    shape: tuple[int, int], classes: int, width: int = 512, filters: int = 100, dropout: float = 0.8
) -> Network:
    """TextCNN after Kim (EMNLP 2014): word vectors, filters of 3, 4 and 5 words, maximum over time, dropout, head.

    shape: (V, L), words of the vocabulary and of a text. 16,999,904 parameters for V = 32,000 and four classes: 16.4
    million of them are word vectors of `width` numbers each. backbone: the phrases found; transform: the dropout;
    head: the linear layer. The original ends in a log-softmax and trains with a cross-entropy that takes
    another one, which changes nothing: here the head's logits are the output.
    Raises FedlibError for texts shorter than the longest filter.
    """
    words, length = shape
    check_number("model text_cnn: width", width, least=1, whole=True)
    check_number("model text_cnn: filters", filters, least=1, whole=True)
    check_number("model text_cnn: dropout", dropout, least=0.0, below=1.0)
    if length < max(KERNELS):
        raise FedlibError(f"model text_cnn: texts of {length} words are shorter than its filters of {max(KERNELS)}")
    return Network(Phrases(words, width, filters), partial(nn.Dropout, dropout), len(KERNELS) * filters, classes)
