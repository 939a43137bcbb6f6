"""What FEROMA's profiles are worth under another embedding: a finished run's clients and visitors, profiled anew."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from fedlib import profiles
from fedlib.analysis import unseen
from fedlib.checks import FedlibError
from fedlib.methods.feroma import FEROMA, MARGIN, present
from fedlib.methods.method import Method, Server, State, initial_state
from fedlib.methods.names import named
from fedlib.metrics import Crowd
from fedlib.runs import Run
from fedlib.streams import torch_stream


def reprofiled(crowd: Crowd, embedding: State) -> Server:
    """The server of a FEROMA crowd as if `embedding` had been f, for the clients of the last round.

    Bounds and scaler are made anew under it, of this round's validation samples; in a run they are of rounds W and
    W + 1. Models and who was present stay. Raises FedlibError unless the method is FEROMA.
    """
    method, server = _feroma(crowd.method), crowd.server
    A = present(server)
    crowd.model.load_state_dict(embedding)
    held = [crowd.federation.clients[k].validation for k in A.tolist()]
    z = [profiles.latents(crowd.model, samples.images) for samples in held]
    low, high = min(0.0, *(float(one.min()) for one in z)), MARGIN * max(float(one.max()) for one in z)
    bounds = torch.tensor([low, high], dtype=torch.float64, device=A.device)
    server = replace(server, memory=server.memory | named("embedding", embedding) | {"bounds": bounds})
    seed = int(server.memory["seed"])
    d = torch.stack(
        [
            method.profile(server, one, samples.labels, torch_stream(seed, "reprofiled", k))
            for k, one, samples in zip(A.tolist(), z, held, strict=True)
        ]
    )
    span = profiles.fit_scaler(d, d.shape[1] // len(server.memory["low"]), method.masked)
    memory = dict(server.memory) | {"d": server.memory["d"].clone(), "low": span[0], "span": span[1]}
    memory["d"][A] = d
    return replace(server, memory=memory)


def told_apart(crowd: Crowd, embedding: State) -> dict[str, float]:
    """The visitors and clients of a FEROMA crowd under another embedding, matched as its method does; in percent.

    match: visitors whose nearest client has their distribution. order: pairs of clients, one of the visitor's
    distribution and one of another, of which the right one is nearer; 50 is chance; NaN where there are no such pairs.
    """
    method, server = _feroma(crowd.method), reprofiled(crowd, embedding)
    there = Crowd(method, crowd.model, server, crowd.memories, crowd.federation)
    holds = np.array([client.distribution for client in there.federation.clients])
    matched, ordered = [], []
    for visitor in there.federation.visitors:
        far = method.distances_to(there, visitor).cpu().numpy()
        same, there_at_all = holds == visitor.distribution, np.isfinite(far)
        matched.append(same[far.argmin()])
        right, wrong = far[same & there_at_all], far[~same & there_at_all]
        if len(right) and len(wrong):
            ordered.append(unseen.area(right, wrong))
    order = float(np.mean(ordered)) if ordered else float("nan")
    return {"match": 100 * float(np.mean(matched)), "order": 100 * order}


def at_the_start(run: Run) -> State:
    """The network that the run started from, with random weights."""
    experiment = run.experiment
    return initial_state(experiment.method, experiment.task(experiment.federation()))[1].weights


def of_warmup(run: Run) -> State:
    """f, as the run itself had it."""
    return _feroma(run.experiment.method).embedding_of(run.snapshot().server)


def _feroma(method: Method) -> FEROMA:
    if not isinstance(method, FEROMA):
        raise FedlibError(f"embeddings: {type(method).__name__} has no profiles; give a run of FEROMA")
    return method
