"""Random streams, each derived from (seed, purpose, …): the order of execution cannot change a draw."""

from __future__ import annotations

import hashlib

import numpy as np
import torch


def derive(seed: int, *purpose: str | int) -> int:
    """A 63-bit seed that depends on every part of `purpose`, e.g. derive(0, "client", round, client)."""
    digest = hashlib.sha256(repr((seed, *purpose)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def numpy_stream(seed: int, *purpose: str | int) -> np.random.Generator:
    """A numpy generator of its own for this purpose."""
    return np.random.default_rng(derive(seed, *purpose))


def torch_stream(seed: int, *purpose: str | int) -> torch.Generator:
    """A torch generator (CPU) of its own for this purpose."""
    return torch.Generator().manual_seed(derive(seed, *purpose))
