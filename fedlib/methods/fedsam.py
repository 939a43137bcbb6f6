"""FedSAM and FedSAMFT: clients look for flat minima.

Qu, Li, Duan, Liu, Tang, Lu: Generalized Federated Learning via Sharpness Aware Minimization, ICML 2022.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.utils import get_total_norm

from fedlib.methods.fedavg_ft import FedAvgFT
from fedlib.methods.method import Method, Upload, Work, hyper
from fedlib.training import Terms, backward


@dataclass(frozen=True)
class FedSAM(Method):
    """Every local step follows the gradient of the worst point near w, on the same mini-batch:

        g  = grad F_i(w)
        w' = w + rho g / ||g||                       (the norm is over all trained parameters together)
        w <- SGD step from w with grad F_i(w')

    rho: the radius; 0 is FedAvg. Momentum and weight decay belong to the SGD step, the losses reported are those at w.
    """

    rho: float = hyper(0.05, least=0.0)

    def gradient(self, loss: Callable[[], Terms], parameters: Sequence[nn.Parameter]) -> Terms:
        terms = backward(loss, parameters)
        climbing = [(w, w.detach().clone(), w.grad) for w in parameters if w.grad is not None]
        with torch.no_grad():
            norm = get_total_norm([g for _, _, g in climbing])
            norm = norm.clamp_min(torch.finfo(norm.dtype).tiny)  # g = 0 stays where it is
            for w, _, g in climbing:
                w.add_(g / norm, alpha=self.rho)
                w.grad = None
        backward(loss, parameters)
        with torch.no_grad():
            for w, before, _ in climbing:
                w.copy_(before)
        return terms


@dataclass(frozen=True)
class FedSAMFT(FedSAM, FedAvgFT):
    """Rounds 1 … T - F: FedSAM. Rounds T - F + 1 … T: FedAvgFT's fine-tuning, with plain SGD.

    A baseline of Wang et al. (FedDRM, ICLR 2026).
    """

    def client_update(self, work: Work) -> Upload:
        if self.tuning(work.round, work.rounds):
            return FedAvgFT(ft_rounds=self.ft_rounds, ft_lr=self.ft_lr).client_update(work)
        return super().client_update(work)
