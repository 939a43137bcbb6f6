"""What a federated round costs: over its bare SGD steps, on two workers, in memory, and by memory layout.

The reference workload is the CNN of McMahan et al. (AISTATS 2017) on 28x28 images, 100 clients of 600, batches of 32,
one epoch a round. Images here have three channels, as all of this collection's data; their pixels are random.

    python benchmarks/rounds.py            a quarter of an hour on a slow core
    python benchmarks/rounds.py --quick    four clients, one or two minutes

Each ratio is the median over pairs of measurements that alternate, so that a machine's other work hits both alike.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
import torch.nn.functional as F

from fedlib.data.federation import Samples
from fedlib.engines import Engine, Processes, Serial, Site, one_thread
from fedlib.methods.fedavg import FedAvg
from fedlib.methods.method import Task, initial_state
from fedlib.rounds import Snapshot, step
from fedlib.streams import torch_stream
from fedlib.training import Local, batches, has_bfloat16

SHAPE, CLASSES, SAMPLES = (3, 28, 28), 10, 600
LOCAL = Local(steps=None, epochs=1, batch_size=32, crop=False)
LR = 0.01


def workload(clients: int, model: str = "mcmahan_cnn", local: Local = LOCAL) -> Site:
    """FedAvg over `clients` with 600 random images each."""
    generator = torch_stream(0, "benchmark")
    images = torch.randint(0, 256, (SAMPLES, *SHAPE), dtype=torch.uint8, generator=generator)
    labels = torch.randint(0, CLASSES, (SAMPLES,), generator=generator)
    own = [Samples(images.clone(memory_format=torch.channels_last), labels.clone()) for _ in range(clients)]
    task = Task({"name": model}, SHAPE, CLASSES, (SAMPLES,) * clients, 1, 0)
    return Site(FedAvg(), task, local, tuple(own))


@contextmanager
def federated(site: Site, engine: Engine) -> Iterator[Callable[[], object]]:
    """One round after the other: broadcast, client work, aggregation; no evaluation."""
    model, server, memories = initial_state(site.method, site.task)
    now = Snapshot(server, memories)
    cohort = list(range(site.task.clients))
    try:
        step(site, model, now, engine, cohort[:4], LR)  # starts the workers, warms up the kernels
        yield lambda: step(site, model, now, engine, cohort, LR)
    finally:
        engine.close()


def bare(site: Site, layout: torch.memory_format = torch.channels_last) -> Callable[[], None]:
    """The same SGD steps on the same batches, of one model in a plain loop."""
    model = initial_state(site.method, site.task)[0].to(memory_format=layout)
    local = site.local
    optimiser = torch.optim.SGD(model.parameters(), LR, local.momentum, weight_decay=local.weight_decay, fused=True)

    def loop() -> None:
        for i, samples in enumerate(site.train):
            for batch in batches(samples, local, i, torch_stream(0, "client", 1, i)):
                x = batch.x.contiguous(memory_format=layout)
                with torch.autocast("cpu", torch.bfloat16, enabled=local.precision == "bfloat16"):
                    loss = F.cross_entropy(model(x), batch.y)
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()

    return loop


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def ratio(above: Callable[[], object], below: Callable[[], object], pairs: int) -> tuple[float, str]:
    """Median of seconds(above) / seconds(below), and a note with both medians and the range of the ratio."""
    times = [(seconds(above), seconds(below)) for _ in range(pairs)]
    ratios = [a / b for a, b in times]
    first, second = (statistics.median(column) for column in zip(*times, strict=True))
    return statistics.median(ratios), f"{first:.2f} s / {second:.2f} s, {min(ratios):.2f} to {max(ratios):.2f}"


def overhead(clients: int, pairs: int) -> tuple[float, str]:
    site = workload(clients)
    with federated(site, Serial()) as round:
        return ratio(round, bare(site), pairs)


def speed_up(clients: int, pairs: int, one: Engine) -> tuple[float, str]:
    """How much faster two workers are than `one`."""
    site = workload(clients)
    with federated(site, one) as slow, federated(site, Processes(2)) as fast:
        return ratio(slow, fast, pairs)


def layout(model: str, pairs: int) -> tuple[float, str]:
    site = workload(2, model)
    return ratio(bare(site, torch.contiguous_format), bare(site), pairs)


def bfloat16(model: str, pairs: int) -> tuple[float, str]:
    site = workload(2, model)
    return ratio(bare(site), bare(replace(site, local=replace(LOCAL, precision="bfloat16"))), pairs)


def peak() -> float:
    """Most memory that this process has held so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def growth(few: int, many: int) -> tuple[float, str]:
    """MiB of peak memory that each further client adds to a round of one step, beyond its own images."""
    short = replace(LOCAL, steps=1, epochs=None)
    peaks = []
    for clients in (few, many):
        with federated(workload(clients, local=short), Serial()) as round:
            round()
            peaks.append(peak())
    images = SAMPLES * SHAPE[0] * SHAPE[1] * SHAPE[2] / 2**20
    each = (peaks[1] - peaks[0]) / (many - few)
    return each - images, f"peaks {peaks[0]:.0f} and {peaks[1]:.0f} MiB with {few} and {many} clients"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=100, help="clients of the overhead and memory measurements")
    parser.add_argument("--rounds", type=int, default=3, help="pairs of rounds that each ratio is the median of")
    parser.add_argument("--jobs", type=int, default=2, help="below 2: leave out the measurements on worker processes")
    parser.add_argument("--quick", action="store_true", help="four clients")
    given = parser.parse_args()
    clients = min(given.clients, 4) if given.quick else given.clients
    pairs, some = given.rounds, min(clients, 12)

    def show(name: str, unit: str, measured: tuple[float, str]) -> None:
        print(f"{name:<46}{measured[0]:7.2f} {unit:<5} ({measured[1]})", flush=True)

    with one_thread():
        show("memory that a client adds to a round", "MiB", growth(20, 100))
        show(f"overhead over the bare loop ({clients} clients)", "x", overhead(clients, pairs))
        if given.jobs >= 2:
            show(f"two workers over one ({some} clients)", "x", speed_up(some, pairs, Processes(1)))
            show(f"two workers over serial ({some} clients)", "x", speed_up(some, pairs, Serial()))
        for model in ("mcmahan_cnn", "small_cnn"):
            show(f"channels-last over contiguous ({model})", "x", layout(model, pairs))
            if has_bfloat16(torch.device("cpu")):
                show(f"bfloat16 over float32 ({model})", "x", bfloat16(model, pairs))


if __name__ == "__main__":
    main()
