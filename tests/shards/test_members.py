"""What is made for many frames at once has the bytes of what is made one by one."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wdsmix.errors import DataError
from wdsmix.shards.content import FrameTexts
from wdsmix.shards.members import HeaderTemplate, VectorMembers
from wdsmix.shards.tario import padding, ustar_header
from wdsmix.shards.writer import npy_header

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


def one_by_one(episode: int, frame: int, vectors: dict[str, np.ndarray], row: int) -> bytes:
    pieces = b""
    for name, values in vectors.items():
        file = io.BytesIO()
        np.save(file, values[row])
        data = file.getvalue()
        pieces += ustar_header(f"{episode:06d}_{frame:06d}.{name}.npy", len(data)) + data + padding(len(data))
    return pieces


@pytest.mark.parametrize("episode", [0, 7, 123456, 12345678])
def test_vectors_of_many_frames(episode):
    rng = np.random.default_rng(episode)
    vectors = {
        name: rng.standard_normal((700, width)).astype(np.float32) for name, width in (("state", 7), ("x_y", 130))
    }
    made = VectorMembers(episode, vectors, {"state": npy_header(7), "x_y": npy_header(130)})
    for frame in [*range(0, 700, 3), 255, 256, 699, 0]:
        assert bytes(made.of(frame)) == one_by_one(episode, frame, vectors, frame)
    assert bytes(VectorMembers(1, {}, {}).of(0)) == b""


def test_numbers_that_outgrow_six_digits():
    values = np.broadcast_to(np.float32([1, 2]), (1_000_300, 2))
    made = VectorMembers(3, {"state": values}, {"state": npy_header(2)})
    for frame in (999_998, 999_999, 1_000_000, 1_000_299):
        assert bytes(made.of(frame)) == one_by_one(3, frame, {"state": values}, frame)


@given(stem=st.text("0123456789_", min_size=1, max_size=60), sizes=st.lists(st.integers(0, 8**11 - 1), max_size=4))
def test_headers(stem, sizes):
    made = HeaderTemplate(".cam0.jpg")
    for size in [*sizes, *sizes]:
        assert made.of(stem.encode(), sum(stem.encode()), size) == ustar_header(f"{stem}.cam0.jpg", size)
    with pytest.raises(ValueError, match="ustar"):
        made.of(b"1" * 99, 99 * 49, 5)
    with pytest.raises(ValueError, match="ustar"):
        made.of(b"1", 49, 8**11)


NAMES = st.text(min_size=1, max_size=8).filter(lambda name: name not in ("episode", "frame", "timestamp", "task"))


@given(
    base=st.dictionaries(NAMES, JSON, max_size=4),
    columns=st.dictionaries(NAMES, st.tuples(JSON, JSON), max_size=4),
    time=st.floats(allow_nan=False, allow_infinity=False),
    task=st.text(max_size=9),
)
def test_texts_are_what_json_gives(base, columns, time, task):
    try:
        made = FrameTexts(base, columns, 2)
    except DataError:
        return  # what UTF-8 can't hold
    for frame in (0, 1):
        fields = {name: value for name, value in base.items() if value is not None and value not in ("", [], {})}
        fields |= {"episode": 5, "frame": frame, "timestamp": time, "task": task}
        fields |= {name: values[frame] for name, values in columns.items()}
        wanted = json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        try:
            data = wanted.encode()
        except UnicodeEncodeError:
            with pytest.raises(DataError, match="not JSON"):
                made.of(5, frame, time, task)
            continue
        assert made.of(5, frame, time, task) == data


def test_facts_that_are_none():
    with pytest.raises(DataError, match=r"a fact's name is not a text \(found 3\)"):
        FrameTexts({3: 1}, {}, 1)
    made = FrameTexts({}, {"x": [float("nan")]}, 1)
    with pytest.raises(DataError, match=r"frame 0: a fact is not JSON"):
        made.of(0, 0, 0.0, "")
