"""FedRCL: supervised contrastive learning at several depths, relaxed where a class has already closed in on itself.

Seo, Kim, Kim, Han: Relaxed Contrastive Learning for Federated Learning, CVPR 2024.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedlib.methods.method import Method, Work, hyper
from fedlib.training import Batch, Terms


@dataclass(frozen=True)
class FedRCL(Method):
    """Client k, from theta: E steps of SGD on

        CE(y; f(x)) + lam * mean_l mean_i (scl_i + div_i)                   over the levels l and a batch's samples i

    with s_ij the cosine of the samples' features at level l, p_i = min_j s_ij over the samples of i's class, itself
    among them, N_i the `negatives` largest s_ij over all other classes, and q_i = min_j s_ij over its class without
    itself:

        scl_i = -log [ exp(p_i / tau) / (exp(p_i / tau) + sum_{s in N_i} exp(s / tau)) ]
        div_i = log(1 + exp((q_i - 1) / tau))   if q_i > threshold, else 0

    scl pulls the least similar sample of the class near and drives the most similar strangers away; alone it collapses
    a class to a point. div, the penalty, drives the least similar one away once it is nearer than `threshold`. In a
    batch of one class there are no strangers: scl_i = 0. Of the only sample of its class, p_i = 1 and div_i = 0.

    Server: FedAvg.

    Levels: the outputs of the backbone's blocks (the children that are modules of several layers) but the last, and z
    in its place; maps are averaged over their positions. In resnet10: stem, layer1, layer2, layer3, and z, which is
    the pooled layer4. A backbone of single layers, such as small_cnn's, has the level z only.

    The terms, the choice of the pairs and the mean over the levels are those of the authors' implementation (spec, 6);
    the paper's text was not available. They compare the blocks' features before the last ReLU, here it is those after
    it.

    tau: temperature. threshold: how similar a class may become without penalty. lam: weight of both terms; 0 is FedAvg.
    """

    tau: float = hyper(0.05, above=0.0)
    threshold: float = hyper(0.7, least=-1.0, most=1.0)
    lam: float = hyper(1.0, least=0.0)
    negatives: int = hyper(2, least=1, whole=True)

    def loss(self, model: nn.Module, batch: Batch, work: Work) -> Terms:
        with recorded(blocks(model.backbone)[:-1]) as maps:  # type: ignore[arg-type]
            z = model.embed(batch.x)  # type: ignore[operator]
        target = F.cross_entropy(model.head(z), batch.y)  # type: ignore[operator]
        terms = [relaxed_contrastive(g, batch.y, self.tau, self.threshold, self.negatives) for g in (*maps, z)]
        scl, div = (torch.stack(values).mean() for values in zip(*terms, strict=True))
        total = target + self.lam * (scl + div)
        return {"total": total, "target": target, "contrastive": scl, "divergence": div}


def blocks(backbone: nn.Module) -> list[nn.Module]:
    """The children of several layers, in their order."""
    return [child for child in backbone.children() if any(True for _ in child.children())]


@contextmanager
def recorded(modules: list[nn.Module]) -> Iterator[list[Tensor]]:
    """Yields a list to which each of these modules adds its output, whenever it is called meanwhile."""
    outputs: list[Tensor] = []
    hooks = [module.register_forward_hook(lambda _, __, output: outputs.append(output)) for module in modules]
    try:
        yield outputs
    finally:
        for hook in hooks:
            hook.remove()


def similarities(g: Tensor) -> Tensor:
    """s (N, N): cosines of features (N, d), or of maps (N, d, H, W) averaged over their positions; 1 at most."""
    with torch.autocast(g.device.type, enabled=False):  # a temperature of 0.05 leaves bfloat16 too few digits
        # The gradient of avg_pool2d is laid out as the map is, channels last; that of a plain mean slows all the rest.
        pooled = F.avg_pool2d(g.float(), g.shape[2:]) if g.dim() == 4 else g.float()
        direction = F.normalize(pooled.flatten(1), dim=1)
        return (direction @ direction.T).clamp(max=1.0)


def relaxed_contrastive(
    g: Tensor, y: Tensor, tau: float, threshold: float, negatives: int = 2
) -> tuple[Tensor, Tensor]:
    """The means of scl_i and div_i over a batch; g: features (N, d) or maps (N, d, H, W), y: labels (N,)."""
    s = similarities(g)
    same = y[:, None] == y
    p = s.masked_fill(~same, math.inf).amin(1)
    strangers = s.masked_fill(same, -math.inf).topk(min(negatives, len(y)), dim=1).values
    # The class of index 0 is p's: cross-entropy is scl.
    scl = F.cross_entropy(torch.cat([p[:, None], strangers], 1) / tau, torch.zeros_like(y))
    q = s.masked_fill(~same, math.inf).fill_diagonal_(math.inf).amin(1)
    near = (q > threshold) & q.isfinite()
    # Where there is no penalty, q may be infinite: it must not reach the exponential, whose gradient would be NaN.
    div = F.softplus((torch.where(near, q, threshold) - 1) / tau) * near
    return scl, div.mean()
