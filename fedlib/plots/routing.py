"""Who is sent where, and what soft routing and abstaining change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedlib import summary
from fedlib.analysis import routing
from fedlib.data.shift import Appearance
from fedlib.style import WIDTH, colours, legend_outside, styled

SYMBOLS = {"gamma": "γ {:g}", "hue": "hue {:+g}", "saturation": "sat {:g}", "posterize_bits": "{} bits"}


def names(looks: Sequence[Appearance]) -> list[str]:
    """Each client's index, with the properties that are not the same for all."""
    differ = [name for name in SYMBOLS if len({getattr(look, name) for look in looks}) > 1]
    words = [", ".join(SYMBOLS[name].format(getattr(look, name)) for name in differ) for look in looks]
    return [f"{i}: {word}" if word else str(i) for i, word in enumerate(words)]


@styled
def sendings(table: pd.DataFrame, looks: Sequence[Appearance]) -> Figure:
    """P(sent to j | from i) of each router, the mean over seeds; and how many each client gets against its size.

    table: as analysis.routing.sendings returns it. looks: how each client's images look, in order.
    """
    found = routing.rates(table)
    figure, panels = plt.subplots(
        1, len(found) + 1, figsize=(1.3 * WIDTH, 1.9 + 0.24 * len(looks)), width_ratios=[1.0] * len(found) + [0.9]
    )
    top = max(float(rate.max()) for rate in found.values())
    for place, (router, rate) in enumerate(found.items()):
        _matrix(panels[place], rate, top)
        panels[place].set(title=router, xlabel="sent to client")
        panels[place].set_yticks([])
    panels[0].set_yticks(range(len(looks)), names(looks))
    panels[0].set_ylabel("comes from client")
    _loads(panels[-1], table)
    legend_outside(figure, "", panels[-1:], loc="outside lower center")
    seeds = table["seed"].nunique()
    figure.suptitle(
        f"percent of a client's queries, mean over {seeds} seeds; right: a dot a client and seed", fontsize=9
    )
    return figure


def _matrix(axes: Axes, rate: np.ndarray, top: float) -> None:
    axes.imshow(rate, cmap="cividis", vmin=0, vmax=top, aspect="auto")
    for (i, j), value in np.ndenumerate(rate):
        axes.text(j, i, f"{100 * value:.0f}", ha="center", va="center", color="k" if value > 0.6 * top else "w", size=7)
    axes.set_xticks(range(len(rate)))
    axes.grid(False)


def _loads(axes: Axes, table: pd.DataFrame) -> None:
    """The share of all queries that each client is sent, against its share of the training samples."""
    load = table.groupby(["router", "seed", "client"], sort=False).agg({"queries": "sum", "size": "first"})
    load["queries"] *= 100 / load.groupby(["router", "seed"])["queries"].transform("sum")
    for router, colour, marker in zip(table["router"].unique(), colours(2), "os", strict=True):
        dots = load.loc[router]
        axes.scatter(100 * dots["size"], dots["queries"], color=colour, marker=marker, s=18, alpha=0.8, label=router)
    edge = 1.08 * max(100 * load["size"].max(), load["queries"].max())
    axes.plot([0, edge], [0, edge], color=".3", linestyle="--", linewidth=1, label="as many as it has")
    axes.set(xlabel="training samples $n_j/n$ (%)", ylabel="queries sent to it (%)", xlim=(0, edge), ylim=(0, edge))


@styled
def soft_routing(soft: pd.DataFrame, abstained: pd.DataFrame) -> Figure:
    """Gain over hard routing against k; accuracy on the answered, and gain of the whole, against coverage.

    soft, abstained: test rows of analysis.routing's tables; soft with its weights in words in a column `weights`.
    """
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(1.3 * WIDTH, 4.4))
    hard = soft[soft["k"] == 1].groupby("seed")["accuracy"].first()
    gains = soft.assign(value=soft["accuracy"] - soft["seed"].map(hard), metric="gain")
    found = summary.over_seeds(gains, by=["weights", "k"])
    for place, (weights, line) in enumerate(found.groupby("weights", sort=False)):
        errors, x = (line["high"] - line["mean"]).fillna(0), line["k"] + 0.12 * place
        left.errorbar(x, line["mean"], errors, color=colours(4)[place], marker="o", capsize=3, label=weights)
    left.set(xlabel="clients asked k", ylabel="gain over the best client alone (points)")
    left.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
    first = abstained[abstained["other"] == abstained["other"].iloc[0]]
    _against_coverage(middle, first, first["answered"], color="k", label="answered by the router")
    middle.set(ylabel="accuracy (%)")
    for (name, rows), colour in zip(abstained.groupby("other", sort=False), colours(4)[2:], strict=True):
        alone = rows["seed"].map(rows[rows["threshold"] == rows["threshold"].min()].set_index("seed")["accuracy"])
        _against_coverage(right, rows, rows["accuracy"] - alone, color=colour, label=f"the rest to {name}")
        _against_coverage(
            right, rows, rows["coin"] - alone, color=colour, linestyle="--", label="the same, chosen by a coin"
        )
    right.set(ylabel="gain over the router alone (points)")
    _evaluations_above(right)
    for axes in (left, right):
        axes.axhline(0, color=".3", linewidth=1)
    for axes in (left, middle, right):
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16))
    seeds = abstained["seed"].nunique()
    figure.suptitle(f"mean over {seeds} seeds; bars: 95 % interval; faint lines: each seed", fontsize=9)
    return figure


def _against_coverage(axes: Axes, rows: pd.DataFrame, values: pd.Series, **look: Any) -> None:
    """The mean over seeds at each threshold that has a value for all of them; each seed as a faint line."""
    lines = rows.assign(value=values).dropna(subset=["value"])
    if look.get("linestyle") is None:
        for _, line in lines.groupby("seed"):
            axes.plot(line["coverage"], line["value"], color=look["color"], alpha=0.3, linewidth=0.8)
    by_threshold = lines.groupby("threshold")[["coverage", "value"]]
    mean = by_threshold.mean()[by_threshold.size() == lines["seed"].nunique()]
    axes.plot(mean["coverage"], mean["value"], **look)
    axes.set(xlabel="coverage (% answered by the router)", xlim=(-3, 103))


def _evaluations_above(axes: Axes) -> None:
    """The cost of a global model beside the router, as a second axis: 2 at coverage 0, 1 at coverage 100."""

    def there(coverage: Any) -> Any:
        return 2 - coverage / 100

    def back(evaluations: Any) -> Any:
        return 100 * (2 - evaluations)

    axes.secondary_xaxis("top", functions=(there, back)).set_xlabel("evaluations a query, with a global model")
