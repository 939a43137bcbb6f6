import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torchvision.transforms import RandomResizedCrop, functional

from fedlib.checks import FedlibError
from fedlib.data import shift
from fedlib.data.shift import Appearance

TABLE = [
    (0.6, -0.1, 0.5),
    (1.4, -0.1, 0.5),
    (0.6, 0.1, 0.5),
    (1.4, 0.1, 0.5),
    (0.6, -0.1, 1.5),
    (1.4, -0.1, 1.5),
    (0.6, 0.1, 1.5),
    (1.4, 0.1, 1.5),
]
"""Client 0 to 7 of the FedDRM spec, 3.3."""


def pictures(count=6, size=8):
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (count, 3, size, size), generator=generator, dtype=torch.uint8)


def test_the_default_grid_is_the_published_table():
    assert [shift.bit_grid(client) for client in range(8)] == [Appearance(*row) for row in TABLE]
    assert shift.bit_grid(8) == shift.bit_grid(0)


@pytest.mark.parametrize(
    ("level", "first", "last"),
    [
        ("low", (0.9, -0.01, 0.9), (1.1, 0.01, 1.1)),
        ("mid", (0.75, -0.05, 0.7), (1.25, 0.05, 1.3)),
        ("high", (0.6, -0.1, 0.5), (1.4, 0.1, 1.5)),
    ],
)
def test_the_levels_are_the_published_ones(level, first, last):
    assert shift.bit_grid(0, level) == Appearance(*first)
    assert shift.bit_grid(7, level) == Appearance(*last)


def test_the_cube_grid_is_the_published_one():
    assert all(shift.cube_grid(client).saturation == 0.4 for client in range(8))
    assert shift.cube_grid(0) == Appearance(0.6, -0.15, 0.4, 8)
    assert shift.cube_grid(13) == Appearance()
    assert shift.cube_grid(26) == Appearance(1.4, 0.15, 1.6, 8)
    assert shift.cube_grid(27) == Appearance(0.6, -0.15, 0.4, 2)
    assert len({shift.cube_grid(client) for client in range(54)}) == 54
    assert shift.cube_grid(54) == shift.cube_grid(0)


@pytest.mark.parametrize("look", [shift.bit_grid(0), shift.bit_grid(7), shift.cube_grid(27), shift.cube_grid(40)])
def test_a_batch_is_exactly_what_pillow_makes_of_each_image(look):
    images = pictures()
    for image, shifted in zip(images, shift.apply(images, look), strict=True):
        alone = Image.fromarray(image.permute(1, 2, 0).numpy())
        alone = functional.adjust_saturation(alone, look.saturation)
        if look.hue:
            alone = functional.adjust_hue(alone, look.hue)
        alone = functional.posterize(functional.adjust_gamma(alone, look.gamma), look.posterize_bits)
        assert np.array_equal(np.asarray(alone), shifted.permute(1, 2, 0).numpy())


@pytest.mark.parametrize("look", [Appearance(gamma=0.6), Appearance(saturation=0.5), Appearance(posterize_bits=2)])
def test_tensor_operations_agree_within_two_grey_levels(look):
    images = pictures(50)
    tensors = functional.adjust_gamma(functional.adjust_saturation(images, look.saturation), look.gamma)
    tensors = functional.posterize(tensors, look.posterize_bits)
    assert (tensors.int() - shift.apply(images, look).int()).abs().max() <= 2


def test_each_property_has_its_closed_form():
    images = pictures()
    brighter = 255 * (images / 255) ** 0.6
    assert (shift.apply(images, Appearance(gamma=0.6)).float() - brighter).abs().max() <= 1
    grey = shift.apply(images, Appearance(saturation=0.0))
    assert (grey == grey[:, :1]).all()
    red = torch.tensor([200, 0, 0], dtype=torch.uint8).reshape(1, 3, 1, 1)
    turned = shift.apply(red, Appearance(hue=1 / 3)).flatten()
    assert turned[1] == 200 and turned[0] <= 6 and turned[2] <= 6
    assert set(shift.apply(images, Appearance(posterize_bits=2)).unique().tolist()) <= {0, 64, 128, 192}


def test_no_shift_changes_nothing_and_the_input_is_left_alone():
    images = pictures()
    before = images.clone()
    assert torch.equal(shift.apply(images, shift.appearance(None, 3)), images)
    shift.apply(images, shift.bit_grid(0))
    assert torch.equal(images, before)
    assert shift.apply(images[:0], shift.bit_grid(0)).shape == (0, 3, 8, 8)


