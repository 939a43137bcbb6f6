"""Grad-CAM of networks whose CAM is known in closed form, and shares of hand-made CAMs."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from fedlib.analysis.attention import area_share, energy_inside, grad_cam, pointing_game
from fedlib.checks import FedlibError

MIX = torch.tensor([[1.0, 0.0], [0.5, -1.0], [0.0, 2.0]])
"""Three maps from two image channels."""
READ = torch.tensor([[1.0, 0.0, -1.0], [-0.5, 2.0, 0.3]])
"""Two logits from the means of three maps."""


class Toy(nn.Module):
    """1x1 convolution, what comes between, global mean, linear: y^c = sum_k READ[c, k] mean(A^k), if nothing does."""

    def __init__(self, between: nn.Module | None = None, as_tuple: bool = False) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 3, 1, bias=False)
        self.between = between or nn.Identity()
        self.head = nn.Linear(3, 2)
        self.unused = nn.Conv2d(2, 3, 1)
        self.as_tuple = as_tuple
        self.conv.weight.data = MIX[:, :, None, None].clone()
        self.head.weight.data = READ.clone()

    def forward(self, images: Tensor) -> Tensor | tuple[Tensor, str]:
        logits = self.head(self.between(self.conv(images)).mean((2, 3)))
        return (logits, "more") if self.as_tuple else logits


def images(n: int = 5, h: int = 4, w: int = 6) -> Tensor:
    return torch.rand(n, 2, h, w, generator=torch.Generator().manual_seed(1))


def closed_form(x: Tensor, targets: Tensor) -> Tensor:
    """ReLU(sum_k READ[c, k] A^k), least value 0, largest 1."""
    maps = torch.einsum("kc,nchw->nkhw", MIX, x)
    cam = torch.einsum("nk,nkhw->nhw", READ[targets], maps).relu()
    cam = cam - cam.amin((1, 2), keepdim=True)
    return cam / cam.amax((1, 2), keepdim=True)


TARGETS = torch.tensor([0, 1, 1, 0, 1])


@pytest.mark.parametrize("as_tuple", [False, True])
def test_a_linear_read_out_s_cam_is_the_weighted_map(as_tuple: bool):
    model, x = Toy(as_tuple=as_tuple), images()
    got = grad_cam(model, model.conv, x, TARGETS)
    assert got.shape == (5, 4, 6)
    torch.testing.assert_close(got, closed_form(x, TARGETS), atol=2e-5, rtol=0)
    torch.testing.assert_close(grad_cam(model, model.conv, x, TARGETS, batch_size=2), got)


def test_each_class_has_a_cam_of_its_own():
    model, x = Toy(), images()
    assert not torch.allclose(
        grad_cam(model, model.conv, x, TARGETS), grad_cam(model, model.conv, x, 1 - TARGETS), atol=0.1
    )


def test_a_coarse_map_is_brought_to_the_image_with_its_rows_and_columns_in_place():
    """The pixel (1, 4) of a 2x6 map lies at rows 4 to 7 and columns 16 to 19 of an 8x24 image."""
    x = torch.zeros(1, 2, 2, 6)
    x[0, 0, 1, 4] = 1.0
    model = nn.Sequential(nn.AvgPool2d(4), Toy())
    cam = grad_cam(model, model[1].conv, x.repeat_interleave(4, 2).repeat_interleave(4, 3), torch.tensor([0]))[0]
    assert cam.shape == (8, 24) and cam.max() == pytest.approx(1.0, abs=1e-4)
    assert divmod(int(cam.argmax()), 24)[0] in range(4, 8) and divmod(int(cam.argmax()), 24)[1] in range(16, 20)
    assert cam[:2].sum() == 0 and cam[:, :12].sum() == 0


def test_an_operation_in_place_after_the_layer_changes_nothing():
    x = images() - 0.5
    cams = []
    for inplace in (False, True):
        model = Toy(between=nn.ReLU(inplace=inplace))
        cams.append(grad_cam(model, model.conv, x, TARGETS))
    torch.testing.assert_close(cams[0], cams[1], atol=0, rtol=0)
    assert cams[0].amax((1, 2)).min() > 0.9


def test_a_map_that_speaks_against_the_class_everywhere_is_zero():
    model = Toy()
    model.head.weight.data = -READ.abs()
    model.conv.weight.data = MIX.abs()[:, :, None, None]
    assert grad_cam(model, model.conv, images(), TARGETS).abs().max() == 0


def outcome(model: Toy, x: Tensor, targets: Tensor) -> Tensor | FedlibError:
    """The CAMs, or the error: kept, it holds on to every frame that it came through."""
    try:
        return grad_cam(model, model.conv, x, targets)
    except FedlibError as error:
        return error


def test_the_model_is_left_as_it_was():
    """After CAMs, and after a target that it has no logit for."""
    model = Toy(between=nn.BatchNorm2d(3))
    model.train()
    model.between.eval()  # a mode of its own
    model.head.weight.grad = torch.full_like(model.head.weight, 3.0)
    model.conv.weight.requires_grad_(False)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    x = images()
    for targets in (TARGETS, TARGETS + 1):
        with torch.no_grad():
            kept = outcome(model, x, targets)
        assert isinstance(kept, FedlibError) == bool(targets.max() == 2)
        assert [module.training for module in (model, model.conv, model.between)] == [True, True, False]
        assert model.head.weight.grad.unique().tolist() == [3.0]
        assert [name for name, p in model.named_parameters() if p.grad is not None] == ["head.weight"]
        assert not any(module._forward_hooks for module in model.modules())
        assert not model.conv.weight.requires_grad and not x.requires_grad
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_it_looks_in_evaluation_mode_and_through_frozen_weights():
    """In training mode dropout would leave maps out, from torch's global stream."""
    model = Toy(between=nn.Dropout(0.9)).train().requires_grad_(False)
    state = torch.get_rng_state()
    torch.testing.assert_close(
        grad_cam(model, model.conv, images(), TARGETS), closed_form(images(), TARGETS), atol=2e-5, rtol=0
    )
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    ("layer", "targets", "message"),
    [
        (lambda _: nn.Conv2d(1, 1, 1), TARGETS, "layer: this Conv2d is no module of the model"),
        (lambda model: model.unused, TARGETS, "the logits do not depend on this Conv2d"),
        (lambda model: model.head, TARGETS, r"its output has shape \(5, 2\); give one with maps"),
        (lambda model: model.conv, TARGETS + 1, "targets: no class 2; give 0 to 1"),
        (lambda model: model.conv, TARGETS - 1, "targets: no class -1; give 0 to 1"),
        (lambda model: model.conv, TARGETS[:3], r"targets of shape \(3,\)"),
    ],
)
def test_bad_input_is_named(layer, targets: Tensor, message: str):
    model = Toy()
    with pytest.raises(FedlibError, match=message):
        grad_cam(model, layer(model), images(), targets)


