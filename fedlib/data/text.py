"""Texts as rows of token numbers: the tokeniser, the vocabulary, and AG News from its CSV files (FedFew spec, 3).

AG News: 127,600 pieces of news of four topics; Zhang, Zhao, LeCun: Character-level Convolutional Networks for Text
Classification, NIPS 2015. `ag_news` is the whole, a folder with train.csv and test.csv; `ag_news_7600` a pack of the
original test.csv alone, whose first 6,000 rows are train here and whose last 1,600 are test.

A text is its title and its description, in lower case. The spec says "regex tokeniser" and leaves open which: a word is
a run of letters a to z and digits, apostrophes between letters included; all other signs separate words and are left
out. It says what the vocabulary holds beside words, and leaves open where it comes from: the most frequent words of the
official train part, in alphabetical order where they are equally frequent. <eos> is counted, but stands in no text.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedlib.checks import FedlibError
from fedlib.data.pool import Pool

WORD = re.compile(r"[a-z0-9]+(?:'[a-z]+)*")
SPECIALS = ("<pad>", "<cls>", "<unk>", "<eos>")
PAD, CLS, UNK, EOS = range(4)

CLASSES = ("World", "Sports", "Business", "Sci/Tech")
VOCABULARY = 32_000
"""Words at most, SPECIALS among them."""
LENGTH = 200
PACK, PACK_TRAIN = 7_600, 6_000
"""Rows of the pack, and those of them that are train."""

SETS: Mapping[str, str] = {"ag_news": "ag_news_csv", "ag_news_7600": "ag_news_7600.csv"}
"""The sets read here: name -> the folder or file under the data root."""


def tokenise(text: str) -> list[str]:
    """The words of a text, in lower case."""
    return WORD.findall(text.lower())


def vocabulary(texts: Iterable[str], size: int) -> tuple[str, ...]:
    """SPECIALS, then the most frequent words of `texts`, `size` in all at most; a word's place is its number."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(tokenise(text))
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    return (*SPECIALS, *ranked[: size - len(SPECIALS)])


def encode(texts: Sequence[str], words: Sequence[str], length: int) -> np.ndarray:
    """int32 (N, length): <cls>, then each word's number, <unk> for unknown ones; cut, or padded with 0, to `length`."""
    number = {word: k for k, word in enumerate(words)}
    rows = np.full((len(texts), length), PAD, dtype=np.int32)
    for row, text in zip(rows, texts, strict=True):
        tokens = [CLS, *(number.get(word, UNK) for word in tokenise(text))][:length]
        row[: len(tokens)] = tokens
    return rows


class Texts(NamedTuple):
    """Texts with label and split (0 train, 1 test), one number each."""

    texts: Sequence[str]
    labels: Sequence[int]
    split: Sequence[int]


def to_pool(name: str, given: Texts, classes: tuple[str, ...], size: int, length: int) -> Pool:
    """The data set of these texts; the words of its train part are its vocabulary, `size` of them at most."""
    words = vocabulary((text for text, part in zip(given.texts, given.split, strict=True) if part == 0), size)
    labels, split = np.array(given.labels, dtype=np.int64), np.array(given.split, dtype=np.uint8)
    return Pool(name, encode(given.texts, words, length), labels, classes, split, labels, words=words)


def read(path: Path, name: str) -> Pool:
    """AG News at `path`, a folder or the pack, as the data set `name`. Raises FedlibError naming file and row."""
    given = _texts(path)
    try:
        return to_pool(name, given, CLASSES, VOCABULARY, LENGTH)
    except FedlibError as error:
        raise FedlibError(f"{path}: {error}") from error


def outline(path: Path) -> tuple[int, int]:
    """Numbers of texts and classes. Raises FedlibError as `read` does."""
    return len(_texts(path).labels), len(CLASSES)


def changed(path: Path) -> int:
    """When, in ns, one of the files last changed."""
    try:
        return max(file.stat().st_mtime_ns for file in _files(path))
    except OSError as error:
        raise _unreadable(Path(error.filename), error) from error


def missing(name: str, stem: str, root: Path) -> FedlibError:
    """The error for a set that is not under the data root."""
    rows = "rows of class (1 to 4), title and description, without a header"
    what, way = {
        "ag_news": (
            f"a folder with train.csv and test.csv, {rows}",
            "copy the folder ag_news_csv of AG News there, which collections of texts for classification have",
        ),
        "ag_news_7600": (f"{PACK:,} {rows}", "copy AG News' test.csv there under this name"),
    }[stem]
    return FedlibError(
        f"data set {name!r} is not here. Looked for {root / SETS[stem]} ({what}). To get it: {way}, or name another "
        "folder by --data or FEDLIB_DATA; data: topics is embedded, made up, and no replacement"
    )


def _files(path: Path) -> list[Path]:
    return [path / "train.csv", path / "test.csv"] if path.name == SETS["ag_news"] else [path]


def _texts(path: Path) -> Texts:
    parts = [list(_rows(file)) for file in _files(path)]
    if len(parts) == 1:
        rows = parts[0]
        if len(rows) != PACK:
            raise FedlibError(f"{path}: it has {len(rows):,} rows, not the {PACK:,} of AG News' test.csv; get it again")
        parts = [rows[:PACK_TRAIN], rows[PACK_TRAIN:]]
    labels, texts = zip(*(row for rows in parts for row in rows), strict=True)
    return Texts(texts, labels, [part for part, rows in enumerate(parts) for _ in rows])


def _rows(file: Path) -> Iterator[tuple[int, str]]:
    """(label, title and description) of each row."""
    numbers = {str(k + 1): k for k in range(len(CLASSES))}
    try:
        with file.open(encoding="utf-8", newline="") as lines:
            for count, row in enumerate(csv.reader(lines, strict=True), start=1):
                if len(row) != 3 or row[0] not in numbers:
                    raise FedlibError(
                        f"{file}: row {count} begins {','.join(row)[:40]!r} and has {len(row)} columns, not three: the "
                        "class (1 to 4), title, description; mend or remove it, a header too"
                    )
                yield numbers[row[0]], f"{row[1]} {row[2]}"
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise _unreadable(file, error) from error


def _unreadable(file: Path, error: Exception) -> FedlibError:
    return FedlibError(f"{file} cannot be read ({error}); get it again")