def test_the_memory_format_does_not_matter():
    images = pictures()
    last = images.contiguous(memory_format=torch.channels_last)
    assert torch.equal(shift.apply(images, shift.bit_grid(5)), shift.apply(last, shift.bit_grid(5)))


def test_a_spec_names_the_shift():
    assert shift.appearance({"name": "bit_grid", "level": "low"}, 1) == shift.bit_grid(1, "low")
    assert shift.appearance({"name": "cube_grid"}, 5) == shift.cube_grid(5)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"name": "bit_gird"}, "shift: name: 'bit_gird' is unknown; did you mean 'bit_grid'"),
        ({"name": "bit_grid", "levle": "low"}, "shift 'bit_grid': unknown key 'levle'; did you mean 'level'"),
        ({"name": "bit_grid", "level": "hihg"}, "level: 'hihg' is unknown; did you mean 'high'"),
        ({"level": "high"}, "has no name; write a mapping such as {name: bit_grid}"),
        ("bit_grid", "'bit_grid' has no name"),
    ],
)
def test_a_wrong_spec_is_refused_without_data(spec, message):
    with pytest.raises(FedlibError, match=message):
        shift.check_spec(spec)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: shift.bit_grid(-1), "client: -1 is out of range"),
        (lambda: shift.cube_grid(1.5), "client: 1.5 is float, not a whole number"),
        (lambda: Appearance(gamma=0), "gamma: 0 is out of range; give a number.* above 0"),
        (lambda: Appearance(hue=0.6), "hue: 0.6 is out of range"),
        (lambda: Appearance(saturation=-1), "saturation: -1 is out of range"),
        (lambda: Appearance(posterize_bits=9), "posterize_bits: 9 is out of range"),
        (lambda: shift.apply(torch.zeros(2, 3, 4, 4), Appearance()), r"images are torch.float32 \(2, 3, 4, 4\)"),
        (lambda: shift.random_boxes(1, 8, 8, torch.Generator(), scale=(1.0, 0.9)), "scale"),
        (lambda: shift.random_boxes(1, 8, 8, torch.Generator(), ratio=(0.0, 1.0)), "ratio"),
    ],
)
def test_a_wrong_value_is_refused(make, message):
    with pytest.raises(FedlibError, match=message):
        make()


@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last])
def test_a_crop_is_torchvisions(memory):
    """Against resized_crop(antialias=False), box by box."""
    generator = torch.Generator().manual_seed(1)
    images = torch.rand(40, 3, 20, 32, generator=generator).contiguous(memory_format=memory)
    boxes = shift.random_boxes(40, 20, 32, generator, scale=(0.2, 1.0))
    cropped = shift.crop_resize(images, boxes)
    assert cropped.is_contiguous(memory_format=memory)
    for image, box, crop in zip(images, boxes.tolist(), cropped, strict=True):
        expected = functional.resized_crop(image, *box, size=[20, 32], antialias=False)
        torch.testing.assert_close(crop, expected, atol=1e-5, rtol=0)


def test_a_crop_of_everything_is_the_identity():
    images = torch.rand(5, 3, 16, 16)
    cropped = shift.random_resized_crop(images, torch.Generator().manual_seed(0), scale=(1.0, 1.0), ratio=(1.0, 1.0))
    torch.testing.assert_close(cropped, images, atol=1e-5, rtol=0)


def test_a_crop_takes_its_randomness_from_the_generator_only():
    images = torch.rand(8, 3, 32, 32)
    state = torch.get_rng_state()
    first, second = (shift.random_resized_crop(images, torch.Generator().manual_seed(7)) for _ in range(2))
    assert torch.equal(first, second)
    assert torch.equal(state, torch.get_rng_state())
    assert not torch.equal(first, shift.random_resized_crop(images, torch.Generator().manual_seed(8)))
    assert shift.random_resized_crop(images.bfloat16(), torch.Generator().manual_seed(7)).dtype == torch.bfloat16


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 2**31), st.floats(0.01, 1.0))
def test_boxes_lie_in_the_image(height, width, seed, least):
    boxes = shift.random_boxes(64, height, width, torch.Generator().manual_seed(seed), scale=(least, 1.0))
    top, left, tall, wide = boxes.unbind(1)
    assert (boxes[:, :2] >= 0).all() and (boxes[:, 2:] >= 1).all()
    assert (top + tall <= height).all() and (left + wide <= width).all()


