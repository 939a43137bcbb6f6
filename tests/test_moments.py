"""Accuracies at two moments, and the parts of a gain, against tables written by hand."""

from __future__ import annotations

import math

import pandas as pd
import pytest
import tiny
import torch

from fedlib import moments, summary
from fedlib.checks import FedlibError
from fedlib.data.federation import Client, Federation, Samples
from fedlib.moments import ADDED, GAIN, LOCAL, MODELS, STANDS, TUNED

CLIENTS = {  # by method and seed: each client's accuracy as it stands, and tuned
    ("FedAvg", 0): ([0.2, 0.6, 0.7], [0.7, 0.8, 0.9]),
    ("FedAvg", 1): ([0.5, 0.5, 0.5], [0.6, 0.9, 0.6]),
    ("FedFew", 0): ([0.4, 0.6, 0.8], [0.8, 0.9, 1.0]),
    ("FedFew", 1): ([0.6, 0.5, 0.7], [0.6, 0.7, 0.8]),
}


def table() -> pd.DataFrame:
    """Two methods of two seeds and three clients, of which the last one has half of all samples; T = 4."""
    rows = []
    for (method, seed), (own, tuned) in CLIENTS.items():
        for metric, values in (("personal@local", own), ("adapted@local", tuned)):
            weighted = 0.25 * values[0] + 0.25 * values[1] + 0.5 * values[2]
            for i, value in [*enumerate(values), (-1, weighted)]:
                rows += [(method, seed, 4, metric, i, value), (method, seed, 2, metric, i, value / 2)]
            rows += [(method, seed, 4, f"{metric}[plain mean]", -1, 0.99)]
    found = pd.DataFrame(rows, columns=["method", "seed", "round", "metric", "client", "value"])
    return found.assign(key=found["method"] + found["seed"].astype(str), moment="x", setting="groups", lam=math.nan)


def cell(final: pd.DataFrame, method: str, seed: int, tested: str) -> dict[str, float]:
    rows = final.query("method == @method and seed == @seed and tested == @tested")
    return rows.set_index("metric")["value"].to_dict()


def test_numbers_over_clients_at_both_moments():
    final = moments.by_moment(table())
    found = cell(final, "FedAvg", 0, STANDS)
    assert found == pytest.approx(
        {"average": 50, "std": 100 * math.sqrt(0.14 / 3), "min": 20, "max": 70, "weighted": 55}
    )
    assert cell(final, "FedFew", 1, TUNED) == pytest.approx(
        {"average": 70, "std": 100 * math.sqrt(0.02 / 3), "min": 60, "max": 80, "weighted": 72.5}
    )
    assert len(final) == 4 * 2 * 5 and not final.duplicated(["key", "tested", "metric"]).any()
    assert summary.paired(final, "min", {"method": "FedFew", "tested": STANDS}, {"method": "FedAvg", "tested": STANDS})


def test_the_last_rounds_can_be_averaged():
    final = moments.by_moment(table(), last=3)
    assert cell(final, "FedAvg", 0, STANDS)["average"] == pytest.approx((50 + 25) / 2)


def test_a_part_of_the_clients_of_each_seed_its_own():
    final = moments.by_moment(table(), clients={0: [0, 2], 1: [1]})
    assert cell(final, "FedFew", 0, TUNED) == pytest.approx({"average": 90, "std": 10, "min": 80, "max": 100})
    assert cell(final, "FedFew", 1, TUNED) == pytest.approx({"average": 70, "std": 0, "min": 70, "max": 70})


@pytest.mark.parametrize(
    ("sizes", "smaller"), [((5, 3, 9, 1), [1, 3]), ((5, 3, 9), [1]), ((4, 4, 4, 4, 4), [0, 1]), ((9, 2), [1])]
)
def test_the_smaller_half(sizes, smaller):
    assert moments.smaller_half(sizes) == smaller


def test_fedavgs_two_columns_stand_beside_every_method():
    """Means over two seeds: FedAvg (50 + 50) / 2 and (80 + 70) / 2, FedFew (60 + 60) / 2 and (90 + 70) / 2."""
    both = pd.concat([table(), table().assign(setting="iid", key="i" + table()["key"], value=0.25)])
    found = moments.four_columns(moments.by_moment(both))
    assert found.columns.tolist() == [STANDS, TUNED, "FedAvg", "FedAvg + FT"]
    assert found.loc[("groups", "FedFew")].tolist() == pytest.approx([60, 80, 50, 75])
    assert found.loc[("groups", "FedAvg")].tolist() == pytest.approx([50, 75, 50, 75])
    assert found.loc[("iid", "FedFew")].tolist() == pytest.approx([25.0] * 4)
    assert moments.four_columns(moments.by_moment(table()), "min").loc[("groups", "FedFew"), STANDS] == 45


