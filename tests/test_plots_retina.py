"""What is drawn is what was given: read back from the axes, not from pixels."""

import numpy as np
import pandas as pd
import pytest
import torch

from fedlib import plots
from fedlib.checks import FedlibError
from fedlib.data.federation import Client, Federation, Samples

METRICS = {"system@pooled": "system accuracy", "router@pooled": "router accuracy"}


def federation(base):
    """Two clients of 4x4 images, three of class 0 and one of class 1; image j of client i is all base + 10 i + j."""
    clients = []
    for i in range(2):
        grey = torch.arange(4, dtype=torch.uint8) + base + 10 * i
        train = Samples(grey.view(4, 1, 1, 1).expand(4, 3, 4, 4), torch.tensor([0, 1, 0, 0]))
        clients.append(Client(i, train, train, train))
    return Federation("toy", tuple(clients), ("cat", "dog"), (3, 4, 4))


def final():
    """Three seeds; FedAvg has no router."""
    rows = [
        ("own", "FedAvg", "system@pooled", 50),
        ("own", "FedDRM", "system@pooled", 60),
        ("common", "FedAvg", "system@pooled", 52),
        ("common", "FedDRM", "system@pooled", 64),
        ("own", "FedDRM", "router@pooled", 40),
        ("common", "FedDRM", "router@pooled", 90),
    ]
    names = ["setting", "method", "metric", "seed", "value"]
    return pd.DataFrame([(*row[:3], seed, row[3] + seed - 1) for row in rows for seed in range(3)], columns=names)


def drawn():
    seen = {"own": federation(0), "common": federation(100)}
    return plots.normalisations(seen, final(), METRICS, ["left", "right"], per_class=2)


def test_a_sheet_holds_each_clients_first_images_of_each_class():
    """Class 0: images 0 and 2; class 1: image 1, and white where there is no second one."""
    own, common = drawn().axes[:2]
    for axes, base in ((own, 0), (common, 100)):
        picture = np.asarray(axes.images[0].get_array())
        assert picture.shape == (8, 16, 3)
        assert picture[[0, 4]][:, ::4, 0].tolist() == [[base + k, base + k + 2, base + k + 1, 255] for k in (0, 10)]
    assert [label.get_text() for label in own.get_yticklabels()] == ["left", "right"]
    assert [label.get_text() for label in common.get_xticklabels()] == ["cat", "dog"]
    assert [axes.get_title() for axes in (own, common)] == ["own", "common"]


def test_a_panel_holds_the_means_of_the_methods_that_have_the_metric():
    system, router = drawn().axes[2:]
    means = [container.lines[0].get_xdata().tolist() for container in system.containers]
    assert means == [[50, 60], [52, 64]]
    assert [container.lines[0].get_xdata().tolist() for container in router.containers] == [[40], [90]]
    places = [container.lines[0].get_ydata()[0] for container in router.containers]
    assert np.round(places).tolist() == [1, 1] and places[0] < places[1]
    assert [label.get_text() for label in system.get_yticklabels()] == ["FedAvg", "FedDRM"]
    assert router.get_xlabel() == "router accuracy (%)"


def test_an_unknown_metric_is_named():
    with pytest.raises(FedlibError, match="normalisations: metric: 'routing' is unknown"):
        plots.normalisations({"own": federation(0)}, final(), {"routing": "routing"}, ["left", "right"])
