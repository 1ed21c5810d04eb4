"""Texts and rows of variable length that share their bytes: few bytes of a file, many of memory."""

from __future__ import annotations

import re
import struct

import h5py
import numpy as np
import pytest
from helpers.hdf5_fixtures import open_source, read_all, rgb, write_platform
from wdsmix.converters.hdf5 import scan
from wdsmix.converters.hdf5.safe import Budget, Tree

_COUNT, _LONG = 3000, 1 << 17


def shared_texts(path, where):
    """Makes an array of short texts point at one long one, as no library writes it."""
    with h5py.File(path, "a") as file:
        short = np.array(["x"] * _COUNT, object)
        if where == "attribute":
            file["data/episode_001"].attrs.create("task", short, dtype=h5py.string_dtype())
        else:
            del file["data/episode_001"].attrs["task"]
            file["data/episode_001"].create_dataset("task", data=short, dtype=h5py.string_dtype())
        file["data"].attrs.create("long", "y" * _LONG, dtype=h5py.string_dtype())
    data = path.read_bytes()
    long = next(
        data[found.start() : found.start() + 16]
        for found in re.finditer(re.escape(struct.pack("<I", _LONG)), data)
        if 0 < struct.unpack_from("<Q", data, found.start() + 4)[0] < len(data)
        and data[(at := struct.unpack_from("<Q", data, found.start() + 4)[0]) : at + 4] == b"GCOL"
    )
    run = re.search(rb"(?:\x01\0\0\0.{8}.{2}\0\0){%d}" % _COUNT, data, re.DOTALL)
    assert run is not None
    path.write_bytes(data[: run.start()] + long * _COUNT + data[run.end() :])


@pytest.mark.parametrize("where", ["attribute", "dataset"])
def test_texts_that_share_their_bytes_cost_their_file_alone(tmp_path, monkeypatch, where):
    write_platform(tmp_path / "chunk_001.hdf5")
    write_platform(tmp_path / "chunk_002.hdf5")
    shared_texts(tmp_path / "chunk_002.hdf5", where)
    monkeypatch.setattr(scan, "_MEMORY", 128 << 20)
    refs = open_source(tmp_path, isolate=True).episodes()
    faults = {ref.file: ref.fault for ref in refs if ref.fault is not None}
    assert list(faults) == ["chunk_002.hdf5"]
    assert "too much memory" in faults["chunk_002.hdf5"]


def test_rows_of_variable_length_are_read_few_at_a_time_where_a_file_is_large(tmp_path):
    written = write_platform(tmp_path / "a.hdf5", episodes=[1])["episode_001"]
    size = (tmp_path / "a.hdf5").stat().st_size
    for budget, rows in ((Budget(), 64), (Budget(shared_bytes=5 * size), 5), (Budget(shared_bytes=1), 1)):
        with Tree(tmp_path / "a.hdf5", budget) as tree:
            assert tree.at_once(64) == rows
    source = open_source(tmp_path)
    (ref,) = source.episodes()
    shown = read_all(source, ref)[1]["cam0"]
    np.testing.assert_allclose(rgb(shown[7]), written["pixels:camera_01"][7], atol=40)
