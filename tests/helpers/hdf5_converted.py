"""Converting HDF5 as a user would, and what lies in the tars, read without any code of the project."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import numpy as np

from wdsmix.cli import main


def convert(source: Path, out: Path, *argv: str) -> int:
    return main(["convert", "hdf5", str(source), str(out), "--quiet", "--workers", "1", *argv])


def samples_of(folder: Path) -> dict[str, dict[str, bytes]]:
    """Sample key -> member suffix -> bytes, by tarfile."""
    found: dict[str, dict[str, bytes]] = {}
    for path in sorted(folder.glob("*.tar")):
        with tarfile.open(path) as archive:
            for member in archive:
                key, _, suffix = member.name.partition(".")
                found.setdefault(key, {})[suffix] = archive.extractfile(member).read()
    return found


def npy(data: bytes) -> np.ndarray:
    return np.load(io.BytesIO(data), allow_pickle=False)
