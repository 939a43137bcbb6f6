"""What a round costs: the spec's table of profile sizes, and a clock that only the method's own hooks move."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd
import pytest
import tiny
import torch

from fedlib.analysis import round_costs
from fedlib.checks import FedlibError
from fedlib.data.federation import Client
from fedlib.methods.fedavg import FedAvg
from fedlib.methods.fedper import FedPer
from fedlib.methods.feroma import FEROMA
from fedlib.methods.method import Server, State, Upload, Work
from fedlib.profiles import profile_size
from fedlib.runs import run

DRIFT = {"name": "P(X)", "severity": "low", "phases": 2, "phase_samples": 20}
SETTINGS: dict[str, Any] = {"clients": 4, "drift": DRIFT, "validation_share": 0.3, "pooled": False}
clock = 0.0


@pytest.mark.parametrize(
    ("model", "shape", "classes", "d", "parameters", "share"),
    [
        ("lenet5", (1, 28, 28), 10, 220, 61_706, "3.57e-03"),
        ("lenet5", (3, 28, 28), 10, 220, 62_006, "3.55e-03"),
        ("lenet5", (3, 32, 32), 10, 220, 83_126, "2.65e-03"),
        ("resnet9", (3, 32, 32), 100, 20_200, 6_775_140, "2.98e-03"),
        ("resnet9", (1, 64, 64), 14, 420, 6_683_790, "6.3e-05"),
        ("resnet9", (3, 64, 64), 20, 840, 6_734_100, "1.2e-04"),
    ],
)
def test_profiles_are_as_small_as_the_specification_says(model, shape, classes, d, parameters, share):
    found = round_costs.profile_shares({"it": ({"name": model}, shape, classes)}).loc["it"]
    assert (found["d"], found["parameters"]) == (d, parameters)
    digits = share.index("e") - 2
    assert f"{found['share']:.{digits}e}" == share


def spend(seconds: float) -> None:
    global clock
    clock += seconds


@dataclass(frozen=True)
class Slow(FedAvg):
    """Hooks that take 2, 3, 5, 7 and 11 seconds."""

    def report(
        self, server: Server, model: torch.nn.Module, client: Client, memory: State, generator: torch.Generator
    ) -> State:
        spend(2)
        return {"n": torch.zeros(3)}

    def receive(self, server: Server, reports: Mapping[int, State]) -> Server:
        spend(3)
        return server

    def broadcast(self, server: Server, client: int, memory: State) -> State:
        spend(5)
        return super().broadcast(server, client, memory)

    def client_update(self, work: Work) -> Upload:
        spend(7)
        return super().client_update(work)

    def aggregate(self, server: Server, uploads: Iterable[Upload]) -> Server:
        spend(11)
        return super().aggregate(server, uploads)


def test_seconds_go_to_those_who_spend_them(monkeypatch):
    monkeypatch.setattr(round_costs, "_now", lambda: clock)
    found = round_costs.round_seconds({"slow": tiny.experiment(Slow()), "plain": tiny.experiment()}, 2)
    assert found["label"].tolist() == ["slow", "plain"] * 2
    assert found["round"].tolist() == [1, 1, 2, 2]
    slow = found[found["label"] == "slow"]
    for column, seconds in {"reports": 2 * 3 + 3, "training": 7 * 3, "server": 5 * 3 + 11, "seconds": 56}.items():
        assert slow[column].tolist() == [seconds] * 2
    assert (found.loc[found["label"] == "plain", "seconds"] == 0).all()
    up = found.groupby("label")["bytes_up"].first()
    assert up["slow"] - up["plain"] == 3 * 3 * 4


def test_rounds_are_those_of_a_run_and_models_are_counted_in_networks():
    """Bytes are those in the history of a run that is kept; FEROMA's server holds a model a client from round W on."""
    feroma = tiny.experiment(FEROMA(warmup=1, components=3), **SETTINGS)
    found = round_costs.round_seconds({"FEROMA": feroma})
    assert found["models"].tolist() == [4, 4, 4]
    history = run(feroma).history()
    for metric in ("bytes_up", "bytes_down"):
        assert found[metric].tolist() == history.loc[history["metric"] == metric, "value"].tolist()
    parts = found[["reports", "training", "server"]]
    assert (parts.sum(axis=1) - found["seconds"]).abs().max() < 1e-9


