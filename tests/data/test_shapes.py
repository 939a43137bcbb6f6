import math
import os
import subprocess
import sys

import numpy as np
import pytest
from matplotlib.path import Path as Outline
from numpy._core._multiarray_umath import __cpu_dispatch__, __cpu_features__
from scipy.ndimage import binary_dilation, binary_erosion
from sklearn.neighbors import KNeighborsClassifier

from fedlib.data import shapes
from fedlib.data.shapes_rendering import Draws, coverage, line, lumas, tone, wave

FINGERPRINT, FINGERPRINT_EIGHT = "d3e3b2e57714b329", "83e1ce7c937461aa"
SOLID = ["photo", "painting", "night", "mosaic", "textile"]
LINED = ["cartoon", "sketch", "blueprint"]
"""Renderings that tell the shape by its area's colours, and by a line along its outline."""


@pytest.fixture(scope="module")
def pool():
    return shapes.shapes()


def domain(name):
    """Images from 0 to 1, masks and labels of one domain."""
    images, masks = shapes._domain(name)
    return images / 255, masks, np.arange(len(images)) % 7


def mean_within(images, masks):
    return (images * masks[:, None]).sum(axis=(2, 3)) / masks.sum(axis=(1, 2))[:, None]


def test_shapes_never_change(pool):
    """Pinned, because every committed figure on them rests on these bits."""
    assert pool.images.shape == (2100, 3, 32, 32)
    assert pool.fingerprint == FINGERPRINT
    assert shapes.shapes_eight().fingerprint == FINGERPRINT_EIGHT


def test_a_machine_without_wide_vectors_gets_the_same_bits():
    """A new process whose NumPy may use nothing that this processor has beyond the oldest one supported."""
    beyond = " ".join(feature for feature in __cpu_dispatch__ if __cpu_features__[feature])
    code = "from fedlib.data import shapes; print(shapes.shapes_eight().fingerprint, shapes.masks().sum())"
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "NPY_DISABLE_CPU_FEATURES": beyond},
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.split() == [FINGERPRINT_EIGHT, str(shapes.masks().sum())]


def test_counts_and_split_are_even_in_every_cell(pool):
    assert pool.domain_names == ("photo", "painting", "cartoon", "sketch")
    assert len(pool.classes) == 7
    for q, per_class in enumerate((50, 60, 70, 120)):
        for k in range(7):
            cell = pool.split[(pool.domains == q) & (pool.labels == k)]
            assert len(cell) == per_class
            assert cell.sum() == per_class // 5


def test_eight_domains_begin_with_the_four(pool):
    eight = shapes.shapes_eight()
    assert eight.domain_names[:4] == pool.domain_names and len(set(eight.domain_names)) == 8
    for field in ("images", "labels", "split", "domains"):
        assert np.array_equal(getattr(eight, field)[:2100], getattr(pool, field))
    for q in range(4, 8):
        cells = np.bincount(2 * eight.labels[eight.domains == q] + eight.split[eight.domains == q])
        assert (cells[::2] == 4 * cells[1::2]).all() and (cells[1::2] >= 6).all()


def test_no_image_is_there_twice():
    images = shapes.shapes_eight().images
    assert len(np.unique(images.reshape(len(images), -1), axis=0)) == 3080


def test_the_angle_is_twice_that_of_the_tangent():
    tangents = np.array([-2.0, -0.3, 0.0, 0.3, 1.0])
    cosine, sine = shapes._turn(tangents)
    np.testing.assert_allclose(cosine, [math.cos(2 * math.atan(t)) for t in tangents], atol=1e-15)
    np.testing.assert_allclose(sine, [math.sin(2 * math.atan(t)) for t in tangents], atol=1e-15)


def test_distance_to_a_box_is_the_closed_form():
    """Outside: the norm of what lies beyond the half widths; inside: minus the way to the nearest side."""
    corners = np.array([[6.0, 9.0], [20.0, 9.0], [20.0, 27.0], [6.0, 27.0]])
    edges = np.stack([corners, np.roll(corners, -1, axis=0)], axis=1)[None]
    x, y = np.meshgrid(np.arange(32) + 0.5, np.arange(32) + 0.5)
    beyond = np.stack([np.abs(x - 13) - 7, np.abs(y - 18) - 9])
    expected = np.sqrt((beyond.clip(0) ** 2).sum(axis=0)) + beyond.max(axis=0).clip(max=0)
    np.testing.assert_allclose(shapes._distance(edges, x[None], y[None])[0], expected, atol=1e-12)


@pytest.mark.parametrize("name", shapes.CLASSES)
def test_masks_are_what_lies_within_the_outline(name):
    """Against matplotlib's own rule for points in polygons; a ring is its outer loop without its inner one."""
    number = shapes.CLASSES.index(name)
    field = shapes._Shapes(Draws(np.random.RandomState(5), 70))
    centres = np.stack(np.meshgrid(np.arange(32) + 0.5, np.arange(32) + 0.5), axis=-1).reshape(-1, 2)
    for edges, distances in zip(field.edges[number], field()[number::7], strict=True):
        loops = np.split(edges, 2) if name == "ring" else [edges]
        inside = [Outline(loop[:, 0]).contains_points(centres).reshape(32, 32) for loop in loops]
        expected = np.logical_xor.reduce(inside)
        sure = np.abs(distances) > 1e-3
        assert np.array_equal((distances <= 0)[sure], expected[sure])


