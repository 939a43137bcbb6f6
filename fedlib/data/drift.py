"""Drift as data: what samples may be drawn from, and which client draws from what when (FEROMA spec, 3)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import permutations, product
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedlib.checks import FedlibError, check_choice, check_number
from fedlib.data.spec import resolve

KINDS = ("P(X)", "P(Y)", "P(Y|X)", "P(X|Y)", "domains")
SEVERITIES = ("low", "medium", "high")
COURSES = ("random", "recurring", "gradual")
COLOURS = ("red", "green", "blue")
MAX_DRAWS = 1000
"""Draws of a bank's distributions before it is given up."""


@dataclass(frozen=True)
class Distribution:
    """What samples are drawn from, as a change of the pool's own; the defaults change nothing.

    rotation: quarter turns, counter-clockwise.     colour: the plane that is 255 all over, 0 = red; None: none is.
    classes: those that are kept; None: all.        permutation: label y becomes permutation[y]; None: it stays.
    affected: the classes that rotation and colour act on; None: all.
    domain: the one domain of the pool that samples come from, and its name; None: any.
    """

    rotation: int = 0
    colour: int | None = None
    classes: tuple[int, ...] | None = None
    permutation: tuple[int, ...] | None = None
    affected: tuple[int, ...] | None = None
    domain: int | None = None
    domain_name: str = ""

    @property
    def label(self) -> str:
        """In a few words, such as "90°, red", "classes 2, 7", "3→5, 5→3" or "as is"."""
        words = [] if self.domain is None else [self.domain_name or f"domain {self.domain}"]
        if self.classes is not None:
            words.append("classes " + ", ".join(map(str, self.classes)))
        look = [f"{90 * self.rotation}°"] if self.rotation or self.colour is not None else []
        look += [] if self.colour is None else [COLOURS[self.colour]]
        if look:
            words.append(", ".join(look) + ("" if self.affected is None else f" on {_ranges(self.affected)}"))
        moved = [f"{y}→{new}" for y, new in enumerate(self.permutation or ()) if new != y]
        return "; ".join(words + ([", ".join(moved)] if moved else [])) or "as is"

    def keeps(self, labels: np.ndarray) -> np.ndarray:
        """Which samples are of a class that is kept: bool, (n,)."""
        return np.ones(len(labels), dtype=bool) if self.classes is None else np.isin(labels, self.classes)


def _ranges(classes: tuple[int, ...]) -> str:
    """(0, 1, 2, 5) as "0–2, 5"."""
    runs: list[list[int]] = []
    for k in sorted(classes):
        if runs and k == runs[-1][-1] + 1:
            runs[-1].append(k)
        else:
            runs.append([k])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs)


def apply(images: Tensor, labels: Tensor, distribution: Distribution) -> tuple[Tensor, Tensor]:
    """The samples as `distribution` has them (spec, 3.2): what is not kept is left out, the order stays.

    images: uint8, (n, 3, H, W); labels: int64, (n,), the pool's own: `classes` and `affected` mean these. Neither is
    changed in place; what needs no change is returned as it is. Raises FedlibError for a quarter turn of an image that
    is not square.
    """
    if distribution.classes is not None:
        kept = torch.isin(labels, torch.tensor(distribution.classes, device=labels.device))
        images, labels = images[kept], labels[kept]
    if distribution.rotation % 4 or distribution.colour is not None:
        images = _looked(images, labels, distribution)
    if distribution.permutation is not None:
        labels = torch.tensor(distribution.permutation, device=labels.device)[labels]
    return images, labels


def _looked(images: Tensor, labels: Tensor, distribution: Distribution) -> Tensor:
    check_square(tuple(images.shape[1:]), distribution)
    looked = torch.rot90(images, distribution.rotation, dims=(2, 3)).clone()
    if distribution.colour is not None:
        looked[:, distribution.colour] = 255
    if distribution.affected is None:
        return looked
    hit = torch.isin(labels, torch.tensor(distribution.affected, device=labels.device))
    return torch.where(hit[:, None, None, None], looked, images)


def check_square(shape: tuple[int, ...], distribution: Distribution) -> None:
    """Refuse a quarter turn where H is not W. shape: (3, H, W)."""
    if distribution.rotation % 2 and shape[-2] != shape[-1]:
        raise FedlibError(
            f"drift: {distribution.label} turns images of {shape[-2]}x{shape[-1]}, which are not square; "
            "take square images, or another kind of drift"
        )


