import itertools
import math

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlib import summary
from fedlib.checks import FedlibError

T_975 = {2: 12.706205, 3: 4.302653}  # Student's t, one and two degrees of freedom, from any table


def history(key, seed, values, method="FedDRM", lam=0.8, metric="system@pooled", client=-1):
    """A run evaluated at the rounds that `values` names."""
    rows = [(round, metric, "after_aggregation", client, value) for round, value in values.items()]
    table = pd.DataFrame(rows, columns=["round", "metric", "moment", "client", "value"])
    return table.assign(key=key, method=method, lam=lam, seed=seed)


def runs(*rows):
    """A table of last rounds: (method, lam, seed, metric, value)."""
    table = pd.DataFrame(rows, columns=["method", "lam", "seed", "metric", "value"])
    return table.assign(key=[f"k{m}{lam}{s}" for m, lam, s in table[["method", "lam", "seed"]].to_numpy()])


def sweep(rows):
    """{seed: {lam: value}} as a table of last rounds."""
    return runs(*(("FedDRM", lam, seed, "s@p", v) for seed, row in rows.items() for lam, v in row.items()))


TABLE = pd.concat(
    [
        history("a", 0, {5: 0.25, 9: 0.5, 10: 0.75}),
        history("a", 0, {5: 1.5, 10: 3.0}, metric="drift_ratio[backbone]"),
        history("a", 0, {10: 0.125}, client=3),
        history("b", 1, {18: 0.0, 20: 0.5}, method="FedAvg", lam=math.nan),
    ],
    ignore_index=True,
)


def test_the_last_round_is_each_runs_own_and_accuracies_are_percent():
    final = summary.final(TABLE)
    assert list(final) == ["metric", "moment", "value", "key", "method", "lam", "seed"]
    assert final[["key", "metric", "value"]].to_numpy().tolist() == [
        ["a", "system@pooled", 75.0],
        ["a", "drift_ratio[backbone]", 3.0],
        ["b", "system@pooled", 50.0],
    ]


@pytest.mark.parametrize(
    ("last", "values"),
    [(2, [62.5, 3.0, 50.0]), (3, [62.5, 3.0, 25.0]), (6, [50.0, 2.25, 25.0]), (99, [50.0, 2.25, 25.0])],
)
def test_the_last_rounds_are_averaged_where_they_were_evaluated(last, values):
    assert summary.final(TABLE, last)["value"].tolist() == values


def test_last_counts_rounds():
    with pytest.raises(FedlibError, match="final: last: 0 is out of range"):
        summary.final(TABLE, 0)


@settings(max_examples=25, deadline=None)
@given(st.permutations(range(len(TABLE))), st.integers(1, 20))
def test_the_order_of_rows_does_not_matter(order, last):
    def sorted_rows(table):
        return table.sort_values(["key", "metric"], ignore_index=True)

    shuffled = TABLE.iloc[order].reset_index(drop=True)
    pd.testing.assert_frame_equal(
        sorted_rows(summary.final(shuffled, last)),
        sorted_rows(summary.final(TABLE, last))[list(summary.final(shuffled))],
    )


def test_the_interval_over_seeds_is_students():
    rows = [("FedDRM", 0.8, seed, "s@p", value) for seed, value in enumerate([1.0, 2.0, 3.0])]
    rows += [("FedRep", 0.8, 0, "s@p", 1.0), ("FedRep", 0.8, 1, "s@p", 2.0), ("FedAvg", math.nan, 0, "s@p", 7.0)]
    found = summary.over_seeds(runs(*rows), by=["method"]).set_index("method")
    assert found["mean"].to_dict() == {"FedDRM": 2.0, "FedRep": 1.5, "FedAvg": 7.0}
    assert found["n"].to_dict() == {"FedDRM": 3, "FedRep": 2, "FedAvg": 1}
    assert (found["high"] - found["mean"]).tolist() == pytest.approx(
        [T_975[3] / math.sqrt(3), T_975[2] * 0.5, math.nan], nan_ok=True, rel=1e-6
    )
    assert (found["mean"] - found["low"]).tolist() == pytest.approx(
        (found["high"] - found["mean"]).tolist(), nan_ok=True
    )


