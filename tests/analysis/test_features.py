"""The maps of finished runs: against the runs' own histories, the method's identities, and CAMs in closed form."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F

from fedlib.analysis import attention, features
from fedlib.analysis.embedding import linear_probe
from fedlib.checks import FedlibError
from fedlib.data import shapes
from fedlib.experiment import Experiment, make_experiment
from fedlib.methods.f2dc import F2DC, Calibration
from fedlib.methods.fdse import FDSE
from fedlib.methods.fedavg import FedAvg
from fedlib.methods.method import Method
from fedlib.runs import Run, run
from fedlib.streams import torch_stream
from fedlib.training import prepare

SETTINGS = {
    "data": "shapes",
    "clients": 4,
    "partition": {"name": "by_domain", "allocation": [1, 1, 1, 1], "share": 0.5},
    "model": {"name": "resnet10", "width": 4, "stem_stride": 2},
    "rounds": 3,
    "lr": 0.05,
    "steps": 4,
    "batch_size": 16,
    "crop": False,
    "test_share": 0.0,
}
DOMAINS = ["photo", "painting", "cartoon", "sketch"]
SIZES = [70, 84, 98, 168]


def asked(method: Method, **settings: object) -> Experiment:
    return make_experiment(method, **SETTINGS | settings)


def accuracies(done: Run) -> list[float]:
    """Of the last round, domain by domain, as the run's own history has them."""
    last = done.history().query("round == 3").set_index("metric")["value"]
    return [last[f"domain@central[{name}]"] for name in DOMAINS]


@pytest.fixture(scope="module")
def f2dc(shared_project) -> Run:
    return run(asked(F2DC()))


@pytest.fixture(scope="module")
def average(shared_project) -> Run:
    return run(asked(FedAvg()))


@pytest.mark.parametrize("method", [FedAvg(), FDSE(), F2DC(), F2DC(modules="local")])
def test_the_head_on_pooled_features_gives_the_run_s_accuracies_again(shared_project, method: Method):
    done = run(asked(method))
    found = features.pooled(done)
    got = []
    for name, model, samples in features.domains(done):
        z, y = found[name]
        assert y.tolist() == samples.labels.tolist() and not model.training
        got.append(float((model.head(torch.from_numpy(z["z"])).argmax(1).numpy() == y).mean()))
    assert list(found) == DOMAINS and got == pytest.approx(accuracies(done))


def test_pooling_is_linear_so_the_maps_add_up_pooled_too(f2dc: Run):
    for z, _ in features.pooled(f2dc).values():
        np.testing.assert_allclose(z["f+"] + z["f-"], z["f"], rtol=0, atol=1e-5)
        np.testing.assert_allclose(z["f+"] + z["f*"], z["f~"], rtol=0, atol=1e-5)
        assert (z["z"] == z["f~"]).all() and np.abs(z["f~"] - z["f"]).max() > 1e-3


def test_stacked_features_keep_domain_and_label_beside_them(average: Run):
    found = features.pooled(average)
    z, y, q = features.stacked(found)
    assert z.shape == (420, 32) and np.bincount(q).tolist() == SIZES
    for i, name in enumerate(DOMAINS):
        assert (z[q == i] == found[name][0]["z"]).all() and (y[q == i] == found[name][1]).all()
    assert (features.stacked(found, "z")[1] == np.concatenate([np.arange(n) % 7 for n in SIZES])).all()


def test_the_training_part_is_what_the_clients_of_the_domain_hold(average: Run):
    federation = average.experiment.federation()
    for name, _, samples in features.domains(average, "train"):
        (own,) = [c.train for c in federation.clients if c.domain == DOMAINS.index(name)]
        assert torch.equal(samples.images, own.images) and torch.equal(samples.labels, own.labels)


def test_a_domain_that_nobody_has_is_tested_but_not_trained_on(shared_project):
    partition = {"name": "by_domain", "allocation": [2, 0, 1, 1], "share": 0.4}
    done = run(asked(F2DC(), partition=partition))
    assert list(features.pooled(done)) == DOMAINS
    found = features.pooled(done, "train")
    sizes = {name: len(y) for name, (_, y) in found.items()}
    assert sizes == {"photo": 2 * 112, "cartoon": 156, "sketch": 268}
    assert features.readouts(done)["domain"].unique().tolist() == DOMAINS


