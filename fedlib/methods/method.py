"""Method: FedAvg written out as the named steps that the other methods change.

McMahan, Moore, Ramage, Hampson, Aguera y Arcas: Communication-Efficient Learning of Deep Networks from
Decentralized Data, AISTATS 2017.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

from fedlib import models
from fedlib.checks import check_number, whole_as_float
from fedlib.data.federation import Client, Federation, Samples, Visitor
from fedlib.forward import class_scores, mean_loss
from fedlib.labels import label_loss, probabilities
from fedlib.models.network import Network
from fedlib.streams import derive
from fedlib.training import Batch, Local, Terms, backward, batches, only, sgd
from fedlib.votes import voted

State = dict[str, Tensor]


def everything(name: str) -> bool:
    """All parameters."""
    return True


def hyper(default: Any, **bounds: float | bool) -> Any:
    """A hyper-parameter: a dataclass field whose value is checked against `bounds` (see checks.check_number)."""
    return field(default=default, metadata={"bounds": bounds})


@dataclass(frozen=True)
class Task:
    """What is to be learned: the network's description, the input shape, the number of classes, n_i, T, the seed.

    domains: the domain of each client, as Federation has it; empty where that is of no interest.
    """

    model: Mapping[str, Any]
    shape: tuple[int, ...]
    classes: int
    sizes: tuple[int, ...]
    rounds: int
    seed: int
    domains: tuple[int, ...] = ()

    @property
    def clients(self) -> int:
        return len(self.sizes)

    def network(self) -> Network:
        return models.build(self.model, self.shape, self.classes)


@dataclass(frozen=True)
class Server:
    """What the server holds: theta (the parts that travel), the last finished round, and whatever else it keeps."""

    weights: State
    round: int = 0
    memory: State = field(default_factory=dict)


@dataclass(frozen=True)
class Work:
    """Everything that one client's work in one round is a function of."""

    client: int
    samples: Samples
    message: State
    memory: State
    model: nn.Module
    local: Local
    lr: float
    round: int
    rounds: int
    generator: torch.Generator

    def batches(self, steps: int | None = None) -> Iterable[Batch]:
        """This round's mini-batches; `steps` overrides their number."""
        local = self.local if steps is None else replace(self.local, steps=steps, epochs=None)
        return batches(self.samples, local, self.client, self.generator)


@dataclass(frozen=True)
class Upload:
    """What a client sends up (`weights`, and `extra` beside them), keeps (`memory`), n_i, its steps' mean losses."""

    client: int
    weights: State
    memory: State
    samples: int
    losses: dict[str, float]
    extra: State = field(default_factory=dict)


@dataclass(frozen=True)
class Site:
    """What does not change while clients keep their samples: method, task, local training, all training samples."""

    method: Method
    task: Task
    local: Local
    train: tuple[Samples, ...]


@dataclass(frozen=True)
class Answer:
    """Predicted labels (N,) of queries whose client is unknown, or scores (N, U) where a query may have several labels;
    origin (N,): the client each was sent to, if any."""

    labels: Tensor
    origin: Tensor | None = None


class Crowd(Protocol):
    """What `route` and `own_model` may ask: see metrics.Crowd."""

    model: nn.Module
    server: Server
    memories: Sequence[State]
    federation: Federation
    shares: Tensor

    def logits(self) -> Tensor:
        """(m, N, K): class logits of every client's model on every query."""

    def outputs(self) -> Any:
        """The network's raw output for all N queries, under the shared weights."""


