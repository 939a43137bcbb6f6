"""Metrics, each named by (model, data) and stated with its moment.

personal@local   a client's own model on its own test samples; one value a client, their mean weighted by n_i / n
                 (the FedDRM paper's average accuracy), the plain mean, and worst@local
global@local     the one global model on each client's test samples, weighted by n_i / n
global@pooled    the one global model on all clients' test samples
system@pooled    queries of unknown origin: routed or voted, then predicted, on all clients' test samples; also one
                 value a client, on the queries that come from it
router@pooled    sum_i (n_i / n) P(sent to i | from i), and its terms, one value a client
Where the clients keep no test samples of their own (test_share 0), the official test part is the test instead:

domain@central   top-1 on each domain's test part, named in square brackets, and their plain mean (the F²DC paper's AVG)
domain_std@central, worst@central   their sample standard deviation (ddof 1; the paper's STD) and their minimum

In square brackets otherwise: the variant, e.g. system@pooled[posterior router].

Where samples may have several labels, each of these is the macro AUROC of the same scores in place of top-1, under the
same name (labels.macro_auroc). A client, or domain, without a label that some but not all of its test samples have has
none: it has no row, and is left out of the mean over clients, whose weights are then those of the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedlib.data.federation import Federation
from fedlib.data.shift import random_resized_crop
from fedlib.forward import CHUNK, accuracy
from fedlib.labels import answers, known, quality
from fedlib.methods.method import Method, Server, Site, State
from fedlib.training import prepare


class Row(NamedTuple):
    """One line of a history. client: its index, or -1 for a value over all clients."""

    round: int
    metric: str
    moment: str
    client: int
    value: float


class Crowd:
    """All clients' models, faced with all clients' test samples.

    crop: a generator for random crops of the test images (see analysis.random_crop); None: the whole images.
    site, lr: of the run that is judged, for probes that go on training.
    """

    def __init__(
        self,
        method: Method,
        model: nn.Module,
        server: Server,
        memories: Sequence[State],
        federation: Federation,
        crop: torch.Generator | None = None,
        site: Site | None = None,
        lr: float = 0.0,
    ) -> None:
        self.method, self.model, self.server, self.crop = method, model, server, crop
        self.memories, self.federation, self.site, self.lr = memories, federation, site, lr
        self.samples, self.origin = federation.pooled_test()
        self.shares = torch.tensor(federation.shares, dtype=torch.float32, device=self.samples.labels.device)

    @cached_property
    def states(self) -> list[State]:
        """The weights that each client predicts with; tensors that clients have in common are the same objects."""
        return [self.method.own_model(self, i) for i in range(len(self.memories))]

    @cached_property
    def _own(self) -> set[str]:
        """The names of the tensors that are not the same for all clients."""
        first = self.states[0]
        return {name for name in first if any(state[name] is not first[name] for state in self.states)}

    @cached_property
    def _views(self) -> list[Tensor]:
        """The queries as uint8 chunks, or as cropped floats."""
        chunks = list(self.samples.images.split(CHUNK))
        return chunks if self.crop is None else [random_resized_crop(prepare(x), self.crop) for x in chunks]

    @torch.no_grad()
    def _forward(self, state: State, collect: Callable[[Any], None]) -> None:
        self.model.load_state_dict(state)
        self.model.eval()
        for view in self._views:
            collect(self.model(prepare(view) if view.dtype == torch.uint8 else view))

    @cached_property
    def domain_states(self) -> list[State]:
        """For each domain of the official test part, the weights that answer: the mean over the domain's clients.

        Where all parts are shared that is theta itself. A domain that no client has is answered by the mean over all.
        """
        homes = [client.domain for client in self.federation.clients]
        found = []
        for q in range(len(self.federation.central)):
            members = [state for state, home in zip(self.states, homes, strict=True) if home == q] or self.states
            means = {name: _mean([state[name] for state in members]) for name in self._own}
            found.append(self.states[0] | means)
        return found

    @torch.no_grad()
    def own_accuracies(self) -> Tensor:
        """(m,): each client's own model on its own test samples, and on no others."""
        accuracies = []
        for state, client in zip(self.states, self.federation.clients, strict=True):
            self.model.load_state_dict(state)
            accuracies.append(accuracy(self.model, client.test, self.method.class_logits))
        return torch.stack(accuracies)

    def domain_accuracies(self) -> Tensor:
        """(Q,): top-1 accuracy on each domain's official test part, answered by `domain_states`."""
        accuracies = []
        for state, samples in zip(self.domain_states, self.federation.central.values(), strict=True):
            self.model.load_state_dict(state)
            accuracies.append(accuracy(self.model, samples, self.method.class_logits))
        return torch.stack(accuracies)

    @cached_property
    def _shared_pass(self) -> tuple[Any, Tensor]:
        """One pass under the shared weights and client 0's own: (raw outputs, inputs of the head)."""
        outputs: list[Any] = []
        embeddings: list[Tensor] = []
        theta = self.states[0]  # before the hook: choosing among several models runs the network, too
        hook = self.model.head.register_forward_pre_hook(lambda _, x: embeddings.append(x[0]))  # type: ignore[union-attr]
        try:
            self._forward(theta, outputs.append)
        finally:
            hook.remove()
        if isinstance(outputs[0], tuple):
            return tuple(torch.cat(part) for part in zip(*outputs, strict=True)), torch.cat(embeddings)
        return torch.cat(outputs), torch.cat(embeddings)

    def outputs(self) -> Any:
        """The network's raw output for all N queries, under the shared weights."""
        return self._shared_pass[0]

    @cached_property
    def _logits(self) -> Tensor:
        if not self._own:
            logits = self.method.class_logits(self.outputs())
            return logits.expand(len(self.states), *logits.shape)
        if self._own <= {"head.weight", "head.bias"}:
            embedding = self._shared_pass[1]
            return torch.stack([F.linear(embedding, own["head.weight"], own["head.bias"]) for own in self.states])
        kinds = [tuple(map(id, state.values())) for state in self.states]
        found = {kind: self._logits_under(state) for kind, state in dict(zip(kinds, self.states, strict=True)).items()}
        return torch.stack([found[kind] for kind in kinds])

    def _logits_under(self, state: State) -> Tensor:
        chunks: list[Tensor] = []
        self._forward(state, lambda outputs: chunks.append(self.method.class_logits(outputs)))
        return torch.cat(chunks)

    def logits(self) -> Tensor:
        """(m, N, K): class logits of every client's model on every query.

        One pass serves all clients where their models are the same, or differ in the head alone.
        """
        return self._logits

    def global_logits(self) -> Tensor | None:
        """(N, K) of the one global model, or None where the server holds only a part of a network."""
        if set(self.server.weights) != set(self.model.state_dict()):
            return None
        theta = self.server.weights
        if not self._own and all(tensor is theta[name] for name, tensor in self.states[0].items()):
            return self.logits()[0]
        return self._logits_under(self.server.weights)


