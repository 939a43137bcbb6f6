"""Federations that drift: each client's samples of a round, made from the pool when they are asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from fedlib.checks import FedlibError, check_number
from fedlib.data import drift as drifts
from fedlib.data import partition as partitions
from fedlib.data.drift import Distribution, Drift, Schedule
from fedlib.data.federation import Client, Federation, Samples, Visitor, subset
from fedlib.data.pool import Pool
from fedlib.streams import numpy_stream

CPU = torch.device("cpu")


@dataclass(frozen=True, eq=False)
class Draws:
    """Samples before they are made: image index[i] of the pool under distribution under[i]; both int32, (n,)."""

    index: np.ndarray
    under: np.ndarray

    def __len__(self) -> int:
        return len(self.index)

    def take(self, places: np.ndarray) -> Draws:
        return Draws(self.index[places], self.under[places])

    def made(self, pool: Pool, bank: Sequence[Distribution], device: torch.device) -> Samples:
        """The samples themselves, images channels last in memory. A class that is not kept must not be among them."""
        images, labels = torch.from_numpy(pool.images[self.index]), torch.from_numpy(pool.labels[self.index])
        for d in np.unique(self.under):
            mine = torch.from_numpy(self.under == d)
            images[mine], labels[mine] = drifts.apply(images[mine], labels[mine], bank[d])
        return Samples(images.contiguous(memory_format=torch.channels_last), labels).to(device)


@dataclass(frozen=True, eq=False)
class Stay:
    """One client in one phase. domain, distribution: as Client has them."""

    train: Draws
    validation: Draws
    test: Draws
    domain: int
    distribution: int


@dataclass(frozen=True, eq=False, kw_only=True)
class Drifting(Federation):
    """Clients that draw from another distribution in each phase; all change at the same rounds (FEROMA spec, 3.3).

    `clients` are those of round 1; `at` gives those of a later round. Of the other phases it is only kept which images
    they are of, and `at` keeps the last phase that it made: there are never many phases' pixels in memory.

    stays: by phase and client.     course: which distribution each client has in each phase.
    device: where `at` puts the samples.
    """

    pool: Pool
    rounds: int
    course: Schedule
    stays: tuple[tuple[Stay, ...], ...]
    device: torch.device = CPU
    _made: dict[int, Federation] = field(default_factory=dict, init=False, repr=False)

    def at(self, round: int) -> Federation:
        """The federation of a round, 1 to `rounds`: one object for all rounds of a phase, which itself stands still."""
        phase = drifts.phase_of(round, self.rounds, len(self.stays))
        if phase not in self._made:
            self._made.clear()
            first = phase == drifts.phase_of(1, self.rounds, len(self.stays))
            clients = self.clients if first else _made(self.pool, self.distributions, self.stays[phase], self.device)
            about = {"visitors": self.visitors, "distributions": self.distributions}
            self._made[phase] = Federation(self.name, clients, self.classes, self.shape, self.central, **about)
        return self._made[phase]

    @property
    def fewest_validation(self) -> int:
        return min(len(stay.validation) for phase in self.stays for stay in phase)

    def to(self, device: torch.device) -> Drifting:
        clients = tuple(client.to(device) for client in self.clients)
        visitors = tuple(visitor.to(device) for visitor in self.visitors)
        return replace(self, clients=clients, visitors=visitors, device=device)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_made": {}}


def _made(pool: Pool, bank: Sequence[Distribution], stays: Sequence[Stay], device: torch.device) -> tuple[Client, ...]:
    clients = []
    for k, stay in enumerate(stays):
        train, validation, test = (draws.made(pool, bank, device) for draws in (stay.train, stay.validation, stay.test))
        clients.append(Client(k, train, validation, test, stay.domain, stay.distribution))
    return tuple(clients)


def make_drifting(
    pool: Pool,
    clients: int,
    drift: Mapping[str, Any],
    rounds: int,
    seed: int,
    samples: int | None = None,
    test_share: float = 0.0,
    validation_share: float = 0.2,
) -> Drifting:
    """Clients that drift as `drift` says, such as {"name": "P(X)", "severity": "low"} (FEROMA spec, 3.1).

    Train and test part are each shuffled and cut into one shard a client; the last takes the remainder. test_share: of
    the pool, drawn at random, is the test part; 0: the official one is.

    Train: a client's pool is its shard, and copies drawn from it with replacement, in all max(1, E m / 30) times its
    size, shuffled, and cut into E phases of equal size to within one. With phase_samples, it is E times that many, of
    the shard alone where it has enough. P(Y) does not cut: a phase holds all of the pool that is of its classes, with
    phase_samples so many of them at most. Last, validation_share of each phase is put aside. Copies are made before
    that, as in the paper, so the same image may be on both sides: accuracy on validation samples is too high then, on
    test samples it is not.

    "domains": every domain's images are cut into one shard a client, and a client in domain d draws from its shard of
    d. "gradual": the phase's pool is divided by the shares; test samples likewise.

    Client.test is the client's test shard under what the client draws from at that round; no copies. Visitor k has
    test shard k under one distribution, that of a client drawn at random in the last phase, of client k itself for
    P(Y|X). Of each class, few_per_class of a visitor's samples, drawn at random and at most half of what it has, are
    `few`; decided here: they are taken out of what is scored, else a method that looks at them would be scored on
    what it was told.

    Bank, schedule, shards, copies, splits and visitors have each a random stream of their own: another severity, for
    one, leaves the shards as they are. Raises FedlibError for texts, for a client without enough samples, and, where
    samples have several labels, for what goes by one: P(Y), P(Y|X), P(X|Y) and few_per_class.
    """
    if pool.words:
        raise FedlibError(f"drift: {dict(drift)} changes images, but {pool.name!r} is text; leave drift out")
    asked = drifts.read(drift)
    drifts.check_spec(drift, rounds)
    if pool.several_labels:
        drifts.check_label_free(asked, pool.name)
    check_number("clients", clients, least=1, whole=True)
    pool = subset(pool, samples, numpy_stream(seed, "subset"))
    names = () if pool.domains is None else pool.domain_names
    bank = drifts.bank(asked.name, asked.severity, len(pool.classes), numpy_stream(seed, "drift", "bank"), names)
    for distribution in bank:
        drifts.check_square(pool.shape, distribution)
    stream = numpy_stream(seed, "drift", "schedule")
    course = drifts.schedule(len(bank), clients, asked.phases, asked.course, stream)
    shards = _Shards(pool, asked, clients, seed, test_share)
    stays = tuple(
        tuple(_stay(shards, bank, course, k, e, validation_share) for k in range(clients)) for e in range(asked.phases)
    )
    return Drifting(
        pool.name,
        _made(pool, bank, stays[drifts.phase_of(1, rounds, asked.phases)], CPU),
        pool.classes,
        pool.shape,
        visitors=_visitors(shards, bank, course),
        distributions=bank,
        pool=pool,
        rounds=rounds,
        course=course,
        stays=stays,
    )


class _Shards:
    """Each client's images, by domain where the drift goes by domains, else in one piece.

    chunks: [client][source][phase], test: [client][source]; indices into the pool in random order.
    """

    def __init__(self, pool: Pool, drift: Drift, clients: int, seed: int, test_share: float) -> None:
        self.pool, self.drift, self.clients, self.seed = pool, drift, clients, seed
        sources = [np.arange(len(pool))]
        if drift.name == "domains" and pool.domains is not None:
            sources = [np.flatnonzero(pool.domains == d) for d in range(len(pool.domain_names))]
        self.chunks: list[list[list[np.ndarray]]] = [[] for _ in range(clients)]
        self.test: list[list[np.ndarray]] = [[] for _ in range(clients)]
        for s, source in enumerate(sources):
            where = pool.domain_names[s] if len(sources) > 1 else repr(pool.name)
            train, test = self._parts(source, s, test_share, where)
            for k in range(clients):
                self.chunks[k].append(self._cut(self._shard(train, k), k, s))
                self.test[k].append(self._shard(test, k))

    def _parts(self, source: np.ndarray, s: int, test_share: float, where: str) -> tuple[np.ndarray, np.ndarray]:
        """The train and the test part of a source, both shuffled."""
        rng = numpy_stream(self.seed, "drift", "shards", s)
        if test_share == 0:
            parts = source[self.pool.split[source] == 0], source[self.pool.split[source] == 1]
        else:
            train, _, test = partitions.split(source, rng, test_share)
            parts = train, test
        for part, name in zip(parts, ("train", "test"), strict=True):
            if len(part) < self.clients:
                raise FedlibError(
                    f"drift: the {name} part of {where} has {len(part)} images for {self.clients} clients; take fewer "
                    f"clients, more samples or {'another' if test_share else 'a'} test_share above 0"
                )
        return rng.permutation(parts[0]), rng.permutation(parts[1])

    def _shard(self, part: np.ndarray, k: int) -> np.ndarray:
        size = len(part) // self.clients
        return part[k * size : (k + 1) * size if k + 1 < self.clients else None]

    def _cut(self, shard: np.ndarray, k: int, s: int) -> list[np.ndarray]:
        """The client's pool of this source, cut into phases; of P(Y), the whole pool for every phase."""
        rng, phases = numpy_stream(self.seed, "drift", "copies", s, k), self.drift.phases
        size = max(len(shard), phases * self.clients * len(shard) // 30)
        if self.drift.phase_samples is not None:
            size = phases * self.drift.phase_samples
        copies = rng.choice(shard, max(0, size - len(shard)))
        scaled = rng.permutation(np.concatenate([rng.permutation(shard)[:size], copies])).astype(np.int32)
        return [scaled] * phases if self.drift.name == "P(Y)" else np.array_split(scaled, phases)

    def stream(self, purpose: str, *which: int) -> np.random.Generator:
        return numpy_stream(self.seed, "drift", purpose, *which)


def _draws(sources: Sequence[np.ndarray], pool: Pool, bank: Sequence[Distribution], mix: tuple[int, int, int]) -> Draws:
    """What is kept of the sources' images. mix: two distributions, and how many thirds come from the second."""
    first, second, thirds = mix
    found: list[np.ndarray] = []
    under: list[np.ndarray] = []
    for d in (first, second):
        index = sources[bank[d].domain or 0]
        cut = len(index) - len(index) * thirds // 3
        index = index[:cut] if not found else index[cut:]
        index = index[bank[d].keeps(pool.labels[index])]
        found.append(index.astype(np.int32))
        under.append(np.full(len(index), d, dtype=np.int32))
    return Draws(np.concatenate(found), np.concatenate(under))


def _stay(
    shards: _Shards, bank: Sequence[Distribution], course: Schedule, k: int, e: int, validation_share: float
) -> Stay:
    mix = int(course.first[k, e]), int(course.second[k, e]), course.thirds[e]
    main, drift = int(course.main[k, e]), shards.drift
    rng = shards.stream("split", k, e)
    seen = _draws([chunks[e] for chunks in shards.chunks[k]], shards.pool, bank, mix)
    if drift.name == "P(Y)" and drift.phase_samples is not None:
        seen = seen.take(np.sort(rng.permutation(len(seen))[: drift.phase_samples]))
    where = f"drift {drift.name!r}: client {k} of {shards.clients} in phase {e}, {bank[main].label},"
    if len(seen) < 2:
        raise FedlibError(
            f"{where} has {len(seen)} samples to learn from, and needs two; take fewer clients or phases, more samples "
            "or phase_samples"
        )
    try:
        train, validation, _ = partitions.split(np.arange(len(seen)), rng, 0.0, validation_share)
    except FedlibError as error:
        raise FedlibError(f"{where} cannot be split: {error}") from error
    test = _draws(shards.test[k], shards.pool, bank, mix)
    _check_test(test, where)
    alone = mix[2] == 0 or mix[0] == mix[1]
    domain = bank[main].domain if alone else None
    return Stay(seen.take(train), seen.take(validation), test, -1 if domain is None else domain, main)


def _check_test(test: Draws, where: str) -> None:
    if not len(test):
        raise FedlibError(f"{where} has no test sample of these; take fewer clients, more samples or a test_share")


def _visitors(shards: _Shards, bank: Sequence[Distribution], course: Schedule) -> tuple[Visitor, ...]:
    last = course.main[:, -1]
    under = last if shards.drift.name == "P(Y|X)" else shards.stream("visitors").choice(last, len(last))
    visitors = []
    for k, d in enumerate(under.tolist()):
        draws = _draws(shards.test[k], shards.pool, bank, (d, d, 0))
        _check_test(draws, f"drift {shards.drift.name!r}: visitor {k} of {shards.clients}, {bank[d].label},")
        few = _few(shards.pool.labels[draws.index], shards.drift.few, shards.stream("few", k))
        scored = np.setdiff1d(np.arange(len(draws)), few)
        samples, labelled = (draws.take(places).made(shards.pool, bank, CPU) for places in (scored, few))
        visitors.append(Visitor(k, samples, labelled, d))
    return tuple(visitors)


def _few(labels: np.ndarray, per_class: int, rng: np.random.Generator) -> np.ndarray:
    """Places of `per_class` samples of each class, at most half of them; ascending."""
    order = rng.permutation(len(labels))
    if not per_class:
        return order[:0]
    mine = [order[labels[order] == k] for k in np.unique(labels)]
    return np.sort(np.concatenate([own[: min(per_class, len(own) // 2)] for own in mine]))
