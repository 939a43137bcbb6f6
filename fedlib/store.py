"""The runs folder: what is kept of a run, written so that a kill or a full disk never leaves half a file.

runs/<key>/experiment.json   the description, and everything else that the key is the hash of
runs/<key>/history.csv       long and tidy: round, metric, moment, client, value; written last: it marks a finished run
runs/<key>/weights.safetensors     the server's and the clients' tensors after the last round
runs/<key>/checkpoint.safetensors  the same in the middle of a run, with the history so far
"""

from __future__ import annotations

import contextlib
import errno
import importlib.metadata
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from fedlib.checks import FedlibError
from fedlib.methods.method import Server
from fedlib.methods.names import named, under
from fedlib.metrics import Row
from fedlib.rounds import Snapshot


def write(path: Path, how: Callable[[Path], object]) -> None:
    """Write through `how` under a temporary name, then rename. Raises FedlibError when the disk is full.

    The temporary name is this process's own: two processes may write the same figure at once, and the last one wins.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        how(temporary)
        os.replace(temporary, path)
    except (OSError, SafetensorError) as error:
        full = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or "No space left" in str(error)
        reason = "no space left on the disk; free some and run again" if full else f"{error}"
        raise FedlibError(f"cannot write {path}: {reason} (what was saved before is kept)") from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    write(path, lambda to: to.write_text(text, encoding="utf-8"))


def save_snapshot(path: Path, now: Snapshot) -> None:
    """All tensors by name, with round and history as metadata: one file, one rename; equal runs give equal files.

    The metadata is one entry, because safetensors writes several in any order.
    """
    tensors = named("server", now.server.weights) | named("server memory", now.server.memory)
    for i, memory in enumerate(now.memories):
        tensors |= named(f"client {i}", memory)
    about = {"round": now.server.round, "clients": len(now.memories), "history": now.history}
    # Copies, because clients that never took part share their first tensors, which safetensors refuses.
    plain = {name: tensor.cpu().clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()}
    write(path, lambda to: save_file(plain, to, {"fedlib": json.dumps(about)}))


def load_snapshot(path: Path) -> Snapshot:
    """What save_snapshot wrote. Raises FedlibError for a damaged file."""
    try:
        with safe_open(path, "pt") as file:
            about = json.loads(file.metadata()["fedlib"])
            tensors = {name: _laid_out(file.get_tensor(name)) for name in file.keys()}  # noqa: SIM118  (no mapping)
    except (SafetensorError, OSError, TypeError, KeyError) as error:
        raise FedlibError(f"{path} is damaged ({error}); delete it and run again") from error

    memories = [under(f"client {i}", tensors) for i in range(about["clients"])]
    server = Server(under("server", tensors), about["round"], under("server memory", tensors))
    return Snapshot(server, memories, [Row(*row) for row in about["history"]])


def _laid_out(tensor: torch.Tensor) -> torch.Tensor:
    """A convolution's kernels as networks hold them, channels last: in another layout the last bits differ."""
    return tensor.contiguous(memory_format=torch.channels_last) if tensor.dim() == 4 else tensor


def save_history(path: Path, history: list[Row]) -> None:
    """history.csv; numbers keep all their digits."""
    frame = pd.DataFrame(history, columns=list(Row._fields))
    write(path, lambda to: frame.to_csv(to, index=False))


def load_history(path: Path) -> pd.DataFrame:
    """history.csv as a table. Raises FedlibError for a damaged file."""
    try:
        frame = pd.read_csv(path)
        if list(frame.columns) != list(Row._fields):
            raise ValueError(f"columns {list(frame.columns)}")
        return frame
    except (OSError, ValueError) as error:
        raise FedlibError(f"{path} is damaged ({error}); delete its folder and run again") from error


def load_parts(folder: Path) -> dict[str, Any] | None:
    """experiment.json of a run's folder, or None if there is none to read."""
    try:
        return json.loads((folder / "experiment.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def version() -> str | None:
    """Of fedlib, or None where it is not installed."""
    try:
        return importlib.metadata.version("fedlib")
    except importlib.metadata.PackageNotFoundError:
        return None