def test_boxes_follow_torchvisions_distribution():
    """Mean and spread of top, left, height and width over 4,000 boxes of each, within four standard errors."""
    count = 4000
    ours = shift.random_boxes(count, 32, 32, torch.Generator().manual_seed(0)).double()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        blank = torch.empty(3, 32, 32)
        theirs = [RandomResizedCrop.get_params(blank, [0.9, 1.0], [3 / 4, 4 / 3]) for _ in range(count)]
    theirs = torch.tensor(theirs).double()
    error = (ours.var(0) + theirs.var(0)).div(count).sqrt()
    assert ((ours.mean(0) - theirs.mean(0)).abs() < 4 * error).all()
    assert (ours.std(0) / theirs.std(0) - 1).abs().max() < 0.1


def test_an_image_too_wide_for_any_ratio_is_cropped_in_its_middle():
    """torchvision's fallback: the whole height and 4/3 of it in width."""
    boxes = shift.random_boxes(3, 12, 120, torch.Generator().manual_seed(0))
    assert boxes.tolist() == [[0, 52, 12, 16]] * 3
    assert math.isclose(16 / 12, 4 / 3)


def test_standardise_by_hand():
    """z = (x - mean) / std; out = 255 (1/2 + z / 6), so that a z of ±3 or beyond is 255 or 0."""
    mean, std = [[0.5, 0.25, 1.0]], [[0.1, 0.2, 0.1]]
    look = shift.appearance({"name": "standardise", "mean": mean, "std": std}, 5)
    grey = torch.full((2, 3, 1, 1), 102, dtype=torch.uint8)  # 0.4: z = -1, 0.75, -6
    assert shift.apply(grey, look)[1].flatten().tolist() == [85, 159, 0]


def test_standardise_takes_one_row_a_client_or_one_for_all():
    rows, std = [[0.1] * 3, [0.2] * 3], [[0.1] * 3] * 2
    assert shift.appearance({"name": "standardise", "mean": rows, "std": std}, 1).mean == (0.2, 0.2, 0.2)
    with pytest.raises(FedlibError, match="mean has 2 rows, mean 2; give one a client, or one for all"):
        shift.appearance({"name": "standardise", "mean": rows, "std": std}, 2)
    with pytest.raises(FedlibError, match="std has 1 rows, mean 2"):
        shift.appearance({"name": "standardise", "mean": rows, "std": std[:1]}, 0)
    with pytest.raises(FedlibError, match=r"mean: 0.5 is no list of rows; give \[\[red, green, blue\], …\]"):
        shift.check_spec({"name": "standardise", "mean": 0.5, "std": std})
    with pytest.raises(FedlibError, match="appearance: std: 0 is out of range"):
        shift.check_spec({"name": "standardise", "mean": rows, "std": [[0.1, 0.1, 0]] * 2})
    with pytest.raises(FedlibError, match=r"appearance: mean: \(0.1,\) is not one number a channel"):
        shift.check_spec({"name": "standardise", "mean": [[0.1]], "std": [[0.1]]})


def test_a_padded_crop_is_a_window_of_the_padded_image():
    """Every crop is found at one of the (2 p + 1)^2 places of the image padded with zeros, and all places occur."""
    images = torch.randint(1, 256, (1, 3, 5, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    crops = shift.padded_crop(images.expand(200, -1, -1, -1), 1, torch.Generator().manual_seed(1))
    padded = torch.nn.functional.pad(images[0], [1] * 4)
    windows = {padded[:, y : y + 5, x : x + 4].numpy().tobytes(): (y, x) for y in range(3) for x in range(3)}
    assert {windows[crop.numpy().tobytes()] for crop in crops.contiguous()} == set(windows.values())
    assert crops.shape == (200, 3, 5, 4)


def test_a_flip_mirrors_about_half_of_the_images():
    images = torch.arange(12, dtype=torch.uint8).reshape(1, 3, 2, 2).expand(400, -1, -1, -1)
    flipped = shift.random_flip(images, torch.Generator().manual_seed(0))
    mirrored = (flipped == images.flip(-1)).flatten(1).all(1)
    assert ((flipped == images).flatten(1).all(1) ^ mirrored).all()
    assert 160 < int(mirrored.sum()) < 240
