"""Costs: the published counts, multiply-adds by hand, and what travels."""

from __future__ import annotations

import pytest

from fedlib.analysis import cost
from fedlib.checks import FedlibError
from fedlib.experiment import make_experiment
from fedlib.methods.f2dc import F2DC
from fedlib.methods.fedavg import FedAvg
from fedlib.methods.fedbn import FedBN

RESNET = {"name": "resnet10"}


def by_hand(side: int, classes: int) -> int:
    """Multiply-adds of ResNet-10: kernel area x inputs x outputs x places, of every convolution, and the head's."""
    places = [side**2, (side // 2) ** 2, (side // 4) ** 2, (side // 8) ** 2]
    total = 9 * 3 * 64 * places[0] + 2 * 9 * 64 * 64 * places[0]
    for level, width in enumerate((128, 256, 512), start=1):
        half = width // 2
        total += (9 * half * width + 9 * width * width + half * width) * places[level]
    return total + 512 * classes


@pytest.mark.parametrize("side", [32, 128])
def test_resnet10_s_counts_are_the_published_ones(side: int):
    """Spec, 2.2: about 4.05 GMAC at 128, 0.25 at 32; 4,901,703 parameters."""
    found = cost.network(FedAvg(), RESNET, side, classes=7)
    assert found == {"multiply-adds": by_hand(side, 7), "parameters": 4_901_703}
    assert found["multiply-adds"] == pytest.approx({32: 0.25e9, 128: 4.05e9}[side], rel=0.02)


def test_f2dc_adds_two_modules():
    """Each is two 3x3 convolutions, 512 to 64 and back, on a map of 16 x 16; the auxiliary head is not used."""
    plain, ours = (cost.network(method, RESNET, 128, classes=7)["multiply-adds"] for method in (FedAvg(), F2DC()))
    assert ours - plain == 2 * 2 * 9 * 512 * 64 * 16**2
    assert 0.06 < ours / plain - 1 < 0.08


def test_bytes_are_those_of_the_tensors_that_travel():
    """float32 parameters; BatchNorm's two running statistics (one number a channel each) and its int64 counter."""
    channels = 64 + 2 * 64 + 3 * 128 + 3 * 256 + 3 * 512
    norms = 1 + 2 + 3 * 3
    assert cost.sent(FedAvg(), RESNET, 32, 7) == 4 * (4_901_703 + 2 * channels) + 8 * norms
    assert cost.sent(FedBN(), RESNET, 32, 7) == 4 * (4_901_703 - 2 * channels)
    assert cost.sent(F2DC(modules="local"), RESNET, 32, 7) == cost.sent(FedAvg(), RESNET, 32, 7)
    extra = cost.sent(F2DC(), RESNET, 32, 7) - cost.sent(FedAvg(), RESNET, 32, 7)
    assert extra == 4 * (2 * (589_952 + 2 * 64) + 3_591) + 8 * 2


def test_a_slower_step_is_slower():
    settings = {"samples": 200, "clients": 2, "rounds": 3, "lr": 0.01, "batch_size": 8, "crop": False}
    narrow, wide = (
        make_experiment(FedAvg(), steps=3, model={"name": "resnet10", "width": width}, **settings) for width in (2, 24)
    )
    found = cost.step_seconds({"narrow": narrow, "wide": wide}, repeats=3)
    assert found.loc["narrow", "relative"] == 1
    assert found.loc["wide", "relative"] > 1.5


def test_nothing_to_measure_is_refused():
    with pytest.raises(FedlibError, match="no experiment given"):
        cost.step_seconds({}, 1)
