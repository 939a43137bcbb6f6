"""FedFew: K models for all clients, weighted by a smooth Tchebycheff set scalarisation of the clients' losses.

Guo, Zhang, Lin, Li, Tang, Zhang: Few-for-Many Personalized Federated Learning, CVPR 2026, arXiv 2603.11992.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fedlib.checks import check_choice
from fedlib.forward import mean_loss
from fedlib.methods.method import Server, State, Task, Upload, Work, as_like, everything, hyper
from fedlib.methods.names import named, under
from fedlib.methods.several import Several, models
from fedlib.models.network import is_statistic
from fedlib.training import Batch, NotFinite, Terms, only, sgd

DEAD = 1.0e-8
LOSS_SCALES = ("raw", "share", "m_share")
PROBES = ("received", "running")
STEPS = ("plain", "normalised")
NORMS = ("averaged", "local")


class Scalarised(NamedTuple):
    """objective g (), outer a (m,), inner w (m, K), mass c (K,), and shares (m, K): a_i w_ik / c_k; all float64.

    outer, each row of inner, mass, and each column of shares sum to 1.
    """

    objective: Tensor
    outer: Tensor
    inner: Tensor
    mass: Tensor
    shares: Tensor


def stch_set(L: Tensor, smoothing: float) -> Scalarised:
    """g_STCH-Set of losses L (m, K), and its gradient dg / dL_ik = a_i w_ik (Eq 11, 12; lambda_i = 1, z* = 0).

    In log space, because S_i overflows: with Z = -L / smoothing, and LSE the logarithm of a sum of exponentials,

        log S_i = LSE_k Z_ik,   log w_ik = Z_ik - log S_i,   log a_i = -log S_i - LSE_j(-log S_j)
        g = smoothing * LSE_i(-log S_i),   log c_k = LSE_i(log a_i + log w_ik)

    max_i min_k L_ik - smoothing log K <= g <= max_i min_k L_ik + smoothing log m.
    """
    Z = -L.double() / smoothing
    log_S = Z.logsumexp(1)
    log_w = Z - log_S[:, None]
    total = (-log_S).logsumexp(0)
    log_a = -log_S - total
    log_aw = log_a[:, None] + log_w
    log_c = log_aw.logsumexp(0)
    return Scalarised(smoothing * total, log_a.exp(), log_w.exp(), log_c.exp(), (log_aw - log_c).exp())


def scaled(L: Tensor, n: Tensor, loss_scale: str) -> Tensor:
    """L (m, K) as it stands in the exponent: "raw" L_ik, "share" n_i / n L_ik, or "m_share" m n_i / n L_ik; n (m,).

    Equal n_i: "share" is "raw" with m times the smoothing, and "m_share" is "raw".
    """
    if loss_scale == "raw":
        return L
    share = n.double() / n.sum()
    return L * share[:, None] * (len(n) if loss_scale == "m_share" else 1)


@dataclass(frozen=True)
class FedFew(Several):
    """Client i, from each of theta_1 … theta_K: E steps of SGD to theta_ik; it sends them, and L_ik. Server:

        S_i = sum_k exp(-L_ik / smoothing)
        a_i = S_i^-1 / sum_j S_j^-1                        outer: large where no model fits the client
        w_ik = exp(-L_ik / smoothing) / S_i                inner: large where model k fits it best
        theta_k <- theta_k + sum_i a_i w_ik (theta_ik - theta_k)

    i, j: the round's m clients. That is a step down g = smoothing log sum_i 1 / S_i, a smooth max_i min_k L_i(theta_k).
    The step mass c_k = sum_i a_i w_ik is 1 / K on average; a model with c_k < 1e-8 is dead: it stays as it is. K = 1
    is not FedAvg, but the mean weighted by softmax(L / smoothing). A client predicts with one model: see Several.

    For E > 1 the paper's "gradient" of a client is read as its update, as in the authors' implementation. The
    equations and their log space are the specification's; the paper's text was not available, and the defaults are
    ours: the paper normalises losses by sample counts, in a footnote (see released.fedfew for what ran).

    loss_scale: "raw", L_ik as it is; "share", n_i / n L_ik; "m_share", m n_i / n L_ik, n over the round's clients.
    probe: what L_ik is, always on the client's training samples. "received": the mean loss of theta_k as it came down,
    in evaluation mode, on whole images. "running": the mean over the samples of the last pass of the mini-batch losses
    on the way, in training mode; with `steps`, of the last steps that make a pass, or of all if they are fewer.
    step: "plain", or "normalised": divided by c_k. norms: BatchNorm's statistics are "averaged" with a_i w_ik / c_k, or
    "local": each client keeps K sets of its own, and they never travel.

    A loss that is not finite is an error, and stops the run; no client is left out for it. The server remembers the
    last round: losses L (m, K), outer, inner, mass c and objective g; absent clients' rows are NaN.
    """

    smoothing: float = hyper(0.2, least=1.0e-6)
    loss_scale: str = "raw"
    probe: str = "received"
    step: str = "plain"
    norms: str = "averaged"

    def __post_init__(self) -> None:
        super().__post_init__()
        choices = {"loss_scale": LOSS_SCALES, "probe": PROBES, "step": STEPS, "norms": NORMS}
        for name, valid in choices.items():
            check_choice(f"{type(self).__name__}.{name}", getattr(self, name), valid)

    def shared(self, name: str) -> bool:
        return self.norms == "averaged" or not is_statistic(name)

    def remember(self, task: Task) -> State:
        m, K = task.clients, self.K
        shapes = {"losses": (m, K), "outer": (m,), "inner": (m, K), "mass": (K,), "objective": ()}
        unknown = {name: torch.full(shape, torch.nan, dtype=torch.float64) for name, shape in shapes.items()}
        return super().remember(task) | unknown

    def client_update(self, work: Work) -> Upload:
        weights: State = {}
        memory: State = {}
        L: list[Tensor] = []
        terms: list[dict[str, float]] = []
        for k, theta in enumerate(self.given(work.message, work.memory)):
            work.model.load_state_dict(theta)
            if self.probe == "received":
                L.append(mean_loss(work.model, work.samples, self.class_logits))
            means, running = self.descend_noting(work)
            if self.probe == "running":
                L.append(running)
            shared, personal = self.divide(work.model)
            weights |= named(k, shared)
            memory |= named(k, personal)
            terms.append(means)
        losses = {name: sum(means[name] for means in terms) / len(terms) for name in terms[0]}
        return Upload(work.client, weights, memory, len(work.samples), losses, {"losses": finite(torch.stack(L))})

    def given(self, theta: State, memory: State) -> list[State]:
        """[theta_1, …] as one client has them: with its own statistics, if they stay with it."""
        return [one | own_statistics(memory, k) for k, one in enumerate(models(theta))]

    def descend_noting(self, work: Work) -> tuple[dict[str, float], Tensor]:
        """E steps of SGD: the means of the loss terms, and the mean cross-entropy () of the last pass, by samples."""
        sizes: list[int] = []
        noted: list[Tensor] = []

        def loss(batch: Batch) -> Terms:
            terms = self.loss(work.model, batch, work)
            sizes.append(len(batch.y))
            noted.append(terms["target"].detach())
            return terms

        with only(work.model, everything) as parameters:
            means = sgd(work.model, work.batches(), loss, parameters, work.local, work.lr, self.gradient)
        last = -(-len(work.samples) // work.local.batch_size)
        losses = torch.stack(noted[-last:]).double()
        return means, losses @ losses.new_tensor(sizes[-last:]) / sum(sizes[-last:])

    def aggregate(self, server: Server, uploads: Iterable[Upload]) -> Server:
        """All uploads are collected first: each weight needs everyone's losses."""
        sent = sorted(uploads, key=lambda upload: upload.client)  # the same bits in any order of arrival
        L = torch.stack([upload.extra["losses"] for upload in sent])
        n = torch.tensor([upload.samples for upload in sent], dtype=torch.float64, device=L.device)
        now = stch_set(scaled(L, n, self.loss_scale), self.smoothing)
        shares = now.shares.T.tolist()
        pull = shares if self.step == "normalised" else (now.outer[:, None] * now.inner).T.tolist()
        alive = (now.mass >= DEAD).tolist()
        theta = dict(server.weights)
        for name, tensor in theta.items():
            k = int(name.partition("/")[0])
            if alive[k]:
                p = shares[k] if is_statistic(name) else pull[k]
                theta[name] = moved(tensor, [upload.weights[name] for upload in sent], p)
        present = [upload.client for upload in sent]
        memory = {"mass": now.mass, "objective": now.objective}
        for name, rows in (("losses", L), ("outer", now.outer), ("inner", now.inner)):
            memory[name] = torch.full_like(server.memory[name], torch.nan)
            memory[name][present] = rows
        return Server(theta, server.round + 1, server.memory | memory)

    def candidates(self, server: Server, client: int, memory: State) -> list[State]:
        return self.given(server.weights, memory)

    def personal_model(self, server: Server, client: int, memory: State) -> State:
        """theta_1, for lack of samples to choose by: see own_model."""
        return self.candidates(server, client, memory)[0]


def own_statistics(memory: State, k: int) -> State:
    """What a client keeps of model k; before its first round, what all networks start with."""
    return under(k, memory) or memory


def finite(L: Tensor) -> Tensor:
    """L (K,), a client's losses. Raises NotFinite, naming the first model, 1 to K, whose loss is no number."""
    bad = (~L.isfinite()).nonzero()
    if len(bad):
        k = int(bad[0])
        raise NotFinite(f"the loss of model {k + 1} of {len(L)} on the client's samples is {float(L[k])}; lower lr")
    return L


def moved(theta: Tensor, sent: Sequence[Tensor], p: Sequence[float]) -> Tensor:
    """theta + sum_i p_i (theta_i - theta), in float64; whole numbers stay whole."""
    start = theta.double()
    total = torch.zeros_like(start)
    for theta_i, p_i in zip(sent, p, strict=True):
        total.add_(theta_i.double().sub_(start), alpha=p_i)
    total.add_(start)
    return as_like(theta, total)
