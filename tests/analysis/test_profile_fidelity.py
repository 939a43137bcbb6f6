"""Distances between profiles and between distributions, by hand and by closed forms."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import spearmanr
from tiny import experiment

from fedlib.analysis import profiles as study
from fedlib.analysis.profiles import cells, fidelity, gaussian, jensen_shannon, joint, measures, pairs, wasserstein
from fedlib.checks import FedlibError
from fedlib.data.federation import Samples
from fedlib.data.pool import Pool
from fedlib.experiment import Experiment
from fedlib.methods.fedavg import FedAvg
from fedlib.methods.feroma import FEROMA
from fedlib.profiles import marginals
from fedlib.runs import Run, run


def images(*planes: list[list[int]]) -> torch.Tensor:
    """(n, 3, 1, 2): an image a row of each plane's list."""
    return torch.tensor(planes, dtype=torch.uint8).transpose(0, 1)[:, :, None]


def test_the_gaussian_has_pixels_in_0_to_1_and_shares_of_labels():
    two = Samples(images([[0, 255], [255, 255]], [[0, 0], [0, 0]], [[51, 0], [51, 0]]), torch.tensor([2, 0]))
    mu, sigma = gaussian(two, 3).chunk(2)
    np.testing.assert_allclose(mu, [0.5, 1, 0, 0, 0.2, 0, 0.5, 0, 0.5])
    np.testing.assert_allclose(sigma, [0.5, 0, 0, 0, 0, 0, 0.5, 0, 0.5], atol=1e-12)
    np.testing.assert_allclose(gaussian(two, 3, planes=1), [0.5, 1, 0.5, 0, 0.5, 0.5, 0, 0.5, 0, 0.5], atol=1e-12)


def test_w2_of_diagonal_gaussians_is_by_hand_and_by_transport():
    mu, sigma = torch.tensor([[0.0, 1.0], [3.0, 1.0]]), torch.tensor([[1.0, 2.0], [1.0, 6.0]])
    np.testing.assert_allclose(wasserstein(torch.cat([mu, sigma], dim=1).double()), [[0, 5], [5, 0]])
    x = torch.linspace(-1, 1, 2001, dtype=torch.float64)[:, None]  # in one dimension, W2 pairs the sorted samples
    a, b = x * 2 + 1, x * 0.5 - 3
    transport = (a - b).square().mean().sqrt()
    assert float(wasserstein(torch.stack([marginals(a), marginals(b)]))[0, 1]) == pytest.approx(float(transport))


def test_permuted_labels_of_balanced_classes_leave_w2_where_it_is_and_move_js():
    x = images(*[[[0, 10], [255, 200], [90, 40]]] * 3)
    own, permuted = Samples(x, torch.tensor([0, 1, 2])), Samples(x, torch.tensor([1, 2, 0]))
    assert float(wasserstein(torch.stack([gaussian(s, 3) for s in (own, permuted)]))[0, 1]) == 0
    assert float(jensen_shannon(torch.stack([joint(s, 3) for s in (own, permuted)]))[0, 1]) == pytest.approx(
        math.sqrt(math.log(2))
    )  # no cell in common


def test_the_joint_histogram_counts_pixels_by_label():
    own = Samples(images([[0, 255], [128, 5]], [[0, 0], [0, 0]], [[0, 0], [0, 0]]), torch.tensor([1, 0]))
    shares = joint(own, 2, planes=1).view(2, 50)
    assert {(y, b): float(shares[y, b]) for y, b in shares.nonzero().tolist()} == {
        (0, 0): 0.25,
        (0, 25): 0.25,
        (1, 0): 0.25,
        (1, 49): 0.25,
    }
    assert float(joint(own, 2).view(2, 50)[:, 0].sum()) == pytest.approx(10 / 12)


def test_jensen_shannon_by_hand():
    p = torch.tensor([[1.0, 0.0], [0.5, 0.5]], dtype=torch.float64)
    divergence = 0.5 * math.log(1 / 0.75) + 0.5 * (0.5 * math.log(0.5 / 0.75) + 0.5 * math.log(0.5 / 0.25))
    np.testing.assert_allclose(jensen_shannon(p), [[0, math.sqrt(divergence)], [math.sqrt(divergence), 0]], atol=1e-7)


PAIRS = pd.DataFrame(
    [
        # raw, w2, js, same, missing
        (1.0, 2.0, 0.5, True, False),
        (3.0, 4.0, 0.5, False, False),
        (2.0, 8.0, 0.5, False, True),
        (9.0, 9.0, 0.5, False, False),
        (5.0, 0.0, 0.5, True, True),
    ],
    columns=["raw", "w2", "js", "same", "missing"],
).assign(scaled=lambda t: -t["w2"], masked=lambda t: t["w2"] + 1, **{"label-free": lambda t: t["w2"] ** 2})


