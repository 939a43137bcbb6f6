"""FedTGP: the server trains the global prototypes to be near the clients' and far from those of other classes.

Zhang, Liu, Hua, Cao: FedTGP: Trainable Global Prototypes with Adaptive-Margin-Enhanced Contrastive Learning for Data
and Model Heterogeneity in Federated Learning, AAAI 2024.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedlib.checks import check_choice
from fedlib.methods.method import Server, State, Task, Upload, Work, hyper
from fedlib.methods.prototypes import PROTOTYPES, Prototyped, everyones, noting
from fedlib.streams import derive, torch_stream
from fedlib.training import Batch, Terms

GENERATOR = "generator/"
GAPS = ("nearest", "farthest")


@dataclass(frozen=True)
class FedTGP(Prototyped):
    """With z the input of the head (d numbers), client i's prototype of class c is P_i^c, the mean of z over its
    samples of that class under the weights that go up. The server keeps a trainable vector for each class and a network
    F of two linear layers d -> d with a ReLU between; the global prototypes are P^c = F(vector_c). After each round
    vectors and F are trained on, by S epochs of SGD, on the mean over the P_i^c that arrived of

        -log( e^{-(||P_i^c - P^c|| + delta)} / (e^{-(||P_i^c - P^c|| + delta)} + sum_{c' != c} e^{-||P_i^c - P^c'||}) )
        delta = min( max_c min_{c' != c} ||Q^c - Q^c'||, tau ),   Q^c = mean_i P_i^c

    Clients, from round 2 on, minimise  CE + lam * mean_j ||z_j - P^{y_j}||^2 / d. Samples of a class of which no client
    has sent a prototype so far add nothing to the second term.

    Originally only prototypes travel, and clients have models of their own, which classify by the nearest P^c. In this
    study the weights are averaged as in FedAvg too, and the head classifies. The paper's text was not available: the
    1 / d, lam, delta, the mini-batches and the rate of the server are those of the authors' implementation.

    Margin, prototypes and features can drive each other up until delta reaches tau, and the loss with them.

    lam: strength of the attraction; 0 is FedAvg. server_epochs: S; server_lr, server_batch: of its SGD, which has no
    momentum. tau: the largest margin. gap: "nearest", delta as above; "farthest", that of the two classes furthest
    apart, max_{c != c'} ||Q^c - Q^c'||.
    """

    lam: float = hyper(10.0, least=0.0)
    server_epochs: int = hyper(100, least=0, whole=True)
    server_lr: float = hyper(0.01, above=0.0)
    server_batch: int = hyper(10, least=1, whole=True)
    tau: float = hyper(100.0, least=0.0)
    gap: str = "nearest"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(f"{type(self).__name__}.gap", self.gap, GAPS)

    def remember(self, task: Task) -> State:
        d = task.network().width
        parts = nn.ModuleDict(
            {"vectors": nn.Embedding(task.classes, d), "hidden": nn.Linear(d, d), "output": nn.Linear(d, d)}
        )
        own = {GENERATOR + name: tensor for name, tensor in parts.state_dict().items()}
        return super().remember(task) | own | {"seed": torch.tensor(derive(task.seed, "prototypes"))}

    def loss(self, model: nn.Module, batch: Batch, work: Work) -> Terms:
        z = model.embed(batch.x)  # type: ignore[operator]
        target = F.cross_entropy(model.head(z), batch.y)  # type: ignore[operator]
        attraction = z.new_zeros(())
        if PROTOTYPES + "global" in work.message:
            P, known = work.message[PROTOTYPES + "global"], work.message[PROTOTYPES + "known"]
            attraction = ((z - P[batch.y]).square().mean(1) * known[batch.y]).mean()
        return {"total": target + self.lam * attraction, "target": target, "attraction": attraction}

    def aggregate(self, server: Server, uploads: Iterable[Upload]) -> Server:
        sent: dict[int, State] = {}
        after = super().aggregate(server, noting(uploads, sent))
        p, c = everyones(sent)
        generator = {name: w.clone() for name, w in after.memory.items() if name.startswith(GENERATOR)}
        stream = torch_stream(int(after.memory["seed"]), "server", after.round)
        self.train(generator, p.float(), c, stream)
        P = global_prototypes(generator)
        known = torch.zeros(len(P), dtype=torch.bool, device=P.device)
        known[c] = True
        known |= after.memory.get(PROTOTYPES + "known", known)
        return replace(after, memory=after.memory | generator | {PROTOTYPES + "global": P, PROTOTYPES + "known": known})

    def train(self, generator: State, p: Tensor, c: Tensor, stream: torch.Generator) -> None:
        """S epochs on the clients' prototypes p (M, d) of classes c (M,); the generator's tensors change in place."""
        delta = margin(p, c, self.tau, self.gap)
        optimiser = torch.optim.SGD([w.requires_grad_() for w in generator.values()], self.server_lr)
        for _ in range(self.server_epochs):
            order = torch.randperm(len(p), generator=stream).to(p.device)
            for index in order.split(self.server_batch):
                optimiser.zero_grad()
                margin_contrast(p[index], c[index], global_prototypes(generator), delta).backward()
                optimiser.step()
        for w in generator.values():
            w.requires_grad_(False)


def global_prototypes(generator: State) -> Tensor:
    """P (K, d) = F(vectors)."""
    vectors, W1, b1, W2, b2 = (
        generator[GENERATOR + name]
        for name in ("vectors.weight", "hidden.weight", "hidden.bias", "output.weight", "output.bias")
    )
    return F.linear(F.linear(vectors, W1, b1).relu(), W2, b2)


def margin_contrast(p: Tensor, c: Tensor, P: Tensor, delta: Tensor) -> Tensor:
    """The server's loss: cross-entropy of -(||p_i - P^c'|| + delta 1[c' = c_i]); p (N, d), c (N,), P (K, d)."""
    distance = (p[:, None] - P).norm(dim=-1)
    return F.cross_entropy(-(distance + delta * F.one_hot(c, len(P))), c)


def margin(p: Tensor, c: Tensor, tau: float, gap: str) -> Tensor:
    """delta (): from the classes' means Q, at most tau; 0 if there is one class only.

    gap "nearest": of the distances from a class to the nearest other one, the largest; "farthest": of all distances.
    """
    classes, index = c.unique(return_inverse=True)
    of_class = F.one_hot(index, len(classes)).to(p.dtype)
    Q = (of_class.T @ p) / of_class.sum(0)[:, None]
    if len(Q) == 1:
        return p.new_zeros(())
    apart = (Q[:, None] - Q).norm(dim=-1)
    if gap == "nearest":
        apart = (apart + torch.diag(apart.new_full((len(Q),), torch.inf))).amin(1)
    return apart.max().clamp(max=tau)
