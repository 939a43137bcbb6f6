"""Partitions: labels -> one array of indices a client. How far clients differ then is measured in `data.skew`.

Every partition gives each index to one client at most (to exactly one, except where its docstring says what is left
out), in ascending order within a client, and takes its randomness from the generator alone. One that cannot be made
raises FedlibError instead of drawing for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from inspect import signature
from typing import Any

import numpy as np

from fedlib.checks import FedlibError, check_choice, check_number
from fedlib.data.by_domain import SURPLUS, Parts, by_domain, by_source, check_allocation
from fedlib.data.skew import counts, hellinger, jensen_shannon, skew_report  # noqa: F401  (asked for here, too)
from fedlib.data.spec import resolve

MAX_TRIES = 1000
"""Draws of a Dirichlet partition before it is given up."""

_RULES = {"dirichlet": ("capped", "practical", "plain"), "pathological": ("balanced", "groups")}

_SETTINGS: dict[str, Callable[[str, Any], Any]] = {
    "alpha": partial(check_number, above=0, most=1e6),
    "minimum": partial(check_number, least=1, whole=True),
    "per_client": partial(check_number, least=1, whole=True),
    "classes_per_client": partial(check_number, least=1, whole=True),
    "allocation": check_allocation,
    "share": partial(check_number, above=0, most=1),
    "repair": partial(check_choice, valid=(True, False)),
    "surplus": partial(check_choice, valid=SURPLUS),
    "chunks": partial(check_number, least=1, whole=True),
}


def _check_settings(name: str, settings: Mapping[str, Any]) -> None:
    for key, value in settings.items():
        where = f"partition {name!r}: {key}"
        if key == "rule":
            check_choice(where, value, _RULES[name])
        else:
            _SETTINGS[key](where, value)


def _check(name: str, labels: np.ndarray, clients: int, **settings: Any) -> np.ndarray:
    """The labels as an array, after the checks that every partition shares."""
    labels = np.asarray(labels)
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise FedlibError(f"partition {name!r}: labels are {labels.dtype} {labels.shape}, not whole numbers (N,)")
    check_number(f"partition {name!r}: clients", clients, least=1, whole=True)
    if clients > len(labels):
        raise FedlibError(
            f"partition {name!r}: {clients} clients are more than the {len(labels)} samples; take fewer clients"
        )
    _check_settings(name, settings)
    return labels


def _deal(labels: np.ndarray, table: np.ndarray, rng: np.random.Generator) -> Parts:
    """Give client i `table[k, i]` random samples of the k-th class present. table: int, (classes present, clients)."""
    pieces = [
        np.split(rng.permutation(np.flatnonzero(labels == k)), np.cumsum(row)[:-1])
        for k, row in zip(np.unique(labels), table, strict=True)
    ]
    return [np.sort(np.concatenate(own)) for own in zip(*pieces, strict=True)]


def iid(labels: np.ndarray, clients: int, rng: np.random.Generator) -> Parts:
    """A random partition into sizes that differ by at most one."""
    labels = _check("iid", labels, clients)
    return [np.sort(part) for part in np.array_split(rng.permutation(len(labels)), clients)]


def _draw_table(
    sizes: np.ndarray, clients: int, rng: np.random.Generator, alpha: float, capped: bool
) -> np.ndarray | None:
    """One draw of how many samples of each class each client gets, or None if only full clients were drawn."""
    table = np.zeros((len(sizes), clients), dtype=np.int64)
    for k, size in enumerate(sizes):
        p = rng.dirichlet(np.full(clients, alpha))
        if capped:
            p[table.sum(axis=0) * clients >= sizes.sum()] = 0
        cumulative = np.cumsum(p)
        if not cumulative[-1] > 0:
            return None
        table[k] = np.diff(np.floor(cumulative / cumulative[-1] * size).astype(np.int64), prepend=0)
    return table


def dirichlet(
    labels: np.ndarray,
    clients: int,
    rng: np.random.Generator,
    alpha: float,
    rule: str = "capped",
    minimum: int | None = None,
) -> Parts:
    """Label skew: each class is cut by proportions drawn from Dir(alpha, …, alpha), class after class.

    rule "capped" (FedDRM spec, 3.2; fedlab's "hetero-dir"): a client that already holds N / clients samples gets
        nothing more, so sizes stay near N / clients (below N / clients plus the largest class).
    rule "practical" (FedFew spec, 3): the same cap, with that paper's minimum.
    rule "plain" (Hsu et al. 2019, arXiv 1909.06335): no cap.
    minimum: fewest samples of a client; the draw is repeated until it is met. None: the number of classes present, or
        min(40, N / clients / 2), rounded up, for "practical".

    Raises FedlibError if `minimum` cannot be met, or was not within MAX_TRIES draws.
    """
    labels = _check("dirichlet", labels, clients, alpha=alpha, rule=rule, minimum=1 if minimum is None else minimum)
    sizes = np.unique(labels, return_counts=True)[1]
    usual = min(40, -(-len(labels) // (2 * clients))) if rule == "practical" else len(sizes)
    fewest = usual if minimum is None else minimum
    _check_minimum("dirichlet", fewest, clients, len(labels))
    for _ in range(MAX_TRIES):
        table = _draw_table(sizes, clients, rng, alpha, rule != "plain")
        if table is not None and table.sum(axis=0).min() >= fewest:
            return _deal(labels, table, rng)
    raise FedlibError(
        f"partition 'dirichlet': in {MAX_TRIES} draws with alpha {alpha} not every one of {clients} clients got "
        f"{fewest} samples; raise alpha, take fewer clients or lower minimum"
    )


def _check_minimum(name: str, minimum: int, clients: int, samples: int) -> None:
    if minimum * clients > samples:
        raise FedlibError(
            f"partition {name!r}: {clients} clients of at least {minimum} samples need {minimum * clients}, "
            f"but there are {samples}; take fewer clients or lower minimum"
        )


def shards(labels: np.ndarray, clients: int, rng: np.random.Generator, per_client: int) -> Parts:
    """S-SPC, `per_client` shards a client (FedDRM spec, 3.2; McMahan et al. 2017, arXiv 1602.05629).

    The samples, sorted by label, are cut into clients * per_client shards of equal size (to within one sample),
    which are dealt at random.
    """
    labels = _check("shards", labels, clients, per_client=per_client)
    total = clients * per_client
    if total > len(labels):
        raise FedlibError(
            f"partition 'shards': {clients} clients of {per_client} shards need {total} samples, but there are "
            f"{len(labels)}; lower per_client or take fewer clients"
        )
    pieces = np.array_split(np.argsort(labels, kind="stable"), total)
    hands = rng.permutation(total).reshape(clients, per_client)
    return [np.sort(np.concatenate([pieces[shard] for shard in hand])) for hand in hands]


def pathological(
    labels: np.ndarray, clients: int, rng: np.random.Generator, classes_per_client: int, rule: str = "balanced"
) -> Parts:
    """Every client holds exactly `classes_per_client` classes; a class's samples are dealt evenly among its holders.

    rule "balanced": the classes of a client are drawn at random, so that numbers of holders differ by at most one.
    rule "groups" (FedFew spec, 3): disjoint groups of clients, each with classes of its own. With C classes and m
        clients, classes are visited in order, and each goes to the first ceil(m / C * classes_per_client) clients
        that lack some: 20 clients with 2 of 10 classes are 5 groups of 4, with the classes {0, 1}, {2, 3}, ….

    Raises FedlibError where a client would hold another number of classes, or a class would go to nobody.
    """
    name = "pathological"
    labels = _check(name, labels, clients, classes_per_client=classes_per_client, rule=rule)
    present, sizes = np.unique(labels, return_counts=True)
    check_number(f"partition {name!r}: classes_per_client", classes_per_client, most=len(present))
    asked = len(present), clients, classes_per_client
    holds = _grouped(*asked) if rule == "groups" else _balanced(*asked, rng)
    holders = holds.sum(axis=1)
    if (holders > sizes).any():
        k = int(np.argmax(holders > sizes))
        raise FedlibError(
            f"partition {name!r}: class {present[k]} has {sizes[k]} samples for {holders[k]} clients; "
            "lower classes_per_client or take fewer clients"
        )
    cuts = np.cumsum(holds, axis=1) * sizes[:, None] // holders[:, None]
    return _deal(labels, np.diff(cuts, axis=1, prepend=0), rng)


def _balanced(classes: int, clients: int, per_client: int, rng: np.random.Generator) -> np.ndarray:
    """Which client holds which class, 0 or 1, (classes, clients): each client draws those with the fewest holders."""
    if clients * per_client < classes:
        raise FedlibError(
            f"partition 'pathological': {clients} clients of {per_client} classes leave some of {classes} "
            "classes to nobody; raise classes_per_client or take more clients"
        )
    holds = np.zeros((classes, clients), dtype=np.int64)
    for client in range(clients):
        fewest_holders_first = np.lexsort((rng.random(classes), holds.sum(axis=1)))
        holds[fewest_holders_first[:per_client], client] = 1
    return holds


def _grouped(classes: int, clients: int, per_client: int) -> np.ndarray:
    """The same by rule "groups".

    The first clients that lack a class go on sharing until they are full: the visits come to blocks of `size`
    neighbouring clients and `per_client` neighbouring classes.
    """
    size = -(-clients * per_client // classes)
    blocks = -(-clients // size)
    if blocks * per_client != classes:
        multiple = f"take a multiple of {classes // per_client} clients"
        mend = f"let classes_per_client divide {classes}" if classes % per_client else multiple
        raise FedlibError(
            f"partition 'pathological': {clients} clients of {per_client} classes are {blocks} groups, which share "
            f"out {blocks * per_client} classes, but there are {classes}; {mend}, or rule: balanced"
        )
    group_of_class, group_of_client = np.arange(classes) // per_client, np.arange(clients) // size
    return (group_of_class[:, None] == group_of_client).astype(np.int64)


def single_class_chunks(labels: np.ndarray, clients: int, rng: np.random.Generator, chunks: int = 4) -> Parts:
    """FedFew's FEMNIST as released (spec, 7: trap 3): a "writer" is a chunk of a single class.

    Each class is cut at random into `chunks` equal parts, to within one sample, and the largest of all parts, as many
    as there are clients, are the clients; equal ones in the order of the classes. The others are left out. Whoever
    predicts a client's one label is always right, so any personalised method reaches 100 %: a partition to show that
    with, and no federation of writers, which is by_source.

    chunks: decided here, as the released number was not to be had: 20 clients are then 5 classes, of the 4 to 6 that
        the released one has.
    """
    name = "single_class_chunks"
    labels = _check(name, labels, clients, chunks=chunks)
    dealt = [rng.permutation(np.flatnonzero(labels == k)) for k in np.unique(labels)]
    parts = [part for own in dealt for part in np.array_split(own, chunks) if len(part)]
    if len(parts) < clients:
        raise FedlibError(
            f"partition {name!r}: {chunks} chunks of each class make {len(parts)} clients at most, but {clients} were "
            "asked for; raise chunks or take fewer clients"
        )
    return [np.sort(part) for part in sorted(parts, key=len, reverse=True)[:clients]]


def quantity(labels: np.ndarray, clients: int, rng: np.random.Generator, alpha: float, minimum: int = 10) -> Parts:
    """Quantity skew: random samples, unequal sizes (after Li et al. 2022, NIID-Bench, arXiv 2102.02079).

    Every client gets `minimum` samples; what is left is cut by proportions drawn from Dir(alpha, …, alpha).
    """
    labels = _check("quantity", labels, clients, alpha=alpha, minimum=minimum)
    _check_minimum("quantity", minimum, clients, len(labels))
    rest = len(labels) - minimum * clients
    cumulative = np.cumsum(rng.dirichlet(np.full(clients, alpha)))
    cuts = np.floor(cumulative / cumulative[-1] * rest).astype(np.int64) + minimum * np.arange(1, clients + 1)
    return [np.sort(part) for part in np.split(rng.permutation(len(labels)), cuts[:-1])]


PARTITIONS: dict[str, Callable[..., Parts]] = {
    "iid": iid,
    "dirichlet": dirichlet,
    "shards": shards,
    "pathological": pathological,
    "quantity": quantity,
    "by_source": by_source,
    "by_domain": by_domain,
    "single_class_chunks": single_class_chunks,
}

SUPPLIED = ("labels", "domains", "clients", "rng")
"""What `partition` gives to a function that asks for it by name; its other parameters are settings."""


def check_spec(spec: Mapping[str, Any]) -> None:
    """Raise FedlibError unless `spec`, such as {"name": "dirichlet", "alpha": 0.3}, names a partition and fits it."""
    function, settings = resolve("partition", PARTITIONS, spec, SUPPLIED)
    defaults = {name: parameter.default for name, parameter in signature(function).parameters.items()}
    given = {name: value for name, value in settings.items() if value is not None or defaults[name] is not None}
    _check_settings(spec["name"], given)


def check_label_free(spec: Mapping[str, Any], name: str) -> None:
    """Raise FedlibError if the partition goes by labels, of which the samples of the data set `name` have several."""
    check_spec(spec)
    by_domain_alone = spec["name"] == "by_domain" and spec.get("repair") is False and spec.get("alpha") is None
    if spec["name"] not in ("iid", "quantity", "by_source") and not by_domain_alone:
        raise FedlibError(
            f"partition: {dict(spec)} goes by labels, but a sample of {name!r} may have several; take iid, quantity, "
            "by_source, or by_domain with repair: false and without alpha"
        )


def partition(
    spec: Mapping[str, Any],
    labels: np.ndarray,
    clients: int,
    rng: np.random.Generator,
    domains: np.ndarray | None = None,
) -> Parts:
    """The partition that `spec` describes: {"name": a key of PARTITIONS, and that function's own settings}.

    domains: int64 (N,), for partitions that go by them; None where the data set has none.
    """
    check_spec(spec)
    function, settings = resolve("partition", PARTITIONS, spec, SUPPLIED)
    given = {"labels": labels, "domains": domains, "clients": clients, "rng": rng}
    asked = {name: given[name] for name in signature(function).parameters if name in given}
    if "domains" in asked and domains is None:
        raise FedlibError(
            f"partition {spec['name']!r}: this data set has no domains; take another partition or data set"
        )
    return function(**asked, **settings)


def split(
    index: np.ndarray, rng: np.random.Generator, test_share: float, validation_share: float = 0.0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """One client's samples at random into (train, validation, test), each ascending.

    Train and validation together are floor((1 - test_share) * n) samples (FedDRM spec, 3.1: 70 %, floored); of these
    floor((1 - validation_share) * that) are train. Raises FedlibError if a part that is asked for is empty; a share
    of 0 asks for none.
    """
    check_number("test_share", test_share, least=0, below=1)
    check_number("validation_share", validation_share, least=0, below=1)
    seen = _floor_share(len(index), test_share)
    train = _floor_share(seen, validation_share)
    sizes = {"train": train, "validation": seen - train, "test": len(index) - seen}
    asked = {"train": True, "validation": validation_share > 0, "test": test_share > 0}
    empty = [part for part, size in sizes.items() if asked[part] and not size]
    if empty:
        raise FedlibError(
            f"test_share {test_share} and validation_share {validation_share} of {len(index)} samples leave "
            f"{' and '.join(empty)} empty; take fewer clients, a larger minimum or other shares"
        )
    train_part, validation, test = np.split(rng.permutation(index), [train, seen])
    return np.sort(train_part), np.sort(validation), np.sort(test)


def _floor_share(samples: int, taken: float) -> int:
    """floor((1 - taken) * samples), not fooled by 1 - 0.9 = 0.0999…."""
    return int(np.floor(round((1 - taken) * samples, 6)))
