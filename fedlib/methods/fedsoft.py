"""FedSoft: clients belong to several clusters in shares, and train one model each on a leash to all centres.

Ruan, Joe-Wong: FedSoft: Soft Clustered Federated Learning with Proximal Local Updating, AAAI 2022.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedlib.forward import class_scores
from fedlib.methods.ifca import cluster_means
from fedlib.methods.method import Crowd, Server, State, Upload, Work, hyper
from fedlib.methods.several import Several, models
from fedlib.training import Batch, Terms
from fedlib.votes import first_argmax

KEPT = "fedsoft/"
IMPORTANCE, ROUND = f"{KEPT}u", f"{KEPT}round"


@dataclass(frozen=True)
class FedSoft(Several):
    """Centres c_1 … c_K on the server. Client i has one model w_i, which lasts. In rounds 1, 1 + tau, 1 + 2 tau, … it
    estimates, on its n_i training samples, how important the centres are to it,

        u_ik = max(n_ik / n_i, sigma),   n_ik: its samples of which c_k has the least loss of all centres

    and in every round

        w_i <- E steps of SGD on  L_i(w) + (lam / 2) sum_k u_ik ||w - c_k||^2   from w_i.

    Server:  c_k <- sum_i v_ik w_i,   v_ik = u_ik n_i / sum_j u_jk n_j. The client predicts with w_i, which also is all
    that it sends, beside u_i. Without lam it is local training.

    The paper samples S clients for each cluster with probabilities v_ik, and c_k is the plain mean over them. Here all
    clients of the round work, v_ik is normalised among them, and c_k is the expectation of that mean; so the authors'
    implementation does it with its selection switched off. u_i is not made to sum to 1, as there.

    The gradient of the penalty is that of (lam U / 2) ||w - c||^2, U = sum_k u_ik, c = sum_k u_ik c_k / U: a step costs
    one pass over the parameters, whatever K is. The reported total loss leaves out the constant between the two.

    The paper's full text was not available: the equations are those of the spec (6), checked against the authors'
    implementation, whose floor acts only where n_ik = 0 (the same as long as sigma < 1 / n_i). As there, all w_i start
    at one network, here c_1 of the first round. Decided here alone: who takes part for the first time later starts at
    the centre of its largest u_ik; who was absent when an estimate was due makes it when it is back; who has never
    taken part predicts with the centre that `selection` chooses (see Several). With init: same and a floor sigma above
    0, nothing but rounding tells the centres apart.

    tau, lam, sigma: the defaults are the implementation's (tau of its CIFAR-10 experiment, where lam is 0.01).
    """

    selection: str = "train"
    lam: float = hyper(0.1, least=0.0)
    tau: int = hyper(2, least=1, whole=True)
    sigma: float = hyper(1.0e-4, least=0.0, most=1.0)

    def client_update(self, work: Work) -> Upload:
        c = models(work.message)
        u = self.importance(work, c)
        first = c[0] if work.round == 1 else c[int(first_argmax(u))]
        work.model.load_state_dict(own_weights(work.memory) or first)
        U, names = float(u.sum()), [name for name, _ in work.model.named_parameters()]
        leash = replace(self, lam=self.lam * U)
        losses = leash.descend(replace(work, message=centre(c, u, names)))
        w_i, _ = self.divide(work.model)
        memory = w_i | {IMPORTANCE: u, ROUND: torch.tensor(work.round)}
        return Upload(work.client, w_i, memory, len(work.samples), losses, {"u": u})

    def importance(self, work: Work, c: Sequence[State]) -> Tensor:
        """u_i (K,), float64: estimated anew once in every tau rounds, else that of the client's last round."""
        last = work.memory.get(ROUND)
        if last is not None and (int(last) - 1) // self.tau == (work.round - 1) // self.tau:
            return work.memory[IMPORTANCE]
        return self.estimate(work, c)

    def estimate(self, work: Work, c: Sequence[State]) -> Tensor:
        """u_i (K,) under these centres; a sample that several fit equally well counts for the lowest k."""
        best = first_argmax(-torch.stack([self.sample_losses(work, state) for state in c], dim=-1))
        n_ik = torch.bincount(best, minlength=len(c))
        return (n_ik.double() / len(work.samples)).clamp(min=self.sigma)

    def sample_losses(self, work: Work, state: State) -> Tensor:
        """(n_i,): the cross-entropy of each training sample, in evaluation mode."""
        work.model.load_state_dict(state)
        logits = class_scores(work.model, work.samples.images, self.class_logits)
        return F.cross_entropy(logits.double(), work.samples.labels, reduction="none")

    def loss(self, model: nn.Module, batch: Batch, work: Work) -> Terms:
        """work.message: c; self.lam: lam U."""
        terms = super().loss(model, batch, work)
        distance = sum((w - work.message[name]).square().sum() for name, w in model.named_parameters())
        return terms | {"total": terms["total"] + 0.5 * self.lam * distance}

    def aggregate(self, server: Server, uploads: Iterable[Upload]) -> Server:
        def arriving() -> Iterator[tuple[int, float, State]]:
            for upload in uploads:
                n_i = self.weight(server, upload)
                for k, u_ik in enumerate(upload.extra["u"].tolist()):
                    yield k, u_ik * n_i, upload.weights

        return Server(cluster_means(server.weights, arriving()), server.round + 1, server.memory)

    def candidates(self, server: Server, client: int, memory: State) -> list[State]:
        own = own_weights(memory)
        return [own] if own else super().candidates(server, client, memory)

    def personal_model(self, server: Server, client: int, memory: State) -> State:
        return own_weights(memory) or super().personal_model(server, client, memory)

    def own_model(self, crowd: Crowd, client: int) -> State:
        return own_weights(crowd.memories[client]) or super().own_model(crowd, client)


def own_weights(memory: State) -> State:
    """w_i in what a client has kept; nothing before its first round."""
    return {name: tensor for name, tensor in memory.items() if not name.startswith(KEPT)}


def centre(c: Sequence[State], u: Tensor, names: Sequence[str]) -> State:
    """sum_k u_ik c_k / sum_k u_ik of these tensors."""
    p = u / u.sum()

    def mean(name: str) -> Tensor:
        stacked = torch.stack([state[name] for state in c])
        return torch.tensordot(p, stacked.double(), dims=1).to(stacked.dtype)

    return {name: mean(name) for name in names}
