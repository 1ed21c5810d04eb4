"""The bytes of a shard are part of the contract: the same episodes give the same tar for ever.

A change here breaks the on-disk format or byte reproducibility: label it so in CHANGELOG.md. Only the tar is pinned by
hash: the bytes of parquet and Arrow files name the version of the library that wrote them.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
from helpers.sets import header, toy_set

from wdsmix.manifest import canonical_json
from wdsmix.shards.finish import finish_set
from wdsmix.shards.writer import Picture, ShardReceipt, ShardWriter

TAR_SHA256 = "57d856d470f6958df98c3fdf0c72945593aa4b1a0da19aafe729adec3d203c58"
STATS_SHA256 = "0f4c3b854e97aeb8f6805f307c4646d78d69e6e3e1942236dd586fd08b74f5ee"


def golden_shard(folder: Path) -> ShardReceipt:
    """Two episodes whose bytes come from no encoder and no random generator."""
    with ShardWriter(
        folder,
        "train-00000",
        vectors={"state": 3, "action": 2, "done": 1, "text_emb": 4},
        cameras={"cam1": "cam1.jpg", "cam0": "cam0.jpg"},
        split="train",
    ) as writer:
        for episode, length in ((0, 3), (2, 2)):
            grid = np.arange(length * 3, dtype=np.float32).reshape(length, 3)
            writer.write_episode(
                episode=episode,
                frames=[
                    {
                        "cam0": Picture(bytes([t]) * (500 + 20 * t), (4, 3)),
                        **({"cam1": Picture(b"\xff\xd8" + bytes(510), (8, 6), True)} if episode == 0 else {}),
                    }
                    for t in range(length)
                ],
                vectors={"state": grid / 7, "action": -grid[:, :2], "done": (grid[:, :1] > 5).astype(np.float32)},
                timestamps=np.arange(length) / 30,
                tasks=["pick", "放置"],
                task_index=np.array([t % 2 for t in range(length)], np.int32),
                extras={"task_zh": "拿起", "score": 0.5, "note": ""},
                frame_extras={"gripper_known": [t == 0 for t in range(length)]},
                source_file="chunk0.hdf5",
                source_episode=f"demo_{episode}",
                duration=length / 30,
            )
        return writer.close()


def test_tar_bytes(tmp_path: Path) -> None:
    golden_shard(tmp_path)
    assert hashlib.sha256((tmp_path / "train-00000.tar").read_bytes()).hexdigest() == TAR_SHA256


def test_stats_bytes(tmp_path: Path) -> None:
    fields = header({"state": 3, "action": 2, "done": 1, "text_emb": 4})
    finish_set(tmp_path, [golden_shard(tmp_path)], fields)
    assert hashlib.sha256((tmp_path / "stats.json").read_bytes()).hexdigest() == STATS_SHA256


def test_every_file_of_a_set_is_the_same_twice(tmp_path: Path) -> None:
    first, second = toy_set(tmp_path / "a"), toy_set(tmp_path / "b")
    assert canonical_json(first) == canonical_json(second)
    names = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert names == sorted(path.name for path in (tmp_path / "b").iterdir())
    for name in names:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes(), name
