"""Routing taken apart: who is sent where, what an answer costs, and two rules that are softer than the paper's.

With r_l(x) = c_l(x) - log(n_l / n) the log density ratios of a finished FedDRM run, and p_l(x) the class
probabilities of client l's own head:

soft routing     argmax_k sum_l w_l p_lk(x), with w = softmax(r / temperature) over the k largest r, 0 elsewhere. k = 1
                 is the paper's rule; k = m with equal weights (temperature = inf) is the mean-softmax vote.
abstaining       the router answers where its confidence max_l softmax(r)_l is above a threshold; every other query
                 goes to one global model, or to the mean of all heads. 0 is the router alone, 1 the other alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from fedlib.analysis.validation import held_out
from fedlib.checks import FedlibError, check_choice, check_number
from fedlib.data.shift import Appearance
from fedlib.experiment import Experiment, device
from fedlib.forward import class_scores
from fedlib.methods.feddrm import FedDRM
from fedlib.methods.method import Answer, initial_state
from fedlib.metrics import Crowd
from fedlib.runs import Run
from fedlib.votes import first_argmax, majority_vote, mean_softmax

ROUTERS = ("density router", "posterior router")
HEADS = "mean of all heads"


def crowd_of(run: Run, part: str = "test") -> Crowd:
    """The clients' models of a finished run, faced with all clients' `part` of the samples: test or validation.

    Raises FedlibError for validation where no samples were held back.
    """
    check_choice("crowd_of: part", part, ("test", "validation"))
    federation = run.experiment.federation()
    if part == "validation":
        federation = held_out(federation)
    task, where = run.experiment.task(federation), device()
    model, _, _ = initial_state(run.experiment.method, task)
    now = run.snapshot().to(where)
    return Crowd(run.experiment.method, model.to(where), now.server, now.memories, federation.to(where))


def _need_router(crowd: Crowd) -> None:
    if not isinstance(crowd.method, FedDRM):
        raise FedlibError(f"routing: {type(crowd.method).__name__} trains no router; give a run of FedDRM")


def routers(crowd: Crowd) -> dict[str, Tensor]:
    """Whom each query is sent to, int64 (N,) on the CPU, by the density and by the posterior router."""
    _need_router(crowd)
    answers = crowd.method.route(crowd)
    return {rule: sent.cpu() for rule in ROUTERS if (sent := answers[rule].origin) is not None}


def confusion(origin: Tensor, sent: Tensor, clients: int) -> Tensor:
    """int64 (m, m): how many queries that come from client i (row) are sent to client j (column)."""
    return torch.bincount(origin * clients + sent, minlength=clients**2).view(clients, clients)


def sendings(run: Run) -> pd.DataFrame:
    """One row a router, origin i and client j: key, seed, router, origin, client, queries from i to j, size n_j / n."""
    crowd = crowd_of(run)
    clients, shares, rows = len(crowd.shares), crowd.shares.tolist(), []
    for rule, sent in routers(crowd).items():
        counts = confusion(crowd.origin.cpu(), sent, clients).tolist()
        rows += [(rule, i, j, counts[i][j], shares[j]) for i in range(clients) for j in range(clients)]
    table = pd.DataFrame(rows, columns=["router", "origin", "client", "queries", "size"])
    return table.assign(key=run.key, seed=run.experiment.seed)


def rates(sendings: pd.DataFrame) -> dict[str, np.ndarray]:
    """{router: (m, m)}: P(sent to j | from i), the mean over seeds."""
    total = sendings.groupby(["router", "seed", "origin"])["queries"].transform("sum")
    table = sendings.assign(rate=sendings["queries"] / total)
    mean = table.groupby(["router", "origin", "client"], sort=False)["rate"].mean()
    return {str(rule): mean[rule].unstack().to_numpy() for rule in table["router"].unique()}


def by_difference(rates: np.ndarray, looks: Sequence[Appearance]) -> pd.DataFrame:
    """Where queries go, by the number of properties in which the chosen client looks unlike their own.

    One row a number d, in percent: queries (those sent to a client at distance d, each origin counting alike), and
    chance (the clients at that distance: what a router that draws one at random would give).
    """
    properties = [item.name for item in fields(Appearance)]
    unlike = np.array([[sum(getattr(a, p) != getattr(b, p) for p in properties) for b in looks] for a in looks])
    m = len(looks)
    rows = [(d, 100 * rates[unlike == d].sum() / m, 100 * (unlike == d).sum() / m**2) for d in np.unique(unlike)]
    return pd.DataFrame(rows, columns=["properties that differ", "queries", "chance"])


def differing(crowd: Crowd) -> int:
    """How many queries the two routers send to different clients."""
    density, posterior = routers(crowd).values()
    return int((density != posterior).sum())


def evaluations(crowd: Crowd, answer: Callable[[Crowd], Any]) -> float:
    """Passes through the backbone a query while `answer(crowd)` runs, counted by a hook. Give a fresh crowd."""
    seen: list[int] = []
    hook = crowd.model.backbone.register_forward_hook(lambda _, inputs, output: seen.append(len(inputs[0])))  # type: ignore[union-attr]
    try:
        answer(crowd)
    finally:
        hook.remove()
    return sum(seen) / len(crowd.samples)


def own_rule(crowd: Crowd) -> Answer:
    """The method's own answer. What its clients' models have in common is evaluated once."""
    return next(iter(crowd.method.route(crowd).values()))


def vote_apart(crowd: Crowd) -> Answer:
    """The majority vote with each client's whole model evaluated by itself, as if they had nothing in common."""
    logits = []
    for state in crowd.states:
        crowd.model.load_state_dict(state)
        logits.append(class_scores(crowd.model, crowd.samples.images, crowd.method.class_logits))
    return Answer(majority_vote(torch.stack(logits)))


