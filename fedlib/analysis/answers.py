"""What each of a finished run's K server models answers on each client's own samples."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedlib.analysis.routing import crowd_of
from fedlib.checks import FedlibError, check_choice
from fedlib.forward import class_scores
from fedlib.methods.several import Several
from fedlib.runs import Run

PARTS = ("train", "validation", "test")


@dataclass(frozen=True)
class Answers:
    """Of K models on the n samples of one client: class logits (n, K, C), float64, and labels (n,), on the CPU."""

    logits: Tensor
    labels: Tensor

    @property
    def losses(self) -> np.ndarray:
        """(n, K): the cross-entropy of each sample under each model."""
        n, K, _ = self.logits.shape
        labels = self.labels[:, None].expand(n, K)
        return F.cross_entropy(self.logits.flatten(0, 1), labels.flatten(), reduction="none").view(n, K).numpy()

    @property
    def right(self) -> np.ndarray:
        """(n, K): whether each model classifies each sample right."""
        return (self.logits.argmax(2) == self.labels[:, None]).numpy()

    @property
    def right_together(self) -> np.ndarray:
        """(n,): the same under the mean of the K models' logits."""
        return (self.logits.mean(1).argmax(1) == self.labels).numpy()


def answers(run: Run, part: str) -> list[Answers]:
    """Those of each client, on its training, validation (held-out) or test samples; in evaluation mode.

    The models are the method's candidates: server models, with the client's own statistics where those stay with it.
    Raises FedlibError for a method with one model, and for a client without such samples.
    """
    check_choice("answers: part", part, PARTS)
    method = run.experiment.method
    if not isinstance(method, Several):
        name = type(method).__name__
        raise FedlibError(f"answers: {name} has no K models for all clients to choose among; give a run of FedFew")
    crowd = crowd_of(run)
    found = []
    for i, client in enumerate(crowd.federation.clients):
        samples = getattr(client, part)
        if not len(samples):
            raise FedlibError(f"answers: client {i} has no {part} samples; set {part}_share above 0, such as 0.1")
        by_model = []
        for state in method.candidates(crowd.server, i, crowd.memories[i]):
            crowd.model.load_state_dict(state)
            by_model.append(class_scores(crowd.model, samples.images, method.class_logits).double())
        found.append(Answers(torch.stack(by_model, 1).cpu(), samples.labels.cpu()))
    return found
