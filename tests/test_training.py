"""Mini-batches and the one loop of local SGD."""

from __future__ import annotations

from itertools import chain

import pytest
import tiny
import torch
from torch import Tensor, nn

from fedlib import training
from fedlib.checks import FedlibError
from fedlib.data.federation import Samples
from fedlib.data.shift import padded_crop, random_flip
from fedlib.models import build
from fedlib.streams import derive, numpy_stream, torch_stream
from fedlib.training import Batch, Local, NotFinite, batches, check_precision, check_texts, only, prepare, sgd


def numbered(count: int) -> Samples:
    """Samples that can be told apart: label j, and every pixel j."""
    labels = torch.arange(count)
    return Samples(labels.to(torch.uint8)[:, None, None, None].expand(count, 3, 4, 4), labels)


def drawn(local: Local, count: int = 10, stream: int = 0) -> list[list[int]]:
    return [b.y.tolist() for b in batches(numbered(count), local, 3, torch_stream(0, "test", stream))]


def test_a_pass_is_shuffled_and_uses_its_last_smaller_batch():
    passes = drawn(Local(steps=None, epochs=1, batch_size=4))
    assert [len(batch) for batch in passes] == [4, 4, 2]
    assert sorted(chain(*passes)) == list(range(10)) != list(chain(*passes))


def test_more_steps_than_batches_start_a_new_shuffle():
    steps = drawn(Local(steps=8, batch_size=4))
    assert [len(batch) for batch in steps] == [4, 4, 2, 4, 4, 2, 4, 4]
    first, second = list(chain(*steps[:3])), list(chain(*steps[3:6]))
    assert sorted(first) == sorted(second) == list(range(10)) and first != second


def test_fewer_steps_cut_the_pass_and_every_round_starts_a_new_one():
    local = Local(steps=2, batch_size=4)
    assert [len(batch) for batch in drawn(local)] == [4, 4]
    assert drawn(local, stream=1) != drawn(local, stream=2)
    assert drawn(local, stream=1) == drawn(local, stream=1)


def test_epochs_are_passes_and_steps_are_batches():
    assert Local(steps=None, epochs=3, batch_size=4).count(10) == 9
    assert Local(steps=7, batch_size=4).count(10) == 7
    assert [len(b) for b in drawn(Local(steps=3, batch_size=64))] == [10, 10, 10]


def test_images_stay_with_their_labels_and_clients():
    for batch in batches(numbered(200), Local(steps=5, batch_size=30, crop=False), 3, torch_stream(0, "test")):
        assert batch.client == 3
        torch.testing.assert_close((batch.x[:, 0, 0, 0] + 1) * 127.5, batch.y.float())


def test_crops_change_the_pixels_but_not_the_order():
    plain, cropped = (
        list(batches(tiny.federation((40,)).clients[0].train, Local(steps=1, crop=crop), 0, torch_stream(0, "test")))
        for crop in (False, True)
    )
    assert torch.equal(plain[0].y, cropped[0].y) and not torch.equal(plain[0].x, cropped[0].x)
    assert float(cropped[0].x.min()) >= -1 and float(cropped[0].x.max()) <= 1


@pytest.mark.parametrize("settings", [{"padding": 1}, {"flip": True}, {"padding": 2, "flip": True}])
def test_padding_and_flips_are_those_of_the_functions_on_the_batch_s_stream(settings: dict):
    images = torch.randint(256, (10, 3, 4, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    stream = torch_stream(0, "same")
    given = batches(Samples(images, torch.arange(10)), Local(steps=3, batch_size=4, crop=False, **settings), 0, stream)
    seen, same = list(given), torch_stream(0, "same")
    order = torch.randperm(10, generator=same)
    for batch, index in zip(seen, order.split(4), strict=True):
        expected = images[index]
        if "padding" in settings:
            expected = padded_crop(expected, settings["padding"], same)
        if "flip" in settings:
            expected = random_flip(expected, same)
        assert torch.equal(batch.x, prepare(expected))
    assert not torch.equal(seen[0].x, prepare(images[order[:4]]))


def test_prepare_maps_bytes_to_minus_one_to_one():
    got = prepare(torch.tensor([0, 51, 255], dtype=torch.uint8).repeat(2, 1)[:, :, None, None].expand(2, 3, 4, 4))
    torch.testing.assert_close(got[0, :, 0, 0], torch.tensor([-1.0, -0.6, 1.0]))
    assert got.dtype == torch.float32 and got.is_contiguous(memory_format=torch.channels_last)


def test_token_numbers_are_widened_and_otherwise_left_alone():
    tokens = torch.tensor([[5, 0, 31_999]], dtype=torch.int32)
    assert prepare(tokens).dtype == torch.int64 and prepare(tokens).tolist() == [[5, 0, 31_999]]
    texts = Samples(torch.arange(10, dtype=torch.int32)[:, None].repeat(1, 3), torch.arange(10))
    for batch in batches(texts, Local(steps=4, batch_size=4, crop=False), 0, torch_stream(0, "test")):
        assert batch.x.dtype == torch.int64 and (batch.x == batch.y[:, None]).all()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"crop": True}, "crop: True changes images, but these samples are texts; set crop: false"),
        ({"padding": 4}, "padding: 4 changes images, but these samples are texts; set padding: 0"),
        ({"flip": True}, "flip: True changes images, but these samples are texts; set flip: false"),
    ],
)
def test_what_is_done_to_images_is_refused_for_texts(settings: dict, message: str):
    check_texts(Local(crop=False))
    with pytest.raises(FedlibError, match=message):
        check_texts(Local(**{"crop": False, **settings}))


