"""Local SGD: the one loop that every method's client work goes through."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fedlib.checks import FedlibError, check_choice, check_number, whole_as_float
from fedlib.data.federation import Samples
from fedlib.data.shift import padded_crop, random_flip, random_resized_crop

Terms = dict[str, Tensor]
Gradient = Callable[[Callable[[], Terms], Sequence[nn.Parameter]], Terms]


class Batch(NamedTuple):
    """x: float (B, 3, H, W) in [-1, 1], or of texts int64 (B, L) token numbers; y: int64 (B,), or (B, U) as Samples has
    them; client: its holder."""

    x: Tensor
    y: Tensor
    client: int


class NotFinite(FedlibError):
    """The loss of a step was NaN or infinite."""


@dataclass(frozen=True)
class Local:
    """What a client does between two rounds.

    steps, epochs: E, mini-batches or passes; exactly one of them.
    batch_size: B; the last, smaller batch of a pass is used.
    momentum, weight_decay: of SGD, on every parameter; the optimiser is new in every round.
    crop: random resized crop of training images (area 0.9 to 1).
    padding, flip: random crop after padding by so many pixels (0: none), and mirroring, of training images.
    precision: "float32", or "bfloat16" (autocast) on a machine that has it in hardware.
    """

    steps: int | None = 10
    epochs: int | None = None
    batch_size: int = 32
    momentum: float = 0.9
    weight_decay: float = 5.0e-4
    crop: bool = True
    padding: int = 0
    flip: bool = False
    precision: str = "float32"

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.epochs is None):
            raise FedlibError(f"steps={self.steps}, epochs={self.epochs}: give exactly one of them")
        for name in ("steps", "epochs"):
            if getattr(self, name) is not None:
                check_number(name, getattr(self, name), least=1, whole=True)
        check_number("batch_size", self.batch_size, least=1, whole=True)
        check_number("momentum", self.momentum, least=0.0, below=1.0)
        check_number("weight_decay", self.weight_decay, least=0.0)
        check_choice("crop", self.crop, (True, False))
        check_choice("flip", self.flip, (True, False))
        check_number("padding", self.padding, least=0, whole=True)
        if self.crop and self.padding:
            raise FedlibError(
                f"crop: true, padding: {self.padding}: two random crops; keep one, with crop: false or padding: 0"
            )
        check_choice("precision", self.precision, ("float32", "bfloat16"))
        whole_as_float(self)

    def count(self, samples: int) -> int:
        """Mini-batches in one round for a client with so many samples."""
        return self.steps or (self.epochs or 0) * -(-samples // self.batch_size)


def has_bfloat16(device: torch.device) -> bool:
    """Whether bfloat16 arithmetic is in hardware: on a CPU without it, it is several times slower than float32."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


def check_precision(precision: str, device: torch.device) -> None:
    """Refuse bfloat16 where it would be emulated."""
    if precision == "bfloat16" and not has_bfloat16(device):
        raise FedlibError(f"precision: this {device.type} has no bfloat16 arithmetic; use precision: float32")


def prepare(images: Tensor) -> Tensor:
    """uint8 (N, 3, H, W) -> float in [-1, 1] (mean 0.5, standard deviation 0.5), channels last; token numbers stay."""
    if images.dtype != torch.uint8:
        return images.long()
    return images.to(torch.float32, memory_format=torch.channels_last).div_(127.5).sub_(1.0)


def check_texts(local: Local) -> None:
    """Refuse what is done to images alone, for a set of texts."""
    for name in ("crop", "padding", "flip"):
        if getattr(local, name):
            raise FedlibError(
                f"{name}: {getattr(local, name)} changes images, but these samples are texts; set {name}: "
                f"{0 if name == 'padding' else 'false'}"
            )


def batches(samples: Samples, local: Local, client: int, generator: torch.Generator) -> Iterator[Batch]:
    """E mini-batches: freshly shuffled passes over the client's samples, started anew in every round."""
    left = local.count(len(samples))
    while left > 0:
        order = torch.randperm(len(samples), generator=generator).to(samples.labels.device)
        for index in order.split(local.batch_size)[:left]:
            yield Batch(augment(samples.images[index], local, generator), samples.labels[index], client)
            left -= 1


def augment(images: Tensor, local: Local, generator: torch.Generator) -> Tensor:
    """Training images, uint8 (B, 3, H, W), as the network meets them: randomly cut and mirrored, float in [-1, 1].

    Texts are neither cut nor mirrored: see check_texts.
    """
    if local.padding:
        images = padded_crop(images, local.padding, generator)
    if local.flip:
        images = random_flip(images, generator)
    x = prepare(images)
    return random_resized_crop(x, generator) if local.crop else x


@contextlib.contextmanager
def only(model: nn.Module, names: Callable[[str], bool]) -> Iterator[list[nn.Parameter]]:
    """The parameters whose name satisfies `names`; all others are frozen meanwhile."""
    chosen = []
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(names(name))
        if parameter.requires_grad:
            chosen.append(parameter)
    try:
        yield chosen
    finally:
        model.requires_grad_(True)


def backward(loss: Callable[[], Terms], parameters: Sequence[nn.Parameter]) -> Terms:
    """The loss terms at w; the gradient of "total" is left in the parameters."""
    terms = loss()
    terms["total"].backward()
    return terms


def sgd(
    model: nn.Module,
    data: Iterable[Batch],
    loss: Callable[[Batch], Terms],
    parameters: Sequence[nn.Parameter],
    local: Local,
    lr: float,
    gradient: Gradient = backward,
) -> dict[str, float]:
    """w <- w - lr * v,  v <- momentum * v + grad(total) + weight_decay * w, one step a batch.

    `loss` returns named terms, of which "total" is minimised; `gradient` says at which point (see backward). Returns
    the mean of each term over the steps. Raises NotFinite, naming the step, after the last one: looking at each loss
    as it comes would stall a GPU.
    """
    if not parameters:
        raise FedlibError(
            "no parameter is left to train in this phase; take a model with a backbone, such as small_cnn"
        )
    model.train()
    optimiser = torch.optim.SGD(parameters, lr, local.momentum, weight_decay=local.weight_decay, fused=True)
    record: dict[str, list[Tensor]] = {}
    device = next(model.parameters()).device.type
    for batch in data:

        def terms_of(batch: Batch = batch) -> Terms:
            with torch.autocast(device, torch.bfloat16, enabled=local.precision == "bfloat16"):
                return loss(batch)

        optimiser.zero_grad()
        terms = gradient(terms_of, parameters)
        optimiser.step()
        for name, value in terms.items():
            record.setdefault(name, []).append(value.detach())
    return _means(record)


def _means(record: dict[str, list[Tensor]]) -> dict[str, float]:
    means = {}
    for name, values in record.items():
        steps = torch.stack(values).float()
        bad = (~steps.isfinite()).nonzero()
        if len(bad):
            raise NotFinite(
                f"step {int(bad[0]) + 1} of {len(steps)}: the {name} loss is {float(steps[bad[0]])}; lower lr"
            )
        means[name] = float(steps.mean())
    return means
