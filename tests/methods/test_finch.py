"""FINCH against known points and the components of its adjacency matrix."""

from __future__ import annotations

import numpy as np
from domain_tasks import at
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlib.methods.finch import finch, first_neighbours


def groups(labels: np.ndarray) -> set[frozenset[int]]:
    return {frozenset(np.flatnonzero(labels == j).tolist()) for j in set(labels.tolist())}


def test_finch_on_known_points():
    """Neighbours by angle alone, whatever the lengths: 25 goes with 10, and 200 with 100."""
    assert groups(finch(at(0, 10, 25, 90, 100, 200))[0]) == {frozenset({0, 1, 2}), frozenset({3, 4, 5})}
    pairs = finch(at(0, 5, 40, 44, 180, 185, 220, 224))
    halves = {frozenset({0, 1, 2, 3}), frozenset({4, 5, 6, 7})}
    assert [groups(labels) for labels in pairs] == [{frozenset({i, i + 1}) for i in (0, 2, 4, 6)}, halves]
    assert [labels.tolist() for labels in finch(at(30))] == [[0]]
    assert [labels.tolist() for labels in finch(at(30, 170))] == [[0, 0]]
    assert [labels.tolist() for labels in finch(np.zeros((3, 2)))] == [[0, 0, 0]]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 15), st.integers(2, 6))
def test_first_neighbours_are_the_components_of_the_adjacency_matrix_and_know_no_order(seed: int, n: int, d: int):
    draw = np.random.default_rng(seed)
    points = draw.normal(size=(n, d))
    cosine = [[float(p @ q / np.linalg.norm(p) / np.linalg.norm(q)) for q in points] for p in points]
    v = [max((j for j in range(n) if j != i), key=lambda j, i=i: cosine[i][j]) for i in range(n)]
    A = np.array([[j == v[i] or v[j] == i or v[i] == v[j] for j in range(n)] for i in range(n)])
    reach = np.linalg.matrix_power(A.astype(float) + np.eye(n), n) > 0
    assert groups(first_neighbours(points)) == {frozenset(np.flatnonzero(row).tolist()) for row in reach}
    order = draw.permutation(n)
    turned = {frozenset(order[list(group)].tolist()) for group in groups(first_neighbours(points[order]))}
    assert turned == groups(first_neighbours(points))