def test_xi_ratios_ranks_and_separation_by_hand():
    found = measures(PAIRS)
    assert (found["w2_max"], found["w2_mean"]) == (6, (1 + 1 + 6 + 0 + 5) / 5)
    assert (found["missing"], found["w2_max rest"]) == (0.4, 1)
    assert math.isnan(measures(PAIRS[PAIRS["missing"]])["w2_max rest"])
    assert (found["js_max"], found["js_mean"]) == (8.5, 3.5)
    ratios = np.quantile([0.5, 0.75, 0.25, 1.0], [0.05, 0.5, 0.95])  # not that of W2 = 0
    assert [found[f"ratio {q}"] for q in ("q05", "q50", "q95")] == pytest.approx(ratios)
    assert found["ratio spread"] == pytest.approx(ratios[2] / ratios[0])
    assert found["rho raw"] == pytest.approx(spearmanr(PAIRS["raw"], PAIRS["w2"]).statistic)
    assert [found[f"rho {name}"] for name in ("scaled", "masked", "label-free")] == pytest.approx([-1, 1, 1])
    assert math.isnan(found["rho js"])
    assert found["auc raw"] == pytest.approx(4 / 6)  # of 3 x 2: 3 > 1, 2 > 1, 9 > 1, 9 > 5
    assert (found["auc w2"], found["auc js"]) == (1, 0.5)
    assert math.isnan(measures(PAIRS[PAIRS["same"]])["auc raw"])


def test_an_absent_label_does_not_stretch_the_masked_scaler():
    """One axis, one label: [mu_x, sigma_x, mu_u, sigma_u]; the second profile lacks the label."""
    d = torch.tensor([[0.0, 1.0, 4.0, 2.0], [2.0, 3.0, -1.0, -1.0], [4.0, 5.0, 8.0, 4.0]])
    np.testing.assert_allclose(study.scaled_masked(d, d[:2], 1), [[0, 0, 0, 0], [1, 1, -1, -1], [2, 2, 4, 2]])


def test_fidelity_is_the_measures_of_each_group():
    table = pd.concat([PAIRS.assign(seed=0), PAIRS[:3].assign(seed=1)])
    found = fidelity(table, ["seed"]).set_index(["seed", "metric"])["value"]
    assert found[0, "w2_max"] == 6 and found[1, "w2_mean"] == pytest.approx(8 / 3)
    with pytest.raises(FedlibError, match="fidelity: by"):
        fidelity(table, ["kind"])


def drifting(method=None, kind: str = "P(X)", **settings) -> Experiment:
    settings = {"rounds": 4, "validation_share": 0.3, "samples": 400, "steps": 1} | settings
    drift = {"name": kind, "severity": "low", "phases": 2, "phase_samples": 40, "few_per_class": 0}
    return experiment(method or FEROMA(warmup=1), drift=drift, clients=3, **settings)


@pytest.fixture
def finished(tmp_path, monkeypatch) -> Run:
    monkeypatch.setenv("FEDLIB_RUNS", str(tmp_path))
    return run(drifting())


def test_every_phase_gives_every_client_once():
    fed = drifting().federation()
    found = [(phase, client.index, client.distribution) for phase, client in cells(fed)]
    assert found == [(e, k, int(fed.course.main[k, e])) for e in (0, 1) for k in range(3)]


def test_pairs_of_a_run(finished):
    own, table = finished.experiment, pairs(finished)
    main = own.federation().course.main
    assert len(table) == 15 and (table["first"] < table["second"]).all()
    for _, row in table.iterrows():
        (e, k), (f, j) = divmod(row["first"], 3), divmod(row["second"], 3)
        assert row["same"] == (main[k, e] == main[j, f])
    first = own.federation().at(1).clients[0]
    other = own.federation().at(4).clients[2]
    few = [np.bincount(c.validation.labels, minlength=10) for c in (first, other)]
    assert min(few[0].max(), few[1].max()) > 2 and table["missing"].any()  # 12 samples of ten labels
    whole = [
        Samples(torch.cat([c.train.images, c.validation.images]), torch.cat([c.train.labels, c.validation.labels]))
        for c in (first, other)
    ]
    expected = wasserstein(torch.stack([gaussian(s, 10) for s in whole]))[0, 1]
    assert table[(table["first"] == 0) & (table["second"] == 5)]["w2"].item() == pytest.approx(float(expected))
    alike = ~table["missing"]
    assert (table["masked"] != table["scaled"]).any() and (table[alike]["masked"] >= table[alike]["label-free"]).all()
    pd.testing.assert_frame_equal(table, pairs(finished))  # the same halves again


def test_grey_images_count_once_where_the_archive_has_one_plane(finished, monkeypatch):
    own = replace(finished, experiment=drifting(kind="P(Y|X)"))
    three, rotated = pairs(own)["w2"], pairs(finished)["w2"]  # coloured digits: three planes
    monkeypatch.setattr(study, "is_grey", lambda pool: True)
    assert (pairs(own)["w2"] < 0.8 * three).all()
    assert pairs(finished)["w2"].equals(rotated)
    grey = np.repeat(np.arange(8, dtype=np.uint8).reshape(2, 1, 2, 2), 3, axis=1)
    monkeypatch.undo()
    for last, answer in ((0, True), (1, False)):
        planes = grey.copy()
        planes[1, 2, 0, 0] += last
        pool = Pool("p", planes, np.array([0, 1]), ("a", "b"), np.array([0, 1], dtype=np.uint8), np.array([0, 1]))
        assert study.is_grey(pool) is answer


def test_what_has_no_profiles_is_refused(finished):
    with pytest.raises(FedlibError, match=r"pairs: a run of FedAvg.*give FEROMA with a drift"):
        pairs(replace(finished, experiment=drifting(FedAvg())))
    with pytest.raises(FedlibError, match="pairs: round 4 has no profiles yet; take a run beyond round 5"):
        pairs(replace(finished, experiment=drifting(FEROMA(warmup=5), rounds=6)))