def test_what_has_no_domains_to_tell_apart_is_refused(shared_project):
    mixed = run(asked(FedAvg(), partition={"name": "iid"}))
    assert [len(y) for _, y in features.pooled(mixed).values()] == SIZES
    with pytest.raises(FedlibError, match=r"client 0 holds several domains.*take part: test"):
        features.pooled(mixed, "train")
    own = run(make_experiment(FedAvg(), samples=240, clients=3, rounds=1, lr=0.05, steps=1, crop=False))
    with pytest.raises(FedlibError, match=r"no official test part by domain; run it with test_share: 0\.0"):
        features.pooled(own)


def test_read_outs_are_the_trained_heads_and_one_probe_scored_by_domain(f2dc: Run):
    table = features.readouts(f2dc).set_index(["readout", "map", "domain"])["accuracy"].sort_index()
    assert [table["main head", "f~", name] for name in DOMAINS] == pytest.approx(accuracies(f2dc))
    test, train = features.pooled(f2dc), features.pooled(f2dc, "train")
    heads = {
        name: (model.auxiliary.weight.clone(), model.auxiliary.bias.clone())
        for name, model, _ in features.domains(f2dc)
    }
    for short in ("f+", "f-", "f*", "f~"):
        z, y, _ = features.stacked(train, short)
        for name, (zs, labels) in test.items():
            one = linear_probe(z, y, zs[short], labels)
            assert table["linear probe", short, name] == pytest.approx(one)
            logits = F.linear(torch.from_numpy(zs[short]), *heads[name])
            assert table["auxiliary head", short, name] == pytest.approx(
                float((logits.argmax(1).numpy() == labels).mean())
            )


def test_read_outs_need_maps(average: Run):
    with pytest.raises(FedlibError, match="readouts: FedAvg has no maps; give a run of F2DC"):
        features.readouts(average)


def test_masks_at_test_time(f2dc: Run):
    """Deterministic is the run's own; stripped is the head on f; noise is drawn anew, and the same in each call."""
    table = features.masks(f2dc, draws=2)
    by = table.set_index(["mask", "draw", "domain"])["accuracy"].sort_index()
    assert [by["deterministic", 0, name] for name in DOMAINS] == pytest.approx(accuracies(f2dc))
    z, y, q = features.stacked(features.pooled(f2dc), "f")
    for name, model, _ in features.domains(f2dc):
        right = model.head(torch.from_numpy(z)).argmax(1).numpy() == y
        assert by["stripped", 0, name] == pytest.approx(right[q == DOMAINS.index(name)].mean())
    pd.testing.assert_frame_equal(features.masks(f2dc, draws=2), table)
    for name, model, samples in features.domains(f2dc):
        stream = torch_stream(f2dc.experiment.seed, "noisy mask", name, 1)
        with torch.no_grad():
            f = model.backbone(prepare(samples.images))
            noisy, still = (model.head(model.transform(model.calibrate(f, g).calibrated)) for g in (stream, None))
        assert not torch.allclose(noisy, still)
        assert by["noisy", 1, name] == pytest.approx(float((noisy.argmax(1) == samples.labels).float().mean()))


def test_masks_are_asked_of_a_run_that_has_them_and_drawn_at_least_once(average: Run, f2dc: Run):
    with pytest.raises(FedlibError, match="masks: FedAvg has no masks; give a run of F2DC"):
        features.masks(average)
    with pytest.raises(FedlibError, match="mask_statistics: FedAvg has no masks; give a run of F2DC"):
        features.mask_statistics(average)
    with pytest.raises(FedlibError, match="masks: draws: 0 is out of range"):
        features.masks(f2dc, draws=0)


def test_mask_statistics_of_masks_that_are_known(shared_project):
    """M = 0: f+ = 0. M = 1/2 everywhere: f+ = f-, so that the cosine is 1."""
    none = features.mask_statistics(run(asked(Calibration(lam1=0.0, lam2=0.0, mask="none"))))
    half = features.mask_statistics(run(asked(F2DC(mask="random"))))
    for table, mean, cosine in ((none, 0.0, 0.0), (half, 0.5, 1.0)):
        assert table["domain"].tolist() == DOMAINS
        assert table["mean"].tolist() == pytest.approx([mean] * 4)
        assert table["cosine"].tolist() == pytest.approx([cosine] * 4, abs=1e-5)
        assert table[["channel_variance", "spatial_variance"]].abs().max(axis=None) < 1e-10