def test_a_group_without_a_hyper_parameter_is_kept():
    found = summary.over_seeds(runs(("FedAvg", math.nan, 0, "s@p", 7.0)), by=["method", "lam"])
    assert found["mean"].tolist() == [7.0] and found["lam"].isna().all()


def test_runs_that_would_be_counted_as_seeds_are_refused():
    table = runs(("FedDRM", 0.1, 0, "s@p", 1.0), ("FedDRM", 0.8, 0, "s@p", 2.0))
    with pytest.raises(FedlibError, match="over_seeds: 2 rows have the same seed, 0; they differ in lam"):
        summary.over_seeds(table, by=["method"])
    with pytest.raises(FedlibError, match="over_seeds: by: 'methods' is unknown; did you mean 'method'"):
        summary.over_seeds(table, by=["methods"])


METHODS = runs(
    ("FedDRM", 0.8, 1, "s@p", 65.0),
    ("FedDRM", 0.8, 0, "s@p", 60.0),
    ("FedDRM", 0.8, 1, "s@p[vote]", 64.0),
    ("FedDRM", 0.8, 0, "s@p[vote]", 61.0),
    ("FedRep", 0.5, 0, "s@p", 50.0),
    ("FedRep", 0.5, 1, "s@p", 51.0),
)


def test_differences_are_paired_by_seed():
    first, second = {"method": "FedDRM"}, {"method": "FedRep"}
    assert summary.paired(METHODS, "s@p", first, second) == [10.0, 14.0]
    assert summary.paired(METHODS, "s@p", second, first) == [-10.0, -14.0]
    assert summary.paired(METHODS, "s@p", first, {"method": "FedDRM", "lam": 0.8}, "s@p[vote]") == [-1.0, 1.0]


@settings(max_examples=25, deadline=None)
@given(st.permutations(range(len(METHODS))))
def test_pairs_do_not_depend_on_the_order_of_rows(order):
    assert summary.paired(METHODS.iloc[order], "s@p", {"method": "FedDRM"}, {"method": "FedRep"}) == [10.0, 14.0]


@pytest.mark.parametrize(
    ("metric", "second", "message"),
    [
        ("s@q", {"method": "FedRep"}, "paired: metric: 's@q' is unknown; did you mean 's@p'"),
        ("s@p", {"method": "FedRap"}, "paired: method where metric s@p: 'FedRap' is unknown; did you mean 'FedRep'"),
        (
            "s@p",
            {"method": "FedRep", "lam": 0.8},
            "paired: lam where metric s@p, method FedRep: 0.8 is unknown; .*alid: 0.5",
        ),
        ("s@p", {"methode": "FedRep"}, "paired: column: 'methode' is unknown; did you mean 'method'"),
        ("s@p", {}, "paired: metric s@p: 2 rows have the same seed, 1; they differ in method, lam"),
    ],
)
def test_a_filter_that_fits_no_run_or_too_many_is_named(metric, second, message):
    with pytest.raises(FedlibError, match=message):
        summary.paired(METHODS, metric, {"method": "FedDRM"}, second)


def test_unpaired_seeds_are_named():
    table = METHODS[~((METHODS["method"] == "FedRep") & (METHODS["seed"] == 1))]
    with pytest.raises(
        FedlibError, match=r"seeds \[1\] are on one side only: method FedDRM has \[0, 1\] and method FedRep has \[0\]"
    ):
        summary.paired(table, "s@p", {"method": "FedDRM"}, {"method": "FedRep"})


def test_the_interior_value_is_chosen_by_the_other_seeds():
    """Seed 0's best is 0.8 (9), but seeds 1 and 2 prefer 0.5; for seed 1 and for seed 2 the others prefer 0.8."""
    table = sweep(
        {
            0: {0.1: 1, 0.5: 2, 0.8: 9, 0.95: 0},
            1: {0.1: 2, 0.5: 6, 0.8: 5, 0.95: 1},
            2: {0.1: 3, 0.5: 8, 0.8: 4, 0.95: 4},
        }
    )
    assert summary.interior_gain(table, "s@p", "lam", 0.1) == [2 - 1, 5 - 2, 4 - 3]
    assert summary.interior_gain(table, "s@p", "lam", 0.95) == [2 - 0, 5 - 1, 4 - 4]