def test_only_fedfew_is_tuned_as_its_authors_compare():
    compared = moments.as_compared(moments.by_moment(table()), ["FedFew"])
    assert compared.groupby("method")["tested"].unique().map(list).to_dict() == {"FedAvg": [STANDS], "FedFew": [TUNED]}
    assert len(compared) == 4 * 5


def test_the_parts_make_the_gain():
    """Seed 0: FedFew 90 tuned and 60, FedAvg 80 tuned and 50. Seed 1: 70 and 60, 70 and 50."""
    parts = moments.parts_of_gain(moments.by_moment(table()))
    found = {part: moments.of_part(parts, part, "groups") for part in (GAIN, LOCAL, ADDED, MODELS)}
    assert found[GAIN] == pytest.approx([40, 20])
    assert found[LOCAL] == pytest.approx([30, 20])
    assert found[ADDED] == pytest.approx([10, 0])
    assert found[MODELS] == pytest.approx([10, 10])
    assert moments.beyond_half(parts, "groups") == pytest.approx([10, 10])


def test_parts_are_taken_setting_by_setting():
    other = table().assign(setting="iid", key="i" + table()["key"])
    other["value"] = other["value"].where(other["method"] == "FedAvg", 0.0)
    parts = moments.parts_of_gain(moments.by_moment(pd.concat([other, table()])), "min")
    assert moments.of_part(parts, GAIN, "iid") == pytest.approx([-20, -50])
    assert moments.of_part(parts, GAIN, "groups") == pytest.approx([60, 10])
    assert moments.of_part(parts[::-1], GAIN, "groups") == pytest.approx([60, 10])  # by seed, in whatever order


def samples(labels: list[int]) -> Samples:
    return Samples(torch.zeros(len(labels), 3, 8, 8, dtype=torch.uint8), torch.tensor(labels))


def test_a_partitions_fingerprint():
    """Majorities 3 of 4 and 2 of 2: 5 of 6. A client of two classes evenly has two, one of one class has one."""
    held = [[0, 0, 0, 1], [2, 2]]
    clients = tuple(Client(i, samples(own), samples([]), samples([0])) for i, own in enumerate(held))
    fed = Federation("made up", clients, ("a", "b", "c"), (3, 8, 8))
    found = moments.fingerprint(fed)
    assert (found["smallest n_i"], found["largest n_i"]) == (2, 4)
    assert found["majority class (%)"] == pytest.approx(100 * 5 / 6)
    entropy = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    assert found["effective classes"] == pytest.approx((math.exp(entropy) + 1) / 2)
    assert moments.fingerprint(tiny.federation((40, 24)))["largest n_i"] == 40


def test_what_is_missing_is_named():
    final = moments.by_moment(table())
    with pytest.raises(FedlibError, match=r"by_moment: metric: 'adapted@local' is unknown"):
        moments.by_moment(table().query("metric != 'adapted@local'"))
    with pytest.raises(FedlibError, match="seed 1 has none"):
        moments.by_moment(table(), clients={0: [0]})
    with pytest.raises(FedlibError, match="clients of seed 1: 7"):
        moments.by_moment(table(), clients={0: [0], 1: [7]})
    with pytest.raises(FedlibError, match="1 sizes"):
        moments.smaller_half([3])
    with pytest.raises(FedlibError, match="metric: 'mean' is unknown"):
        moments.four_columns(final, "mean")
    with pytest.raises(FedlibError, match="method in groups: 'FedAvg' is unknown"):
        moments.four_columns(final.query("method == 'FedFew'"))
    with pytest.raises(FedlibError, match="'FedFw' is unknown; did you mean 'FedFew'"):
        moments.as_compared(final, ["FedFw"])
    parts = moments.parts_of_gain(final)
    with pytest.raises(FedlibError, match="setting: 'group' is unknown; did you mean 'groups'"):
        moments.of_part(parts, GAIN, "group")
    with pytest.raises(FedlibError, match="part: 'gain' is unknown"):
        moments.of_part(parts, "gain", "groups")
