"""Engines: where clients' work runs. Every engine gives the same bits, because a client's work is a pure function."""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any, Protocol

import torch
from torch import nn

from fedlib.checks import FedlibError
from fedlib.data.federation import Samples
from fedlib.methods.method import Method, State, Task, Upload, Work
from fedlib.streams import torch_stream
from fedlib.training import Local


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


@dataclass(frozen=True)
class Site:
    """What does not change between rounds: method, task, local training, every client's training samples."""

    method: Method
    task: Task
    local: Local
    train: tuple[Samples, ...]


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
    """Clients spread over single-threaded worker processes, which are started once and keep the samples."""

    def __init__(self, jobs: int) -> None:
        self.jobs = jobs
        self._pool: ProcessPoolExecutor | None = None

    def map(self, site: Site, model: nn.Module, given: Iterable[Assignment]) -> Iterator[Upload]:
        if next(model.parameters()).device.type != "cpu":
            raise FedlibError("engine: processes are for CPUs; on a GPU use engine: serial and several runs a device")
        if self._pool is None:
            self._pool = worker_pool(self.jobs, _enter, site, model)
        waiting: deque[Future[Upload]] = deque()
        for assignment in given:
            waiting.append(self._pool.submit(_perform, assignment))
            if len(waiting) > 2 * self.jobs:  # so many uploads at most are in memory, however many clients there are
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None


def worker_pool(jobs: int, initializer: Callable[..., object] | None = None, *arguments: Any) -> ProcessPoolExecutor:
    """A pool of fresh processes with one arithmetic thread each."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    return ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=initializer, initargs=arguments)


_entered: tuple[Site, nn.Module] | None = None


def _enter(site: Site, model: nn.Module) -> None:
    global _entered
    torch.set_num_threads(1)
    _entered = (site, model)


def _perform(given: Assignment) -> Upload:
    assert _entered is not None
    return perform(*_entered, given)
