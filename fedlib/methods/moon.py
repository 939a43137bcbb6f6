"""MOON: model-contrastive learning, features near the global model's and away from the client's previous ones.

Li, He, Song: Model-Contrastive Federated Learning, CVPR 2021.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedlib.methods.method import Method, Server, State, Upload, Work, hyper
from fedlib.methods.names import named, under
from fedlib.training import Batch, Terms

LAST = "last"


@dataclass(frozen=True)
class MOON(Method):
    """Client i, from theta: E steps of SGD on  CE(y; f(x)) + mu * l_con, with s the cosine similarity,

        l_con = -log( e^{s(z, z_glob) / tau} / (e^{s(z, z_glob) / tau} + e^{s(z, z_prev) / tau}) )

    z: the input of the head under the client's weights w; z_glob: under theta, as it came down; z_prev: under the
    weights at the end of the client's last round (theta in its first one: then l_con = log 2 and has no gradient).

    The paper's networks have a projection head before the last layer, and z is its output. Here all methods train the
    same network, without one. z_glob and z_prev have no gradient and are those of evaluation mode: BatchNorm takes the
    running statistics that belong to the weights, and changes none.

    mu: weight of the contrast; 0 is FedAvg. tau: its temperature.
    """

    mu: float = hyper(5.0, least=0.0)
    tau: float = hyper(0.5, above=0.0)

    def start(self, work: Work) -> None:
        work.model.load_state_dict(work.message | own(work.memory))

    def client_update(self, work: Work) -> Upload:
        upload = super().client_update(work)
        return replace(upload, memory=upload.memory | named(LAST, upload.weights | upload.memory))

    def loss(self, model: nn.Module, batch: Batch, work: Work) -> Terms:
        z = model.embed(batch.x)  # type: ignore[operator]
        target = F.cross_entropy(model.head(z), batch.y)  # type: ignore[operator]
        last = under(LAST, work.memory)
        contrast = z.new_full((), math.log(2.0))
        if last:
            z_glob = embed_under(work.message | own(work.memory), model, batch.x)
            contrast = model_contrast(z, z_glob, embed_under(last, model, batch.x), self.tau)
        return {"total": target + self.mu * contrast, "target": target, "contrast": contrast}

    def personal_model(self, server: Server, client: int, memory: State) -> State:
        return super().personal_model(server, client, own(memory))


def model_contrast(z: Tensor, z_glob: Tensor, z_prev: Tensor, tau: float) -> Tensor:
    """The mean of l_con over z (N, width): log(1 + e^{(b - a) / tau}) with a = s(z, z_glob), b = s(z, z_prev)."""
    a, b = F.cosine_similarity(z, z_glob), F.cosine_similarity(z, z_prev)
    return F.softplus((b - a) / tau).mean()


class Embed(nn.Module):
    """A network whose output is the input of its head."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        return self.network.embed(x)  # type: ignore[operator]


@torch.no_grad()
def embed_under(weights: State, model: nn.Module, x: Tensor) -> Tensor:
    """z of x under other weights, in evaluation mode; the model itself is as before."""
    training = model.training
    model.eval()
    named = {f"network.{name}": w for name, w in weights.items()}
    z = torch.func.functional_call(Embed(model), named, (x,))
    model.train(training)
    return z


def own(memory: State) -> State:
    """What the client keeps of the network itself, without its last weights."""
    return {name: w for name, w in memory.items() if not name.startswith(f"{LAST}/")}
