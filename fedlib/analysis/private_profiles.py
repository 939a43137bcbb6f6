"""What privacy costs a profile, without training: noise and matches, by epsilon and by the number of samples n.

A FEROMA run leaves its embedding and its projection; from them come the latents of its clients' validation samples and
of its visitors' samples, and of these as many private profiles as are wanted. A larger n is had by counting every
sample several times: the statistics stay as they are, and the noise is what it would be with so many samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from fedlib import privacy, profiles
from fedlib.checks import FedlibError, check_choice, check_number
from fedlib.data import drift as drifts
from fedlib.experiment import Experiment
from fedlib.methods.feroma import FEROMA
from fedlib.profiles import Projection
from fedlib.runs import Run
from fedlib.streams import torch_stream

RELEASED = "as released"
MECHANISMS = (privacy.GAUSSIAN, privacy.ANALYTIC, privacy.LAPLACE, RELEASED)
"""The last one is the authors' code's, which is not differentially private."""
NO_NOISE = "none"


@dataclass(frozen=True, eq=False)
class Kept:
    """What profiles are made of: projected latents g, (n_k, l) each, all on the CPU.

    clients, labels: of each client's validation samples in the last round. visitors: of their first samples, as many
    as a client has. drawn, asked: the distributions of clients (m,) and visitors (v,).
    """

    clients: tuple[Tensor, ...]
    labels: tuple[Tensor, ...]
    visitors: tuple[Tensor, ...]
    drawn: Tensor
    asked: Tensor
    projection: Projection
    classes: int
    masked: bool

    @property
    def n(self) -> int:
        """The median number of a client's samples."""
        return int(np.median([len(g) for g in self.clients]))

    @property
    def same(self) -> Tensor:
        """(v, m): whether visitor and client have one distribution."""
        return self.asked[:, None] == self.drawn


def kept(run: Run) -> Kept:
    """Of a FEROMA run with visitors. Raises FedlibError for another method, or before it has made profiles."""
    experiment, server = run.experiment, run.snapshot().server
    method, federation = experiment.method, experiment.federation().at(experiment.plan.rounds)
    if not isinstance(method, FEROMA) or not federation.visitors:
        raise FedlibError(f"kept: a run of {type(method).__name__}, drift {experiment.drift}; give FEROMA with a drift")
    if server.round <= method.warmup:
        raise FedlibError(f"kept: round {server.round} has no profiles yet; take a run beyond round {method.warmup}")
    model = method.build(experiment.task(federation))
    model.load_state_dict(method.embedding_of(server))
    z = [profiles.latents(model, client.validation.images) for client in federation.clients]
    g = method.projection_for(server, z[0])
    n = int(np.median([len(own) for own in z]))
    visitors = [g(profiles.latents(model, visitor.samples.images[:n])) for visitor in federation.visitors]
    drawn, asked = (
        torch.tensor([one.distribution for one in some]) for some in (federation.clients, federation.visitors)
    )
    labels = tuple(client.validation.labels for client in federation.clients)
    return Kept(tuple(map(g, z)), labels, tuple(visitors), drawn, asked, g, len(federation.classes), method.masked)


def curves(
    held: Kept, mechanisms: Sequence[str], epsilons: Sequence[float], copies: Sequence[int], draws: int, seed: int
) -> pd.DataFrame:
    """Means over draws, a row a mechanism, epsilon, samples and metric. Mechanism "none" has infinite epsilon.

    samples: copies times the median client's samples; all clients and visitors release with so many.
    error: ||d' - d'_private|| of the label-free parts, over the clients, as a share of the median distance between two
        clients of different distributions. 1: as much noise as signal.
    match: how many percent of the visitors find a client of their distribution, by scaled label-free parts, as in
        FEROMA. chance: what the share of such clients is.
    Raises FedlibError for an unknown mechanism, and where all clients have one distribution.
    """
    for mechanism in mechanisms:
        check_choice("curves: mechanism", mechanism, MECHANISMS)
    check_number("curves: draws", draws, least=1, whole=True)
    ell = held.clients[0].shape[1]
    exact = _profiles(held, NO_NOISE, 0.0, 1, torch.Generator())
    signal = typical_distance(held, exact[0][:, : 2 * ell])
    rows = []
    for times in copies:
        n = times * held.n
        wanted = [(NO_NOISE, np.inf), *((mechanism, epsilon) for mechanism in mechanisms for epsilon in epsilons)]
        for mechanism, epsilon in wanted:
            found = []
            for draw in range(1 if mechanism == NO_NOISE else draws):
                stream = torch_stream(seed, "private", mechanism, repr(float(epsilon)), times, draw)
                own, theirs = _profiles(held, mechanism, epsilon, times, stream)
                error = (own - exact[0])[:, : 2 * ell].norm(dim=1).mean() / signal
                found.append((float(error), 100 * match_rate(own, theirs, held)))
            for metric, value in zip(("error", "match"), np.mean(found, axis=0), strict=True):
                rows.append((mechanism, epsilon, n, metric, value))
        rows.append((NO_NOISE, np.inf, n, "chance", 100 * float(held.same.double().mean())))
    return pd.DataFrame(rows, columns=["mechanism", "epsilon", "samples", "metric", "value"])


