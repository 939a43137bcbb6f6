import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedlib.checks import FedlibError
from fedlib.claims import Claim, Verdict, all_of, exact, paired, show, to_frame, within

CLAIM = Claim("A2", "router accuracy falls as λ grows", threshold=0.0)
T_975 = {3: 4.302653, 5: 2.776445}  # Student's t, two and four degrees of freedom, from any table

# multiples of 1/64 add up without rounding, so that shifting them is exact
dyadic = st.integers(-640, 640).map(lambda k: k / 64)
effects = st.lists(dyadic, min_size=3, max_size=8)


@pytest.mark.parametrize("n", T_975)
def test_the_interval_is_students(n):
    values = list(range(1, n + 1))
    verdict = paired(CLAIM, values)
    half = T_975[n] * np.std(values, ddof=1) / math.sqrt(n)
    assert (verdict.effect, verdict.n) == (np.mean(values), n)
    assert (verdict.low, verdict.high) == pytest.approx((verdict.effect - half, verdict.effect + half), rel=1e-6)


@pytest.mark.parametrize(
    ("values", "direction", "answer"),
    [
        ([1.9, 2.0, 2.1], ">", "holds"),  # 2 ± 0.248
        ([1.9, 2.0, 2.1], "<", "fails"),
        ([-1.9, -2.0, -2.1], ">", "fails"),
        ([-1.9, -2.0, -2.1], "<", "holds"),
        ([-1.0, 0.0, 2.0], ">", "undecided"),
        ([-1.0, 0.0, 2.0], "<", "undecided"),
    ],
)
def test_the_verdict_is_the_side_the_whole_interval_lies_on(values, direction, answer):
    assert paired(replace(CLAIM, direction=direction), values).verdict == answer


def test_the_threshold_is_what_the_interval_is_held_against():
    half = T_975[3] * 0.1 / math.sqrt(3)
    answers = {t: paired(replace(CLAIM, threshold=2 + t * half), [1.9, 2.0, 2.1]).verdict for t in (-1.01, 0.99, 1.01)}
    assert answers == {-1.01: "holds", 0.99: "undecided", 1.01: "fails"}


@pytest.mark.parametrize(("values", "effect"), [([], math.nan), ([5.0], 5.0), ([5.0, 7.0], 6.0)])
def test_below_three_seeds_nothing_is_decided(values, effect):
    verdict = paired(CLAIM, values)
    assert verdict.verdict == "undecided" and verdict.note == f"n = {len(values)} < 3"
    assert verdict.effect == pytest.approx(effect, nan_ok=True) and math.isnan(verdict.low) and math.isnan(verdict.high)
    assert within(CLAIM, values, bound=100.0).verdict == "undecided"


@pytest.mark.parametrize(("threshold", "answer"), [(0.0, "holds"), (0.1, "fails"), (0.2, "fails")])
def test_equal_effects_make_the_interval_a_point(threshold, answer):
    verdict = paired(replace(CLAIM, threshold=threshold), [0.1, 0.1, 0.1])
    assert (verdict.low, verdict.effect, verdict.high, verdict.verdict) == (0.1, 0.1, 0.1, answer)


@pytest.mark.parametrize("judge", [paired, lambda claim, values: within(claim, values, 2.0)])
@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_an_effect_that_is_not_finite_names_its_seed(judge, wrong):
    with pytest.raises(FedlibError, match=f"claim A2: the effect of seed 1 is {wrong}"):
        judge(CLAIM, [1.0, wrong, 2.0])


@given(effects, st.permutations(range(8)))
def test_the_order_of_seeds_does_not_matter(values, order):
    shuffled = [values[k] for k in order if k < len(values)]
    ours, theirs = paired(CLAIM, values), paired(CLAIM, shuffled)
    assert ours.verdict == theirs.verdict and (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high))


