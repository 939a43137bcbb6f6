"""Beyond the FedDRM paper: lambda chosen without test data, and clients that join or leave."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedlib import summary
from fedlib.checks import FedlibError, check_choice
from fedlib.style import WIDTH, colours, legend_outside, styled

MARKERS = "*ods^v"
GREY = ".6"


@styled
def lambda_choice(
    path: pd.DataFrame, sweep: pd.DataFrame, choices: Mapping[str, pd.DataFrame], margin: float
) -> Figure:
    """Lambda over the rounds; each choice on the sweep's curve; each choice's gain over the first one, the reference.

    path: round, seed, value, of the runs that adapt lambda. sweep: rows of summary.final for one metric, in percent.
    choices: {name: a row a seed, columns lam and value}, as summary.chosen returns them. margin: the points that a
    choice may lose, drawn as a line.
    """
    if len(choices) < 2:
        raise FedlibError(f"lambda_choice: choices: {list(choices)}; give a reference first, then at least one choice")
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(WIDTH, 3.4), width_ratios=[3, 4, 3])
    for seed, line in path.sort_values("round").groupby("seed"):
        left.plot(line["round"], line["value"], color=colours(2)[1], alpha=0.8, linewidth=1.2, label=f"seed {seed}")
    left.set(xlabel="round", ylabel="λ", title="λ by drift ratio, a line a seed", ylim=(0, 1))
    left.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
    curve = summary.over_seeds(sweep, by=["lam"]).sort_values("lam")
    middle.plot(curve["lam"], curve["mean"], color=GREY, label="sweep, mean over seeds")
    middle.scatter(sweep["lam"], sweep["value"], color=GREY, s=14, linewidth=0, label="sweep, each seed")
    styles = dict(zip(choices, zip(colours(len(choices)), MARKERS, strict=False), strict=True))
    for name, table in choices.items():
        colour, marker = styles[name]
        middle.scatter(table["lam"], table["value"], marker=marker, s=46, label=name, **_open(colour))
    middle.set(xlabel="λ", ylabel="system accuracy (%)", title="choices on the sweep")
    _against_the_first(right, choices, styles, margin)
    legend_outside(figure, "", [middle], loc="outside lower center", columnspacing=1.2)
    return figure


def _open(colour: Any) -> dict[str, Any]:
    return {"facecolors": "none", "edgecolors": [colour], "linewidth": 1.4}


def _against_the_first(
    axes: Axes, choices: Mapping[str, pd.DataFrame], styles: Mapping[str, tuple[Any, str]], margin: float
) -> None:
    """Each choice's value minus the reference's: a dot a seed, and the mean with its interval."""
    reference, *others = choices
    parts = [(choices[name]["value"] - choices[reference]["value"]).rename("value").reset_index() for name in others]
    rows = pd.concat([part.assign(choice=name, metric="") for part, name in zip(parts, others, strict=True)])
    found = summary.over_seeds(rows, by=["choice"]).set_index("choice")
    errors = (found["high"] - found["mean"]).fillna(0)
    for place, name in enumerate(others):
        colour, marker = styles[name]
        axes.errorbar([place], found["mean"][[name]], errors[[name]], color=colour, marker=marker, capsize=3)
        seeds = rows[rows["choice"] == name]
        axes.scatter([place + 0.15] * len(seeds), seeds["value"], color=colour, alpha=0.5, s=14, linewidth=0)
    axes.axhline(-margin, color=".3", linestyle="--", linewidth=1)
    axes.set_xticks(range(len(others)), [name.replace(" ", "\n") for name in others])
    axes.set(xlim=(-0.5, len(others) - 0.5), ylabel="points", title=f"against {reference}")


@styled
def churn(
    table: pd.DataFrame, metric: str, events: Mapping[str, tuple[int, int, str]], column: str, still: str
) -> Figure:
    """A client's accuracy over the rounds, with and without its joining or leaving: a row an event.

    table: as runs.run_all returns it, with a column churn, and `column`, of which each value has a column of panels.
    events: {value of churn: (client, round, what it does then)}. still: the value of churn in which nobody comes or
    goes. Thick: the mean over seeds, faint: each seed, grey: the other clients' means.
    """
    for name in (*events, still):
        check_choice("churn: churn", name, table["churn"].unique())
    rows = table[table["metric"] == check_choice("churn: metric", metric, table["metric"].unique())]
    rows = rows[rows["client"] >= 0].assign(value=lambda found: 100 * found["value"])
    schedules = rows[column].unique().tolist()
    size = (WIDTH, 1.0 + 2.2 * len(events))
    figure, grid = plt.subplots(len(events), len(schedules), figsize=size, sharex=True, sharey=True, squeeze=False)
    for line, (name, (client, round, does)) in zip(grid, events.items(), strict=True):
        for axes, schedule in zip(line, schedules, strict=True):
            here = rows[rows[column] == schedule]
            _with_and_without(axes, here[here["churn"] == name], here[here["churn"] == still], client)
            axes.axvline(round, color=".3", linestyle=":", linewidth=1.2)
            axes.set_title(f"client {client} {does} round {round}, {column} {schedule}")
        line[0].set_ylabel("router accuracy (%)")
    for axes in grid[-1]:
        axes.set_xlabel("round")
        axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
    legend_outside(figure, "", grid.flat, loc="outside lower center")
    return figure


def _with_and_without(axes: Axes, moved: pd.DataFrame, still: pd.DataFrame, client: int) -> None:
    """One panel: the client in both runs, and behind it the others of the run in which it moves."""
    own, control = colours(2)
    for _, line in moved[moved["client"] != client].groupby("client"):
        _mean(axes, line, color=GREY, linewidth=0.8, alpha=0.7, label="each other client", zorder=1)
    pairs: Sequence[tuple[pd.DataFrame, Any, str, str]] = (
        (still, control, "--", "the same client, without churn"),
        (moved, own, "-", "the client that joins or leaves"),
    )
    for runs, colour, style, label in pairs:
        mine = runs[runs["client"] == client]
        for _, seed in mine.sort_values("round").groupby("seed"):
            axes.plot(seed["round"], seed["value"], color=colour, linestyle=style, linewidth=0.7, alpha=0.35)
        _mean(axes, mine, color=colour, linestyle=style, linewidth=2, label=label)


def _mean(axes: Axes, rows: pd.DataFrame, **style: Any) -> None:
    mean = rows.groupby("round")["value"].mean()
    axes.plot(mean.index, mean.to_numpy(), **style)
