"""Gradient drift of FedDRM's two losses (Wang et al., ICLR 2026, Fig. 3).

The paper plots the ratio of relative drifts G_client / G_class over rounds without the formula of G. Here, at the
aggregated model, with u_i the gradient of client i's mean loss s over its training samples and w_i = n_i / n:

    u = sum_i w_i u_i,     G_s = sqrt(sum_i w_i ||u_i - u||^2) / ||u||,     s in {client, class}

for two blocks of parameters: the common backbone (the same parameters under both losses), and each branch's own
last layer. Personal class heads are each client's own.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedlib.checks import FedlibError
from fedlib.data.federation import Client, Federation
from fedlib.metrics import Crowd, Row
from fedlib.training import prepare

SAMPLES = 512


def relative_drift(gradients: Tensor, shares: Tensor) -> tuple[Tensor, Tensor]:
    """(G, numerator of G) for gradients (m, P) and shares (m,)."""
    mean = shares @ gradients
    spread = (shares @ (gradients - mean).square().sum(1)).sqrt()
    return spread / mean.norm(), spread


def branch_gradients(model: nn.Module, client: Client) -> dict[str, Tensor]:
    """The four gradients of one client, each flat: class and client loss, backbone and own last layer.

    Over at most 512 of its training samples, evenly spaced through them (they may be sorted), on the whole image.
    """
    stride = -(-len(client.train) // SAMPLES)
    x, y = prepare(client.train.images[::stride]), client.train.labels[::stride]
    a, c = model(x)
    losses = {"class": F.cross_entropy(a, y), "client": F.cross_entropy(c, torch.full_like(y, client.index))}
    last = {"class": model.head, "client": model.client_head}
    found = {}
    for name, loss in losses.items():
        for block, module in (("backbone", model.backbone), ("last layer", last[name])):
            parts = torch.autograd.grad(loss, list(module.parameters()), retain_graph=True)  # type: ignore[union-attr]
            found[f"{name}, {block}"] = torch.cat([part.flatten() for part in parts])
    return found


def drift(crowd: Crowd, federation: Federation) -> list[Row]:
    """The probe: drift[loss, block], spread[loss, block] (its numerator) and drift_ratio[block] of this round."""
    model = crowd.model
    if not hasattr(model, "client_head"):
        raise FedlibError(
            f"probes: drift compares FedDRM's two losses; {type(crowd.method).__name__} has no client head"
        )
    model.eval()
    per_client = []
    for client, state in zip(federation.clients, crowd.states, strict=True):
        model.load_state_dict(state)
        per_client.append(branch_gradients(model, client))
    t, rows, relative = crowd.server.round, [], {}
    for name in per_client[0]:
        relative[name], spread = relative_drift(torch.stack([own[name] for own in per_client]), crowd.shares)
        rows.append(Row(t, f"drift[{name}]", "after_aggregation", -1, float(relative[name])))
        rows.append(Row(t, f"spread[{name}]", "after_aggregation", -1, float(spread)))
    for block in ("backbone", "last layer"):
        ratio = relative[f"client, {block}"] / relative[f"class, {block}"]
        rows.append(Row(t, f"drift_ratio[{block}]", "after_aggregation", -1, float(ratio)))
    return rows