def test_cross_fitting_does_not_flatter():
    """Over all tables of zeros and ones, where no value is better than another, the mean gain is zero."""
    gains, best = [], []
    for cells in itertools.product([0, 1], repeat=6):
        rows = {seed: dict(zip([0.1, 0.5, 0.8], cells[3 * seed : 3 * seed + 3], strict=True)) for seed in (0, 1)}
        table = sweep({seed: row | {0.95: 0} for seed, row in rows.items()})
        gains += summary.interior_gain(table, "s@p", "lam", 0.1)
        best += [max(row[0.5], row[0.8]) - row[0.1] for row in rows.values()]
    assert sum(gains) == 0 and sum(best) / len(best) == 0.25


@settings(max_examples=25, deadline=None)
@given(st.randoms())
def test_a_sweep_may_come_in_any_order(random):
    table = sweep({seed: {0.1: seed, 0.5: 3, 0.8: 2 * seed, 0.95: 0} for seed in (2, 0, 1)})
    shuffled = table.iloc[random.sample(range(len(table)), len(table))]
    assert summary.interior_gain(shuffled, "s@p", "lam", 0.1) == [3, 2, 1]


@pytest.mark.parametrize(
    ("table", "end", "message"),
    [
        (sweep({0: {0.1: 1, 0.5: 2, 0.9: 3}}), 0.1, "1 seeds and 3 values of lam"),
        (sweep({0: {0.1: 1, 0.5: 2}, 1: {0.1: 1, 0.5: 2}}), 0.1, "2 seeds and 2 values of lam"),
        (
            sweep({0: {0.1: 1, 0.5: 2, 0.9: 3}, 1: {0.1: 1, 0.5: 2, 0.9: 3}}),
            0.5,
            "end of lam: 0.5 is unknown; .*alid: 0.1, 0.9",
        ),
        (sweep({0: {0.1: 1, 0.5: 2, 0.9: 3}, 1: {0.1: 1, 0.9: 3}}), 0.1, "seed 1 has no s@p at lam 0.5"),
    ],
)
def test_a_sweep_that_cannot_be_cross_fitted_is_refused(table, end, message):
    with pytest.raises(FedlibError, match=message):
        summary.interior_gain(table, "s@p", "lam", end)


CHOICE = sweep(
    {
        0: {0.1: 1, 0.5: 2, 0.8: 9},
        1: {0.1: 2, 0.5: 6, 0.8: 5},
        2: {0.1: 3, 0.5: 8, 0.8: 4},
    }
)


def by_validation(rows):
    """The table above with a second metric that has the choice."""
    return pd.concat([CHOICE, sweep(rows).assign(metric="s@p[validation]")], ignore_index=True)


def test_a_value_is_chosen_by_the_other_seeds():
    """The others' means of (0.1, 0.5, 0.8) are (2.5, 7, 4.5), (2, 5, 6.5), (1.5, 4, 7)."""
    found = summary.chosen(CHOICE, "s@p", "lam")
    assert found.index.tolist() == [0, 1, 2] and list(found) == ["lam", "value"]
    assert found["lam"].tolist() == [0.5, 0.8, 0.8] and found["value"].tolist() == [2, 5, 4]


def test_a_value_is_chosen_by_another_metric_of_the_same_seed():
    rows = {0: {0.1: 7, 0.5: 0, 0.8: 6}, 1: {0.1: 0, 0.5: 1, 0.8: 1}, 2: {0.1: 0, 0.5: 0, 0.8: 1}}
    found = summary.chosen(by_validation(rows), "s@p", "lam", by="s@p[validation]")
    assert found["lam"].tolist() == [0.1, 0.5, 0.8] and found["value"].tolist() == [1, 6, 4]


