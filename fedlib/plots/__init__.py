"""The collection's figures, in one style.

Every function takes plain values or tidy tables, returns a matplotlib Figure and leaves nothing behind: neither an
open pyplot figure nor a changed rcParam. Intervals are the 95 % Student-t intervals over seeds of summary.over_seeds.
"""

from fedlib.plots.ablations import ablation, costs
from fedlib.plots.beyond import churn, lambda_choice
from fedlib.plots.clients import appearances, partition
from fedlib.plots.domains import cam_grid, convergence, domain_bars, embeddings, sensitivity, spectra, weights
from fedlib.plots.forest import verdict_grid, verdicts
from fedlib.plots.gains import gains
from fedlib.plots.panels import bars
from fedlib.plots.results import comparison, curves, sweep
from fedlib.plots.retina import normalisations
from fedlib.plots.routing import sendings, soft_routing
from fedlib.plots.theory import density_ratios

__all__ = [
    "ablation",
    "appearances",
    "bars",
    "cam_grid",
    "churn",
    "comparison",
    "convergence",
    "costs",
    "curves",
    "density_ratios",
    "domain_bars",
    "embeddings",
    "gains",
    "lambda_choice",
    "normalisations",
    "partition",
    "sendings",
    "sensitivity",
    "soft_routing",
    "spectra",
    "sweep",
    "verdict_grid",
    "verdicts",
    "weights",
]
