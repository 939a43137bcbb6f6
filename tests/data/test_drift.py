"""Distributions, banks and schedules against the tables of the FEROMA spec, 3.2 and 3.3."""

from __future__ import annotations

from math import factorial

import numpy as np
import pytest
import torch

from fedlib.checks import FedlibError
from fedlib.data.drift import KINDS, Distribution, apply, bank, check_spec, phase_of, read, schedule, starts

KINDS_OF_POOL = [kind for kind in KINDS if kind != "domains"]
IMAGE = [[1, 2], [3, 4]]
TURNED = {0: [[1, 2], [3, 4]], 1: [[2, 4], [1, 3]], 2: [[4, 3], [2, 1]], 3: [[3, 1], [4, 2]]}
FULL = [[255, 255], [255, 255]]


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def two() -> tuple[torch.Tensor, torch.Tensor]:
    """The same 2x2 image in all three planes, once of class 0 and once of class 1."""
    return torch.tensor(IMAGE, dtype=torch.uint8).expand(2, 3, 2, 2).clone(), torch.tensor([0, 1])


@pytest.mark.parametrize("turns", range(4))
def test_a_rotation_turns_every_plane_counter_clockwise(turns):
    images, labels = apply(*two(), Distribution(rotation=turns))
    assert images.dtype == torch.uint8 and labels.tolist() == [0, 1]
    assert images.tolist() == [[TURNED[turns]] * 3] * 2


@pytest.mark.parametrize("colour", range(3))
def test_a_colour_fills_its_whole_plane_and_no_other(colour):
    given, labels = two()
    images, _ = apply(given, labels, Distribution(colour=colour))
    assert images.tolist() == [[FULL if plane == colour else IMAGE for plane in range(3)]] * 2
    assert given.tolist() == [[IMAGE] * 3] * 2, "what was given stays as it was"


def test_only_affected_classes_change_their_look():
    images, labels = apply(*two(), Distribution(rotation=3, colour=1, affected=(1,)))
    assert images.tolist() == [[IMAGE] * 3, [TURNED[3], FULL, TURNED[3]]]
    assert labels.tolist() == [0, 1]


def test_a_filter_keeps_its_classes_in_order():
    images = torch.arange(6, dtype=torch.uint8).view(6, 1, 1, 1).expand(6, 3, 1, 1)
    kept, labels = apply(images, torch.tensor([2, 0, 1, 2, 0, 1]), Distribution(classes=(0, 2)))
    assert kept[:, 0, 0, 0].tolist() == [0, 1, 3, 4]
    assert labels.tolist() == [2, 0, 2, 0]


def test_a_permutation_renames_labels_and_leaves_images_alone():
    given, _ = two()
    images, labels = apply(given, torch.tensor([0, 2]), Distribution(permutation=(1, 2, 0)))
    assert labels.tolist() == [1, 0]
    assert torch.equal(images, given)


def test_a_quarter_turn_needs_square_images():
    wide = torch.zeros(1, 3, 2, 4, dtype=torch.uint8)
    assert apply(wide, torch.tensor([0]), Distribution(rotation=2))[0].shape == wide.shape
    with pytest.raises(FedlibError, match="90°, red turns images of 2x4, which are not square"):
        apply(wide, torch.tensor([0]), Distribution(rotation=1, colour=0))


def test_labels_in_words():
    words = {
        "as is": Distribution(),
        "90°": Distribution(rotation=1),
        "0°, blue": Distribution(colour=2),
        "180°, red on 0–2, 5": Distribution(rotation=2, colour=0, affected=(0, 1, 2, 5)),
        "classes 2, 7": Distribution(classes=(2, 7)),
        "1→2, 2→1": Distribution(permutation=(0, 2, 1)),
        "Art": Distribution(domain=0, domain_name="Art"),
    }
    assert [each.label for each in words.values()] == list(words)


