"""What a feature space holds: its picture by t-SNE, how its labels separate, and what a linear read-out finds in it.

A picture by t-SNE keeps near neighbours and loses distances between clusters; `separation` therefore measures the
features beside their picture. `linear_probe` trains a read-out of its own: a head that was trained to be wrong on a
feature, as F2DC's is on f-, says nothing of the class information that the feature holds (specification, claim 3).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from sklearn.linear_model import LogisticRegression
from sklearn.manifold import TSNE
from sklearn.metrics import silhouette_score
from sklearn.neighbors import NearestNeighbors
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from fedlib.analysis.spectrum import Array, as_numpy, matrix
from fedlib.checks import FedlibError, check_number
from fedlib.streams import derive

LEAST = 4
"""Samples that a picture needs: below, no perplexity above 1 is left."""


def tsne(z: Array, perplexity: float = 30.0, seed: int = 0) -> np.ndarray:
    """The picture (N, 2), float32, of features z (N, d): t-SNE from the first two principal components.

    Perplexity, the effective number of neighbours, is cut to (N - 1) / 3 where there are too few samples for it.
    Features that are the same for all samples give one point. Raises FedlibError for N < 4 or d < 2.
    """
    features = matrix("tsne", z)
    n, d = features.shape
    if n < LEAST or d < 2:
        raise FedlibError(f"tsne: {n} samples of {d} features; give at least {LEAST} samples of at least 2")
    check_number("tsne: perplexity", perplexity, least=1)
    if (features == features[0]).all():
        return np.zeros((n, 2), dtype=np.float32)
    fitted = TSNE(perplexity=min(perplexity, (n - 1) / 3), init="pca", random_state=derive(seed, "tsne") % 2**32)
    return fitted.fit_transform(features)


def knn_accuracy(z: Array, labels: Array, neighbours: int = 10) -> float:
    """Leave-one-out: the share of samples whose label most of their nearest other samples have (Euclidean).

    Of labels with as many votes the least wins.
    """
    features, coded = _labelled("knn_accuracy", z, labels)
    check_number("knn_accuracy: neighbours", neighbours, least=1, most=len(features) - 1, whole=True)
    nearest = NearestNeighbors(n_neighbors=neighbours).fit(features).kneighbors(return_distance=False)
    votes = (coded[nearest][:, :, None] == np.arange(coded.max() + 1)).sum(axis=1)
    return float((votes.argmax(axis=1) == coded).mean())


def silhouette(z: Array, labels: Array) -> float:
    """Mean over samples of (b - a) / max(a, b): a, b the mean distances to the own and to the nearest other label's."""
    features, coded = _labelled("silhouette", z, labels)
    count = len(np.unique(coded))
    if not 2 <= count < len(coded):
        raise FedlibError(
            f"silhouette: {count} labels for {len(coded)} samples; give at least 2, and fewer than samples"
        )
    return float(silhouette_score(features, coded))


def separation(spaces: Mapping[str, Array], labels: Mapping[str, Array], neighbours: int = 10) -> pd.DataFrame:
    """How well each kind of label separates in each space: columns space, labels, knn, chance, silhouette.

    spaces: (N, d) each, e.g. {"features": z, "picture": tsne(z)}. labels: (N,) each, e.g. {"class": y, "domain": q}.
    knn: `knn_accuracy`. chance: the share of the most frequent label, what it is compared with. Neither measure
    changes when a space is turned or scaled as a whole.
    """
    rows = [
        (space, kind, knn_accuracy(z, values, neighbours), _largest_share(values), silhouette(z, values))
        for space, z in spaces.items()
        for kind, values in labels.items()
    ]
    return pd.DataFrame(rows, columns=["space", "labels", "knn", "chance", "silhouette"])


def linear_predictions(
    z_train: Array, y_train: Array, z_test: Array, strength: float = 1.0, steps: int = 2000
) -> np.ndarray:
    """The test samples' labels (N,) by a multinomial logistic regression on the training features.

    They are standardised by the training set's mean and deviation. strength: inverse of the L2 penalty (C of
    scikit-learn). steps: of L-BFGS at most; scikit-learn warns when they do not suffice. Raises FedlibError for one
    class only, or features of different d.
    """
    train, classes = _labelled("linear_probe: train", z_train, y_train)
    test = matrix("linear_probe: test", z_test)
    check_number("linear_probe: strength", strength, above=0)
    if train.shape[1] != test.shape[1]:
        raise FedlibError(f"linear_probe: {train.shape[1]} features to train and {test.shape[1]} to test; give as many")
    if classes.max() < 1:
        raise FedlibError("linear_probe: train: all labels are the same; give samples of at least two classes")
    probe = make_pipeline(StandardScaler(), LogisticRegression(C=strength, max_iter=steps))
    return probe.fit(train, as_numpy(y_train)).predict(test)


def linear_probe(
    z_train: Array, y_train: Array, z_test: Array, y_test: Array, strength: float = 1.0, steps: int = 2000
) -> float:
    """Test accuracy in [0, 1] of `linear_predictions`. A test label that training lacks counts as an error."""
    _labelled("linear_probe: test", z_test, y_test)
    return float((linear_predictions(z_train, y_train, z_test, strength, steps) == as_numpy(y_test)).mean())


def _labelled(where: str, z: Array, labels: Array) -> tuple[np.ndarray, np.ndarray]:
    """Features (N, d), and labels (N,) as 0, 1, ... in ascending order."""
    features, given = matrix(where, z), as_numpy(labels)
    if len(features) == 0 or given.shape != features.shape[:1]:
        raise FedlibError(f"{where}: labels of shape {given.shape} for {len(features)} samples; give one a sample")
    return features, np.unique(given, return_inverse=True)[1]


def _largest_share(labels: Array) -> float:
    return float(np.unique(as_numpy(labels), return_counts=True)[1].max() / len(labels))
