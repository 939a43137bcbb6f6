"""FedDRM's theorems as pictures."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedlib.analysis import density_ratio
from fedlib.checks import FedlibError
from fedlib.style import WIDTH, colours, legend_outside, styled


@styled
def density_ratios(
    x: np.ndarray, origin: np.ndarray, means: np.ndarray, gamma: np.ndarray, xi: np.ndarray, sizes: Sequence[int]
) -> Figure:
    """Gaussian clients in the plane, what a fitted client head makes of them, and how well it does.

    Left: the samples by client, on the regions that the density router sends to each. Middle: recovered against true
    log density ratios to client 0. Right: what is left of the constraints of the empirical likelihood.
    x: (N, 2), origin: (N,), means: (m, 2), gamma and xi: the head, as analysis.density_ratio has them.
    """
    if x.shape[1] != 2:
        raise FedlibError(f"density_ratios: x is {x.shape}; give samples in the plane, (N, 2)")
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(WIDTH, 3.3))
    _regions(left, x, gamma, xi, sizes)
    true = density_ratio.log_density_ratio_true(x, means)
    recovered = density_ratio.log_density_ratio(x, gamma, xi, sizes)
    for client, colour in enumerate(colours(len(means))):
        points = {"s": 5, "color": colour, "linewidth": 0, "rasterized": True}
        left.scatter(*x[origin == client].T, label=f"client {client}", **points)
        if client:
            middle.scatter(true[:, client], recovered[:, client], alpha=0.5, **points)
    middle.axline((0, 0), slope=1, color=".3", linestyle="--", linewidth=1)
    p = density_ratio.empirical_likelihood(x, gamma, xi, sizes)
    residuals = np.abs(density_ratio.constraint_residuals(p, x, gamma, xi, sizes))
    names = ["Σp", *(f"client {client}" for client in range(len(means)))]
    right.barh(names, residuals, color=[(0.3, 0.3, 0.3), *colours(len(means))], height=0.6)
    right.invert_yaxis()
    right.set(xscale="log", xlim=(1e-17, 10), xlabel="|residual|", title="EL constraints")
    left.set(xlabel="$x_1$", ylabel="$x_2$", title="samples and router's regions")
    middle.set(xlabel="true", ylabel="recovered", title="log density ratio to client 0")
    legend_outside(figure, "", [left], loc="outside lower center", markerscale=3)
    return figure


def _regions(axes: Axes, x: np.ndarray, gamma: np.ndarray, xi: np.ndarray, sizes: Sequence[int]) -> None:
    """The plane around x, coloured by the client that the density router chooses."""
    (left, bottom), (right, top) = x.min(0) - 0.3, x.max(0) + 0.3
    across, up = np.meshgrid(np.linspace(left, right, 300), np.linspace(bottom, top, 300))
    plane = np.column_stack([across.ravel(), up.ravel()])
    chosen = density_ratio.log_density_ratio(plane, gamma, xi, sizes).argmax(1).reshape(across.shape)
    image = np.asarray(colours(len(gamma)))[chosen]
    axes.imshow(image, extent=(left, right, bottom, top), origin="lower", alpha=0.25, aspect="auto")
    axes.grid(False)
