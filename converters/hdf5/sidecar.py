"""JSON files beside an HDF5 file: metadata that some recorders keep apart."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

from wdsmix.converters.hdf5.safe import Tree

__all__ = ["MAX_SIDECAR_BYTES", "read_beside"]

MAX_SIDECAR_BYTES = 64 << 20


def read_beside(tree: Tree, name: str) -> tuple[object, str | None]:
    """Reads a JSON file beside the open HDF5 file, once; which ones were looked for is kept in ``tree.beside``.

    Args:
        tree: The open file.
        name: Relative to its folder; made of the names of files, never of what a file holds.

    Returns:
        What it holds (None where it is absent or bad), and what is wrong with it, in words (None: nothing).
    """
    if name not in tree.beside:
        tree.beside[name] = _load(tree.path.parent, name)
    return tree.beside[name]  # type: ignore[return-value]


def _load(folder: Path, name: str) -> tuple[object, str | None]:
    path = folder / name
    lexical = Path(os.path.normpath(folder.resolve() / name))
    try:
        real = path.resolve(strict=True)
        if real != lexical and not real.is_relative_to(folder.resolve()):
            return None, f"{name} is a link that leads elsewhere; not read"
        status = real.stat()
        if not stat.S_ISREG(status.st_mode):
            return None, f"{name} is not a regular file"
        if status.st_size > MAX_SIDECAR_BYTES:
            return None, f"{name} is too large: {status.st_size} bytes, at most {MAX_SIDECAR_BYTES}"
        return json.loads(real.read_text(encoding="utf-8-sig")), None
    except FileNotFoundError:
        return None, None
    except OSError as error:
        return None, f"{name} can't be read: {error.strerror}"
    except (ValueError, RecursionError) as error:
        return None, f"{name} is not valid JSON ({' '.join(str(error).split())[:120]})"
