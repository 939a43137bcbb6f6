"""Averages, deviations and spreads of small tables whose numbers can be worked out by hand."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from fedlib.analysis import steadiness
from fedlib.checks import FedlibError

CELLS = {"a": (0.0, 2.0), "b": (10.0, 14.0)}  # by setting: seeds 0 and 1
ROWS = [("toy", "FedAvg", s, seed, "acc", v) for s, values in CELLS.items() for seed, v in enumerate(values)]
ROWS += [("toy", "FEROMA", s, seed, "acc", 50.0 + seed) for s in CELLS for seed in (0, 1)]
COLUMNS = ["study", "method", "setting", "seed", "metric", "value"]


def table(rows=ROWS):
    return pd.DataFrame(rows, columns=COLUMNS)


def of(values):
    """One method: values (seeds, cells)."""
    rows = [("toy", "m", f"c{c}", seed, "acc", v) for seed, row in enumerate(values) for c, v in enumerate(row)]
    return table(rows)


def test_every_setting_counts_alike_and_seeds_stay_apart():
    found = steadiness.averaged(table(), ["study", "method"]).set_index(["method", "seed"])["value"]
    assert found.to_dict() == {("FedAvg", 0): 5, ("FedAvg", 1): 8, ("FEROMA", 0): 50, ("FEROMA", 1): 51}
    alone = steadiness.averaged(table(), ["method"])
    assert alone["value"].tolist() == [5, 8, 50, 51] and list(alone.columns) == ["method", "seed", "metric", "value"]


def test_studies_may_have_different_settings_but_not_the_methods_of_one():
    other = [("more", method, "c", seed, "acc", 1.0) for method in ("FedAvg", "FEROMA") for seed in (0, 1)]
    assert len(steadiness.averaged(table(ROWS + other), ["study", "method"])) == 8
    with pytest.raises(FedlibError, match="seed 1 of FEROMA has no acc in b"):
        steadiness.averaged(table(ROWS[:-1]), ["study", "method"])
    with pytest.raises(FedlibError, match="seed 1 of FEROMA has no acc in b"):
        steadiness.averaged(table(ROWS[:-1]), ["method"])
    with pytest.raises(FedlibError, match="two runs have study toy"):
        steadiness.averaged(table(ROWS + ROWS[:1]), ["study", "method"])


def test_deviations_over_seeds_and_over_settings():
    over_seeds = steadiness.deviations(table(), "acc", "seed").set_index(["method", "setting"])["value"]
    assert over_seeds["FedAvg", "a"] == pytest.approx(2**0.5)  # of 0 and 2, ddof 1
    assert over_seeds["FedAvg", "b"] == pytest.approx(8**0.5)
    over_settings = steadiness.deviations(table(), "acc", "setting").set_index(["method", "seed"])["value"]
    assert over_settings["FedAvg", 1] == pytest.approx(72**0.5)  # of 2 and 14
    assert over_settings["FEROMA", 0] == 0


def test_the_steadier_method_has_negative_differences():
    found = steadiness.steadier(table(), "acc", "seed", "FEROMA", "FedAvg")
    assert found == pytest.approx([0.5**0.5 - 2**0.5, 0.5**0.5 - 8**0.5])
    assert steadiness.steadier(table(), "acc", "setting", "FedAvg", "FEROMA") == pytest.approx([50**0.5, 72**0.5])
    single = table()[lambda rows: rows["setting"] == "a"]
    assert steadiness.steadier(single, "acc", "setting", "FEROMA", "FedAvg") == []


def test_the_spread_is_between_cells_that_the_other_seeds_chose():
    # Seed 0 alone has its best cell in c1; the others put it in c2, and the worst in c0.
    found = steadiness.spread(of([(5.0, 9.0, 6.0), (1.0, 2.0, 8.0), (1.0, 2.0, 7.0)]), "acc")
    assert found.to_dict() == {0: 6.0 - 5.0, 1: 8.0 - 1.0, 2: 7.0 - 1.0}


def test_pure_noise_has_no_spread_though_its_max_minus_min_is_large():
    rng = np.random.default_rng(0)
    drawn = [rng.normal(size=(3, 9)) for _ in range(60)]
    fair = np.mean([steadiness.spread(of(values), "acc").mean() for values in drawn])
    plain = np.mean([np.ptp(values.mean(0)) for values in drawn])
    assert abs(fair) < 0.4 and plain > 1.5


def test_a_spread_needs_seeds_and_all_cells():
    with pytest.raises(FedlibError, match="1 seeds and 2 cells"):
        steadiness.spread(of([(1.0, 2.0)]), "acc")
    with pytest.raises(FedlibError, match="lacks a cell"):
        steadiness.spread(of([(1.0, 2.0), (1.0,)]), "acc")
    with pytest.raises(FedlibError, match="two runs have seed 0"):
        steadiness.spread(pd.concat([of([(1.0, 2.0)] * 2)] * 2), "acc")


def test_the_order_of_rows_does_not_matter():
    for seed in range(4):
        shuffled = table().sample(frac=1, random_state=seed)
        assert sorted(steadiness.averaged(shuffled, ["method"])["value"]) == [5, 8, 50, 51]
        assert sorted(steadiness.steadier(shuffled, "acc", "setting", "FedAvg", "FEROMA")) == [50**0.5, 72**0.5]


def test_an_average_may_go_over_another_column():
    renamed = table().rename(columns={"setting": "kind"})
    assert steadiness.averaged(renamed, ["method"], over="kind")["value"].tolist() == [5, 8, 50, 51]
    with pytest.raises(FedlibError, match="has no acc in b"):
        steadiness.averaged(renamed.iloc[:-1], ["method"], over="kind")
