"""What testing on random crops does to the metrics.

The released FedDRM code crops test images at random, as in training (specification, trap 3), so its metrics are
stochastic. Here tests see the whole image; this probe evaluates the same models on random crops beside it.
"""

from __future__ import annotations

from fedlib.data.federation import Federation
from fedlib.metrics import Crowd, Row, evaluate
from fedlib.streams import torch_stream


def random_crop(crowd: Crowd, federation: Federation) -> list[Row]:
    """The probe: system, average and router accuracy on randomly cropped test images, under "[random crop]"."""
    stream = torch_stream(0, "random crop", crowd.server.round)
    cropped = Crowd(crowd.method, crowd.model, crowd.server, crowd.memories, federation, stream)
    wanted = ("system@pooled", "personal@local", "router@pooled")
    rows = [row for row in evaluate(cropped, "random crop") if row.metric in wanted and row.client == -1]
    return [row._replace(metric=f"{row.metric}[random crop]") for row in rows]
