"""Pictures of a drift, read back from the axes."""

from __future__ import annotations

import numpy as np
import pytest

from fedlib import plots
from fedlib.checks import FedlibError
from fedlib.data.drifting import make_drifting
from fedlib.data.federation import Federation
from fedlib.data.pool import Pool


def pool() -> Pool:
    """240 images of 14x14, dark above and light below, a shade darker for each class."""
    labels = np.arange(240) % 6
    images = np.zeros((240, 3, 14, 14), np.uint8) + labels[:, None, None, None].astype(np.uint8)
    images[:, :, 7:] += 100
    split = (np.arange(240) // 6 % 3 == 2).astype(np.uint8)
    return Pool("halves", images, labels, tuple("abcdef"), split, labels)


def drifting(name: str, severity: str = "low", phases: int = 5):
    return make_drifting(pool(), 3, {"name": name, "severity": severity, "phases": phases}, 20, 1)


def test_cells_are_the_schedule_round_by_round_and_the_test_column_the_visitors():
    fed = drifting("P(X)")
    figure = plots.schedule(fed)
    cells, tested = (np.asarray(axes.images[0].get_array()) for axes in figure.axes)
    expected = np.array([[client.distribution for client in fed.at(t).clients] for t in range(1, 21)]).T
    assert np.array_equal(cells, expected)
    assert tested.ravel().tolist() == [visitor.distribution for visitor in fed.visitors]
    assert figure.axes[0].images[0].get_extent()[:2] == [0.5, 20.5]
    words = [text.get_text() for text in figure.legends[0].get_texts()]
    assert words == ["0: as is", "1: 90°", "2: 180°", "3: 270°"]


def test_a_number_stands_in_the_middle_of_each_phase_and_in_the_test_column():
    fed = drifting("P(X)")
    rounds, tested = plots.schedule(fed).axes
    numbers = {(*text.get_position(), text.get_text()) for text in rounds.texts}
    middles = (2.0, 5.5, 9.5, 13.5, 18.0)
    assert numbers == {(t, k, str(fed.course.main[k, e])) for e, t in enumerate(middles) for k in range(3)}
    assert [text.get_text() for text in tested.texts] == [str(visitor.distribution) for visitor in fed.visitors]


def test_many_distributions_have_a_scale_of_lightness_and_no_legend():
    figure = plots.schedule(drifting("P(Y|X)", "medium"))
    assert not figure.legends
    image = figure.axes[0].images[0]
    lightness = [np.dot(image.cmap(image.norm(d))[:3], (0.299, 0.587, 0.114)) for d in range(24)]
    assert np.all(np.diff(lightness) > 0)


def sheet(figure) -> np.ndarray:
    return np.asarray(figure.axes[0].images[0].get_array())


def tile(picture: np.ndarray, row: int, column: int) -> np.ndarray:
    """A tile is 14 pixels wide, with a gap of one."""
    return picture[15 * row : 15 * row + 14, 15 * column : 15 * column + 14]


def test_the_same_images_stand_under_each_distribution():
    figure = plots.looks(drifting("P(X)"))
    picture = sheet(figure)
    assert picture.shape == (4 * 15 - 1, 6 * 15 - 1, 3)
    for column in range(6):
        image = pool().images[column].transpose(1, 2, 0)
        for turns in range(4):
            assert np.array_equal(tile(picture, turns, column), np.rot90(image, turns))
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == [
        "0: as is",
        "1: 90°",
        "2: 180°",
        "3: 270°",
    ]


def test_classes_that_are_left_out_are_blank():
    fed = drifting("P(Y)")
    picture = sheet(plots.looks(fed, classes=4))
    for row, distribution in enumerate(fed.distributions):
        blank = [np.all(tile(picture, row, column) == 255) for column in range(4)]
        assert blank == [column not in distribution.classes for column in range(4)]


def test_a_new_label_is_written_on_the_image():
    fed = drifting("P(Y|X)", "medium")
    figure = plots.looks(fed)
    assert "the first 12 of 24" in figure.axes[0].get_title()
    written = sorted(text.get_text() for text in figure.axes[0].texts)
    moved = [new for each in fed.distributions[:12] for y, new in enumerate(each.permutation) if y != new]
    assert written == sorted(f"→{new}" for new in moved)


@pytest.mark.parametrize("draw", [plots.schedule, plots.looks])
def test_a_federation_that_stands_still_is_refused(draw):
    with pytest.raises(FedlibError, match="federation 'still' does not drift"):
        draw(Federation("still", (), ("a",), (3, 1, 1)))
