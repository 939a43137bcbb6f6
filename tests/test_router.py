"""The router in a folder: equal to the metrics' router, equal in another process, and clear about what it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import tiny
import torch

from fedlib import router
from fedlib.analysis.routing import crowd_of, routers
from fedlib.checks import FedlibError
from fedlib.engines import one_thread
from fedlib.methods.fedavg import FedAvg
from fedlib.methods.feddrm import FedDRM
from fedlib.methods.released.feddrm import FedDRMAsReleased
from fedlib.runs import Run, run

LEARNS = {
    "samples": 600,
    "clients": 3,
    "rounds": 8,
    "steps": 5,
    "partition": {"name": "dirichlet", "alpha": 0.3},
    "shift": {"name": "bit_grid", "level": "high"},
}


@pytest.fixture(scope="module")
def trained(shared_project) -> Run:
    """A second of training on unequal clients that look different: the router knows something."""
    return run(tiny.experiment(FedDRM(), **LEARNS))


@pytest.fixture(scope="module")
def folder(trained: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The router of `trained`."""
    folder = tmp_path_factory.mktemp("saved") / "router"
    router.save(trained, folder)
    return folder


@pytest.fixture
def copy(folder: Path, tmp_path: Path) -> Path:
    """The same in a folder that the test may damage."""
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


def test_it_answers_as_the_metrics_density_router_does(trained: Run, folder: Path):
    crowd = crowd_of(trained)
    answer = FedDRM().route(crowd)["density router"]
    routed = router.load(folder).route(crowd.samples.images)
    assert torch.equal(routed.client, answer.origin) and torch.equal(routed.prediction, answer.labels)
    assert len(set(routed.client.tolist())) == 3 and len(set(trained.experiment.federation().sizes)) == 3
    history = trained.history().query("round == 8 and client == -1").set_index("metric")["value"]
    assert (routed.prediction == crowd.samples.labels).double().mean() == pytest.approx(history["system@pooled"])


def test_the_confidence_is_the_chosen_client_s_probability(trained: Run, folder: Path):
    """exp(c_l) n / n_l, over its sum: by Bayes' rule the posterior when every client is equally likely to ask."""
    crowd = crowd_of(trained)
    routed, sizes = router.load(folder).route(crowd.samples.images), trained.experiment.federation().sizes
    _, c = crowd.outputs()
    ratio = c.double().exp() / torch.tensor(sizes, dtype=torch.float64)
    torch.testing.assert_close(routed.confidence.double(), (ratio / ratio.sum(1, keepdim=True)).amax(1))
    assert routed.confidence.min() >= 1 / 3 and routed.confidence.std() > 0.01


def test_clients_that_cannot_be_told_apart_share_the_confidence(folder: Path):
    """With client logits log(n_l / n), whatever x, all ratios are 0: the first client, with confidence 1 / m."""
    loaded = router.load(folder)
    head, sizes = loaded.network.client_head, torch.tensor(loaded.sizes)
    with torch.no_grad():
        head.weight.zero_()
        head.bias.copy_((sizes / sizes.sum()).log())
    routed = loaded.route(torch.zeros(4, 3, 16, 16, dtype=torch.uint8))
    assert routed.client.tolist() == [0] * 4 and routed.confidence.tolist() == pytest.approx([1 / 3] * 4)


def test_it_costs_one_pass_through_the_backbone(folder: Path):
    loaded, seen = router.load(folder), []
    loaded.network.backbone.register_forward_hook(lambda _, inputs, output: seen.append(len(inputs[0])))
    loaded.route(torch.zeros(1203, 3, 16, 16, dtype=torch.uint8))
    assert sum(seen) == 1203


SCRIPT = """
import sys, torch, numpy as np
from fedlib.router import load
torch.set_num_threads(1)
routed = load(sys.argv[1]).route(np.load(sys.argv[2]))
np.savez(sys.argv[3], **{name: value.numpy() for name, value in routed._asdict().items()})
"""


