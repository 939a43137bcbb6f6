"""Federation: the clients' train, validation and test samples, in memory as uint8."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
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
    """images: uint8 (n, 3, H, W), channels last in memory, or of texts int32 (n, L); labels: int64 (n,), or (n, U) of 0
    and 1 where a sample may have several of U."""

    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def to(self, device: torch.device) -> Samples:
        return Samples(self.images.to(device), self.labels.to(device))


@dataclass(frozen=True)
class Client:
    """One client's own samples. `validation` is empty unless a share of the training part was asked for.

    domain: index of the one domain that all its samples come from; -1: several, or the data set has none.
    distribution: index into Federation.distributions of what its samples are drawn from now; -1: unknown.
    """

    index: int
    train: Samples
    validation: Samples
    test: Samples
    domain: int = -1
    distribution: int = -1

    def to(self, device: torch.device) -> Client:
        return replace(
            self, train=self.train.to(device), validation=self.validation.to(device), test=self.test.to(device)
        )


@dataclass(frozen=True)
class Visitor:
    """A client that is met at test time alone (FEROMA spec, 1.7).

    samples: what is scored; a method may look at the images, never at the labels.
    few: labelled samples that a method may look at, and that are not scored; possibly empty.
    distribution: index into Federation.distributions.
    """

    index: int
    samples: Samples
    few: Samples
    distribution: int

    def to(self, device: torch.device) -> Visitor:
        return replace(self, samples=self.samples.to(device), few=self.few.to(device))


@dataclass(frozen=True)
class Federation:
    """m clients over the same classes.

    shape: of a sample, as Pool has it: (3, H, W), or (V, L) of texts.
    central: the official test part, one entry a domain (a single one where the data set has no domains); empty when
    the clients keep test samples of their own.
    visitors: clients that are met at test time alone.
    distributions: what samples may be drawn from, where that is known; clients and visitors name theirs by index.
    """

    name: str
    clients: tuple[Client, ...]
    classes: tuple[str, ...]
    shape: tuple[int, ...]
    central: Mapping[str, Samples] = field(default_factory=dict)
    visitors: tuple[Visitor, ...] = ()
    distributions: tuple[Any, ...] = ()

    def at(self, round: int) -> Federation:
        """The clients with their samples of this round, counted from 1; here they are the same in every round."""
        return self

    @property
    def several_labels(self) -> bool:
        """Whether a sample may have several labels."""
        return self.clients[0].train.labels.ndim == 2

    @property
    def sizes(self) -> tuple[int, ...]:
        """n_i: training samples of each client."""
        return tuple(len(client.train) for client in self.clients)

    @property
    def fewest_validation(self) -> int:
        """The least number of validation samples that a client has in any round."""
        return min(len(client.validation) for client in self.clients)

    @property
    def shares(self) -> np.ndarray:
        """w_i = n_i / n, by training counts."""
        sizes = np.asarray(self.sizes, dtype=float)
        return sizes / sizes.sum()

    def pooled_test(self) -> tuple[Samples, Tensor]:
        """All clients' test samples, each with its client's appearance, and the origin (client) of each."""
        images = torch.cat([client.test.images for client in self.clients])
        labels = torch.cat([client.test.labels for client in self.clients])
        tests = [(client.index, client.test.labels) for client in self.clients]
        origin = torch.cat([held.new_full((len(held),), index) for index, held in tests])
        return Samples(images, labels), origin

    def skew(self) -> pd.DataFrame:
        """One row a client: samples, classes held, distance to the pooled labels (see partition.skew_report)."""
        held = [torch.cat([c.train.labels, c.validation.labels, c.test.labels]).cpu().numpy() for c in self.clients]
        starts = np.cumsum([0, *map(len, held)])
        parts = [np.arange(a, b) for a, b in pairwise(starts)]
        return partitions.skew_report(np.concatenate(held), parts, len(self.classes))

    def to(self, device: torch.device) -> Federation:
        clients = tuple(client.to(device) for client in self.clients)
        central = {name: samples.to(device) for name, samples in self.central.items()}
        visitors = tuple(visitor.to(device) for visitor in self.visitors)
        return replace(self, clients=clients, central=central, visitors=visitors)


def _samples(pool: Pool, index: np.ndarray, look: shifts.Appearance) -> Samples:
    images, labels = torch.from_numpy(pool.images[index]), torch.from_numpy(pool.labels[index])
    if pool.words:
        return Samples(images, labels)
    return Samples(shifts.apply(images, look).contiguous(memory_format=torch.channels_last), labels)


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
    """Divide a pool among clients, then split each client's own samples (FedDRM spec, 3.1).

    test_share: of each client's samples. 0: the clients divide the official training part and keep all of it, and the
    official test part is the test, domain by domain (F²DC spec, 3.1).

    Every client's images, train and test alike, are then given that client's fixed appearance (FedDRM spec, 3.3). The
    colour operations act on single pixels, so they are applied once here, before the random crop of training. Texts
    have no appearance: raises FedlibError for a shift of theirs, and for a partition by labels where samples have
    several.
    """
    if pool.words and shift is not None:
        raise FedlibError(f"shift: {shift} changes how images look, but {pool.name!r} is text; leave shift out")
    if pool.several_labels:
        partitions.check_label_free(partition, pool.name)
    pool = subset(pool, samples, numpy_stream(seed, "subset"))
    offered = np.flatnonzero(pool.split == 0) if test_share == 0 else np.arange(len(pool))
    domains = None if pool.domains is None else pool.domains[offered]
    rng = numpy_stream(seed, "partition")
    parts = partitions.partition(partition, pool.partition_labels[offered], clients, rng, domains)
    members = []
    for i, index in enumerate(offered[part] for part in parts):
        try:
            split = partitions.split(index, numpy_stream(seed, "split", i), test_share, validation_share)
        except FedlibError as error:
            raise FedlibError(
                f"client {i} of {clients} on {pool.name!r} by {partition.get('name')}: {error}"
            ) from error
        look = shifts.appearance(shift, i)
        train, validation, test = (_samples(pool, part, look) for part in split)
        members.append(Client(i, train, validation, test, _domain(pool, index)))
    central = _central(pool) if test_share == 0 else {}
    return Federation(pool.name, tuple(members), pool.classes, pool.shape, central)


def _domain(pool: Pool, index: np.ndarray) -> int:
    """The one domain of these samples, or -1."""
    if pool.domains is None:
        return -1
    held = np.unique(pool.domains[index])
    return int(held[0]) if len(held) == 1 else -1


def _central(pool: Pool) -> dict[str, Samples]:
    """The official test part, by domain. Raises FedlibError for a domain without one."""
    names = pool.domain_names or (pool.name,)
    domains = np.zeros(len(pool), dtype=np.int64) if pool.domains is None else pool.domains
    tests = {}
    for q, name in enumerate(names):
        index = np.flatnonzero((pool.split == 1) & (domains == q))
        if not len(index):
            raise FedlibError(
                f"test_share: 0 asks for the official test part of {pool.name!r}, but {name} has none; set test_share "
                "above 0, such as 0.3"
            )
        tests[name] = _samples(pool, index, shifts.Appearance())
    return tests
