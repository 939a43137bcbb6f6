"""FedAS: the body that comes down is aligned with the client's own features, and bodies are weighted by Fisher traces.

Yang, Huang, Ye: FedAS: Bridging Inconsistency in Personalized Federated Learning, CVPR 2024.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedlib.data.federation import Samples
from fedlib.methods.fedpac import class_moments, features
from fedlib.methods.fedper import FedPer
from fedlib.methods.method import Server, State, Upload, Work, hyper
from fedlib.training import Batch, Terms, batches, only, sgd

TINY = torch.finfo(torch.float32).tiny
"""The least weight of a client: if all traces vanish, clients weigh the same."""


@dataclass(frozen=True)
class FedAS(FedPer):
    """With f the input of the head (d numbers), client i, from the body theta and its own head phi_i:

        alignment  theta <- A steps of SGD on  sum_k mean_{j: y_j = k} ||f(x_j) - p_ik||^2 / d,   over classes in the
                   batch; p_ik: the mean of f over its samples of class k, under its own model at the end of its last
                   round (so there is no alignment in its first one)
        training   (theta_i, phi_i) <- E joint steps of SGD on the cross-entropy
        Fisher     t_i = sum_b ||grad mean_{j in b} log p(y_j | x_j)||^2,   over the mini-batches b of one pass and all
                   parameters: an estimate of the Fisher information's trace (exact where a mini-batch is one sample)

    Server (client synchronisation): theta <- sum_i t_i theta_i / sum_i t_i. Heads never travel.

    The terms of p_ik and t_i are those of the authors' implementation; the paper's text was not available. It
    evaluates local models; here clients are evaluated after aggregation, as for all other methods.

    align_steps: A; None takes as many as E (the authors align for one epoch). align_lr: their rate, constant; these
    steps have neither momentum nor weight decay.
    """

    align_steps: int | None = hyper(None, least=0, whole=True)
    align_lr: float = hyper(0.01, above=0.0)

    def start(self, work: Work) -> None:
        work.model.load_state_dict(work.message | own_head(work.memory))

    def client_update(self, work: Work) -> Upload:
        self.start(work)
        steps = work.local.count(len(work.samples)) if self.align_steps is None else self.align_steps
        if steps and "prototypes" in work.memory:
            self.align(work, steps)
        upload = self.upload(work, self.descend(work))
        p = prototypes(work.model, work.samples)
        return replace(upload, memory=upload.memory | {"prototypes": p}, extra={"fisher": self.fisher_trace(work)})

    def align(self, work: Work, steps: int) -> None:
        """The steps of alignment, on the body alone."""

        def loss(batch: Batch) -> Terms:
            return {"total": alignment(work.model, batch, work.memory["prototypes"])}

        plain = replace(work.local, momentum=0.0, weight_decay=0.0)
        with only(work.model, self.shared) as body:
            sgd(work.model, work.batches(steps), loss, body, plain, self.align_lr)

    def fisher_trace(self, work: Work) -> Tensor:
        """t_i of the trained model."""
        work.model.eval()
        one_pass = replace(work.local, steps=None, epochs=1, crop=False)
        t = torch.zeros((), dtype=torch.float64, device=work.samples.labels.device)
        for batch in batches(work.samples, one_pass, work.client, work.generator):
            loss = F.cross_entropy(work.model(batch.x), batch.y)
            for slope in torch.autograd.grad(loss, list(work.model.parameters())):
                t += slope.double().square().sum()
        return t

    def weight(self, server: Server, upload: Upload) -> float:
        return max(float(upload.extra["fisher"]), TINY)

    def personal_model(self, server: Server, client: int, memory: State) -> State:
        return server.weights | own_head(memory)


def own_head(memory: State) -> State:
    """phi_i, without what the client keeps for the alignment."""
    return {name: tensor for name, tensor in memory.items() if name.startswith("head.")}


def prototypes(model: nn.Module, samples: Samples) -> Tensor:
    """p (K, d): the mean of f over each class; 0 for a class without samples."""
    found = class_moments(model, samples)
    return (found.sums / found.counts.clamp(min=1.0)[:, None]).float()


def alignment(model: nn.Module, batch: Batch, p: Tensor) -> Tensor:
    """The mean squared error of f to the class's prototype in each class of the batch, summed over these classes."""
    error = (features(model, batch.x) - p[batch.y]).square().mean(1)
    in_batch = F.one_hot(batch.y, len(p)).sum(0)
    return (error / in_batch[batch.y]).sum()
