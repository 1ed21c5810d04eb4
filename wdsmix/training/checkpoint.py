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
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import NoneType, UnionType
from typing import Any

import torch

from wdsmix.errors import ConfigError, DataError, StorageError
from wdsmix.shards.files import PARTIAL, publish, write_atomic

__all__ = [
    "FORMAT",
    "KINDS",
    "VERSION",
    "CheckpointFolder",
    "checked_checkpoint",
    "load_checkpoint",
    "load_plain",
    "misfits",
    "save_checkpoint",
]

FORMAT = "wdsmix-checkpoint"
VERSION = 1
KINDS: dict[str, type | UnionType] = {
    "format": str,
    "version": int,
    "step": int,
    "policy": dict,
    "model": dict,
    "optimizer": dict,
    "optimizer_names": list,
    "stepper": dict,
    "schedule": dict,
    "ema": dict | NoneType,
    "loader": dict,
    "normalization": dict,
    "embodiments": dict,
    "random": list,
    "train": dict,
    "world": int,
}
"""What a checkpoint holds, all of it -> of which type."""

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
    except (OSError, RuntimeError) as error:
        raise StorageError(f"can't write the checkpoint: {_system_error(error)}", path=path) from error
    finally:  # also where Ctrl-C cut it short; it has its final name otherwise
        _removed(partial)


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Reads a checkpoint onto the CPU; nothing in the file can run code.

    Args:
        path: The file, a run's folder, or its ``checkpoints`` folder: of a folder the latest one.

    Raises:
        ConfigError: no such file, or not a checkpoint of this version; names the keys that are missing.
        DataError: it is damaged, or holds what is not plain.
    """
    path = _found(path)
    return checked_checkpoint(load_plain(path), path)


def load_plain(path: Path) -> Any:
    """Reads a torch file of plain containers and tensors onto the CPU; nothing in it can run code.

    Raises:
        ConfigError: no such file.
        DataError: it is damaged, holds what is not plain, or would take more memory than it has bytes.
    """
    try:
        if zipfile.is_zipfile(path):  # torch compresses nothing: a record that unpacks to more is no work of torch
            with zipfile.ZipFile(path) as archive:
                unpacked, size = sum(info.file_size for info in archive.infolist()), path.stat().st_size
            if unpacked > size:
                raise ValueError(f"its {size} bytes unpack to {unpacked}")
        return torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise ConfigError("no such file", path=path) from error
    except Exception as error:  # zip, pickle, unpickling and runtime errors of every kind
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(f"can't be read as a checkpoint: {reason}", path=path) from error


def checked_checkpoint(content: Any, path: Path) -> dict[str, Any]:
    """What `load_plain` read, if it is a checkpoint of this version.

    Raises:
        ConfigError: it is not; names the keys that are missing.
        DataError: a key holds another type than it should.
    """
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ConfigError("not a checkpoint of wdsmix", path=path, expected=f"format: {FORMAT}")
    if content.get("version") != VERSION:
        raise ConfigError("made by another version", path=path, expected=VERSION, found=content.get("version"))
    missing = [key for key in KINDS if key not in content]
    if missing:
        raise ConfigError("keys are missing", path=path, expected=", ".join(KINDS), found=f"no {', '.join(missing)}")
    for key, kind in KINDS.items():
        if not isinstance(content[key], kind):
            name = getattr(kind, "__name__", str(kind))
            raise DataError("damaged", path=path, where=key, expected=name, found=type(content[key]).__name__)
    return content


@contextmanager
def misfits(path: Path | None = None) -> Iterator[None]:
    """Within it a checkpoint's content is put to use: what it trips over is told as the file's fault.

    Raises:
        DataError: parts of the checkpoint do not fit each other.
    """
    try:
        yield
    except (AttributeError, IndexError, KeyError, MemoryError, RuntimeError, TypeError, ValueError) as error:
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        raise DataError("parts of the checkpoint do not fit each other", path=path, found=reason) from error


def _found(path: Path) -> Path:
    if not path.is_dir():
        return path
    for folder in (path / "checkpoints", path):
        newest = CheckpointFolder(folder).latest()
        if newest is not None:
            return newest
    raise ConfigError("no checkpoint in the folder", path=path, hint="it is written by wdsmix train --out")


def _system_error(error: BaseException) -> BaseException:
    """What the system said, such as that the disk is full, behind the RuntimeError that torch makes of it."""
    found: BaseException | None = error
    while found is not None and not isinstance(found, OSError):
        found = found.__context__
    return found or error


def _removed(path: Path) -> None:
    with suppress(OSError):  # what can't be removed does no harm
        path.unlink()


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
        try:
            write_atomic(self._folder / LATEST, f"{path.name}\n".encode())
        except OSError as error:
            raise StorageError(f"can't write: {error}", path=self._folder / LATEST) from error
        older = sorted(other for other in self._folder.glob("step-*.pt") if other != path)
        # Beside the oldest, what a killed process left half written.
        for other in [*older[: max(len(older) + 1 - self._keep, 0)], *self._folder.glob(f"step-*.pt{PARTIAL}")]:
            _removed(other)
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
            raise DataError(
                "names a checkpoint that is not there",
                path=pointer,
                found=name,
                hint="write the name of another one in the folder into it to go on from that",
            )
        return path