@dataclass(frozen=True)
class Method:
    """FedAvg. Server: theta <- sum_i (n_i / n) theta_i. Client: E steps of SGD on the cross-entropy from theta.

    A subclass overrides the steps that differ; its dataclass fields are its hyper-parameters.

    several_labels: whether the class, and not one it inherits from, says that it is made for samples of several labels.
    """

    several_labels: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for item in fields(self):
            value, optional = getattr(self, item.name), "None" in str(item.type)
            if "bounds" in item.metadata and not (optional and value is None):
                check_number(f"{type(self).__name__}.{item.name}", value, **item.metadata["bounds"])
        whole_as_float(self)

    def check(self, rounds: int, lr: float, local: Local) -> None:
        """Raise FedlibError if the hyper-parameters do not fit the experiment."""

    def check_clients(self, federation: Federation) -> None:
        """Raise FedlibError if the method cannot do with these clients' samples, those of later rounds included."""

    @property
    def needs_validation(self) -> bool:
        """Whether clients need validation samples."""
        return False

    def build(self, task: Task) -> nn.Module:
        """The network of server and clients."""
        return task.network()

    def shared(self, name: str) -> bool:
        """Whether the tensor `name` travels; what does not is personal and stays in the client's memory."""
        return True

    @property
    def differs_by_client(self) -> bool:
        """Whether clients predict with networks of their own, whose weights have no meaningful mean over a domain."""
        return False

    def begin(self, model: nn.Module, task: Task) -> State:
        """theta at the start: what travels of the initial network."""
        return self.divide(model)[0]

    def remember(self, task: Task) -> State:
        """What the server keeps beside theta, at the start."""
        return {}

    def report(
        self, server: Server, model: nn.Module, client: Client, memory: State, generator: torch.Generator
    ) -> State:
        """What a client tells the server about its samples of the round that begins, before it is sent anything.

        model: the network, to load weights into.
        """
        return {}

    def receive(self, server: Server, reports: Mapping[int, State]) -> Server:
        """The server when it has heard the reports of all clients of this round."""
        return server

    def broadcast(self, server: Server, client: int, memory: State) -> State:
        """What goes down to a client, given what it has kept."""
        return server.weights

    def loss(self, model: nn.Module, batch: Batch, work: Work) -> Terms:
        """Named loss terms of one mini-batch; "total" is minimised. Of several labels: see labels.label_loss."""
        target = label_loss(model(batch.x), batch.y)
        return {"total": target, "target": target}

    def client_update(self, work: Work) -> Upload:
        """One client's work: E steps from theta and its own memory; the result is divided again."""
        self.start(work)
        losses = self.descend(work)
        return self.upload(work, losses)

    def start(self, work: Work) -> None:
        """The model takes theta, as it came down, and the tensors that the client has kept; other things stay aside."""
        given = work.message | work.memory
        work.model.load_state_dict({name: given[name] for name in work.model.state_dict()})

    def descend(
        self, work: Work, part: Callable[[str], bool] = everything, steps: int | None = None, lr: float | None = None
    ) -> dict[str, float]:
        """SGD on `loss` over the parameters whose names satisfy `part`: E steps unless `steps` is given."""
        with only(work.model, part) as parameters:
            data, rate = work.batches(steps), work.lr if lr is None else lr

            def loss(batch: Batch) -> Terms:
                return self.loss(work.model, batch, work)

            return sgd(work.model, data, loss, parameters, work.local, rate, self.gradient)

    def gradient(self, loss: Callable[[], Terms], parameters: Sequence[nn.Parameter]) -> Terms:
        """The terms of one step's loss; the gradient that the step follows is left in the parameters."""
        return backward(loss, parameters)

    def upload(self, work: Work, losses: dict[str, float]) -> Upload:
        """The trained network, divided into what travels and what stays."""
        shared, personal = self.divide(work.model)
        return Upload(work.client, shared, personal, len(work.samples), losses)

    def divide(self, model: nn.Module) -> tuple[State, State]:
        """(shared, personal): copies of the model's tensors."""
        state = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
        shared = {name: tensor for name, tensor in state.items() if self.shared(name)}
        return shared, {name: tensor for name, tensor in state.items() if name not in shared}

    def weight(self, server: Server, upload: Upload) -> float:
        """What a client weighs in the mean, before weights are made to sum to 1: n_i."""
        return upload.samples

    def aggregate(self, server: Server, uploads: Iterable[Upload]) -> Server:
        """theta <- sum_i p_i theta_i / sum_i p_i over this round's clients, p_i = weight."""
        theta = weighted_mean(server.weights, uploads, lambda upload: self.weight(server, upload))
        return Server(theta, server.round + 1, server.memory)

    def personal_model(self, server: Server, client: int, memory: State) -> State:
        """The weights that a client predicts with, given what it has kept."""
        return server.weights | memory if memory else server.weights

    def own_model(self, crowd: Crowd, client: int) -> State:
        """The weights that a client predicts with, where it may look at its own samples to choose them."""
        return self.personal_model(crowd.server, client, crowd.memories[client])

    def candidates(self, server: Server, client: int, memory: State) -> list[State]:
        """All weights that a client may choose among: one, unless there are several models for all."""
        return [self.personal_model(server, client, memory)]

    def served(self, server: Server) -> list[State]:
        """The weights that may answer a client of which nothing is known: one, unless there are several models."""
        return [server.weights]

    def match(self, crowd: Crowd, visitor: Visitor) -> int | None:
        """The client whose model answers a visitor, where it is one client's."""
        return None

    def visit(self, crowd: Crowd, visitor: Visitor) -> Tensor:
        """Class scores (N, classes) for a visitor's samples, whose labels are not looked at."""
        return self.answer(crowd, visitor, self.match(crowd, visitor))

    def answer(self, crowd: Crowd, visitor: Visitor, client: int | None) -> Tensor:
        """The scores of `visit`, once it is known whom `match` found: that client's own model's.

        If it found none: with labelled samples (`few`), those of the served model of least mean loss on them; else all
        served models' mean probabilities (FEROMA spec, 6).
        """
        if client is not None:
            crowd.model.load_state_dict(self.personal_model(crowd.server, client, crowd.memories[client]))
            return class_scores(crowd.model, visitor.samples.images, self.class_logits)
        losses, scores, several = [], [], visitor.few.labels.ndim == 2
        for state in self.served(crowd.server):
            crowd.model.load_state_dict(state)
            logits = class_scores(crowd.model, visitor.samples.images, self.class_logits)
            scores.append(probabilities(logits, several))
            if len(visitor.few):
                losses.append(mean_loss(crowd.model, visitor.few, self.class_logits))
        return scores[int(torch.stack(losses).argmin())] if losses else torch.stack(scores).mean(0)

    def class_logits(self, outputs: Any) -> Tensor:
        """The class logits (N, K) in the network's raw output."""
        return outputs

    def moment(self, round: int, rounds: int) -> str:
        """When clients' models are evaluated in this round: "after_aggregation" or "after_local"."""
        return "after_aggregation"

    def route(self, crowd: Crowd) -> dict[str, Answer]:
        """Who answers a query of unknown origin: all clients' models vote. The first entry is the method's own rule."""
        found = voted(crowd.logits(), crowd.federation.several_labels)
        return {rule: Answer(labels) for rule, labels in found.items()}