def test_means_of_late_rounds_are_compared_with_the_reference_of_the_same_clients_and_seed():
    rows = [("FedAvg", 5, 0, t, float(t), 10.0) for t in (1, 2, 3)]
    rows += [("FEROMA", 5, 0, t, 2.0 * t, 11.0) for t in (1, 2, 3)] + [("FedAvg", 9, 0, 3, 100.0, 20.0)]
    costs = pd.DataFrame(rows, columns=["method", "clients", "seed", "round", "seconds", "bytes_up"])
    costs = costs.assign(bytes_down=costs["bytes_up"], models=1.0)
    found = round_costs.per_round(costs, after=1).set_index(["metric", "method", "clients"])["value"]
    assert found["seconds", "FEROMA", 5] == 5 and found["seconds", "FedAvg", 9] == 100
    assert found["seconds, of FedAvg's", "FEROMA", 5] == 2 and found["seconds, of FedAvg's", "FedAvg", 9] == 1
    assert found["bytes up, of FedAvg's", "FEROMA", 5] == pytest.approx(1.1)
    with pytest.raises(FedlibError, match="no round after 3"):
        round_costs.per_round(costs, after=3)
    alone = costs.assign(seed=[0, 0, 0, 1, 1, 1, 0])
    with pytest.raises(FedlibError, match="FedAvg was not timed with 5 clients and seed 1"):
        round_costs.per_round(alone, after=1)


@dataclass(frozen=True)
class SlowProfiles(FEROMA):
    def report(self, *args: Any) -> State:
        spend(2)
        return super().report(*args)

    def client_update(self, work: Work) -> Upload:
        spend(0.5 * work.local.count(len(work.samples)))
        return super().client_update(work)


def test_a_profile_is_timed_against_one_epoch(monkeypatch):
    """14 training samples in batches of 5 are three steps an epoch, of half a second, whatever the run's own steps."""
    monkeypatch.setattr(round_costs, "_now", lambda: clock)
    slow = tiny.experiment(SlowProfiles(warmup=1, components=3), **SETTINGS | {"steps": 9, "batch_size": 5})
    found = round_costs.extraction_seconds(slow, 3)
    assert found["profile"].tolist() == [2, 2, 2]
    assert found["epoch"].tolist() == [1.5] * 3


def test_what_is_kept_is_counted_in_networks(shared_project):
    settings = SETTINGS | {"rounds": 3}
    plain = run(tiny.experiment(FedAvg(), **settings))
    assert round_costs.kept(plain) == {"server": 1.0, "client": 0.0}
    mapped = run(tiny.experiment(FEROMA(warmup=1, components=3), **settings))
    found = round_costs.kept(mapped)
    beside = 4 * 4 * profile_size(3, 10) / sum(4 * p.numel() for p in tiny_network(mapped).parameters())
    assert 5 + beside < found["server"] < 5.1 + beside and found["client"] == 0
    head = run(tiny.experiment(FedPer(), **settings))
    found = round_costs.kept(head)
    assert found["server"] + found["client"] == pytest.approx(1) and found["client"] > 0


def tiny_network(of):
    experiment = of.experiment
    return experiment.task(experiment.federation()).network()


def test_bad_input_is_refused():
    with pytest.raises(FedlibError, match="round_seconds: no experiment given"):
        round_costs.round_seconds({})
    with pytest.raises(FedlibError, match="round_seconds: rounds"):
        round_costs.round_seconds({"a": tiny.experiment()}, 4)
    with pytest.raises(FedlibError, match="FedAvg has no profiles"):
        round_costs.extraction_seconds(tiny.experiment(**SETTINGS), 1)
