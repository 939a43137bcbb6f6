"""What a method costs a round: seconds by who spends them, bytes each way, models kept; and what a profile costs."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pandas as pd
import torch
from torch import nn

from fedlib import models, profiles
from fedlib.checks import FedlibError, check_choice, check_number
from fedlib.engines import Assignment, Serial, one_thread, perform
from fedlib.experiment import Experiment, device
from fedlib.methods.feroma import FEROMA
from fedlib.methods.method import Server, Site, Upload, initial_state
from fedlib.rounds import Snapshot, cohorts, listen, size, step
from fedlib.runs import Run


def profile_shares(networks: Mapping[str, tuple[Mapping[str, Any], tuple[int, int, int], int]]) -> pd.DataFrame:
    """A row a network, columns d, parameters, share: d / #theta of profiles with one axis a class (FEROMA spec, 1.4).

    networks: {label: (spec of models.build, shape (C, H, W), classes)}. Counted, without any arithmetic.
    """
    rows = {}
    for label, (spec, shape, classes) in networks.items():
        with torch.device("meta"):
            count = sum(parameter.numel() for parameter in models.build(spec, shape, classes).parameters())
        d = profiles.profile_size(classes, classes)
        rows[label] = {"d": d, "parameters": count, "share": d / count}
    return pd.DataFrame(rows.values(), index=list(rows))


class _Timed(Serial):
    """One client after the other; `spent`: seconds of their own work, broadcasts and the server's mean left out."""

    spent = 0.0

    def map(self, site: Site, model: nn.Module, given: Iterable[Assignment]) -> Iterator[Upload]:
        for assignment in given:
            start = _now()
            upload = perform(site, model, assignment)
            self.spent += _now() - start
            yield upload


def _now() -> float:
    if device().type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


class _Course:
    """A run that is trained anew, round by round, without being evaluated or kept."""

    def __init__(self, experiment: Experiment) -> None:
        self.experiment, self.plan = experiment, experiment.plan
        self.federation = experiment.federation().to(device())
        self.task = experiment.task(self.federation)
        model, server, memories = initial_state(experiment.method, self.task)
        self.model, self.now = model.to(device()), Snapshot(server, memories).to(device())
        self.network = size(self.task.network().state_dict())
        self.cohorts = cohorts(self.task.seed, self.task.clients, self.plan)

    def round(self) -> dict[str, float]:
        t = self.now.server.round + 1
        here, engine, before = self.federation.at(t), _Timed(), len(self.now.history)
        train = tuple(client.train for client in here.clients)
        site = Site(self.experiment.method, self.task, self.experiment.local, train)
        start = _now()
        told = listen(site, self.model, self.now, here, self.cohorts[t - 1])
        heard = _now()
        step(site, self.model, self.now, engine, self.cohorts[t - 1], self.plan.rate(t), told)
        whole = _now() - start
        reporting = heard - start
        sent = {row.metric: row.value for row in self.now.history[before:] if row.metric.startswith("bytes")}
        parts = {"reports": reporting, "training": engine.spent, "server": whole - reporting - engine.spent}
        return {"round": t, "seconds": whole, **parts, **sent, "models": size(self.now.server.weights) / self.network}


def round_seconds(experiments: Mapping[Any, Experiment], rounds: int | None = None) -> pd.DataFrame:
    """A row a label and round, of runs that are trained anew for this, for their first `rounds` (None: for all).

    Columns: label; round; seconds, of which `reports` is what goes before the broadcasts (profiles and losses at the
    clients, and what the server makes of them), `training` the clients' work, and `server` broadcasts and mean;
    bytes_down, bytes_up; and models, what the server's weights hold after the round, in networks. The data of a phase
    are made before the clock starts, and nothing is evaluated. All runs take turns, round by round, so that a machine
    that slows down slows all alike; one thread, one client at a time.
    """
    if not experiments:
        raise FedlibError("round_seconds: no experiment given; give at least one")
    least = min(experiment.plan.rounds for experiment in experiments.values())
    rounds = check_number("round_seconds: rounds", least if rounds is None else rounds, least=1, most=least, whole=True)
    rows = []
    with one_thread():
        courses = {label: _Course(experiment) for label, experiment in experiments.items()}
        for _ in range(int(rounds)):
            for label, course in courses.items():
                rows.append({"label": label, **course.round()})
    return pd.DataFrame(rows)


