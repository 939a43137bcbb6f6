"""What prototype methods (FPL, FedTGP) share: clients send class means beside the weights, and get prototypes back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedlib.data.federation import Samples
from fedlib.forward import CHUNK
from fedlib.methods.method import Method, Server, State, Upload, Work
from fedlib.training import prepare

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


@torch.no_grad()
def class_means(model: nn.Module, samples: Samples) -> State:
    """means (h, d): the mean of z over each of the h classes that the client has; classes (h,): which these are."""
    model.eval()
    classes, index = samples.labels.unique(return_inverse=True)
    of_class = F.one_hot(index, len(classes)).double()
    parts = []
    for images, members in zip(samples.images.split(CHUNK), of_class.split(CHUNK), strict=True):
        z = model.embed(prepare(images))  # type: ignore[operator]
        parts.append(members.T @ z.double())
    sums = torch.stack(parts).sum(0)
    return {"means": (sums / of_class.sum(0)[:, None]).float(), "classes": classes}


def noting(uploads: Iterable[Upload], sent: dict[int, State]) -> Iterator[Upload]:
    """The uploads as they come; `sent` is filled with what each client sends beside its weights."""
    for upload in uploads:
        sent[upload.client] = upload.extra
        yield upload


def everyones(sent: Mapping[int, State]) -> tuple[Tensor, Tensor]:
    """All class means (M, d), float64, and their classes (M,), in the clients' order, whichever came first."""
    p = torch.cat([sent[client]["means"] for client in sorted(sent)]).double()
    return p, torch.cat([sent[client]["classes"] for client in sorted(sent)])