def bank(
    kind: str, severity: str, classes: int, rng: np.random.Generator, domains: tuple[str, ...] = ()
) -> tuple[Distribution, ...]:
    """The B distributions that all clients draw from (spec, 3.2); no two are the same.

    "P(X)": all images turned and coloured alike. B = 4 angles (low), 2 angles x 3 colours = 6 (medium), 4 x 3 = 12
        (high).
    "P(Y)": two random classes each. B = 4, 6, 8. Two also where there are more than ten classes (the paper's number
        there is unknown).
    "P(Y|X)": the labels of q = 3, 4, 5 classes, drawn once, permuted. B = q!: all permutations, the first changes
        nothing.
    "P(X|Y)": one of 4 x 3 looks on 8 random classes. B = 4, 6, 8. Decided here, as the paper's number is unknown: 8
        of more than ten classes too, and all but two of fewer.
    "domains": each domain of the pool, named by `domains`; whatever the severity (spec, 3.5, as recommended).

    Raises FedlibError for too few classes or domains.
    """
    check_choice("drift: name", kind, KINDS)
    level = SEVERITIES.index(check_choice("drift: severity", severity, SEVERITIES))
    if kind == "domains":
        return _domains(domains)
    banks = {"P(X)": _of_looks, "P(Y)": _of_classes, "P(Y|X)": _of_labels, "P(X|Y)": _of_looks_by_class}
    return banks[kind](level, classes, rng)


def _domains(names: tuple[str, ...]) -> tuple[Distribution, ...]:
    if len(names) < 2:
        raise FedlibError(
            f"drift 'domains': this data set has {len(names) or 'no'} domain{'s' if not names else ''}; take one of at "
            "least two, or another kind of drift"
        )
    return tuple(Distribution(domain=d, domain_name=name) for d, name in enumerate(names))


def _of_looks(level: int, classes: int, rng: np.random.Generator) -> tuple[Distribution, ...]:
    angles = ((0, 1, 2, 3), (0, 2), (0, 1, 2, 3))[level]
    colours = ((None,), (0, 1, 2), (0, 1, 2))[level]
    return tuple(Distribution(rotation=angle, colour=colour) for angle, colour in product(angles, colours))


def _of_classes(level: int, classes: int, rng: np.random.Generator) -> tuple[Distribution, ...]:
    _check_classes("P(Y)", classes, 2)
    return _distinct("P(Y)", (4, 6, 8)[level], classes, lambda: Distribution(classes=_some(classes, 2, rng)))


def _of_labels(level: int, classes: int, rng: np.random.Generator) -> tuple[Distribution, ...]:
    q = (3, 4, 5)[level]
    _check_classes("P(Y|X)", classes, q)
    chosen = _some(classes, q, rng)
    found = []
    for order in permutations(chosen):
        new = dict(zip(chosen, order, strict=True))
        found.append(Distribution(permutation=tuple(new.get(y, y) for y in range(classes))))
    return tuple(found)


def _of_looks_by_class(level: int, classes: int, rng: np.random.Generator) -> tuple[Distribution, ...]:
    _check_classes("P(X|Y)", classes, 3)

    def draw() -> Distribution:
        affected = _some(classes, min(8, classes - 2), rng)
        return Distribution(rotation=int(rng.integers(4)), colour=int(rng.integers(3)), affected=affected)

    return _distinct("P(X|Y)", (4, 6, 8)[level], classes, draw)


def _some(classes: int, count: int, rng: np.random.Generator) -> tuple[int, ...]:
    return tuple(sorted(rng.choice(classes, count, replace=False).tolist()))


def _check_classes(kind: str, classes: int, least: int) -> None:
    if classes < least:
        raise FedlibError(
            f"drift {kind!r}: it needs {least} classes at this severity, but there are {classes}; lower the severity "
            "or take another kind of drift"
        )


def _distinct(kind: str, count: int, classes: int, draw: Callable[[], Distribution]) -> tuple[Distribution, ...]:
    """`count` different draws, in the order of the first time that each was drawn."""
    found: dict[Distribution, None] = {}
    for _ in range(MAX_DRAWS):
        found.setdefault(draw())
        if len(found) == count:
            return tuple(found)
    raise FedlibError(
        f"drift {kind!r}: {MAX_DRAWS} draws gave {len(found)} different distributions of {classes} classes, not "
        f"{count}; lower the severity or take a data set of more classes"
    )


