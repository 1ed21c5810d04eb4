"""Converting HDF5 as a user would, and what lies in the tars, read without any code of the project."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np

from wdsmix.cli import main


def convert(source: Path, out: Path, *argv: str) -> int:
    return main(["convert", "hdf5", str(source), str(out), "--quiet", "--workers", "1", *argv])


def npy(data: bytes) -> np.ndarray:
    return np.load(io.BytesIO(data), allow_pickle=False)
