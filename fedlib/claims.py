"""Claims and their verdicts: what a paper says, written down before the runs, and what the seeds say.

An effect is a paired difference: two methods, or two settings, under the same seed. Its mean over seeds gets a 95 %
Student-t interval, and the verdict is read off the interval: on which side of the claim's threshold it lies.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd
from IPython.display import HTML
from scipy import stats

from fedlib.checks import FedlibError, check_choice, check_number

CONFIDENCE = 0.95
FEWEST_SEEDS = 3

Answer = Literal["holds", "fails", "undecided"]


@dataclass(frozen=True)
class Claim:
    """A falsifiable statement about one number: effect `direction` threshold.

    id: the spec's label, e.g. "A2". unit: of effect and threshold, e.g. "points" (percentage points).
    direction: ">" or "<", both strict.
    """

    id: str
    statement: str
    threshold: float = 0.0
    unit: str = "points"
    direction: Literal[">", "<"] = ">"

    def __post_init__(self) -> None:
        check_choice(f"claim {self.id}: direction", self.direction, (">", "<"))


@dataclass(frozen=True)
class Verdict:
    """The answer to a claim: mean effect over n seeds and its interval [low, high] in the claim's unit (NaN: none)."""

    claim: Claim
    verdict: Answer
    effect: float
    low: float
    high: float
    n: int
    note: str = ""

    def _repr_html_(self) -> str:
        return str(show([self]).data)


def paired(claim: Claim, effects: Sequence[float]) -> Verdict:
    """Judge a claim by one paired difference per seed, `effects` (n,).

    Holds when the whole interval lies on the claimed side of the threshold, fails when none of it does; undecided
    otherwise, and below three seeds. Raises FedlibError for an effect that is not finite.
    """
    effect, low, high, n = _interval(claim, effects)
    return Verdict(claim, _side(claim, low, high), effect, low, high, n, _few(n))


def within(claim: Claim, effects: Sequence[float], bound: float) -> Verdict:
    """Judge a claim of equivalence ("similar within 2 points"): |effect − threshold| < bound.

    Holds when the whole interval lies inside the band, fails when it lies outside; the claim's direction has no part
    in it. Raises FedlibError for a bound that is not positive or an effect that is not finite.
    """
    check_number(f"claim {claim.id}: bound", bound, above=0)
    effect, low, high, n = _interval(claim, effects)
    floor, ceiling = claim.threshold - bound, claim.threshold + bound
    answer: Answer = "undecided"
    if floor < low and high < ceiling:
        answer = "holds"
    elif high <= floor or low >= ceiling:
        answer = "fails"
    band = f"within ±{bound:g} of {claim.threshold:g}"
    return Verdict(claim, answer, effect, low, high, n, _few(n) or band)


def exact(claim: Claim, value: float) -> Verdict:
    """Judge a claim about a number without chance in it, such as a count: holds or fails, no interval."""
    if not math.isfinite(value):
        raise FedlibError(f"claim {claim.id}: the value is {value}; give a finite number")
    return Verdict(claim, _side(claim, value, value), value, math.nan, math.nan, 1, "exact")


def all_of(claim: Claim, verdicts: Sequence[Verdict]) -> Verdict:
    """Judge a claim made of several: holds if all hold, fails if any fails, else undecided.

    n is the least n of the parts; the note names the parts that do not hold.
    """
    if not verdicts:
        raise FedlibError(f"claim {claim.id}: no verdict to combine; give at least one")
    answers = {v.verdict for v in verdicts}
    answer: Answer = "fails" if "fails" in answers else "undecided" if "undecided" in answers else "holds"
    note = "; ".join(f"{v.claim.id} {v.verdict}" for v in verdicts if v.verdict != "holds")
    return Verdict(claim, answer, math.nan, math.nan, math.nan, min(v.n for v in verdicts), note)


def to_frame(verdicts: Sequence[Verdict]) -> pd.DataFrame:
    """One row a verdict; effect, low, high and threshold are in the claim's unit."""
    columns = ["id", "statement", "threshold", "effect", "low", "high", "n", "verdict", "note"]
    rows = [
        (v.claim.id, v.claim.statement, v.claim.threshold, v.effect, v.low, v.high, v.n, v.verdict, v.note)
        for v in verdicts
    ]
    return pd.DataFrame(rows, columns=columns)


def show(verdicts: Sequence[Verdict]) -> HTML:
    """The same for a notebook: statements in full, numbers to two places."""
    with pd.option_context("display.max_colwidth", None):
        return HTML(to_frame(verdicts).to_html(index=False, float_format="{:.2f}".format, na_rep=""))


def _interval(claim: Claim, effects: Sequence[float]) -> tuple[float, float, float, int]:
    """Mean of the effects, both ends of its interval (NaN, so undecided, below three seeds), and n."""
    for seed, effect in enumerate(effects):
        if not math.isfinite(effect):
            raise FedlibError(
                f"claim {claim.id}: the effect of seed {seed} is {effect} (counted from 0, {len(effects)} in all); "
                "give a finite number, or leave the seed out"
            )
    values = np.asarray(effects, dtype=float)
    n = len(values)
    if n < FEWEST_SEEDS:
        return float(values.mean()) if n else math.nan, math.nan, math.nan, n
    if np.ptp(values) == 0:  # the mean of equal floats can round away from them
        return float(values[0]), float(values[0]), float(values[0]), n
    mean = float(values.mean())
    half = float(stats.t.ppf((1 + CONFIDENCE) / 2, n - 1) * stats.sem(values))
    return mean, mean - half, mean + half, n


def _few(n: int) -> str:
    return f"n = {n} < {FEWEST_SEEDS}" if n < FEWEST_SEEDS else ""


def _side(claim: Claim, low: float, high: float) -> Answer:
    """Where [low, high] lies: all on the claimed (strict) side, all off it, or across the threshold."""
    if claim.direction == "<":
        low, high, threshold = -high, -low, -claim.threshold
    else:
        threshold = claim.threshold
    return "holds" if low > threshold else "fails" if high <= threshold else "undecided"
