"""FDSE's network: each convolution with its norm becomes an extractor and an eraser of domain skew."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from fedlib.models.network import Network


class Eraser(nn.Module):
    """u (N, c, H, W) -> norm([u, S u]) (N, C, H, W).

    S makes the C - c remaining channels, one 3x3 kernel each: number j comes from channel j mod c of u. The norm is
    BatchNorm over all C channels.
    """

    def __init__(self, c: int, C: int) -> None:
        super().__init__()
        self.remaining = C - c
        if self.remaining:
            self.cheap = nn.Conv2d(self.remaining, self.remaining, 3, padding=1, groups=self.remaining, bias=False)
        self.norm = nn.BatchNorm2d(C)

    def forward(self, u: Tensor) -> Tensor:
        if not self.remaining:
            return self.norm(u)
        times = -(-self.remaining // u.shape[1])
        source = u if times == 1 else u.repeat(1, times, 1, 1)
        return self.norm(torch.cat([u, self.cheap(source[:, : self.remaining])], 1))


class Deskewed(nn.Module):
    """x -> eraser(extractor(x)): a convolution to ceil(C / G) channels, and what makes C of them."""

    def __init__(self, conv: nn.Conv2d, G: int) -> None:
        super().__init__()
        c = -(-conv.out_channels // G)
        self.extractor = nn.Conv2d(
            conv.in_channels,
            c,
            conv.kernel_size,  # type: ignore[arg-type]
            conv.stride,  # type: ignore[arg-type]
            conv.padding,  # type: ignore[arg-type]
            bias=False,
        )
        self.eraser = Eraser(c, conv.out_channels)

    def forward(self, x: Tensor) -> Tensor:
        return self.eraser(self.extractor(x))


def deskewed(network: Network, G: int) -> Network:
    """The same network, changed in place: every conv* of the backbone is Deskewed, its norm* part of the eraser.

    For a convolution that is followed by the norm of the same suffix, as in resnet10 (conv1, norm1). Weights are fresh.
    """
    for parent in list(network.backbone.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Conv2d):
                setattr(parent, name, Deskewed(child, G))
                setattr(parent, name.replace("conv", "norm"), nn.Identity())
    return network


def is_eraser(name: str) -> bool:
    """Whether the tensor of this name belongs to an eraser: its kernels, and the norm's weights and statistics."""
    return "eraser" in name.split(".")


@contextmanager
def watched(model: nn.Module) -> Iterator[list[tuple[str, Tensor]]]:
    """Yields a list to which each forward pass adds, layer by layer, the norm's name and its input (N, C, H, W)."""
    seen: list[tuple[str, Tensor]] = []

    def note(name: str, eraser: Eraser) -> torch.utils.hooks.RemovableHandle:
        return eraser.norm.register_forward_pre_hook(lambda _, given: seen.append((f"{name}.norm", given[0])))

    hooks = [note(name, module) for name, module in model.named_modules() if isinstance(module, Eraser)]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


class Moments(torch.autograd.Function):
    """Mean and unbiased variance (as in running statistics), each (C,), of each channel of v (N, C, H, W).

    As torch.var_mean, at a fraction of its cost on a CPU: the gradient of both together is one pass, a + b * v.
    """

    @staticmethod
    def forward(ctx: Any, v: Tensor) -> tuple[Tensor, Tensor]:
        mu = v.mean((0, 2, 3))
        var = (v - mu[:, None, None]).square_().sum((0, 2, 3)) / (v.numel() // v.shape[1] - 1)
        ctx.save_for_backward(v, mu)
        return mu, var

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> Tensor:
        v, mu = ctx.saved_tensors
        n = v.numel() // v.shape[1]
        b = 2 * slopes[1] / (n - 1)
        a = slopes[0] / n - b * mu
        return torch.addcmul(a[:, None, None], v, b[:, None, None])
