"""Accuracy after one more round of local work on each client's own samples: how much of a result is fine-tuning.

Personalised methods are often tested right after local training, and FedAvg right before it (FedFew specification,
trap 2). The probe gives both numbers for every method.
"""

from __future__ import annotations

import torch

from fedlib.data.federation import Federation
from fedlib.methods.method import Method, State, Work
from fedlib.methods.several import Several, choose
from fedlib.metrics import Crowd, Row, accuracy, own
from fedlib.streams import torch_stream


def adapted(crowd: Crowd, federation: Federation) -> list[Row]:
    """The probe: adapted@local. Every client takes E more steps of SGD on the cross-entropy, from its own model.

    Where there are several models for all, it takes them from each, and chooses among the trained ones.
    """
    site = crowd.site
    assert site is not None
    method, t = crowd.method, crowd.server.round
    accuracies = []
    for i, client in enumerate(federation.clients):
        several = isinstance(method, Several)
        start = method.candidates(crowd.server, i, crowd.memories[i]) if several else [crowd.states[i]]
        stream = torch_stream(site.task.seed, "adaptation", t, i)
        trained: list[State] = []
        for state in start:
            crowd.model.load_state_dict(state)
            work = Work(i, site.train[i], state, {}, crowd.model, site.local, crowd.lr, t, site.task.rounds, stream)
            Method().descend(work)
            trained.append({name: tensor.clone() for name, tensor in crowd.model.state_dict().items()})
        k = choose(method, crowd, i, trained) if isinstance(method, Several) else 0
        crowd.model.load_state_dict(trained[k])
        accuracies.append(accuracy(crowd.model, client.test, method.class_logits))
    return own(crowd, "after_local", "adapted", torch.stack(accuracies))
