"""FPL: prototypes of each class are clustered, so that no domain's is lost, and averaged, so that none dominates.

Huang, Ye, Shi, Li, Du: Rethinking Federated Learning with Domain Shift: A Prototype View, CVPR 2023.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedlib.checks import check_choice
from fedlib.methods.finch import finch
from fedlib.methods.method import Server, State, Upload, Work, hyper
from fedlib.methods.prototypes import PROTOTYPES, Prototyped, everyones, noting
from fedlib.training import Batch, Terms

PARTITIONS = {"first": 0, "last": -1}


@dataclass(frozen=True)
class FPL(Prototyped):
    """With z the input of the head (d numbers), client m's prototype of class k is p_m^k, the mean of z over its
    samples of that class. Of the prototypes of class k that arrive, {p_m^k}_m, the server makes

        cluster prototypes  C^k = {c_j^k}_j, the means of their FINCH clusters under the cosine
        unbiased prototype  U^k = mean_j c_j^k

    and averages the weights as FedAvg does. Clients, from round 2 on, minimise  CE + L_CPCL + L_UPCR, the means over
    the samples (x, y = k) of a mini-batch of

        L_CPCL = -log( sum_{c in C^k} e^{s(z, c)} / sum_{c in all C} e^{s(z, c)} ),   s(z, c) = cos(z, c) / tau
        L_UPCR = ||z - U^k||^2 / d

    All participating clients count the same in C and U, however many samples they have. A class that none of them has
    is without prototypes in the next round; its samples, should there be any, add nothing to both terms.

    The 1 / d and tau are those of the authors' implementation. It takes the mean z of the last local epoch, while
    weights still change; here p_m^k is taken under the weights that go up, in evaluation mode, on the whole images.

    contrast, consistency: weights of L_CPCL and L_UPCR; 0 and 0 is FedAvg. contrast_tau: tau (the plug-in of F2DC, with
        which this method can be combined, has a tau of its own).
    hierarchy: which level of FINCH's, "first" (the first-neighbour clusters), or "last" (the coarsest one of more than
        one cluster, which the authors' implementation takes).
    """

    contrast_tau: float = hyper(0.02, above=0.0)
    contrast: float = hyper(1.0, least=0.0)
    consistency: float = hyper(1.0, least=0.0)
    hierarchy: str = "first"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(f"{type(self).__name__}.hierarchy", self.hierarchy, PARTITIONS)

    def loss(self, model: nn.Module, batch: Batch, work: Work) -> Terms:
        z = model.embed(batch.x)  # type: ignore[operator]
        target = F.cross_entropy(model.head(z), batch.y)  # type: ignore[operator]
        contrast, consistency = z.new_zeros(()), z.new_zeros(())
        if PROTOTYPES + "clusters" in work.message:
            C, classes, U = (work.message[PROTOTYPES + name] for name in ("clusters", "classes", "unbiased"))
            same = classes == batch.y[:, None]
            contrast = cluster_contrast(z, C, same, self.contrast_tau)
            consistency = ((z - U[batch.y]).square().mean(1) * same.any(1)).mean()
        total = target + self.contrast * contrast + self.consistency * consistency
        return {"total": total, "target": target, "contrast": contrast, "consistency": consistency}

    def aggregate(self, server: Server, uploads: Iterable[Upload]) -> Server:
        sent: dict[int, State] = {}
        after = super().aggregate(server, noting(uploads, sent))
        p, k = everyones(sent)
        found = cluster_prototypes(p, k, len(after.weights["head.bias"]), self.hierarchy)
        return replace(after, memory=after.memory | {PROTOTYPES + name: tensor for name, tensor in found.items()})


def cluster_contrast(z: Tensor, C: Tensor, same: Tensor, tau: float) -> Tensor:
    """The mean of L_CPCL over z (N, d); C (J, d); same (N, J): whether a cluster prototype is of the sample's class."""
    s = F.cosine_similarity(z[:, None], C, dim=-1) / tau
    # A sample without a prototype of its class has all of them above the line too: -log 1 = 0, without a gradient.
    above = same | ~same.any(1, keepdim=True)
    return (s.logsumexp(1) - s.masked_fill(~above, -torch.inf).logsumexp(1)).mean()


def cluster_prototypes(p: Tensor, k: Tensor, classes: int, partition: str) -> State:
    """clusters (J, d) and their classes (J,), of C; unbiased (K, d), of U: 0 for a class without prototypes.

    p (M, d), k (M,): the clients' prototypes and their classes.
    """
    U = p.new_zeros(classes, p.shape[1])
    C, of_class = [], []
    for c in k.unique().tolist():
        points = p[k == c]
        labels = torch.from_numpy(finch(points.cpu().numpy())[PARTITIONS[partition]]).to(p.device)
        members = F.one_hot(labels).to(p.dtype)
        means = (members.T @ points) / members.sum(0)[:, None]
        U[c] = means.mean(0)
        C.append(means)
        of_class += [c] * len(means)
    return {
        "clusters": torch.cat(C).float(),
        "classes": torch.tensor(of_class, device=p.device),
        "unbiased": U.float(),
    }
