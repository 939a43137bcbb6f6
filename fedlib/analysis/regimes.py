"""FEROMA's mapping on profiles that are made up, where the right answer is known (FEROMA spec, 1.5)."""

from __future__ import annotations

import torch
from torch import Tensor

from fedlib import profiles
from fedlib.checks import check_number
from fedlib.methods.feroma import FEROMA
from fedlib.streams import torch_stream

EXAMPLE = (
    (0.10, 0.05, 0.41, 0.37, 0.07),
    (0.26, 0.24, 0.17, 0.16, 0.17),
    (0.70, 0.07, 0.10, 0.10, 0.03),
    (0.10, 0.57, 0.04, 0.06, 0.23),
    (0.10, 0.11, 0.10, 0.09, 0.60),
    (0.02, 0.19, 0.08, 0.13, 0.58),
)
"""The weights in the paper's Fig. 3, before a threshold: a row for each current client, a column for each previous."""
EXAMPLE_REGIMES = ("clustered", "global", "personal")
"""What the figure says of its first three clients."""


def profiles_of(means: Tensor, classes: int, samples: int | None = None, seed: int = 0) -> Tensor:
    """Profiles d (n, 2 l (U + 1)) of clients whose projected latents are normal with means (n, l) and variance 1.

    The labels 0 … classes - 1 are alike often and say nothing about the latents. samples: so many are drawn for each
    client; None: the exact moments.
    """
    check_number("profiles_of: classes", classes, least=1, whole=True)
    n, ell = means.shape
    if samples is None:
        return torch.cat([means, torch.ones(n, ell)] + [means] * classes + [torch.ones(n, ell)] * classes, dim=1)
    check_number("profiles_of: samples", samples, least=2 * classes, whole=True)
    labels = torch.arange(samples) % classes
    found = []
    for k, mean in enumerate(means):
        g = mean + torch.randn(samples, ell, generator=torch_stream(seed, "profiles", k))
        found.append(profiles.statistics(g, labels, classes))
    return torch.stack(found)


def weights(current: Tensor, previous: Tensor, ell: int, method: FEROMA | None = None) -> tuple[Tensor, Tensor]:
    """D and w (n, |A|), before the threshold, of current profiles (n, d) on those of the round before (|A|, d).

    The scaler is fitted on `previous`, as in the first round with profiles. method: FEROMA() where none is given.
    """
    method = method or FEROMA()
    low, span = profiles.fit_scaler(previous, ell, method.masked)
    now, before = (profiles.scale(d, low, span, ell, method.masked) for d in (current, previous))
    D = profiles.distances(now, before, method.distance)
    return D, method.similarity(D)
