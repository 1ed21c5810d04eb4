"""Any set that can be written is read back the same, by us and by the standard library."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.sets import header
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from wdsmix.shards.finish import finish_set
from wdsmix.shards.reader import ShardSet
from wdsmix.shards.writer import Picture, ShardWriter

FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
NAMES = TEXT.map(lambda name: f"x{name}")  # never a reserved one


@st.composite
def layouts(draw: st.DrawFn) -> dict[str, Any]:
    names = draw(st.sets(st.sampled_from(["state", "action", "done", "text_emb", "q-pos"]), min_size=1))
    vectors = {name: draw(st.integers(1, 5)) for name in sorted(names)}
    cameras = {f"cam{k}": f"cam{k}.jpg" for k in range(draw(st.integers(0, 2)))}
    shards = []
    number = 0
    for _ in range(draw(st.integers(1, 2))):
        episodes = []
        for _ in range(draw(st.integers(0, 3))):
            number += draw(st.integers(1, 400_000))
            length = draw(st.integers(1, 4))
            tasks = draw(st.lists(TEXT, min_size=1, max_size=3))
            episodes.append(
                {
                    "episode": number,
                    "frames": [
                        {
                            slot: Picture(draw(st.binary(min_size=1, max_size=700)), (2, 2))
                            for slot in cameras
                            if draw(st.booleans())
                        }
                        for _ in range(length)
                    ],
                    "vectors": {
                        name: draw(hnp.arrays(np.float32, (length, width), elements=FLOATS))
                        for name, width in vectors.items()
                        if draw(st.integers(0, 3))
                    },
                    "timestamps": draw(hnp.arrays(np.float64, length, elements=st.floats(-1e9, 1e9))),
                    "tasks": tasks,
                    "task_index": draw(
                        st.none() | hnp.arrays(np.int32, length, elements=st.integers(0, len(tasks) - 1))
                    ),
                    "extras": draw(st.dictionaries(NAMES, JSON, max_size=3)),
                    "frame_extras": {
                        name: draw(st.lists(JSON, min_size=length, max_size=length))
                        for name in draw(st.sets(NAMES, max_size=2))
                    },
                    "source_file": draw(TEXT),
                    "source_episode": draw(TEXT),
                    "duration": draw(st.floats(0, 1e6)),
                }
            )
        shards.append(episodes)
    return {"vectors": vectors, "cameras": cameras, "shards": shards}


@settings(max_examples=40)
@given(layouts())
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, layout: dict[str, Any]) -> None:
    folder = tmp_path_factory.mktemp("set")
    vectors, cameras = layout["vectors"], layout["cameras"]
    receipts = []
    for k, episodes in enumerate(layout["shards"]):
        with ShardWriter(folder, f"train-{k:05d}", vectors=vectors, cameras=cameras, split="train") as writer:
            for fields in episodes:
                writer.write_episode(**fields)
            receipts.append(writer.close())
    finish_set(folder, receipts, header(vectors, cameras))
    opened = ShardSet(folder)
    flat = [(fields, t) for episodes in layout["shards"] for fields in episodes for t in range(len(fields["frames"]))]
    assert len(opened) == len(flat)
    for i, (fields, t) in enumerate(flat):
        e, k, row = opened.locate(i)
        shard = opened.shard(k)
        members = shard.members(row)
        assert opened.index.episode[e] == fields["episode"]
        chosen = 0 if fields["task_index"] is None else int(fields["task_index"][t])
        assert shard.tasks[int(shard.task[row])] == fields["tasks"][chosen]
        assert shard.timestamp[row] == fields["timestamps"][t]
        for slot, member in cameras.items():
            picture = fields["frames"][t].get(slot)
            assert (None if picture is None else picture.data) == (
                bytes(members[member]) if member in members else None
            )
        for name in vectors:
            given_rows = fields["vectors"].get(name)
            assert shard.present[name][row] == (given_rows is not None) == (f"{name}.npy" in members)
            if given_rows is not None:
                assert np.array_equal(shard.vectors[name][row], given_rows[t])
                assert bytes(members[f"{name}.npy"])[-given_rows[t].nbytes :] == given_rows[t].tobytes()
        facts = json.loads(bytes(members["json"]))
        for name, values in fields["frame_extras"].items():
            assert facts[name] == values[t]
        for name, value in fields["extras"].items():
            if name not in fields["frame_extras"] and value not in (None, "", [], {}):
                assert facts[name] == value
        assert opened.index.extras(e) == fields["extras"]
        assert opened.index.source(e) == (fields["source_file"], fields["source_episode"])
    _check_with_tarfile(folder, opened)


def _check_with_tarfile(folder: Path, opened: ShardSet) -> None:
    for k, name in enumerate(opened.manifest.shards):
        shard = opened.shard(k)
        ours = {
            f"{shard.key(row)}.{suffix}": bytes(data)
            for row in range(len(shard))
            for suffix, data in shard.members(row).items()
        }
        with tarfile.open(folder / f"{name}.tar") as tar:
            assert {info.name: tar.extractfile(info).read() for info in tar} == ours  # type: ignore[union-attr]
