"""Do distances between profiles tell how far the distributions behind them are apart? (FEROMA spec, 1.3 R1, 4 and 5.4)

FEROMA asks of its profiles d that, for distributions P_a and P_b, | ||d_a - d_b|| - Delta(P_a, P_b) | be at most xi,
and that ||d_a - d_b|| lie between c and C times Delta (bi-Lipschitz). Delta is here

    W2   Wasserstein-2 between diagonal Gaussians fitted to v = [pixels in [0, 1]; one-hot label]:
         sqrt(||mu_a - mu_b||^2 + ||sigma_a - sigma_b||^2)
    JS   Jensen-Shannon distance of the joint histograms of label and pixel, 50 bins: sqrt of the divergence, in nats

A diagonal Gaussian has no label-conditional part: permuting the labels of balanced classes moves W2 by nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
import torch
from scipy import stats
from scipy.spatial.distance import cdist
from torch import Tensor
from torch.nn.functional import one_hot

from fedlib import profiles
from fedlib.checks import FedlibError, check_choice
from fedlib.data import drift as drifts
from fedlib.data.drifting import Drifting
from fedlib.data.federation import Client, Samples
from fedlib.data.pool import Pool
from fedlib.methods.feroma import FEROMA, axes
from fedlib.runs import Run
from fedlib.streams import torch_stream

BINS = 50
GREY = ("P(Y)", "P(Y|X)")
"""Kinds whose grey images have one plane in the authors' archive; with the others they have three."""
DISTANCES = ("raw", "scaled", "masked", "label-free", "w2", "js")
"""Between two cells: of profiles as they are; scaled, as FEROMA compares clients; scaled as it does where it is
`masked`; of the first 2 l scaled coordinates, as it compares visitors; and of distributions."""


def gaussian(samples: Samples, classes: int, planes: int = 3) -> Tensor:
    """[mu, sigma] (2 (p + U),), float64, of v = [p pixels of the first `planes` planes; one-hot label]."""
    x = samples.images[:, :planes].flatten(1).double() / 255
    return profiles.marginals(torch.cat([x, one_hot(samples.labels, classes)], dim=1))


def wasserstein(moments: Tensor) -> Tensor:
    """W2 (n, n) between diagonal Gaussians with these [mu, sigma] (n, 2 p)."""
    return profiles.distances(moments, moments)


