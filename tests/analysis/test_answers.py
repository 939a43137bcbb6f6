"""Answers of every model: against a forward pass by hand, the run's own history, and its refusals."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tiny
import torch
import torch.nn.functional as F

from fedlib.analysis.answers import Answers, answers
from fedlib.checks import FedlibError
from fedlib.experiment import Experiment
from fedlib.methods.fedavg import FedAvg
from fedlib.methods.fedfew import FedFew
from fedlib.methods.method import initial_state
from fedlib.methods.several import models
from fedlib.runs import Run, run
from fedlib.training import prepare


@pytest.fixture(scope="module", autouse=True)
def runs_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDLIB_RUNS", str(tmp_path_factory.mktemp("runs")))
        yield


def asked(**settings: Any) -> Experiment:
    return tiny.experiment(FedFew(K=3, smoothing=0.05), **{"validation_share": 0.2, "pooled": False} | settings)


@pytest.fixture(scope="module")
def finished() -> Run:
    return run(asked())


LOGITS = torch.tensor(
    [[[2.0, 0.0, 1.0], [0.0, 1.0, 0.0]], [[0.0, 3.0, 0.0], [1.0, 0.0, 0.0]], [[5.0, 0.0, 1.0], [0.0, 0.0, 3.0]]]
).double()
"""Three samples, two models, three classes."""


def test_what_is_read_from_logits():
    found = Answers(LOGITS, torch.tensor([0, 1, 2]))
    assert found.right.tolist() == [[True, False], [True, False], [False, True]]
    # Means of logits: (1, .5, .5), (.5, 1.5, 0), (2.5, 0, 2).
    assert found.right_together.tolist() == [True, True, False]
    expected = np.log(np.exp(LOGITS.numpy()).sum(2)) - LOGITS.numpy()[np.arange(3), :, [0, 1, 2]]
    np.testing.assert_allclose(found.losses, expected, rtol=1e-12)


@pytest.mark.parametrize("part", ["train", "validation", "test"])
def test_each_model_answers_on_each_clients_own_samples(finished: Run, part: str):
    fed = finished.experiment.federation()
    model, _, _ = initial_state(FedAvg(), finished.experiment.task(fed))
    theta = models(finished.snapshot().server.weights)
    found = answers(finished, part)
    assert len(found) == 3
    for own, client in zip(found, fed.clients, strict=True):
        samples = getattr(client, part)
        assert torch.equal(own.labels, samples.labels) and own.losses.shape == (len(samples), 3)
        for k, state in enumerate(theta):
            model.load_state_dict(state)
            with torch.no_grad():
                logits = model.eval()(prepare(samples.images)).double()
            torch.testing.assert_close(own.logits[:, k], logits, rtol=1e-5, atol=1e-5)
            losses = F.cross_entropy(logits, samples.labels, reduction="none").numpy()
            np.testing.assert_allclose(own.losses[:, k], losses, rtol=1e-4, atol=1e-5)


def test_the_choice_by_all_held_out_samples_has_the_accuracy_of_the_history(finished: Run):
    history = finished.history()
    last = history[(history["round"] == 3) & (history["metric"] == "personal@local") & (history["client"] >= 0)]
    pairs = zip(answers(finished, "validation"), answers(finished, "test"), strict=True)
    mine = [test.right.mean(0)[held.losses.mean(0).argmin()] for held, test in pairs]
    assert mine == pytest.approx(last.sort_values("client")["value"].tolist())


def test_what_cannot_answer_is_named(finished: Run):
    with pytest.raises(FedlibError, match="answers: part: 'valid' is unknown; did you mean 'validation'"):
        answers(finished, "valid")
    one = Run(tiny.experiment(FedAvg()), "none", finished.folder)
    with pytest.raises(FedlibError, match="answers: FedAvg has no K models for all clients to choose among; give a"):
        answers(one, "test")
    trained = run(tiny.experiment(FedFew(K=2, selection="train"), rounds=1, steps=1, pooled=False))
    with pytest.raises(FedlibError, match="answers: client 0 has no validation samples; set validation_share above 0"):
        answers(trained, "validation")