@pytest.mark.parametrize(
    ("table", "by", "message"),
    [
        (sweep({0: {0.1: 1, 0.5: 2}}), None, "chosen: 1 seeds; give at least two"),
        (sweep({0: {0.1: 1, 0.5: 2}, 1: {0.1: 1}}), None, "chosen: seed 1 has no s@p at lam 0.5"),
        (CHOICE, "s@p[valid]", r"chosen: by: metric: 's@p\[valid\]' is unknown"),
        (
            by_validation({0: {0.1: 1, 0.5: 1}, 1: {0.1: 1}, 2: {0.1: 1, 0.5: 1}}),
            "s@p[validation]",
            r"chosen: by: seed 1 has no s@p\[validation\] at lam 0.5",
        ),
    ],
)
def test_a_choice_that_cannot_be_made_is_refused(table, by, message):
    with pytest.raises(FedlibError, match=message):
        summary.chosen(table, "s@p", "lam", by)


CLIENTS = pd.concat(
    [
        history(f"c{seed}", seed, {4: (seed + i) / 16, 8: (seed + 3 * i) / 16}, metric="router@pooled", client=i)
        for seed in (1, 0)
        for i in (-1, 0, 1, 2)
    ],
    ignore_index=True,
)


def test_the_mean_of_some_clients_and_rounds_is_a_value_a_seed_in_percent():
    assert summary.of_clients(CLIENTS, "router@pooled", [1], [8]).to_dict() == {0: 300 / 16, 1: 400 / 16}
    assert summary.of_clients(CLIENTS, "router@pooled", [0, 2], range(4, 5)).to_dict() == {0: 100 / 16, 1: 200 / 16}
    assert summary.of_clients(CLIENTS, "router@pooled", [0, 2], [4, 8]).to_dict() == {0: 200 / 16, 1: 300 / 16}


@pytest.mark.parametrize(
    ("metric", "clients", "rounds", "message"),
    [
        ("router@poled", [0], [4], "of_clients: metric: 'router@poled' is unknown; did you mean 'router@pooled'"),
        ("router@pooled", [0, 3], [4], "of_clients: client: 3 is unknown; .*alid: 0, 1, 2"),
        ("router@pooled", [-1], [4], "of_clients: client: -1 is unknown"),
        ("router@pooled", [0], [4, 5], "of_clients: round: 5 is unknown; .*alid: 4, 8"),
    ],
)
def test_a_client_or_round_without_a_value_is_named(metric, clients, rounds, message):
    with pytest.raises(FedlibError, match=message):
        summary.of_clients(CLIENTS, metric, clients, rounds)


def test_two_runs_of_a_seed_are_not_mixed():
    other = CLIENTS.assign(method="FedRep", key=CLIENTS["key"] + "x")
    with pytest.raises(FedlibError, match="of_clients: 2 rows have the same seed, 1; they differ in method"):
        summary.of_clients(pd.concat([CLIENTS, other]), "router@pooled", [0], [4])


def methods_table(cells: dict[str, list[float]]) -> pd.DataFrame:
    """One run a method and seed; the values are those of the metric s@p, by seed."""
    rows = [(m, seed, "s@p", v, f"{m}{seed}") for m, values in cells.items() for seed, v in enumerate(values)]
    return pd.DataFrame(rows, columns=["method", "seed", "metric", "value", "key"])


def test_the_lead_is_over_the_rival_that_the_other_seeds_choose():
    table = methods_table({"A": [5, 5, 5], "B": [9, 0, 0], "C": [1, 2, 3]})
    # B is the best on seeds {0, 1} and {0, 2}; on {1, 2} it is C
    assert summary.lead(table, "s@p", "A", ["B", "C"]) == [5 - 1, 5 - 0, 5 - 0]
    assert summary.lead(table, "s@p", "A", ["C"]) == [4, 3, 2]


