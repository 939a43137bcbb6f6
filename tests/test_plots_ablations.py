"""What the ablations' figures draw is what they were given: read back from the axes."""

import math

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_rgba
from matplotlib.container import ErrorbarContainer

from fedlib import plots
from fedlib.checks import FedlibError
from fedlib.style import colours

T_975 = 4.302653  # Student's t, two degrees of freedom
A = {"method": "A", "metric": "system@pooled"}
B = {"method": "B", "metric": "global@pooled"}
BOTH = {"metric": "system@pooled"}


def rows(method, metric, values, x="clients"):
    """{setting: values by seed} as a table of last rounds."""
    flat = [(value, seed, number) for value, numbers in values.items() for seed, number in enumerate(numbers)]
    return pd.DataFrame(flat, columns=[x, "seed", "value"]).assign(method=method, metric=metric)


FINAL = pd.concat(
    [
        rows("A", "system@pooled", {32: [4.0, 6.0, 8.0], 8: [10.0, 20.0, 30.0]}),
        rows("B", "global@pooled", {8: [1.0, 1.0, 1.0], 32: [2.0, 2.0, 2.0]}),
        rows("A", "gain", {8: [9.0, 19.0, 29.0], 32: [2.0, 4.0, 6.0]}),
    ],
    ignore_index=True,
)
PANELS = {"system": {"routed": A, "one model": B}, "gain": {"routed": {"method": "A", "metric": "gain"}}}


def lines(axes):
    """(places, means) of each line, in order."""
    return [c[0].get_xydata().tolist() for c in axes.containers if isinstance(c, ErrorbarContainer)]


def test_settings_stand_in_order_at_equal_distances_and_lines_beside_each_other():
    system, gain = plots.ablation(FINAL, "clients", PANELS).axes
    assert [tick.get_text() for tick in system.get_xticklabels()] == ["8", "32"]
    routed, one = lines(system)
    assert [mean for _, mean in routed] == [20, 6] and [mean for _, mean in one] == [1, 2]
    (left, _), (right, _) = zip(*routed, strict=True), zip(*one, strict=True)
    np.testing.assert_allclose(np.add(left, right) / 2, [0, 1])
    assert (np.subtract(right, left) > 0).all() and np.allclose(np.subtract(right, left), right[0] - left[0])
    assert lines(gain) == [[[0, 19], [1, 4]]]


def test_intervals_and_seeds_are_drawn():
    system, _ = plots.ablation(FINAL, "clients", PANELS).axes
    _, _, (bars,) = system.containers[0]
    half = T_975 * 10 / math.sqrt(3)
    assert bars.get_segments()[0][:, 1].tolist() == pytest.approx([20 - half, 20 + half], rel=1e-6)
    dots = [collection.get_offsets()[:, 1].tolist() for collection in system.collections[1::2]]
    assert [sorted(values) for values in dots] == [[4, 6, 8, 10, 20, 30], [1, 1, 1, 2, 2, 2]]


def test_a_label_has_one_colour_and_stands_in_the_legend_once():
    figure = plots.ablation(FINAL, "clients", PANELS)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["routed", "one model"]
    first, second = (axes.containers[0][0].get_color() for axes in figure.axes)
    assert first == second == colours(2)[0]
    assert figure.get_suptitle() == "mean, 95 % interval, and each of 3 seeds as a dot"


def test_differences_are_in_points_about_a_line_at_zero():
    system, gain = plots.ablation(FINAL, "clients", PANELS).axes
    assert (system.get_ylabel(), gain.get_ylabel()) == ("accuracy (%)", "points")
    flat = [[line for line in axes.lines if list(line.get_ydata()) == [0, 0]] for axes in (system, gain)]
    assert [len(found) for found in flat] == [0, 1]


def test_names_keep_their_order_and_an_odd_panel_leaves_its_neighbour_empty():
    levels = rows("A", "system@pooled", {"none": [1.0], "low": [3.0], "high": [2.0]}, x="level")
    figure = plots.ablation(levels, "level", {f"panel {i}": {"A": A} for i in range(3)})
    assert [tick.get_text() for tick in figure.axes[0].get_xticklabels()] == ["none", "low", "high"]
    assert lines(figure.axes[2]) == [[[0, 1], [1, 3], [2, 2]]]
    assert [axes.get_visible() for axes in figure.axes] == [True, True, True, False]
    assert figure.get_suptitle() == "one seed: no interval"


def published(*cells):
    return pd.DataFrame(cells, columns=["panel", "label", "clients", "value"])


def markers(figure, label):
    """Places and values of the hollow markers under this label, all panels together."""
    found = [c for axes in figure.axes for c in axes.collections if c.get_label() == label]
    assert all(len(c.get_facecolors()) == 0 and c.get_edgecolors()[0].tolist() == list(to_rgba(".15")) for c in found)
    return [point for c in found for point in c.get_offsets().tolist()]


