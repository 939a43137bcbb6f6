"""CheXpert on a tree written here: what is in which distribution, what is refused, and the released generator's bugs.

Image i is grey, of level 5 i: JPEG keeps plain grey to within a level or two.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from fedlib.checks import FedlibError
from fedlib.data import chexpert, vision
from fedlib.data.chexpert import FOLDER, OBSERVATIONS
from fedlib.data.drifting import make_drifting
from fedlib.data.federation import Samples

COUNT = 48
VALUES, MEANING = ("1.0", "0.0", "-1.0", ""), (1, 0, 1, 0)
KINDS = [(view, age, sex) for view in ("Frontal", "Lateral") for age in ("59", "60") for sex in ("Female", "Male")]


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDLIB_DATA", str(tmp_path))
    return tmp_path


def line(i: int) -> dict[str, str]:
    """Row i is of kind i mod 8; its observation u has the value (i + u) mod 4. The last one's sex is unknown."""
    view, age, sex = KINDS[i % 8]
    path = f"{FOLDER}/train/patient{i // 2:05}/study1/view{i % 2}_{view.lower()}.jpg"
    about = {"Path": path, "Sex": sex if i < COUNT else "Unknown", "Age": age, "Frontal/Lateral": view, "AP/PA": ""}
    return about | {name: VALUES[(i + u) % 4] for u, name in enumerate(OBSERVATIONS)}


def write(root: Path, change: Callable[[pd.DataFrame], pd.DataFrame | None] = lambda table: None) -> Path:
    """The set under the root; `change` alters the table before it is written."""
    table = pd.DataFrame([line(i) for i in range(COUNT + 1)])
    for i, path in enumerate(table["Path"]):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (12, 9), 5 * i).save(root / path)
    changed = change(table)
    (table if changed is None else changed).to_csv(root / FOLDER / "train.csv", index=False)
    return root / FOLDER


def marks_of(images: np.ndarray) -> list[int]:
    """Which rows these images are of."""
    return np.rint(images[:, 0, 0, 0] / 5).astype(int).tolist()


def marks(samples: Samples) -> list[int]:
    return marks_of(samples.images.numpy())


