"""Engines: the same bits wherever the work runs, and errors that say where they come from."""

from __future__ import annotations

import os

import pytest
import tiny
import torch

from fedlib.engines import ClientError, Processes, Serial, one_thread, worker_pool
from fedlib.methods.fedavg import FedAvg
from fedlib.methods.feddrm import FedDRM
from fedlib.methods.fedrep import FedRep
from fedlib.rounds import Plan
from fedlib.training import Local

LOCAL = Local(steps=2, batch_size=16)
SIZES = (40, 24, 33, 17, 20, 16, 31)  # more clients than 2 * jobs, so that uploads are taken before all are sent


def test_processes_give_the_same_bits_as_serial_and_may_be_used_again():
    """One engine for three methods: its workers must not go on with the first one's."""
    fed, plan, engine = tiny.federation(SIZES), Plan(2, 0.05, evaluate_every=1, participation=0.8), Processes(2)
    try:
        for method in (FedAvg(), FedRep(), FedDRM()):
            alone, spread = (tiny.train(method, fed, plan, LOCAL, at) for at in (Serial(), engine))
            assert tiny.same_snapshots(alone, spread)
    finally:
        engine.close()


@pytest.mark.parametrize("engine", [Serial(), Processes(1)])
def test_an_error_in_client_work_says_where(engine: Serial | Processes):
    where = "^Breaks, round 2, client 1, client_update: IndexError: out of cheese$"
    try:
        with pytest.raises(ClientError, match=where):
            tiny.train(tiny.Breaks(), tiny.federation((20, 20, 20, 20)), Plan(3, 0.05), LOCAL, engine)
    finally:
        engine.close()


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="open files are counted in /proc")
def test_work_holds_no_open_files():
    """Left to multiprocessing, each tensor of a kept memory would hold one: 20 clients with 8 tensors each."""
    fed, engine = tiny.federation((8,) * 20), Processes(1)
    before = len(os.listdir("/proc/self/fd"))
    try:
        now = tiny.train(FedRep(), fed, Plan(1, 0.05), Local(steps=1, crop=False), engine)
        assert len(now.memories) == 20 and len(os.listdir("/proc/self/fd")) < before + 15
    finally:
        engine.close()


def _threads() -> tuple[int, int]:
    return os.getpid(), torch.get_num_threads()


def test_workers_have_one_thread_each():
    with worker_pool(1) as pool:
        process, threads = pool.submit(_threads).result()
    assert threads == 1 and process != os.getpid()


def test_one_thread_puts_the_number_back():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with one_thread():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
