"""The collection's figures, in one style.

Every function takes plain values or tidy tables, returns a matplotlib Figure and leaves nothing behind: neither an
open pyplot figure nor a changed rcParam. Intervals are the 95 % Student-t intervals over seeds of summary.over_seeds.
"""

from fedlib.plots.clients import appearances, partition
from fedlib.plots.forest import verdict_grid, verdicts
from fedlib.plots.results import comparison, curves, sweep
from fedlib.plots.theory import density_ratios

__all__ = ["appearances", "comparison", "curves", "density_ratios", "partition", "sweep", "verdict_grid", "verdicts"]
