"""FINCH: clusters from first neighbours, without a number of clusters or a threshold.

Sarfraz, Sharma, Stiefelhagen: Efficient Parameter-free Clustering Using First Neighbor Relations, CVPR 2019.

The authors' package on PyPI, finch-clust, would be a dependency for these lines: scipy finds the components.
"""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

TINY = np.finfo(np.float64).tiny


def finch(points: np.ndarray) -> list[np.ndarray]:
    """The partitions of `points` (n, d), finest first; each is (n,), cluster numbers 0, 1, ….

    The first partition groups the points by first_neighbours, each further one groups the last one's cluster means. The
    one of a single cluster, where the hierarchy ends, is left out unless it is the first.
    """
    found = [first_neighbours(points)]
    while True:
        last = found[-1]
        means = np.stack([points[last == j].mean(0) for j in range(last.max() + 1)])
        coarser = first_neighbours(means)[last]
        if not coarser.any():
            return found
        found.append(coarser)


def first_neighbours(points: np.ndarray) -> np.ndarray:
    """Labels (n,) of the connected components of A, with v_i the point of highest cosine to point i:

        A(i, j) = 1  if  j = v_i  or  v_j = i  or  v_i = v_j

    The links i - v_i alone have the same components: points that share a neighbour meet in it.
    """
    n = len(points)
    if n == 1:
        return np.zeros(1, dtype=int)
    unit = points / np.linalg.norm(points, axis=1, keepdims=True).clip(min=TINY)
    cosine = unit @ unit.T
    np.fill_diagonal(cosine, -np.inf)
    v = cosine.argmax(1)
    links = csr_array((np.ones(n), (np.arange(n), v)), shape=(n, n))
    return connected_components(links, directed=False)[1].astype(int)