def test_another_process_gives_the_same_answers_without_the_data(trained: Run, folder: Path, tmp_path: Path):
    images = crowd_of(trained).samples.images
    np.save(tmp_path / "queries.npy", images.permute(0, 2, 3, 1).numpy())
    here = [str(folder), str(tmp_path / "queries.npy"), str(tmp_path / "answers.npz")]
    away = tmp_path / "nothing"
    environment = {"FEDLIB_RUNS": str(away), "FEDLIB_DATA": str(away), "FEDLIB_PROJECT": str(away)}
    subprocess.run([sys.executable, "-c", SCRIPT, *here], check=True, cwd=tmp_path, env=environment)
    with one_thread():
        expected = router.load(folder).route(images)
    with np.load(tmp_path / "answers.npz") as got:
        assert all(np.array_equal(got[name], value.numpy()) for name, value in expected._asdict().items())
    assert not away.exists()


def test_the_folder_holds_weights_and_a_description_and_no_training_data(trained: Run, folder: Path):
    assert sorted(file.name for file in folder.iterdir()) == ["router.json", "weights.safetensors"]
    held = safetensors.torch.load_file(folder / "weights.safetensors")
    network = FedDRM().build(tiny.task(trained.experiment.federation()))
    assert held.keys() == network.state_dict().keys()
    assert held["head.weight"].shape == (3, 10, 64) and held["head.bias"].shape == (3, 10)
    about = json.loads((folder / "router.json").read_text())
    federation = trained.experiment.federation()
    assert about["sizes"] == list(federation.sizes) and about["classes"] == list(federation.classes)
    assert about["method"] == {"name": "FedDRM", "lam": 0.8} and about["run"] == trained.key and about["format"] == 1


def test_saving_twice_writes_the_same_bytes(trained: Run, folder: Path, tmp_path: Path):
    router.save(trained, tmp_path)
    for name in ("router.json", "weights.safetensors"):
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes()


def test_loading_draws_no_random_numbers(folder: Path):
    before = torch.random.get_rng_state()
    router.load(folder)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_tensor_and_an_array_of_the_same_images_and_any_order_are_routed_alike(trained: Run, folder: Path):
    loaded, images = router.load(folder), crowd_of(trained).samples.images
    one, other = loaded.route(images), loaded.route(images.permute(0, 2, 3, 1).numpy())
    turned = loaded.route(images.permute(0, 2, 3, 1).numpy()[::-1])
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    assert torch.equal(turned.client.flip(0), one.client) and torch.equal(turned.prediction.flip(0), one.prediction)
    assert [len(part) for part in loaded.route(images[:0])] == [0, 0, 0]


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (torch.zeros(2, 3, 16, 16), r"Tensor of torch.float32 \(2, 3, 16, 16\); give uint8, .*values from 0 to 255"),
        (np.zeros((2, 16, 16, 3)), r"ndarray of float64 \(2, 16, 16, 3\); give uint8"),
        (np.zeros((2, 3, 16, 16), np.uint8), r"ndarray of uint8 \(2, 3, 16, 16\); .* or an array \(N, 16, 16, 3\)"),
        (torch.zeros(2, 16, 16, 3, dtype=torch.uint8), r"\(2, 16, 16, 3\); give uint8, a tensor \(N, 3, 16, 16\)"),
        (torch.zeros(2, 3, 17, 16, dtype=torch.uint8), r"\(2, 3, 17, 16\); give uint8, a tensor \(N, 3, 16, 16\)"),
        (torch.zeros(3, 16, 16, dtype=torch.uint8), r"\(3, 16, 16\); .* one image alone as images\[None\]"),
        ([[0]], r"images are list; give uint8, a tensor \(N, 3, 16, 16\) or an array \(N, 16, 16, 3\)"),
    ],
)
def test_other_images_are_refused(folder: Path, images, message: str):
    with pytest.raises(FedlibError, match=message):
        router.load(folder).route(images)


def test_the_router_of_a_variant_comes_back_as_that_variant(shared_project, tmp_path: Path):
    router.save(run(tiny.experiment(FedDRMAsReleased())), tmp_path)
    assert json.loads((tmp_path / "router.json").read_text())["method"]["name"] == "FedDRMAsReleased"
    assert router.load(tmp_path).sizes == (56, 56, 56)