SIZES = {
    "P(X)": (4, 6, 12),
    "P(Y)": (4, 6, 8),
    "P(Y|X)": (factorial(3), factorial(4), factorial(5)),
    "P(X|Y)": (4, 6, 8),
}


@pytest.mark.parametrize("kind", KINDS_OF_POOL)
@pytest.mark.parametrize("level, severity", [(0, "low"), (1, "medium"), (2, "high")])
def test_banks_have_the_published_sizes_and_no_distribution_twice(kind, level, severity):
    for seed in range(5):
        found = bank(kind, severity, 10, rng(seed))
        assert len(found) == len(set(found)) == SIZES[kind][level]


def test_looks_are_all_pairs_of_an_angle_and_a_colour():
    def looks(severity):
        return {(each.rotation, each.colour) for each in bank("P(X)", severity, 10, rng())}

    assert looks("low") == {(angle, None) for angle in range(4)}
    assert looks("medium") == {(angle, colour) for angle in (0, 2) for colour in range(3)}
    assert looks("high") == {(angle, colour) for angle in range(4) for colour in range(3)}


def test_two_classes_each_and_eight_that_are_affected():
    assert all(len(set(each.classes)) == 2 for each in bank("P(Y)", "high", 10, rng()))
    for classes, affected in ((10, 8), (100, 8), (4, 2)):
        found = bank("P(X|Y)", "high", classes, rng())
        assert {len(set(each.affected)) for each in found} == {affected}
        assert all(0 <= k < classes for each in found for k in each.affected)
        assert all(each.colour is not None for each in found)


def test_permutations_are_all_those_of_the_same_q_classes():
    for q, severity in ((3, "low"), (4, "medium"), (5, "high")):
        found = [each.permutation for each in bank("P(Y|X)", severity, 7, rng(q))]
        assert all(sorted(permutation) == list(range(7)) for permutation in found)
        moved = {y for permutation in found for y, new in enumerate(permutation) if y != new}
        assert len(moved) == q
        assert found[0] == tuple(range(7))
        assert found == [each.permutation for each in bank("P(Y|X)", severity, 7, rng(q))]


def test_every_domain_is_a_distribution():
    found = bank("domains", "high", 10, rng(), ("Art", "Clipart", "Product"))
    assert [(each.domain, each.label) for each in found] == [(0, "Art"), (1, "Clipart"), (2, "Product")]


@pytest.mark.parametrize(
    "kind, severity, classes, message",
    [
        ("P(Y)", "medium", 3, r"gave 3 different distributions of 3 classes, not 6; lower the severity"),
        ("P(Y)", "low", 1, r"drift 'P\(Y\)': it needs 2 classes"),
        ("P(Y|X)", "high", 4, r"drift 'P\(Y\|X\)': it needs 5 classes at this severity, but there are 4"),
        ("P(X|Y)", "low", 2, r"drift 'P\(X\|Y\)': it needs 3 classes"),
        ("domains", "low", 10, "this data set has no domains"),
        ("P(Z)", "low", 10, "drift: name: 'P\\(Z\\)' is unknown"),
        ("P(X)", "hgh", 10, "severity: 'hgh' is unknown; did you mean 'high'"),
    ],
)
def test_banks_that_cannot_be(kind, severity, classes, message):
    with pytest.raises(FedlibError, match=message):
        bank(kind, severity, classes, rng())


def spans(phases: int) -> dict[int, tuple[int, int]]:
    """First and last round of each phase that is used, of 20 rounds."""
    found: dict[int, list[int]] = {}
    for t in range(1, 21):
        found.setdefault(phase_of(t, 20, phases), []).append(t)
    return {phase: (rounds[0], rounds[-1]) for phase, rounds in found.items()}


