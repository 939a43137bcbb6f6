"""Federation: the clients' train, validation and test samples, in memory as uint8."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from fedlib.checks import FedlibError, check_number
from fedlib.data import partition as partitions
from fedlib.data import shift as shifts
from fedlib.data.pool import Pool
from fedlib.streams import numpy_stream


@dataclass(frozen=True)
class Samples:
    """images: uint8 (n, 3, H, W), channels last in memory; labels: int64 (n,)."""

    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def to(self, device: torch.device) -> Samples:
        return Samples(self.images.to(device), self.labels.to(device))


@dataclass(frozen=True)
class Client:
    """One client's own samples. `validation` is empty unless a share of the training part was asked for."""

    index: int
    train: Samples
    validation: Samples
    test: Samples


@dataclass(frozen=True)
class Federation:
    """m clients over the same classes."""

    name: str
    clients: tuple[Client, ...]
    classes: tuple[str, ...]
    shape: tuple[int, int, int]

    @property
    def sizes(self) -> tuple[int, ...]:
        """n_i: training samples of each client."""
        return tuple(len(client.train) for client in self.clients)

    @property
    def shares(self) -> np.ndarray:
        """w_i = n_i / n, by training counts."""
        sizes = np.asarray(self.sizes, dtype=float)
        return sizes / sizes.sum()

    def pooled_test(self) -> tuple[Samples, Tensor]:
        """All clients' test samples, each with its client's appearance, and the origin (client) of each."""
        images = torch.cat([client.test.images for client in self.clients])
        labels = torch.cat([client.test.labels for client in self.clients])
        origin = torch.cat([torch.full_like(client.test.labels, client.index) for client in self.clients])
        return Samples(images, labels), origin

    def skew(self) -> pd.DataFrame:
        """One row a client: samples, classes held, distance to the pooled labels (see partition.skew_report)."""
        held = [torch.cat([c.train.labels, c.validation.labels, c.test.labels]).cpu().numpy() for c in self.clients]
        starts = np.cumsum([0, *map(len, held)])
        parts = [np.arange(a, b) for a, b in pairwise(starts)]
        return partitions.skew_report(np.concatenate(held), parts, len(self.classes))

    def to(self, device: torch.device) -> Federation:
        clients = tuple(
            Client(c.index, c.train.to(device), c.validation.to(device), c.test.to(device)) for c in self.clients
        )
        return Federation(self.name, clients, self.classes, self.shape)


def _samples(pool: Pool, index: np.ndarray, look: shifts.Appearance) -> Samples:
    images = shifts.apply(torch.from_numpy(pool.images[index]), look)
    return Samples(images.contiguous(memory_format=torch.channels_last), torch.from_numpy(pool.labels[index]))


def subset(pool: Pool, samples: int | None, rng: np.random.Generator) -> Pool:
    """`samples` images of the pool drawn at random without replacement; the whole pool for None."""
    if samples is None:
        return pool
    check_number("samples", samples, least=1, whole=True)
    if samples > len(pool):
        raise FedlibError(
            f"samples: {samples} asked for, but data set {pool.name!r} holds {len(pool)}; give at most that"
        )
    try:
        return pool.take(np.sort(rng.permutation(len(pool))[:samples]))
    except FedlibError as error:
        raise FedlibError(f"samples: {samples} of {pool.name!r} leave a class without a sample; take more") from error


def make_federation(
    pool: Pool,
    clients: int,
    partition: Mapping[str, Any],
    shift: Mapping[str, Any] | None,
    seed: int,
    samples: int | None = None,
    test_share: float = 0.3,
    validation_share: float = 0.0,
) -> Federation:
    """Divide a pool among clients by label, then split each client's own samples (FedDRM spec, 3.1).

    Every client's images, train and test alike, are then given that client's fixed appearance (spec, 3.3). The
    colour operations act on single pixels, so they are applied once here, before the random crop of training.
    """
    pool = subset(pool, samples, numpy_stream(seed, "subset"))
    parts = partitions.partition(
        partition, pool.partition_labels, clients, numpy_stream(seed, "partition"), pool.domains
    )
    members = []
    for i, index in enumerate(parts):
        try:
            train, validation, test = partitions.split(
                index, numpy_stream(seed, "split", i), test_share, validation_share
            )
        except FedlibError as error:
            raise FedlibError(
                f"client {i} of {clients} on {pool.name!r} by {partition.get('name')}: {error}"
            ) from error
        look = shifts.appearance(shift, i)
        members.append(Client(i, *(_samples(pool, part, look) for part in (train, validation, test))))
    shape = pool.images.shape[1:]
    return Federation(pool.name, tuple(members), pool.classes, (shape[0], shape[1], shape[2]))
