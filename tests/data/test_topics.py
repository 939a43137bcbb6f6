"""topics: what it holds, that words tell its topics but not all of them, and a federation that learns them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tiny
from sklearn.linear_model import LogisticRegression

from fedlib.checks import FedlibError
from fedlib.data import topics, vision
from fedlib.data.text import UNK
from fedlib.engines import Processes, Serial
from fedlib.experiment import Experiment, make_experiment
from fedlib.methods.fedavg import FedAvg
from fedlib.rounds import federate


def test_topics_never_change():
    """Pinned, because every committed figure at smoke scale rests on these bits."""
    pool, again = topics.topics(), topics.topics.__wrapped__()
    assert np.array_equal(pool.images, again.images)
    assert pool.fingerprint == again.fingerprint == "0b0bd22cfd1d384f"
    assert vision.load("topics") is pool


def test_its_counts_are_the_documented_ones():
    pool = topics.topics()
    assert vision.check("topics").to_dict("list") == {"train": [216] * 6, "test": [54] * 6}
    assert pool.shape[0] <= 400 and pool.shape[1] == 20
    assert not (pool.images == UNK).any() and len(np.unique(pool.images)) == len(pool.words) - 2  # nor <eos>


def test_no_text_is_cut():
    """The longest clause twice, a joiner and <cls> are the 20 tokens."""
    most = max(len(opener.split()) for opener in topics.OPENERS), max(len(time.split()) for time in topics.TIMES)
    assert most == (3, 2)
    clauses = [clause.replace("{opener}", "x x x").replace("{time}", "x x") for clause in topics.CLAUSES]
    assert 2 * max(len(clause.split()) for clause in clauses) + 2 == topics.LENGTH


def test_every_topic_fills_every_gap_with_words_of_its_own():
    """Each kind of gap, in each topic, has at least half its words from no other topic, and COMMON has none of them."""
    for name, lists in topics.TOPICS.items():
        others = " ".join(" ".join(held.values()) for other, held in topics.TOPICS.items() if other != name).split()
        assert lists.keys() == topics.COMMON.keys()
        for kind, held in lists.items():
            words = held.split()
            assert len(set(words)) == len(words) >= 4
            assert 2 * len(set(words) - set(others)) >= len(words), (name, kind)
            assert not set(words) & set(topics.COMMON[kind].split())


def test_a_model_that_counts_words_learns_most_of_it_and_not_all():
    pool = topics.topics()
    counts = np.zeros((len(pool), len(pool.words)))
    np.add.at(counts, (np.arange(len(pool))[:, None], pool.images), 1)
    train = pool.split == 0
    model = LogisticRegression(max_iter=300).fit(counts[train], pool.labels[train])
    assert 0.8 < model.score(counts[~train], pool.labels[~train]) < 0.95  # chance: 0.17


SETTINGS: dict[str, Any] = {
    "data": "topics",
    "model": {"name": "text_cnn", "width": 32, "filters": 16, "dropout": 0.5},
    "clients": 3,
    "partition": {"name": "dirichlet", "alpha": 1.0},
    "rounds": 6,
    "epochs": 3,
    "lr": 0.2,
    "momentum": 0.0,
    "crop": False,
}


def accuracy(history: list[Any]) -> float:
    return next(row.value for row in reversed(history) if row.metric == "global@pooled")


def test_a_federation_learns_topics_and_any_engine_gives_the_same_bits():
    """The dropout of a client's work is drawn from a stream of its own, wherever the work runs."""
    asked = make_experiment(FedAvg(), **SETTINGS)
    fed, engine = asked.federation(), Processes(2)
    try:
        alone, spread = (
            federate(asked.method, fed, asked.task(fed), asked.local, asked.plan, at) for at in (Serial(), engine)
        )
    finally:
        engine.close()
    assert accuracy(alone.history) > 0.5  # chance: 0.17
    assert tiny.same_snapshots(alone, spread)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"crop": True}, "crop: True changes images, but these samples are texts; set crop: false"),
        ({"flip": True}, "flip: True changes images"),
        ({"padding": 2}, "padding: 2 changes images"),
        ({"probes": ("random_crop",)}, "probes: random_crop cuts images, but 'topics' is text; leave it out"),
        ({"shift": {"name": "bit_grid"}}, "changes how images look, but 'topics' is text; leave shift out"),
        (
            {"model": {"name": "small_cnn"}},
            "model small_cnn: it reads images, but the data set holds texts; take text_cnn",
        ),
        ({"data": "digits"}, "model text_cnn: it reads texts, but the data set holds images; take cnn4 or"),
    ],
)
def test_what_does_not_fit_texts_is_refused_before_training(settings: dict[str, Any], message: str):
    asked: Experiment = make_experiment(FedAvg(), **SETTINGS | settings)
    with pytest.raises(FedlibError) as caught:
        asked.task(asked.federation()).network()
    assert message in str(caught.value)
