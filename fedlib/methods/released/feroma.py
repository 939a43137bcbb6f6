"""What FEROMA's released code ran where it differs from the paper (trap numbers: the specification's section 7)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedlib.checks import FedlibError, check_choice
from fedlib.methods.feroma import FEROMA
from fedlib.methods.method import Server, hyper
from fedlib.profiles import renormalised
from fedlib.streams import torch_stream


@dataclass(frozen=True)
class FEROMAAsReleased(FEROMA):
    """Trap 1: w_kj in proportion to 1 / (D_kj + 1e-8); no threshold and no fallback, in any commit. The models' weights

        w_bar_kj = w_kj n_j / sum_j' w_kj' n_j'

    of round W + 1 too, where all w_kj are alike. n_j, there the size of what the profile is drawn from, is here that of
    the training samples: a fixed share of the same samples, but for rounding. Without re-sampling and drift a client's
    own last profile is at distance 0, and so has all the weight (trap 18).

    misaligned: trap 2. The columns of w are in the order in which the profiles of the round before arrived, the models
    in that of their own arrival: client j's model is given the weight of another. Here one order is drawn at random in
    each round, and n_j goes with the model.
    """

    several_labels: ClassVar[bool] = True
    threshold: float = hyper(0.0, least=0.0)
    fallback: str = "samples"
    mapping: str = "inverse"
    misaligned: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(f"{type(self).__name__}.misaligned", self.misaligned, (True, False))
        if self.threshold > 0 or self.fallback != "samples":
            raise FedlibError(
                f"{type(self).__name__}.threshold: {self.threshold:g}, fallback: {self.fallback}: nothing released has "
                "either; leave them out, or take FEROMA with mapping: inverse"
            )

    def mixing(self, server: Server, w: Tensor, rest: Tensor) -> Tensor:
        w_bar = super().mixing(server, w, rest)
        if self.misaligned:
            stream = torch_stream(int(server.memory["seed"]), "arrival", server.round + 1)
            w_bar = w_bar[:, torch.randperm(w.shape[1], generator=stream).to(w.device)]
        return renormalised(w_bar * rest)
