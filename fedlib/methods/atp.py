"""ATP: at test time each layer moves down the entropy of the unlabelled inputs, at a rate that was learned for it.

Bao, Wei, Wang, He: Adaptive Test-Time Personalization for Federated Learning, NeurIPS 2023.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedlib.checks import check_choice, need_fewer
from fedlib.data.federation import Visitor
from fedlib.methods.method import Crowd, Method, Server, State, Task, Upload, Work, hyper, weighted_mean
from fedlib.training import Local, NotFinite, batches, prepare

RATES, ROUNDS = "rates", "rounds"


@dataclass(frozen=True)
class ATP(Method):
    """Rounds 1 … T - A: FedAvg. Rounds T - A + 1 … T: theta stands still, and the rates, one for each parameter tensor
    b and 0 at first, are learned. Client k, from the server's rates; for each mini-batch (x, y) of one pass,

        g_u = grad H(theta; x)                              (H: the mean entropy of softmax f(x); no labels)
        g_s = grad CE(y; f(x))  at  theta - rates * g_u     (rates_b g_u_b in tensor b)
        rates_b <- rates_b + eta <g_s_b, g_u_b>             (descent: d CE / d rates_b = -<g_s_b, g_u_b>)

    Server: rates <- sum_k (n_k / n) rates_k. A visitor's inputs are scored batch by batch, in their order, under

        theta - rates * g_u        (g_u at theta, of that batch; if `online`, the mean over it and all earlier batches)

    Everyone's own model is theta: the clients themselves are not adapted to.

    The equations are those of the spec (6); of the paper no more could be read. Decided here: both gradients are those
    of evaluation mode and of images as a visitor has them, neither cut nor mirrored; `online` is the plain mean over
    batches. Left out: rates for BatchNorm's running statistics, which stay as FedAvg left them (LeNet-5 has none). Not
    defined for several labels a sample. On a cosine, FedAvg ends before the rate has come down to zero.

    adaptation_rounds: A. rate_lr: eta. batch: samples of a mini-batch, in learning and at test time. normalise: the
    inner product is divided by the square root of tensor b's size. The history has H as train_loss[entropy].
    """

    adaptation_rounds: int = hyper(5, least=1, whole=True)
    rate_lr: float = hyper(0.1, above=0.0)
    batch: int = hyper(20, least=1, whole=True)
    normalise: bool = False
    online: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("normalise", "online"):
            check_choice(f"{type(self).__name__}.{name}", getattr(self, name), (True, False))

    def check(self, rounds: int, lr: float, local: Local) -> None:
        need_fewer(self, "adaptation_rounds", self.adaptation_rounds, rounds, "rounds")

    def remember(self, task: Task) -> State:
        """rates (B,), in the order of the network's parameters, and T."""
        tensors = sum(1 for _ in self.build(task).parameters())
        return super().remember(task) | {RATES: torch.zeros(tensors), ROUNDS: torch.tensor(task.rounds)}

    def broadcast(self, server: Server, client: int, memory: State) -> State:
        learning = server.round >= int(server.memory[ROUNDS]) - self.adaptation_rounds
        return server.weights | {RATES: server.memory[RATES]} if learning else server.weights

    def client_update(self, work: Work) -> Upload:
        return self.learn(work) if RATES in work.message else super().client_update(work)

    def learn(self, work: Work) -> Upload:
        """One pass of one client, which sends its rates alone. Raises NotFinite if they are not finite at the end."""
        w = self.hold(work.model, {name: tensor for name, tensor in work.message.items() if name != RATES})
        rates, record = work.message[RATES].clone(), []
        local = replace(work.local, steps=None, epochs=1, batch_size=self.batch, crop=False, padding=0, flip=False)
        for batch in batches(work.samples, local, work.client, work.generator):

            def supervised(logits: Tensor, y: Tensor = batch.y) -> Tensor:
                return F.cross_entropy(logits, y)

            H, g_u = self.gradient_at(work.model, w, batch.x, entropy)
            loss, g_s = self.gradient_at(work.model, adapted(w, rates, g_u), batch.x, supervised)
            rates += self.rate_lr * torch.stack([self.product(g_s[b], g_u[b]) for b in w])
            record.append(torch.stack([loss, H]))
        target, H = torch.stack(record).mean(0).tolist()
        if not rates.isfinite().all():
            raise NotFinite(f"the rates are not finite after {len(record)} steps; lower {type(self).__name__}.rate_lr")
        losses = {"total": target, "target": target, "entropy": H}
        return Upload(work.client, {RATES: rates}, work.memory, len(work.samples), losses)

    def product(self, g_s: Tensor, g_u: Tensor) -> Tensor:
        """<g_s_b, g_u_b> (), over the square root of the tensor's size if `normalise`."""
        inner = (g_s * g_u).sum()
        return inner / math.sqrt(g_u.numel()) if self.normalise else inner

    def hold(self, model: nn.Module, theta: State) -> State:
        """Load theta, for evaluation; its parameters, by name."""
        model.load_state_dict(theta)
        model.eval()
        return {name: w.detach() for name, w in model.named_parameters()}

    def gradient_at(
        self, model: nn.Module, w: State, x: Tensor, objective: Callable[[Tensor], Tensor]
    ) -> tuple[Tensor, State]:
        """(value (), gradient by w) of an objective of the class logits; the model itself is not touched."""
        at = {name: tensor.detach().requires_grad_() for name, tensor in w.items()}
        with torch.enable_grad():
            value = objective(self.class_logits(call(model, at, x)))
            slopes = torch.autograd.grad(value, list(at.values()), allow_unused=True, materialize_grads=True)
        return value.detach(), dict(zip(at, slopes, strict=True))

    def aggregate(self, server: Server, uploads: Iterable[Upload]) -> Server:
        """The mean of what came, theta or rates; the other stays."""
        start = server.weights | {RATES: server.memory[RATES]}
        mean = weighted_mean(start, uploads, lambda upload: self.weight(server, upload))
        rates = mean.pop(RATES)
        return Server(mean, server.round + 1, server.memory | {RATES: rates})

    def answer(self, crowd: Crowd, visitor: Visitor, client: int | None) -> Tensor:
        """Probabilities (N, classes) under the model as it is adapted to the visitor's own inputs."""
        model, rates, scores = crowd.model, crowd.server.memory[RATES], []
        w = self.hold(model, crowd.server.weights)
        mean: State = {}
        for count, images in enumerate(visitor.samples.images.split(self.batch), start=1):
            x = prepare(images)
            _, g_u = self.gradient_at(model, w, x, entropy)
            mean = {b: mean[b] + (g_u[b] - mean[b]) / count for b in w} if mean and self.online else g_u
            with torch.no_grad():
                scores.append(self.class_logits(call(model, adapted(w, rates, mean), x)).softmax(-1))
        return torch.cat(scores)


def entropy(logits: Tensor) -> Tensor:
    """(N, classes) -> (): the mean over samples of -sum_u p_u log p_u, p = softmax."""
    log_p = logits.log_softmax(-1)
    return -(log_p.exp() * log_p).sum(-1).mean()


def adapted(w: State, rates: Tensor, g_u: State) -> State:
    """w_b - rates_b g_u_b for each parameter tensor b."""
    return {b: tensor - rate * g_u[b] for rate, (b, tensor) in zip(rates.unbind(), w.items(), strict=True)}


def call(model: nn.Module, w: State, x: Tensor) -> Any:
    """The network's raw output under other parameters."""
    return torch.func.functional_call(model, w, (x,))