def costs(runs: Sequence[Run]) -> pd.DataFrame:
    """One row a run: method, clients, and the evaluations a query of its own rule and of the vote of whole models."""
    rows = []
    for run in runs:
        ways = [evaluations(crowd_of(run), answer) for answer in (own_rule, vote_apart)]
        rows.append((type(run.experiment.method).__name__, run.experiment.clients, *ways))
    return pd.DataFrame(rows, columns=["method", "clients", "own rule", "vote, one model at a time"])


def density_ratios(crowd: Crowd) -> Tensor:
    """r (N, m)."""
    _need_router(crowd)
    _, c = crowd.outputs()
    return c - crowd.shares.log()


def confidence(ratios: Tensor) -> Tensor:
    """(N,): the chosen client's probability under the density ratios and a uniform prior, max_l softmax(r)_l."""
    return ratios.softmax(-1).amax(-1)


def softly(ratios: Tensor, logits: Tensor, k: int, temperature: float = 1.0) -> Tensor:
    """(N,): classes by soft routing; ratios (N, m), logits (m, N, K). Of equal ratios the lowest client comes first."""
    check_number("softly: k", k, least=1, most=ratios.shape[1], whole=True)
    if temperature != math.inf:
        check_number("softly: temperature", temperature, above=0)
    best = ratios.double().sort(dim=-1, descending=True, stable=True)
    weights = torch.zeros_like(best.values)
    weights.scatter_(-1, best.indices[:, :k], (best.values[:, :k] / temperature).softmax(-1))
    return first_argmax(torch.einsum("nm,mnk->nk", weights, logits.double().softmax(-1)))


def soft_routing(runs: Sequence[Run], ks: Sequence[int], temperatures: Sequence[float]) -> pd.DataFrame:
    """System accuracy in percent: key, seed, part (validation, test), k, temperature, accuracy."""
    tables = []
    for run in runs:
        for part in ("validation", "test"):
            crowd = crowd_of(run, part)
            ratios, logits, truth = density_ratios(crowd), crowd.logits(), crowd.samples.labels
            rows = [(k, t, _percent(softly(ratios, logits, k, t) == truth)) for k in ks for t in temperatures]
            table = pd.DataFrame(rows, columns=["k", "temperature", "accuracy"])
            tables.append(table.assign(part=part, seed=run.experiment.seed, key=run.key))
    return pd.concat(tables, ignore_index=True)


