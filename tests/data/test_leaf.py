"""FEMNIST in LEAF's layout, on files written here."""

import json

import numpy as np
import pytest

from fedlib.checks import FedlibError
from fedlib.data import leaf, vision
from fedlib.data.federation import make_federation

pytestmark = pytest.mark.usefixtures("data_root")


def image(level):
    """White, with one pixel of ink in row 2, column 5."""
    pixels = [1.0] * 784
    pixels[2 * 28 + 5] = level / 255
    return pixels


def document(writers):
    """LEAF's object of {writer: (levels, labels)}."""
    data = {writer: {"x": [image(level) for level in levels], "y": y} for writer, (levels, y) in writers.items()}
    return {"users": list(writers), "num_samples": [len(y) for _, y in writers.values()], "user_data": data}


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))


ALL = (list(range(62)), list(range(62)))
"""One sample of each class; the level is the label."""
BEA = ([100, 101, 102], [7, 7, 40])
TRAIN = [{"f2": BEA, "f0": ALL}, {"f1": ([150, 151], [9, 9])}]
TEST = [{"f1": ([250], [9]), "f0": ([251], [3])}, {"f2": ([252], [7])}]


def write_leaf(folder, train=TRAIN, test=TEST):
    for part, files in (("train", train), ("test", test)):
        for k, writers in enumerate(files):
            write(folder / part / f"all_data_{k}_niid_0_keep_0_{part}_9.json", document(writers))


def test_a_writer_is_a_domain_and_both_parts_are_read(data_root):
    write_leaf(data_root / "femnist")
    pool = vision.load("femnist")
    assert pool.images.shape == (70, 3, 28, 28) and pool.domain_names == ("f0", "f1", "f2")
    assert pool.classes == tuple("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")
    levels = [100, 101, 102, *range(62), 150, 151, 250, 251, 252]
    assert pool.images[:, :, 2, 5].tolist() == [[level] * 3 for level in levels]
    assert pool.domains.tolist() == [2] * 3 + [0] * 62 + [1] * 2 + [1, 0, 2]
    assert pool.labels.tolist() == [7, 7, 40, *range(62), 9, 9, 9, 3, 7]
    assert pool.split.tolist() == [0] * 67 + [1] * 3
    rest = np.ones((28, 28), dtype=bool)
    rest[2, 5] = False
    assert (pool.images[:, :, rest] == 255).all()  # ink is dark on white, as in LEAF


def test_every_grey_level_comes_back(data_root):
    write_leaf(data_root / "femnist", [{"a": ALL, "b": (list(range(256)), [0] * 256)}], [{"a": ([0], [0])}])
    pool = vision.load("femnist")
    assert pool.images[62:318, 0, 2, 5].tolist() == list(range(256))


def test_by_source_is_a_client_a_writer(data_root):
    write_leaf(data_root / "femnist", [{"f2": BEA, "f0": ALL, "f1": ([150, 151, 152, 153], [9] * 4)}])
    federation = make_federation(vision.load("femnist"), 3, {"name": "by_source"}, None, seed=0, test_share=0.25)
    assert [client.domain for client in federation.clients] == [0, 1, 2]
    held = [sorted([*c.train.labels.tolist(), *c.test.labels.tolist()]) for c in federation.clients]
    assert held == [sorted([*range(62), 3]), [9] * 5, [7, 7, 7, 40]]
    merged = {"name": "by_source", "surplus": "merge"}
    two = make_federation(vision.load("femnist"), 2, merged, None, seed=0, test_share=0.25)
    assert sum(len(client.train) + len(client.test) for client in two.clients) == 63 + 5 + 4


def test_listing_reads_no_image(data_root, monkeypatch):
    write_leaf(data_root / "femnist")
    monkeypatch.setattr(leaf, "_document", lambda path: pytest.fail("read"))
    line = {line.name: line for line in vision.available()}["femnist"]
    assert line[1:] == (str(data_root / "femnist"), 70, 62, "")


def test_the_order_of_keys_does_not_matter(data_root):
    write_leaf(data_root / "femnist")
    for path in (data_root / "femnist").rglob("*.json"):
        turned = dict(reversed(json.loads(path.read_text()).items()))
        path.write_text(json.dumps(turned | {"hierarchies": ["a"]}, indent=1))
    assert leaf.outline(data_root / "femnist") == (70, 62) and len(vision.load("femnist")) == 70


