"""Visitors whose distribution no client has: met at test time, and told from the others by how far they are.

FEROMA answers a visitor by the model of the nearest profile, however far that is. Here the distance to it,

    D* = min_j || d'_v - d'_j ||        (label-free parts, as the method scales them)

is compared with N distances among the clients themselves, D_1 … D_N, that say what is usual. The p-value is the
visitor's rank among them, p = (1 + #{i: D_i >= D*}) / (N + 1): where these are drawn as that of a visitor that is like
the clients, p <= a has a probability of at most a. So a small p says: this one is unlike all that was trained on.

A profile of more samples is less noisy, so of a visitor only so many inputs count for D* as a client has validation
samples (the least number over clients).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from fedlib import profiles
from fedlib.analysis.matching import last_crowd
from fedlib.checks import FedlibError, check_keys, check_number
from fedlib.data import drift as drifts
from fedlib.data.drift import Distribution
from fedlib.data.drifting import Draws, Drifting
from fedlib.data.federation import Federation, Samples, Visitor
from fedlib.forward import accuracy
from fedlib.labels import answers, quality
from fedlib.methods.feroma import FEROMA, mixture, present
from fedlib.metrics import Crowd
from fedlib.runs import Run

USUAL = ("leave one out", "fresh samples")
SEEN = "seen"
REST = "rest of the bank"
GROUP = ["severity", "kind", "seed"]


def p_values(distances: np.ndarray, usual: np.ndarray) -> np.ndarray:
    """(n,): the rank of each distance among the usual ones (m,), as above; from 1 / (m + 1) to 1."""
    if not len(usual):
        raise FedlibError("p_values: no usual distance to compare with; give at least one")
    return (1 + (usual[None] >= distances[:, None]).sum(1)) / (len(usual) + 1)


def roc(seen: np.ndarray, unseen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(false alarms, detections): the shares of both that lie at or above each threshold, from (0, 0) to (1, 1)."""
    cuts = np.unique(np.concatenate([seen, unseen]))[::-1]
    shares = [(np.append(0.0, (values[None] >= cuts[:, None]).mean(1))) for values in (seen, unseen)]
    return shares[0], shares[1]


def area(seen: np.ndarray, unseen: np.ndarray) -> float:
    """Under that curve: the probability that an unseen visitor is farther away than a seen one; ties count one half."""
    if not len(seen) or not len(unseen):
        raise FedlibError(f"area: {len(seen)} seen and {len(unseen)} unseen distances; give at least one of each")
    above = unseen[:, None] - seen[None]
    return float((above > 0).mean() + 0.5 * (above == 0).mean())


def described(kinds: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, list[Distribution]]:
    """Distributions from plain settings, as parameters have them: {kind: [{"colour": 0}, …]}; lists become tuples.

    Raises FedlibError for a setting that Distribution does not have.
    """
    known = [item.name for item in fields(Distribution)]
    found: dict[str, list[Distribution]] = {}
    for kind, listed in kinds.items():
        for one in listed:
            check_keys(f"strangers: {kind}", one, known)
            plain: dict[str, Any] = {
                name: tuple(value) if isinstance(value, list) else value for name, value in one.items()
            }
            found.setdefault(kind, []).append(Distribution(**plain))
    return found


def changed(visitor: Visitor, distribution: Distribution) -> Visitor:
    """The same visitor, its samples changed once more: whatever is new about it now, the rest is as clients know it.

    Raises FedlibError where no sample is left.
    """
    images, labels = drifts.apply(visitor.samples.images, visitor.samples.labels, distribution)
    if not len(labels):
        raise FedlibError(f"changed: visitor {visitor.index} has no sample that is {distribution.label}; take another")
    images = images.contiguous(memory_format=torch.channels_last)
    return Visitor(visitor.index, Samples(images, labels), _nothing(images, labels), -1)


def _nothing(images: Tensor, labels: Tensor) -> Samples:
    return Samples(images[:0], labels[:0])


def strangers(federation: Federation, distribution: Distribution) -> tuple[Visitor, ...]:
    """A visitor for each client: the test samples that it has in the last phase, under another distribution alone.

    Raises FedlibError for a federation that does not drift, and where no sample is left.
    """
    if not isinstance(federation, Drifting):
        raise FedlibError(f"strangers: federation {federation.name!r} does not drift; give one made with a drift")
    found = []
    for k, stay in enumerate(federation.stays[-1]):
        index = stay.test.index
        index = index[distribution.keeps(federation.pool.labels[index])]
        if not len(index):
            raise FedlibError(f"strangers: client {k} has no test sample that is {distribution.label}; take another")
        draws = Draws(index, np.zeros(len(index), dtype=np.int32))
        samples = draws.made(federation.pool, [distribution], federation.device)
        found.append(Visitor(k, samples, _nothing(samples.images, samples.labels), -1))
    return tuple(found)


def without_client(federation: Federation) -> list[Distribution]:
    """Those of the bank that no client draws from in the last phase, in the bank's order."""
    if not isinstance(federation, Drifting):
        raise FedlibError(f"without_client: federation {federation.name!r} does not drift; give one made with a drift")
    held = {stay.distribution for stay in federation.stays[-1]}
    return [one for d, one in enumerate(federation.distributions) if d not in held]


def met(run: Run, kinds: Mapping[str, Sequence[Distribution]]) -> pd.DataFrame:
    """A run's own visitors, of kind SEEN, and for each distribution of `kinds` the same visitors `changed` by it.

    A row a visitor: severity (of the drift), kind, label (what it was changed by, or its distribution), visitor;
    distance: D*; a column for each name in USUAL, p; and its accuracies in percent, `nearest` by the model of the
    nearest profile, `mean` by the mean of all clients' models.
    """
    crowd = last_crowd(run)
    seen = crowd.federation.visitors
    others = [(kind, one.label, changed(v, one)) for kind, listed in kinds.items() for one in listed for v in seen]
    return _ranked(run, crowd, others)


