"""Domain skew: accuracy a domain, what the features are like, where a model looks, and how clients are weighted.

Tables are tidy. A missing column is a FedlibError; a number that is not known is NaN, and then not drawn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from fedlib import summary
from fedlib.analysis.spectrum import Array, as_numpy
from fedlib.checks import FedlibError, check_choice
from fedlib.plots.common import check_table, hues, over_seeds_in_words, whiskers
from fedlib.plots.results import SYMBOLS as COMMON
from fedlib.style import WIDTH, colours, legend_outside, styled

MARKERS = "osD^vPXd"
SYMBOLS = COMMON | {"lam1": "$λ_1$", "lam2": "$λ_2$", "beta": "β", "tau": "τ", "sigma": "σ"}
WHISKERS = "mean over seeds, with its 95 % interval where there is more than one"
PAPER: dict[str, Any] = {
    "marker": "D",
    "s": 22,
    "facecolors": "w",
    "edgecolors": ".15",
    "linewidth": 1.1,
    "zorder": 4,
    "label": "paper",
}


@styled
def domain_bars(table: pd.DataFrame, words: str = "accuracy (%)") -> Figure:
    """A number of each method in each domain, a panel a setting: bars with intervals, the paper's numbers as diamonds.
    All panels have the same height, from 0 on.

    table: columns setting, method, domain, mean, low, high, paper; one row a cell. words: what the number is.
    """
    cell = ["setting", "method", "domain"]
    check_table("domain_bars", table, [*cell, "mean", "low", "high", "paper"], key=cell)
    settings, methods = table["setting"].unique(), table["method"].unique().tolist()
    size = (WIDTH, 0.7 + 2.5 * len(settings))
    figure, grid = plt.subplots(len(settings), 1, figsize=size, squeeze=False, sharey=True)
    colour, width = dict(zip(methods, colours(len(methods)), strict=True)), 0.84 / len(methods)
    for axes, setting in zip(grid[:, 0], settings, strict=True):
        rows = table[table["setting"] == setting]
        domains, diamonds = rows["domain"].unique().tolist(), []
        for place, method in enumerate(methods):
            mine = rows[rows["method"] == method].set_index("domain").reindex(domains)
            x = np.arange(len(domains)) + width * (place - (len(methods) - 1) / 2)
            known = mine["mean"].notna().to_numpy()
            ours = mine[known]
            name = method if known.any() else "_nothing drawn"  # an empty bar would lend the legend a wrong colour
            axes.bar(x[known], ours["mean"], 0.92 * width, yerr=whiskers(ours), label=name, **_bar(colour[method]))
            diamonds += [*zip(x, mine["paper"], strict=True)]
        _papers(axes, *zip(*diamonds, strict=True))
        axes.set_xticks(range(len(domains)), domains)
        axes.set(ylabel=words, title=setting, xlim=(-0.55, len(domains) - 0.45))
        axes.grid(False, axis="x")
    grid[0, 0].set_ylim(bottom=0)
    _legend(figure, list(grid[:, 0]))
    figure.suptitle(WHISKERS, fontsize=9)
    return figure


def _bar(colour: Any) -> dict[str, Any]:
    return {"color": colour, "linewidth": 0, "error_kw": {"ecolor": ".25", "elinewidth": 1, "capsize": 2}}


def _papers(axes: Axes, x: Sequence[float] | pd.Index, numbers: Sequence[float] | pd.Series) -> None:
    """The numbers that are known, as diamonds."""
    known = np.flatnonzero(pd.notna(np.asarray(numbers, dtype=float)))
    if len(known):
        axes.scatter(np.asarray(x)[known], np.asarray(numbers, dtype=float)[known], **PAPER)


@styled
def spectra(table: pd.DataFrame, relative: bool = False) -> Figure:
    """log10 of the singular values against their index, a panel a domain: mean over seeds with its interval.

    table: analysis.spectrum.spectra's columns domain, index, value, with method and seed. Values of 0 are left out: a
    line ends where a seed has none left. relative: each spectrum divided by its largest value, which shows how flat it
    is, whatever the features' scale; a dotted line then stands at 1 % of the largest. The scale is that of the lines: a
    band may leave its panel.
    """
    check_table("spectra", table, ["method", "seed", "domain", "index", "value"], ["method", "seed", "domain", "index"])
    if relative:
        table = table.assign(
            value=table["value"] / table.groupby(["method", "seed", "domain"])["value"].transform("max")
        )
    rows = table[table["value"] > 0]
    rows = rows.assign(value=np.log10(rows["value"]), metric="log10")
    found = summary.over_seeds(rows, by=["domain", "method", "index"]).sort_values("index")
    found = found[found["n"] == found["method"].map(table.groupby("method")["seed"].nunique())]
    methods = table["method"].unique().tolist()
    figure, panels = _panels(table["domain"].unique().tolist(), height=2.5)
    for domain, axes in panels.items():
        for method, colour in zip(methods, colours(len(methods)), strict=True):
            _band(axes, found[(found["domain"] == domain) & (found["method"] == method)], "index", colour, method)
        if relative:
            axes.axhline(-2, color=".3", linestyle=":", linewidth=1, label="1 % of the largest")
        axes.set(title=domain, xlabel="index")
        axes.set_ylim(found["mean"].min() - 0.5, found["mean"].max() + 0.5)
        _at_the_left(axes, f"log10 singular value{', relative' if relative else ''}")
    _legend(figure, list(panels.values()), corner=True)
    figure.suptitle(over_seeds_in_words(found["n"]), fontsize=9)
    return figure


@styled
def embeddings(table: pd.DataFrame, scores: Mapping[str, str] | None = None) -> Figure:
    """Pictures of features, a panel a method: colours are classes, markers domains, stars the centres of classes.

    table: columns method, x, y, class, domain; a row a sample. scores: words under each method's title.
    """
    check_table("embeddings", table, ["method", "x", "y", "class", "domain"])
    classes, domains = table["class"].unique().tolist(), table["domain"].unique().tolist()
    if len(domains) > len(MARKERS):
        raise FedlibError(f"embeddings: {len(domains)} domains; there are markers for {len(MARKERS)}")
    colour, marker = dict(zip(classes, colours(len(classes)), strict=True)), dict(zip(domains, MARKERS, strict=False))
    methods = table["method"].unique().tolist()
    if scores is not None:
        for method in methods:
            check_choice("embeddings: scores: method", method, scores)
    figure, panels = _panels(methods, height=2.7, share_x=False, share_y=False)
    for method, axes in panels.items():
        rows = table[table["method"] == method]
        for domain, own in rows.groupby("domain", sort=False):
            shades = [colour[name] for name in own["class"]]
            axes.scatter(own["x"], own["y"], c=shades, marker=marker[domain], s=13, alpha=0.65, linewidth=0)
        centres = rows.groupby("class", sort=False)[["x", "y"]].mean()
        shades = [colour[name] for name in centres.index]
        axes.scatter(centres["x"], centres["y"], c=shades, marker="*", s=190, edgecolors="k", linewidth=1, zorder=4)
        axes.set(title=method if scores is None else f"{method}\n{scores[method]}", xticks=[], yticks=[])
    dots = [Line2D([], [], color=colour[name], marker="o", linestyle="", label=str(name)) for name in classes]
    dots += [Line2D([], [], color=".35", marker=marker[name], linestyle="", label=str(name)) for name in domains]
    dots += [Line2D([], [], color="w", marker="*", markersize=11, markeredgecolor="k", label="centre of a class")]
    figure.legend(handles=dots, loc=_corner(figure, len(panels), len(dots)))
    return figure


@styled
def cam_grid(
    images: Array,
    cams: Mapping[str, Array],
    titles: Sequence[str],
    scores: Mapping[str, Sequence[float]] | None = None,
    masks: Array | None = None,
    note: str = "",
) -> Figure:
    """A row an image: as it is, then grey under each method's CAM, whose colours fade out towards 0.

    images: uint8 or float in [0, 1], (R, 3, H, W). cams: (R, H, W) in [0, 1], by method. titles: a row's words, such as
    its domain and class. scores: by method a number a row, printed under its CAM. masks: bool (R, H, W), as outlines.
    note: words above all, such as what the scores are.
    """
    pictures = as_numpy(images).transpose(0, 2, 3, 1)
    pictures = pictures / 255 if pictures.dtype == np.uint8 else pictures
    scores = scores or {}
    _check_rows(len(pictures), cams, titles, scores)
    size = (1.6 + 1.1 * (1 + len(cams)), 0.6 + (1.2 if scores else 1.0) * len(pictures))
    figure, grid = plt.subplots(len(pictures), 1 + len(cams), figsize=size, squeeze=False)
    for row, (line, picture, title) in enumerate(zip(grid, pictures, titles, strict=True)):
        line[0].imshow(picture)
        line[0].set_ylabel(title.replace(" ", "\n"), rotation=0, ha="right", va="center")
        for axes, (method, maps) in zip(line[1:], cams.items(), strict=True):
            axes.imshow(0.25 + 0.5 * picture.mean(axis=2), cmap="gray", vmin=0, vmax=1)
            heat = axes.imshow(as_numpy(maps)[row], cmap=_fading(), vmin=0, vmax=1)
            if method in scores:
                value = scores[method][row]
                axes.set_xlabel("–" if np.isnan(value) else f"{value:.2f}", labelpad=2)
        for axes in line:
            axes.set(xticks=[], yticks=[])
            if masks is not None:
                axes.contour(as_numpy(masks)[row], levels=[0.5], colors=[colours(10)[9]], linewidths=1.2)
    for axes, name in zip(grid[0], ["image", *cams], strict=True):
        axes.set_title(name)
    figure.colorbar(heat, ax=grid, shrink=0.6, aspect=30, label="CAM")
    figure.suptitle(note, fontsize=9)
    return figure


def _check_rows(
    images: int, cams: Mapping[str, Array], titles: Sequence[str], scores: Mapping[str, Sequence[float]]
) -> None:
    if not cams or not images:
        raise FedlibError(f"cam_grid: {images} images and {len(cams)} CAMs of each; give at least one")
    for method in scores:
        check_choice("cam_grid: scores: method", method, cams)
    for name, given in [("titles", titles), *cams.items(), *scores.items()]:
        if len(given) != images:
            raise FedlibError(f"cam_grid: {name}: {len(given)} for {images} images; give one for each")


def _fading() -> ListedColormap:
    """Plasma, from clear at 0 to four fifths opaque at 1."""
    shades = plt.get_cmap("plasma")(np.linspace(0, 1, 256))
    shades[:, 3] = np.linspace(0, 0.8, 256)
    return ListedColormap(shades)


@styled
def convergence(table: pd.DataFrame, x: str, y: str, hue: str, panel: str | None = None) -> Figure:
    """Column `y` against column `x`, such as the round: the mean over seeds with its interval, a line a value of `hue`.

    table: a row a point and seed (column seed). panel: a column whose values have a panel each.
    """
    keys = [x, hue, *([] if panel is None else [panel])]
    check_table("convergence", table, [*keys, y, "seed"])
    rows = table.assign(value=table[y], metric=y)
    found = summary.over_seeds(rows, by=keys).sort_values(x)
    figure, panels = _panels([y] if panel is None else table[panel].unique().tolist(), height=3.2)
    for name, axes in panels.items():
        here = found if panel is None else found[found[panel] == name]
        for value, colour in hues(table[hue]).items():
            _band(axes, here[here[hue] == value], x, colour, str(value))
        axes.set(title="" if panel is None else str(name), xlabel=x)
        _at_the_left(axes, y)
        axes.xaxis.set_major_locator(MaxNLocator("auto", integer=pd.api.types.is_integer_dtype(table[x])))
    _legend(figure, list(panels.values()), hue, corner=True)
    figure.suptitle(over_seeds_in_words(found["n"]), fontsize=9)
    return figure


@styled
def weights(table: pd.DataFrame) -> Figure:
    """Aggregation weights p_k, a group of bars a client, clients together by domain; the dashed line is uniform.

    table: columns client, domain, weighting, weight; one row a client and weighting.
    """
    check_table("weights", table, ["client", "domain", "weighting", "weight"], key=["client", "weighting"])
    kinds, clients = table["weighting"].unique().tolist(), table.drop_duplicates("client")
    domains = clients["domain"].unique().tolist()
    clients = clients.assign(at=clients["domain"].map(domains.index)).sort_values("at", kind="stable")
    places = dict(zip(clients["client"], np.arange(len(clients)) + 0.35 * clients["at"], strict=True))
    height = 0.8 / len(kinds)
    figure, axes = plt.subplots(figsize=(WIDTH, 1.0 + len(clients) * (0.08 + 0.055 * len(kinds))))
    for kind, (weighting, colour) in enumerate(zip(kinds, colours(len(kinds)), strict=True)):
        rows = table[table["weighting"] == weighting]
        y = rows["client"].map(places) + height * (kind - (len(kinds) - 1) / 2)
        axes.barh(y, rows["weight"], height=0.92 * height, color=colour, linewidth=0, label=weighting)
    axes.axvline(1 / len(clients), color=".3", linestyle="--", linewidth=1)
    axes.set_yticks(list(places.values()), [str(client) for client in places])
    for domain, own in clients.groupby("domain", sort=False):
        middle = own["client"].map(places).mean()
        axes.annotate(str(domain), (1.01, middle), xycoords=("axes fraction", "data"), va="center")
    axes.set_ylim(max(places.values()) + 0.6, -0.6)
    axes.set(xlabel="aggregation weight $p_k$", ylabel="client")
    axes.grid(False, axis="y")
    _legend(figure, [axes])
    return figure


@styled
def sensitivity(table: pd.DataFrame, words: str = "accuracy (%)", reference: float | None = None) -> Figure:
    """Accuracy against each hyper-parameter, a panel each: mean with interval, the paper's points as diamonds.

    table: columns parameter, value, mean, low, high, paper, in percent. Values stand at equal distances, ascending.
    words: at the y-axis. reference: where a horizontal line stands, such as 0 for differences from the default.
    """
    check_table(
        "sensitivity", table, ["parameter", "value", "mean", "low", "high", "paper"], key=["parameter", "value"]
    )
    figure, panels = _panels(table["parameter"].unique().tolist(), height=2.3, share_x=False)
    for parameter, axes in panels.items():
        rows = table[table["parameter"] == parameter].sort_values("value").reset_index(drop=True)
        ours = rows[rows["mean"].notna()]
        axes.errorbar(
            ours.index, ours["mean"], whiskers(ours), color=colours(1)[0], marker="o", capsize=3, label="ours"
        )
        _papers(axes, rows.index, rows["paper"])
        if reference is not None:
            axes.axhline(reference, color=".3", linestyle="--", linewidth=1, zorder=1)
        axes.set_xticks(rows.index, [f"{value:g}" for value in rows["value"]])
        axes.set(xlabel=SYMBOLS.get(parameter, parameter), xlim=(-0.5, len(rows) - 0.5))
        _at_the_left(axes, words)
    _legend(figure, list(panels.values()), corner=True)
    figure.suptitle(WHISKERS, fontsize=9)
    return figure


def _panels(
    names: Sequence[str], height: float, share_x: bool = True, share_y: bool = True
) -> tuple[Figure, dict[str, Axes]]:
    """A panel a name, `height` inches each, in rows of `_across`; a shared y-axis is written at the left only."""
    across = _across(len(names))
    down = -(-len(names) // across)
    size = (WIDTH, 0.6 + height * down)
    figure, grid = plt.subplots(down, across, figsize=size, squeeze=False, sharex=share_x, sharey=share_y)
    for axes in grid.flat[len(names) :]:
        axes.remove()
    for axes in grid.flat[: len(names)]:
        axes.tick_params(labelbottom=True)
    return figure, dict(zip(names, grid.flat, strict=False))


def _across(panels: int) -> int:
    return 2 if panels == 4 else min(3, panels)


def _corner(figure: Figure, panels: int, entries: int) -> Literal["lower right", "outside right upper"]:
    """Where a legend stands: in the empty corner of rows of three if there is one that it fits, else at the right."""
    height = figure.get_figheight() / -(-panels // 3)
    return "lower right" if panels > 4 and panels % 3 and 0.21 * entries + 0.4 < height else "outside right upper"


def _legend(figure: Figure, panels: Sequence[Axes], title: str = "", corner: bool = False) -> None:
    """Each label once, the paper's diamonds last; at the right, or in the empty `corner` of the panels."""
    entries = len({label for axes in panels for label in axes.get_legend_handles_labels()[1]})
    loc = _corner(figure, len(panels) if corner else 1, entries)
    legend_outside(figure, title, panels, loc, markers_last=True)


def _at_the_left(axes: Axes, words: str) -> None:
    spec = axes.get_subplotspec()
    axes.set_ylabel(words if spec is None or spec.is_first_col() else "")


def _band(axes: Axes, line: pd.DataFrame, x: str, colour: Any, label: str) -> None:
    if len(line):
        axes.plot(line[x], line["mean"], color=colour, label=label)
        axes.fill_between(line[x], line["low"], line["high"], color=colour, alpha=0.2, linewidth=0)