def test_the_table_of_phases():
    assert starts(20, 5) == (0, 4, 8, 12, 16)
    assert spans(5) == {0: (1, 3), 1: (4, 7), 2: (8, 11), 3: (12, 15), 4: (16, 20)}
    ten = {e: (2 * e, 2 * e + 1) for e in range(1, 9)}
    assert spans(10) == {0: (1, 1)} | ten | {9: (18, 20)}
    assert spans(20) == {t: (t, t) for t in range(1, 19)} | {19: (19, 20)}
    assert spans(1) == {0: (1, 20)}


def test_starts_are_where_float32_goes_wrong():
    """Of 10 phases, the released rule has 13 and 17; 14 and 18 are right."""
    assert {14, 18} <= set(starts(20, 10)) and not {13, 17} & set(starts(20, 10))
    assert len(set(starts(20, 20))) == 20


def test_a_random_course_draws_each_phase_alike():
    plan = schedule(4, 2000, 3, "random", rng())
    assert plan.main.shape == (2000, 3) and plan.thirds == (0, 0, 0)
    for column in plan.main.T:
        counts = np.bincount(column, minlength=4)
        assert np.all(abs(counts - 500) < 100)  # five standard deviations
    same = np.mean(plan.main[:, 0] == plan.main[:, 1])
    assert abs(same - 1 / 4) < 0.05


def test_a_recurring_course_takes_turns():
    main = schedule(6, 50, 5, "recurring", rng()).main
    assert np.array_equal(main[:, 0], main[:, 2]) and np.array_equal(main[:, 1], main[:, 3])
    assert np.array_equal(main[:, 0], main[:, 4])
    assert np.all(main[:, 0] != main[:, 1])
    assert set(main.ravel().tolist()) == set(range(6))


def test_a_gradual_course_moves_by_thirds():
    plan = schedule(50, 4, 8, "gradual", rng())
    assert plan.thirds == (0, 1, 2, 0, 1, 2, 0, 1)
    for leg in (plan.first, plan.second):
        assert np.all(leg[:, :3] == leg[:, :1]) and np.all(leg[:, 3:6] == leg[:, 3:4])
    assert np.array_equal(plan.second[:, 0], plan.first[:, 3])
    expected = np.stack([plan.first[:, 0]] * 2 + [plan.first[:, 3]] * 3 + [plan.first[:, 6]] * 3, axis=1)
    assert np.array_equal(plan.main, expected)


def test_settings_have_the_paper_s_defaults():
    drift = read({"name": "P(X)"})
    assert (drift.severity, drift.phases, drift.course, drift.few_per_class) == ("low", 5, "random", None)
    assert (drift.few, read({"name": "P(Y|X)"}).few, read({"name": "P(X)", "few_per_class": 3}).few) == (0, 20, 3)
    check_spec(None, 20)
    check_spec({"name": "P(Y|X)", "severity": "high", "phases": 20, "phase_samples": 50}, 20)


@pytest.mark.parametrize(
    "spec, message",
    [
        ({"severity": "low"}, "drift: .* has no name"),
        ({"name": "P(x)"}, "drift: name: 'P\\(x\\)' is unknown; did you mean 'P\\(X\\)'"),
        ({"name": "P(X)", "phase": 5}, "unknown key 'phase'; did you mean 'phases'"),
        ({"name": "P(X)", "severity": "mid"}, "drift: severity: 'mid' is unknown"),
        ({"name": "P(X)", "course": "gradually"}, "did you mean 'gradual'"),
        ({"name": "P(X)", "phases": 0}, "drift: phases: 0 is out of range"),
        ({"name": "P(X)", "phases": 21}, "drift: phases: 21 is out of range; give a whole number at least 1 and at"),
        ({"name": "P(X)", "few_per_class": -1}, "drift: few_per_class: -1 is out of range"),
        ({"name": "P(X)", "phase_samples": 1}, "drift: phase_samples: 1 is out of range"),
    ],
)
def test_bad_settings_are_named(spec, message):
    with pytest.raises(FedlibError, match=message):
        check_spec(spec, 20)
