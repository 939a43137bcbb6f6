"""Routing taken apart: against tables counted by hand, loops, the runs' own histories, and the rules' limits."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
import tiny
import torch

from fedlib import plots
from fedlib.analysis import routing
from fedlib.checks import FedlibError
from fedlib.data.shift import Appearance, bit_grid
from fedlib.methods.fedavg import FedAvg
from fedlib.methods.fedavg_ft import FedAvgFT
from fedlib.methods.feddrm import FedDRM
from fedlib.methods.fedrep import FedRep
from fedlib.methods.method import Method
from fedlib.metrics import evaluate
from fedlib.runs import Run, run
from fedlib.votes import mean_softmax

SETTINGS = {
    "samples": 500,
    "clients": 3,
    "rounds": 6,
    "steps": 4,
    "partition": {"name": "dirichlet", "alpha": 0.3},
    "shift": {"name": "bit_grid", "level": "high"},
    "validation_share": 0.2,
}


@pytest.fixture(scope="module")
def trained(shared_project) -> Run:
    return run(tiny.experiment(FedDRM(), **SETTINGS))


@pytest.fixture(scope="module")
def average(shared_project) -> Run:
    return run(tiny.experiment(FedAvg(), **SETTINGS))


def drawn(queries: int = 50, clients: int = 4, classes: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    """Random ratios (N, m) and logits (m, N, K)."""
    generator = torch.Generator().manual_seed(0)
    ratios = torch.randn(queries, clients, generator=generator)
    return ratios, 2 * torch.randn(clients, queries, classes, generator=generator)


@pytest.mark.parametrize("method", [FedDRM(), FedAvg(), FedRep(), FedAvgFT(ft_rounds=1)])
def test_the_crowd_of_a_run_gives_the_last_round_s_metrics_again(shared_project, method: Method):
    asked = run(tiny.experiment(method, partition={"name": "dirichlet", "alpha": 0.3}))
    kept = asked.history().query("round == 3 and metric.str.contains('@')")
    again = pd.DataFrame(evaluate(routing.crowd_of(asked), method.moment(3, 3)))
    pd.testing.assert_frame_equal(again, kept.reset_index(drop=True))


def test_the_crowd_on_validation_holds_those_samples_and_no_others(trained: Run):
    clients = trained.experiment.federation().clients
    crowd = routing.crowd_of(trained, "validation")
    assert torch.equal(crowd.samples.images, torch.cat([client.validation.images for client in clients]))
    assert crowd.origin.bincount().tolist() == [len(client.validation) for client in clients]
    assert torch.equal(crowd.shares, routing.crowd_of(trained).shares)


def test_a_run_without_validation_samples_and_an_unknown_part_are_refused(shared_project, trained: Run):
    with pytest.raises(FedlibError, match=r"client 0 has none; set validation_share above 0, such as 0.1"):
        routing.crowd_of(run(tiny.experiment(FedDRM())), "validation")
    with pytest.raises(FedlibError, match="crowd_of: part: 'tests' is unknown; did you mean 'test'"):
        routing.crowd_of(trained, "tests")


def test_a_confusion_counted_by_hand():
    origin, sent = torch.tensor([0, 0, 0, 1, 1, 2]), torch.tensor([0, 2, 2, 1, 0, 2])
    assert routing.confusion(origin, sent, 3).tolist() == [[1, 0, 2], [1, 1, 0], [0, 0, 1]]
    assert routing.confusion(origin, sent, 4)[3].tolist() == [0] * 4


def test_the_diagonal_is_each_client_s_router_accuracy(trained: Run):
    table = routing.sendings(trained)
    history = trained.history().query("round == 6 and client >= 0").set_index(["metric", "client"])["value"]
    for router, rate in routing.rates(table).items():
        assert rate.sum(1) == pytest.approx(np.ones(3))
        assert np.diag(rate) == pytest.approx(history[f"router@pooled[{router}]"].sort_index().to_numpy())
    assert table.groupby("router")["queries"].sum().tolist() == [len(routing.crowd_of(trained).samples)] * 2
    sizes = np.array(trained.experiment.federation().sizes)
    assert table["size"][:3].tolist() == pytest.approx(list(sizes / sizes.sum()))


def test_rates_are_means_over_seeds_of_each_seed_s_rates():
    """Seed 0: 1 of 2 and 3 of 3 stay; seed 1: 8 of 8 and 0 of 1."""
    counts = {0: [[1, 1], [0, 3]], 1: [[8, 0], [1, 0]]}
    rows = [("r", seed, i, j, n[i][j]) for seed, n in counts.items() for i in (0, 1) for j in (0, 1)]
    table = pd.DataFrame(rows, columns=["router", "seed", "origin", "client", "queries"])
    assert routing.rates(table)["r"].tolist() == [[0.75, 0.25], [0.5, 0.5]]


def test_queries_by_the_number_of_properties_that_differ():
    """On the grid of eight each client has 1, 3, 3, 1 clients at distance 0, 1, 2, 3."""
    looks = [bit_grid(i) for i in range(8)]
    flat = routing.by_difference(np.full((8, 8), 1 / 8), looks)
    assert flat["queries"].tolist() == flat["chance"].tolist() == [12.5, 37.5, 37.5, 12.5]
    opposite = routing.by_difference(np.eye(8)[::-1], looks)
    assert opposite["queries"].tolist() == [0, 0, 0, 100]
    alike = routing.by_difference(np.eye(2), [Appearance(), Appearance()])
    assert alike.to_numpy().tolist() == [[0, 100, 100]]


def test_with_equal_sizes_both_routers_are_one_rule_and_else_the_posterior_favours_the_large(
    shared_project, trained: Run
):
    equal = tiny.experiment(FedDRM(), samples=240, partition={"name": "shards", "per_client": 2}, rounds=6)
    assert len(set(equal.federation().sizes)) == 1 and routing.differing(routing.crowd_of(run(equal))) == 0
    crowd = routing.crowd_of(trained)
    density, posterior = routing.routers(crowd).values()
    moved = density != posterior
    assert routing.differing(crowd) == int(moved.sum()) > 0
    assert (crowd.shares[posterior[moved]] > crowd.shares[density[moved]]).all()


def test_a_router_costs_one_evaluation_and_a_vote_as_many_as_its_models_differ_beyond_the_head(shared_project):
    experiments = [tiny.experiment(method) for method in (FedDRM(), FedAvgFT(ft_rounds=1), FedRep(), FedAvg())]
    table = routing.costs([run(experiment) for experiment in experiments])
    assert table["method"].tolist() == ["FedDRM", "FedAvgFT", "FedRep", "FedAvg"] and set(table["clients"]) == {3}
    assert table["own rule"].tolist() == [1, 3, 1, 1]
    assert table["vote, one model at a time"].tolist() == [3, 3, 3, 3]


def test_evaluations_are_counted_and_not_assumed(trained: Run):
    crowd = routing.crowd_of(trained)
    twice = routing.evaluations(crowd, lambda crowd: [routing.vote_apart(crowd), routing.vote_apart(crowd)])
    assert twice == 6 and routing.evaluations(crowd, lambda crowd: None) == 0


@pytest.mark.parametrize("method", [FedRep(), FedAvgFT(ft_rounds=1)])
def test_the_vote_of_models_one_at_a_time_is_the_vote(shared_project, method: Method):
    asked = run(tiny.experiment(method, rounds=5))
    together = method.route(routing.crowd_of(asked))["majority vote"].labels
    assert torch.equal(routing.vote_apart(routing.crowd_of(asked)).labels, together)


def test_soft_routing_is_the_paper_s_rule_for_one_client_and_the_mean_vote_for_all_alike(trained: Run):
    crowd = routing.crowd_of(trained)
    ratios, logits = routing.density_ratios(crowd), crowd.logits()
    for temperature in (0.3, 1.0, math.inf):
        assert torch.equal(routing.softly(ratios, logits, 1, temperature), routing.own_rule(crowd).labels)
    assert torch.equal(routing.softly(ratios, logits, 3, math.inf), mean_softmax(logits))
    assert torch.equal(routing.softly(ratios, logits, 3, 1e-4), routing.own_rule(crowd).labels)


@pytest.mark.parametrize(("k", "temperature"), [(2, 1.0), (3, 0.5), (4, 2.0), (2, math.inf)])
def test_soft_routing_is_the_loop_over_queries(k: int, temperature: float):
    ratios, logits = drawn()
    expected = []
    for n, row in enumerate(ratios.tolist()):
        best = sorted(range(4), key=lambda client: -row[client])[:k]
        weights = [math.exp(row[client] / temperature) for client in best]
        odds = [[math.exp(z) for z in logits[client, n].tolist()] for client in best]
        mean = [sum(w * o[c] / sum(o) for w, o in zip(weights, odds, strict=True)) for c in range(3)]
        expected.append(mean.index(max(mean)))
    got = routing.softly(ratios, logits, k, temperature)
    assert got.tolist() == expected
    assert torch.equal(routing.softly(ratios + 7.0, logits, k, temperature), got)  # only differences of ratios count
    assert not torch.equal(got, routing.softly(ratios, logits, 1))


def test_of_equal_ratios_the_lowest_client_comes_first():
    logits = torch.tensor([[[0.0, 1.0]], [[1.0, 0.0]], [[1.0, 0.0]]])
    assert routing.softly(torch.zeros(1, 3), logits, 1).tolist() == [1]
    assert routing.softly(torch.zeros(1, 3), logits, 3).tolist() == [0]


@pytest.mark.parametrize(
    ("k", "temperature", "message"),
    [(0, 1.0, "softly: k: 0 is out of range"), (5, 1.0, "at most 4"), (2, 0.0, "softly: temperature: 0.0 is out of")],
)
def test_soft_routing_refuses_what_it_cannot_do(k: int, temperature: float, message: str):
    with pytest.raises(FedlibError, match=message):
        routing.softly(*drawn(), k, temperature)


def test_a_soft_routing_table_has_the_paper_s_rule_at_one(trained: Run):
    table = routing.soft_routing([trained], [1, 2], [1.0, math.inf])
    assert len(table) == 8 and set(table["key"]) == {trained.key}
    history = trained.history().query("round == 6 and client == -1").set_index("metric")["value"]
    test = table.query("part == 'test' and k == 1")["accuracy"]
    assert test.tolist() == pytest.approx([100 * history["system@pooled"]] * 2)


def test_the_confidence_of_known_ratios():
    """Ratios log 1, log 2, log 5 give 5 / 8; m equal ones 1 / m."""
    ratios = torch.tensor([[0.0, math.log(2), math.log(5)], [3.0, 3.0, 3.0]])
    assert routing.confidence(ratios).tolist() == pytest.approx([5 / 8, 1 / 3])


SURE = torch.tensor([0.2, 0.4, 0.6, 0.9])
RIGHT = torch.tensor([False, False, True, True])
OTHER = torch.tensor([True, True, True, False])


def test_abstaining_by_hand():
    """The router is right on 2 of 4, the other on 3 of 4; at 0.5 the router keeps its two sure, right answers."""
    table = routing.deferred(SURE, RIGHT, OTHER, [0.0, 0.3, 0.5, 0.6, 1.0], extra=1).set_index("threshold")
    assert table["coverage"].tolist() == [100, 75, 50, 25, 0]
    assert table["accuracy"].tolist() == [50, 75, 100, 100, 75]
    assert table["answered"].tolist()[:4] == pytest.approx([50, 200 / 3, 100, 100]) and math.isnan(table["answered"][1])
    assert table["coin"].tolist() == [50, 56.25, 62.5, 68.75, 75]
    assert table["evaluations"].tolist() == [1, 1.25, 1.5, 1.75, 2]
    assert set(routing.deferred(SURE, RIGHT, OTHER, [0.3, 0.9], extra=0)["evaluations"]) == {1.0}
    with pytest.raises(FedlibError, match=r"threshold: 1.2 is out of range"):
        routing.deferred(SURE, RIGHT, OTHER, [1.2], extra=1)


def test_abstaining_goes_from_the_router_alone_to_the_other_alone(trained: Run, average: Run):
    table = routing.abstaining([trained], [average], [0.0, 0.5, 1.0]).query("part == 'test'")
    ends = table.set_index(["other", "threshold"])["accuracy"]
    drm, avg = (asked.history().query("round == 6 and client == -1") for asked in (trained, average))
    drm, avg = (rows.set_index("metric")["value"] for rows in (drm, avg))
    for other in ("FedAvg", routing.HEADS):
        assert ends[other, 0.0] == pytest.approx(100 * drm["system@pooled"])
    assert ends["FedAvg", 1.0] == pytest.approx(100 * avg["global@pooled"])
    crowd = routing.crowd_of(trained)
    mean = mean_softmax(crowd.logits()) == crowd.samples.labels
    assert ends[routing.HEADS, 1.0] == pytest.approx(100 * float(mean.double().mean()))
    assert not set(table.query("threshold == 0.5")["coverage"]) & {0, 100}


def test_abstaining_costs_what_a_loop_over_the_queries_counts(trained: Run, average: Run):
    crowd, other = routing.crowd_of(trained), routing.crowd_of(average)
    sure, passes = routing.confidence(routing.density_ratios(crowd)), []
    for network in (crowd.model, other.model):
        network.backbone.register_forward_hook(lambda *_: passes.append(1))
    with torch.no_grad():
        for image, one in zip(crowd.samples.images, sure, strict=True):
            crowd.model(image[None].float())
            if not one > 0.5:
                other.model(image[None].float())
    table = routing.abstaining([trained], [average], [0.5]).query("part == 'test' and other == 'FedAvg'")
    assert table["evaluations"].item() == pytest.approx(len(passes) / len(sure))


def test_runs_that_do_not_fit_together_are_refused(trained: Run, average: Run, shared_project):
    moved = run(tiny.experiment(FedAvg(), **SETTINGS | {"seed": 1}))
    with pytest.raises(FedlibError, match="abstaining: the two runs differ in seed: 0 and 1; give runs of one federat"):
        routing.abstaining([trained], [moved], [0.5])
    with pytest.raises(FedlibError, match="abstaining: FedRep has no whole global model; give a run of FedAvg"):
        routing.abstaining([trained], [run(tiny.experiment(FedRep(), **SETTINGS))], [0.5])
    with pytest.raises(FedlibError, match="routing: FedAvg trains no router; give a run of FedDRM"):
        routing.sendings(average)
    with pytest.raises(FedlibError, match="routing: FedAvg trains no router; give a run of FedDRM"):
        routing.soft_routing([average], [1], [1.0])


def test_settings_are_chosen_on_validation_whatever_the_test_says_and_the_first_of_equals():
    rows = [
        (0, "validation", 1, 50.0),
        (0, "validation", 2, 60.0),
        (0, "validation", 3, 60.0),
        (0, "test", 1, 99.0),
        (0, "test", 2, 10.0),
        (0, "test", 3, 98.0),
        (1, "validation", 1, 70.0),
        (1, "validation", 2, 60.0),
        (1, "validation", 3, 60.0),
        (1, "test", 1, 20.0),
        (1, "test", 2, 97.0),
        (1, "test", 3, 96.0),
    ]
    table = pd.DataFrame(rows, columns=["seed", "part", "k", "accuracy"])
    got = routing.chosen(table, ["k"])
    assert got["k"].to_dict() == {0: 2, 1: 1} and got["accuracy"].to_dict() == {0: 10.0, 1: 20.0}


def sent(counts: dict[int, list[list[int]]], sizes: list[float]) -> pd.DataFrame:
    """Two routers that send alike. counts: {seed: (m, m)}."""
    rows = [
        (rule, i, j, n[i][j], sizes[j], seed)
        for seed, n in counts.items()
        for rule in routing.ROUTERS
        for i in range(len(n))
        for j in range(len(n))
    ]
    return pd.DataFrame(rows, columns=["router", "origin", "client", "queries", "size", "seed"])


def test_the_picture_of_who_is_sent_where_shows_percent_looks_and_loads():
    table = sent({0: [[1, 1], [0, 2]], 1: [[8, 0], [0, 8]]}, [0.25, 0.75])
    density, posterior, loads = plots.sendings(table, [bit_grid(0), bit_grid(1)]).axes
    assert [text.get_text() for text in density.texts] == ["75", "25", "0", "100"]
    assert density.images[0].get_array().tolist() == [[0.75, 0.25], [0.0, 1.0]]
    assert [tick.get_text() for tick in density.get_yticklabels()] == ["0: γ 0.6", "1: γ 1.4"]
    assert (density.get_title(), posterior.get_title()) == routing.ROUTERS and not posterior.get_yticks().size
    dots = loads.collections[0].get_offsets().tolist()
    assert sorted(dots) == [[25, 25], [25, 50], [75, 50], [75, 75]]
    alike = plots.sendings(table, [Appearance(), Appearance()]).axes[0]
    assert [tick.get_text() for tick in alike.get_yticklabels()] == ["0", "1"]


def test_the_picture_of_soft_routing_shows_gains_and_abstaining_against_coverage():
    soft = pd.DataFrame(
        [(seed, k, 50 + 10 * seed + gain[k - 1]) for seed, gain in ((0, [0, 1]), (1, [0, 3])) for k in (1, 2)],
        columns=["seed", "k", "accuracy"],
    ).assign(weights="density ratios", key=lambda rows: rows["seed"].astype(str))
    tables = [
        routing.deferred(SURE, RIGHT, other, [0.0, 0.5, 1.0], extra).assign(other=name, seed=seed)
        for name, other, extra in (("FedAvg", OTHER, 1), (routing.HEADS, RIGHT, 0))
        for seed in (0, 1)
    ]
    left, middle, right = plots.soft_routing(soft, pd.concat(tables)).axes
    assert left.containers[0][0].get_xydata().tolist() == [[1, 0], [2, 2]]
    *seeds, mean = middle.lines
    assert len(seeds) == 2 and sorted(map(tuple, mean.get_xydata().tolist())) == [(50, 100), (100, 50)]
    labelled = {line.get_label(): line.get_xydata().tolist() for line in right.lines[:8]}
    assert labelled["the rest to FedAvg"] == [[100, 0], [50, 50], [0, 25]]
    assert labelled["the rest to mean of all heads"] == [[100, 0], [50, 0], [0, 0]]
    coins = [line.get_ydata().tolist() for line in right.lines if line.get_linestyle() == "--"]
    assert coins == [[0, 12.5, 25], [0, 0, 0]]