def test_published_numbers_are_hollow_markers_left_of_the_lines():
    nan = math.nan
    table = published(
        ("system", "paper", 32, 46.62), ("system", "paper", 16, 50.0), ("system", "paper", 8, nan), ("gain", "b", 8, 1)
    )
    figure = plots.ablation(FINAL, "clients", PANELS, table)
    ((place, value),) = markers(figure, "paper")  # 16 clients are not drawn, and the number for 8 is unknown
    assert value == 46.62 and 0.5 < place < min(p for p, _ in lines(figure.axes[0])[0][1:])
    assert [value for _, value in markers(figure, "b")] == [1]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["routed", "one model", "paper", "b"]
    nothing = plots.ablation(FINAL, "clients", PANELS, table[:0])
    assert [text.get_text() for text in nothing.legends[0].get_texts()] == ["routed", "one model"]


def test_what_does_not_fit_is_named():
    with pytest.raises(FedlibError, match="ablation: x: 'client' is unknown; did you mean 'clients'"):
        plots.ablation(FINAL, "client", PANELS)
    with pytest.raises(FedlibError, match="line 'A': column: 'metod' is unknown; did you mean 'method'"):
        plots.ablation(FINAL, "clients", {"system": {"A": {"metod": "A"}}})
    with pytest.raises(FedlibError, match="line 'A': metric: 'system@poled' is unknown; did you mean 'system@pooled'"):
        plots.ablation(FINAL, "clients", {"system": {"A": {"metric": "system@poled"}}})
    with pytest.raises(FedlibError, match="ablation: panel of published: 'sytem' is unknown; did you mean 'system'"):
        plots.ablation(FINAL, "clients", PANELS, published(("sytem", "paper", 8, 1.0)))
    with pytest.raises(FedlibError, match="ablation: published has 5 labels; give at most 4"):
        plots.ablation(FINAL, "clients", PANELS, published(*(("system", str(i), 8, 1.0) for i in range(5))))
    with pytest.raises(FedlibError, match=r"over_seeds: 2 rows have the same seed, 0; they differ in method"):
        plots.ablation(FINAL.replace({"metric": {"global@pooled": "system@pooled"}}), "clients", {"s": {"both": BOTH}})
    assert not plt.get_fignums()


PARAMETERS = pd.DataFrame({"trunk": [0, 900_000], "branches": [2_000_000, 100_000]}, index=["none", "deep"])
DEPTHS = pd.concat(
    [
        rows("A", "system@pooled", {"deep": [50.0, 52.0, 54.0], "none": [60.0, 61.0, 62.0]}, x="sharing"),
        rows("A", "personal@local", {"deep": [70.0, 70.0, 70.0], "none": [80.0, 80.0, 80.0]}, x="sharing"),
    ]
)
WORDS = {"system@pooled": "system accuracy", "personal@local": "average accuracy"}


def test_parameters_are_stacked_and_their_sum_is_written_out():
    bars, *_ = plots.costs(PARAMETERS, DEPTHS, "sharing", WORDS).axes
    assert [[(bar.get_x(), bar.get_width()) for bar in stack] for stack in bars.containers] == [
        [(0, 0), (0, 900_000)],
        [(0, 2_000_000), (900_000, 100_000)],
    ]
    assert [text.get_text() for text in bars.texts] == ["2,000,000", "1,000,000"]
    assert [tick.get_text() for tick in bars.get_yticklabels()] == ["none", "deep"]


def test_accuracies_stand_beside_their_network_and_the_band_about_its_mean():
    _, system, average = plots.costs(PARAMETERS, DEPTHS, "sharing", WORDS, band=("system@pooled", "deep", 2.0)).axes
    assert lines(system) == [[[61, 0], [52, 1]]] and lines(average) == [[[80, 0], [70, 1]]]
    assert system.get_ylim() == (1.5, -0.5) and system.get_xlabel() == "system accuracy (%)"
    (band,) = system.patches
    assert (band.get_x(), band.get_width()) == (50, 4) and band.get_label() == "deep ± 2 points"
    assert not average.patches
    half = T_975 * 2 / math.sqrt(3)
    assert system.containers[0][2][0].get_segments()[1][:, 0].tolist() == pytest.approx(
        [52 - half, 52 + half], rel=1e-6
    )


def test_a_wrong_band_or_metric_is_named():
    with pytest.raises(FedlibError, match="costs: band: sharing: 'depp' is unknown; did you mean 'deep'"):
        plots.costs(PARAMETERS, DEPTHS, "sharing", WORDS, band=("system@pooled", "depp", 2.0))
    with pytest.raises(FedlibError, match="costs: band: points: 0 is out of range"):
        plots.costs(PARAMETERS, DEPTHS, "sharing", WORDS, band=("system@pooled", "deep", 0))
    with pytest.raises(FedlibError, match="costs: band: 'system' is unknown; did you mean 'system@pooled'"):
        plots.costs(PARAMETERS, DEPTHS, "sharing", WORDS, band=("system", "deep", 2.0))
    with pytest.raises(FedlibError, match=r"costs: parameters: no row for \['deep'\]"):
        plots.costs(PARAMETERS[:1], DEPTHS, "sharing", WORDS)
