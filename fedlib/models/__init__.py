"""Models by name: `build({"name": "lenet_gn", "sharing": "deep"}, shape, classes)`.

A model's module is imported only when the model is asked for: a run depends on the code of its own model alone.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin, get_type_hints

from fedlib.checks import FedlibError, check_choice, check_keys

if TYPE_CHECKING:
    from fedlib.models.network import Network

MODELS: dict[str, str] = {
    "cnn4": "cnn",
    "lenet5": "lenet5",
    "lenet_gn": "cnn",
    "linear": "cnn",
    "mcmahan_cnn": "cnn",
    "resnet10": "resnet10",
    "resnet18": "resnet",
    "resnet18_gn": "resnet",
    "resnet9": "resnet9",
    "small_cnn": "cnn",
    "text_cnn": "text",
}
"""Each model's builder, `f(shape, classes, **options) -> Network`, and the module of this package that holds it."""

TEXT = ("text_cnn",)
"""The models that read texts; all others read images."""


def module_of(spec: Mapping[str, Any]) -> str:
    """Full name of the module that holds the spec's builder, e.g. "fedlib.models.cnn"."""
    return f"{__name__}.{MODELS[_name(spec)]}"


def check_spec(spec: Mapping[str, Any]) -> None:
    """Refuse an unknown model, an option that its builder does not have, and a value that the option cannot take."""
    name, builder = _name(spec), _builder(spec)
    options = {key: value for key, value in spec.items() if key != "name"}
    check_keys(f"model {name}", options, list(inspect.signature(builder).parameters)[2:])
    hints = get_type_hints(builder)
    for key, value in options.items():
        if get_origin(hints[key]) is Literal:
            check_choice(f"model {name}: {key}", value, get_args(hints[key]))


def build(spec: Mapping[str, Any], shape: tuple[int, ...], classes: int) -> Network:
    """The model `spec` for images of `shape` (C, H, W) or texts of `shape` (V, L), with fresh weights.

    PyTorch draws initial weights from its global generator: callers seed it inside `torch.random.fork_rng()`.
    Raises FedlibError for a wrong spec, for images that are too small for the model, and for texts or images where the
    model reads the other.
    """
    check_spec(spec)
    if (len(shape) == 2) != (spec["name"] in TEXT):
        held, read = ("texts", "images") if len(shape) == 2 else ("images", "texts")
        fitting = [name for name in MODELS if (name in TEXT) == (held == "texts")]
        raise FedlibError(
            f"model {spec['name']}: it reads {read}, but the data set holds {held}; take {' or '.join(fitting)}"
        )
    options = {key: value for key, value in spec.items() if key != "name"}
    return _builder(spec)(shape, classes, **options)


def _name(spec: Mapping[str, Any]) -> str:
    if not isinstance(spec, Mapping) or "name" not in spec:
        raise FedlibError(f"model: {spec!r} names no model; give a mapping with a name, such as {{name: lenet_gn}}")
    return check_choice("model", spec["name"], MODELS)


def _builder(spec: Mapping[str, Any]) -> Callable[..., Network]:
    return getattr(importlib.import_module(module_of(spec)), spec["name"])