def linear_batches(count: int) -> list[Batch]:
    return [Batch(torch.randn(6, 3, 2, 2, generator=torch_stream(0, j)), torch.arange(6) % 2, 0) for j in range(count)]


def test_only_freezes_exactly_the_others():
    model = build({"name": "small_cnn"}, (3, 8, 8), 10)
    with only(model, lambda name: name.startswith("head.")) as chosen:
        assert [id(p) for p in chosen] == [id(model.head.weight), id(model.head.bias)]
        assert {n for n, p in model.named_parameters() if p.requires_grad} == {"head.weight", "head.bias"}
    assert all(p.requires_grad for p in model.parameters())
    with pytest.raises(KeyError), only(model, lambda name: False):
        raise KeyError
    assert all(p.requires_grad for p in model.parameters())


def test_sgd_follows_the_equations():
    """v <- momentum v + g + weight_decay w,  w <- w - lr v, for loss = w: g = 1. Two steps from w = 2."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, 2.0)
    local = Local(steps=2, momentum=0.5, weight_decay=0.1)

    def loss(_: Batch) -> dict[str, Tensor]:
        return {"total": model.weight.sum(), "half": 0.5 * model.weight.sum()}

    means = sgd(model, linear_batches(2), loss, model.parameters(), local, 0.1)
    v1 = 1 + 0.1 * 2
    w1 = 2 - 0.1 * v1
    w2 = w1 - 0.1 * (0.5 * v1 + 1 + 0.1 * w1)
    assert model.weight.item() == pytest.approx(w2, rel=1e-6)
    assert means == pytest.approx({"total": (2 + w1) / 2, "half": (2 + w1) / 4}, rel=1e-6)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_the_first_step_whose_loss_is_not_finite_is_named(bad: float):
    model = nn.Linear(1, 1)
    losses = iter([1.0, 1.0, bad, bad, 1.0])

    def loss(_: Batch) -> dict[str, Tensor]:
        return {"total": model.bias.sum() * 0 + next(losses)}

    with pytest.raises(NotFinite, match=f"step 3 of 5: the total loss is {bad}; lower lr"):
        sgd(model, linear_batches(5), loss, model.parameters(), Local(), 0.1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"steps": 5, "epochs": 1}, "steps=5, epochs=1: give exactly one of them"),
        ({"steps": None}, "steps=None, epochs=None: give exactly one of them"),
        ({"steps": 0}, "steps: 0 is out of range; give a whole number at least 1"),
        ({"steps": None, "epochs": 1.5}, "epochs: 1.5 is float, not a whole number"),
        ({"batch_size": 0}, "batch_size: 0 is out of range"),
        ({"batch_size": "32"}, "batch_size: '32' is str, not a whole number"),
        ({"momentum": 1.0}, "momentum: 1.0 is out of range; give a number at least 0.0 and below 1.0"),
        ({"weight_decay": -1e-4}, "weight_decay: -0.0001 is out of range"),
        ({"precision": "bf16"}, "precision: 'bf16' is unknown; did you mean 'bfloat16'?"),
        ({"crop": True, "padding": 4}, "crop: true, padding: 4: two random crops; keep one"),
        ({"crop": "no"}, "crop: 'no' is unknown; valid: False, True"),
    ],
)
def test_wrong_local_settings_are_refused(settings: dict, message: str):
    with pytest.raises(FedlibError) as caught:
        Local(**settings)
    assert message in str(caught.value)


def test_bfloat16_is_refused_where_it_would_be_emulated(monkeypatch: pytest.MonkeyPatch):
    cpu = torch.device("cpu")
    monkeypatch.setattr(training, "has_bfloat16", lambda device: False)
    with pytest.raises(FedlibError, match="precision: this cpu has no bfloat16 arithmetic; use precision: float32"):
        check_precision("bfloat16", cpu)
    check_precision("float32", cpu)
    monkeypatch.setattr(training, "has_bfloat16", lambda device: True)
    check_precision("bfloat16", cpu)


def test_bfloat16_is_used_in_the_forward_pass_alone():
    model = nn.Linear(4, 2)
    seen = []

    def loss(batch: Batch) -> dict[str, Tensor]:
        logits = model(batch.x[:, 0].flatten(1))
        seen.append(logits.dtype)
        return {"total": nn.functional.cross_entropy(logits, batch.y)}

    sgd(model, linear_batches(1), loss, model.parameters(), Local(precision="bfloat16"), 0.1)
    sgd(model, linear_batches(1), loss, model.parameters(), Local(), 0.1)
    assert seen == [torch.bfloat16, torch.float32] and model.weight.dtype == torch.float32


def test_streams_depend_on_every_part_of_their_purpose():
    seeds = {derive(0), derive(1), derive(0, "a"), derive(0, "a", 1), derive(0, "a", 2), derive(0, "a", "1")}
    assert len(seeds) == 6 and all(0 <= seed < 2**63 for seed in seeds)
    assert numpy_stream(3, "x").integers(1 << 30) == numpy_stream(3, "x").integers(1 << 30)
    before = torch.random.get_rng_state()
    torch_stream(3, "x")
    assert torch.equal(torch.random.get_rng_state(), before)
