"""The log of a run: JSON lines, and the same numbers for TensorBoard where it is asked for.

``OUT/log.jsonl`` has a line every few steps (``kind: train``) and one for each evaluation (``kind: evaluation``). A run
that goes on from a checkpoint first drops the lines behind it, so that no step is there twice.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from wdsmix.errors import ConfigError, StorageError
from wdsmix.shards.files import write_atomic

__all__ = ["RunLog", "read_log"]


class RunLog:
    """Writes the log of a run.

    Args:
        out: The run's folder.
        step: Steps done before: lines of later ones are dropped.
        tensorboard: Whether TensorBoard gets the numbers as well, in ``OUT/tensorboard``.

    Raises:
        ConfigError: TensorBoard is asked for and not installed.
    """

    def __init__(self, out: Path, step: int, *, tensorboard: bool) -> None:
        self._board: Any = None
        if tensorboard:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError as error:
                raise ConfigError(
                    "TensorBoard is not installed", where="tensorboard", hint="pip install 'wdsmix[train]'"
                ) from error
            self._board = SummaryWriter(str(out / "tensorboard"), purge_step=step + 1)
        path = out / "log.jsonl"
        if path.exists():
            lines = [row for row in read_log(path) if row["step"] <= step]
            write_atomic(path, "".join(json.dumps(row) + "\n" for row in lines).encode())
        self._file = path.open("a", encoding="utf-8")

    def write(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        """Adds a line; numbers that are not finite become null.

        Raises:
            StorageError: the disk is full, say.
        """
        try:
            self._file.write(json.dumps({"kind": kind, "step": step, **_plain(values)}) + "\n")
            self._file.flush()
        except OSError as error:
            raise StorageError(f"can't write the log: {error}", path=self._file.name) from error
        if self._board is not None:
            for name, value in _scalars(values, kind):
                self._board.add_scalar(name, value, step)

    def close(self) -> None:
        """Writes out what is left."""
        self._file.close()
        if self._board is not None:
            self._board.close()


def read_log(path: Path) -> list[dict[str, Any]]:
    """The lines of a log; one that a crash cut short is left out."""
    rows = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict) and isinstance(row.get("step"), int):
            rows.append(row)
    return rows


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _scalars(values: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, float]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _scalars(value, f"{prefix}/{name}")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield f"{prefix}/{name}", float(value)
