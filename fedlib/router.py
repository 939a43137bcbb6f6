"""Router: FedDRM's server as a thing to use, saved to a folder and loaded elsewhere, without the data.

router.json          what rebuilds the network (model, shape, classes, n_i, method), and which run it comes from
weights.safetensors  the averaged tensors, and every client's own head (alpha_i, beta_i)

A query x, of unknown origin, gets (Wang et al., ICLR 2026, with c the client logits and l = 1 … m)

    r_l(x) = c_l(x) - log(n_l / n),    client = argmax_l r_l(x),    confidence = max_l softmax(r(x))_l,

and as prediction the class that the chosen client's head gives. The confidence is the probability that the density
ratios give to that client if, before the query was seen, all clients were equally likely to have sent it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors.torch
import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from torch import Tensor, nn

from fedlib import methods, store
from fedlib.checks import FedlibError
from fedlib.data.shift import Appearance, apply
from fedlib.forward import CHUNK
from fedlib.methods.feddrm import FedDRM, sent_to
from fedlib.methods.method import State, Task
from fedlib.runs import Run
from fedlib.training import prepare
from fedlib.votes import first_argmax

FORMAT = 1
HEAD = ("head.weight", "head.bias")
KEYS = {"format", "model", "shape", "classes", "sizes", "method", "standardise", "run", "fedlib", "sha256"}


class Routed(NamedTuple):
    """client: int64 (N,), whom each query is sent to. confidence: (N,), 1/m to 1. prediction: int64 (N,), a class."""

    client: Tensor
    confidence: Tensor
    prediction: Tensor


@dataclass(frozen=True)
class Router:
    """network: FedDRM's, with the averaged tensors. weight (m, K, width), bias (m, K): the clients' own heads.

    classes: their names. shape: (3, H, W) of a query. sizes: n_i. look: what is done to every query first, where the
    run standardised all clients alike. run: key of the run it comes from.
    """

    network: nn.Module
    weight: Tensor
    bias: Tensor
    classes: tuple[str, ...]
    shape: tuple[int, int, int]
    sizes: tuple[int, ...]
    look: Appearance
    run: str

    @torch.no_grad()
    def route(self, images: Tensor | np.ndarray) -> Routed:
        """Send each query to a client, and let that client's head answer it: one pass through the backbone.

        images: uint8, a tensor (N, 3, H, W) or an array (N, H, W, 3), of the H and W that the network was trained on.
        Raises FedlibError for any other type or shape.
        """
        chunks = [self._route(prepare(x)) for x in apply(self._checked(images), self.look).split(CHUNK)]
        return Routed(*(torch.cat(column) for column in zip(*chunks, strict=True)))

    def _route(self, x: Tensor) -> Routed:
        inputs: list[Tensor] = []
        hook = self.network.head.register_forward_pre_hook(lambda _, x: inputs.append(x[0]))  # type: ignore[union-attr]
        try:
            _, c = self.network(x)
        finally:
            hook.remove()
        ratios = c - self._log_shares()
        logits = torch.stack([F.linear(inputs[0], *head) for head in zip(self.weight, self.bias, strict=True)])
        client = first_argmax(ratios)
        return Routed(client, ratios.softmax(-1).amax(-1), sent_to(client, logits).labels)

    def _log_shares(self) -> Tensor:
        sizes = np.asarray(self.sizes, dtype=float)
        return torch.tensor(sizes / sizes.sum(), dtype=torch.float32).log()

    def _checked(self, images: Tensor | np.ndarray) -> Tensor:
        """The images as a tensor (N, 3, H, W)."""
        channels, height, width = self.shape
        layouts = {Tensor: (channels, height, width), np.ndarray: (height, width, channels)}
        wanted = f"give uint8, a tensor (N, 3, {height}, {width}) or an array (N, {height}, {width}, 3)"
        kind = next((kind for kind in layouts if isinstance(images, kind)), None)
        if kind is None:
            raise FedlibError(f"route: images are {type(images).__name__}; {wanted}")
        given = f"route: images are {kind.__name__} of {images.dtype} {tuple(images.shape)}"
        if images.dtype not in (torch.uint8, np.uint8):
            raise FedlibError(f"{given}; {wanted}, with values from 0 to 255: the router scales them itself")
        if tuple(images.shape[1:]) != layouts[kind]:
            alone = ", and one image alone as images[None]" if tuple(images.shape) == layouts[kind] else ""
            raise FedlibError(f"{given}; {wanted}{alone}")
        if isinstance(images, Tensor):
            return images.cpu()
        return torch.from_numpy(images.copy()).permute(0, 3, 1, 2)


def save(run: Run, folder: str | Path) -> None:
    """Write the router of a finished FedDRM run. Raises FedlibError for a run of another method.

    Each file is written whole or not at all; router.json names the weights that it belongs to, and comes last.
    """
    method = run.experiment.method
    if not isinstance(method, FedDRM):
        raise FedlibError(f"router: {type(method).__name__} trains no router; give a finished run of FedDRM")
    described = {"name": type(method).__name__, **asdict(method)}
    methods.make(described)
    federation, now = run.experiment.federation(), run.snapshot()
    if any(set(memory) != set(HEAD) for memory in now.memories):
        raise FedlibError(f"router: {type(method).__name__} keeps more than a head with its clients; give FedDRM's run")
    states = [method.personal_model(now.server, i, memory) for i, memory in enumerate(now.memories)]
    tensors = now.server.weights | {name: torch.stack([own[name] for own in states]) for name in HEAD}
    plain = {name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()}
    payload = safetensors.torch.save(plain)
    about: dict[str, Any] = {
        "format": FORMAT,
        "model": dict(run.experiment.model),
        "shape": federation.shape,
        "classes": federation.classes,
        "sizes": federation.sizes,
        "method": described,
        "standardise": _common_statistics(run.experiment.shift),
        "run": run.key,
        "fedlib": store.version(),
    }
    about["sha256"] = _digest(payload, about)
    store.write(Path(folder) / "weights.safetensors", lambda to: to.write_bytes(payload))
    store.write_text(Path(folder) / "router.json", json.dumps(about, indent=1) + "\n")


def load(folder: str | Path) -> Router:
    """What save wrote. Raises FedlibError for a missing folder, a damaged file and a format that is not known."""
    about = _about(Path(folder) / "router.json")
    file = Path(folder) / "weights.safetensors"
    payload = _bytes(file)
    if _digest(payload, about) != about["sha256"]:
        raise _damaged(Path(folder), "weights.safetensors and router.json are not as they were written together")
    try:
        tensors = safetensors.torch.load(payload)
        return _rebuilt(about, tensors)
    except (SafetensorError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise _damaged(Path(folder), f"{type(error).__name__}: {error}") from error


def _rebuilt(about: Mapping[str, Any], tensors: State) -> Router:
    channels, height, width = about["shape"]
    shape, sizes = (channels, height, width), tuple(about["sizes"])
    task = Task(about["model"], shape, len(about["classes"]), sizes, rounds=1, seed=0)
    with torch.random.fork_rng(devices=[]):
        network = methods.make(about["method"]).build(task)
    weight, bias = (tensors[name] for name in HEAD)
    _check(sizes, weight, bias, tensors)
    network.load_state_dict(tensors | {"head.weight": weight[0], "head.bias": bias[0]})
    network = network.to(memory_format=torch.channels_last).eval()
    common = about["standardise"]
    look = Appearance(mean=tuple(common["mean"]), std=tuple(common["std"])) if common else Appearance()
    return Router(network, weight, bias, tuple(about["classes"]), shape, sizes, look, about["run"])


def _check(sizes: tuple[Any, ...], weight: Tensor, bias: Tensor, tensors: State) -> None:
    """Raise ValueError unless there is a size and a head for each client, and every number is finite."""
    if not sizes or any(type(n) is not int or n < 1 for n in sizes):
        raise ValueError(f"sizes are {list(sizes)}, not a whole number above 0 for each client")
    if weight.ndim != 3 or not len(sizes) == len(weight) == len(bias):
        raise ValueError(f"{len(sizes)} sizes, but heads of shape {tuple(weight.shape)}")
    for name, tensor in tensors.items():
        if tensor.dtype != torch.float32 or not tensor.isfinite().all():
            raise ValueError(f"{name} is {tensor.dtype}, or not finite")


def _common_statistics(shift: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """What every query has to be standardised by before it is routed."""
    if shift is None or shift["name"] != "standardise":
        return None
    if len(shift["mean"]) > 1:
        raise FedlibError(
            "router: this run standardises each image by its own client's statistics, but a query's client is not "
            "known; train with one row of mean and std for all"
        )
    return {"mean": list(shift["mean"][0]), "std": list(shift["std"][0])}


def _digest(payload: bytes, about: Mapping[str, Any]) -> str:
    """SHA-256 of the weights and of all that router.json says beside it."""
    described = {name: value for name, value in about.items() if name != "sha256"}
    return hashlib.sha256(payload + json.dumps(described, sort_keys=True).encode()).hexdigest()


def _about(path: Path) -> dict[str, Any]:
    text = _bytes(path)
    try:
        about = json.loads(text)
        number = about["format"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _damaged(path, f"{type(error).__name__}: {error}") from error
    if number != FORMAT:
        raise FedlibError(
            f"{path}: format {number!r} is unknown, this fedlib reads {FORMAT}; load it with the fedlib that wrote it "
            f"({about.get('fedlib')}), or save the run's router again"
        )
    if missing := KEYS - about.keys():
        raise _damaged(path, f"it lacks {', '.join(sorted(missing))}")
    return about


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise FedlibError(f"{path} is not there; write the folder with router.save(run, folder)") from error
    except OSError as error:
        raise FedlibError(f"cannot read {path}: {error.strerror or error}; mend its permissions") from error


def _damaged(path: Path, reason: str) -> FedlibError:
    return FedlibError(f"{path} is damaged ({' '.join(reason.split())}); save the run's router again")
