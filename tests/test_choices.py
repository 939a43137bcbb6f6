"""Tables of choices, their agreement with groups, and rounds of specialisation, against histories written by hand."""

from __future__ import annotations

import math

import pandas as pd
import pytest

from fedlib import summary
from fedlib.checks import FedlibError
from fedlib.choices import SPECIALISED, agreement, choices, delays, specialised

CHOSEN = {  # by seed and round: all choose one model, then groups are met; and a choice that tells nothing
    (0, 2): [1, 1, 1, 1],
    (0, 4): [3, 3, 2, 2],
    (1, 2): [1, 2, 1, 2],
    (1, 4): [1, 1, 2, 2],
}
INNER = {(0, 2): 0.5, (0, 4): 0.7, (1, 2): 0.4, (1, 4): 0.6}
GROUPS = {0: [0, 0, 1, 1], 1: [0, 0, 1, 1]}


def table() -> pd.DataFrame:
    rows = [(seed, t, "chosen", i, k) for (seed, t), models in CHOSEN.items() for i, k in enumerate(models)]
    rows += [(seed, t, "models_chosen", -1, len(set(models))) for (seed, t), models in CHOSEN.items()]
    rows += [(seed, t, "inner_max", -1, w) for (seed, t), w in INNER.items()]
    rows += [(0, 2, "inner_max", 3, 0.99)]
    found = pd.DataFrame(rows, columns=["seed", "round", "metric", "client", "value"]).astype({"value": float})
    return found.assign(key="k" + found["seed"].astype(str), moment="after_aggregation", lam=math.nan)


def test_choices_say_model_and_group_of_each_client():
    groups = {0: [5, 5, 6, 6], 1: [7, 8, 7, 8]}
    found = choices(table(), groups)
    assert len(found) == 16
    last = found[(found["seed"] == 1) & (found["round"] == 4)].set_index("client")
    assert last["k"].to_dict() == {0: 1, 1: 1, 2: 2, 3: 2} and last["group"].to_dict() == {0: 7, 1: 8, 2: 7, 3: 8}
    assert pd.api.types.is_integer_dtype(found["k"])


def test_agreement_is_that_of_each_run_and_round():
    found = agreement(choices(table(), GROUPS)).set_index(["metric", "seed", "round"])["value"]
    assert found["nmi"].to_dict() == pytest.approx({(0, 2): 0.0, (0, 4): 1.0, (1, 2): 0.0, (1, 4): 1.0})
    chance = {(0, 2): 0.0, (0, 4): 1 / 3, (1, 2): 1 / 3, (1, 4): 1 / 3}
    assert found["nmi by chance"].to_dict() == pytest.approx(chance)
    assert found["purity"].to_dict() == pytest.approx({(0, 2): 0.5, (0, 4): 1.0, (1, 2): 0.5, (1, 4): 1.0})


def test_a_run_in_two_groups_stays_in_both_and_goes_into_a_summary():
    twice = pd.concat([table().assign(row="a"), table().assign(row="b")])
    both = pd.concat([twice, agreement(choices(twice, GROUPS)), specialised(twice)])
    assert len(both[both["metric"] == "nmi"]) == 8 and len(both[both["metric"] == SPECIALISED]) == 4
    final = summary.final(both[both["row"] == "a"])
    assert summary.paired(final, "nmi", {"row": "a"}, {"row": "a"}, "nmi by chance") == pytest.approx([2 / 3, 2 / 3])


def test_specialisation_is_later_than_the_last_round_where_there_is_none():
    found = specialised(table()).set_index("seed")
    assert found["value"].to_dict() == {0: 4.0, 1: 5.0}  # 0.6 is not above 0.6
    assert set(found["client"]) == {-1} and found["round"].tolist() == [4, 4]
    assert specialised(table(), 0.3)["value"].tolist() == [2.0, 2.0]


def test_delays_leave_out_seeds_in_which_neither_is_specialised():
    """By seed, with 40 rounds: 16 against 8; never against 24; never on both sides; 8 against never."""
    first, second = {2: 41.0, 0: 16.0, 1: 41.0, 3: 8.0}, {0: 8.0, 1: 24.0, 2: 41.0, 3: 41.0}
    rows = [(init, seed, t) for init, found in (("same", first), ("noise", second)) for seed, t in found.items()]
    found = pd.DataFrame(rows, columns=["init", "seed", "value"]).assign(metric=SPECIALISED, round=40, key="")
    assert delays(found, {"init": "same"}, {"init": "noise"}) == [8.0, 17.0, -33.0]
    assert delays(found[found["seed"] == 2], {"init": "same"}, {"init": "noise"}) == []
    with pytest.raises(FedlibError, match=r"init.*'sam' is unknown; did you mean 'same'"):
        delays(found, {"init": "sam"}, {"init": "noise"})


def test_what_is_missing_is_named():
    with pytest.raises(FedlibError, match="no client chooses a model; run FedFew or IFCA"):
        choices(table().query("metric == 'inner_max'"), GROUPS)
    with pytest.raises(FedlibError, match="groups has no client 0 of seed 1"):
        choices(table(), {0: [0, 0, 1, 1]})
    with pytest.raises(FedlibError, match="groups has no client 3 of seed 0"):
        choices(table(), {0: [0, 0, 1], 1: [0, 0, 1, 1]})
    with pytest.raises(FedlibError, match="no run has inner_max"):
        specialised(table().query("metric == 'chosen'"))
