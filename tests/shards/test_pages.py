"""Populating pages is a help that changes nothing: bytes stay, any range is fine, failures are silent."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np

from wdsmix.shards.pages import Pages


def test_every_range_of_a_mapped_file(tmp_path: Path) -> None:
    content = np.random.default_rng(0).integers(0, 256, 3 * 2**20 + 17, dtype=np.uint8)
    path = tmp_path / "x"
    path.write_bytes(content.tobytes())
    with path.open("rb") as file:
        data = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
    pages = Pages(data)
    for start, stop in ((0, 1), (2**20 - 1, 2**20 + 1), (5, len(data)), (len(data) - 1, len(data))):
        pages.touch(start, stop)
    assert np.array_equal(data, content)


def test_memory_that_is_no_map_and_no_bytes() -> None:
    Pages(np.zeros(100, np.uint8)[3:]).touch(0, 97)
    Pages(np.zeros(0, np.uint8)).touch(0, 1)


def test_a_file_cut_behind_its_map(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(bytes(2**21))
    with path.open("r+b") as file:
        data = np.frombuffer(mmap.mmap(file.fileno(), 0), np.uint8)
        file.truncate(4096)
    Pages(data).touch(0, 2**21)  # an error of the call, no SIGBUS
