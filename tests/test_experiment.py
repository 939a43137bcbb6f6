"""The description of a run: what is refused, what its key depends on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny

from fedlib import experiment as experiments
from fedlib.checks import FedlibError
from fedlib.data import vision
from fedlib.data.pool import Pool
from fedlib.experiment import Experiment, device, label, make_experiment
from fedlib.methods import make
from fedlib.methods.fedavg import FedAvg
from fedlib.methods.fedavg_ft import FedAvgFT
from fedlib.methods.feddrm import FedDRM
from fedlib.rounds import Plan
from fedlib.training import Local

DIRICHLET = {"name": "dirichlet", "alpha": 0.3}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lr": "fast"}, "lr: 'fast' is str, not a number; give a number above 0.0"),
        ({"lr": "1e-3"}, "write 1.0e-3 or 0.001"),
        ({"epochs": 1}, "steps=2, epochs=1: give exactly one of them"),
        ({"round": 3}, "experiment: unknown key 'round'; did you mean 'rounds'?"),
        ({"batchsize": 3}, "experiment: unknown key 'batchsize'; did you mean 'batch_size'?"),
        ({"partition": {"name": "dirichlet", "alpha": 0}}, "alpha: 0 is out of range; give a number above 0"),
        ({"partition": {"name": "dirichlet"}}, "alpha is missing"),
        ({"partition": {"name": "dirichlett", "alpha": 1}}, "'dirichlett' is unknown; did you mean 'dirichlet'?"),
        ({"partition": {"name": "dirichlet", "alhpa": 1}}, "unknown key 'alhpa'; did you mean 'alpha'?"),
        ({"partition": "iid"}, "partition: 'iid' has no name"),
        ({"shift": {"name": "bitgrid"}}, "'bitgrid' is unknown; did you mean 'bit_grid'?"),
        ({"shift": {"name": "bit_grid", "level": "hihg"}}, "'hihg' is unknown; did you mean 'high'?"),
        ({"model": {"name": "smal_cnn"}}, "model: 'smal_cnn' is unknown; did you mean 'small_cnn'?"),
        ({"model": {"name": "lenet_gn", "sharing": "depe"}}, "'depe' is unknown; did you mean 'deep'?"),
        ({"probes": ("drfit",)}, "probes: 'drfit' is unknown; did you mean 'drift'?"),
        ({"clients": 0}, "clients: 0 is out of range; give a whole number at least 1"),
        ({"clients": 2.0}, "clients: 2.0 is float, not a whole number"),
        ({"samples": 0}, "samples: 0 is out of range"),
        ({"seed": -1}, "seed: -1 is out of range"),
        ({"seed": "0"}, "seed: '0' is str, not a whole number"),
        ({"test_share": -0.1}, "test_share: -0.1 is out of range"),
        ({"test_share": 1}, "test_share: 1 is out of range"),
        ({"validation_share": 1.0}, "validation_share: 1.0 is out of range"),
        ({"probes": ("drift",)}, "probes: drift compares FedDRM's two losses; FedAvg has no client head"),
        ({"joins": {1: 3}, "leaves": {1: 2}}, "client 1 joins in round 3, after its last round 2; let it join earlier"),
        ({"shift": {"name": "standardise", "mean": [[0.5] * 3] * 4, "std": [[0.5] * 3] * 4}}, "4 rows for 3 clients"),
        ({"probes": ("validation",)}, "probes: validation needs validation samples; set validation_share above 0"),
        ({"data": None}, "data: None is no name of a data set"),
    ],
)
def test_a_wrong_value_is_refused_when_the_experiment_is_made(settings: dict[str, Any], message: str):
    with pytest.raises(FedlibError) as caught:
        tiny.experiment(**settings)
    assert message in str(caught.value)


def test_a_method_must_be_one_and_have_a_file():
    with pytest.raises(FedlibError, match=r"method: 'FedDRM' is no Method; use methods.make\('FedDRM'\) or FedDRM\(\)"):
        tiny.experiment("FedDRM")
    with pytest.raises(FedlibError, match=r"FedDRM.lam: 1.7 is out of range; give a number at least 0.0 and at most"):
        tiny.experiment(make({"name": "FedDRM", "lam": 1.7}))
    mine = type("Mine", (FedAvg,), {"__module__": "__main__"})
    with pytest.raises(FedlibError, match="Mine is defined in the notebook or script itself; put it into a file of"):
        tiny.experiment(mine())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"data": "digit"}, "data set 'digit' is not here"),
        ({"samples": 1798}, "samples: 1798 asked for, but data set 'digits' holds 1797; give at most that"),
        ({"samples": 10}, "samples: 10 of 'digits' leave a class without a sample; take more"),
        ({"samples": 100, "clients": 101}, "101 clients are more than the 100 samples; take fewer clients"),
        (
            {"samples": 100, "clients": 60},
            "client 40 of 60 on 'digits' by iid: .* of 1 samples leave train empty; take fewer",
        ),
        ({"partition": {"name": "dirichlet", "alpha": 1e-4}, "clients": 20}, "raise alpha, take fewer clients or"),
    ],
)
def test_what_only_the_data_can_tell_is_refused_before_training(settings: dict[str, Any], message: str):
    with pytest.raises(FedlibError, match=message):
        asked = tiny.experiment(**settings)
        asked.key(), asked.federation()


def test_settings_find_their_homes():
    asked = make_experiment(FedDRM(), rounds=4, lr=0.1, epochs=2, batch_size=8, clients=3, seed=5)
    expected = Experiment(FedDRM(), Plan(4, 0.1), clients=3, local=Local(steps=None, epochs=2, batch_size=8), seed=5)
    assert asked == expected


KEY = {"samples": 240, "partition": DIRICHLET, "shift": {"name": "bit_grid"}}


@pytest.mark.parametrize(
    "other",
    [
        {"method": FedDRM(lam=0.9)},
        {"method": FedAvg()},
        {"seed": 1},
        {"clients": 4},
        {"samples": 241},
        {"partition": {"name": "dirichlet", "alpha": 0.31}},
        {"shift": None},
        {"model": {"name": "linear"}},
        {"lr": 0.06},
        {"rounds": 4},
        {"steps": 3},
        {"crop": True},
        {"probes": ("drift",)},
        {"evaluate_every": 1},
    ],
)
def test_whatever_may_change_the_result_changes_the_key(other: dict[str, Any]):
    base = {"method": FedDRM(lam=0.8)} | KEY
    assert tiny.experiment(**base | other).key() != tiny.experiment(**base).key()


def test_the_key_is_a_function_of_values_alone():
    reordered = KEY | {"partition": dict(reversed(DIRICHLET.items()))}
    key = tiny.experiment(FedDRM(), **KEY).key()
    assert key == tiny.experiment(FedDRM(), **reordered).key() and len(key) == 16 and int(key, 16) >= 0


def test_the_key_depends_on_code_data_torch_and_device(monkeypatch: pytest.MonkeyPatch):
    asked = tiny.experiment()
    keys = {asked.key()}
    with monkeypatch.context() as patch:
        patch.setattr(experiments, "fingerprints", lambda modules: {"fedlib.training": "changed"})
        keys.add(asked.key())
    with monkeypatch.context() as patch:
        patch.setattr(experiments.torch, "__version__", "0.1")
        keys.add(asked.key())
    with monkeypatch.context() as patch:
        patch.setenv("FEDLIB_DEVICE", "meta")
        keys.add(asked.key())
    with monkeypatch.context() as patch:
        pool = vision.load("digits")
        images = pool.images.copy()
        images[0, 0, 0, 0] ^= 1
        changed = Pool(pool.name, images, pool.labels, pool.classes, pool.split, pool.partition_labels)
        patch.setattr(experiments.vision, "load", lambda name: changed)
        keys.add(asked.key())
    assert len(keys) == 5 and asked.key() in keys


def test_the_key_depends_on_the_code_of_its_own_rooms_alone():
    drm = set(tiny.experiment(FedDRM()).sources())
    always = {"rounds", "training", "metrics", "engines", "streams", "methods.method", "data.federation", "models.cnn"}
    assert {f"fedlib.{name}" for name in always | {"methods.feddrm", "data.partition", "data.shift"}} <= drm
    assert not {"fedlib.methods.fedrep", "fedlib.models.resnet", "fedlib.runs", "fedlib.analysis.gradients"} & drm
    assert "fedlib.methods.fedavg_ft" in tiny.experiment(make({"name": "FedAvgFTOnCosine", "ft_rounds": 1})).sources()
    assert "fedlib.analysis.gradients" in tiny.experiment(FedDRM(), probes=("drift",)).sources()
    assert "fedlib.models.resnet" in tiny.experiment(model={"name": "resnet18_gn"}).sources()
    assert "tiny" in tiny.experiment(tiny.Breaks()).sources()


def test_a_changed_pack_makes_a_new_federation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """In a kernel that has seen the old one."""
    monkeypatch.setenv("FEDLIB_DATA", str(tmp_path))

    def write(value: int) -> None:
        labels = np.arange(60) % 2
        images = np.full((60, 4, 4, 3), value, dtype=np.uint8)
        split = np.zeros(60, dtype=np.uint8)
        np.savez(tmp_path / "mine.npz", images=images, labels=labels, split=split, classes=np.array(["a", "b"]))

    write(10)
    asked = tiny.experiment(data="mine", samples=None)
    first, key = asked.federation(), asked.key()
    assert asked.federation() is first
    write(99)
    assert asked.key() != key and int(asked.federation().clients[0].train.images.max()) == 99


def test_devices(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FEDLIB_DEVICE", "cpu")
    assert device().type == "cpu"
    monkeypatch.setenv("FEDLIB_DEVICE", "gpu")
    with pytest.raises(FedlibError, match="FEDLIB_DEVICE: 'gpu' is no device; use cpu or cuda"):
        device()


def test_columns_name_a_run():
    asked = tiny.experiment(FedAvgFT(ft_rounds=1), partition=DIRICHLET, seed=4)
    assert asked.columns() == {
        "method": "FedAvgFT",
        "ft_rounds": 1,
        "ft_lr": 0.01,
        "data": "digits",
        "partition": "dirichlet-0.3",
        "shift": "none",
        "drift": "none",
        "model": "small_cnn",
        "clients": 3,
        "seed": 4,
    }
    assert label(None) == "none" and label({"name": "shards", "per_client": 2}) == "shards-2"
