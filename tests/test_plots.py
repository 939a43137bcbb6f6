"""What is drawn is what was given: read back from the axes, not from pixels."""

import math

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.colors import to_rgb

from fedlib import claims, plots
from fedlib.analysis import density_ratio
from fedlib.checks import FedlibError
from fedlib.claims import Claim, Verdict
from fedlib.data.federation import Client, Federation, Samples
from fedlib.plots.forest import VERDICT_STYLE
from fedlib.style import colours

T_975 = 4.302653  # Student's t, two degrees of freedom


def federation(counts):
    """Clients of black 4x4 images; the first image of client i has the grey level i + 1. counts: (clients, classes)."""
    clients = []
    for index, row in enumerate(counts):
        labels = torch.repeat_interleave(torch.arange(len(row)), torch.tensor(row))
        images = torch.zeros(len(labels), 3, 4, 4, dtype=torch.uint8)
        images[0] = index + 1
        train = Samples(images, labels)
        clients.append(Client(index, train, Samples(images[:0], labels[:0]), Samples(images[:1], labels[:1])))
    return Federation("toy", tuple(clients), ("cat", "dog", "elk"), (3, 4, 4))


def final(values, metric="system@pooled", column="lam"):
    """{x: values by seed} as a table of last rounds."""
    rows = [(x, seed, value) for x, row in values.items() for seed, value in enumerate(row)]
    return pd.DataFrame(rows, columns=[column, "seed", "value"]).assign(
        metric=metric, moment="after_aggregation", key=[f"{x}/{seed}" for x, seed, _ in rows]
    )


