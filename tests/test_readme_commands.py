"""Every command of the README is run as it is written, and its example method is one of the package."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)


COMMANDS = [line for block in blocks("bash") for line in block.splitlines() if line]
MAKE = [command for command in COMMANDS if command.startswith("make ")]
CONDA = [command for command in COMMANDS if command.startswith("conda ")]
OTHERS = [command for command in COMMANDS if command not in MAKE + CONDA]


@pytest.mark.parametrize("command", MAKE)
def test_make_knows_the_target(command: str) -> None:
    """What they would run is printed; this test is itself run by one of them, and the notebooks by another."""
    done = subprocess.run([*command.split(), "-n"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "fedlib reproduce" in done.stdout or "pytest" in done.stdout or "jupyter lab" in done.stdout


def test_the_conda_command_names_what_environment_yml_makes() -> None:
    (command,) = CONDA
    file, name = re.fullmatch(r"conda env create -f (\S+) && conda activate (\S+)", command).groups()  # type: ignore[union-attr]
    assert yaml.safe_load((ROOT / file).read_text(encoding="utf-8"))["name"] == name


@pytest.mark.slow
@pytest.mark.parametrize("command", OTHERS)
def test_the_command_runs(command: str, tmp_path: Path) -> None:
    folders = {f"FEDLIB_{name}": str(tmp_path / name.lower()) for name in ("RUNS", "FIGURES", "DATA")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {k: v for k, v in os.environ.items() if k not in ("FEDLIB_PROJECT", "COV_CORE_SOURCE")}
    environment |= folders | {"PATH": path, "OMP_NUM_THREADS": "1"}
    command = command.replace(" out.ipynb", f" {tmp_path / 'out.ipynb'}")
    if "fedlib reproduce" in command:
        command += f" --out {tmp_path / 'out'}"
    done = subprocess.run(command, shell=True, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_example_method_is_the_file_itself() -> None:
    """What FedProx does is tested in tests/methods."""
    (source,) = blocks("python")
    assert source == (ROOT / "fedlib" / "methods" / "fedprox.py").read_text(encoding="utf-8")
    assert len(source.splitlines()) <= 40
