"""wdsmix itself."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import DataLoader

from benchmarks.settings import BATCH, Contender
from benchmarks.store import CAMERAS, PAD, SOURCES, Store, StoreFrames
from wdsmix import MixtureDataset, __version__
from wdsmix.shards.finish import finish_set
from wdsmix.shards.writer import ShardWriter

__all__ = ["batches", "loader", "mixture", "view", "write", "write_set"]

_EPISODES_A_SHARD = 5
_FPS = 30.0


def write(store: Store, folder: Path) -> None:
    """One shard set a source, in ``folder/<source>``."""
    for frames in store.sources:
        write_set(frames, folder / frames.source.name)


def write_set(frames: StoreFrames, folder: Path, *, episodes_a_shard: int = _EPISODES_A_SHARD, times: int = 1) -> None:
    """One source as a shard set.

    Args:
        frames: Of the source.
        folder: Must not be there yet.
        episodes_a_shard: At most.
        times: So often the whole source.
    """
    folder.mkdir()
    vectors = {"state": frames.source.width, "action": frames.source.width}
    receipts = []
    episodes = len(frames.lengths)
    for number, first in enumerate(range(0, times * episodes, episodes_a_shard)):
        with ShardWriter(
            folder,
            f"train-{number:05d}",
            vectors=vectors,
            cameras={camera: f"{camera}.jpg" for camera in CAMERAS},
            split="train",
        ) as writer:
            for episode in range(first, min(first + episodes_a_shard, times * episodes)):
                start, length = int(frames.first[episode % episodes]), int(frames.lengths[episode % episodes])
                writer.write_episode(
                    episode=episode,
                    frames=(
                        {camera: frames.jpeg(row, slot).tobytes() for slot, camera in enumerate(CAMERAS)}
                        for row in range(start, start + length)
                    ),
                    vectors={
                        "state": frames.state[start : start + length],
                        "action": frames.action[start : start + length],
                    },
                    timestamps=np.arange(length) / _FPS,
                    tasks=[frames.task(start)],
                    source_file="benchmark",
                    source_episode=str(episode),
                    duration=length / _FPS,
                )
            receipts.append(writer.close())
    finish_set(folder, receipts, _header(frames))


def _header(frames: StoreFrames) -> dict[str, Any]:
    return {
        "name": frames.source.name,
        "kind": "benchmark",
        "embodiment": frames.source.name,
        "hz": _FPS,
        "source_fps": _FPS,
        "cameras": {
            camera: {"key": camera, "member": f"{camera}.jpg", "kind": "rgb", "encoding": "jpeg"} for camera in CAMERAS
        },
        "vectors": {name: {"width": frames.source.width} for name in ("state", "action")},
        "converter": "benchmarks",
        "converter_version": __version__,
        "arguments": {},
        "libraries": {},
        "source_fingerprint": "0" * 64,
        "plan_digest": "0" * 64,
    }


def batches(contender: Contender, folder: Path) -> Iterable[dict[str, Any]]:
    """The batches as a user gets them."""
    return loader(contender, mixture(contender, str(folder)))


def mixture(contender: Contender, place: str) -> dict[str, Any]:
    """The mixture's configuration; the sets lie in folder or URL ``place``."""
    return {
        "seed": contender.seed,
        "embodiments": {source.name: number for number, source in enumerate(SOURCES)},
        "sources": [
            {"name": source.name, "shards": f"{place}/{source.name}", "weight": source.weight} for source in SOURCES
        ],
        "sample": {
            "cameras": list(CAMERAS),
            "history": contender.history,
            "action_chunk": contender.chunk,
            "pad_to": {"state": PAD, "action": PAD},
        },
    }


def loader(contender: Contender, config: dict[str, Any]) -> Iterable[dict[str, Any]]:
    """Batches of a mixture."""
    dataset = MixtureDataset(config, batch_size=BATCH, num_threads=contender.threads)
    if contender.workers is None:
        return dataset
    return DataLoader(dataset, batch_size=None, num_workers=contender.workers)


def view(batch: dict[str, Any], store: Store) -> dict[str, Any]:
    """The batch as NumPy arrays, rows of the store instead of episodes and frames, pixels as they lie in memory."""
    source = batch["source_id"].numpy()
    out = {name: value.numpy() for name, value in batch.items() if hasattr(value, "numpy")}
    out["images"] = batch["images"].permute(0, 1, 2, 4, 5, 3).numpy()
    first = [store.sources[number].first[episode] for number, episode in zip(source, out["episode"], strict=True)]
    out["row"] = np.array(first) + out["frame"]
    return {**out, "source": source, "task": batch["task"]}