def joint(samples: Samples, classes: int, planes: int = 3) -> Tensor:
    """Shares (U * 50,) of all pixels, by the label of their image and by their value: 50 bins of [0, 1]."""
    pixels = samples.images[:, :planes].flatten(1).long()
    cell = (pixels * BINS // 255).clamp(max=BINS - 1) + BINS * samples.labels[:, None]
    return torch.bincount(cell.flatten(), minlength=classes * BINS).double() / cell.numel()


def jensen_shannon(shares: Tensor) -> Tensor:
    """JS (n, n) between distributions (n, k); sqrt(log 2) at most."""
    return torch.from_numpy(cdist(shares, shares, "jensenshannon")).nan_to_num()


def cells(federation: Drifting) -> Iterator[tuple[int, Client]]:
    """(phase, client), for every phase that some round is in, one phase after the other."""
    rounds, phases = federation.rounds, len(federation.stays)
    first = {drifts.phase_of(t, rounds, phases): t for t in range(rounds, 0, -1)}
    for phase in sorted(first):
        for client in federation.at(first[phase]).clients:
            yield phase, client


def pairs(run: Run) -> pd.DataFrame:
    """DISTANCES between all cells (clients in phases) of a FEROMA run, a row for each two.

    first, second: the cells, counted phase by phase. same: whether their distribution is one. missing: whether they
    miss different labels. Embedding, projection and scaler are the run's. A profile is of random halves of the cell's
    validation samples, as in the rounds; W2 and JS are of all its samples, training included. Raises FedlibError for a
    run that is no drifting FEROMA, or that has not ended its warm-up.
    """
    experiment, server = run.experiment, run.snapshot().server
    method, federation = experiment.method, experiment.federation()
    if not isinstance(method, FEROMA) or not isinstance(federation, Drifting):
        raise FedlibError(
            f"pairs: a run of {type(method).__name__}, drift {experiment.drift}; give FEROMA with a drift"
        )
    if server.round <= method.warmup:
        raise FedlibError(f"pairs: round {server.round} has no profiles yet; take a run beyond round {method.warmup}")
    model = method.build(experiment.task(federation))
    model.load_state_dict(method.embedding_of(server))
    planes = 1 if drifts.read(experiment.drift or {}).name in GREY and is_grey(federation.pool) else 3
    mapped = drifts.phase_of(method.warmup + 1, federation.rounds, len(federation.stays))
    found: list[tuple[int, bool, Tensor, Tensor, Tensor]] = []
    for phase, client in cells(federation):
        z = profiles.latents(model, client.validation.images)
        stream = torch_stream(experiment.seed, "fidelity", phase, client.index)
        d = method.profile(server, z, client.validation.labels, stream)
        own, U = _whole(client), len(federation.classes)
        found.append((client.distribution, phase == mapped, d, gaussian(own, U, planes), joint(own, U, planes)))
    distribution, fitted = (np.array([cell[column] for cell in found]) for column in (0, 1))
    d, moments, shares = (torch.stack(part) for part in zip(*[cell[2:] for cell in found], strict=True))
    scaled, masked = method.scaled(server, d), scaled_masked(d, d[fitted], axes(server))
    free = scaled[:, : 2 * axes(server)]
    between = [profiles.distances(part, part) for part in (d.double(), scaled, masked, free)]
    between += [wasserstein(moments), jensen_shannon(shares)]
    a, b = np.triu_indices(len(found), 1)
    seen = profiles.present(d, axes(server)).numpy()
    missing = (seen[a] != seen[b]).any(axis=1)
    table = {"first": a, "second": b, "same": distribution[a] == distribution[b], "missing": missing}
    return pd.DataFrame(table | {name: D.numpy()[a, b] for name, D in zip(DISTANCES, between, strict=True)})


def scaled_masked(d: Tensor, first: Tensor, ell: int) -> Tensor:
    """Profiles (n, d), scaled without their absent labels by a scaler of `first`, those of the first mapped phase."""
    return profiles.scale(d, *profiles.fit_scaler(first, ell, masked=True), ell, masked=True)


def is_grey(pool: Pool) -> bool:
    """Whether the three planes of every image are the same."""
    return bool((pool.images == pool.images[:, :1]).all())


def _whole(client: Client) -> Samples:
    parts = (client.train, client.validation)
    return Samples(*(torch.cat([getattr(part, name) for part in parts]) for name in ("images", "labels")))


def fidelity(table: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """`measures` of the pairs of each group, in rows: the columns `by`, metric, value."""
    for column in by:
        check_choice("fidelity: by", column, table.columns)
    rows = []
    for names, group in table.groupby(list(by), sort=False):
        rows += [(*names, metric, value) for metric, value in measures(group).items()]
    return pd.DataFrame(rows, columns=[*by, "metric", "value"])


def measures(pairs: pd.DataFrame) -> dict[str, float]:
    """Numbers over all pairs.

    rho NAME: Spearman's rank correlation of a distance with W2; NaN where one of the two is constant.
    w2_max, w2_mean, js_max, js_mean: of | raw - Delta |, which is xi; the paper's is the largest.
    missing, w2_max rest: the share of pairs that miss different labels, and xi without these; NaN where all do.
    ratio q05, q50, q95: quantiles of raw / W2, where W2 > 0, and ratio spread, q95 / q05.
    auc NAME: how likely a pair of two distributions is further apart than a pair of one (ties: one half); 0.5 for a
    distance that cannot tell, NaN where there are only pairs of one sort.
    """
    found = {f"rho {name}": _rho(pairs[name], pairs["w2"]) for name in DISTANCES if name != "w2"}
    for name in ("w2", "js"):
        xi = (pairs["raw"] - pairs[name]).abs()
        found |= {f"{name}_max": float(xi.max()), f"{name}_mean": float(xi.mean())}
    rest = pairs[~pairs["missing"]]
    found |= {"missing": float(pairs["missing"].mean()), "w2_max rest": float((rest["raw"] - rest["w2"]).abs().max())}
    apart = pairs[pairs["w2"] > 0]
    q05, q50, q95 = (apart["raw"] / apart["w2"]).quantile([0.05, 0.5, 0.95])
    found |= {"ratio q05": q05, "ratio q50": q50, "ratio q95": q95, "ratio spread": q95 / q05}
    return found | {
        f"auc {name}": _auc(pairs.loc[~pairs["same"], name], pairs.loc[pairs["same"], name]) for name in DISTANCES
    }


def _rho(a: pd.Series, b: pd.Series) -> float:
    return float(stats.spearmanr(a, b).statistic) if min(a.nunique(), b.nunique()) > 1 else float("nan")


def _auc(apart: pd.Series, alike: pd.Series) -> float:
    if apart.empty or alike.empty:
        return float("nan")
    return float(stats.mannwhitneyu(apart, alike).statistic) / (len(apart) * len(alike))