def test_whole_numbers_are_pixels_too(data_root):
    content = document({"f0": ALL, "f5": ([0], [5])})
    content["user_data"]["f5"]["x"] = [[1, 0] + [1] * 782]
    write_leaf(data_root / "femnist")
    write(data_root / "femnist/train/all_data_0_niid_0_keep_0_train_9.json", content)
    assert vision.load("femnist").images[62, 0, 0, :3].tolist() == [255, 0, 255]


def test_check_counts_each_writer(data_root):
    write_leaf(data_root / "femnist")
    table = vision.check("femnist")
    assert table["train"].sum() == 67 and table["test"].sum() == 3 and len(table.columns) == 2 + 2 * 3
    assert table["f2 train"]["7"] == 2 and table["f2 train"]["e"] == 1 and table["f1 test"]["9"] == 1


def spoilt(**changes):
    """A file of writer f9 with one sample, some of its keys changed."""
    content = document({"f9": ([3], [1])})
    data = content["user_data"]["f9"] | {key: value for key, value in changes.items() if key in ("x", "y")}
    others = {key: value for key, value in changes.items() if key not in ("x", "y")}
    return content | {"user_data": {"f9": data}} | others


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"users": ["f9"], "num', r"extra\.json is not readable JSON .*cut short"),
        (json.dumps(spoilt())[:-400], r"extra\.json is not readable JSON"),
        ("[1]", "'users' and 'num_samples' are not two lists of one length"),
        (spoilt(users="f9"), "'users' and 'num_samples' are not two lists"),
        (spoilt(num_samples=[1, 2]), "'users' and 'num_samples' are not two lists of one length"),
        (spoilt(num_samples=[0]), "writer 'f9' has 0 samples, not a whole number of at least 1"),
        (spoilt(num_samples=["1"]), "writer 'f9' has '1' samples"),
        (spoilt(user_data=None), "'user_data' is missing"),
        (spoilt(user_data={}), "'user_data' lacks writer 'f9'"),
        (spoilt(user_data={"f9": {"x": [image(1)]}}), "writer 'f9' has no x and y of numbers"),
        (spoilt(x=[["ink"] * 784]), "writer 'f9' has no x and y of numbers"),
        (spoilt(num_samples=[2]), r"writer 'f9' has x of shape \(1, 784\) and y of \(1,\), not \(2, 784\)"),
        (spoilt(x=[image(1)[:-1]]), r"writer 'f9' has x of shape \(1, 783\)"),
        (spoilt(x=[image(510)]), r"writer 'f9': pixels run from 1\.0 to 2\.0, out of 0 to 1"),
        (spoilt(x=[image(float("nan"))]), "writer 'f9': pixels run from nan"),
        (spoilt(y=[62]), "writer 'f9': labels y are not whole numbers from 0 to 61"),
        (spoilt(y=[-1]), "writer 'f9': labels y are not whole"),
        (spoilt(y=[1.5]), "writer 'f9': labels y are not whole"),
        (document({"f1": ([1], [1])}), r"extra\.json: writer 'f1' is in all_data_1_niid_0_keep_0_train_9\.json, too"),
    ],
)
def test_a_damaged_file_is_named_with_its_writer(data_root, content, message):
    write_leaf(data_root / "femnist")
    write(data_root / "femnist/train/extra.json", content)
    with pytest.raises(FedlibError, match=message) as caught:
        vision.load("femnist")
    assert "train/extra.json" in str(caught.value)


def test_missing_parts_and_classes_are_named(data_root):
    write_leaf(data_root / "femnist", test=[])
    with pytest.raises(FedlibError, match=r"femnist/test: no \.json is in it"):
        vision.load("femnist")
    assert "femnist/test" in {line.name: line for line in vision.available()}["femnist"].problem
    write_leaf(data_root / "femnist", [{"f2": BEA}, {"f1": ([1] * 59, list(range(2, 61)))}])
    with pytest.raises(FedlibError, match="none of its 3 writers has a sample of 0, 1, z; take a larger part"):
        vision.load("femnist")
