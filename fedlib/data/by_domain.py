"""Partitions by domain: a client holds samples of one hospital, one camera, one drawing style."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedlib.checks import FedlibError, check_choice, check_number

Parts = list[np.ndarray]

SURPLUS = ("refuse", "merge", "leave")


def check_allocation(where: str, value: Any) -> None:
    """Raise FedlibError unless `value` is "random", "random_each", or how many clients each domain has."""
    if isinstance(value, str):
        check_choice(where, value, ("random", "random_each"))
        return
    if not isinstance(value, Sequence) or not value:
        raise FedlibError(
            f"{where}: {value!r} is neither random, nor random_each, nor a list of clients per domain, such as "
            "[2, 3, 2, 3]"
        )
    for number in value:
        check_number(where, number, least=0, whole=True)


def by_source(domains: np.ndarray, clients: int, rng: np.random.Generator, surplus: str = "refuse") -> Parts:
    """A client holds all samples of a domain: one client a hospital, a camera, a writer.

    surplus: what becomes of more domains than clients, of which only those with a sample count.
        "refuse": there may be none, and client i holds domain i.
        "merge": the domains are dealt at random among the clients, equally many to each, to within one.
        "leave": a client a domain, drawn at random in the order of the domains; the other domains are left out.
    """
    sources = np.arange(domains.max() + 1) if surplus == "refuse" else np.unique(domains)
    if clients > len(sources) or (surplus == "refuse" and clients < len(sources)):
        mend = "give as many clients as domains"
        if clients < len(sources):
            mend += ", or surplus: merge (several a client) or leave (one a client)"
        raise FedlibError(f"partition 'by_source': {clients} clients for {len(sources)} domains; {mend}")
    if surplus == "merge":
        sources = rng.permutation(sources)
    elif surplus == "leave":
        sources = np.sort(rng.choice(sources, clients, replace=False))
    holder = np.full(domains.max() + 1, -1)
    for i, own in enumerate(np.array_split(sources, clients)):
        holder[own] = i
    order = np.argsort(holder[domains], kind="stable")
    return np.split(order, np.searchsorted(holder[domains[order]], range(clients + 1)))[1:-1]


def by_domain(
    labels: np.ndarray,
    domains: np.ndarray,
    clients: int,
    rng: np.random.Generator,
    allocation: str | Sequence[int],
    share: float,
    repair: bool = True,
    alpha: float | None = None,
) -> Parts:
    """Domain skew (F²DC spec, 3.1): each client draws floor(share * N_q) samples of its domain q, without replacement.

    allocation: clients of each domain, in the order of the data set's domains; which client gets which is a random
        permutation. "random": each client draws its domain uniformly among those that still have a share left, what the
        released code runs; "random_each": the same, after each domain has been drawn once, what it does for Office.
    share: of the domain's samples (its training part, where clients are tested on the official test part).
    repair: a client that lacks a class swaps one sample, of a class that it holds twice, for one of that class that
        no client holds; where there is none, it goes without.
    alpha: label skew on top: the client's class proportions come from Dir(alpha, …, alpha), as far as the domain's
        samples last. None: a plain random draw.

    Samples that no client draws are left out. Raises FedlibError when a domain cannot serve its clients.
    """
    sizes = np.bincount(domains)
    counts = np.floor(np.round(share * sizes, 6)).astype(np.int64)
    homes = _homes(allocation, clients, sizes, counts, rng)
    free = np.ones(len(labels), dtype=bool)
    parts: Parts = []
    for q in homes:
        pool = np.flatnonzero(free & (domains == q))
        own = rng.permutation(pool)[: counts[q]] if alpha is None else _skewed(labels, pool, counts[q], alpha, rng)
        if repair:
            own = _repaired(own, np.setdiff1d(pool, own), labels, rng)
        free[own] = False
        parts.append(np.sort(own))
    return parts


def _homes(
    allocation: str | Sequence[int], clients: int, sizes: np.ndarray, counts: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """The domain of each client, int64 (clients,)."""
    room = np.where(counts > 0, sizes // np.maximum(counts, 1), 0)
    if isinstance(allocation, str):
        if not room.any():
            raise FedlibError("partition 'by_domain': share gives a client no sample of any domain; raise share")
        if clients > room.sum():
            raise FedlibError(
                f"partition 'by_domain': {clients} clients, but the domains last for {room.sum()} shares; lower share"
            )
        homes = rng.permutation(np.flatnonzero(room)) if allocation == "random_each" else np.empty(0, dtype=np.int64)
        if len(homes) > clients:
            raise FedlibError(
                f"partition 'by_domain': {clients} clients are too few to give each of {len(homes)} domains one; "
                "take allocation: random, or more clients"
            )
        room[homes] -= 1
        for _ in range(clients - len(homes)):
            homes = np.append(homes, rng.choice(np.flatnonzero(room)))
            room[homes[-1]] -= 1
        return homes
    wanted = np.asarray(allocation)
    if len(wanted) != len(sizes) or wanted.sum() != clients:
        raise FedlibError(
            f"partition 'by_domain': allocation {list(allocation)} gives {wanted.sum()} clients to {len(wanted)} "
            f"domains, but there are {clients} clients and {len(sizes)} domains; make both agree"
        )
    if (wanted > room).any():
        q = int(np.argmax(wanted > room))
        if counts[q] == 0:
            raise FedlibError(
                f"partition 'by_domain': share gives no client one of domain {q}'s {sizes[q]} samples; raise it"
            )
        raise FedlibError(
            f"partition 'by_domain': domain {q} has {sizes[q]} samples, too few for {wanted[q]} clients of "
            f"{counts[q]} each; lower share or the domain's clients"
        )
    return rng.permutation(np.repeat(np.arange(len(wanted)), wanted))


def _skewed(labels: np.ndarray, pool: np.ndarray, count: int, alpha: float, rng: np.random.Generator) -> np.ndarray:
    """`count` of the samples `pool`, their classes in Dirichlet proportions as far as they last."""
    classes, held = np.unique(labels[pool], return_counts=True)
    p = rng.dirichlet(np.full(len(classes), alpha))
    drawn = np.minimum(np.floor(p * count).astype(np.int64), held)
    while drawn.sum() < count:  # what rounding and scarce classes leave over goes to the likeliest class with room
        drawn[np.argmax(np.where(drawn < held, p * count - drawn, -np.inf))] += 1
    own = [rng.permutation(pool[labels[pool] == k])[:n] for k, n in zip(classes, drawn, strict=True)]
    return np.concatenate(own)


def _repaired(own: np.ndarray, free: np.ndarray, labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """`own` with one sample swapped for each class that it lacks and `free` has."""
    own = own.copy()
    for k in np.setdiff1d(labels[free], labels[own]):
        held = np.bincount(labels[own])
        spare = np.flatnonzero(held[labels[own]] > 1)
        if len(spare):
            own[rng.choice(spare)] = rng.choice(free[labels[free] == k])
    return own
