"""topics: sentences on six topics, procedural; no download."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

import numpy as np

from fedlib.data.pool import Pool
from fedlib.data.text import Texts, to_pool

SEED = 2026
PER_TOPIC = 270
LENGTH = 20
"""Token numbers of a text: <cls> and at most 19 words, which is the longest that the templates make."""
OWN, GUEST = 0.5, 0.15
"""How often a gap in a sentence is filled from the sentence's own topic, and from its guest; else, with COMMON."""

Lists = Mapping[str, str]
"""For each kind of gap, the words that may fill it."""

TOPICS: Mapping[str, Lists] = {
    "cooking": {
        "person": "cook baker chef waiter guest",
        "thing": "soup bread sauce pan oven dish recipe salt tomato knife",
        "act": "baked fried stirred tasted served boiled cut",
        "quality": "spicy sweet hot salty fresh",
        "place": "kitchen restaurant market bakery",
    },
    "gardening": {
        "person": "gardener neighbour botanist florist farmer",
        "thing": "rose seed soil hedge lawn tomato spade herb root leaf",
        "act": "planted watered pruned picked dug grew cut",
        "quality": "green wild fresh dry blooming",
        "place": "garden greenhouse field market",
    },
    "music": {
        "person": "singer drummer pianist conductor audience",
        "thing": "song guitar melody drum record concert violin note choir pitch",
        "act": "played sang recorded tuned rehearsed practised composed",
        "quality": "loud quiet slow famous sharp",
        "place": "stage studio hall theatre",
    },
    "space": {
        "person": "astronaut engineer astronomer pilot crew",
        "thing": "rocket planet orbit telescope moon satellite star comet probe engine",
        "act": "launched landed observed measured repaired reached photographed",
        "quality": "distant bright red cold heavy",
        "place": "station launchpad observatory crater",
    },
    "sport": {
        "person": "goalkeeper striker coach referee captain",
        "thing": "ball goal match team race penalty medal record pitch final",
        "act": "scored won lost kicked missed played trained",
        "quality": "fast tired injured strong famous",
        "place": "stadium field track gym",
    },
    "weather": {
        "person": "forecaster farmer sailor driver pilot",
        "thing": "storm rain snow wind cloud fog thunder flood heat sky",
        "act": "predicted feared measured observed followed expected survived",
        "quality": "cold wet stormy windy heavy",
        "place": "coast valley harbour mountain",
    },
}
"""Some words are of two topics: a pitch is sung or played on, and fresh tomatoes are grown before they are cut."""

COMMON: Lists = {
    "person": "man woman friend child visitor reporter",
    "thing": "plan idea story picture surprise question problem present",
    "act": "found wanted saw described forgot liked showed",
    "quality": "new old small good strange long",
    "place": "town city village house street",
}

OPENERS = ("yesterday", "we heard that", "they say that", "in the end", "as usual", "people think that", "once more")
TIMES = (
    "on monday",
    "on friday",
    "last night",
    "this morning",
    "all day",
    "after lunch",
    "in june",
    "at last",
    "again",
)
JOINERS = ("and", "but", "while", "because", "so")
CLAUSES = (
    "the {quality} {person} {act} the {thing} {time}",
    "{opener} the {person} {act} the {quality} {thing}",
    "at the {place} the {person} {act} the {thing}",
    "the {thing} and the {thing} were {quality} {time}",
    "nobody {act} the {quality} {thing} near the {place}",
    "one {person} {act} the {thing} for the {person}",
)

Pick = Callable[[Sequence[str]], str]


@lru_cache(maxsize=1)
def topics() -> Pool:
    """1,620 texts of two clauses, 270 a topic; every fifth of a topic is test: 216 train and 54 test each.

    Each text has a guest, another topic drawn at random. A gap of a clause is filled from the text's own topic with
    probability 0.5, from the guest with 0.15 and else with a word that tells nothing: a model that counts words can
    learn the topics, but some texts are more about their guest. Vocabulary and token numbers are made as those of AG
    News are (data.text).
    """
    # RandomState and not default_rng: NumPy promises that its stream never changes (NEP 19).
    draws, names = np.random.RandomState(SEED), tuple(TOPICS)

    def pick(choices: Sequence[str]) -> str:
        return choices[int(draws.random_sample() * len(choices))]

    texts, labels, split = [], [], []
    for i in range(PER_TOPIC * len(names)):
        own = names[i % len(names)]
        guest = pick([name for name in names if name != own])
        texts.append(f"{_clause(own, guest, pick, draws)} {pick(JOINERS)} {_clause(own, guest, pick, draws)}")
        labels.append(i % len(names))
        split.append(int(i // len(names) % 5 == 4))
    return to_pool("topics", Texts(texts, labels, split), names, size=400, length=LENGTH)


def _clause(own: str, guest: str, pick: Pick, draws: np.random.RandomState) -> str:
    """A template with its gaps filled."""

    def fill(gap: re.Match[str]) -> str:
        kind = gap[1]
        if kind in ("opener", "time"):
            return pick(OPENERS if kind == "opener" else TIMES)
        u = draws.random_sample()
        lists = TOPICS[own] if u < OWN else TOPICS[guest] if u < OWN + GUEST else COMMON
        return pick(lists[kind].split())

    return re.sub(r"\{(\w+)\}", fill, pick(CLAUSES))
