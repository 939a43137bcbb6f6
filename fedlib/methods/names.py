"""Names of tensors that belong together: "0/head.bias" is of model 0, "own/head.bias" of what a client keeps."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor


def named(prefix: str | int, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors as "prefix/name"; no copies."""
    return {f"{prefix}/{name}": tensor for name, tensor in state.items()}


def under(prefix: str | int, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of "prefix/name", under plain names; no copies."""
    start = f"{prefix}/"
    return {name.removeprefix(start): tensor for name, tensor in state.items() if name.startswith(start)}
