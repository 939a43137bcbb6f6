"""FEROMA: clients are sent the models that were trained on samples like theirs, found by profiles of their samples.

Li, Fenoglio, Gjoreski, Langheinrich: Federated Learning with Profile Mapping under Distribution Shifts and Drifts,
ICLR 2026.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from fedlib import profiles
from fedlib.checks import FedlibError, check_choice, check_number, need_fewer
from fedlib.data.federation import Client, Federation, Visitor
from fedlib.methods.method import Crowd, Method, Server, State, Task, Upload, hyper, weighted_mean
from fedlib.methods.names import named, under
from fedlib.privacy import NOISES, private_marginals, private_statistics
from fedlib.streams import torch_stream
from fedlib.votes import first_argmax

MARGIN = 1.02
NOT_THERE = -1.0


@dataclass(frozen=True)
class FEROMA(Method):
    """Rounds 1 … W (`warmup`): FedAvg. Its last theta stays for good as the embedding f. A later round t, with A_t its
    clients, theta_j what client j ended round t - 1 with, and d_j its profile of that round:

        DPE  d_k   = phi(validation samples of k)                    at client k, see fedlib.profiles
        DPM  w_kj  = exp(-D_kj / T_s) / sum_j' exp(-D_kj' / T_s)     D_kj = || d_k - d_j ||, j in A_{t-1}, d scaled
             tau   = threshold / |A_{t-1}|
             w_bar = [w_kj if w_kj >= tau else 0], made to sum to 1; if none is left, 1 / |A_{t-1}| each
        WA   theta_k^init = sum_j w_bar_kj theta_j
        LT   theta_k <- E epochs of SGD from theta_k^init

    Who client j is plays no part: its own last model is one of the candidates, and who was absent in round t - 1 is
    none. In round W + 1 there are no profiles to compare with: all have the fallback's weights. A client predicts with
    its own last theta_k, right after training it; before round W, with theta; after it, or without a model of its own,
    with the fallback's mean over A_t. threshold = 0 keeps all; above |A_{t-1}|, none: all
    clients are sent one mean.

    Test time (spec 1.7): a visitor is answered by theta_j of the nearest d_j in [mu_x, sigma_x] alone, over all inputs
    that it asks about: no label, no step. `labelled`, for P(Y|X): by the nearest whole d_j, with [mu_u, sigma_u] of the
    visitor's few labelled samples, which are not among those. Ties go to the lowest client.

    The paper's full text was not available: its tau is not known, and 1.5 / |A| is the spec's, as is the median
    temperature. Latents of the paper's models are >= 0; m- = min(0, least) lets others pass. m+ = 1.02 times the
    largest latent of all clients' validation samples, told in round W under theta as it is before that round (the
    authors': after local training); only a shift of the projection depends on it. Each round's halves are drawn client
    by client (theirs: with one seed for all). As everywhere here, images have three channels in [-1, 1] (theirs: in
    [0, 1], and one channel under P(Y), P(Y|X)), and the optimiser is new in every round (theirs: in every epoch). A
    mixture rounds BatchNorm's counters, which no prediction uses (theirs leaves them out).

    warmup, threshold: W, tau |A|. temperature: T_s, or "median", half the median of a client's distances.
    distance: "euclidean", "cosine". components: l; None: U. samplings: random halves in a profile; 0: each sample once.
    masked: absent labels do not count in the scaler's fit, and are -1 after it. fallback: "uniform", or "samples", n_j.
    mapping: "softmax", or "inverse", 1 / (D + 1e-8). embedding: "warmup", or "untrained", the network at the start.
    epsilon, delta, noise: each profile is released with (epsilon, delta)-privacy, see fedlib.privacy, from each sample
        once and with m-, m+ taken for public; None: as it is.

    The server's weights are theta until round W, then "j/name", the last theta_j of every client (m models); its memory
    keeps f as "embedding/…" (in no round's bytes: with "warmup" it is what clients would have been sent after round W);
    d (m, d), each client's last profile, unscaled; present (m,), A_t; samples (m,), n_j; bounds (2,), m- and m+; low
    and span (groups,), the scaler, fitted in round W + 1; and D, w, w_bar (m, m) of the last round, w_kj in row k and
    column j, -1 where there is no such pair.
    """

    several_labels: ClassVar[bool] = True
    warmup: int = hyper(5, least=1, whole=True)
    threshold: float = hyper(1.5, least=0.0)
    temperature: float | str = 1.0
    distance: str = "euclidean"
    components: int | None = hyper(None, least=1, most=profiles.POINTS, whole=True)
    samplings: int = hyper(3, least=0, whole=True)
    masked: bool = False
    fallback: str = "uniform"
    mapping: str = "softmax"
    embedding: str = "warmup"
    labelled: bool = False
    epsilon: float | None = hyper(None, above=0.0)
    delta: float | None = hyper(None, above=0.0, below=1.0)
    noise: str = "gaussian"

    def __post_init__(self) -> None:
        super().__post_init__()
        name = type(self).__name__
        if self.temperature != "median":
            check_number(f"{name}.temperature (a number, or median)", self.temperature, above=0.0)
        check_choice(f"{name}.distance", self.distance, ("euclidean", "cosine"))
        check_choice(f"{name}.masked", self.masked, (True, False))
        check_choice(f"{name}.fallback", self.fallback, ("uniform", "samples"))
        check_choice(f"{name}.mapping", self.mapping, ("softmax", "inverse"))
        check_choice(f"{name}.embedding", self.embedding, ("warmup", "untrained"))
        check_choice(f"{name}.labelled", self.labelled, (True, False))
        check_choice(f"{name}.noise", self.noise, NOISES)
        if self.delta is not None and self.epsilon is None:
            raise FedlibError(f"{name}.delta: {self.delta} without epsilon has no meaning; give epsilon, or leave it")

    def check(self, rounds: int, lr: float, local: object) -> None:
        need_fewer(self, "warmup", self.warmup, rounds, "rounds")

    def check_clients(self, federation: Federation) -> None:
        if self.epsilon is None:
            return
        if federation.several_labels:
            name = f"{type(self).__name__}.epsilon"
            raise FedlibError(f"{name}: {self.epsilon} is for one label a sample, not for several; leave epsilon out")
        visitors = [len(visitor.samples) for visitor in federation.visitors]
        few = [len(visitor.few) for visitor in federation.visitors if self.labelled and len(visitor.few)]
        least = min([federation.fewest_validation, *visitors, *few])
        if least < 2:
            raise FedlibError(
                f"{type(self).__name__}.epsilon: a private profile needs two samples, but a client or visitor has "
                f"{least}; raise validation_share, phase_samples, samples or few_per_class, or leave epsilon out"
            )

    @property
    def needs_validation(self) -> bool:
        return True

    @property
    def differs_by_client(self) -> bool:
        return True

    def build(self, task: Task) -> nn.Module:
        """Raises FedlibError where l is more than the latent has features, or than the reference points allow."""
        model = super().build(task)
        p, ell = profiles.latent_size(model, task.shape), self.components or task.classes
        most = min(p, profiles.POINTS)
        if ell > most:
            raise FedlibError(
                f"{type(self).__name__}.components: {ell} axes (None: one a class), but there are {p} latent features "
                f"and {profiles.POINTS} reference points; give at most {most}"
            )
        return model

    def remember(self, task: Task) -> State:
        m, U, ell = task.clients, task.classes, self.components or task.classes
        pairs = torch.full((m, m), NOT_THERE, dtype=torch.float64)
        return super().remember(task) | {
            "d": torch.zeros(m, profiles.profile_size(ell, U)),
            "present": torch.zeros(m, dtype=torch.bool),
            "samples": torch.zeros(m, dtype=torch.float64),
            "bounds": torch.zeros(2, dtype=torch.float64),
            "low": torch.zeros(2 * (U + 1), dtype=torch.float64),
            "span": torch.ones(2 * (U + 1), dtype=torch.float64),
            "D": pairs,
            "w": pairs.clone(),
            "w_bar": pairs.clone(),
            "seed": torch.tensor(task.seed),
        }

    # DPE: at the client

    def report(
        self, server: Server, model: nn.Module, client: Client, memory: State, generator: torch.Generator
    ) -> State:
        """{"d": its profile}; in round W, {"bounds": its least and largest latent}; before, nothing."""
        t = server.round + 1
        if t < self.warmup:
            return {}
        if not len(client.validation):
            raise FedlibError(
                f"client {client.index} has no validation sample for its profile; raise validation_share or samples"
            )
        model.load_state_dict(self.embedding_of(server))
        z = profiles.latents(model, client.validation.images)
        if t == self.warmup:
            return {"bounds": torch.stack([z.min(), z.max()])}
        return {"d": self.profile(server, z, client.validation.labels, generator)}

    def embedding_of(self, server: Server) -> State:
        """f; theta, as long as f is not fixed."""
        return under("embedding", server.memory) or server.weights

    def projection_for(self, server: Server, z: Tensor) -> profiles.Projection:
        """g for latents (n, p)."""
        low, high = server.memory["bounds"].tolist()
        return profiles.projection(z.shape[1], axes(server), low, high)

    def profile(self, server: Server, z: Tensor, labels: Tensor, generator: torch.Generator) -> Tensor:
        """d (2 l (U + 1),), float32, of latents (n, p): of random halves, or private, of each sample once."""
        g, U = self.projection_for(server, z), len(server.memory["low"]) // 2 - 1
        if self.epsilon is None:
            index = profiles.halves(len(z), self.samplings, generator).to(z.device)
            return profiles.statistics(g(z[index]), labels[index], U).float()
        private = (g.least, g.largest, self.epsilon, self.delta, self.noise, generator)
        return private_statistics(g(z), labels, U, *private).float()

    # DPM, and what the server remembers

    def receive(self, server: Server, reports: Mapping[int, State]) -> Server:
        t, clients = server.round + 1, sorted(reports)
        if t < self.warmup:
            return server
        if t == self.warmup:
            seen = torch.stack([reports[k]["bounds"] for k in clients]).double()
            bounds = torch.stack([seen[:, 0].min().clamp(max=0.0), MARGIN * seen[:, 1].max()])
            return replace(server, memory=server.memory | {"bounds": bounds})
        d = torch.stack([reports[k]["d"] for k in clients])
        memory = dict(server.memory)
        if t == self.warmup + 1:
            memory["low"], memory["span"] = profiles.fit_scaler(d, axes(server), self.masked)
        memory |= self.mapped(replace(server, memory=memory), clients, d)
        memory["d"] = memory["d"].clone()
        memory["d"][clients] = d
        return replace(server, memory=memory)

    def mapped(self, server: Server, clients: list[int], d: Tensor) -> State:
        """D, w and w_bar (m, m) of these clients' profiles (n, d) and those of A_{t-1}."""
        previous = present(server)
        rest = self.fallback_weights(server)[previous]
        found = {name: torch.full_like(server.memory[name], NOT_THERE) for name in ("D", "w", "w_bar")}
        where = (torch.tensor(clients, device=d.device)[:, None], previous)
        if server.round == self.warmup:
            found["w_bar"][where] = rest.expand(len(clients), -1)
            return found
        D = profiles.distances(self.scaled(server, d), self.scaled(server, server.memory["d"][previous]), self.distance)
        w = self.similarity(D)
        found["D"][where], found["w"][where], found["w_bar"][where] = D, w, self.mixing(server, w, rest)
        return found

    def scaled(self, server: Server, d: Tensor) -> Tensor:
        """Profiles (n, d), or their label-free parts (n, 2 l), as distances take them."""
        return profiles.scale(d, server.memory["low"], server.memory["span"], axes(server), self.masked)

    def similarity(self, D: Tensor) -> Tensor:
        """w (n, |A|)."""
        if self.mapping == "inverse":
            return profiles.inverse_distance_weights(D)
        return profiles.softmax_weights(D, None if isinstance(self.temperature, str) else self.temperature)

    def mixing(self, server: Server, w: Tensor, rest: Tensor) -> Tensor:
        """w_bar (n, |A|); rest (|A|,): the fallback."""
        return profiles.mixing_weights(w, self.threshold, rest)

    def fallback_weights(self, server: Server) -> Tensor:
        """(m,): 1 / |A| for each client of A, or in proportion to its n_j; 0 for the others."""
        share = server.memory["samples"] if self.fallback == "samples" else torch.ones_like(server.memory["samples"])
        return profiles.renormalised((share * server.memory["present"])[None])[0]

    # WA and LT

    def broadcast(self, server: Server, client: int, memory: State) -> State:
        """theta_k^init; theta in rounds 1 … W; the fallback's mean for a client that has not reported."""
        if server.round < self.warmup:
            return server.weights
        w_bar = server.memory["w_bar"][client]
        return mixture(server, w_bar if bool((w_bar > 0).any()) else self.fallback_weights(server))

    def aggregate(self, server: Server, uploads: Iterable[Upload]) -> Server:
        """FedAvg in rounds 1 … W; from round W on, every theta_j is kept."""
        t, memory = server.round + 1, dict(server.memory)
        sent = sorted(uploads, key=lambda upload: upload.client)  # the same bits in any order of arrival
        if t == 1 and self.embedding == "untrained":
            memory |= named("embedding", server.weights)
        if t < self.warmup:
            return replace(super().aggregate(server, sent), memory=memory)
        if t == self.warmup and self.embedding == "warmup":
            memory |= named("embedding", super().aggregate(server, sent).weights)
        A = [upload.client for upload in sent]
        memory["present"] = torch.zeros_like(memory["present"])
        memory["present"][A] = True
        memory["samples"] = memory["samples"].clone()
        memory["samples"][A] = memory["samples"].new_tensor([upload.samples for upload in sent])
        weights = {} if t == self.warmup else dict(server.weights)
        for upload in sent:
            weights |= named(upload.client, upload.weights)
        return Server(weights, t, memory)

    def personal_model(self, server: Server, client: int, memory: State) -> State:
        """theta_k, the client's own last one; theta before round W, and the fallback's mean after it or without one."""
        if server.round < self.warmup:
            return server.weights
        own = local_model(server, client) if server.round > self.warmup else {}
        return own or mixture(server, self.fallback_weights(server))

    def served(self, server: Server) -> list[State]:
        """theta_j of A_t; theta before round W."""
        if server.round < self.warmup:
            return [server.weights]
        return [local_model(server, j) for j in present(server).tolist()]

    def moment(self, round: int, rounds: int) -> str:
        return "after_local" if round > self.warmup else "after_aggregation"

    # Test time

    def match(self, crowd: Crowd, visitor: Visitor) -> int | None:
        """j*, the client of A_t whose profile is nearest; None before there are profiles."""
        if crowd.server.round <= self.warmup:
            return None
        return int(first_argmax(-self.distances_to(crowd, visitor)))

    def distances_to(self, crowd: Crowd, visitor: Visitor) -> Tensor:
        """(m,): from the visitor's profile, label-free unless `labelled`, to those of A_t; infinite for the others."""
        server = crowd.server
        d = self.profile_of(crowd, visitor)
        A = present(server)
        D = torch.full_like(server.memory["samples"], torch.inf)
        theirs = self.scaled(server, server.memory["d"][A])[:, : len(d)]
        D[A] = profiles.distances(self.scaled(server, d[None]), theirs, self.distance)[0]
        return D

    def profile_of(self, crowd: Crowd, visitor: Visitor) -> Tensor:
        """[mu_x, sigma_x] (2 l,) of the inputs to answer; with labelled samples and `labelled`, d with theirs, too."""
        server = crowd.server
        crowd.model.load_state_dict(self.embedding_of(server))
        z = profiles.latents(crowd.model, visitor.samples.images)
        g = self.projection_for(server, z)
        stream = torch_stream(int(server.memory["seed"]), "visitor", server.round, visitor.index)
        if self.epsilon is None:
            d = profiles.marginals(g(z)).float()
        else:
            d = private_marginals(g(z), g.least, g.largest, self.epsilon, self.delta, self.noise, stream).float()
        if not self.labelled or not len(visitor.few):
            return d
        few = replace(self, samplings=0).profile(
            server, profiles.latents(crowd.model, visitor.few.images), visitor.few.labels, stream
        )
        return torch.cat([d, few[len(d) :]])


def axes(server: Server) -> int:
    """l."""
    return server.memory["d"].shape[1] // len(server.memory["low"])


def present(server: Server) -> Tensor:
    """A_t, ascending."""
    return server.memory["present"].nonzero().flatten()


def local_model(server: Server, client: int) -> State:
    """theta_j, under plain names; empty if the client has none."""
    names = list(under("embedding", server.memory))
    if f"{client}/{names[0]}" not in server.weights:
        return {}
    return {name: server.weights[f"{client}/{name}"] for name in names}


def mixture(server: Server, w_bar: Tensor) -> State:
    """sum_j w_bar_j theta_j over the clients j with w_bar_j > 0, (m,); a single one's as it is, bit for bit."""
    chosen = {j: w for j, w in enumerate(w_bar.tolist()) if w > 0}
    sent = [Upload(j, local_model(server, j), {}, 0, {}) for j in chosen]
    return weighted_mean(sent[0].weights, sent, lambda upload: chosen[upload.client])