def mask_of(rows: slice, columns: slice) -> Tensor:
    mask = torch.zeros(1, 8, 10, dtype=torch.bool)
    mask[0, rows, columns] = True
    return mask


MASK = mask_of(slice(2, 6), slice(0, 5))  # 20 of 80


def test_energy_of_known_cams():
    """The mask itself: 1; a constant: the area; its complement: 0; nothing: NaN; half in, half out: 1 / 2."""
    half = 0.5 * MASK.float()
    half[0, 7, 0:10] = 1.0
    cams = torch.cat([MASK.float(), torch.full((1, 8, 10), 0.3), (~MASK).float(), half])
    masks = MASK.expand(4, -1, -1)
    assert energy_inside(cams, masks).tolist() == pytest.approx([1.0, 0.25, 0.0, 0.5])
    assert area_share(masks).tolist() == pytest.approx([0.25] * 4)
    assert math.isnan(energy_inside(torch.zeros(1, 8, 10), MASK).item())


def test_energy_has_no_unit_and_both_sides_make_a_whole():
    cam = torch.rand(1, 8, 10, generator=torch.Generator().manual_seed(0))
    inside = energy_inside(cam, MASK).item()
    assert energy_inside(5 * cam, MASK).item() == pytest.approx(inside)
    assert energy_inside(cam, ~MASK).item() == pytest.approx(1 - inside)


def test_the_pointing_game_counts_a_maximum_inside():
    inside, outside = torch.zeros(1, 8, 10), torch.zeros(1, 8, 10)
    inside[0, 3, 4], outside[0, 3, 5] = 1.0, 1.0
    tie = torch.maximum(inside, outside)
    cams = torch.cat([inside, outside, tie, 0.5 * tie + inside, torch.zeros(1, 8, 10)])
    assert pointing_game(cams, MASK.expand(5, -1, -1)).tolist() == [True, False, False, True, False]


def test_a_random_point_hits_as_often_as_the_mask_is_large():
    """4000 CAMs of noise: the hit rate's deviation is 0.007."""
    cams = torch.rand(4000, 8, 10, generator=torch.Generator().manual_seed(3))
    masks = MASK.expand(4000, -1, -1)
    assert pointing_game(cams, masks).float().mean().item() == pytest.approx(0.25, abs=0.03)
    assert energy_inside(cams, masks).mean().item() == pytest.approx(0.25, abs=0.01)


@pytest.mark.parametrize("measure", [energy_inside, pointing_game])
def test_cams_and_masks_that_do_not_fit_are_named(measure):
    cam = torch.ones(1, 8, 10)
    with pytest.raises(FedlibError, match=r"masks of shape \(1, 8, 10\) and type torch.float32"):
        measure(cam, MASK.float())
    with pytest.raises(FedlibError, match=r"CAMs of shape \(1, 10, 8\)"):
        measure(cam.transpose(1, 2), MASK)
    with pytest.raises(FedlibError, match=r"a CAM holds -1.0"):
        measure(-cam, MASK)