def test_measured_is_a_table_of_all_runs_and_measures_each_once(average: Run, f2dc: Run):
    seen = []

    def measure(done: Run) -> pd.DataFrame:
        seen.append(done.key)
        return pd.DataFrame({"value": [1.0, 2.0]})

    groups = {
        ("a", "FedAvg"): [average.experiment],
        ("b", "F2DC"): [f2dc.experiment],
        ("b", "mean"): [average.experiment],
    }
    table = features.measured(groups, ["setting", "method"], measure)
    assert seen == [average.key, f2dc.key]
    assert table["method"].tolist() == ["FedAvg"] * 2 + ["F2DC"] * 2 + ["mean"] * 2
    assert table["key"].tolist() == [average.key] * 2 + [f2dc.key] * 2 + [average.key] * 2
    assert table["value"].tolist() == [1.0, 2.0] * 3 and table["seed"].unique().tolist() == [0]
    assert table["setting"].tolist() == list("aabbbb")


def test_a_balanced_sample_has_as_many_of_every_class_in_every_domain():
    y, q = np.array([0, 0, 0, 1, 1, 1, 0, 1, 1, 0, 0]), np.array([0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1])
    index = features.balanced(y, q, each=2)
    assert index.tolist() == sorted(set(index.tolist()))
    assert sorted(zip(q[index].tolist(), y[index].tolist(), strict=True)) == sorted(
        [(0, 0), (0, 1), (1, 0), (1, 1)] * 2
    )
    assert features.balanced(y, q, each=9).tolist() == list(range(11))
    assert (features.balanced(y, q, 2) == index).all()
    drawn = {tuple(features.balanced(y, q, 1, seed)) for seed in range(30)}
    assert len(drawn) > 10  # of 3 * 2 * 3 * 3 samples


def test_the_first_image_of_a_class(average: Run):
    """In `shapes` image i of a domain shows class i mod 7, also in its test part."""
    federation = average.experiment.federation()
    k = shapes.CLASSES.index("ring")
    assert features.first_of(federation, "ring") == {name: [k] for name in DOMAINS}
    with pytest.raises(FedlibError, match="first_of: class: 'rings' is unknown; did you mean 'ring'"):
        features.first_of(federation, "rings")
    photo = federation.central["photo"]
    lacks = replace(federation, central={"photo": replace(photo, labels=torch.zeros_like(photo.labels))})
    with pytest.raises(FedlibError, match="photo has no test image of ring; show another class"):
        features.first_of(lacks, "ring")


def test_values_of_the_pool_in_the_order_of_the_test_images(average: Run):
    """The images themselves, so that masks lie on theirs."""
    pool = shapes.shapes()
    central = average.experiment.federation().central
    images = features.central_values(pool, pool.images)
    assert list(images) == DOMAINS
    assert all(torch.equal(images[name], samples.images.contiguous()) for name, samples in central.items())
    masks = features.central_values(pool, shapes.masks())
    assert [len(mask) for mask in masks.values()] == SIZES and masks["sketch"].dtype == torch.bool


def closed_form(done: Run) -> dict[str, torch.Tensor]:
    """y^c = b + sum_k W_ck mean(A^k): CAM = ReLU(sum_k W_ck A^k), from 0 to 1, brought to the image."""
    found = {}
    for name, model, samples in features.domains(done):
        with torch.no_grad():
            maps = model.backbone(prepare(samples.images))
            cam = torch.einsum("nk,nkhw->nhw", model.head.weight[samples.labels], maps).relu()
        cam = cam - cam.amin((1, 2), keepdim=True)
        cam = cam / cam.amax((1, 2), keepdim=True).clamp(min=1e-12)
        found[name] = F.interpolate(cam[:, None], samples.images.shape[2:], mode="bilinear")[:, 0]
    return found


def test_cams_of_a_linear_head_are_known(average: Run):
    """But for rounding: grad-cam divides by its maximum and 1e-7."""
    found = features.cams(average)
    assert list(found) == ["f"] and list(found["f"]) == DOMAINS
    for name, cam in closed_form(average).items():
        np.testing.assert_allclose(found["f"][name], cam, atol=2e-3)


def test_cams_of_both_maps_and_of_chosen_images(f2dc: Run):
    every, some = features.cams(f2dc), features.cams(f2dc, {name: [5, 0] for name in DOMAINS})
    assert list(every) == list(some) == ["f", "f~"]
    for short, found in some.items():
        for name, cam in found.items():
            torch.testing.assert_close(cam, every[short][name][[5, 0]], atol=1e-4, rtol=0)
    assert (every["f"]["photo"] - every["f~"]["photo"]).abs().max() > 0.01


