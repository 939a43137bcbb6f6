"""What prototype methods (FPL, FedTGP) share: clients send class means beside the weights, and get prototypes back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedlib.data.federation import Samples
from fedlib.forward import embeddings
from fedlib.methods.method import Method, Server, State, Upload, Work

PROTOTYPES = "prototypes/"


@dataclass(frozen=True)
class Prototyped(Method):
    """FedAvg, whose clients also send the mean of each class's z, and get what the server keeps under "prototypes/".

    z: the input of the head (d numbers), under the weights that go up. A base class: what is made of the means in
    `aggregate`, and of the prototypes in `loss`, is the subclass's. By itself it is FedAvg.
    """

    abstract: ClassVar[bool] = True

    def broadcast(self, server: Server, client: int, memory: State) -> State:
        prototypes = {name: tensor for name, tensor in server.memory.items() if name.startswith(PROTOTYPES)}
        return super().broadcast(server, client, memory) | prototypes

    def client_update(self, work: Work) -> Upload:
        upload = super().client_update(work)
        return replace(upload, extra=upload.extra | class_means(work.model, work.samples))


def class_means(model: nn.Module, samples: Samples) -> State:
    """means (h, d): the mean of z over each of the h classes that the client has; classes (h,): which these are."""
    classes, index, counts = samples.labels.unique(return_inverse=True, return_counts=True)
    passes = embeddings(model, replace(samples, labels=index))
    sums = torch.stack([F.one_hot(k, len(classes)).double().T @ z.double() for z, k in passes]).sum(0)
    return {"means": (sums / counts[:, None]).float(), "classes": classes}


def noting(uploads: Iterable[Upload], sent: dict[int, State]) -> Iterator[Upload]:
    """The uploads as they come; `sent` is filled with what each client sends beside its weights."""
    for upload in uploads:
        sent[upload.client] = upload.extra
        yield upload


def everyones(sent: Mapping[int, State]) -> tuple[Tensor, Tensor]:
    """All class means (M, d), float64, and their classes (M,), in the clients' order, whichever came first."""
    p = torch.cat([sent[client]["means"] for client in sorted(sent)]).double()
    return p, torch.cat([sent[client]["classes"] for client in sorted(sent)])
