"""Texts: the tokeniser, the vocabulary, token numbers, and AG News from its CSV files."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import numpy as np
import pytest

from fedlib.__main__ import main
from fedlib.checks import FedlibError
from fedlib.data import text, vision
from fedlib.data.pool import Pool

REAL = os.environ.get("FEDLIB_DATA")
needs_real_data = pytest.mark.skipif(not REAL, reason="FEDLIB_DATA does not name a folder of real packs")


@pytest.fixture(autouse=True)
def own_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDLIB_DATA", str(tmp_path))


TRAIN = [
    ("3", "Stocks up", "Stocks rise, rise and rise"),
    ("2", "Cup", 'The "old" cup'),
    ("1", "Talks", "Old talks\\and talks"),
    ("4", "Chips", "New chips"),
]
TEST = [("2", "Final", "The cup final"), ("4", "Probe", "Up")]


def write(file: Path, rows: list[tuple[str, ...]]) -> Path:
    """Every column quoted, as in the original."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", encoding="utf-8", newline="") as lines:
        csv.writer(lines, quoting=csv.QUOTE_ALL).writerows(rows)
    return file


def write_folder(root: Path, train: list = TRAIN, test: list = TEST) -> None:
    write(root / "ag_news_csv/train.csv", train)
    write(root / "ag_news_csv/test.csv", test)


def said(pool: Pool, index: int) -> str:
    """The text of a row, its padding left out."""
    return " ".join(pool.words[token] for token in pool.images[index] if token)


def test_words_are_runs_of_letters_and_digits():
    line = "Ky. firm's second\\team: 'It isn't' #36;10m (AP) - U.S. caf\xe9"
    expected = "ky firm's second team it isn't 36 10m ap u s caf"
    assert text.tokenise(line) == expected.split()
    assert text.tokenise(" -- ") == []


def test_the_vocabulary_is_the_most_frequent_words_and_ties_are_alphabetical():
    texts = ["b a c", "c B d", "c a e"]  # c 3, a 2, b 2, d 1, e 1
    assert text.vocabulary(texts, 100) == ("<pad>", "<cls>", "<unk>", "<eos>", "c", "a", "b", "d", "e")
    assert text.vocabulary(texts, 8)[4:] == ("c", "a", "b", "d")


def test_a_text_begins_with_cls_and_is_padded_or_cut():
    words = ("<pad>", "<cls>", "<unk>", "<eos>", "c", "a")
    rows = text.encode(["A c", "", "c x c c c a"], words, 5)
    assert rows.tolist() == [[1, 5, 4, 0, 0], [1, 0, 0, 0, 0], [1, 4, 2, 4, 4]]
    assert rows.dtype == np.int32


def test_ag_news_is_read_from_its_folder(tmp_path: Path):
    """Title and description in one; the words of train alone are known; the class index starts at 1."""
    write_folder(tmp_path)
    pool = vision.load("ag_news")
    assert pool.images.shape == (6, 200) and pool.shape == (4 + 10, 200)
    assert pool.words[4:9] == ("rise", "talks", "and", "chips", "cup")  # 3, 3 and 2 times
    assert pool.classes == ("World", "Sports", "Business", "Sci/Tech")
    assert pool.labels.tolist() == [2, 1, 0, 3, 1, 3] and pool.split.tolist() == [0, 0, 0, 0, 1, 1]
    assert said(pool, 0) == "<cls> stocks up stocks rise rise and rise"
    assert said(pool, 2) == "<cls> talks old talks and talks"
    assert said(pool, 4) == "<cls> <unk> the cup <unk>" and said(pool, 5) == "<cls> <unk> up"


def test_a_text_of_more_than_200_tokens_is_cut(tmp_path: Path):
    write_folder(tmp_path, [*TRAIN, ("1", "long", " ".join(["word"] * 300))])
    assert (vision.load("ag_news").images[4] > 0).all()


def test_the_vocabulary_has_at_most_32000_words(tmp_path: Path):
    write_folder(tmp_path, [*TRAIN, *(("1", str(k), " ".join(f"w{k}x{j}" for j in range(330))) for k in range(100))])
    pool = vision.load("ag_news")
    assert pool.shape == (32_000, 200) and pool.images.max() < 32_000


def rows_of_pack() -> list[tuple[str, ...]]:
    return [(str(k % 4 + 1), f"row {k}", "early" if k < 6_000 else "late") for k in range(7_600)]


def test_the_packs_first_6000_rows_are_train(tmp_path: Path):
    write(tmp_path / "ag_news_7600.csv", rows_of_pack())
    pool = vision.load("ag_news_7600")
    assert np.flatnonzero(pool.split == 1).tolist() == list(range(6_000, 7_600))
    assert said(pool, 5_999) == "<cls> row 5999 early" and said(pool, 6_000) == "<cls> row <unk> <unk>"


