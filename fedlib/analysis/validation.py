"""The metrics on the clients' validation samples: what a hyper-parameter may be chosen by.

The FedDRM paper tunes lambda on validation data; its released code has no such split (specification, 3.1).
"""

from __future__ import annotations

from dataclasses import replace

from fedlib.checks import FedlibError
from fedlib.data.federation import Federation
from fedlib.metrics import Crowd, Row, evaluate


def held_out(federation: Federation) -> Federation:
    """The same clients, tested on their validation samples. Raises FedlibError for a client that has none."""
    for client in federation.clients:
        if not len(client.validation):
            raise FedlibError(
                f"probes: validation measures on validation samples, but client {client.index} has none; "
                "set validation_share above 0, such as 0.1"
            )
    return replace(federation, clients=tuple(replace(client, test=client.validation) for client in federation.clients))


def validation(crowd: Crowd, federation: Federation) -> list[Row]:
    """The probe: system, average and router accuracy on the validation samples, under "[validation]"."""
    faced = Crowd(crowd.method, crowd.model, crowd.server, crowd.memories, held_out(federation))
    wanted = ("system@pooled", "personal@local", "router@pooled")
    rows = [row for row in evaluate(faced, "validation") if row.metric in wanted and row.client == -1]
    return [row._replace(metric=f"{row.metric}[validation]") for row in rows]