@pytest.mark.parametrize(
    "name, size, names",
    [
        ("chexpert", 24, ("frontal", "lateral")),
        ("chexpert:2", 24, ("frontal", "lateral")),
        ("chexpert:4", 12, tuple(f"{v}, {a}" for v in ("frontal", "lateral") for a in ("under 60", "60 and older"))),
    ],
)
def test_distributions_are_of_view_then_age(root: Path, name: str, size: int, names: tuple[str, ...]) -> None:
    write(root)
    pool = vision.load(name)
    assert pool.name == name and pool.domain_names == names
    assert pool.domains is not None and np.bincount(pool.domains).tolist() == [size] * len(names)
    assert pool.domains.tolist() == [i % 8 * len(names) // 8 for i in range(COUNT)]


def test_eight_distributions_images_and_labels_are_those_of_the_table(root: Path) -> None:
    """Uncertain is 1, missing is 0; the line of unknown sex is left out; pictures are grey, in all three planes."""
    write(root)
    pool = vision.load("chexpert:8")
    assert pool.domain_names[::7] == ("frontal, under 60, female", "lateral, 60 and older, male")
    assert pool.domains is not None and pool.domains.tolist() == [i % 8 for i in range(COUNT)]
    assert pool.classes == OBSERVATIONS and pool.images.shape == (COUNT, 3, 64, 64) and not pool.split.any()
    expected = [[MEANING[(i + u) % 4] for u in range(14)] for i in range(COUNT)]
    assert pool.labels.tolist() == expected and not pool.partition_labels.any()
    levels = 5 * np.arange(COUNT)[:, None, None, None]
    assert np.abs(pool.images.astype(int) - levels).max() <= 2
    assert (pool.images == pool.images[:, :1]).all()


def test_it_is_listed_and_counted_label_by_label(root: Path) -> None:
    write(root)
    (listed,) = (one for one in vision.available() if one.name == "chexpert")
    assert listed[1:] == (str(root / FOLDER), COUNT, 14, "")
    counted = vision.check("chexpert:2")
    assert counted.loc["Edema", "train"] == COUNT // 2 and not counted["test"].any()
    frontal = sum(MEANING[(i + 5) % 4] for i in range(COUNT) if i % 8 < 4)
    assert counted.loc["Edema", "frontal train"] == frontal


def test_only_the_first_lines_are_read(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(root, lambda table: table.iloc[::-1])
    monkeypatch.setattr(chexpert, "ROWS", 11)
    pool = vision.load("chexpert:2")
    assert len(pool) == 10  # the first of the eleven is of unknown sex
    assert marks_of(pool.images) == list(range(47, 37, -1))


@pytest.mark.parametrize("prefix", ["", "elsewhere/", f"{FOLDER}/"])
def test_images_are_found_whatever_their_paths_begin_with(root: Path, prefix: str) -> None:
    write(root, lambda table: table.assign(Path=[prefix + path.partition("/")[2] for path in table["Path"]]))
    assert marks_of(vision.load("chexpert:4").images) == list(range(COUNT))


def with_value(column: str, value: str) -> Callable[[pd.DataFrame], pd.DataFrame]:
    """The table with another value in its third line, line 4 of the file."""
    return lambda table: table.assign(**{column: [*table[column][:2], value, *table[column][3:]]})


@pytest.mark.parametrize(
    "change, message",
    [
        (with_value("Sex", "F"), r"train\.csv, line 4: Sex 'F' is not Female, Male or Unknown; mend the line"),
        (with_value("Age", "old"), r"line 4: Age 'old' is not a whole number of years"),
        (with_value("Frontal/Lateral", "Above"), r"line 4: Frontal/Lateral 'Above' is not Frontal or Lateral"),
        (with_value("Edema", "2.0"), r"line 4: Edema '2\.0' is not 1, 0, -1 or empty"),
        (with_value("Path", line(0)["Path"]), r"line 4: Path '.*' is not new: an earlier line has it, too"),
        (with_value("Path", f"{FOLDER}/train/x.jpg"), r"line 4: Path '.*train/x\.jpg' is neither in .* nor in .*"),
        (lambda table: table.drop(columns=["Age", "Edema"]), r"train\.csv: column 'Age', 'Edema' is missing; take"),
        (lambda table: table[:0], r"train\.csv: no line of a known sex is in it; take CheXpert's own"),
    ],
)
def test_a_wrong_table_is_refused_by_line_and_value(
    root: Path, change: Callable[[pd.DataFrame], pd.DataFrame], message: str
) -> None:
    write(root, change)
    with pytest.raises(FedlibError, match=message):
        vision.load("chexpert:8")


def test_what_is_not_there_is_said_and_where_to_get_it(root: Path) -> None:
    with pytest.raises(FedlibError, match=rf"'chexpert:4' is not here.*{FOLDER}: train\.csv and .*CheXpert by Irvin"):
        vision.load("chexpert:4")
    with pytest.raises(FedlibError, match="'chexpert:3': suffix: '3' is unknown; valid: 2, 4, 8"):
        vision.load("chexpert:3")
    folder = write(root)
    (folder / "train" / "patient00000" / "study1" / "view0_frontal.jpg").write_bytes(b"no picture")
    with pytest.raises(FedlibError, match=r"view0_frontal\.jpg: cannot be read as an image"):
        vision.load("chexpert:4")
    (folder / "train.csv").unlink()
    with pytest.raises(FedlibError, match=r"train\.csv is missing; the layout is that of CheXpert-v1\.0-small\.zip"):
        vision.load("chexpert:4")


def test_under_drift_no_image_is_shared_between_clients_or_train_and_test(root: Path) -> None:
    """The released generator gives all clients of a distribution the same first images, and tests on training ones."""
    write(root)
    pool, drift = vision.load("chexpert:2"), {"name": "domains", "phases": 2, "phase_samples": 8}
    fed = make_drifting(pool, 4, drift, rounds=4, seed=0, test_share=0.4)
    assert fed.at(1) is not fed.at(4) and not len(fed.visitors[0].few)
    trained: list[set[int]] = [set() for _ in range(4)]
    tested = [set(marks(visitor.samples)) for visitor in fed.visitors]
    for now in (fed.at(1), fed.at(4)):
        held = [client.distribution for client in now.clients]
        assert len(set(held)) < 4  # two clients of one distribution
        for k, client in enumerate(now.clients):
            own, test = marks(client.train) + marks(client.validation), marks(client.test)
            assert len(own) == 8 and test and {i % 8 // 4 for i in own + test} == {client.domain} == {held[k]}
            assert client.train.labels.tolist() == pool.labels[marks(client.train)].tolist()
            trained[k] |= set(own)
            tested[k] |= set(test)
    assert not set.union(*trained) & set.union(*tested)
    assert len(set.union(*trained)) == sum(map(len, trained)) and len(set.union(*tested)) == sum(map(len, tested))