def starts(rounds: int, phases: int) -> tuple[int, ...]:
    """The round, counted from 1, that each phase starts at: floor(R e / E) for e = 0, …, E - 1 (spec, 3.3).

    A start of 0 means from the first round on. With as many phases as rounds, phase 1 starts at round 1, and phase 0
    is not used. In whole numbers: the released generator rounds float32 fractions down, so that of 20 rounds and 10
    phases two start a round early, at 13 and 17, and of 20 phases some overwrite others: 17 starts are left.
    """
    check_number("drift: rounds", rounds, least=1, whole=True)
    check_number("drift: phases", phases, least=1, most=rounds, whole=True)
    return tuple(rounds * e // phases for e in range(phases))


def phase_of(round: int, rounds: int, phases: int) -> int:
    """The phase, counted from 0, of a round, counted from 1: the last that has started."""
    check_number("round", round, least=1, most=rounds, whole=True)
    return bisect_right(starts(rounds, phases), round) - 1


@dataclass(frozen=True, eq=False)
class Schedule:
    """What each of m clients draws from in each of E phases.

    first, second: int, (m, E), index into the bank.
    thirds: (E,), how many thirds of a phase's samples come from `second`, 0 to 2; the others come from `first`.
    """

    first: np.ndarray
    second: np.ndarray
    thirds: tuple[int, ...]

    @property
    def main(self) -> np.ndarray:
        """int, (m, E): the distribution that most of a phase's samples come from."""
        return np.where(np.asarray(self.thirds) == 2, self.second, self.first)


def schedule(size: int, clients: int, phases: int, course: str, rng: np.random.Generator) -> Schedule:
    """Draw m clients' distributions in E phases from a bank of `size`, alike for each and with replacement.

    "random": one for each client and phase (spec, 3.1): a phase is like the one before with probability 1/B.
    Beyond the paper:
    "recurring": two different ones for each client, which take turns.
    "gradual": one for each client and three phases, the next replacing it by thirds: of four consecutive phases, 0,
        1/3, 2/3 and all of the samples come from the next, and so on from there.
    """
    check_choice("drift: course", course, COURSES)
    if course == "recurring":
        pair = rng.permuted(np.tile(np.arange(size), (clients, 1)), axis=1)[:, :2]
        drawn = pair[:, np.arange(phases) % pair.shape[1]]
        return Schedule(drawn, drawn, (0,) * phases)
    if course == "gradual":
        leg = np.arange(phases) // 3
        drawn = rng.integers(size, size=(clients, int(leg[-1]) + 2))
        return Schedule(drawn[:, leg], drawn[:, leg + 1], tuple(e % 3 for e in range(phases)))
    drawn = rng.integers(size, size=(clients, phases))
    return Schedule(drawn, drawn, (0,) * phases)


@dataclass(frozen=True)
class Drift:
    """The settings of a drift, as a YAML has them: {name: "P(X)", severity: low, phases: 5, …}.

    name: of KINDS.     severity: "low", "medium" or "high", see `bank`.     course: see `schedule`.
    phases: E, 1 to the number of rounds.
    few_per_class: labelled samples of each class that a visitor gives away, see drifting.make_drifting. None: 20 for
        P(Y|X), and 0, matching without labels, for all other kinds (FEROMA spec, 1.7).
    phase_samples: samples of one client in one phase; None: by the paper's rule, N_train / 30 where E m >= 30.
    """

    name: str
    severity: str = "low"
    phases: int = 5
    course: str = "random"
    few_per_class: int | None = None
    phase_samples: int | None = None

    def __post_init__(self) -> None:
        check_choice("drift: name", self.name, KINDS)
        check_choice("drift: severity", self.severity, SEVERITIES)
        check_choice("drift: course", self.course, COURSES)
        check_number("drift: phases", self.phases, least=1, whole=True)
        if self.few_per_class is not None:
            check_number("drift: few_per_class", self.few_per_class, least=0, whole=True)
        if self.phase_samples is not None:
            check_number("drift: phase_samples", self.phase_samples, least=2, whole=True)

    @property
    def few(self) -> int:
        """Labelled samples of each class that a visitor gives away."""
        if self.few_per_class is not None:
            return self.few_per_class
        return 20 if self.name == "P(Y|X)" else 0


def check_label_free(drift: Drift, name: str) -> None:
    """Raise FedlibError if the drift goes by labels, of which the samples of the data set `name` have several."""
    why = f"a sample of {name!r} may have several labels"
    if drift.name not in ("P(X)", "domains"):
        raise FedlibError(f"drift {drift.name!r}: {why}, and this kind goes by one; take 'domains' or 'P(X)'")
    if drift.few:
        raise FedlibError(f"drift: few_per_class: {drift.few}, but {why}; set few_per_class: 0")


def read(spec: Mapping[str, Any]) -> Drift:
    """The drift that `spec` describes; raises FedlibError for an unknown key or a value out of range."""
    _, settings = resolve("drift", dict.fromkeys(KINDS, Drift), spec, supplied=("name",))
    return Drift(spec["name"], **settings)


def check_spec(spec: Mapping[str, Any] | None, rounds: int) -> None:
    """Raise FedlibError unless `spec` is None or describes a drift that fits in so many rounds."""
    if spec is not None:
        starts(rounds, read(spec).phases)
