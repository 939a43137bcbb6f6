"""FedHEAL: clients hold back updates against their own habit, and who is far from the global model weighs more.

Chen, Huang, Ye: Fair Federated Learning under Domain Skew with Local Consistency and Domain Diversity, CVPR 2024.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedlib.methods.method import Method, Server, State, Task, Upload, Work, as_like, hyper
from fedlib.methods.names import under

OWN = "consistency/"
KEPT = "kept"


@dataclass(frozen=True)
class FedHEAL(Method):
    """Client k, after E steps of SGD from theta to theta_k, in the t-th round in which it takes part:

        u = 1[theta_k >= theta],   c = h if u else 1 - h,   h = the mean of u over its t - 1 rounds before
        M_k = 1[c >= threshold],  all ones if t = 1;       entries with M_k = 0 go up as they came down

    for each entry of each parameter: an update in a direction that is rare for this client is discarded. Server, with
    d_k = ||M_k (theta_k - theta)|| over all parameters, over the round's clients S:

        Dp_k <- (1 - beta) Dp_k + beta d_k / sum_{j in S} d_j,    p_k <- p_k + Dp_k,    p <- p / sum_{j in S} p_j
        theta <- theta + sum_k p_k M_k (theta_k - theta) / sum_k p_k M_k,   entry by entry; theta where all M_k are 0

    from p_k = 1 / K, Dp_k = 0, with p_k as shares within S. Who is absent keeps p_k and Dp_k, and the round's clients
    divide among them what they had together: over all K clients p sums to 1, and a late comer starts on the scale of
    the others.

    h is the client's own: it describes that client's updates alone, serves to discard them before they are sent, and
    lives in its memory, as counts. So each upload is the model and M_k, one bit an entry, which the sum over the kept
    needs. p and Dp are the server's. Running statistics and counters of BatchNorm are no updates with a direction:
    they have no mask and do not enter d_k, and are averaged with p_k.

    The equations are those of the spec (6), checked against the authors' implementation; the paper's text was not
    available. The implementation differs in this: its d_k is a sum of norms by tensor; its p accumulates, and is
    normalised for use only; it discards c = threshold too, masks statistics too, and its t counts all rounds.

    threshold: 0 discards nothing. beta: momentum of the weights; 0 keeps 1 / K.
    """

    threshold: float = hyper(0.3, least=0.0, most=1.0)
    beta: float = hyper(0.4, least=0.0, most=1.0)

    def remember(self, task: Task) -> State:
        K = task.clients
        p = {"p": torch.full((K,), 1 / K, dtype=torch.float64), "Dp": torch.zeros(K, dtype=torch.float64)}
        return super().remember(task) | p

    def start(self, work: Work) -> None:
        work.model.load_state_dict(work.message | personal(work.memory))

    def upload(self, work: Work, losses: dict[str, float]) -> Upload:
        sent = super().upload(work, losses)
        weights, memory, extra = dict(sent.weights), dict(sent.memory), dict(sent.extra)
        before = work.memory.get(f"{OWN}rounds", torch.tensor(0))
        for name, _ in work.model.named_parameters():
            if name in weights:
                up = weights[name] >= work.message[name]
                ups = work.memory.get(f"{OWN}ups/{name}", torch.zeros_like(up, dtype=torch.int32))
                M = consistent(up, ups, int(before), self.threshold)
                weights[name] = torch.where(M, weights[name], work.message[name])
                memory[f"{OWN}ups/{name}"] = ups + up
                extra[f"{KEPT}/{name}"] = bits(M)
        return replace(sent, weights=weights, memory=memory | {f"{OWN}rounds": before + 1}, extra=extra)

    def aggregate(self, server: Server, uploads: Iterable[Upload]) -> Server:
        sent = sorted(uploads, key=lambda upload: upload.client)  # the same bits in any order of arrival
        S = [upload.client for upload in sent]
        p, Dp = server.memory["p"].clone(), server.memory["Dp"].clone()
        d = torch.stack([distance(server.weights, upload) for upload in sent])
        p[S], Dp[S] = reweighted(p[S], Dp[S], d, self.beta)
        shares = p[S].tolist()
        weights = {name: masked_mean(name, theta, sent, shares) for name, theta in server.weights.items()}
        return Server(weights, server.round + 1, server.memory | {"p": p, "Dp": Dp})

    def personal_model(self, server: Server, client: int, memory: State) -> State:
        return server.weights | personal(memory)


def personal(memory: State) -> State:
    """The parts of the network that a client keeps, without its consistency; none, unless a subclass has some."""
    return {name: tensor for name, tensor in memory.items() if not name.startswith(OWN)}


def consistent(up: Tensor, ups: Tensor, rounds: int, threshold: float) -> Tensor:
    """M: whether enough of the `rounds` before went the way of this one; up: u, ups: how often u was 1."""
    if rounds == 0:
        return torch.ones_like(up)
    return torch.where(up, ups, rounds - ups) / rounds >= threshold


def bits(M: Tensor) -> Tensor:
    """A mask, packed into bytes (uint8), eight entries in each."""
    flat = torch.nn.functional.pad(M.flatten().to(torch.uint8), (0, -M.numel() % 8))
    place = 2 ** torch.arange(8, dtype=torch.uint8, device=M.device)
    return (flat.view(-1, 8) * place).sum(1, dtype=torch.uint8)


def mask(packed: Tensor, shape: torch.Size) -> Tensor:
    """The inverse of `bits`."""
    place = 2 ** torch.arange(8, dtype=torch.uint8, device=packed.device)
    return (packed[:, None] & place).bool().flatten()[: shape.numel()].view(shape)


def distance(theta: State, upload: Upload) -> Tensor:
    """d_k, float64; discarded entries have come back as they were."""
    masked = under(KEPT, upload.extra)
    return torch.stack([(upload.weights[n].double() - theta[n].double()).norm() for n in masked]).norm()


def reweighted(p: Tensor, Dp: Tensor, d: Tensor, beta: float) -> tuple[Tensor, Tensor]:
    """p and Dp of the round's clients from those of the last round and d; p keeps its sum. If no one moved, d = 1."""
    d = d if d.sum() > 0 else torch.ones_like(d)
    Dp = (1 - beta) * Dp + beta * d / d.sum()
    moved = p / p.sum() + Dp
    return p.sum() * moved / moved.sum(), Dp


def masked_mean(name: str, theta: Tensor, uploads: list[Upload], p: list[float]) -> Tensor:
    """sum_k p_k M_k w_k / sum_k p_k M_k of one tensor, entry by entry; what no one sent, or kept, stays.

    As a discarded entry of w_k is theta, this is theta plus the mean of the updates that were kept.
    """
    total, weight = torch.zeros_like(theta, dtype=torch.float64), torch.zeros_like(theta, dtype=torch.float64)
    for upload, p_k in zip(uploads, p, strict=True):
        if name in upload.weights:
            packed = upload.extra.get(f"{KEPT}/{name}")
            M = torch.ones_like(theta, dtype=torch.bool) if packed is None else mask(packed, theta.shape)
            total.add_(upload.weights[name] * M, alpha=p_k)
            weight.add_(M, alpha=p_k)
    return as_like(theta, torch.where(weight > 0, total / weight, theta.double()))
