"""Strings, slots, numbering and row maps: the small rules, by property and by table."""

from __future__ import annotations

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from wdsmix.converters.hdf5 import strings
from wdsmix.converters.hdf5.language import one_text
from wdsmix.converters.hdf5.measure import row_map
from wdsmix.converters.hdf5.sizes import raw_size, strip_padding
from wdsmix.converters.hdf5.slots import default_slots, match_camera
from wdsmix.converters.slots import natural_key


@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Zs", "Zl", "Zp"]), min_size=1))
def test_text_is_the_same_from_every_carrier(value):
    plain = strings.clean_text(value)
    encoded = value.encode()
    for carrier in (value, encoded, np.bytes_(encoded), [value], np.array([value], dtype=object), encoded + b"\0\0"):
        assert strings.text(carrier) == (plain or None, False)


@given(st.binary(max_size=200))
def test_any_bytes_decode(data):
    text, _ = strings.text(data)
    assert text is None or text == strings.clean_text(text)


def test_decoding_order():
    assert strings.decode("放下".encode()) == ("放下", False)
    assert strings.decode("放下".encode("gb18030")) == ("放下", False)
    assert strings.decode(b"caf\xe9\xff") == ("caf\xe9\xff", True)
    assert strings.text("e\u0301") == ("é", False)  # NFC
    for empty in (None, h5py.Empty("S1"), "", "  ", '""', b"\0\0", np.array([], dtype="S1"), 3):
        assert strings.text(empty)[0] is None


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_from_every_carrier(value):
    for carrier in (value, np.float64(value), np.array(value), np.array([value]), repr(value), repr(value).encode()):
        assert strings.number(carrier) == value


@pytest.mark.parametrize(
    "value",
    [None, "", "good", float("nan"), np.inf, [1, 2], np.array([1.0, 2.0]), b"\xff", pytest.param(10**400, id="huge")],
)
def test_what_is_no_number(value):
    assert strings.number(value) is None


def test_the_first_text_of_a_json_value():
    assert one_text([[], [" lift  it "], "other"]) == "lift it"
    assert one_text({"unseen": "no", "seen": ["yes"]}, ("seen", "unseen")) == "yes"
    assert one_text({"other": "no"}, ("seen",)) == ""
    deep: object = "too deep"
    for _ in range(900):
        deep = [deep]
    assert one_text([deep, "shallow"]) == "shallow"


@pytest.mark.parametrize(
    ("value", "found", "wrong"),
    [
        ('{"a": 1}', {"a": 1}, None),
        (b'[{"a": 1}]', {"a": 1}, None),
        (np.array(['{"a": 1}'], dtype=object), {"a": 1}, None),
        (None, {}, None),
        ("{'a': 1}", {}, "not valid JSON"),
        ("3", {}, "of a int"),
        ("[" * 100_000, {}, "not valid JSON"),
    ],
)
def test_json_objects(value, found, wrong):
    got, text = strings.json_object(value)
    assert got == found
    assert (text is None) if wrong is None else wrong in text


@given(st.lists(st.integers(0, 10**30), unique=True, min_size=2, max_size=20))
def test_natural_order_is_numeric(numbers):
    names = [f"demo_{number}" for number in numbers]
    assert sorted(names, key=natural_key) == [f"demo_{number}" for number in sorted(numbers)]


@given(st.lists(st.text(max_size=12), max_size=20, unique=True), st.randoms())
def test_natural_order_is_total(names, random):
    once = sorted(names, key=natural_key)
    random.shuffle(names)
    assert sorted(names, key=natural_key) == once


@pytest.mark.parametrize(
    ("keys", "slots"),
    [
        (["camera_02", "camera_10", "camera_01"], ["camera_01", "camera_02", "camera_10"]),
        (["robot0_eye_in_hand_image", "agentview_image"], ["agentview_image", "robot0_eye_in_hand_image"]),
        (
            ["cam_right_wrist", "cam_low", "cam_high", "cam_left_wrist"],
            ["cam_high", "cam_left_wrist", "cam_low", "cam_right_wrist"],
        ),
        (["wrist"], ["wrist"]),
        (["left_wrist", "top"], ["top", "left_wrist"]),
        (["b", "a"], ["a", "b"]),
        ([], []),
    ],
)
def test_default_slots(keys, slots):
    assert list(default_slots(keys).values()) == slots
    assert list(default_slots(keys)) == [f"cam{k}" for k in range(len(keys))]


@given(st.lists(st.text("abchfrontwrist_0123", min_size=1, max_size=8), unique=True))
def test_slots_hold_each_camera_once(keys):
    assert sorted(default_slots(keys).values()) == sorted(keys)


def test_cameras_by_any_name():
    paths = {"agentview_image": "/data/demo_0/obs/agentview_image", "camera_01": "/d/observation.images.camera_01"}
    assert match_camera("agentview_image", paths) == "agentview_image"
    assert match_camera("agentview", paths) == "agentview_image"
    assert match_camera("obs/agentview_image", paths) == "agentview_image"
    assert match_camera("observation.images.camera_01", paths) == "camera_01"
    assert match_camera("view", paths) is None


@given(st.integers(1, 500), st.integers(2, 500))
def test_resampled_rows(rows, frames):
    index = row_map(rows, frames, True)
    if rows == frames:
        assert index is None
        return
    assert index is not None
    assert len(index) == frames
    assert (np.diff(index) >= 0).all()
    assert index[0] == 0
    assert index[-1] == rows - 1
    exact = np.arange(frames) * (rows - 1) / (frames - 1)
    assert np.abs(index - exact).max() <= 0.5 + 1e-9


def test_padding():
    assert strip_padding(b"\xff\xd8\xffabc\xff\xd9" + bytes(9), "jpeg") == b"\xff\xd8\xffabc\xff\xd9"
    assert strip_padding(b"\xff\xd8\xffabc\xff\xd9junk\0", "jpeg") == b"\xff\xd8\xffabc\xff\xd9"
    assert strip_padding(b"\xff\xd8\xffabc\0\0", "jpeg") == b"\xff\xd8\xffabc"
    webp = b"RIFF" + (8).to_bytes(4, "little") + b"WEBPab\0\0"
    assert strip_padding(webp + bytes(5), "webp") == webp
    assert raw_size(640 * 480 * 3) == (640, 480)
    assert raw_size(641 * 480 * 3) is None
