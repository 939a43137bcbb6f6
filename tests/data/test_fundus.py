import os
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.model_selection import cross_val_score

from fedlib.data import fundus, vision
from fedlib.data.federation import make_federation

REAL = os.environ.get("FEDLIB_DATA")
needs_acrima = pytest.mark.skipif(
    not (REAL and (Path(REAL) / "retina_64.npz").is_file()), reason="FEDLIB_DATA has no retina_64.npz"
)

MEANS = [[0.7238, 0.3767, 0.1002], [0.5886, 0.2652, 0.1481], [0.7085, 0.4822, 0.3445]]
STDS = [[0.1001, 0.1057, 0.0503], [0.1147, 0.0937, 0.0461], [0.1663, 0.1541, 0.1066]]
RATIOS = [1.34, 1.94, 0.46]
"""FedDRM spec, 3.4: ACRIMA, RIM, REFUGE."""


@pytest.fixture(scope="module")
def pool():
    return fundus.retina_stand_in()


def test_the_stand_in_never_changes(pool):
    """Pinned, because committed figures rest on these bits."""
    again = fundus.retina_stand_in.__wrapped__()
    assert pool.images.shape == (880, 3, 32, 32)
    assert pool.fingerprint == again.fingerprint == "c276d6926c2da82f"


def test_it_is_found_by_a_name_that_says_what_it_is(pool):
    assert vision.load("retina_stand_in") is pool
    assert pool.name == "retina_stand_in" and all(name.endswith("-like") for name in pool.domain_names)


def test_sizes_and_class_ratios(pool):
    """Glaucoma to normal as in the paper; one image more or less would be further from it."""
    for i, (size, ratio) in enumerate(zip([320, 200, 360], RATIOS, strict=True)):
        normal, glaucoma = np.bincount(pool.labels[pool.domains == i])
        assert normal + glaucoma == size
        off = [abs((glaucoma + k) / (normal - k) - ratio) for k in (-1, 0, 1)]
        assert np.argmin(off) == 1
        for label, count in enumerate((normal, glaucoma)):
            test = pool.split[(pool.domains == i) & (pool.labels == label)].sum()
            assert test == count // 5


def test_each_centre_has_its_colours(pool):
    """Within what is lost where a picture would be brighter than white, which only red comes near to."""
    for i, (mean, std) in enumerate(zip(MEANS, STDS, strict=True)):
        images = pool.images[pool.domains == i] / 255
        np.testing.assert_allclose(images.mean(axis=(0, 2, 3)), mean, atol=0.015)
        np.testing.assert_allclose(images.std(axis=(2, 3)).mean(axis=0)[1:], std[1:], atol=0.01)
        np.testing.assert_allclose(images.std(axis=(2, 3)).mean(axis=0)[0], std[0], atol=0.03)


def profiles(images):
    """Green against the distance from the bright spot's middle, standardised in each image: the shape alone."""
    green, axis = images[:, 1].astype(float), np.arange(32)
    bright = np.clip(green - np.median(green, axis=(1, 2), keepdims=True), 0, None) ** 2
    x, y = ((bright * a).sum(axis=(1, 2)) / bright.sum(axis=(1, 2)) for a in (axis[None, :], axis[:, None]))
    distance = np.hypot(axis[None, None, :] - x[:, None, None], axis[None, :, None] - y[:, None, None])
    rings = [(distance >= inner) & (distance < inner + 1.5) for inner in np.arange(0, 14, 1.5)]
    profile = np.stack([(green * ring).sum(axis=(1, 2)) / ring.sum(axis=(1, 2)) for ring in rings], axis=1)
    return (profile - profile.mean(axis=1, keepdims=True)) / profile.std(axis=1, keepdims=True)


@pytest.mark.parametrize("centre", [0, 1, 2])
def test_the_class_is_in_the_shape_and_not_in_the_colour(pool, centre):
    """By shape, no better than the overlap of the cups allows (94 %); by colour, no better than the larger class."""
    mine = pool.domains == centre
    images, labels = pool.images[mine], pool.labels[mine]

    def accuracy(features):
        return cross_val_score(LinearDiscriminantAnalysis(), features, labels, cv=5).mean()

    guess = max(labels.mean(), 1 - labels.mean())
    assert accuracy(images.mean(axis=(2, 3))) < guess + 0.05
    assert 0.88 < accuracy(profiles(images)) < 0.97


@pytest.mark.parametrize("scale", ["smoke", "laptop", "paper"])
def test_the_notebook_normalises_as_the_paper_and_by_all_centres_together(scale):
    """The common row is what the three rows say of their union, each centre counted once: var = E[var] + var[mean]."""
    file = Path(__file__).parents[2] / f"params/{scale}/feddrm/retina.yaml"
    own, common = yaml.safe_load(file.read_text(encoding="utf-8"))["settings"].values()
    assert own == {"name": "standardise", "mean": MEANS, "std": STDS}
    mean, std = np.array(MEANS), np.array(STDS)
    np.testing.assert_allclose(common["mean"], [mean.mean(axis=0)], atol=0.00005)
    np.testing.assert_allclose(common["std"], [np.sqrt((std**2).mean(axis=0) + mean.var(axis=0))], atol=0.00005)


def test_own_statistics_take_away_what_common_ones_leave(pool):
    """Mean colours of the centres, 0 to 1: together under each one's own row, apart under one row for all."""
    rows = {"own": (MEANS, STDS), "common": ([[0.6736, 0.3747, 0.1976]], [[0.1435, 0.1497, 0.1285]])}
    spread = {}
    for name, (mean, std) in rows.items():
        spec = {"name": "standardise", "mean": mean, "std": std}
        clients = make_federation(pool, 3, {"name": "by_source"}, spec, seed=0).clients
        colours = torch.stack([client.train.images.float().mean(dim=(0, 2, 3)) for client in clients]) / 255
        spread[name] = colours.max(dim=0).values - colours.min(dim=0).values
    assert (spread["own"] < 0.03).all() and (spread["common"] > 0.12).all()


@needs_acrima
def test_the_papers_statistics_are_acrimas_own():
    """What `Centre.std` means: the spread within an image, averaged; not that over all pixels, which is far larger."""
    images = vision.load("retina_64", REAL).images / 255
    np.testing.assert_allclose(images.mean(axis=(0, 2, 3)), MEANS[0], atol=0.004)
    np.testing.assert_allclose(images.std(axis=(2, 3)).mean(axis=0), STDS[0], atol=0.0015)
    assert (images.std(axis=(0, 2, 3)) > 1.4 * np.array(STDS[0])).all()