def met_rest(run: Run) -> pd.DataFrame:
    """As `met`, with strangers of one kind, REST: under what the bank has and no client has in the last phase."""
    federation, crowd = run.experiment.federation(), last_crowd(run)
    others = [
        (REST, one.label, visitor) for one in without_client(federation) for visitor in strangers(federation, one)
    ]
    return _ranked(run, crowd, others)


def _ranked(run: Run, crowd: Crowd, others: Sequence[tuple[str, str, Visitor]]) -> pd.DataFrame:
    bank = crowd.federation.distributions
    groups = [(SEEN, bank[visitor.distribution].label, visitor) for visitor in crowd.federation.visitors]
    rows = [
        {"kind": kind, "label": label, "visitor": visitor.index, **_answered(crowd, visitor)}
        for kind, label, visitor in [*groups, *others]
    ]
    found = pd.DataFrame(rows)
    for name, usual in usual_distances(crowd).items():
        found[name] = p_values(found["distance"].to_numpy(), usual)
    severity = drifts.read(run.experiment.drift or {}).severity
    return found.assign(severity=severity, seed=run.experiment.seed, key=run.key)


def _answered(crowd: Crowd, visitor: Visitor) -> dict[str, float]:
    """D*, and the accuracies of the nearest client's model and of the mean of all, in percent."""
    method, server = _feroma(crowd), crowd.server
    here = visitor.to(server.memory["d"].device)
    truth = here.samples.labels
    nearest = float(quality(answers(method.visit(crowd, here), truth), truth))
    crowd.model.load_state_dict(mixture(server, method.fallback_weights(server)))
    mean = float(accuracy(crowd.model, here.samples, method.class_logits))
    count = min(len(client.validation) for client in crowd.federation.clients)
    distance = _distance(method, crowd, here.samples.images[:count])
    return {"distance": distance, "nearest": 100 * nearest, "mean": 100 * mean}


def usual_distances(crowd: Crowd) -> dict[str, np.ndarray]:
    """What is usual among the clients of the last round, by name (USUAL).

    "leave one out", (m,): from a client's profile to the nearest of the others'. The server has all that it takes; but
        a client that is alone with its distribution seems far from usual, and then strangers do not stand out.
    "fresh samples": every client sends label-free profiles of training samples as well, each of as many as it has for
        validation, as often as there are new ones (4 times, for a validation share of 0.2). From each of these to the
        nearest client's profile, its own among them: just what is done with a visitor that is like this client.
    """
    method, A = _feroma(crowd), present(crowd.server)
    if len(A) < 2:
        raise FedlibError(f"usual_distances: {len(A)} client in the last round; give at least two")
    own = _profiles_of(crowd)
    D = profiles.distances(own, own).fill_diagonal_(torch.inf)
    fresh = []
    for k in A.tolist():
        client = crowd.federation.clients[k]
        groups = client.train.images.split(len(client.validation))
        whole = [images for images in groups if len(images) == len(client.validation)]
        fresh += [_distance(method, crowd, images) for images in whole]
    if not fresh:
        raise FedlibError("usual_distances: less training than validation samples; set validation_share to 0.5 at most")
    return {USUAL[0]: D.amin(1).cpu().numpy(), USUAL[1]: np.array(fresh)}


def _feroma(crowd: Crowd) -> FEROMA:
    if not isinstance(crowd.method, FEROMA):
        raise FedlibError(f"unseen: {type(crowd.method).__name__} has no profiles; give a run of FEROMA")
    return crowd.method


def _profiles_of(crowd: Crowd) -> Tensor:
    """[mu_x, sigma_x] of all clients of the last round, scaled: (|A|, 2 l)."""
    server = crowd.server
    d = server.memory["d"][present(server)]
    return _feroma(crowd).scaled(server, d)[:, : 2 * d.shape[1] // len(server.memory["low"])]


def _distance(method: FEROMA, crowd: Crowd, images: Tensor) -> float:
    """D* of these images, each taken once."""
    crowd.model.load_state_dict(method.embedding_of(crowd.server))
    z = profiles.latents(crowd.model, images)
    d = profiles.marginals(method.projection_for(crowd.server, z)(z)).float()
    return float(profiles.distances(method.scaled(crowd.server, d[None]), _profiles_of(crowd)).min())


def alarms(found: pd.DataFrame, level: float) -> pd.DataFrame:
    """Shares of visitors with p <= level, in percent: a row a severity, kind and seed, a column a name in USUAL."""
    check_number("alarms: level", level, above=0.0, below=1.0)
    flagged = 100 * (found[list(USUAL)] <= level)
    return flagged.groupby([found[column] for column in GROUP], sort=False).mean().reset_index()


def areas(found: pd.DataFrame) -> pd.DataFrame:
    """The area under the curve of strangers against the seen visitors of their run: severity, kind, seed, area."""
    rows = []
    for (severity, kind, seed), theirs in found[found["kind"] != SEEN].groupby(GROUP, sort=False):
        seen = found[(found["kind"] == SEEN) & (found["severity"] == severity) & (found["seed"] == seed)]
        rows.append((severity, kind, seed, area(seen["distance"].to_numpy(), theirs["distance"].to_numpy())))
    return pd.DataFrame(rows, columns=[*GROUP, "area"])