def test_a_run_of_another_method_has_no_router(shared_project, tmp_path: Path):
    with pytest.raises(FedlibError, match="router: FedAvg trains no router; give a finished run of FedDRM"):
        router.save(run(tiny.experiment(FedAvg())), tmp_path / "router")
    assert not (tmp_path / "router").exists()


def test_a_missing_folder_or_file_is_named(copy: Path):
    with pytest.raises(FedlibError, match=r"elsewhere/router.json is not there; write the folder with router.save"):
        router.load(copy / "elsewhere")
    (copy / "weights.safetensors").unlink()
    with pytest.raises(FedlibError, match=r"weights.safetensors is not there"):
        router.load(copy)


def test_weights_that_were_cut_or_exchanged_are_damaged(copy: Path):
    file = copy / "weights.safetensors"
    whole = file.read_bytes()
    for other in (whole[:-4], b"", whole[:-1] + bytes([whole[-1] ^ 1])):
        file.write_bytes(other)
        with pytest.raises(FedlibError, match=r"weights.safetensors and router.json are not as they were written"):
            router.load(copy)


def test_a_description_that_is_broken_lacks_something_or_does_not_fit_is_damaged(copy: Path):
    file = copy / "router.json"
    about = json.loads(file.read_text())
    broken = ['{"format": 1', "[]", "{}", json.dumps({k: v for k, v in about.items() if k != "sizes"})]
    broken += [json.dumps(about | change) for change in ({"sizes": [1, 2]}, {"shape": [3]}, {"method": {"name": "No"}})]
    for text in broken:
        file.write_text(text)
        with pytest.raises(FedlibError, match=r"is damaged .*; save the run's router again"):
            router.load(copy)


def test_an_unknown_format_is_named(copy: Path):
    file = copy / "router.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"format": 2, "fedlib": "9.1"}))
    with pytest.raises(FedlibError, match=r"format 2 is unknown, this fedlib reads 1; .* wrote it \(9.1\)"):
        router.load(copy)


def test_a_folder_that_cannot_be_written_is_named(trained: Run, tmp_path: Path):
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(FedlibError, match=r"cannot write .*taken/weights.safetensors"):
        router.save(trained, tmp_path / "taken")


@pytest.mark.parametrize("sizes", [[1, 1000, 1], [0, 5, 5], [5, 5], [-1, 5, 5], [None, 5, 5], ["5", "5", "5"]])
def test_sizes_that_were_changed_are_refused(copy: Path, sizes: list[object]):
    about = json.loads((copy / "router.json").read_text())
    (copy / "router.json").write_text(json.dumps(about | {"sizes": sizes}))
    with pytest.raises(FedlibError, match="are not as they were written together"):
        router.load(copy)
    signed = about | {"sizes": sizes}
    signed["sha256"] = router._digest((copy / "weights.safetensors").read_bytes(), signed)
    (copy / "router.json").write_text(json.dumps(signed))
    if sizes == [1, 1000, 1]:  # what can be sizes is believed to who signs it
        assert router.load(copy).sizes == (1, 1000, 1)
    else:
        with pytest.raises(FedlibError, match=r"is damaged .*sizes"):
            router.load(copy)


def test_common_statistics_go_with_the_router_and_own_ones_are_refused(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("FEDLIB_RUNS", str(tmp_path / "runs"))
    common = {"name": "standardise", "mean": [[0.5, 0.4, 0.3]], "std": [[0.2, 0.2, 0.2]]}
    done = run(tiny.experiment(FedDRM(), shift=common))
    router.save(done, tmp_path / "router")
    raw = replace(done.experiment, shift=None).federation().pooled_test()[0].images
    density = routers(crowd_of(done))["density router"]
    assert torch.equal(router.load(tmp_path / "router").route(raw).client, density)
    own = common | {"mean": common["mean"] * 3, "std": common["std"] * 3}
    with pytest.raises(FedlibError, match="a query's client is not known; train with one row of mean and std for all"):
        router.save(run(tiny.experiment(FedDRM(), shift=own)), tmp_path / "other")
