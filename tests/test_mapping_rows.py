"""Tables of FEROMA's mapping against numbers worked out by hand."""

from __future__ import annotations

import math

import pandas as pd
import pytest
import tiny
from analysis.test_mapping import drifting

from fedlib import mapping_rows
from fedlib.checks import FedlibError
from fedlib.methods.feroma import FEROMA

FED = drifting()
HELD = mapping_rows.distributions(FED)


def table(distance) -> pd.DataFrame:
    """One run of four clients, rounds 4 and 5: distance(t, k, j), and weights that are all 1/4."""
    rows = []
    for t in (4, 5):
        for k in range(4):
            for j in range(4):
                rows += [(t, f"distance[{j}]", k, distance(t, k, j)), (t, f"weight[{j}]", k, 0.25)]
    rows.append((5, "bytes_up", -1, 3.0))
    return pd.DataFrame(rows, columns=["round", "metric", "client", "value"]).assign(key="one", seed=0)


def made(distance=lambda t, k, j: 1.0) -> pd.DataFrame:
    return mapping_rows.pairs(table(distance), {"one": FED})


def test_distributions_are_those_of_the_clients_round_by_round():
    for t in range(1, 6):
        assert HELD[t - 1].tolist() == [client.distribution for client in FED.at(t).clients]
    assert len({tuple(row) for row in HELD}) > 1
    with pytest.raises(FedlibError, match="does not drift"):
        mapping_rows.distributions(tiny.federation())


def test_pairs_hold_what_the_one_has_now_against_what_the_other_had_before():
    found = made(lambda t, k, j: 100 * t + 10 * k + j)
    assert len(found) == 32 and found["alike"].any() and not found["alike"].all()
    for row in found.itertuples():
        assert row.distance == 100 * row.round + 10 * row.client + row.other and row.weight == 0.25
        assert (row.has, row.had) == (HELD[row.round - 1][row.client], HELD[row.round - 2][row.other])
        assert row.alike == (row.has == row.had)


def test_pairs_keep_the_order_of_the_runs_and_the_named_columns():
    both = pd.concat([table(lambda *_: 1.0).assign(key=key, setting=key) for key in ("z", "a")], ignore_index=True)
    found = mapping_rows.pairs(both, {"z": FED, "a": FED}, by=["setting"])
    assert found["key"].unique().tolist() == ["z", "a"] and (found["setting"] == found["key"]).all()


def test_tables_without_a_mapping_and_runs_without_a_federation_are_refused():
    with pytest.raises(FedlibError, match=r"probes: \[mapping\]"):
        mapping_rows.pairs(table(lambda *_: 1.0).query("metric == 'bytes_up'"), {"one": FED})
    with pytest.raises(FedlibError, match="key"):
        mapping_rows.pairs(table(lambda *_: 1.0), {"other": FED})


def test_weights_of_any_rule_from_the_distances():
    """Distances 0, log 2, log 2, log 4 are softmax weights 4/9, 2/9, 2/9, 1/9; tau = 0.9 / 4 = 0.225 cuts all but the
    first, tau = 0.5 the two smallest: 0.125."""
    found = made(lambda t, k, j: [0.0, math.log(2), math.log(2), math.log(4)][(j - k) % 4])
    own = mapping_rows.weighed(found, FEROMA(threshold=0.5)).query("round == 5 and client == 2")
    assert own["other"].tolist() == [0, 1, 2, 3]
    assert own["w"].tolist() == pytest.approx([2 / 9, 1 / 9, 4 / 9, 2 / 9])
    assert own["survives"].tolist() == [True, False, True, True]
    assert own["weight"].tolist() == pytest.approx([1 / 4, 0, 1 / 2, 1 / 4])
    alone = mapping_rows.weighed(found, FEROMA(threshold=0.9)).query("round == 5 and client == 2")
    assert alone["weight"].tolist() == [0, 0, 1, 0]
    none = mapping_rows.weighed(found, FEROMA(threshold=2.0)).query("client == 0")
    assert not none["survives"].any() and set(none["weight"]) == {0.25}