def _profiles(held: Kept, mechanism: str, epsilon: float, times: int, stream: torch.Generator) -> tuple[Tensor, Tensor]:
    """d of all clients (m, 2 l (U + 1)) and [mu_x, sigma_x] of all visitors (v, 2 l), each from its samples, `times`
    times each."""
    own = [
        _release(held, g, y, mechanism, epsilon, times, stream) for g, y in zip(held.clients, held.labels, strict=True)
    ]
    theirs = [_release(held, g, None, mechanism, epsilon, times, stream) for g in held.visitors]
    return torch.stack(own), torch.stack(theirs)


def _release(
    held: Kept, g: Tensor, y: Tensor | None, mechanism: str, epsilon: float, times: int, stream: torch.Generator
) -> Tensor:
    plain = profiles.marginals(g) if y is None else profiles.statistics(g, y, held.classes)
    if mechanism == NO_NOISE:
        return plain
    box, z = (held.projection.least, held.projection.largest), g.repeat(times, 1)
    if mechanism == RELEASED:
        return privacy.released_mechanism(plain, z, torch.stack(box), epsilon, stream)
    if y is None:
        return privacy.private_marginals(z, *box, epsilon, None, mechanism, stream)
    return privacy.private_statistics(z, y.repeat(times), held.classes, *box, epsilon, None, mechanism, stream)


def typical_distance(held: Kept, d: Tensor) -> float:
    """The median distance between d (m, …) of two clients whose distributions differ."""
    a, b = torch.combinations(torch.arange(len(d))).T
    apart = held.drawn[a] != held.drawn[b]
    if not bool(apart.any()):
        raise FedlibError("curves: all clients have one distribution in the last phase; take another seed")
    return float((d[a] - d[b]).norm(dim=1)[apart].median())


def match_rate(own: Tensor, theirs: Tensor, held: Kept) -> float:
    """The share of visitors (v, 2 l) whose nearest client (m, d), scaled as FEROMA does, has their distribution."""
    ell = held.clients[0].shape[1]
    scaler = profiles.fit_scaler(own, ell, held.masked)
    near = profiles.distances(profiles.scale(theirs, *scaler, ell), profiles.scale(own, *scaler, ell)[:, : 2 * ell])
    found = near.argmin(1)
    return float(held.same[torch.arange(len(found)), found].double().mean())


def releases(experiment: Experiment) -> dict[str, int]:
    """How many profiles of a client are released: the most in one phase, and in all rounds after the warm-up.

    A sample that is in one phase alone is in so many of the first; one that every phase has, in all.
    """
    method, rounds = experiment.method, experiment.plan.rounds
    if not isinstance(method, FEROMA) or experiment.drift is None:
        raise FedlibError(f"releases: a run of {type(method).__name__}; give FEROMA with a drift")
    phases = drifts.read(experiment.drift).phases
    of = [drifts.phase_of(t, rounds, phases) for t in range(method.warmup + 1, rounds + 1)]
    return {"one phase": max(map(of.count, of)), "all rounds": len(of)}


def budgets(epsilons: Sequence[float], n: int, dim: int, counts: dict[str, int], noises: Sequence[str]) -> pd.DataFrame:
    """A row a noise and epsilon a round: delta = 1/n^2 (0 for Laplace), the standard deviation of the noise on each
    released number, in radii of the ball that samples are clipped to, and the composed epsilon for each of `counts`."""
    rows = []
    for noise in noises:
        for epsilon in epsilons:
            scale = privacy.noise_scale(n, dim, privacy.GROUPS, epsilon, None, noise)
            deviation = scale * (2**0.5 if noise == privacy.LAPLACE else 1)
            totals = {words: privacy.composed(epsilon, None, count, noise, n) for words, count in counts.items()}
            delta = next(iter(totals.values()))[1]
            total = {f"ε, {words}": epsilon for words, (epsilon, _) in totals.items()}
            rows.append({"noise": noise, "ε, one round": epsilon, "δ": delta, "deviation": deviation} | total)
    return pd.DataFrame(rows)