@pytest.mark.parametrize(
    ("cells", "rivals", "message"),
    [
        ({"A": [1], "B": [1]}, ["B"], "lead: 1 seeds; give at least two"),
        ({"A": [1, 2], "B": [1, 2]}, ["b"], "lead: method: 'b' is unknown; did you mean 'B'"),
        ({"A": [1, 2], "B": [1, 2]}, [], r"the rivals of A are \[\]; name at least one"),
        ({"A": [1, 2], "B": [1, 2]}, ["A", "B"], "each once, and not A itself"),
        ({"A": [1, 2], "B": [1]}, ["B"], "lead: seed 1 has no s@p at method B; run all values on all seeds"),
    ],
)
def test_a_lead_that_cannot_be_told_is_refused(cells, rivals, message):
    with pytest.raises(FedlibError, match=message):
        summary.lead(methods_table(cells), "s@p", "A", rivals)


def ours(*rows):
    return pd.DataFrame(rows, columns=["setting", "method", "metric", "mean", "low", "high", "n"])


def test_the_paper_stands_beside_ours_and_blanks_stay_blank():
    setting = "cifar10/dirichlet-0.3"
    joined = summary.beside(
        "feddrm",
        "main",
        ours((setting, "FedDRM", "system", 50.0, 49.0, 51.0, 3), (setting, "FedAvg", "system", 40.0, 39.0, 41.0, 3)),
    )
    assert list(joined) == ["table", "setting", "method", "metric", "paper", "ours", "low", "high", "n"]
    cells = joined.set_index(["setting", "method", "metric"])
    assert cells.loc[(setting, "FedDRM", "system")].tolist() == ["main", 62.78, 50.0, 49.0, 51.0, 3]
    only_paper = cells.loc[(setting, "FedALA", "system")]
    assert only_paper["paper"] == 61.33 and only_paper[["ours", "low", "high", "n"]].isna().all()
    unknown = cells.loc[("cifar100/dirichlet-0.3", "Ditto", "average")]
    assert unknown[["paper", "ours"]].isna().all()
    assert len(joined) == 6 * 11 * 2 + 1
    assert joined.iloc[-1][["method", "ours"]].tolist() == ["FedAvg", 40.0] and pd.isna(joined.iloc[-1]["paper"])


def test_a_published_table_is_named_and_a_cell_is_given_once():
    with pytest.raises(FedlibError, match="published numbers of feddrm: table: 'mian' is unknown; did you mean 'main'"):
        summary.beside("feddrm", "mian", ours())
    row = ("cifar10/5-spc", "FedDRM", "system", 50.0, 49.0, 51.0, 3)
    with pytest.raises(FedlibError, match="ours has two rows with setting cifar10/5-spc, method FedDRM, metric system"):
        summary.beside("feddrm", "main", ours(row, row))


def leads():
    """Two methods at two levels on three seeds; the lead of A over B is 1, 2, 3 at low and 5, 5, 5 at high."""
    one, two = {("low", 0): 11, ("low", 1): 22, ("low", 2): 33}, {("low", 0): 10, ("low", 1): 20, ("low", 2): 30}
    one |= {("high", seed): 45 for seed in (2, 0, 1)}
    two |= {("high", seed): 40 for seed in (1, 2, 0)}
    rows = [("A", level, seed, "system@pooled", value) for (level, seed), value in one.items()]
    rows += [("B", level, seed, "global@pooled", value) for (level, seed), value in two.items()]
    table = pd.DataFrame(rows, columns=["method", "level", "seed", "metric", "value"])
    return table.assign(key=[f"{method}{level}{seed}" for method, level, seed, *_ in rows])


def lead_of_a(table, **changed):
    wanted = {"first": {"method": "A"}, "second": {"method": "B"}, "by": ["level"], "second_metric": "global@pooled"}
    return summary.difference(table, "lead", "system@pooled", **(wanted | changed))


def test_differences_in_each_group_are_rows_of_the_first_runs():
    found = lead_of_a(leads())
    assert found.set_index(["level", "seed"])["value"].to_dict() == {
        ("low", 0): 1, ("low", 1): 2, ("low", 2): 3, ("high", 0): 5, ("high", 1): 5, ("high", 2): 5,
    }  # fmt: skip
    assert set(found["metric"]) == {"lead"} and set(found["method"]) == {"A"}
    assert (found["key"] == "A" + found["level"] + found["seed"].astype(str)).all()


