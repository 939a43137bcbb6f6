import colorsys

import numpy as np
import torch

from fedlib.data import embedded, shift


def test_digits_never_change():
    """Pinned, because every committed figure at smoke scale rests on these bits."""
    pool = embedded.digits()
    again = embedded.digits.__wrapped__()
    assert pool.images.shape == (1797, 3, 16, 16)
    assert np.array_equal(pool.images, again.images)
    assert pool.fingerprint == again.fingerprint == "b296b98661d7e944"


def test_digits_has_the_published_counts_and_a_stratified_split():
    """1,797 scans with these numbers a digit: the data set's own description (UCI, optdigits.tes)."""
    pool = embedded.digits()
    per_class = np.array([178, 182, 177, 183, 181, 182, 181, 179, 174, 180])
    assert np.bincount(pool.labels).tolist() == per_class.tolist()
    assert pool.split.sum() == 360
    assert (np.abs(np.bincount(pool.labels[pool.split == 1]) - per_class / 5) < 1).all()


def test_the_tint_tells_nothing_about_the_label():
    """The pixel of a corner is background: its mean differs between digits by chance only."""
    pool = embedded.digits()
    corner = pool.images[:, :, 0, 0].astype(float)
    error = corner.std(axis=0) / np.sqrt(170)
    for k in range(10):
        assert (np.abs(corner[pool.labels == k].mean(axis=0) - corner.mean(axis=0)) < 4 * error).all()


def test_the_colours_lie_in_the_documented_bands():
    background, ink = (np.array([colorsys.rgb_to_hsv(*c) for c in colours]) for colours in embedded._tints(1797))
    assert (background.min(axis=0) > np.array([0, 0.3, 0.2]) - 1e-9).all()
    assert (background.max(axis=0) < np.array([1 / 3, 0.7, 0.55]) + 1e-9).all()
    np.testing.assert_allclose(ink[:, 0], background[:, 0] + 0.5)
    np.testing.assert_allclose(ink[:, 1:] - background[:, 1:], np.tile([0, 0.4], (1797, 1)), atol=1e-12)
    assert np.array_equal(embedded._tints(5)[0], embedded._tints(1797)[0][:5])


def test_every_shift_of_the_grid_moves_the_pixels_visibly():
    """At least five of 255 grey levels on average between any two clients."""
    images = torch.from_numpy(embedded.digits().images[:50].copy())
    looks = [shift.apply(images, shift.bit_grid(client)).float() for client in range(8)]
    assert min((looks[i] - looks[j]).abs().mean() for i in range(8) for j in range(i)) > 5