def test_masks_are_aligned_lie_within_the_picture_and_are_of_middling_size(pool):
    masks = shapes.masks()
    assert masks.shape == (2100, 32, 32) and masks.dtype == bool and not masks.flags.writeable
    assert not (masks[:, [0, -1]].any() or masks[:, :, [0, -1]].any())
    area = masks.mean(axis=(1, 2))
    assert area.min() > 0.08 and area.max() < 0.42
    starts = np.searchsorted(pool.domains, range(4))
    for start, name in zip(starts, pool.domain_names, strict=True):
        images, own, _ = domain(name)
        assert np.array_equal(masks[start : start + len(own)], own)
        assert np.array_equal(pool.images[start : start + len(own)] / 255, images)


@pytest.mark.parametrize("name", SOLID)
def test_the_shape_differs_from_its_ground_in_every_picture(name):
    images, masks, _ = domain(name)
    contrast = np.abs(mean_within(images, masks) - mean_within(images, ~masks)).max(axis=1)
    assert contrast.min() > 0.2
    moved = np.roll(masks, 1, axis=0)  # another picture's mask shows nearly nothing
    assert np.median(np.abs(mean_within(images, moved) - mean_within(images, ~moved)).max(axis=1)) < np.median(contrast)


@pytest.mark.parametrize("name", LINED)
def test_a_line_runs_along_the_masks_edge(name):
    """Dark, on the blueprint light: against what lies two pixels and more from it, nine pictures of ten and more."""
    images, masks, _ = domain(name)
    cross = np.ones((1, 3, 3), bool)
    edge = masks & ~binary_erosion(masks, cross)
    away = ~binary_dilation(edge, cross, iterations=2)
    darker = (mean_within(images, away) - mean_within(images, edge)).mean(axis=1)
    assert ((-darker if name == "blueprint" else darker) > 0.05).mean() > 0.9


def test_the_domains_differ_in_colour_texture_and_flatness():
    saturation, flat, colours = {}, {}, {}
    for name in shapes.MORE_DOMAINS:
        images, masks, _ = domain(name)
        saturation[name] = (images.max(axis=1) - images.min(axis=1)).mean()
        ground = ~(masks[:, :, 1:] | masks[:, :, :-1])
        flat[name] = (images[..., 1:] == images[..., :-1]).all(axis=1)[ground].mean()
        codes = np.rint(255 * images[:100]).astype(int).transpose(0, 2, 3, 1) @ [1, 256, 65536]
        colours[name] = np.median([len(np.unique(code)) for code in codes])
    assert saturation["sketch"] == 0
    assert 0.1 < saturation["photo"] < 0.2 < saturation["painting"] < 0.4 < saturation["cartoon"]
    assert flat["cartoon"] > 0.8 and max(share for name, share in flat.items() if name != "cartoon") < 0.25
    assert colours["cartoon"] < 200 < 600 < colours["painting"] < 800 < colours["photo"]


@pytest.mark.parametrize("name", ["photo", "painting", "cartoon"])
def test_the_colour_tells_nothing_about_the_class(name):
    """Differences from grey, where there is no outline luma too: by class they differ from the mean by chance only."""
    images, masks, labels = domain(name)
    red, green, blue = mean_within(images, masks).T
    facts = np.stack([red - green, blue - green] + ([] if name == "cartoon" else [red + green + blue]), axis=1)
    error = facts.std(axis=0) / np.sqrt(len(labels) / 7)
    for k in range(7):
        assert (np.abs(facts[labels == k].mean(axis=0) - facts.mean(axis=0)) < 3.5 * error).all()


def test_area_place_and_brightness_do_not_give_the_class_away_but_the_form_does(pool):
    """Neighbours in those facts are right little more often than one in seven; neighbours in form mostly are."""
    masks, train = shapes.masks(), pool.split == 0
    area = masks.sum(axis=(1, 2))
    centre = np.stack([(masks.sum(axis=axis) * np.arange(32)).sum(axis=1) / area for axis in (1, 2)], axis=1)
    facts = np.column_stack([area, centre, pool.images.mean(axis=(1, 2, 3))])
    centred = [np.roll(mask, 16 - np.rint(c[::-1]).astype(int), (0, 1)) for mask, c in zip(masks, centre, strict=True)]
    right = {}
    for key, inputs in {"facts": facts / facts.std(axis=0), "form": np.reshape(centred, (2100, -1))}.items():
        near = KNeighborsClassifier(5).fit(inputs[train], pool.labels[train])
        right[key] = near.score(inputs[~train], pool.labels[~train])
    assert right["facts"] < 0.35 and right["form"] > 0.9


def test_lines_and_coverage_are_as_wide_as_they_say():
    distance = np.arange(-10, 10, 0.01)
    assert coverage(distance, 3).sum() / 100 == pytest.approx(10, abs=0.02)
    assert line(distance, 1.6).sum() / 100 == pytest.approx(2.6 - 1, abs=0.02)
    np.testing.assert_allclose(wave(np.array([0, 0.25, 0.5, 0.75, 1])), [1, 0, -1, 0, 1])


def test_colours_keep_their_luma_and_pairs_their_gap():
    draws = Draws(np.random.RandomState(0), 500)
    luma = draws.between(0.4, 0.6, 1, 1)
    colours = tone(luma, draws.between(0, 1, 1, 1), 0.3)
    np.testing.assert_allclose(colours[:, :, 0, 0] @ [0.3, 0.59, 0.11], luma[:, 0, 0], atol=1e-6)
    ground, figure = lumas(draws, 0.2, 0.8, 0.3, lighter=0.8)
    assert np.abs(ground - figure).min() > 0.3 - 1e-6 and (figure > ground).mean() == pytest.approx(0.8, abs=0.05)
    assert min(ground.min(), figure.min()) > 0.2 - 1e-6 and max(ground.max(), figure.max()) < 0.8 + 1e-6
