"""How far the label distributions of a federation's clients differ, and which clients hold the same classes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from scipy.spatial.distance import jensenshannon

from fedlib.checks import FedlibError

if TYPE_CHECKING:
    from fedlib.data.federation import Federation


def counts(labels: np.ndarray, parts: Sequence[np.ndarray], classes: int) -> np.ndarray:
    """How many samples of each class each client holds: int64, (clients, classes)."""
    labels = np.asarray(labels)
    if labels.ndim > 1:
        raise FedlibError(f"labels are of shape {labels.shape}: a sample may have several, and none is its class")
    if len(labels) and (labels.min() < 0 or labels.max() >= classes):
        raise FedlibError(f"labels run from {labels.min()} to {labels.max()}, but classes is {classes}")
    return np.stack([np.bincount(labels[part], minlength=classes) for part in parts])


def _distributions(table: np.ndarray) -> np.ndarray:
    """Rows of `table` divided by their sums."""
    sums = np.asarray(table).sum(axis=1, keepdims=True)
    if not sums.all():
        raise FedlibError(f"client {int(np.argmin(sums))} holds no sample, so it has no label distribution")
    return table / sums


def _hellinger(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """Hellinger distance of each row of `p` to the same row of `q`: (1/√2)·‖√p - √q‖₂, from 0 to 1."""
    return np.linalg.norm(np.sqrt(p) - np.sqrt(q), axis=-1) / np.sqrt(2)


def _jensen_shannon(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """Jensen-Shannon distance (root of the divergence in bits) of each row of `p` to that of `q`, from 0 to 1."""
    return jensenshannon(p, q, base=2, axis=-1)


def _mean_over_pairs(distance: Callable[[np.ndarray, np.ndarray], np.ndarray], table: np.ndarray) -> float:
    p = _distributions(table)
    left, right = np.triu_indices(len(p), k=1)
    return float(distance(p[left], p[right]).mean()) if len(left) else 0.0


def hellinger(table: np.ndarray) -> float:
    """Mean Hellinger distance over pairs of clients. table: `counts`, (clients, classes). 0: same, 1: disjoint."""
    return _mean_over_pairs(_hellinger, table)


def jensen_shannon(table: np.ndarray) -> float:
    """Mean Jensen-Shannon distance (base 2) over pairs of clients. table: `counts`. 0: same, 1: disjoint."""
    return _mean_over_pairs(_jensen_shannon, table)


def majority_accuracy(table: np.ndarray) -> float:
    """Accuracy of always predicting each client's most frequent class, over all samples (FedFew spec, 3).

    table: `counts`. A partition's fingerprint: it tells which Dirichlet concentration was drawn from. 1: every client
    holds one class.
    """
    table = np.asarray(table)
    _distributions(table)
    return float(table.max(axis=1).sum() / table.sum())


def effective_classes(table: np.ndarray) -> float:
    """Mean over clients of exp(H_i), where H_i is the entropy, in nats, of client i's labels (FedFew spec, 3).

    table: `counts`. C where all clients hold C classes evenly, 1 where each holds a single one. The spec leaves open
    how clients are averaged; the plain mean of exp(H_i) is the reading that its numbers agree with best.
    """
    p = _distributions(table)
    entropy = -(p * np.log(p, out=np.zeros_like(p), where=p > 0)).sum(axis=1)
    return float(np.exp(entropy).mean())


def skew_report(labels: np.ndarray, parts: Sequence[np.ndarray], classes: int) -> pd.DataFrame:
    """One row a client: its samples, how many classes it holds, and how far it is from the pooled label distribution.

    Columns: samples, classes, hellinger, jensen_shannon (both 0 to 1). The two numbers for the whole partition are
    `hellinger(counts(…))` and `jensen_shannon(counts(…))`: means over pairs of clients.
    """
    table = counts(labels, parts, classes)
    own = _distributions(table)
    pooled = np.broadcast_to(table.sum(axis=0) / table.sum(), own.shape)
    columns = {
        "samples": table.sum(axis=1),
        "classes": (table > 0).sum(axis=1),
        "hellinger": _hellinger(own, pooled),
        "jensen_shannon": _jensen_shannon(own, pooled),
    }
    return pd.DataFrame(columns, index=pd.RangeIndex(len(table), name="client"))


def class_groups(federation: Federation) -> list[int]:
    """The group of each client: clients of one group hold the same set of classes, in whatever numbers.

    Groups are numbered from 0 in the order of their first clients. All samples of a client count, whichever part they
    are in. These are the true groups of `pathological` with rule "groups"; under a Dirichlet partition most clients
    are groups of their own.
    """
    first: dict[frozenset[int], int] = {}
    held = (
        frozenset(label for part in (client.train, client.validation, client.test) for label in part.labels.tolist())
        for client in federation.clients
    )
    return [first.setdefault(classes, len(first)) for classes in held]
