"""The collection's figures, in one style.

Every function takes plain values or tidy tables, returns a matplotlib Figure and leaves nothing behind: neither an
open pyplot figure nor a changed rcParam. Intervals are the 95 % Student-t intervals over seeds of summary.over_seeds.
"""

from fedlib.plots.ablations import ablation, costs
from fedlib.plots.beyond import churn, lambda_choice
from fedlib.plots.choosing import count_choice, noisy_choice
from fedlib.plots.clients import appearances, partition
from fedlib.plots.domains import cam_grid, convergence, domain_bars, embeddings, sensitivity, spectra, weights
from fedlib.plots.drift import looks, schedule
from fedlib.plots.few import epochs_study, models_study, smoothing_study
from fedlib.plots.fingerprints import privacy_study, profile_distances
from fedlib.plots.forest import verdict_grid, verdicts
from fedlib.plots.gains import gains
from fedlib.plots.mapped import client_scaling, stranger_study
from fedlib.plots.mapping import regime_study, threshold_study, weight_matrices
from fedlib.plots.moments import before_after
from fedlib.plots.panels import bars
from fedlib.plots.results import comparison, curves, sweep
from fedlib.plots.retina import normalisations
from fedlib.plots.routing import sendings, soft_routing
from fedlib.plots.served import client_spread, model_choices
from fedlib.plots.strangers import answers, newcomers, visitor_distances
from fedlib.plots.table_cells import by_kind, severity_study
from fedlib.plots.theory import density_ratios
from fedlib.plots.toy import model_paths, objective_curves, pareto_cover, regret_by_models

__all__ = [
    "ablation",
    "answers",
    "appearances",
    "bars",
    "before_after",
    "by_kind",
    "cam_grid",
    "churn",
    "client_scaling",
    "client_spread",
    "comparison",
    "convergence",
    "costs",
    "count_choice",
    "curves",
    "density_ratios",
    "domain_bars",
    "embeddings",
    "epochs_study",
    "gains",
    "lambda_choice",
    "looks",
    "model_choices",
    "model_paths",
    "models_study",
    "newcomers",
    "noisy_choice",
    "normalisations",
    "objective_curves",
    "pareto_cover",
    "partition",
    "privacy_study",
    "profile_distances",
    "regime_study",
    "regret_by_models",
    "schedule",
    "sendings",
    "sensitivity",
    "severity_study",
    "smoothing_study",
    "soft_routing",
    "spectra",
    "stranger_study",
    "sweep",
    "threshold_study",
    "verdict_grid",
    "verdicts",
    "visitor_distances",
    "weight_matrices",
    "weights",
]
