"""Tables of FedFew's ablations against numbers worked out by hand."""

from __future__ import annotations

import math

import pandas as pd
import pytest

from fedlib import few_rows
from fedlib.checks import FedlibError
from fedlib.moments import STANDS, TUNED

OUTER = {0: [0.7, 0.2, 0.1], 1: [0.1, 0.3, 0.6]}  # by seed
LOSSES = {0: [[2.0, 1.5], [0.3, 0.9], [0.2, 0.1]], 1: [[0.4, 0.1], [0.3, 0.2], [0.9, 0.8]]}
COLUMNS = ["seed", "round", "metric", "client", "value"]
SIZES = {0: (10, 30, 60), 1: (50, 30, 20)}


def table() -> pd.DataFrame:
    """Two runs of three clients and two models; in round 2 every number is other than in the last one, round 4."""
    rows = []
    for seed in (0, 1):
        for i in range(3):
            rows += [(seed, 4, "outer", i, OUTER[seed][i]), (seed, 2, "outer", i, 1 / 3)]
            rows += [(seed, 4, f"loss[{k}]", i, L) for k, L in enumerate(LOSSES[seed][i], start=1)]
            rows += [(seed, 2, f"loss[{k}]", i, 9.0) for k in (1, 2)]
        rows += [(seed, t, "mass[1]", -1, 0.1 * t) for t in (2, 4)] + [(seed, 4, "mass[2]", -1, 0.6)]
        rows += [(seed, t, "objective", -1, 3.0 - t) for t in (2, 4)] + [(seed, 6, "train_loss[target]", -1, 0.01)]
    found = pd.DataFrame(rows, columns=COLUMNS)
    return found.assign(key="k" + found["seed"].astype(str), K=2, smoothing=0.5)


def test_weights_of_the_last_round_with_the_best_models_loss_and_the_size():
    found = few_rows.client_weights(table(), SIZES, by=["K"])
    assert found.columns.tolist() == ["K", "key", "seed", "client", "outer", "loss", "n"]
    assert found["outer"].tolist() == OUTER[0] + OUTER[1]
    assert found["loss"].tolist() == [1.5, 0.3, 0.1, 0.1, 0.2, 0.8]
    assert found["n"].tolist() == [10, 30, 60, 50, 30, 20]
    again = few_rows.client_weights(pd.concat([table(), table()]), SIZES, by=["K"])  # a run that is in two groups
    pd.testing.assert_frame_equal(again, found)


def test_rank_correlations_by_seed():
    """Seed 0: weights fall as losses do, and as sizes rise. Seed 1: weights and losses rise, sizes fall."""
    weights = few_rows.client_weights(table(), SIZES)
    assert few_rows.rank_correlation(weights, "outer", "loss").tolist() == pytest.approx([1.0, 1.0])
    assert few_rows.rank_correlation(weights, "outer", "n").tolist() == pytest.approx([-1.0, -1.0])
    changed = weights.assign(outer=[0.2, 0.7, 0.1, 0.1, 0.3, 0.6])  # ranks 2 3 1 against 3 2 1: 1 - 6 * 2 / 24
    assert few_rows.rank_correlation(changed, "outer", "loss").to_dict() == pytest.approx({0: 0.5, 1: 1.0})


def test_how_much_weight_stands_elsewhere():
    """Seed 0: |0.7 - 0.1| + |0.2 - 0.3| + |0.1 - 0.6| = 1.2, half of it 0.6."""
    weights = few_rows.client_weights(table(), SIZES)
    assert few_rows.away_from_shares(weights).to_dict() == pytest.approx({0: 0.6, 1: 0.4})
    shares = [0.1, 0.3, 0.6, 0.5, 0.3, 0.2]
    assert few_rows.away_from_shares(weights.assign(outer=shares)).tolist() == pytest.approx([0.0, 0.0])


def test_objectives_with_and_without_the_offset_of_equal_models():
    found = few_rows.objectives(table())
    drawn, free = (found[found["metric"] == name] for name in ("objective", few_rows.OFFSET_FREE))
    assert drawn["value"].tolist() == [1.0, -1.0] * 2 and drawn["round"].tolist() == [2, 4] * 2
    assert free["value"].tolist() == pytest.approx([1.0 + math.log(2) / 2, -1.0 + math.log(2) / 2] * 2)


