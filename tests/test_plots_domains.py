"""The figures of domain skew draw what they are given: read back from the axes."""

from __future__ import annotations

import math

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.container import BarContainer
from matplotlib.figure import Figure

from fedlib import plots
from fedlib.analysis import spectrum
from fedlib.checks import FedlibError
from fedlib.style import colours

T_975 = 4.302653  # Student's t, two degrees of freedom
NAN = math.nan


def legend(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def dots(axes: Axes, place: int = -1) -> list[list[float]]:
    return axes.collections[place].get_offsets().tolist()


BARS = pd.DataFrame(
    [
        ("PACS", "FedAvg", "photo", 60.0, 55.0, 66.0, 60.98),
        ("PACS", "F²DC", "photo", 70.0, 69.0, 72.0, 75.15),
        ("PACS", "F²DC", "sketch", 80.0, NAN, NAN, NAN),
        ("PACS", "FedAvg", "sketch", NAN, NAN, NAN, 77.46),
        ("Digits", "FedAvg", "usps", 90.0, 89.0, 91.0, NAN),
    ],
    columns=["setting", "method", "domain", "mean", "low", "high", "paper"],
)


def test_bars_stand_at_their_domain_with_their_interval_and_the_papers_number():
    figure = plots.domain_bars(BARS)
    pacs, digits = figure.axes
    assert [axes.get_title() for axes in figure.axes] == ["PACS", "Digits"]
    bars = sorted((bar.get_x() + bar.get_width() / 2, bar.get_height()) for bar in pacs.patches)
    assert [height for _, height in bars] == [60, 70, 80]  # FedAvg has none in sketch
    assert [x for x, _ in bars] == pytest.approx([-0.21, 0.21, 1.21])
    containers = [found for found in pacs.containers if isinstance(found, BarContainer)]
    whiskers = [segment for found in containers for segment in found.errorbar[2][0].get_segments() if len(segment)]
    assert [segment[:, 1].tolist() for segment in whiskers] == [[55, 66], [69, 72]]
    assert sorted(dots(pacs)) == [
        pytest.approx([-0.21, 60.98]),
        pytest.approx([0.21, 75.15]),
        pytest.approx([0.79, 77.46]),
    ]
    assert [tick.get_text() for tick in pacs.get_xticklabels()] == ["photo", "sketch"]
    assert [bar.get_height() for bar in digits.patches] == [90]
    assert legend(figure) == ["FedAvg", "F²DC", "paper"]


def test_all_panels_have_one_height_from_0_on():
    pacs, digits = plots.domain_bars(BARS).axes
    assert pacs.get_ylim() == digits.get_ylim()
    assert pacs.get_ylim()[0] == 0
    assert pacs.get_ylim()[1] >= 91


def test_a_method_keeps_its_colour_in_every_setting_and_no_paper_is_no_diamond():
    pacs, digits = plots.domain_bars(BARS).axes
    assert pacs.patches[0].get_facecolor() == digits.patches[0].get_facecolor() != pacs.patches[-1].get_facecolor()
    assert legend(plots.domain_bars(BARS.assign(paper=NAN))) == ["FedAvg", "F²DC"]


def spectra(values: dict[tuple[str, str], list[list[float]]]) -> pd.DataFrame:
    """{(method, domain): a spectrum a seed}."""
    rows = [
        (method, seed, domain, index, value)
        for (method, domain), seeds in values.items()
        for seed, line in enumerate(seeds)
        for index, value in enumerate(line, start=1)
    ]
    return pd.DataFrame(rows, columns=["method", "seed", "domain", "index", "value"])


def test_spectra_are_drawn_as_the_mean_of_logarithms_with_students_band():
    """log10 of 1, 10, 100 is 0, 1, 2: mean 1, interval t / sqrt(3). A line ends where a seed has no value above 0."""
    values = {
        ("FedAvg", "pooled"): [[1, 0.1, 0.1], [10, 0.1, 0], [100, 0.1, 0.1]],
        ("FedAvg", "photo"): [[1, 1, 1]] * 3,
        ("F²DC", "pooled"): [[1000, 100, 10]] * 3,
    }
    figure = plots.spectra(spectra(values).sample(frac=1, random_state=1).sort_values("method"))
    axes = {panel.get_title(): panel for panel in figure.axes}
    first, second = axes["pooled"].lines
    assert (first.get_xdata().tolist(), first.get_ydata().tolist()) == ([1, 2], pytest.approx([1, -1]))
    assert second.get_ydata().tolist() == pytest.approx([3, 2, 1])
    band = axes["pooled"].collections[0].get_paths()[0].vertices
    assert (band[:, 1].min(), band[:, 1].max()) == pytest.approx((-1, 1 + T_975 / math.sqrt(3)), abs=0.5)
    assert band[band[:, 0] == 1][:, 1].max() == pytest.approx(1 + T_975 / math.sqrt(3), rel=1e-6)
    assert [line.get_ydata().tolist() for line in axes["photo"].lines] == [[0, 0, 0]]
    assert legend(figure) == ["FedAvg", "F²DC"]
    assert {panel.get_ylim() for panel in figure.axes} == {(-1.5, 3.5)}
    assert figure.get_suptitle() == "mean and 95 % interval over 3 seeds"


def test_relative_spectra_begin_at_the_largest_and_cross_one_percent():
    figure = plots.spectra(spectra({("FedAvg", "pooled"): [[50, 5, 0.5]]}), relative=True)
    line, limit = figure.axes[0].lines
    assert line.get_ydata().tolist() == pytest.approx([0, -1, -2]) and list(limit.get_ydata()) == [-2, -2]
    assert figure.get_suptitle() == "one seed: no interval"


def test_the_spectra_of_the_analysis_are_drawn_as_they_come():
    z = np.random.default_rng(0).normal(size=(40, 3))
    table = spectrum.spectra(z, np.arange(40) % 2, ["photo", "sketch"]).assign(method="FedAvg", seed=0)
    figure = plots.spectra(table)
    assert [axes.get_title() for axes in figure.axes] == ["pooled", "photo", "sketch"]
    drawn = figure.axes[0].lines[0].get_ydata()
    assert drawn == pytest.approx(np.log10(spectrum.covariance_spectrum(z)))


PICTURE = pd.DataFrame(
    [
        ("FedAvg", 0.0, 0.0, "dog", "photo"),
        ("FedAvg", 2.0, 4.0, "dog", "sketch"),
        ("FedAvg", 5.0, 5.0, "horse", "photo"),
        ("F²DC", 1.0, 1.0, "horse", "sketch"),
    ],
    columns=["method", "x", "y", "class", "domain"],
)


def test_pictures_have_a_marker_a_domain_a_colour_a_class_and_stars_at_the_centres():
    figure = plots.embeddings(PICTURE, {"FedAvg": "kNN 0.5", "F²DC": "kNN 0.9"})
    first, second = figure.axes
    assert [axes.get_title() for axes in figure.axes] == ["FedAvg\nkNN 0.5", "F²DC\nkNN 0.9"]
    photo, sketch, centres = first.collections
    assert dots(first, 0) == [[0, 0], [5, 5]] and dots(first, 1) == [[2, 4]] and dots(first, 2) == [[1, 2], [5, 5]]
    dog, horse = colours(2)
    assert [to_rgb(shade) for shade in photo.get_facecolors()] == [dog, horse]
    assert [to_rgb(shade) for shade in centres.get_facecolors()] == [dog, horse]
    shapes = [drawn.get_paths()[0].vertices.tobytes() for drawn in (photo, sketch, centres)]
    assert len(set(shapes)) == 3
    assert to_rgb(second.collections[0].get_facecolors()[0]) == horse  # as in the first panel
    assert second.collections[0].get_paths()[0].vertices.tobytes() == shapes[1]
    assert legend(figure) == ["dog", "horse", "photo", "sketch", "centre of a class"]


def test_the_grid_of_cams_shows_image_cam_outline_and_score():
    images = np.random.default_rng(0).integers(0, 256, (2, 3, 4, 6), dtype=np.uint8)
    cams = {"FedAvg": np.linspace(0, 1, 48).reshape(2, 4, 6), "F²DC": np.zeros((2, 4, 6))}
    masks = np.zeros((2, 4, 6), dtype=bool)
    masks[:, 1:3, 1:4] = True
    scores = {"FedAvg": [0.25, 0.5], "F²DC": [NAN, 1.0]}
    figure = plots.cam_grid(images, cams, ["photo dog", "sketch dog"], scores, masks, note="energy inside")
    grid = figure.axes[:6]
    assert [axes.get_title() for axes in grid[:3]] == ["image", "FedAvg", "F²DC"]
    assert [grid[0].get_ylabel(), grid[3].get_ylabel()] == ["photo\ndog", "sketch\ndog"]
    assert np.allclose(grid[3].images[0].get_array(), images[1].transpose(1, 2, 0) / 255)
    grey = images[0].mean(axis=0) / 255
    assert np.allclose(grid[1].images[0].get_array(), 0.25 + 0.5 * grey)
    assert np.allclose(grid[4].images[1].get_array(), cams["FedAvg"][1])
    assert [axes.get_xlabel() for axes in grid] == ["", "0.25", "–", "", "0.50", "1.00"]
    outline = grid[0].collections[0].get_paths()[0].vertices
    assert (outline.min(0).tolist(), outline.max(0).tolist()) == ([0.5, 0.5], [3.5, 2.5])
    assert figure.get_suptitle() == "energy inside"


def test_a_cam_of_zero_leaves_the_grey_image_as_it_is():
    heat = plots.cam_grid(np.zeros((1, 3, 2, 2)), {"a": np.zeros((1, 2, 2))}, ["row"]).axes[1].images[1]
    assert heat.cmap(heat.norm(0.0))[3] == 0.0 and heat.cmap(heat.norm(1.0))[3] == pytest.approx(0.8)


def history() -> pd.DataFrame:
    rows = [
        (seed, method, setting, round, 10 * round + seed + (5 if setting == "Office" else 0))
        for setting in ("PACS", "Office")
        for method in ("FedAvg", "F²DC")
        for seed in (0, 1, 2)
        for round in (4, 2)
    ]
    return pd.DataFrame(rows, columns=["seed", "method", "setting", "round", "AVG (%)"])


def test_convergence_is_the_mean_over_seeds_with_its_band_a_panel_a_setting():
    figure = plots.convergence(history(), "round", "AVG (%)", "method", panel="setting")
    pacs, office = figure.axes
    assert [axes.get_title() for axes in figure.axes] == ["PACS", "Office"]
    assert [line.get_xydata().tolist() for line in pacs.lines] == [[[2, 21], [4, 41]]] * 2
    assert [line.get_ydata().tolist() for line in office.lines] == [[26, 46]] * 2
    band = pacs.collections[0].get_paths()[0].vertices[:, 1]
    assert (band.min(), band.max()) == pytest.approx((21 - T_975 / math.sqrt(3), 41 + T_975 / math.sqrt(3)), rel=1e-6)
    assert (pacs.get_xlabel(), pacs.get_ylabel(), legend(figure)) == ("round", "AVG (%)", ["FedAvg", "F²DC"])
    one = history()
    one = one[one["setting"] == "PACS"]
    assert len(plots.convergence(one, "round", "AVG (%)", "method").axes) == 1


def test_a_panel_that_is_not_asked_for_does_not_mix_two_runs_of_a_seed():
    with pytest.raises(FedlibError, match="over_seeds"):
        plots.convergence(history(), "round", "AVG (%)", "method")


def test_weights_group_clients_by_domain_and_show_uniform():
    table = pd.DataFrame(
        [(0, "photo", 0.1, 0.3), (1, "sketch", 0.5, 0.4), (2, "photo", 0.4, 0.3)],
        columns=["client", "domain", "n_k / N", "DaA"],
    ).melt(["client", "domain"], var_name="weighting", value_name="weight")
    figure = plots.weights(table.iloc[[1, 0, 2, 3, 4, 5]].sort_values("domain", kind="stable"))
    axes = figure.axes[0]
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["0", "2", "1"]
    places = dict(zip(["0", "2", "1"], axes.get_yticks(), strict=True))
    assert places["1"] - places["2"] > places["2"] - places["0"]  # a gap between domains
    drawn = {}
    for container in axes.containers:
        for bar in container:
            middle = bar.get_y() + bar.get_height() / 2
            client = min(places, key=lambda name: abs(places[name] - middle))
            drawn[container.get_label(), client] = bar.get_width()
    assert drawn == {(row.weighting, str(row.client)): row.weight for row in table.itertuples()}
    assert list(axes.lines[0].get_xdata()) == [1 / 3, 1 / 3]
    assert [text.get_text() for text in axes.texts] == ["photo", "sketch"]
    assert [text.xy[1] for text in axes.texts] == pytest.approx([(places["0"] + places["2"]) / 2, places["1"]])
    assert legend(figure) == ["n_k / N", "DaA"]


def test_sensitivity_has_a_panel_a_parameter_in_ascending_order():
    table = pd.DataFrame(
        [
            ("tau", 0.5, 60.0, 58.0, 63.0, NAN),
            ("tau", 0.06, 70.0, 69.0, 71.0, 76.47),
            ("tau", 0.1, NAN, NAN, NAN, 75.83),
            ("alpha", 1.0, 65.0, NAN, NAN, NAN),
        ],
        columns=["parameter", "value", "mean", "low", "high", "paper"],
    )
    figure = plots.sensitivity(table)
    tau, alpha = figure.axes
    assert [axes.get_xlabel() for axes in figure.axes] == ["τ", "α"]
    assert [tick.get_text() for tick in tau.get_xticklabels()] == ["0.06", "0.1", "0.5"]
    assert tau.containers[0][0].get_xydata().tolist() == [[0, 70], [2, 60]]
    ends = [segment[:, 1].tolist() for segment in tau.containers[0][2][0].get_segments()]
    assert ends == [[69, 71], [58, 63]]
    assert dots(tau) == [[0, 76.47], [1, 75.83]]
    assert alpha.containers[0][0].get_xydata().tolist() == [[0, 65]]
    assert legend(figure) == ["ours", "paper"]
    assert tau.get_ylabel() == "accuracy (%)" and not [line for line in tau.lines if line.get_linestyle() == "--"]


def test_sensitivity_of_differences_has_its_reference_in_every_panel():
    rows = [("tau", 0.02, -1.0, -3.0, 1.0, NAN), ("tau", 0.06, 0.0, 0.0, 0.0, 0.0), ("beta", 0.4, 0.0, 0.0, 0.0, NAN)]
    table = pd.DataFrame(rows, columns=["parameter", "value", "mean", "low", "high", "paper"])
    figure = plots.sensitivity(table, words="points", reference=0.0)
    assert figure.axes[0].get_ylabel() == "points"
    for axes in figure.axes:
        (line,) = [line for line in axes.lines if line.get_linestyle() == "--"]
        assert list(line.get_ydata()) == [0, 0]
    assert legend(figure) == ["ours", "paper"]


@pytest.mark.parametrize(("panels", "methods"), [(3, 2), (5, 10), (5, 20)])
def test_no_legend_covers_a_panel(panels: int, methods: int):
    table = spectra({(f"m{m}", f"d{d}"): [[2.0, 1.0]] for m in range(methods) for d in range(panels)})
    figure = plots.spectra(table)
    box = figure.legends[0].get_window_extent()
    assert len(figure.axes) == panels and len(legend(figure)) == methods
    assert not any(box.overlaps(axes.get_window_extent()) for axes in figure.axes)


def needs() -> list[tuple[str, tuple, str]]:
    """(plot, arguments, a column that the table now lacks)."""
    spectrum_table = spectra({("FedAvg", "pooled"): [[2, 1]]})
    shares = pd.DataFrame({"client": [0], "domain": ["a"], "weighting": ["w"], "weight": [1.0]})
    swept = pd.DataFrame({"parameter": ["tau"], "value": [1.0], "mean": [1.0], "low": [0.0], "high": [2.0]})
    return [
        ("domain_bars", (BARS.drop(columns="low"),), "low"),
        ("spectra", (spectrum_table.drop(columns="index"),), "index"),
        ("embeddings", (PICTURE.drop(columns="class"),), "class"),
        ("convergence", (history().drop(columns="seed"), "round", "AVG (%)", "method"), "seed"),
        ("convergence", (history(), "round", "AVG", "method"), "AVG"),
        ("weights", (shares.drop(columns="domain"),), "domain"),
        ("sensitivity", (swept,), "paper"),
    ]


@pytest.mark.parametrize(("plot", "arguments", "column"), needs())
def test_a_missing_column_is_named(plot: str, arguments: tuple, column: str):
    with pytest.raises(FedlibError, match=f"{plot}: the table has no column '{column}'; "):
        getattr(plots, plot)(*arguments)
    assert plt.get_fignums() == []


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: plots.domain_bars(BARS.iloc[:0]), "domain_bars: the table is empty"),
        (
            lambda: plots.domain_bars(pd.concat([BARS, BARS.iloc[1:2]])),
            "two rows have setting PACS, method F²DC, domain photo",
        ),
        (
            lambda: plots.embeddings(pd.concat([PICTURE.assign(domain=str(q)) for q in range(9)])),
            "embeddings: 9 domains; there are markers for 8",
        ),
        (
            lambda: plots.embeddings(PICTURE, {"FedAvg": "0.5"}),
            "embeddings: scores: method: 'F²DC' is unknown",
        ),
        (
            lambda: plots.cam_grid(np.zeros((2, 3, 4, 4)), {"a": np.zeros((1, 4, 4))}, ["x", "y"]),
            "cam_grid: a: 1 for 2 images",
        ),
        (
            lambda: plots.cam_grid(np.zeros((1, 3, 4, 4)), {"a": np.zeros((1, 4, 4))}, ["x"], {"b": [1.0]}),
            "cam_grid: scores: method: 'b' is unknown",
        ),
        (lambda: plots.cam_grid(np.zeros((1, 3, 4, 4)), {}, ["x"]), "1 images and 0 CAMs of each"),
    ],
)
def test_bad_input_is_named(make, message: str):
    with pytest.raises(FedlibError, match=message):
        make()


def test_the_legend_has_each_method_s_own_colour_where_a_panel_lacks_one():
    rows = [("one", "A", "p", 40.0), ("one", "B", "p", 50.0), ("two", "A", "p", 30.0)]
    table = pd.DataFrame(rows, columns=["setting", "method", "domain", "mean"])
    figure = plots.domain_bars(table.assign(low=table["mean"], high=table["mean"], paper=float("nan")))
    (legend,) = figure.legends
    drawn = [patch.get_facecolor() for patch in figure.axes[0].patches]
    assert [
        handle.patches[0].get_facecolor() if hasattr(handle, "patches") else handle.get_facecolor()
        for handle in legend.legend_handles
    ] == drawn
