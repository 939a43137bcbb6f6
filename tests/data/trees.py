"""Pictures written for a test, and where real ones are, for the tests of sets that lie in folders."""

import os
from pathlib import Path

import pytest
from PIL import Image

REAL = os.environ.get("FEDLIB_DATA")
needs_samples = pytest.mark.skipif(
    not (REAL and (Path(REAL) / "raw-samples").is_dir()), reason="FEDLIB_DATA has no folder raw-samples"
)


def paint(path, colour=(1, 2, 3), size=(20, 30)):
    """A picture of one colour, size (width, height)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)
    return path
