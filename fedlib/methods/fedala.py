"""FedALA: each client mixes the global model into its own, element by element, before it trains.

Zhang, Hua, Wang, Song, Xue, Ma, Guan: FedALA: Adaptive Local Aggregation for Personalized Federated Learning,
AAAI 2023.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import pstdev

import torch
from torch import nn

from fedlib.checks import FedlibError
from fedlib.data.federation import Samples
from fedlib.methods.method import Method, Server, State, Task, Upload, Work, hyper
from fedlib.methods.names import named, under
from fedlib.streams import torch_stream
from fedlib.training import batches, only

WINDOW = 10


@dataclass(frozen=True)
class FedALA(Method):
    """Client i, from the global model theta and its own last model theta_i:

        init = theta_i + (theta - theta_i) * W_i     in the last p layers, theta below (a layer: a module with weights)
        W_i <- clip(W_i - eta * dL/dinit * (theta - theta_i), 0, 1)     at each mini-batch of a share s of its samples
        theta_i <- E steps of SGD from init

    Server: theta <- sum_i (n_i / n) theta_i, all layers. W_i starts at 1. It is learned in passes over the share: until
    the losses of the last 10 passes have a standard deviation below `threshold` (or `most_passes` are done) when theta
    and theta_i first differ, which is the client's second round; one pass in every round after that.

    Evaluated after aggregation, on init of the new theta with the last W_i. The authors' implementation evaluates
    init as well, but after the next pass of W_i, which is training; the criterion and its values are its own, too.

    top_layers: p. data_share: s.
    """

    top_layers: int = hyper(1, least=1, whole=True)
    eta: float = hyper(1.0, least=0.0)
    data_share: float = hyper(0.8, above=0.0, most=1.0)
    threshold: float = hyper(0.1, above=0.0)
    most_passes: int = hyper(50, least=1, whole=True)

    def build(self, task: Task) -> nn.Module:
        model = super().build(task)
        found = len(layers(model))
        if self.top_layers > found:
            where = f"{type(self).__name__}.top_layers"
            raise FedlibError(f"{where}: {self.top_layers} is more than the {found} layers of this model; give fewer")
        return model

    def client_update(self, work: Work) -> Upload:
        top = self.top(work.model)
        theta, own, W = work.message, under("own", work.memory), under("W", work.memory)
        work.model.load_state_dict(theta)
        if any(not torch.equal(own[name], theta[name]) for name in own):
            W = self.learn(work, own, W)
            work.model.load_state_dict(theta | mixed(own, theta, W))
        upload = self.upload(work, self.descend(work))
        kept = {name: upload.weights[name] for name in top}
        return replace(upload, memory=named("own", kept) | named("W", W))

    def top(self, model: nn.Module) -> list[str]:
        """The names of the parameters in the last p layers."""
        last = layers(model)[-self.top_layers :]
        return [name for name, _ in model.named_parameters() if layer_of(name) in last]

    def learn(self, work: Work, own: State, W: State) -> State:
        """W_i after the passes of this round. They have a random stream of their own."""
        stream = torch_stream(work.generator.initial_seed(), "local aggregation")
        count = max(1, int(self.data_share * len(work.samples)))
        chosen = torch.randperm(len(work.samples), generator=stream)[:count].to(work.samples.labels.device)
        part = Samples(work.samples.images[chosen], work.samples.labels[chosen])
        first = not W
        W = W or {name: torch.ones_like(tensor) for name, tensor in own.items()}
        losses: list[float] = []
        while True:
            W, loss = self.one_pass(work, part, own, W, stream)
            losses.append(loss)
            if not first or self.settled(losses) or len(losses) == self.most_passes:
                return W

    def one_pass(self, work: Work, part: Samples, own: State, W: State, stream: torch.Generator) -> tuple[State, float]:
        """W_i after one pass, and the mean loss on the way."""
        work.model.train()
        parameters = {name: w for name, w in work.model.named_parameters() if name in own}
        losses = []
        with only(work.model, lambda name: name in own):
            for batch in batches(part, replace(work.local, steps=None, epochs=1), work.client, stream):
                for name, init in mixed(own, work.message, W).items():
                    parameters[name].data.copy_(init)
                loss = self.loss(work.model, batch, work)["total"]
                losses.append(loss.detach())
                slopes = torch.autograd.grad(loss, list(parameters.values()))
                for name, slope in zip(parameters, slopes, strict=True):
                    step = self.eta * slope * (work.message[name] - own[name])
                    W = W | {name: (W[name] - step).clamp(0.0, 1.0)}
        return W, float(torch.stack(losses).mean())

    def settled(self, losses: Sequence[float]) -> bool:
        """Whether the loss has stopped moving."""
        return len(losses) > WINDOW and pstdev(losses[-WINDOW:]) < self.threshold

    def personal_model(self, server: Server, client: int, memory: State) -> State:
        return server.weights | mixed(under("own", memory), server.weights, under("W", memory))


def layer_of(name: str) -> str:
    """The module that holds a parameter."""
    return name.rpartition(".")[0]


def layers(model: nn.Module) -> list[str]:
    """The modules that hold parameters, from input to output."""
    return list(dict.fromkeys(layer_of(name) for name, _ in model.named_parameters()))


def mixed(own: State, theta: State, W: State) -> State:
    """theta_i + (theta - theta_i) * W, exact where W is 0 or 1; nothing as long as there is no W."""
    return {name: torch.lerp(own[name], theta[name], w) for name, w in W.items()}