@given(effects, dyadic, dyadic)
def test_shifting_effects_and_threshold_together_changes_no_verdict(values, threshold, shift):
    here, there = replace(CLAIM, threshold=threshold), replace(CLAIM, threshold=threshold + shift)
    shifted = [v + shift for v in values]
    assert paired(here, values).verdict == paired(there, shifted).verdict
    assert within(here, values, 2.0).verdict == within(there, shifted, 2.0).verdict


@given(effects, dyadic)
def test_directions_mirror_each_other(values, threshold):
    up, down = replace(CLAIM, threshold=threshold), replace(CLAIM, threshold=-threshold, direction="<")
    ours, mirrored = paired(up, values), paired(down, [-v for v in values])
    assert ours.verdict == mirrored.verdict and (ours.low, ours.high) == (-mirrored.high, -mirrored.low)


@pytest.mark.parametrize(
    ("values", "answer"),
    [
        ([-0.1, 0.0, 0.1], "holds"),  # 0 ± 0.248 in ±2
        ([1.9, 2.0, 2.1], "undecided"),
        ([2.9, 3.0, 3.1], "fails"),
        ([-2.9, -3.0, -3.1], "fails"),
        ([-9.0, 0.0, 9.0], "undecided"),
    ],
)
def test_equivalence_asks_for_the_whole_interval_inside_the_band(values, answer):
    verdict = within(CLAIM, values, bound=2.0)
    assert verdict.verdict == answer and verdict.note == "within ±2 of 0"


def test_equivalence_is_centred_on_the_threshold():
    assert within(replace(CLAIM, threshold=12.5), [12.4, 12.5, 12.6], bound=1.0).verdict == "holds"
    with pytest.raises(FedlibError, match="claim A2: bound: 0 is out of range"):
        within(CLAIM, [1.0, 2.0, 3.0], bound=0)


@pytest.mark.parametrize(("value", "answer"), [(8, "holds"), (7, "fails"), (6, "fails")])
def test_counts_are_compared_exactly(value, answer):
    verdict = exact(Claim("A10", "the vote costs more than seven passes", threshold=7, unit="passes"), value)
    assert (verdict.verdict, verdict.effect, verdict.n) == (answer, value, 1) and math.isnan(verdict.low)
    with pytest.raises(FedlibError, match="claim A2: the value is nan"):
        exact(CLAIM, math.nan)


@pytest.mark.parametrize(
    ("parts", "answer", "note"),
    [
        (["holds", "holds"], "holds", ""),
        (["holds", "undecided"], "undecided", "p1 undecided"),
        (["undecided", "fails", "holds"], "fails", "p0 undecided; p1 fails"),
    ],
)
def test_a_claim_of_several_parts_needs_them_all(parts, answer, note):
    verdicts = [Verdict(Claim(f"p{k}", ""), part, 1.0, 0.0, 2.0, n=5 - k) for k, part in enumerate(parts)]
    combined = all_of(CLAIM, verdicts)
    assert (combined.verdict, combined.note, combined.n) == (answer, note, 6 - len(parts))
    with pytest.raises(FedlibError, match="claim A2: no verdict to combine"):
        all_of(CLAIM, [])


def test_the_table_has_one_row_a_verdict():
    table = to_frame([paired(CLAIM, [1.9, 2.0, 2.1]), paired(CLAIM, [1.0])])
    assert list(table) == ["id", "statement", "threshold", "effect", "low", "high", "n", "verdict", "note"]
    assert table["verdict"].tolist() == ["holds", "undecided"] and table["n"].tolist() == [3, 1]
    assert "n = 1 &lt; 3" in paired(CLAIM, [1.0])._repr_html_()


def test_an_unknown_direction_is_refused():
    with pytest.raises(FedlibError, match="claim A2: direction: '>=' is unknown"):
        Claim("A2", "", direction=">=")


def test_a_notebook_shows_the_whole_statement() -> None:
    """pandas would cut a text of more than fifty characters."""
    claim = Claim("A0", " ".join(["a statement"] * 20))
    assert claim.statement in str(show([paired(claim, [1.0, 2.0, 3.0])]).data)
