"""F²DC's decoupling and correction (DFD + DFC) on top of other methods (paper, Table 3), and its controls.

On FedAvg itself it is f2dc.Calibration.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedlib.methods.f2dc import F2DC, Calibration
from fedlib.methods.fdse import FDSE
from fedlib.methods.fedavg_uniform import FedAvgUniform
from fedlib.methods.fedheal import FedHEAL
from fedlib.methods.fedprox import FedProx
from fedlib.methods.fpl import FPL
from fedlib.models.resnet10 import is_norm


@dataclass(frozen=True)
class CalibratedFedProx(Calibration, FedProx):
    """FedProx + DFD + DFC; not in the paper (specification, claim 14)."""


@dataclass(frozen=True)
class CalibratedFPL(Calibration, FPL):
    """FPL + DFD + DFC: prototypes are of f~ pooled."""


@dataclass(frozen=True)
class CalibratedFedHEAL(Calibration, FedHEAL):
    """FedHEAL + DFD + DFC: the modules are averaged as all parameters are."""


@dataclass(frozen=True)
class CalibratedFDSE(Calibration, FDSE):
    """FDSE + DFD + DFC, on the network that FDSE makes."""


@dataclass(frozen=True)
class CalibratedUniform(Calibration, FedAvgUniform):
    """FedAvg with equal weights + DFD + DFC: the control for DaA, which is nearly uniform (specification, 1.5)."""


@dataclass(frozen=True)
class F2DCLocalNorms(F2DC):
    """F²DC whose normalisation layers, those inside A_D and A_C too, stay with their client, as in FedBN: how much of a
    gain is BatchNorm.
    """

    def shared(self, name: str) -> bool:
        return super().shared(name) and not is_norm(name)
