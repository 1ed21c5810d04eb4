"""Checkpoints: files that hold all of a run, appear whole or not at all, and load without running code.

A run's checkpoints lie in ``OUT/checkpoints/step-00001000.pt``; ``OUT/checkpoints/latest`` names the newest one. A file
is what `torch.save` makes of plain containers and tensors::

    format, version    what it is
    step               steps done
    policy             the policy's configuration
    model              its state dict
    optimizer          AdamW's state dict;  optimizer_names: the parameters' names, group by group
    stepper            gradient scaler and skipped steps
    schedule           the learning rate's: peak, warmup, total, floor
    ema                averaged weights and the number of updates, or None
    loader             the mixture's position, a few hundred bytes, the same for all ranks
    normalization      source -> vector -> centre, factor, live, bound (`statistics`)
    embodiments        robot -> id; only ever grows
    random             for each rank, the states of torch's generators and the augmentation's
    train              the trainer's configuration;  world: ranks that saved it
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from wdsmix.errors import ConfigError, DataError, StorageError
from wdsmix.shards.files import PARTIAL, publish, write_atomic

__all__ = ["FORMAT", "KEYS", "VERSION", "CheckpointFolder", "load_checkpoint", "save_checkpoint"]

FORMAT = "wdsmix-checkpoint"
VERSION = 1
KEYS = (
    "format",
    "version",
    "step",
    "policy",
    "model",
    "optimizer",
    "optimizer_names",
    "stepper",
    "schedule",
    "ema",
    "loader",
    "normalization",
    "embodiments",
    "random",
    "train",
    "world",
)
"""What a checkpoint holds, all of it."""

LATEST = "latest"


def save_checkpoint(path: Path, content: Mapping[str, Any]) -> None:
    """Writes a checkpoint; ``path`` holds all of it or what was there before.

    Raises:
        StorageError: it can't be written.
    """
    partial = path.with_name(path.name + PARTIAL)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as file:
            torch.save({**content, "format": FORMAT, "version": VERSION}, file)
            file.flush()
            os.fsync(file.fileno())
        publish(partial, path)
    except (OSError, RuntimeError) as error:  # torch reports a full disk as a RuntimeError
        partial.unlink(missing_ok=True)
        raise StorageError(f"can't write the checkpoint: {error}", path=path) from error


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Reads a checkpoint onto the CPU; nothing in the file can run code.

    Args:
        path: The file, a run's folder, or its ``checkpoints`` folder: of a folder the latest one.

    Raises:
        ConfigError: no such file, or not a checkpoint of this version; names the keys that are missing.
        DataError: it is damaged, or holds what is not plain.
    """
    path = _found(path)
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise ConfigError("no such checkpoint", path=path) from error
    except Exception as error:  # zip, pickle, unpickling and runtime errors of every kind
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(f"can't be read as a checkpoint: {reason}", path=path) from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ConfigError("not a checkpoint of wdsmix", path=path, expected=f"format: {FORMAT}")
    if content.get("version") != VERSION:
        raise ConfigError("made by another version", path=path, expected=VERSION, found=content.get("version"))
    missing = [key for key in KEYS if key not in content]
    if missing:
        raise ConfigError("keys are missing", path=path, expected=", ".join(KEYS), found=f"no {', '.join(missing)}")
    return content


def _found(path: Path) -> Path:
    if not path.is_dir():
        return path
    for folder in (path / "checkpoints", path):
        newest = CheckpointFolder(folder).latest()
        if newest is not None:
            return newest
    raise ConfigError("no checkpoint in the folder", path=path, hint="it is written by wdsmix train --out")


class CheckpointFolder:
    """The checkpoints of a run.

    Args:
        folder: Where they lie; made on the first save.
        keep: How many stay, the newest ones.
    """

    def __init__(self, folder: Path, keep: int = 3) -> None:
        self._folder, self._keep = folder, keep

    def save(self, step: int, content: Mapping[str, Any]) -> Path:
        """Writes the checkpoint of a step, points ``latest`` to it, and removes the oldest ones beyond ``keep``."""
        path = self._folder / f"step-{step:08d}.pt"
        save_checkpoint(path, content)
        write_atomic(self._folder / LATEST, f"{path.name}\n".encode())
        older = sorted(other for other in self._folder.glob("step-*.pt") if other != path)
        for other in older[: max(len(older) + 1 - self._keep, 0)]:
            other.unlink()
        return path

    def latest(self) -> Path | None:
        """The checkpoint that ``latest`` names; None where there is none.

        Raises:
            DataError: it names what is not there.
        """
        pointer = self._folder / LATEST
        if not pointer.is_file():
            return None
        name = pointer.read_text(encoding="utf-8", errors="replace").strip()
        path = self._folder / Path(name).name
        if not path.is_file():
            raise DataError("names a checkpoint that is not there", path=pointer, found=name)
        return path
