"""Network: the three parts that the methods of this collection tell apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from torch import Tensor, nn

AnyModule = TypeVar("AnyModule", bound=nn.Module)


def dense(inputs: int, outputs: int) -> nn.Sequential:
    """Linear, LayerNorm, ReLU: (N, inputs) -> (N, outputs)."""
    return nn.Sequential(nn.Linear(inputs, outputs), nn.LayerNorm(outputs), nn.ReLU())


STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


def is_statistic(name: str) -> bool:
    """Whether the tensor of this name is a running statistic or the counter of BatchNorm, which no gradient moves."""
    return name.rpartition(".")[2] in STATISTICS


class Network(nn.Module):
    """A classifier in three parts, backbone -> transform -> head.

    backbone: the trunk that every branch shares, images (N, C, H, W), or texts (N, L), -> features g(x).
    transform: the target branch's own non-linear part, features -> (N, width).
    head: its last layer, Linear (N, width) -> (N, classes).

    A further branch on the same backbone, such as FedDRM's client branch, is `make_transform()` followed by
    `make_head(outputs)`: the same architecture with weights of its own.

    make_transform: builds the transform; a function that can be pickled, so that a worker process can have the network.
    initialise: applied to each module of each part, as in `nn.Module.apply`; PyTorch's default when left out.
    """

    def __init__(
        self,
        backbone: nn.Module,
        make_transform: Callable[[], nn.Module],
        width: int,
        classes: int,
        initialise: Callable[[nn.Module], None] | None = None,
    ) -> None:
        super().__init__()
        self.width = width
        self._make_transform = make_transform
        self._initialise = initialise
        self.backbone = self._initialised(backbone)
        self.transform = self.make_transform()
        self.head = self.make_head(classes)

    def forward(self, images: Tensor) -> Tensor:
        """Logits (N, classes) of images (N, C, H, W)."""
        return self.head(self.embed(images))

    def embed(self, images: Tensor) -> Tensor:
        """z (N, width), the input of the head."""
        return self.transform(self.backbone(images))

    def make_transform(self) -> nn.Module:
        """A freshly initialised module of `transform`'s architecture; the network does not keep it."""
        return self._initialised(self._make_transform())

    def make_head(self, outputs: int) -> nn.Linear:
        """A freshly initialised linear layer width -> outputs; the network does not keep it."""
        return self._initialised(nn.Linear(self.width, outputs))

    def _initialised(self, module: AnyModule) -> AnyModule:
        return module if self._initialise is None else module.apply(self._initialise)
