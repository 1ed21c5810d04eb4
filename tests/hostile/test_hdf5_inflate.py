"""Chunks that inflate past what they declare, in every place that is read; honest ones of any size pass."""

from __future__ import annotations

import zlib

import h5py
import numpy as np
import pytest
from helpers.hdf5_fixtures import open_source
from wdsmix.converters.hdf5 import inflate
from wdsmix.converters.hdf5.faults import Hdf5Error
from wdsmix.converters.hdf5.safe import Budget, Tree
from wdsmix.converters.hdf5.strings import attribute


def bomb(file, name, shape, dtype, megabytes=600):
    """A deflated dataset of one chunk, whose bytes become far more than it."""
    stream = zlib.compressobj(9)
    raw = b"".join(stream.compress(bytes(1 << 20)) for _ in range(megabytes)) + stream.flush()
    made = file.create_dataset(name, shape=shape, dtype=dtype, chunks=shape, compression="gzip")
    made.id.write_direct_chunk((0,) * len(shape), raw)
    return len(raw)


def test_a_vector_that_inflates_past_its_size(tmp_path):
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        stored = bomb(file, "x", (100, 7), "f8")
    assert stored > inflate.LARGE_CHUNK
    with (
        Tree(tmp_path / "a.hdf5", Budget(ratio=10**9)) as tree,
        pytest.raises(Hdf5Error, match="inflates past its size") as e,
    ):
        tree.read_vector("/x")
    assert e.value.where == "/x"


def test_rows_of_honest_chunks_are_looked_at_once_and_as_they_are_read(tmp_path, monkeypatch):
    rows = np.random.default_rng(0).integers(0, 256, (6, 700_000), np.uint8)
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        file.create_dataset("x", data=rows, chunks=(2, 700_000), compression="gzip", shuffle=True, fletcher32=True)
    looked = []
    real = inflate.inflates_beyond

    def counting(dataset, place):
        looked.append(place[0])
        return real(dataset, place)

    monkeypatch.setattr("wdsmix.converters.hdf5.safe.inflates_beyond", counting)
    with Tree(tmp_path / "a.hdf5") as tree:
        dataset = tree.dataset("/x")
        tree.check_inflated("/x", dataset, 3, 4)
        tree.check_inflated("/x", dataset, 3, 6)
        tree.check_inflated("/x", dataset)
        np.testing.assert_array_equal(dataset[:], rows)
    assert looked == [2, 4, 0]


def test_compressed_twice_is_refused(tmp_path):
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plist.set_chunk((10,))
        plist.set_deflate(9)
        plist.set_deflate(9)
        space = h5py.h5s.create_simple((10,))
        made = h5py.h5d.create(file.id, b"x", h5py.h5t.NATIVE_DOUBLE, space, plist)
        made.write(h5py.h5s.ALL, h5py.h5s.ALL, np.arange(10.0))
    with Tree(tmp_path / "a.hdf5") as tree, pytest.raises(Hdf5Error, match="compressed twice"):
        tree.read_vector("/x")


def test_any_second_compression_is_refused(tmp_path):
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plist.set_chunk((10,))
        plist.set_filter(h5py.h5z.FILTER_LZF, h5py.h5z.FLAG_OPTIONAL)
        plist.set_deflate(9)
        space = h5py.h5s.create_simple((10,))
        made = h5py.h5d.create(file.id, b"x", h5py.h5t.NATIVE_DOUBLE, space, plist)
        made.write(h5py.h5s.ALL, h5py.h5s.ALL, np.arange(10.0))
        for name, options in (("a", {"scaleoffset": 0}), ("b", {"shuffle": True, "fletcher32": True})):
            file.create_dataset(name, data=np.arange(100), chunks=(10,), compression="gzip", **options)
    with Tree(tmp_path / "a.hdf5") as tree:
        with pytest.raises(Hdf5Error, match="compressed twice"):
            tree.read_vector("/x")
        for name in ("/a", "/b"):
            assert tree.read_vector(name).tolist() == list(range(100))


