"""Which client answers a visitor, from how far away, and how well every other client's model would have answered it."""

from __future__ import annotations

import pandas as pd

from fedlib.analysis.routing import crowd_of
from fedlib.checks import FedlibError
from fedlib.forward import accuracy
from fedlib.methods.feroma import FEROMA
from fedlib.metrics import Crowd, Row
from fedlib.runs import Run


def last_crowd(run: Run) -> Crowd:
    """The clients of a finished run with their samples of the last round, and its visitors.

    Raises FedlibError for a run without visitors.
    """
    crowd, experiment = crowd_of(run), run.experiment
    federation = crowd.federation.at(experiment.plan.rounds)
    if not federation.visitors:
        raise FedlibError(f"matching: the clients of {experiment.data!r} meet no visitors; give a run with drift")
    return Crowd(crowd.method, crowd.model, crowd.server, crowd.memories, federation)


def distances(run: Run) -> pd.DataFrame:
    """How far visitors' profiles are from clients', as the run's own method of matching has it: a row a pair.

    visitor, client; visits, holds: their distributions; distance; nearest: whether this client answers. Clients
    without a profile of the last round are left out. Raises FedlibError for a method without profiles.
    """
    crowd, method = last_crowd(run), run.experiment.method
    if not isinstance(method, FEROMA):
        raise FedlibError(f"matching: {type(method).__name__} has no profiles; give a run of FEROMA")
    if crowd.server.round <= method.warmup:
        raise FedlibError(
            f"matching: no profile in {crowd.server.round} rounds with warmup {method.warmup}; run longer"
        )
    rows = []
    for visitor in crowd.federation.visitors:
        D, chosen = method.distances_to(crowd, visitor), method.match(crowd, visitor)
        for client in crowd.federation.clients:
            about = (visitor.index, client.index, visitor.distribution, client.distribution)
            rows.append((*about, float(D[client.index]), client.index == chosen))
    found = pd.DataFrame(rows, columns=["visitor", "client", "visits", "holds", "distance", "nearest"])
    return found[found["distance"] < float("inf")].reset_index(drop=True)


def accuracies(run: Run) -> pd.DataFrame:
    """Top-1 (0 to 1) of every client's own model on every visitor: visitor, client, visits, holds, accuracy."""
    crowd = last_crowd(run)
    rows = []
    for client, state in zip(crowd.federation.clients, crowd.states, strict=True):
        crowd.model.load_state_dict(state)
        for visitor in crowd.federation.visitors:
            right = float(accuracy(crowd.model, visitor.samples, crowd.method.class_logits))
            rows.append((visitor.index, client.index, visitor.distribution, client.distribution, right))
    return pd.DataFrame(rows, columns=["visitor", "client", "visits", "holds", "accuracy"])


def references(run: Run) -> pd.DataFrame:
    """What a match can be measured by, as rows of the run's history: round, metric, moment, client, value.

    right@visitors: a visitor's mean accuracy over the models of the clients that have its distribution, averaged over
    visitors: what a perfect matching gets, that takes one of them at random. any@visitors: the same over all clients'
    models, which is what a matching by lot gets.
    """
    found, rounds = accuracies(run), run.experiment.plan.rounds
    moment, rows = run.experiment.method.moment(rounds, rounds), []
    for metric, pairs in (("right@visitors", found[found["visits"] == found["holds"]]), ("any@visitors", found)):
        mean = float(pairs.groupby("visitor")["accuracy"].mean().mean())
        rows.append(Row(rounds, metric, moment, -1, mean))
    return pd.DataFrame(rows)