def legend(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_nothing_is_left_behind():
    mine = plt.figure()
    before = mpl.rcParams.copy()
    plots.partition(federation([[1, 2, 3], [3, 0, 0]]))
    with pytest.raises(FedlibError):
        plots.verdicts([])
    assert plt.get_fignums() == [mine.number] and mpl.rcParams == before
    plt.close(mine)


def test_bubbles_have_the_area_of_their_counts():
    figure = plots.partition(federation([[1, 2, 3], [4, 0, 0]]))
    left, right = figure.axes
    bubbles = left.collections[0]
    assert bubbles.get_offsets().tolist() == [[0, 0], [1, 0], [2, 0], [0, 1]]
    assert (bubbles.get_sizes() / bubbles.get_sizes()[0]).tolist() == pytest.approx([1, 2, 3, 4])
    assert [bar.get_width() for bar in right.patches] == [6, 4]
    assert [text.get_text() for text in right.texts] == ["6", "4"]
    assert [tick.get_text() for tick in left.get_xticklabels()] == ["cat", "dog", "elk"]


def test_the_partitions_skew_is_in_its_title():
    """Disjoint clients are at distance 1, equal ones at 0."""
    assert "Hellinger 1.00, Jensen–Shannon 1.00" in plots.partition(federation([[5, 0, 0], [0, 5, 0]])).get_suptitle()
    assert "Hellinger 0.00, Jensen–Shannon 0.00" in plots.partition(federation([[5, 5, 0], [2, 2, 0]])).get_suptitle()


def test_the_contact_sheet_has_a_row_a_client_and_stays_white_where_images_lack():
    axes = plots.appearances(federation([[1, 0, 0], [1, 1, 1]]), per_client=2).axes[0]
    sheet = axes.images[0].get_array()
    assert sheet.shape == (9, 9, 3)
    assert (sheet[:4, :4] == 1).all() and (sheet[5:, :4] == 2).all()
    assert (sheet[:4, 5:] == 255).all() and (sheet[5:, 5:] == 0).all()
    with pytest.raises(FedlibError, match="appearances: per_client: 0 is out of range"):
        plots.appearances(federation([[1, 0, 0]]), per_client=0)


def history(values, method):
    rows = [(round, seed, v) for round, row in values.items() for seed, v in enumerate(row)]
    table = pd.DataFrame(rows, columns=["round", "seed", "value"])
    return table.assign(
        metric="system@pooled", client=-1, method=method, key=[f"{method}{seed}" for _, seed, _ in rows]
    )


def test_curves_draw_the_mean_and_students_band():
    table = pd.concat(
        [history({10: [0.4, 0.5, 0.6], 5: [0.1, 0.1, 0.1]}, "FedDRM"), history({5: [0.2], 10: [0.3]}, "FedRep")]
    )
    figure = plots.curves(table, ["system@pooled"], reference=(33.0, "chance"))
    axes = figure.axes[0]
    assert [line.get_xydata().tolist() for line in axes.lines[:2]] == [[[5, 10], [10, 50]], [[5, 20], [10, 30]]]
    half = T_975 * 10 / math.sqrt(3)
    band = axes.collections[0].get_paths()[0].vertices
    assert [band[band[:, 0] == 10][:, 1].min(), band[:, 1].max()] == pytest.approx([50 - half, 50 + half], rel=1e-6)
    assert legend(figure) == ["FedDRM", "FedRep"] and axes.get_ylabel() == "system@pooled (%)"
    assert axes.lines[2].get_ydata() == [33, 33] and [text.get_text() for text in axes.texts] == ["chance"]
    assert figure.get_suptitle() == "mean and 95 % interval over 1 to 3 seeds"


def test_curves_of_other_numbers_keep_their_scale_and_numbers_are_hues_in_order():
    table = pd.concat([history({1: [2.0]}, "b").assign(lam=0.8), history({1: [1.0]}, "a").assign(lam=0.1)])
    figure = plots.curves(table.assign(metric="drift_ratio[backbone]"), ["drift_ratio[backbone]"], hue="lam")
    assert [line.get_ydata().tolist() for line in figure.axes[0].lines] == [[1.0], [2.0]]
    assert legend(figure) == ["0.1", "0.8"] and figure.axes[0].get_ylabel() == "drift_ratio[backbone]"
    assert figure.get_suptitle() == "one seed: no interval"


def test_an_unknown_metric_or_column_is_named():
    table = history({1: [2.0]}, "FedDRM")
    with pytest.raises(FedlibError, match="curves: metric: 'system@poled' is unknown; did you mean 'system@pooled'"):
        plots.curves(table, ["system@poled"])
    with pytest.raises(FedlibError, match="over_seeds: by: 'methd' is unknown; did you mean 'method'"):
        plots.curves(table, ["system@pooled"], hue="methd")
    with pytest.raises(FedlibError, match="sweep: x: 'lamda' is unknown; did you mean 'lam'"):
        plots.sweep(final({0.1: [1.0]}), "lamda", ["system@pooled"])


def test_a_sweep_draws_means_intervals_and_every_seed():
    values = {0.8: [3.0, 4.0, 5.0], 0.1: [1.0, 2.0, 3.0]}
    figure = plots.sweep(final(values), "lam", ["system@pooled"], marks={"paper: 0.8": 0.8})
    axes = figure.axes[0]
    mean, _, (bars,) = axes.containers[0]
    assert mean.get_xydata().tolist() == [[0.1, 2.0], [0.8, 4.0]]
    half = T_975 / math.sqrt(3)
    assert bars.get_segments()[0].ravel().tolist() == pytest.approx([0.1, 2 - half, 0.1, 2 + half], rel=1e-6)
    dots = axes.collections[-1].get_offsets().tolist()
    assert sorted(dots) == [[0.1, 1], [0.1, 2], [0.1, 3], [0.8, 3], [0.8, 4], [0.8, 5]]
    assert [text.get_text() for text in axes.texts] == ["paper: 0.8"] and [0.8, 0.8] in [
        list(x.get_xdata()) for x in axes.lines
    ]


def test_a_sweep_over_names_keeps_their_order_and_may_share_one_panel():
    levels = {"low": [1.0], "mid": [3.0], "high": [2.0]}
    table = pd.concat([final(levels, column="level"), final(levels, metric="router@pooled", column="level")])
    table = pd.concat([table, final({None: [9.0]}, column="level")])
    figure = plots.sweep(table, "level", ["system@pooled", "router@pooled"], together=True)
    (axes,) = figure.axes
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["low", "mid", "high"]
    assert [bar[0].get_ydata().tolist() for bar in axes.containers] == [[1, 3, 2], [1, 3, 2]]
    assert legend(figure) == ["system@pooled", "router@pooled"] and axes.get_ylabel() == "accuracy (%)"


def beside(*rows):
    columns = ["setting", "method", "metric", "paper", "ours", "low", "high", "n"]
    return pd.DataFrame(rows, columns=columns).astype({c: float for c in columns[3:]})


def test_the_papers_number_stands_beside_ours_and_a_blank_stays_blank():
    nan = math.nan
    figure = plots.comparison(
        beside(
            ("c10", "FedRep", "system", nan, 40, 38, 42, 3),
            ("c10", "FedDRM", "system", 62.78, 50, nan, nan, 1),
            ("c10", "FedAS", "system", nan, nan, nan, nan, nan),
            ("c10", "FedDRM", "average", 80.26, nan, nan, nan, nan),
            ("c100", "FedDRM", "system", nan, 30, 29, 31, 3),
            ("c20", "FedDRM", "system", nan, nan, nan, nan, nan),
        )
    )
    shown = [axes for axes in figure.axes if axes.get_visible()]
    assert [(axes.get_title(), axes.get_xlabel()) for axes in shown] == [
        ("c10", "system accuracy (%)"),
        ("c10", "average accuracy (%)"),
        ("c100", "system accuracy (%)"),
    ]
    dots, _, (bars,) = shown[0].containers[0]
    assert dots.get_xydata().tolist() == [[40, 0], [50, 1]]
    assert bars.get_segments()[0].tolist() == [[38, 0], [42, 0]]
    diamonds = np.ma.compress_rows(shown[0].collections[-1].get_offsets())
    assert diamonds.tolist() == [[62.78, 1]]
    assert [tick.get_text() for tick in shown[0].get_yticklabels()] == ["FedRep", "FedDRM", "FedAS"]
    assert shown[0].get_ylim() == (2.5, -0.5)


def test_a_comparison_of_nothing_is_refused():
    with pytest.raises(FedlibError, match="comparison: neither the paper's numbers nor ours are known"):
        plots.comparison(beside(("c10", "FedRep", "system", *[math.nan] * 5)))


def test_the_forest_shows_each_effect_against_its_threshold():
    points = claims.paired(Claim("A1", "routing beats the vote"), [1.0, 2.0, 3.0])
    few = claims.paired(Claim("A2", "with λ it falls", 2.0), [1.0])
    both = claims.all_of(Claim("A3", "both"), [points, few])
    passes = claims.exact(Claim("A10", "the vote costs more than seven passes", 7, "passes"), 6)
    upper, lower = plots.verdicts([points, few, both, passes]).axes
    assert (upper.get_xlabel(), lower.get_xlabel()) == ("effect (points)", "effect (passes)")
    assert [segment.get_segments()[0][:, 0].tolist() for segment in upper.collections] == [[0, 0], [2, 2], [0, 0]]
    intervals, dots = upper.lines[::2], upper.lines[1::2]
    assert list(intervals[0].get_xdata()) == [points.low, points.high]
    assert [dot.get_xdata()[0] for dot in dots[:2]] == [2, 1]
    assert np.isnan(intervals[1].get_xdata()).all() and np.isnan(dots[2].get_xdata()).all()
    assert [dot.get_color() for dot in dots] == [VERDICT_STYLE[v.verdict][0] for v in (points, few, both)]
    assert upper.get_yticklabels()[0].get_text() == "A1  routing beats the vote"
    assert [text.get_text() for text in upper.texts] == [
        "undecided  +2 [-0.484, +4.48], n = 3",
        "undecided  +1, n = 1\nn = 1 < 3",
        "undecided, n = 1\nA1 undecided; A2 undecided",
    ]
    assert [text.get_text() for text in lower.texts] == ["fails  +6, n = 1\nexact"]


def test_long_statements_are_wrapped():
    verdict = Verdict(Claim("A1", "word " * 40), "holds", 1.0, 0.5, 1.5, 3)
    text = plots.verdicts([verdict]).axes[0].get_yticklabels()[0].get_text()
    assert max(map(len, text.splitlines())) <= 46 and " ".join(text.split()) == "A1 " + ("word " * 40).strip()


def test_density_ratios_draws_the_closed_form():
    means, sizes = np.array([[0.0, 0.0], [1.5, 0.5], [-0.5, 1.8]]), [60, 40, 20]
    x, origin = density_ratio.gaussian_clients(means, sizes, np.random.default_rng(0))
    xi = means  # the true head: xi_l = mu_l, gamma_l = log(n_l / N) - |mu_l|^2 / 2
    gamma = np.log(np.array(sizes) / 120) - (means**2).sum(1) / 2
    figure = plots.density_ratios(x, origin, means, gamma, xi, sizes)
    left, middle, right = figure.axes
    assert sum(len(dots.get_offsets()) for dots in left.collections) == 120
    assert all(np.allclose(*dots.get_offsets().T) for dots in middle.collections) and len(middle.collections) == 2
    p = density_ratio.empirical_likelihood(x, gamma, xi, sizes)
    residuals = density_ratio.constraint_residuals(p, x, gamma, xi, sizes)
    assert [bar.get_width() for bar in right.patches] == pytest.approx(np.abs(residuals).tolist())
    image = left.images[0]
    assert image.get_extent() == pytest.approx(
        [x[:, 0].min() - 0.3, x[:, 0].max() + 0.3, x[:, 1].min() - 0.3, x[:, 1].max() + 0.3]
    )
    assert {tuple(colour) for colour in image.get_array().reshape(-1, 3).round(6)} == {
        tuple(np.round(colour, 6)) for colour in colours(3)
    }


def test_density_ratios_need_the_plane():
    with pytest.raises(FedlibError, match=r"density_ratios: x is \(5, 3\); give samples in the plane"):
        plots.density_ratios(np.zeros((5, 3)), np.zeros(5), np.zeros((2, 3)), np.zeros(2), np.zeros((2, 3)), [2, 3])


def test_the_grid_has_a_cell_for_each_claim_in_each_setting():
    holds = claims.paired(Claim("A1, one", "routing beats the vote"), [2.0, 2.0, 2.0])
    fails = claims.paired(Claim("A1, two", "routing beats the vote"), [-1.0, -1.0, -1.0])
    axes = plots.verdict_grid({"data/one": [holds], "data/two": [fails]}).axes[0]
    assert [text.get_text() for text in axes.texts] == ["holds\n+2.0\n[+2.0, +2.0]", "fails\n-1.0\n[-1.0, -1.0]"]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["data\none", "data\ntwo"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["A1  routing beats the vote"]
    faces = [patch.get_facecolor()[:3] for patch in axes.patches]
    assert faces == [to_rgb(VERDICT_STYLE[v][0]) for v in ("holds", "fails")]
    with pytest.raises(FedlibError, match="verdict_grid: give at least one setting, and as many verdicts in each"):
        plots.verdict_grid({"one": [holds], "two": []})
