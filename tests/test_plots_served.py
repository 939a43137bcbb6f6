"""The figures of clients and the models that serve them draw what they are given: read back from the axes."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import PathCollection

from fedlib import plots
from fedlib.checks import FedlibError
from fedlib.plots.served import AREA

VARIANTS = {"K = 2": ["FedFew, independent", "IFCA, same, as released"], "K = 3": ["FedFew, independent"]}
MODELS = {"K = 2": [[1, 2, 1], [2, 2, 1]], "K = 3": [[3, 1, 2], [3, 2, 1]]}  # by round (2, 4) and client


def chosen():
    """Clients 0 and 2 are one group, client 1 the other."""
    rows = [
        (row, variant, t, client, (0, 1, 0)[client], k)
        for row, variants in VARIANTS.items()
        for variant in variants
        for t, models in zip((2, 4), MODELS[row], strict=True)
        for client, k in enumerate(models)
    ]
    return pd.DataFrame(rows, columns=["row", "variant", "round", "client", "group", "k"])


def by_round(values):
    """values: {(panel, variant): at rounds 2 and 4}; seeds stand 0.1 below and above; the last round comes first."""
    rows = [
        (panel, variant, t, seed, value + 0.2 * seed - 0.1)
        for (panel, variant), both in values.items()
        for t, value in reversed(list(zip((2, 4), both, strict=True)))
        for seed in (0, 1)
    ]
    return pd.DataFrame(rows, columns=["panel", "variant", "round", "seed", "value"])


CURVES = by_round(
    {
        ("NMI", "FedFew, independent"): (0.3, 0.9),
        ("NMI", "IFCA, same, as released"): (0.2, 0.4),
        ("weights", "FedFew, independent"): (0.5, 0.7),
    }
)
CHANCE = by_round({("NMI", "FedFew, independent"): (0.25, 0.35)})


@pytest.fixture(scope="module")
def choices():
    return plots.model_choices(chosen(), CURVES, CHANCE, {"weights": 0.6}).axes


def lines(axes, style):
    drawn = [line for line in axes.lines if line.get_linestyle() == style]
    return {line.get_label(): np.round(line.get_ydata(), 6).tolist() for line in drawn}


def test_a_panel_a_variant_with_clients_in_the_order_of_their_groups(choices):
    two, released, three, *_ = choices
    assert [axes.get_title() for axes in choices[:3]] == [
        "K = 2\nFedFew\nindependent",
        "K = 2\nIFCA\nsame, as released",
        "K = 3\nFedFew\nindependent",
    ]
    assert [tick.get_text() for tick in two.get_yticklabels()] == ["0", "2", "1"]
    assert [tick.get_text() for tick in two.get_xticklabels()] == ["2", "4"]
    np.testing.assert_array_equal(two.images[0].get_array(), [[1, 2], [1, 1], [2, 2]])
    np.testing.assert_array_equal(three.images[0].get_array(), [[3, 3], [2, 1], [1, 2]])
    numbers = {tuple(text.get_position()): text.get_text() for text in three.texts}
    assert numbers == {(0, 0): "3", (1, 0): "3", (0, 1): "2", (1, 1): "1", (0, 2): "1", (1, 2): "2"}
    assert [line.get_ydata()[0] for line in released.lines] == [1.5]  # between the groups


def test_a_model_has_one_colour_in_all_panels(choices):
    two, _, three, *_ = choices
    rgba = [axes.images[0].to_rgba(axes.images[0].get_array()) for axes in (two, three)]
    np.testing.assert_array_equal(rgba[0][0, 1], rgba[1][1, 0])  # model 2
    assert not np.array_equal(rgba[0][0, 0], rgba[0][0, 1])


def test_means_are_solid_chance_is_dotted_in_the_same_colour_and_levels_dashed(choices):
    agreement, weights = choices[3:]
    assert [agreement.get_title(), weights.get_title()] == ["NMI", "weights"]
    solid = {"FedFew, independent": [0.3, 0.9], "IFCA, same, as released": [0.2, 0.4]}
    assert list(lines(agreement, "-").items()) == list(solid.items())  # in the order of the table
    assert list(lines(agreement, ":").values()) == [[0.25, 0.35]]
    colour = {line.get_linestyle(): line.get_color() for line in agreement.lines if line.get_ydata()[0] < 0.31}
    solid = next(line for line in agreement.lines if line.get_label() == "FedFew, independent")
    assert solid.get_color() == colour[":"]
    assert lines(agreement, "--") == {} and lines(weights, "--") == {"level 0.6": [0.6, 0.6]}


def test_of_many_rounds_a_few_are_shown_from_the_first_to_the_last():
    long = pd.concat([chosen().query("round == 2").assign(round=t) for t in range(10, 210, 10)])
    ticks = plots.model_choices(long, CURVES, CHANCE).axes[0].get_xticklabels()
    shown = [int(tick.get_text()) for tick in ticks]
    assert (shown[0], shown[-1], len(shown)) == (10, 200, 8) and set(np.diff(shown)) == {20, 30}


def test_wrong_tables_of_choices_are_refused():
    with pytest.raises(FedlibError, match="chosen has several runs of FedFew, independent; give one seed's"):
        plots.model_choices(pd.concat([chosen(), chosen()]), CURVES, CHANCE)
    with pytest.raises(FedlibError, match="curves have 1 panels, which stand in twos"):
        plots.model_choices(chosen(), CURVES[CURVES["panel"] == "NMI"], CHANCE)
    with pytest.raises(FedlibError, match="model_choices: chance: the table has no column 'value'"):
        plots.model_choices(chosen(), CURVES, CHANCE.drop(columns="value"))


def clients():
    rows = [
        ("kvasir", tested, method, seed, i, n, 10.0 * m + 50 * later + i + 2 * seed)
        for later, tested in enumerate(["stands", "tuned"])
        for m, method in enumerate(["LocalOnly", "FedFew"])
        for seed in (0, 1)
        for i, n in enumerate([100, 50, 200])
    ]
    return pd.DataFrame(rows, columns=["setting", "tested", "method", "seed", "client", "n", "value"])


PUBLISHED = pd.DataFrame(
    [
        ("kvasir", "tuned", "FedFew", 92.84, 83.9, 99.77),
        ("kvasir", "tuned", "LocalOnly", np.nan, 42.4, np.nan),
        ("other", "stands", "FedFew", 1.0, 0.0, 2.0),
        ("kvasir", "stands", "IFCA", 1.0, 0.0, 2.0),
    ],
    columns=["setting", "tested", "method", "average", "min", "max"],
)


def dots(axes):
    return [c for c in axes.collections if isinstance(c, PathCollection) and len(c.get_offsets())]


def test_a_dot_a_client_with_the_area_of_its_samples():
    stands, tuned = plots.client_spread(clients()).axes
    assert [stands.get_title(), tuned.get_title()] == ["kvasir, stands", "kvasir, tuned"]
    assert [tick.get_text() for tick in stands.get_yticklabels()] == ["LocalOnly", "FedFew"]
    drawn = dots(tuned)
    assert len(drawn) == 4  # methods and seeds
    first = drawn[3]  # FedFew, seed 1, the largest client below the others
    np.testing.assert_allclose(first.get_offsets()[:, 0], [64, 62, 63])
    np.testing.assert_allclose(first.get_sizes(), AREA[0] + AREA[1] * np.array([1, 0.5, 0.25]))
    heights = {round(float(y), 3) for c in drawn for y in c.get_offsets()[:, 1]}
    assert len(heights) == 4 and all(abs(y - round(y)) < 0.36 for y in heights)


def test_the_bar_is_the_mean_over_clients_and_seeds_and_the_legend_says_sizes():
    figure = plots.client_spread(clients())
    stands = figure.axes[0]
    assert [line.get_xdata()[0] for line in stands.lines] == [2.0, 12.0]
    texts = [text.get_text() for text in figure.legends[0].get_texts()]
    assert texts == ["average", "$n_i$ = 50", "$n_i$ = 100", "$n_i$ = 200"]


def test_known_published_averages_are_diamonds_with_their_range():
    stands, tuned = plots.client_spread(clients(), PUBLISHED).axes
    assert len(dots(stands)) == 4 and len(dots(tuned)) == 5
    np.testing.assert_allclose(dots(tuned)[-1].get_offsets(), [[92.84, 1]])
    assert tuned.lines[-1].get_xdata().tolist() == [83.9, 99.77]


def test_a_client_that_stands_there_twice_is_refused():
    with pytest.raises(FedlibError, match="two rows have setting kvasir, tested stands, method LocalOnly, seed 0"):
        plots.client_spread(pd.concat([clients(), clients()]))
    with pytest.raises(FedlibError, match="client_spread: the table is empty"):
        plots.client_spread(clients()[:0])
