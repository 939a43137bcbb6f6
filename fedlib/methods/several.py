"""What methods with several models for all clients (IFCA, FedFew, CFL, FedSoft) have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from fedlib.checks import check_choice
from fedlib.data.federation import Samples
from fedlib.forward import ClassLogits, mean_loss
from fedlib.methods.method import Crowd, Method, Server, State, Task, hyper
from fedlib.methods.names import named
from fedlib.streams import derive

INITS = ("independent", "noise", "same")
NOISE = 0.01


@dataclass(frozen=True)
class Several(Method):
    """K models theta_1 … theta_K on the server, under the names "0/…" to "K-1/…"; a client predicts with one of them,

        k_i = argmin_k L_i(theta_k),   L_i: the mean cross-entropy on the client's own samples; ties go to the lowest k

    chosen whenever it is evaluated. A base class: what is sent, trained and averaged is the subclass's.

    K: models. init: "independent" draws; "noise", copies of one draw plus Gaussian noise of 0.01; or "same", copies.
    selection: L_i on "validation" samples, or on those of "train".
    """

    abstract: ClassVar[bool] = True
    K: int = hyper(3, least=1, whole=True)
    init: str = "independent"
    selection: str = "validation"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(f"{type(self).__name__}.init", self.init, INITS)
        check_choice(f"{type(self).__name__}.selection", self.selection, ("validation", "train"))

    @property
    def needs_validation(self) -> bool:
        return self.selection == "validation"

    @property
    def differs_by_client(self) -> bool:
        return True

    def begin(self, model: nn.Module, task: Task) -> State:
        """theta_1 is the network that methods with one model start from."""
        drawn = [super().begin(model, task)]
        for k in range(1, self.K):
            torch.manual_seed(derive(task.seed, "init", k))
            if self.init == "independent":
                drawn.append(super().begin(self.build(task), task))
            else:
                size = NOISE if self.init == "noise" else 0.0
                drawn.append({name: noisy(tensor, size) for name, tensor in drawn[0].items()})
        return numbered(drawn)

    def candidates(self, server: Server, client: int, memory: State) -> list[State]:
        return models(server.weights)

    def served(self, server: Server) -> list[State]:
        return models(server.weights)

    def personal_model(self, server: Server, client: int, memory: State) -> State:
        """theta_1, for lack of samples to choose by: see own_model."""
        return models(server.weights)[0]

    def own_model(self, crowd: Crowd, client: int) -> State:
        theta = self.candidates(crowd.server, client, crowd.memories[client])
        return theta[choose(self, crowd, client, theta)]


def noisy(tensor: Tensor, size: float) -> Tensor:
    """A copy, plus Gaussian noise where it holds real numbers."""
    return tensor + size * torch.randn_like(tensor) if tensor.is_floating_point() and size else tensor.clone()


def models(theta: Mapping[str, Tensor]) -> list[State]:
    """[theta_1, …]: the tensors of "k/name", by k; no copies."""
    found: dict[int, State] = {}
    for name, tensor in theta.items():
        k, _, rest = name.partition("/")
        found.setdefault(int(k), {})[rest] = tensor
    return [found[k] for k in sorted(found)]


def numbered(theta: Sequence[State]) -> State:
    """All tensors of theta_1, … as "k/name", from k = 0; no copies."""
    return {name: tensor for k, one in enumerate(theta) for name, tensor in named(k, one).items()}


def choose(method: Several, crowd: Crowd, client: int, theta: list[State]) -> int:
    """k_i: which of theta fits the client's own samples best."""
    if len(theta) == 1:
        return 0
    own = crowd.federation.clients[client]
    samples = own.validation if method.selection == "validation" else own.train
    losses = losses_under(crowd.model, theta, samples, method.class_logits).tolist()
    return min(range(len(losses)), key=losses.__getitem__)


def losses_under(model: nn.Module, theta: Sequence[State], samples: Samples, class_logits: ClassLogits) -> Tensor:
    """(K,), float64: L(theta_k), the mean cross-entropy of the network with each of these weights."""
    found = []
    for state in theta:
        model.load_state_dict(state)
        found.append(mean_loss(model, samples, class_logits))
    return torch.stack(found)
