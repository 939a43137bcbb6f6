"""FedAMP: each client is drawn to a combination of all models, in which those that are like its own weigh most.

Huang, Chu, Zhou, Wang, Liu, Pei, Zhang: Personalized Cross-Silo Federated Learning on Non-IID Data, AAAI 2021.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from fedlib.checks import FedlibError
from fedlib.methods.local_only import LocalOnly
from fedlib.methods.method import Server, State, Task, Upload, Work, hyper
from fedlib.methods.names import named
from fedlib.training import Batch, Terms

PIECE = 1_000_000


@dataclass(frozen=True)
class FedAMP(LocalOnly):
    """Clients keep w_i, and pay for being apart:  sum_i F_i(w_i) + lam sum_{i<j} A(||w_i - w_j||^2),  where
    A(x) = 1 - exp(-x / sigma) grows less and less: close models attract each other, distant ones leave each other be.
    Server, then client i, from its own w_i:

        xi_ij = step A'(||w_i - w_j||^2) = (step / sigma) exp(-||w_i - w_j||^2 / sigma),   j != i
        u_i   = sum_j xi_ij w_j,   xi_ii = 1 - sum_{j != i} xi_ij
        w_i   <- E steps of SGD on  F_i(w) + lam / (2 step) ||w - u_i||^2

    step is the paper's alpha_K. (The gradient of the sum over pairs would have twice these xi: the 2 is in lam.)

    sigma is a squared distance, and so depends on how many parameters a model has and how far it has come: far below
    all ||w_i - w_j||^2, every client is alone (xi_ii = 1); far above, all weigh alike. Implementations with sigma = 1
    are tied to their networks; the paper's values could not be read. Decided here: sigma = None takes the mean of
    ||w_i - w_j||^2 over all pairs, in every round, and gives A the height sigma / (m step), so that

        xi_ij = exp(-||w_i - w_j||^2 / sigma) / m,

    no less for a client itself, and lam / step is a leash as FedProx's mu is. A sigma that is given is the paper's,
    with A of height 1; u_i is a combination with weights from 0 to 1 only if (m - 1) step <= sigma.

    The server has everyone's last parameters: who is absent still serves the others. m: the clients that have taken
    part; before a client's first upload, u_i = w_i. Running statistics of BatchNorm stay with the client.

    lam: 0 is LocalOnly (SGD is stable only while lr * lam / step is below about 2).
    """

    several_labels: ClassVar[bool] = True
    lam: float = hyper(1.0, least=0.0)
    step: float = hyper(1.0, above=0.0)
    sigma: float | None = hyper(None, above=0.0)

    @property
    def differs_by_client(self) -> bool:
        return True

    def build(self, task: Task) -> nn.Module:
        others = task.clients - 1
        if self.sigma is not None and others * self.step > self.sigma:
            raise FedlibError(
                f"{type(self).__name__}.step: {self.step} is above sigma / (m - 1) = {self.sigma} / {others}, so that "
                "the weight of a client's own model could be negative; lower step, raise sigma or leave sigma out"
            )
        return super().build(task)

    def remember(self, task: Task) -> State:
        return {"xi": torch.eye(task.clients, dtype=torch.float64)}

    def broadcast(self, server: Server, client: int, memory: State) -> State:
        clients, models = known_models(server.memory)
        return combined(models, server.memory["xi"][client, clients]) if client in clients else {}

    def loss(self, model: nn.Module, batch: Batch, work: Work) -> Terms:
        terms, u = super().loss(model, batch, work), work.message or work.memory
        distance = sum((w - u[name]).square().sum() for name, w in model.named_parameters())
        return terms | {"total": terms["total"] + 0.5 * self.lam / self.step * distance}

    def upload(self, work: Work, losses: dict[str, float]) -> Upload:
        return with_model(super().upload(work, losses), work.model)

    def aggregate(self, server: Server, uploads: Iterable[Upload]) -> Server:
        memory = remembered(server.memory, uploads)
        clients, models = known_models(memory)
        xi = torch.eye(len(memory["xi"]), dtype=torch.float64, device=memory["xi"].device)
        index = torch.tensor(clients, device=xi.device)
        xi[index[:, None], index] = attention(squared_distances(models), self.sigma, self.step)
        return Server(server.weights, server.round + 1, memory | {"xi": xi})


def with_model(kept: Upload, model: nn.Module) -> Upload:
    """The upload of a client that keeps its model, and sends a copy of its parameters."""
    return replace(kept, extra={name: kept.memory[name] for name, _ in model.named_parameters()})


def remembered(memory: State, uploads: Iterable[Upload]) -> State:
    """What the server keeps, with the models that arrive, under "client/name"."""
    sent: State = {}
    for upload in uploads:
        sent |= named(upload.client, upload.extra)
    return memory | sent


def known_models(memory: State) -> tuple[list[int], list[State]]:
    """The clients that have sent a model, in their order, and the last one of each; no copies."""
    found: dict[int, State] = {}
    for name, tensor in memory.items():
        client, slash, rest = name.partition("/")
        if slash:
            found.setdefault(int(client), {})[rest] = tensor
    return sorted(found), [found[i] for i in sorted(found)]


def gram(states: Sequence[State], origin: State | None = None) -> Tensor:
    """[<w_i - o, w_j - o>]_ij (m, m), float64, over all tensors of the states together; o = 0 unless it is given."""
    total = torch.zeros(())
    for name in states[0]:
        rows = [state[name].flatten().split(PIECE) for state in states]
        zero = None if origin is None else origin[name].flatten().split(PIECE)
        for k, piece in enumerate(zip(*rows, strict=True)):  # in pieces, so that memory is not m models in float64
            W = torch.stack(piece).double()
            W = W if zero is None else W - zero[k].double()
            total = W @ W.T + total.to(W)
    return total


def squared_distances(states: Sequence[State]) -> Tensor:
    """||w_i - w_j||^2 (m, m), float64."""
    G = gram(states, origin=states[0])
    own = G.diagonal()
    return (own[:, None] + own - 2 * G).clamp(min=0.0)


def attention(apart: Tensor, sigma: float | None, step: float) -> Tensor:
    """xi (m, m) of the squared distances; rows sum to 1."""
    m = len(apart)
    if sigma is None:
        mean = apart.sum() / max(1, m * (m - 1))
        xi = (-apart / mean.clamp(min=torch.finfo(mean.dtype).tiny)).exp() / m
    else:
        xi = step / sigma * (-apart / sigma).exp()
    xi.fill_diagonal_(0.0)
    return xi + torch.diag(1.0 - xi.sum(1))


def combined(states: Sequence[State], coefficients: Tensor) -> State:
    """sum_j c_j w_j, tensor by tensor, in float64, given back in the type of the tensors; coefficients: c (m,)."""
    c = coefficients.tolist()
    found = {}
    for name, first in states[0].items():
        total = torch.zeros_like(first, dtype=torch.float64)
        for state, c_j in zip(states, c, strict=True):
            total.add_(state[name], alpha=c_j)
        found[name] = total.to(first.dtype)
    return found