def test_masses_of_the_last_round():
    found = few_rows.masses(table())
    assert found["value"].tolist() == pytest.approx([0.4, 0.6] * 2)
    assert found["metric"].tolist() == ["mass[1]", "mass[2]"] * 2


def test_the_largest_weights_of_the_last_round():
    """max_k w_ik of the clients is written down as their mean, as the probe does it."""
    mean = pd.DataFrame([(seed, t, "inner_max", -1, t / 10) for seed in (0, 1) for t in (2, 4)], columns=COLUMNS)
    both = pd.concat([table(), mean.assign(key="k" + mean["seed"].astype(str), K=2, smoothing=0.5)])
    found = few_rows.largest_weights(both[both["round"] <= 4]).set_index(["metric", "seed"])["value"]
    assert found["max of outer"].to_dict() == {0: 0.7, 1: 0.6}
    assert found["largest mass"].to_dict() == {0: 0.6, 1: 0.6}
    assert found["inner_max"].to_dict() == {0: 0.4, 1: 0.4}
    assert set(found.index.get_level_values("metric")) == set(few_rows.LARGEST)


def test_panels_have_their_rows_and_fedavg_stands_apart():
    rows = [
        (method, step, tested, metric, seed, 1.0)
        for method, step in (("K = 1", "plain"), ("FedAvg", "mean"))
        for tested in (STANDS, TUNED)
        for metric in ("weighted", "std")
        for seed in (0, 1)
    ]
    final = pd.DataFrame(rows, columns=["method", "step", "tested", "metric", "seed", "value"])
    wanted = {"spread": (TUNED, "std"), "served": (STANDS, "weighted")}
    own, fedavg = few_rows.in_panels(final, "step", wanted)
    cells = [("spread", "plain", TUNED, "std"), ("served", "plain", STANDS, "weighted")]
    assert [tuple(row) for row in own[["panel", "line", "tested", "metric"]].drop_duplicates().to_numpy()] == cells
    assert len(own) == len(fedavg) == 4 and set(own["method"]) == {"K = 1"} and set(fedavg["method"]) == {"FedAvg"}
    assert fedavg["line"].tolist() == ["FedAvg + FT"] * 2 + ["FedAvg"] * 2
    both, alone = few_rows.at_both_moments(final, {"spread": "std"})
    assert both["line"].tolist() == ["server-selected"] * 2 + ["adapted"] * 2 and set(both["panel"]) == {"spread"}
    assert both["tested"].tolist() == [STANDS] * 2 + [TUNED] * 2 and set(both["metric"]) == {"std"}
    assert alone["line"].tolist() == ["FedAvg"] * 2 + ["FedAvg + FT"] * 2
    with pytest.raises(FedlibError, match=r"panel 'x': metric.*average"):
        few_rows.in_panels(final, "step", {"x": (STANDS, "average")})
    with pytest.raises(FedlibError, match=r"in_panels: line.*steps"):
        few_rows.in_panels(final, "steps", wanted)


def test_what_is_missing_or_double_is_named():
    whole = table()
    weights = few_rows.client_weights(whole, SIZES)
    other = whole[whole["metric"] == "train_loss[target]"]
    for read in (few_rows.objectives, few_rows.masses, lambda rows: few_rows.client_weights(rows, SIZES)):
        with pytest.raises(FedlibError, match="few_for_many"):
            read(other)
    with pytest.raises(FedlibError, match="no client 0 of seed 1"):
        few_rows.client_weights(whole, {0: SIZES[0]})
    with pytest.raises(FedlibError, match="no client 2 of seed 0"):
        few_rows.client_weights(whole, {0: (1, 2), 1: (1, 2, 3)})
    with pytest.raises(FedlibError, match="n is the same for all clients of seed 0"):
        few_rows.rank_correlation(weights.assign(n=5), "outer", "n")
    for judge in (few_rows.away_from_shares, lambda rows: few_rows.rank_correlation(rows, "outer", "n")):
        with pytest.raises(FedlibError, match="two runs of one seed"):
            judge(pd.concat([weights, weights]))
        with pytest.raises(FedlibError, match="no client; choose"):
            judge(weights[:0])