def test_a_changed_file_is_read_anew(tmp_path: Path):
    write_folder(tmp_path)
    first = vision.load("ag_news")
    assert vision.load("ag_news") is first
    file = write(tmp_path / "ag_news_csv/test.csv", TEST[:1])
    os.utime(file, ns=(2**62, 2**62))
    assert len(vision.load("ag_news")) == 5


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (("5", "a", "b"), "test.csv: row 3 begins '5,a,b' and has 3 columns, not three: the class (1 to 4)"),
        (("Class Index", "Title", "Description"), "row 3 begins 'Class Index,Title,Description'"),
        (("1", "a"), "row 3 begins '1,a' and has 2 columns"),
        ((), "row 3 begins '' and has 0 columns"),
    ],
)
def test_a_wrong_row_is_named(tmp_path: Path, row: tuple[str, ...], message: str):
    write_folder(tmp_path, test=[*TEST, row])
    with pytest.raises(FedlibError) as caught:
        vision.load("ag_news")
    assert message in str(caught.value) and "mend or remove it" in str(caught.value)


def test_a_damaged_or_incomplete_set_is_named(tmp_path: Path):
    write_folder(tmp_path)
    (tmp_path / "ag_news_csv/test.csv").write_bytes(b'"1","caf\xe9","x"\n')
    with pytest.raises(FedlibError, match=r"test.csv cannot be read \('utf-8' codec.*get it again"):
        vision.load("ag_news")
    (tmp_path / "ag_news_csv/test.csv").write_text('"1","a","b')
    with pytest.raises(FedlibError, match=r"test.csv cannot be read \(unexpected end of data"):
        vision.load("ag_news")
    (tmp_path / "ag_news_csv/test.csv").unlink()
    with pytest.raises(FedlibError, match=r"test.csv cannot be read .*No such file.*get it again"):
        vision.load("ag_news")
    write_folder(tmp_path, train=TRAIN[:1], test=TEST[:1])
    with pytest.raises(FedlibError, match=r"ag_news_csv: .*no sample of class 'World', 'Sci/Tech'"):
        vision.load("ag_news")
    write(tmp_path / "ag_news_7600.csv", rows_of_pack()[:-1])
    with pytest.raises(FedlibError, match=r"7600.csv: it has 7,599 rows, not the 7,600 of AG News' test.csv"):
        vision.load("ag_news_7600")


def test_a_missing_set_says_where_it_looked_and_how_to_get_it(tmp_path: Path):
    for name, place, way in (
        (
            "ag_news",
            "ag_news_csv (a folder with train.csv and test.csv",
            "copy the folder ag_news_csv of AG News there",
        ),
        ("ag_news_7600", "ag_news_7600.csv (7,600 rows of class", "copy AG News' test.csv there under this name"),
    ):
        with pytest.raises(FedlibError) as caught:
            vision.load(name)
        for part in (f"data set {name!r} is not here", f"{tmp_path / place}", way, "--data or FEDLIB_DATA"):
            assert part in str(caught.value)
    with pytest.raises(FedlibError, match="did you mean 'ag_news'"):
        vision.load("ag_newz")


def test_texts_have_no_coarse_labels(tmp_path: Path):
    write_folder(tmp_path)
    with pytest.raises(FedlibError, match="ag_news_csv has no coarse labels; take 'ag_news'"):
        vision.load("ag_news:coarse")


def test_texts_are_listed_and_checked_as_such(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    write_folder(tmp_path)
    write(tmp_path / "ag_news_7600.csv", rows_of_pack()[:9])
    lines = {line.name: line for line in vision.available()}
    assert lines["ag_news"][1:] == (str(tmp_path / "ag_news_csv"), 6, 4, "")
    assert lines["ag_news_7600"].images is None and "it has 9 rows" in lines["ag_news_7600"].problem
    assert "ag_news_csv" not in lines
    assert vision.check("ag_news").to_dict("list") == {"train": [1, 1, 1, 1], "test": [0, 1, 0, 1]}
    assert main(["data", "list"]) == 0
    shown = capsys.readouterr().out
    assert "       6 texts      4 classes" in shown and "   1,797 images    10 classes" in shown
    assert main(["data", "check", "ag_news"]) == 0
    assert "ag_news: good, 4 train and 2 test texts in 4 classes" in capsys.readouterr().out


@needs_real_data
def test_the_real_pack_has_its_documented_counts():
    table = vision.check("ag_news_7600", REAL)
    assert table["train"].tolist() == [1519, 1493, 1470, 1518]
    assert (table["train"] + table["test"]).tolist() == [1900] * 4
    pool = vision.load("ag_news_7600", REAL)
    assert pool.words[4:8] == ("the", "to", "a", "of")
    assert said(pool, 0).startswith("<cls> fears for t n pension after talks unions representing workers at turner")


@needs_real_data
def test_the_real_layout_is_read():
    table = vision.check("ag_news", Path(REAL or "") / "raw-samples")
    assert table["train"].sum() == 200 and table["test"].sum() == 80
