"""What F²DC's released code ran where it differs from the paper (trap numbers: the specification's section 7)."""

from __future__ import annotations

from dataclasses import dataclass

from fedlib.methods.f2dc import Calibration
from fedlib.methods.method import hyper


@dataclass(frozen=True)
class F2DCAsReleased(Calibration):
    """Traps 1, 2 and 4: no domain-aware aggregation in any commit, so p_k = n_k / N; A_D, A_C and m are averaged with
    everything else; and since June 2026 they have three layers.

    Its noisy masks at test time (trap 3) are a reading of the same weights, analysis.features.masks; its plain SGD at
    rate 0.1 (trap 5) is the experiment's lr, momentum and weight_decay.
    """

    layers: int = hyper(3, least=2, most=3, whole=True)
