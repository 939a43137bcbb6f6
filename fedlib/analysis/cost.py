"""What a method costs: multiply-adds, parameters and bytes, counted without any arithmetic, and seconds, measured."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import pandas as pd
import torch
from torch.utils.flop_counter import FlopCounterMode

from fedlib.checks import FedlibError, check_number
from fedlib.engines import Serial, one_thread
from fedlib.experiment import Experiment, device
from fedlib.methods.method import Method, Site, Task, initial_state
from fedlib.rounds import Snapshot, size, step


def _task(model: Mapping[str, Any], side: int, classes: int) -> Task:
    """Four clients of one image each, a domain each: enough to build any method's network."""
    return Task(model, (3, side, side), classes, (1, 1, 1, 1), 1, 0, (0, 1, 2, 3))


def network(method: Method, model: Mapping[str, Any], side: int, classes: int) -> dict[str, int]:
    """{"multiply-adds", "parameters"} of the network that a client trains, for one RGB image of side x side.

    Multiply-adds are those of a forward pass in evaluation mode, of convolutions and linear layers, as PyTorch counts
    them; nothing is computed, so that any size costs the same.
    """
    with torch.device("meta"):
        built = method.build(_task(model, side, classes)).eval()
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            built(torch.empty(1, 3, side, side))
    return {
        "multiply-adds": counter.get_total_flops() // 2,
        "parameters": sum(parameter.numel() for parameter in built.parameters()),
    }


def sent(method: Method, model: Mapping[str, Any], side: int, classes: int) -> int:
    """Bytes of the network's tensors that a client sends up in a round, what goes beside the weights not counted."""
    with torch.device("meta"):
        shared, _ = method.divide(method.build(_task(model, side, classes)))
    return size(shared)


def step_seconds(experiments: Mapping[str, Experiment], repeats: int) -> pd.DataFrame:
    """Milliseconds of a training step: a row a label, columns "ms a step" and "relative", to the first label.

    A round of client 0 alone, server's work included, divided by its steps; the median over `repeats` rounds from the
    second on, taken in turns, so that a machine that slows down slows all alike. Each experiment may have its own
    model; at least two steps a round keep the server's share small.
    """
    check_number("step_seconds: repeats", repeats, least=1, whole=True)
    if not experiments:
        raise FedlibError("step_seconds: no experiment given; give at least one")
    taken: dict[str, list[float]] = {label: [] for label in experiments}
    with one_thread():
        ready = {label: _ready(experiment) for label, experiment in experiments.items()}
        for _ in range(repeats):
            for label, (site, model, now, lr) in ready.items():
                start = time.perf_counter()
                step(site, model, now, Serial(), [0], lr)
                if device().type == "cuda":
                    torch.cuda.synchronize()
                steps = site.local.count(len(site.train[0]))
                taken[label].append(1000 * (time.perf_counter() - start) / steps)
    median = pd.DataFrame(taken).median()
    return pd.DataFrame({"ms a step": median, "relative": median / median.iloc[0]})


def _ready(experiment: Experiment) -> tuple[Site, torch.nn.Module, Snapshot, float]:
    """Everything of one experiment after a first round of client 0, at whose end prototypes and the like exist."""
    federation = experiment.federation().to(device())
    task = experiment.task(federation)
    model, server, memories = initial_state(experiment.method, task)
    now = Snapshot(server, memories).to(device())
    site = Site(experiment.method, task, experiment.local, tuple(client.train for client in federation.clients))
    model = model.to(device())
    step(site, model, now, Serial(), [0], experiment.plan.lr)
    return site, model, now, experiment.plan.lr
