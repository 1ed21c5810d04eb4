"""Hostile pickles: whatever they ask for, nothing of them runs."""

from __future__ import annotations

import contextlib
import os
import pickle
import struct

import numpy as np
import pytest
from helpers.nav_fixtures import open_nav, write_gnm
from hypothesis import given
from hypothesis import strategies as st
from wdsmix.converters.nav.pickles import load_plain, read_poses

from wdsmix.errors import DataError


class Runs:
    """Makes a file when it is unpickled."""

    def __init__(self, call, *arguments):
        self.call, self.arguments = call, arguments

    def __reduce__(self):
        return self.call, self.arguments


@pytest.fixture
def trap(tmp_path):
    path = tmp_path / "sprung"
    yield path
    assert not path.exists()


def nested(value):
    return {"position": [[0.0, 0.0]] * 3, "yaw": [0.0] * 3, "more": [value]}


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("place", ["bare", "nested", "in_position"])
def test_calls_are_refused_before_they_run(trap, tmp_path, protocol, place):
    for call, arguments in (
        (os.system, (f"touch {trap}",)),
        (exec, (f"open({str(trap)!r}, 'w')",)),
        (os.mkdir, (str(trap),)),
        (np.save, (str(trap), 1)),
        (getattr, ("text", "upper")),
        (np.load, ("x",)),
    ):
        bomb = Runs(call, *arguments)
        content = {"bare": bomb, "nested": nested(bomb), "in_position": {"position": bomb, "yaw": []}}[place]
        path = tmp_path / "traj_data.pkl"
        path.write_bytes(pickle.dumps(content, protocol))
        with pytest.raises(DataError, match="refused"):
            read_poses(path)
        assert not trap.exists()


@pytest.mark.parametrize(
    ("name", "raw"),
    [
        ("stack global", b"\x80\x04\x8c\x02os\x8c\x06system\x93."),
        ("dotted", b"\x80\x04\x8c\x05numpy\x8c\x0fndarray.tofile_\x93."),
        ("names from the memo", b"\x80\x04\x8c\x06system\x94\x8c\x02os\x940h\x01h\x00\x93."),
        ("a name that is no text", b"\x80\x04]K\x01\x93."),
        ("inst", b"(S'echo'\nios\nsystem\n."),
        ("obj", b"(cos\nsystem\nS'echo'\no."),
        ("newobj", b"\x80\x02cnumpy\nndarray\n)\x81."),
        ("extension registry", b"\x80\x02\x82\x01."),
        ("persistent", b"Pthing\n."),
        ("binary persistent", b"\x80\x02K\x01Q."),
        ("buffer", b"\x80\x05\x97."),
        ("another codec", b"\x80\x02c_codecs\nencode\nX\x01\x00\x00\x00aX\x03\x00\x00\x00hex\x86R."),
        ("state of a global", b"\x80\x02cnumpy\ndtype\n}b."),
        ("state of a list", b"\x80\x02]}b."),
        ("call of a list", b"\x80\x02])R."),
        ("sets", b"\x80\x04\x8f(K\x01\x90."),
        (
            "array of another class",
            b"\x80\x02cnumpy.core.multiarray\n_reconstruct\ncnumpy\ndtype\nK\x00\x85U\x01b\x87R.",
        ),
        ("numpy's other loader", b"\x80\x02cnumpy.core.numeric\n_frombuffer\n."),
        ("structured type", b"\x80\x02cnumpy\ndtype\nX\x02\x00\x00\x00V8\x85R."),
    ],
)
def test_every_other_way_to_an_object_is_refused(name, raw):
    with pytest.raises(DataError):
        load_plain(raw)


def array(shape: bytes, raw: bytes) -> bytes:
    """A float64 array whose shape and bytes are as given."""
    kind = b"cnumpy\ndtype\nX\x02\x00\x00\x00f8\x85R"
    made = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85C\x01b\x87R"
    return b"\x80\x03" + made + b"(K\x01" + shape + kind + b"\x89B" + struct.pack("<I", len(raw)) + raw + b"tb."


@pytest.mark.parametrize(
    "shape",
    [
        b"\x8a\x06" + (2**40).to_bytes(6, "little") + b"\x85",  # far more than the bytes
        b"K\x00\x8a\x06" + (2**40).to_bytes(6, "little") + b"\x86",  # none, of many
        b"J\xff\xff\xff\xff\x85",  # negative
        b"(K\x01K\x01K\x01K\x01K\x01K\x01t",  # deep
        b"]",
    ],
)
def test_shapes_that_bytes_do_not_fit_take_no_memory(shape):
    with pytest.raises(DataError):
        load_plain(array(shape, bytes(16)))


def test_a_shape_that_fits_is_read():
    assert load_plain(array(b"K\x02\x85", np.array([1.5, -2.0]).tobytes())).rows() == [1.5, -2.0]


def test_shared_references_do_not_grow():
    bomb: object = [0.0]
    for _ in range(200):
        bomb = [bomb, bomb]
    for content in ({"position": bomb, "yaw": bomb}, {"position": [bomb, bomb], "yaw": [bomb]}):
        path_data = pickle.dumps(content, 4)
        loaded = load_plain(path_data)
        assert isinstance(loaded, dict)
    key: object = (0.0,)
    for _ in range(200):
        key = (key, key)
    raw = b"\x80\x04}" + pickle.dumps(key, 4)[2:-1] + b"K\x01s."
    with pytest.raises(DataError, match="key"):
        load_plain(raw)


def test_a_hostile_trajectory_costs_only_itself(tmp_path, trap):
    write_gnm(tmp_path / "set" / "good")
    write_gnm(tmp_path / "set" / "bad", seed=1)
    (tmp_path / "set" / "bad" / "traj_data.pkl").write_bytes(pickle.dumps(nested(Runs(os.mkdir, str(trap)))))
    refs = {ref.id: ref for ref in open_nav(tmp_path / "set").episodes()}
    assert "refused" in refs["bad"].fault
    assert "posix.mkdir" in refs["bad"].fault
    assert refs["good"].fault is None


@given(st.binary(max_size=200))
def test_any_bytes_end_in_a_value_or_a_data_error(raw):
    with contextlib.suppress(DataError):
        load_plain(raw)


@given(st.integers(0, 4), st.data())
def test_flipped_bytes_never_end_in_anything_else(protocol, data):
    content = {"position": np.arange(8.0).reshape(4, 2), "yaw": [np.float64(1.0), 2.0, 3.0, 4.0]}
    raw = bytearray(pickle.dumps(content, protocol))
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(DataError):
        load_plain(bytes(raw))