@pytest.mark.parametrize(
    ("code", "values", "raw", "size"),
    [
        (32001, (), b"\x02\x01\x21\x08" + (5000).to_bytes(4, "little"), 5000),
        (32004, (), (70000).to_bytes(8, "big") + bytes(9), 70000),
        (32008, (0, 4, 4, 0, 2), (1 << 33).to_bytes(8, "big"), 1 << 33),
        (32008, (0, 4, 4, 0, 0), b"\xff" * 16, 0),
        (32015, (), b"\x28\xb5\x2f\xfd\xa0" + (10**7).to_bytes(4, "little"), 10**7),  # single segment, four bytes
        (32015, (), b"\x28\xb5\x2f\xfd\x60" + (744).to_bytes(2, "little"), 1000),  # two bytes, less 256
        (32015, (), b"\x28\xb5\x2f\xfd\xc0\x58" + (1 << 40).to_bytes(8, "little"), 1 << 40),  # with a window
        (32015, (), b"\x28\xb5\x2f\xfd\x00\x58" + bytes(9), 0),  # not told
        (32015, (), b"nothing", 0),
        (32026, (), b"\xff" * 40, 0),
    ],
)
def test_what_chunks_of_plugins_say_of_themselves(code, values, raw, size):
    assert inflate.announced(code, values, raw) == size


def test_a_chunk_of_a_plugin_that_says_too_much(tmp_path, monkeypatch):
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        made = file.create_dataset("x", shape=(4, 2000), dtype="u1", chunks=(2, 2000), compression="lzf")
        made.id.write_direct_chunk((0, 0), (4000).to_bytes(8, "big") + bytes(5000))
        made.id.write_direct_chunk((2, 0), (1 << 40).to_bytes(8, "big") + bytes(5000))
    monkeypatch.setattr(inflate, "_LZ4", h5py.h5z.FILTER_LZF)
    monkeypatch.setattr(inflate, "_SIZES", {h5py.h5z.FILTER_LZF: (0, 8, "big")})
    with Tree(tmp_path / "a.hdf5") as tree:
        tree.check_inflated("/x", tree.dataset("/x"), 0, 2)
        with pytest.raises(Hdf5Error, match="inflates past its size"):
            tree.check_inflated("/x", tree.dataset("/x"))


def test_minari_rows_are_looked_at_before_they_are_sniffed(tmp_path):
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        group = file.create_group("episode_0")
        group["actions"], group["rewards"] = np.zeros((7, 2)), np.zeros(7)
        group["observations/pose"] = np.random.default_rng(0).normal(size=(8, 3))
        bomb(group, "observations/camera", (8, 3 << 20), "u1", megabytes=700)
    (ref,) = open_source(tmp_path).episodes()
    assert "inflates past its size" in ref.fault


def test_small_chunks_and_other_filters_need_no_look(tmp_path):
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        file.create_dataset("gzip", data=np.zeros((1000, 7)), chunks=(10, 7), compression="gzip")
        file.create_dataset("lzf", data=np.zeros((1000, 7)), chunks=(10, 7), compression="lzf")
        file["plain"] = np.zeros(3)
        for name in ("gzip", "lzf", "plain"):
            assert inflate.watched_chunks(file[name]) == []
    with Tree(tmp_path / "a.hdf5") as tree:
        assert tree.read_vector("/gzip").shape == (1000, 7)


@pytest.mark.parametrize(("size", "read"), [(1000, True), (17 << 20, False)])
def test_long_texts_in_attributes(tmp_path, size, read):
    with h5py.File(tmp_path / "a.hdf5", "w", libver="latest") as file:
        file.attrs.create("task", np.bytes_(b"a" * size))
    with h5py.File(tmp_path / "a.hdf5") as file:
        assert (attribute(file, "task") is not None) == read