def _mean(tensors: Sequence[Tensor]) -> Tensor:
    """The plain mean, in float64, in the type of the tensors."""
    return torch.stack([tensor.double() for tensor in tensors]).mean(0).to(tensors[0].dtype)


def central(crowd: Crowd, moment: str) -> list[Row]:
    """The metrics on the official test part."""
    values = crowd.domain_accuracies().cpu()
    seen = known(values, "domain", several_labels(crowd))
    values, names = values[seen], [name for name, one in zip(crowd.federation.central, seen, strict=True) if one]
    spread = values.std() if len(values) > 1 else torch.zeros(())
    found = {f"domain@central[{name}]": value for name, value in zip(names, values, strict=True)}
    found |= {"domain@central": values.mean(), "domain_std@central": spread, "worst@central": values.min()}
    return [Row(crowd.server.round, metric, moment, -1, float(v)) for metric, v in found.items()]


def evaluate(crowd: Crowd, moment: str, pooled: bool = True) -> list[Row]:
    """All metrics of one round. pooled: those, too, of queries whose client is unknown."""
    if crowd.federation.central:
        return central(crowd, moment)
    return local(crowd, moment) if pooled else own(crowd, moment)


def own(crowd: Crowd, moment: str, metric: str = "personal", accuracies: Tensor | None = None) -> list[Row]:
    """The metrics of the clients' own models on their own test samples. accuracies: (m,), if they are known."""
    values = crowd.own_accuracies() if accuracies is None else accuracies
    seen = known(values, "client", several_labels(crowd))
    found = [(f"{metric}@local", i, float(values[i])) for i in seen.nonzero().flatten().tolist()]
    found += [(f"{metric}@local", -1, float(weighted(crowd, values)))]
    found += [(f"{metric}@local[plain mean]", -1, float(values[seen].mean()))]
    if metric == "personal":
        found += [("worst@local", -1, float(values[seen].min()))]
    return [Row(crowd.server.round, name, moment, client, value) for name, client, value in found]


def several_labels(crowd: Crowd) -> bool:
    """Whether a query may have several labels."""
    return crowd.samples.labels.ndim == 2


def weighted(crowd: Crowd, values: Tensor) -> Tensor:
    """(): sum_i (n_i / n) v_i; of several labels, over the clients that have a value."""
    if not several_labels(crowd):
        return crowd.shares @ values
    seen = known(values, "client", several=True)
    return crowd.shares[seen] @ values[seen] / crowd.shares[seen].sum()


def local(crowd: Crowd, moment: str) -> list[Row]:
    """The metrics on the clients' own test samples, and on all of them pooled."""
    rows: list[Row] = []
    truth, origin, several = crowd.samples.labels, crowd.origin, several_labels(crowd)

    def per_client(answer: Tensor, truth: Tensor = truth) -> Tensor:
        return torch.stack([quality(answer[origin == i], truth[origin == i]) for i in range(len(crowd.shares))])

    def add(metric: str, value: Tensor, client: int = -1, when: str = moment) -> None:
        if client < 0 or not (several and value.isnan()):
            rows.append(Row(crowd.server.round, metric, when, client, float(value)))

    mine = crowd.logits()[origin, torch.arange(len(truth), device=truth.device)]
    rows += own(crowd, moment, accuracies=per_client(answers(mine, truth)))
    one = crowd.global_logits()
    if one is not None:
        theirs = answers(one, truth)
        add("global@local", weighted(crowd, per_client(theirs)), when="after_aggregation")
        add("global@pooled", quality(theirs, truth), when="after_aggregation")
    for position, (rule, answer) in enumerate(crowd.method.route(crowd).items()):
        suffixes = [f"[{rule}]"] + ([""] if position == 0 else [])
        for suffix in suffixes:
            add(f"system@pooled{suffix}", quality(answer.labels, truth))
            if answer.origin is not None:
                add(f"router@pooled{suffix}", weighted(crowd, per_client(answer.origin, origin)))
        for i, value in enumerate(per_client(answer.labels)):
            add(f"system@pooled[{rule}]", value, i)
        if answer.origin is not None:
            for i, value in enumerate(per_client(answer.origin, origin)):
                add(f"router@pooled[{rule}]", value, i)
    return rows