def initial_state(method: Method, task: Task) -> tuple[nn.Module, Server, list[State]]:
    """One random initial network: every client starts from the same copy, heads included."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(task.seed, "init"))
        model = method.build(task).to(memory_format=torch.channels_last)
        torch.manual_seed(derive(task.seed, "server"))
        memory = method.remember(task)
        theta = method.begin(model, task)
    _, personal = method.divide(model)
    return model, Server(theta, memory=memory), [dict(personal) for _ in range(task.clients)]


def samples_of(upload: Upload) -> float:
    """n_i: what FedAvg weights a client by."""
    return upload.samples


def weighted_mean(start: State, uploads: Iterable[Upload], weight: Callable[[Upload], float] = samples_of) -> State:
    """sum_i p_i w_i / sum_i p_i over the tensors that arrive, accumulated one upload at a time in float64.

    p_i = weight(upload), n_i unless another is given. Tensors of `start` that no client sent stay as they are; whole
    numbers (BatchNorm counts its batches) stay whole.
    """
    total, sums = 0.0, {}
    for upload in uploads:
        p = weight(upload)
        total += p
        for name, tensor in upload.weights.items():
            if name not in sums:
                sums[name] = torch.zeros_like(tensor, dtype=torch.float64)
            sums[name].add_(tensor, alpha=p)
    return start | {name: as_like(start[name], value.div_(total)) for name, value in sums.items()}


def as_like(like: Tensor, mean: Tensor) -> Tensor:
    """A mean in the type of what it is the mean of; whole numbers stay whole (BatchNorm counts its batches)."""
    return (mean if like.is_floating_point() else mean.round()).to(like.dtype)
