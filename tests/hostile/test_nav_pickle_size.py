"""Small pickles that ask for much memory or time end early, with their reason."""

from __future__ import annotations

import pickle
import struct
import tracemalloc

import numpy as np
import pytest
from helpers.nav_fixtures import open_nav, write_gnm
from wdsmix.converters.nav import pickles
from wdsmix.converters.nav.pickles import load_plain, read_poses

from wdsmix.errors import DataError

MADE = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85C\x01b\x87R"


def raw_bytes(data: bytes) -> bytes:
    return b"B" + struct.pack("<I", len(data)) + data


def whole(data: bytes) -> bytes:
    """An integer of any size."""
    return b"\x8b" + struct.pack("<i", len(data)) + data


def array(shape: bytes, content: bytes, code: bytes = b"u1") -> bytes:
    kind = b"cnumpy\ndtype\nX\x02\x00\x00\x00" + code + b"\x85R"
    return MADE + b"(K\x01" + shape + kind + b"\x89" + content + b"tb"


def trajectory(position: bytes, yaw: bytes = b"]") -> bytes:
    return b"\x80\x04}X\x08\x00\x00\x00position" + position + b"sX\x03\x00\x00\x00yaw" + yaw + b"s."


def refused(tmp_path, raw: bytes) -> str:
    path = tmp_path / "traj_data.pkl"
    path.write_bytes(raw)
    with pytest.raises(DataError) as caught:
        read_poses(path)
    return str(caught.value)


@pytest.mark.parametrize("instruction", [b"]", b"}\x94", b"(", b"N", b"2", b"\x85"])
def test_more_instructions_than_a_trajectory_needs(tmp_path, monkeypatch, instruction):
    monkeypatch.setattr(pickles, "_MAX_STEPS", 10_000)
    assert "instructions" in refused(tmp_path, b"\x80\x04)" + instruction * 10_000 + b".")


def test_the_longest_form_of_a_trajectory_fits(tmp_path):
    count = 3000
    boxed = np.empty((count, 2), object)
    for place in np.ndindex(boxed.shape):
        boxed[place] = np.float64(place[0] + place[1] / 7)
    path = tmp_path / "traj_data.pkl"
    path.write_bytes(pickle.dumps({"position": boxed, "yaw": [np.array([k / 9.0]) for k in range(count)]}, 2))
    positions, yaws, _ = read_poses(path)
    np.testing.assert_array_equal(positions, boxed.astype(float))
    np.testing.assert_array_equal(yaws, np.arange(count) / 9.0)
    assert 60 * count < pickles._MAX_STEPS / 20  # 200,000 frames of it


def test_bytes_used_for_many_arrays_are_not_copied():
    shared = raw_bytes(bytes(4 << 20)) + b"q\x010"
    many = array(b"J" + struct.pack("<i", 4 << 20) + b"\x85", b"h\x01") * 200
    tracemalloc.start()
    load_plain(b"\x80\x04" + shared + b"(" + many + b"t.")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16 << 20


def test_an_array_of_more_numbers_than_poses(tmp_path, monkeypatch):
    monkeypatch.setattr(pickles, "_MAX_NUMBERS", 1000)
    position = array(b"M\xe9\x03K\x02\x86", raw_bytes(bytes(2002)))
    assert "too large" in refused(tmp_path, trajectory(position))


@pytest.mark.parametrize("which", ["position", "yaw"])
def test_a_large_array_as_every_row(tmp_path, which):
    large = array(b"J" + struct.pack("<i", 1 << 20) + b"\x85", raw_bytes(bytes(1 << 20))) + b"q\x010"
    rows, plain = b"](" + b"h\x01" * 1000 + b"e", b"](" + b"G?\xf0\x00\x00\x00\x00\x00\x00" * 2 + b"e"
    two = b"](" + plain * 1000 + b"e"
    position, yaw = (rows, plain) if which == "position" else (two, rows)
    assert f"{which} row 0: an array too large for one row" in refused(
        tmp_path, b"\x80\x04" + large + trajectory(position, yaw)[2:]
    )


def test_copies_by_calls_are_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(pickles, "_MAX_BYTES", 1 << 20)
    text = b"X" + struct.pack("<I", 1 << 18) + b"a" * (1 << 18) + b"q\x010c_codecs\nencode\nq\x020"
    calls = b"(" + b"h\x02h\x01X\x06\x00\x00\x00latin1\x86R" * 100 + b"t."
    assert "copies more" in refused(tmp_path, b"\x80\x04" + text + calls)


@pytest.mark.parametrize(
    "raw",
    [
        b"\x80\x04}" + whole(b"\x01" * 60_000) + b"K\x01s.",  # a key that no text can be made of
        b"\x80\x04" + array(b"(" + whole(b"\x11" * (1 << 20)) * 4 + b"t", b"C\x00") + b".",  # a product of hours
        b"L" + b"9" * (1 << 20) + b"L\n.",
        b"Np" + b"9" * (1 << 20) + b"\n.",
        trajectory(b"](](" + whole(b"\x01" * 60_000) + b"K\x01ee", b"](K\x01e"),
    ],
    ids=["key", "shape", "decimal", "memo", "value"],
)
def test_integers_of_thousands_of_digits(tmp_path, raw):
    assert refused(tmp_path, raw)


def test_keys_that_collide_are_few(tmp_path):
    collide = {k * ((1 << 61) - 1): 0 for k in range(-4, 5)}
    assert "position" in refused(tmp_path, pickle.dumps({"a": {k: v for k, v in collide.items() if abs(k) < 1 << 63}}))
    assert "no text" in refused(tmp_path, pickle.dumps({1 << 64: 0}))
    assert "more keys" in refused(tmp_path, pickle.dumps({str(k): 0 for k in range(10_001)}))


def test_such_a_trajectory_costs_only_itself(tmp_path):
    write_gnm(tmp_path / "set" / "good", 3)
    write_gnm(tmp_path / "set" / "bad", 3, seed=1)
    (tmp_path / "set" / "bad" / "traj_data.pkl").write_bytes(b"\x80\x04}" + whole(b"\x01" * 60_000) + b"K\x01s.")
    bad, good = open_nav(tmp_path / "set").episodes()
    assert "key" in bad.fault
    assert good.fault is None
