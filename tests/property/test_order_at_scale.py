"""Resuming deep in a run over 10^8 frames in 10^6 episodes: arithmetic and the index alone, in bounded memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

CODE = """
import json, resource, sys, time
import numpy as np
from wdsmix.mixture.order import MixtureOrder, SourceFrames

def rss():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

base = rss()
sources = []
for number, episodes in enumerate((600_000, 300_000, 100_000)):
    frames = np.full(episodes, 100, dtype=np.int64)
    frames[::2] += 20
    frames[1::2] -= 20
    lengths = frames * 60_000
    shards = (np.arange(episodes) // 200).astype(np.int32)
    ends = np.cumsum(lengths)
    first = np.searchsorted(shards, shards, side="left")
    offsets = (ends - lengths) - (ends - lengths)[first]
    sources.append(SourceFrames(name=f"s{number}", weight=(0.5, 0.3, 0.2)[number], frames=frames, lengths=lengths,
                                offsets=offsets, shards=shards, digest=str(number)))
state = json.loads(sys.argv[1]) if len(sys.argv) > 1 else None
began = time.perf_counter()
order = MixtureOrder(sources, seed=1, streams=8, window=8192, block_bytes=2 * 2**20)
if state is not None:
    order.load_state_dict(state)
step = order.step(256)
took = time.perf_counter() - began
again = order.step(256)
sys.stdout.write(json.dumps({
    "frames": int(sum(int(s.frames.sum()) for s in sources)), "took": took, "memory": rss() - base, "peak": rss(),
    "step": step.step, "rows": step.row.tolist(), "draws": step.draw.tolist(), "source": step.source.tolist(),
    "state": order.state_dict(), "again": again.step}))
"""


def run(*arguments: str) -> dict:
    done = subprocess.run([sys.executable, "-c", CODE, *arguments], check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def test_resuming_at_step_a_million() -> None:
    state = run()["state"]
    samples = 256 * 10**6
    counts = {"s0": samples // 2, "s1": samples * 3 // 10, "s2": samples // 5}
    state.update(steps=10**6, samples=samples, counts=counts)
    found = run(json.dumps(state))
    assert found["frames"] == 10**8
    assert (found["step"], found["again"]) == (10**6, 10**6 + 1)
    assert found["memory"] < 500e6
    assert found["took"] < 20  # about half a second on a quiet machine
    for name, size in (("s0", 60), ("s1", 30), ("s2", 10)):
        s = int(name[1])
        drawn = [d for d, source in zip(found["draws"], found["source"], strict=True) if source == s]
        assert sorted(drawn) == list(range(counts[name], counts[name] + len(drawn)))
        rows = [r for r, source in zip(found["rows"], found["source"], strict=True) if source == s]
        assert len(set(rows)) == len(rows)
        assert max(rows) < size * 10**6
    again = run(json.dumps(state))
    assert again["rows"] == found["rows"]


WRITE = """
import sys
from pathlib import Path
import numpy as np
import pyarrow as pa
from wdsmix.manifest import INDEX_SCHEMA
from wdsmix.shards.index import table_bytes

episodes = 1_000_000
frames = np.full(episodes, 100, dtype=np.int64)
shards = np.arange(episodes) // 200
first = np.arange(episodes) % 200 * 100
columns = {"episode": np.arange(episodes), "first_row": first, "frames": frames, "offset": first * 60_000,
           "length": frames * 60_000, "duration": frames / 10}
names = pa.array([f"train-{n:05d}" for n in range(5000)])
columns["shard"] = pa.DictionaryArray.from_arrays(pa.array(shards.astype(np.int32)), names).cast(pa.string())
one = pa.array(np.zeros(episodes, np.int32))
for name, text in (("split", "train"), ("source_file", "a/b.hdf5"), ("extras", "{}")):
    columns[name] = pa.DictionaryArray.from_arrays(one, pa.array([text])).cast(pa.string())
columns["source_episode"] = pa.array(np.arange(episodes)).cast(pa.string())
tasks = pa.DictionaryArray.from_arrays(one, pa.array(["pick"])).cast(pa.string())
columns["tasks"] = pa.ListArray.from_arrays(pa.array(np.arange(episodes + 1, dtype=np.int32)), tasks)
table = pa.table([pa.array(columns[f.name]).cast(f.type) for f in INDEX_SCHEMA], schema=INDEX_SCHEMA)
Path(sys.argv[1]).write_bytes(table_bytes(table))
"""

OPEN = """
import json, resource, sys, time
from pathlib import Path
import pyarrow as pa
from wdsmix.mixture.order import MixtureOrder, SourceFrames
from wdsmix.shards.index import EpisodeIndex

def rss():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

base = rss()
began = time.perf_counter()
path = Path(sys.argv[1])
index = EpisodeIndex(path, pa.memory_map(str(path)).read_buffer(), [f"train-{n:05d}" for n in range(5000)])
source = SourceFrames(name="s", weight=1.0, frames=index.frames, lengths=index.length, offsets=index.offset,
                      shards=index.shard, digest="d")
order = MixtureOrder([source], seed=1, streams=8, window=8192, block_bytes=2 * 2**20)
state = order.state_dict()
state.update(steps=10**6, samples=256 * 10**6, counts={"s": 256 * 10**6})
order.load_state_dict(state)
rows = order.step(256).row
sys.stdout.write(json.dumps({"episodes": len(index), "took": time.perf_counter() - began, "memory": rss() - base,
                             "rows": len(set(rows.tolist())), "top": int(rows.max())}))
"""


def test_opening_an_index_of_a_million_episodes(tmp_path: Path) -> None:
    path = str(tmp_path / "index.parquet")
    subprocess.run([sys.executable, "-c", WRITE, path], check=True)
    done = subprocess.run([sys.executable, "-c", OPEN, path], check=True, capture_output=True, text=True)
    found = json.loads(done.stdout)
    assert found["episodes"] == 10**6
    assert found["memory"] < 500e6
    assert found["took"] < 30  # about a second on a quiet machine
    assert found["rows"] == 256
    assert found["top"] < 10**8
