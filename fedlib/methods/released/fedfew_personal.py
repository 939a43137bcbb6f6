"""What FedFew's released code ran for the methods with personal models, where it differs from their own papers.

Each class names the finding (trap numbers: the specification's section 7; the rest is its section 6).
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import nn

from fedlib.methods.fedamp import FedAMP
from fedlib.methods.fedmtl import FedMTL
from fedlib.methods.local_only import LocalOnly
from fedlib.methods.method import Method, Server, State, Upload, Work, everything, hyper
from fedlib.training import Batch, Terms, only, sgd


@dataclass(frozen=True)
class FedAMPAsReleased(FedAMP):
    """Trap 4: the distance to u_i is taken of detached tensors, so it has no gradient, and u_i never takes the client
    model's place: LocalOnly, with FedAMP's traffic."""

    def loss(self, model: nn.Module, batch: Batch, work: Work) -> Terms:
        return LocalOnly().loss(model, batch, work)


@dataclass(frozen=True)
class FedMTLAsReleased(FedMTL):
    """Trap 4: the penalty is taken of a detached state dictionary, so it has no gradient: LocalOnly, with FedMTL's
    traffic."""

    def loss(self, model: nn.Module, batch: Batch, work: Work) -> Terms:
        return LocalOnly().loss(model, batch, work)


@dataclass(frozen=True)
class APFLAsReleased(Method):
    """Section 6. Client i, from theta and its own v_i and a_i, in each step, on the same mini-batch:

        w_i <- SGD step with  grad F_i(w_i),    v_i <- SGD step with  grad F_i(v_i)
        a_i <- clip(a_i - lr (<v_i - w_i, a_i grad F_i(v_i) + (1 - a_i) grad F_i(w_i)> + 0.02 a_i), 0, 1)

    with v_i - w_i after the steps and the gradients before them; after the last one, v_i <- a_i v_i + (1 - a_i) w_i,
    and that is what the client predicts with; v_i never sees the mixture's loss. Server: theta <- sum_i (n_i / n) w_i.
    """

    mixing: float = hyper(1.0, least=0.0, most=1.0)

    def client_update(self, work: Work) -> Upload:
        work.model.load_state_dict(work.message)
        own = copy.deepcopy(work.model)
        own.load_state_dict(network(work.memory) or work.message)
        own.train()
        w, v = list(work.model.parameters()), list(own.parameters())
        a = work.memory.get("mixing", w[0].new_tensor(self.mixing)).detach().clone()

        def loss(batch: Batch) -> Terms:
            one, other = self.loss(work.model, batch, work), self.loss(own, batch, work)
            return one | {"total": one["total"] + other["total"], "personal": other["total"], "mixing": a.clone()}

        @torch.no_grad()
        def learn() -> None:
            slope = 0.02 * a
            for x, y in zip(w, v, strict=True):
                if x.grad is not None and y.grad is not None:
                    slope += ((y - x) * (a * y.grad + (1.0 - a) * x.grad)).sum()
            a.sub_(slope, alpha=work.lr).clamp_(0.0, 1.0)

        def steps(data: Iterable[Batch]) -> Iterator[Batch]:
            for batch in data:
                yield batch
                learn()  # the step is done when the next batch is asked for

        with only(work.model, everything):
            losses = sgd(work.model, steps(work.batches()), loss, [*w, *v], work.local, work.lr)
        with torch.no_grad():
            for x, y in zip(w, v, strict=True):
                y.copy_(torch.lerp(x, y, a))
        weights, _ = self.divide(work.model)
        kept, _ = self.divide(own)
        return Upload(work.client, weights, kept | {"mixing": a}, len(work.samples), losses)

    def personal_model(self, server: Server, client: int, memory: State) -> State:
        return network(memory) or server.weights


def network(memory: State) -> State:
    """The client's own model in what it has kept."""
    return {name: tensor for name, tensor in memory.items() if name != "mixing"}
