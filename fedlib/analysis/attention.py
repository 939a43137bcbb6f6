"""Where a classifier looks: Grad-CAM (Selvaraju et al., ICCV 2017) and how much of it lies on the object.

With A^k the k-th map of a layer's output for one image and y^c the logit of class c,

    alpha_k = mean_{i,j} d y^c / d A^k_{ij},     CAM = ReLU(sum_k alpha_k A^k),

resized to the image by bilinear interpolation. Where an object mask is known, `energy_inside` and `pointing_game`
measure what a picture only suggests. A CAM that knows nothing of the image has the mask's `area_share` in both.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from pytorch_grad_cam import GradCAM
from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget
from torch import Tensor, nn

from fedlib.checks import FedlibError, check_number


def grad_cam(model: nn.Module, layer: nn.Module, images: Tensor, targets: Tensor, batch_size: int = 64) -> Tensor:
    """CAMs (N, H, W) on the CPU, each stretched by itself: its least value is 0, its largest 1; a constant one is 0.

    model: any whose output is logits (N, classes), or a tuple that begins with them; on any device. It runs in
    evaluation mode and is left as it was: modes, gradients, hooks. layer: one of its modules, with output (N, K, h, w).
    images: float (N, C, H, W), as the model takes them. targets: (N,), the class that each CAM explains.
    Raises FedlibError for a layer that is not the model's or has no effect on the logits, and for an unknown class.
    """
    check_number("grad_cam: batch_size", batch_size, least=1, whole=True)
    if not any(module is layer for module in model.modules()):
        raise FedlibError(f"grad_cam: layer: this {type(layer).__name__} is no module of the model; give one that is")
    if images.ndim != 4 or targets.shape != images.shape[:1] or len(images) == 0:
        raise FedlibError(
            f"grad_cam: images of shape {tuple(images.shape)} and targets of shape {tuple(targets.shape)}; "
            "give (N, C, H, W) and (N,), N at least 1"
        )
    found = []
    with _left_as_it_was(model), torch.enable_grad():
        explain = _GradCAM(_Logits(model, targets), [layer], reshape_transform=_copied)
        try:
            for x, y in zip(images.split(batch_size), targets.split(batch_size), strict=True):
                # An input with a gradient reaches the layer also where the model's parameters are frozen.
                inputs = x.detach().clone().requires_grad_()
                found.append(torch.from_numpy(explain(inputs, [ClassifierOutputTarget(c) for c in y.tolist()])))
        finally:
            explain.activations_and_grads.release()
    return torch.cat(found)


def energy_inside(cam: Tensor, mask: Tensor) -> Tensor:
    """(N,): the share of each CAM's sum that lies inside its mask; NaN where the CAM is 0 everywhere.

    cam: (N, H, W), not negative. mask: bool (N, H, W). Compare with `area_share`, which a constant CAM has.
    """
    _check_pair("energy_inside", cam, mask)
    return (cam * mask).sum((1, 2)) / cam.sum((1, 2))


def pointing_game(cam: Tensor, mask: Tensor) -> Tensor:
    """bool (N,): whether the CAM's maximum lies in the mask. Of several equal maxima, all have to.

    A constant CAM points nowhere and so misses, unless its mask is the whole image.
    """
    _check_pair("pointing_game", cam, mask)
    peaks = cam == cam.amax((1, 2), keepdim=True)
    return ~(peaks & ~mask).any(2).any(1)


def area_share(mask: Tensor) -> Tensor:
    """(N,): the share of the image that each mask (N, H, W) covers: chance for both measures."""
    return mask.float().mean((1, 2))


def _check_pair(where: str, cam: Tensor, mask: Tensor) -> None:
    if cam.ndim != 3 or cam.shape != mask.shape or mask.dtype != torch.bool:
        raise FedlibError(
            f"{where}: CAMs of shape {tuple(cam.shape)}, masks of shape {tuple(mask.shape)} and type {mask.dtype}; "
            "give both as (N, H, W), masks as bool"
        )
    if not bool((cam >= 0).all()):
        raise FedlibError(f"{where}: a CAM holds {float(cam.min())}; give CAMs that are nowhere negative or NaN")


class _Logits(nn.Module):
    """The model, its first output alone, and an error for a target that it has no logit for."""

    def __init__(self, model: nn.Module, targets: Tensor) -> None:
        super().__init__()
        self.model = model
        self.range = int(targets.min()), int(targets.max())

    def forward(self, images: Tensor) -> Tensor:
        output = self.model(images)
        logits = output[0] if isinstance(output, tuple) else output
        if self.range[0] < 0 or self.range[1] >= logits.shape[1]:
            wrong = self.range[0] if self.range[0] < 0 else self.range[1]
            raise FedlibError(f"grad_cam: targets: no class {wrong}; give 0 to {logits.shape[1] - 1}")
        return logits


class _GradCAM(GradCAM):
    """grad-cam's, with an error that says so when the logits do not depend on the layer."""

    def get_cam_weights(self, images: Tensor, layer: nn.Module, targets: Any, activations: Any, grads: Any) -> Any:
        if grads is None:
            raise FedlibError(
                f"grad_cam: layer: the logits do not depend on this {type(layer).__name__}; give a layer on their way"
            )
        return super().get_cam_weights(images, layer, targets, activations, grads)


def _copied(output: Tensor) -> Tensor:
    """The layer's maps, safe from a later operation in place, such as ReLU(inplace=True)."""
    if output.ndim != 4:
        raise FedlibError(
            f"grad_cam: layer: its output has shape {tuple(output.shape)}; give one with maps (N, K, h, w)"
        )
    return output.clone()


@contextmanager
def _left_as_it_was(model: nn.Module) -> Iterator[None]:
    """Put back each module's mode and each parameter's gradient, also after an error."""
    modes = [(module, module.training) for module in model.modules()]
    gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
        for parameter, gradient in gradients:
            parameter.grad = gradient