def test_differences_can_be_compared_in_turn():
    """(5, 5, 5) - (1, 2, 3), whatever the order of the rows."""
    for table in (leads(), leads().sample(frac=1, random_state=0)):
        assert summary.paired(lead_of_a(table), "lead", {"level": "high"}, {"level": "low"}) == [4, 3, 2]


def test_a_difference_of_unknown_groups_or_of_unequal_seeds_is_refused():
    with pytest.raises(FedlibError, match="difference: by: 'levl' is unknown; did you mean 'level'"):
        lead_of_a(leads(), by=["levl"])
    with pytest.raises(FedlibError, match=r"paired: seeds \[0\] are on one side only"):
        lead_of_a(leads().query("key != 'Bhigh0'"))


def test_gains_are_each_metrics_differences_under_the_same_seed_to_the_methods_own_base():
    final = runs(
        *(("FedAvg", 0, seed, "average", value) for seed, value in ((0, 10.0), (1, 20.0), (2, 30.0))),
        *(("FPL", 0, seed, "average", value) for seed, value in ((1, 40.0), (0, 40.0), (2, 40.0))),
        *(("F2DC", 0, seed, "average", value) for seed, value in ((2, 31.0), (0, 13.0), (1, 25.0))),
        *(("FPL", 0, seed, "std", 5.0) for seed in (0, 1, 2)),
        *(("F2DC", 0, seed, "std", 2.0 + seed) for seed in (0, 1, 2)),
    )
    found = summary.gains(final[final["metric"] == "average"], {"F2DC": "FedAvg", "FPL": "F2DC"})
    assert found[["method", "seed", "value"]].to_numpy().tolist() == [
        ["F2DC", 0, 3.0],
        ["F2DC", 1, 5.0],
        ["F2DC", 2, 1.0],
        ["FPL", 0, 27.0],
        ["FPL", 1, 15.0],
        ["FPL", 2, 9.0],
    ]
    both = summary.gains(final, {"F2DC": "FPL"})
    assert both[both["metric"] == "std"]["value"].tolist() == [-3.0, -2.0, -1.0]
    assert both[both["metric"] == "average"]["value"].tolist() == [-27.0, -15.0, -9.0]
    (mean,) = summary.over_seeds(both[both["metric"] == "std"], by=["method"])["mean"]
    assert mean == -2


def test_gains_refuse_what_they_cannot_compare():
    final = runs(("FedAvg", 0, 0, "average", 1.0), ("F2DC", 0, 0, "average", 2.0), ("F2DC", 0, 0, "std", 3.0))
    with pytest.raises(FedlibError, match="no method is compared"):
        summary.gains(final, {})
    with pytest.raises(FedlibError, match=r"F2CD.*F2DC"):
        summary.gains(final, {"F2CD": "FedAvg"})
    with pytest.raises(FedlibError, match=r"FedAgv.*FedAvg"):
        summary.gains(final, {"F2DC": "FedAgv"})
    with pytest.raises(FedlibError, match=r"method where metric std.*FedAvg"):  # a metric that the base lacks
        summary.gains(final, {"F2DC": "FedAvg"})


def test_by_domain_names_metrics_as_the_tables_do():
    rows = runs(
        ("F2DC", 1.0, 0, "domain@central[photo]", 40.0),
        ("F2DC", 1.0, 0, "domain@central", 50.0),
        ("F2DC", 1.0, 0, "domain_std@central", 5.0),
        ("F2DC", 1.0, 0, "worst@central", 40.0),
        ("F2DC", 1.0, 0, "train_loss[total]", 2.0),
    )
    found = summary.by_domain(rows)
    assert dict(zip(found["metric"], found["value"], strict=True)) == {"photo": 40.0, "average": 50.0, "std": 5.0}
    with pytest.raises(FedlibError, match="no run was tested on the official test part"):
        summary.by_domain(rows.iloc[3:])
