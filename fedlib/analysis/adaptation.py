"""Accuracy after one more round of local work on each client's own samples: how much of a result is fine-tuning.

Personalised methods are often tested right after local training, and FedAvg right before it (FedFew specification,
trap 2). The probe gives both numbers for every method.
"""

from __future__ import annotations

import torch

from fedlib.data.federation import Federation
from fedlib.labels import label_loss
from fedlib.methods.method import State
from fedlib.methods.several import Several, choose
from fedlib.metrics import Crowd, Row, accuracy, own
from fedlib.streams import derive, torch_stream
from fedlib.training import Batch, NotFinite, Terms, batches, sgd


def adapted(crowd: Crowd, federation: Federation) -> list[Row]:
    """The probe: adapted@local. Every client takes E more steps of SGD on labels.label_loss, from its own model.

    The steps are those of the round that follows, at the rate of this round (Experiment refuses a cosine, on which that
    ends near zero). Where there are several models for all, it takes them from each, over mini-batches of its own, and
    chooses among the trained ones.
    """
    method = crowd.method
    accuracies = []
    for i, client in enumerate(federation.clients):
        several = isinstance(method, Several)
        start = method.candidates(crowd.server, i, crowd.memories[i]) if several else [crowd.states[i]]
        try:
            ends = [_trained(crowd, i, k, state) for k, state in enumerate(start)]
        except NotFinite as error:
            raise NotFinite(f"probe adapted, further local work of client {i}: {error}") from error
        best = choose(method, crowd, i, ends) if isinstance(method, Several) else 0
        crowd.model.load_state_dict(ends[best])
        with torch.no_grad():
            accuracies.append(accuracy(crowd.model, client.test, method.class_logits))
    return own(crowd, "after_local", "adapted", torch.stack(accuracies))


def _trained(crowd: Crowd, client: int, k: int, state: State) -> State:
    """The network after E steps from these weights; mini-batches and dropout have streams of their own."""
    site = crowd.site
    assert site is not None
    purpose = ("adaptation", crowd.server.round, client, k)
    data = batches(site.train[client], site.local, client, torch_stream(site.task.seed, *purpose))
    crowd.model.load_state_dict(state)

    def loss(batch: Batch) -> Terms:
        return {"total": label_loss(crowd.method.class_logits(crowd.model(batch.x)), batch.y)}

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(site.task.seed, "dropout", *purpose))
        sgd(crowd.model, data, loss, list(crowd.model.parameters()), site.local, crowd.lr)
    return {name: tensor.clone() for name, tensor in crowd.model.state_dict().items()}
