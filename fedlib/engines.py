"""Engines: where clients' work runs. Every engine gives the same bits, because a client's work is a pure function."""

from __future__ import annotations

import contextlib
import os
import pickle
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_all_start_methods, get_context, parent_process
from typing import Any, Protocol

import torch
from torch import nn

from fedlib.checks import FedlibError
from fedlib.methods.method import Site, State, Upload, Work
from fedlib.streams import derive, torch_stream


class ClientError(FedlibError):
    """Client work failed: the message names method, round, client and stage, whatever the engine."""


@dataclass(frozen=True)
class Assignment:
    """What one client is given in one round."""

    client: int
    message: State
    memory: State
    lr: float
    round: int


def perform(site: Site, model: nn.Module, given: Assignment) -> Upload:
    """One client's work, with its own random stream; a failure is raised again as a ClientError."""
    stream = torch_stream(site.task.seed, "client", given.round, given.client)
    samples = site.train[given.client]
    work = Work(
        given.client,
        samples,
        given.message,
        given.memory,
        model,
        site.local,
        given.lr,
        given.round,
        site.task.rounds,
        stream,
    )
    try:
        with torch.random.fork_rng(
            devices=[]
        ):  # dropout draws from torch's global stream: it is the client's meanwhile
            torch.manual_seed(derive(site.task.seed, "dropout", given.round, given.client))
            return site.method.client_update(work)
    except Exception as error:
        stage = f"{type(site.method).__name__}, round {given.round}, client {given.client}, client_update"
        raise ClientError(f"{stage}: {type(error).__name__}: {error}") from error


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Arithmetic on one thread: the bits do not depend on the machine's cores, and workers do not fight over them."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Engine(Protocol):
    """Yields the uploads in the order of the assignments."""

    def map(self, site: Site, model: nn.Module, given: Iterable[Assignment]) -> Iterator[Upload]: ...

    def close(self) -> None: ...


class Serial:
    """One client after the other, in this process."""

    def map(self, site: Site, model: nn.Module, given: Iterable[Assignment]) -> Iterator[Upload]:
        for assignment in given:
            yield perform(site, model, assignment)

    def close(self) -> None:
        """Nothing to stop."""


class Processes:
    """Clients spread over single-threaded worker processes, which are started once a run and keep the samples.

    What travels is pickled here: left to multiprocessing, every tensor would hold an open file, and files run out.
    """

    def __init__(self, jobs: int) -> None:
        self.jobs = jobs
        self._pool: ProcessPoolExecutor | None = None
        self._site: Site | None = None

    def map(self, site: Site, model: nn.Module, given: Iterable[Assignment]) -> Iterator[Upload]:
        if next(model.parameters()).device.type != "cpu":
            raise FedlibError("engine: processes are for CPUs; on a GPU use engine: serial and several runs a device")
        if self._pool is None or self._site is not site:
            self.close()
            self._pool, self._site = worker_pool(self.jobs, _enter, pickle.dumps((site, model))), site
        waiting: deque[Future[bytes]] = deque()
        for assignment in given:
            waiting.append(self._pool.submit(_perform, pickle.dumps(assignment)))
            if len(waiting) > 2 * self.jobs:  # so many uploads at most are in memory, however many clients there are
                yield pickle.loads(waiting.popleft().result())
        while waiting:
            yield pickle.loads(waiting.popleft().result())

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None


def worker_pool(jobs: int, initializer: Callable[..., object] | None = None, *arguments: Any) -> ProcessPoolExecutor:
    """A pool of processes with one arithmetic thread each. They end with this process, even if it is killed.

    Where the system can, they are forked from a server that has imported torch: that takes seconds, and only once.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    context = get_context("forkserver" if "forkserver" in get_all_start_methods() else "spawn")
    context.set_forkserver_preload([__name__])
    start = (dict(os.environ), initializer, *arguments)
    return ProcessPoolExecutor(jobs, mp_context=context, initializer=_begin, initargs=start)


def _begin(environment: dict[str, str], initializer: Callable[..., object] | None, *arguments: Any) -> None:
    os.environ.clear()  # of the server's, which is that of the first pool
    os.environ.update(environment)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    if initializer is not None:
        initializer(*arguments)


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


_entered: tuple[Site, nn.Module] | None = None


def _enter(site_and_model: bytes) -> None:
    global _entered
    _entered = pickle.loads(site_and_model)


def _perform(given: bytes) -> bytes:
    assert _entered is not None
    return pickle.dumps(perform(*_entered, pickle.loads(given)))
