"""FedAvgUniform: FedAvg in which every client weighs the same. A control, from no paper."""

from __future__ import annotations

from dataclasses import dataclass

from fedlib.methods.method import Method, Server, Upload


@dataclass(frozen=True)
class FedAvgUniform(Method):
    """theta <- (1 / K) sum_k theta_k over the K clients of the round, buffers too, whatever their n_k.

    F²DC's aggregation comes within a few per cent of it (spec of F²DC, 1.5): what a method gains over FedAvg by its
    weights alone shows here.
    """

    def weight(self, server: Server, upload: Upload) -> float:
        return 1.0