def test_weights_where_a_client_is_missing():
    rows = table(lambda t, k, j: float(j == k))
    gone = (rows["client"] == 3) | ((rows["round"] == 5) & rows["metric"].str.contains("[3]", regex=False))
    found = mapping_rows.weighed(mapping_rows.pairs(rows[~gone], {"one": FED}), FEROMA(threshold=4.0))
    assert found.groupby(["round", "client"])["weight"].apply(list).map(len).tolist() == [4, 4, 4, 3, 3, 3]
    assert found.query("round == 5")["weight"].tolist() == pytest.approx([1 / 3] * 9)


def test_perfect_profiles_share_the_weight_among_the_alike():
    found = mapping_rows.clients(mapping_rows.weighed(mapping_rows.apart(made()), FEROMA(threshold=0.5)))
    met = found[found["group"] > 0]
    assert len(met) and met["mass"].tolist() == pytest.approx([1.0] * len(met))
    assert (met["survivors"] == met["group"]).all() and (met["regime"] == met["expected"]).all()
    assert (found[found["group"] == 0]["survivors"] == 4).all()  # all equally far: 1 / |A| each, above 0.5 / |A|


def test_clients_by_hand():
    """All distances equal: weights 1/4 each, so that the mass is the group's share, and none reaches 1.5 / 4."""
    found = mapping_rows.clients(mapping_rows.weighed(made(), FEROMA())).set_index(["round", "client"])
    for (t, k), row in found.iterrows():
        group = int((HELD[t - 2] == HELD[t - 1][k]).sum())
        assert (row["group"], row["survivors"], row["regime"]) == (group, 0, "global")
        assert row["mass"] == row["equal"] == pytest.approx(group / 4)
        assert row["expected"] == ("clustered" if group > 1 else "personal" if group else "global")
        assert row["drifted"] == (HELD[t - 2][k] != HELD[t - 1][k])
    assert found["drifted"].any() and not found["drifted"].all()


def test_means_are_over_those_who_are_like_somebody_and_shares_over_all():
    rows = pd.DataFrame(
        {
            "mass": [1.0, 0.5, 0.0, 0.2],
            "equal": [0.5, 0.25, 0.0, 0.25],
            "group": [2, 1, 0, 1],
            "drifted": [False, True, True, True],
            "regime": ["clustered", "clustered", "personal", "global"],
            "expected": ["clustered", "personal", "global", "personal"],
        }
    ).assign(key="one", seed=3)
    found = mapping_rows.over_clients(rows).set_index("metric")["value"].to_dict()
    assert found == pytest.approx(
        {
            mapping_rows.MASS: 100 * 1.7 / 3,
            mapping_rows.DRIFTED: 35.0,
            mapping_rows.EQUAL: 100 / 3,
            "clustered": 50.0,
            "personal": 25.0,
            "global": 25.0,
            mapping_rows.EXPECTED: 25.0,
        }
    )
    nobody = mapping_rows.over_clients(rows.assign(group=0))
    assert mapping_rows.MASS not in set(nobody["metric"]) and "global" in set(nobody["metric"])


def test_a_matrix_is_in_the_order_of_what_clients_draw_from():
    found = mapping_rows.weighed(made(lambda t, k, j: 0.1 * k + 0.3 * j), FEROMA())
    got = mapping_rows.matrix(found, 5)
    assert [d for d, _ in got.index] == sorted(HELD[4]) and [d for d, _ in got.columns] == sorted(HELD[3])
    cell = found.query("round == 5 and client == 2 and other == 1")
    assert got.loc[(HELD[4][2], 2), (HELD[3][1], 1)] == cell["w"].item()
    with pytest.raises(FedlibError, match="choose one"):
        mapping_rows.matrix(pd.concat([found, found.assign(key="two")]), 5)
    with pytest.raises(FedlibError, match="round"):
        mapping_rows.matrix(found, 3)