def deferred(sure: Tensor, right: Tensor, other: Tensor, thresholds: Sequence[float], extra: float) -> pd.DataFrame:
    """One row a threshold, for queries with confidence `sure` that the router and the other get right or not; all (N,).

    coverage: the share that the router answers; answered: its accuracy on them; accuracy: of router and other together;
    coin: of a coin that lets the router answer as many; evaluations: a query, if the other takes `extra`. In percent.
    """
    rows = []
    for threshold in thresholds:
        kept = sure > check_number("threshold", threshold, least=0, most=1)
        coverage = _percent(kept) / 100
        coin = coverage * _percent(right) + (1 - coverage) * _percent(other)
        whole = _percent(torch.where(kept, right, other))
        rows.append((threshold, 100 * coverage, _percent(right[kept]), whole, coin, 1 + extra * (1 - coverage)))
    columns = ["threshold", "coverage", "answered", "accuracy", "coin", "evaluations"]
    return pd.DataFrame(rows, columns=columns)


def abstaining(runs: Sequence[Run], others: Sequence[Run], thresholds: Sequence[float]) -> pd.DataFrame:
    """What `deferred` returns, with key, seed, part and other: the method of `others`, or the mean of all heads.

    others: for each run, one of the same federation whose server holds a whole model, such as FedAvg's.
    """
    tables = []
    for run, other in zip(runs, others, strict=True):
        check_same_federation(run.experiment, other.experiment)
        for part in ("validation", "test"):
            crowd = crowd_of(run, part)
            truth, sure = crowd.samples.labels, confidence(density_ratios(crowd))
            right = own_rule(crowd).labels == truth
            whole = _global_labels(crowd_of(other, part)) == truth
            heads = mean_softmax(crowd.logits()) == truth
            for name, answer, extra in ((type(other.experiment.method).__name__, whole, 1), (HEADS, heads, 0)):
                table = deferred(sure, right, answer, thresholds, extra)
                tables.append(table.assign(other=name, part=part, seed=run.experiment.seed, key=run.key))
    return pd.concat(tables, ignore_index=True)


def _global_labels(crowd: Crowd) -> Tensor:
    logits = crowd.global_logits()
    if logits is None:
        raise FedlibError(f"abstaining: {type(crowd.method).__name__} has no whole global model; give a run of FedAvg")
    return logits.argmax(-1)


def check_same_federation(one: Experiment, other: Experiment) -> None:
    """Raise FedlibError unless two experiments have the same clients with the same samples."""
    for name in ("data", "samples", "clients", "partition", "shift", "test_share", "validation_share", "seed"):
        if getattr(one, name) != getattr(other, name):
            values = f"{getattr(one, name)!r} and {getattr(other, name)!r}"
            raise FedlibError(f"abstaining: the two runs differ in {name}: {values}; give runs of one federation")


def chosen(table: pd.DataFrame, settings: Sequence[str]) -> pd.DataFrame:
    """For each seed: the test row with the `settings` of the most accurate validation row, the first one of equals.

    table: as soft_routing or abstaining returns it, cheap settings first. Indexed by seed.
    """
    validation = table[table["part"] == "validation"]
    best = validation.loc[validation.groupby("seed")["accuracy"].idxmax(), ["seed", *settings]]
    test = table[table["part"] == "test"]
    return best.merge(test, on=["seed", *settings], validate="one_to_one").set_index("seed")


def _percent(right: Tensor) -> float:
    """Mean of a boolean (N,) in percent; NaN of none."""
    return 100 * float(right.double().mean())