def test_attention_over_the_whole_image_and_over_nothing(average: Run):
    """A mask of everything: energy 1, all maxima inside. A quarter and the rest: together a whole."""
    shape = {name: (n, 32, 32) for name, n in zip(DOMAINS, SIZES, strict=True)}
    whole = features.attention(average, {name: torch.ones(s, dtype=torch.bool) for name, s in shape.items()})
    assert whole["domain"].tolist() == DOMAINS and whole["map"].unique().tolist() == ["f"]
    assert whole["energy"].tolist() == pytest.approx([1.0] * 4) and whole["area"].tolist() == [1.0] * 4
    assert whole["pointing"].tolist() == [1.0] * 4
    left = {name: (torch.arange(32) < 8).expand(s) for name, s in shape.items()}
    one = features.attention(average, left)
    other = features.attention(average, {name: ~mask for name, mask in left.items()})
    assert (one["energy"] + other["energy"]).tolist() == pytest.approx([1.0] * 4)
    assert (one["pointing"] + other["pointing"]).tolist() == pytest.approx([1.0] * 4)
    assert one["area"].tolist() == [0.25] * 4 and one["energy"].between(0.01, 0.99).all()


def test_a_blank_cam_counts_as_one_that_knows_nothing(average: Run, monkeypatch):
    blank = {"f": {"photo": torch.cat([torch.zeros(3, 8, 8), torch.eye(8)[None]])}}
    monkeypatch.setattr(features, "cams", lambda run: blank)
    mask = torch.zeros(4, 8, 8, dtype=torch.bool)
    mask[:, :2, :2] = True
    row = features.attention(average, {"photo": mask}).iloc[0]
    assert row["area"] == pytest.approx(1 / 16) and row["blank"] == 0.75
    assert row["energy"] == row["pointing"] == pytest.approx((3 / 16 + 2 / 8) / 4)
    assert attention.energy_inside(torch.eye(8)[None], mask[:1]).item() == 0.25


def test_pointing_counts_maxima_and_energy_all_of_the_cam(average: Run, monkeypatch):
    """A peak outside beside much inside; and two equal peaks, one of them inside."""
    cam = torch.zeros(2, 8, 8)
    cam[0, 0, 0], cam[0, 4, 4:8] = 1.0, 0.5
    cam[1, 0, 0], cam[1, 4, 4] = 1.0, 1.0
    mask = torch.zeros(2, 8, 8, dtype=torch.bool)
    mask[:, 4:, 4:] = True
    monkeypatch.setattr(features, "cams", lambda run: {"f": {"photo": cam[:1], "sketch": cam[1:]}})
    table = features.attention(average, {"photo": mask[:1], "sketch": mask[1:]})
    assert table["energy"].tolist() == pytest.approx([2 / 3, 1 / 2])
    assert table["pointing"].tolist() == pytest.approx([0.0, 1 / 2])
    assert table["area"].tolist() == [0.25] * 2 and table["blank"].tolist() == [0.0] * 2


def test_a_gallery_shows_the_same_first_images_under_every_run(average: Run, f2dc: Run):
    masks = features.central_values(shapes.shapes(), shapes.masks())
    drawn = features.gallery({"mean": average, "F2DC": f2dc}, "ring", masks)
    k, central = shapes.CLASSES.index("ring"), average.experiment.federation().central
    assert drawn["titles"] == [f"{name} ring" for name in DOMAINS] and list(drawn["cams"]) == [
        "mean, f",
        "F2DC, f",
        "F2DC, f~",
    ]
    every = features.cams(f2dc)["f~"]
    for row, name in enumerate(DOMAINS):
        assert torch.equal(drawn["images"][row], central[name].images[k]) and torch.equal(
            drawn["masks"][row], masks[name][k]
        )
        torch.testing.assert_close(drawn["cams"]["F2DC, f~"][row], every[name][k], atol=1e-4, rtol=0)
    inside = attention.energy_inside(drawn["cams"]["mean, f"], drawn["masks"])
    np.testing.assert_allclose(drawn["scores"]["mean, f"], inside)
    assert features.gallery({"mean": average}, "ring").keys() == {"images", "cams", "titles"}
