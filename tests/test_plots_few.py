"""The figures of FedFew's ablations draw what they are given: read back from the axes."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import PathCollection
from matplotlib.colors import to_rgb
from matplotlib.container import BarContainer, ErrorbarContainer

from fedlib import plots
from fedlib.checks import FedlibError
from fedlib.plots.few import FLOOR

PANELS = ["served", "adapted"]


def numbers(x, settings):
    """Two panels, two lines; seeds 0 and 1 stand 1 below and above: 10 a panel, 2 a line, 1 a setting."""
    rows = [
        (panel, line, value, seed, 10 * p + 2 * i + place + 2 * seed - 1)
        for p, panel in enumerate(PANELS)
        for i, line in enumerate(["plain", "normalised"])
        for place, value in enumerate(settings)
        for seed in (0, 1)
    ]
    return pd.DataFrame(rows, columns=["panel", "line", x, "seed", "value"])


REFERENCES = pd.DataFrame(
    [("served", "FedAvg", 0, 3.0), ("served", "FedAvg", 1, 5.0), ("adapted", "FedAvg + FT", 0, 8.0)],
    columns=["panel", "line", "seed", "value"],
)
OBJECTIVES = pd.DataFrame(
    [
        (step, K, t, seed, 1.0 / t + 0.1 * K + seed + 3 * (step == "normalised"))
        for step in ("plain", "normalised")
        for K in (1, 2)
        for t in (4, 2)
        for seed in (0, 1)
    ],
    columns=["step", "K", "round", "seed", "value"],
)
MASSES = pd.DataFrame(
    [("plain", 1, seed, 1.0) for seed in (0, 1)]
    + [("plain", 2, 0, 0.2), ("plain", 2, 0, 0.8), ("plain", 2, 1, 1.0), ("plain", 2, 1, 1e-9)]
    + [("normalised", 2, seed, c) for seed in (0, 1) for c in (0.5, 0.5)],
    columns=["step", "K", "seed", "value"],
)
PUBLISHED = pd.DataFrame(
    [("adapted", 1, 91.3), ("adapted", 2, np.nan), ("adapted", 7, 90.0)], columns=["panel", "K", "value"]
)


def means(axes):
    return [c[0].get_ydata().tolist() for c in axes.containers if isinstance(c, ErrorbarContainer)]


def level(axes):
    """{label: height} of the references: of all lines, those that span the panel."""
    return {line.get_label(): line.get_ydata()[0] for line in axes.lines if list(line.get_xdata()) == [0, 1]}


def curves(axes):
    """{label: points} of the lines that are no reference."""
    return {line.get_label(): line.get_xydata().tolist() for line in axes.lines if line.get_linestyle() == "-"}


def shown(axes):
    return [tick.get_text() for tick in axes.get_xticklabels()]


def hollow(axes):
    dots = [c for c in axes.collections if isinstance(c, PathCollection)]
    return [c.get_offsets().tolist() for c in dots if not len(c.get_facecolors())]


@pytest.fixture(scope="module")
def by_models():
    return plots.models_study(numbers("K", [1, 2]), REFERENCES, OBJECTIVES, MASSES, PUBLISHED).axes


def test_numbers_stand_in_their_panel_with_their_references(by_models):
    served, adapted, *_ = by_models
    assert [served.get_title(), adapted.get_title()] == PANELS
    assert means(served) == [[0, 1], [2, 3]] and means(adapted) == [[10, 11], [12, 13]]
    assert level(served) == {"FedAvg": 4.0} and level(adapted) == {"FedAvg + FT": 8.0}
    assert shown(served) == ["1", "2"] and served.get_xlabel() == "K"
    named = [text.get_text() for text in served.figure.legends[0].get_texts()]
    assert sorted(named) == sorted(
        ["plain", "normalised", "FedAvg", "FedAvg + FT", "K = 1", "K = 2", "1/K", "dead model", "paper"]
    )


def test_known_published_numbers_are_hollow_and_left_of_the_lines(by_models):
    served, adapted, *_ = by_models
    assert hollow(served) == []
    ((cell,),) = hollow(adapted)
    assert cell[1] == 91.3 and -0.5 < cell[0] < -0.2


def test_objectives_by_round_a_panel_a_step(by_models):
    plain = by_models[2]
    assert plain.get_title() == "objective, plain step"
    found = curves(plain)
    assert list(found) == ["K = 1", "K = 2"]
    np.testing.assert_allclose(found["K = 1"], [[2, 0.5 + 0.1 + 0.5], [4, 0.25 + 0.1 + 0.5]])
    np.testing.assert_allclose(found["K = 2"], [[2, 0.5 + 0.2 + 0.5], [4, 0.25 + 0.2 + 0.5]])
    assert by_models[3].get_title() == "objective, normalised step"
    assert by_models[3].get_ylim() == plain.get_ylim()


def test_masses_are_sorted_in_each_seed_and_dead_models_are_marked(by_models):
    plain, normalised = by_models[4], by_models[5]
    bars = [[bar.get_height() for bar in c] for c in plain.containers if isinstance(c, BarContainer)]
    np.testing.assert_allclose(np.concatenate(bars), [1.0, 0.9, 0.1], atol=1e-8)
    crosses = [c for c in plain.collections if c.get_label() == "dead model"]
    ((x, _),) = crosses[0].get_offsets().tolist()
    last = [c for c in plain.containers if isinstance(c, BarContainer)][1][1]
    assert len(crosses) == 1 and x == pytest.approx(last.get_x() + last.get_width() / 2)
    assert not [c for c in normalised.collections if c.get_label() == "dead model"]
    assert [line.get_ydata()[0] for line in plain.lines] == [1.0, 0.5]  # 1 / K
    assert shown(plain) == ["1", "2"] and shown(normalised) == ["2"]


def test_a_colour_is_of_one_k_in_curves_and_bars(by_models):
    curve = next(line for line in by_models[2].lines if line.get_label() == "K = 2")
    bar = [c for c in by_models[4].containers if isinstance(c, BarContainer)][1][0]
    assert to_rgb(curve.get_color()) == pytest.approx(to_rgb(bar.get_facecolor()))


def test_smoothings_stand_at_equal_distances_and_clients_below():
    clients = pd.DataFrame(
        [("raw", 0.5, 2.0, 100), ("raw", 1e-20, 0.1, 300), ("share", 0.25, 1.0, 50)],
        columns=["line", "outer", "loss", "n"],
    )
    figure = plots.smoothing_study(numbers("smoothing", [0.01, 5.0]), REFERENCES, clients)
    served, _, by_loss, by_size = figure.axes
    assert shown(served) == ["0.01", "5"] and np.allclose(served.get_xticks(), [0, 1])
    assert {c.get_label(): c.get_offsets().tolist() for c in by_loss.collections} == {
        "raw": [[2.0, 0.5], [0.1, FLOOR]],
        "share": [[1.0, 0.25]],
    }
    assert [c.get_offsets()[:, 0].tolist() for c in by_size.collections] == [[100, 300], [50]]
    assert by_loss.get_yscale() == "log"


def test_epochs_are_rounds_times_e():
    rows = [("served", E, t, seed, 10 * E + t) for E in (1, 4) for t in (4 // E, 8 // E) for seed in (0, 1)]
    table = pd.DataFrame(rows, columns=["panel", "E", "round", "seed", "value"])
    both = pd.concat([table, table.assign(panel="adapted", value=table["value"] + 50)])
    figure = plots.epochs_study(both, numbers("E", [1, 4]), REFERENCES)
    by_round, adapted, by_epoch, _, last, _ = figure.axes
    assert curves(by_round) == {"E = 1": [[4, 14], [8, 18]], "E = 4": [[1, 41], [2, 42]]}
    assert curves(adapted)["E = 4"] == [[1, 91], [2, 92]]
    assert curves(by_epoch) == {"E = 1": [[4, 14], [8, 18]], "E = 4": [[4, 41], [8, 42]]}
    assert by_round.get_xscale() == "log" and by_epoch.get_xscale() == "linear"
    assert means(last) == [[0, 1], [2, 3]] and level(last) == {"FedAvg": 4.0}


def test_wrong_tables_are_refused():
    table = numbers("K", [1, 2])
    with pytest.raises(FedlibError, match=r"models_study: numbers: the table has no column 'line'"):
        plots.models_study(table.drop(columns="line"), REFERENCES, OBJECTIVES, MASSES)
    with pytest.raises(FedlibError, match="two rows have panel served, line plain, K 1, seed 0"):
        plots.models_study(pd.concat([table, table]), REFERENCES, OBJECTIVES, MASSES)
    with pytest.raises(FedlibError, match="two rows have step plain, K 1, round 4, seed 0"):
        plots.models_study(table, REFERENCES, pd.concat([OBJECTIVES, OBJECTIVES]), MASSES)
    with pytest.raises(FedlibError, match="K = 2 has a seed with another number of values"):
        plots.models_study(table, REFERENCES, OBJECTIVES, MASSES[:-1])
    with pytest.raises(FedlibError, match="1 panels of numbers"):
        plots.models_study(table[table["panel"] == "served"], REFERENCES, OBJECTIVES, MASSES)
    one = pd.DataFrame([("raw", 0.5, 2.0, 100)], columns=["line", "outer", "loss", "n"])
    for clients, problem in ((one[:0], "clients: the table is empty"), (one, r"lines \['raw'\]; give two")):
        with pytest.raises(FedlibError, match=problem):
            plots.smoothing_study(numbers("smoothing", [0.1, 1.0]), REFERENCES, clients)
