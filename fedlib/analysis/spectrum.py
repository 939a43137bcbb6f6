"""How many directions the features use: the singular-value spectrum (Wang et al., CVPR 2026, Fig. 1; specification, 4).

With z in R^{N x d}, row i the pooled feature of sample i, and zbar their mean,

    Sigma = 1/(N-1) sum_i (z_i - zbar)(z_i - zbar)^T,    sigma_1 >= ... >= sigma_d its singular values,
    effective rank = exp(-sum_j p_j log p_j),            p_j = sigma_j / sum_k sigma_k,    0 log 0 = 0.

The paper gives neither layer nor centring; these are the specification's. At most min(N - 1, d) of the sigma_j differ
from 0, so that spectra of different N are not to be compared: domains are cut to the same number of samples.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
from torch import Tensor

from fedlib.checks import FedlibError, check_number
from fedlib.streams import numpy_stream

POOLED = "pooled"
"""The name of all domains together; the centre is then that of all samples."""

Array = np.ndarray | Tensor
"""What features and labels come as; a tensor on any device."""


def as_numpy(values: Array | Sequence[Any]) -> np.ndarray:
    """A tensor without its graph and off its device; anything else as numpy reads it."""
    return values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)


def matrix(where: str, z: Array) -> np.ndarray:
    """Features z (N, d) in double precision. FedlibError if they are no matrix or not finite."""
    found = as_numpy(z).astype(np.float64)
    if found.ndim != 2:
        raise FedlibError(f"{where}: features have shape {found.shape}; give (N, d), a row a sample")
    if not np.isfinite(found).all():
        row, column = np.argwhere(~np.isfinite(found))[0]
        raise FedlibError(f"{where}: sample {row}, feature {column} is {found[row, column]}; give finite features")
    return found


def covariance_spectrum(z: Array) -> np.ndarray:
    """sigma (d,), descending, of features z (N, d), N >= 2. Those that only rounding makes differ from 0 are 0."""
    features = matrix("covariance_spectrum", z)
    n, d = features.shape
    if n < 2:
        raise FedlibError(f"covariance_spectrum: {n} samples; a covariance needs at least two")
    s = np.linalg.svd(features - features.mean(axis=0), compute_uv=False)
    rounding = max(n, d) * np.finfo(np.float64).eps * np.abs(features).max(initial=0.0) * np.sqrt(n)
    s[s <= rounding] = 0.0
    return np.pad(np.square(s) / (n - 1), (0, d - len(s)))


def effective_rank(values: Array) -> float:
    """exp of the entropy of values / sum: k for k equal values, 1 for a single one, 0 where all are 0."""
    sigma = _checked("effective_rank", values)
    total = sigma.sum()
    if total == 0:
        return 0.0
    p = sigma[sigma > 0] / total
    return float(np.exp(-(p * np.log(p)).sum()))


def above(values: Array, share: float = 0.01) -> int:
    """How many are above `share` of the largest; 0 where all are 0."""
    check_number("above: share", share, least=0, below=1)
    sigma = _checked("above", values)
    return int((sigma > share * sigma.max(initial=0.0)).sum())


def summarise(
    z: Array, domains: Array, names: Sequence[str], samples: int | None = None, seed: int = 0, share: float = 0.01
) -> pd.DataFrame:
    """One row pooled, and one a domain centred by itself: columns domain, effective_rank, above, samples.

    z: (N, d). domains: (N,), the index of each sample's domain in `names`. samples: how many are drawn of each domain
    (None: as many as the smallest has), by a stream of (seed, domain): every model meets the same. Pooled: all N.
    """
    rows = []
    for name, part in _parts("summarise", z, domains, names, samples, seed):
        sigma = covariance_spectrum(part)
        rows.append((name, effective_rank(sigma), above(sigma, share), len(part)))
    return pd.DataFrame(rows, columns=["domain", "effective_rank", "above", "samples"])


def spectra(z: Array, domains: Array, names: Sequence[str], samples: int | None = None, seed: int = 0) -> pd.DataFrame:
    """The values behind `summarise`: a row a singular value, columns domain, index (from 1) and value."""
    tables = []
    for name, part in _parts("spectra", z, domains, names, samples, seed):
        sigma = covariance_spectrum(part)
        tables.append(pd.DataFrame({"domain": name, "index": np.arange(1, len(sigma) + 1), "value": sigma}))
    return pd.concat(tables, ignore_index=True)


def _checked(where: str, values: Array) -> np.ndarray:
    sigma = as_numpy(values).astype(np.float64)
    if sigma.ndim != 1 or not np.isfinite(sigma).all() or (sigma < 0).any():
        raise FedlibError(f"{where}: {values!r}; give a list of finite singular values, none below 0")
    return sigma


def _parts(
    where: str, z: Array, domains: Array, names: Sequence[str], samples: int | None, seed: int
) -> Iterator[tuple[str, np.ndarray]]:
    """(name, features): all samples, then the drawn ones of each domain in order of `names`."""
    features, origin = matrix(where, z), as_numpy(domains)
    if origin.shape != features.shape[:1]:
        raise FedlibError(f"{where}: domains have shape {origin.shape}; give one for each of {len(features)} samples")
    if POOLED in names or len(set(names)) != len(names):
        raise FedlibError(f"{where}: names: {list(names)}; name each domain once, and none {POOLED!r}")
    strangers = set(origin.tolist()) - set(range(len(names)))
    if strangers:
        raise FedlibError(f"{where}: domains: {sorted(strangers)} have no name; give indices into {list(names)}")
    members = [np.flatnonzero(origin == q) for q in range(len(names))]
    smallest = min(range(len(names)), key=lambda q: len(members[q]))
    size = len(members[smallest]) if samples is None else samples
    if size < 2 or size > len(members[smallest]):
        raise FedlibError(
            f"{where}: samples: {size} of each domain, but {names[smallest]!r} has {len(members[smallest])}; "
            "give at least 2 and at most the smallest domain's number, or leave out that domain"
        )
    yield POOLED, features
    for name, own in zip(names, members, strict=True):
        drawn = numpy_stream(seed, "spectrum", name).choice(own, size, replace=False)
        yield name, features[np.sort(drawn)]
