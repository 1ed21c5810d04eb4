from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from wdsmix.mixture.windows import clamped_window

EPISODES = st.lists(st.integers(1, 12), min_size=1, max_size=8)
OFFSETS = st.lists(st.integers(-15, 15), min_size=1, max_size=6, unique=True).map(sorted)


@given(lengths=EPISODES, offsets=OFFSETS)
def test_equal_to_a_map_style_dataset_on_every_frame(lengths: list[int], offsets: list[int]) -> None:
    frame = np.concatenate([np.arange(n) for n in lengths]).astype(np.int64)
    length = np.repeat(lengths, lengths).astype(np.int64)
    inside, pad = clamped_window(frame, length, np.asarray(offsets, dtype=np.int64))
    for b, (t, n) in enumerate(zip(frame.tolist(), length.tolist(), strict=True)):
        episode = list(range(n))
        for j, offset in enumerate(offsets):
            wanted = t + offset
            assert inside[b, j] == episode[0 if wanted < 0 else -1 if wanted >= n else wanted]
            assert pad[b, j] == (wanted not in episode)


@given(lengths=EPISODES, chunk=st.integers(1, 20))
def test_an_action_chunk_is_padded_only_at_its_end(lengths: list[int], chunk: int) -> None:
    frame = np.concatenate([np.arange(n) for n in lengths]).astype(np.int64)
    length = np.repeat(lengths, lengths).astype(np.int64)
    inside, pad = clamped_window(frame, length, np.arange(chunk, dtype=np.int64))
    assert inside.shape == pad.shape == (sum(lengths), chunk)
    assert not pad[:, 0].any()
    assert (np.diff(pad.astype(int), axis=1) >= 0).all()
    assert (pad.sum(axis=1) == np.maximum(0, chunk - (length - frame))).all()
    assert (inside[pad] == np.broadcast_to(length[:, None] - 1, pad.shape)[pad]).all()