RATIOS = {"seconds": "seconds, of {}'s", "bytes_up": "bytes up, of {}'s", "bytes_down": "bytes down, of {}'s"}


def per_round(costs: pd.DataFrame, after: int, reference: str = "FedAvg") -> pd.DataFrame:
    """Means over the rounds later than `after`, as rows of summary.final: method, clients, seed, metric, value, key.

    costs: rows of round_seconds with columns method, clients and seed in place of label. Metrics: seconds, models, and
    those that RATIOS names, relative to the method `reference` with as many clients under the same seed. Raises
    FedlibError where there is no such round, or no reference.
    """
    late = costs[costs["round"] > after]
    if late.empty:
        raise FedlibError(f"per_round: no round after {after}; time more rounds")
    cell = ["method", "clients", "seed"]
    found = late.groupby(cell, sort=False)[["models", *RATIOS]].mean().reset_index()
    check_choice("per_round: reference", reference, found["method"].unique())
    unit = found[found["method"] == reference].drop(columns=["method", "models"])
    beside = found[cell[1:]].merge(unit, how="left", on=cell[1:])
    missing = beside[beside["seconds"].isna()]
    if len(missing):
        clients, seed = missing.iloc[0][cell[1:]].astype(int)
        raise FedlibError(f"per_round: {reference} was not timed with {clients} clients and seed {seed}; time it, too")
    ratios = {name.format(reference): found[column] / beside[column] for column, name in RATIOS.items()}
    rows = found[[*cell, "seconds", "models"]].assign(**ratios)
    return rows.melt(cell, var_name="metric", value_name="value").assign(key="")


def extraction_seconds(experiment: Experiment, repeats: int) -> pd.DataFrame:
    """Seconds that client 0 takes for a profile, and for one local epoch: a row a repeat, columns profile, epoch.

    At the first round after the warm-up, whose weights play no part in how long it takes: those of the start stand in.
    Once before the clock starts, when the projection is made that all later profiles use. Raises FedlibError unless
    the method is FEROMA.
    """
    method = experiment.method
    check_number("extraction_seconds: repeats", repeats, least=1, whole=True)
    if not isinstance(method, FEROMA):
        raise FedlibError(f"extraction_seconds: {type(method).__name__} has no profiles; give an experiment of FEROMA")
    with one_thread():
        course = _Course(experiment)
        federation = course.federation.at(method.warmup + 1)
        client, weights = federation.clients[0], course.now.server.weights
        server = Server(weights, method.warmup, course.now.server.memory | {"bounds": torch.tensor([0.0, 1.0])})
        local = replace(experiment.local, epochs=1, steps=None)
        site = Site(method, course.task, local, tuple(each.train for each in federation.clients))
        given = Assignment(0, weights, {}, experiment.plan.lr, method.warmup + 1)
        taken = []
        for _ in range(1 + repeats):
            stream = torch.Generator().manual_seed(0)
            start = _now()
            method.report(server, course.model, client, {}, stream)
            told = _now()
            perform(site, course.model, given)
            taken.append({"profile": told - start, "epoch": _now() - told})
    return pd.DataFrame(taken[1:])


def kept(run: Run) -> dict[str, float]:
    """{"server", "client"}: what the server and a client (mean) keep after the last round, all tensors, in networks."""
    now, experiment = run.snapshot(), run.experiment
    network = size(experiment.task(experiment.federation()).network().state_dict())
    held = [size(memory) for memory in now.memories]
    server = size(now.server.weights) + size(now.server.memory)
    return {"server": server / network, "client": sum(held) / len(held) / network}
