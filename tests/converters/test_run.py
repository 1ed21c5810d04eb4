"""The runner in this process (its workers are real): what is written, what is dropped, what is refused."""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
import threading
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from helpers import fake_source
from helpers.fake_source import FakeEpisode, FakeSource, many, picture, vector
from wdsmix.converters import run as runner
from wdsmix.converters import workfolder
from wdsmix.converters.base import ConvertOptions
from wdsmix.converters.plan import Planning
from wdsmix.converters.run import convert, run
from wdsmix.converters.workfolder import Locks, WorkFolder

from wdsmix.episode import Camera, Episode, EpisodeRef
from wdsmix.errors import ConfigError, ConflictError, DataError, WdsmixError
from wdsmix.imaging import decode_rgb, encode_jpeg
from wdsmix.shards.writer import ShardWriter


def hashes(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def members(folder: Path) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for path in sorted(folder.glob("*.tar")):
        with tarfile.open(path) as tar:
            for info in tar:
                assert info.name not in found
                found[info.name] = tar.extractfile(info).read()
    return found


def test_every_member_is_what_the_source_holds(tmp_path):
    made = many(5)
    made[2] = replace(made[2], reward=True, cameras=("cam1",))
    source = FakeSource(made, stamped=True, kinds={"action": ("delta", "delta", "delta", "absolute")})
    manifest = convert(source, tmp_path / "set", ConvertOptions(hz=15, image_size=24, frames_per_shard=15, workers=2))
    there = members(tmp_path / "set")
    count = 0
    for number, episode in enumerate(made):
        rows = range(0, episode.frames, 2)
        state = vector(number, episode.frames, 7, "state")
        action = vector(number, episode.frames, 4, "action")
        for stored, row in enumerate(rows):
            key = f"{number:06d}_{stored:06d}"
            count += 1
            assert (np.load(io.BytesIO(there.pop(f"{key}.state.npy"))) == state[row]).all()
            made_action = np.load(io.BytesIO(there.pop(f"{key}.action.npy")))
            window = action[row : row + 2].astype(np.float64).sum(0).astype(np.float32)
            assert (made_action == [*window[:3], action[row, 3]]).all()
            for slot in episode.cameras:
                want = picture(number, row, slot).astype(int)
                pixels = decode_rgb(there.pop(f"{key}.{slot}.jpg"))
                assert pixels.shape == (24, 24, 3)
                assert abs(pixels.mean() - want.mean()) < 2
            if episode.reward:
                assert np.load(io.BytesIO(there.pop(f"{key}.reward.npy"))) == sum(
                    range(row, min(row + 2, episode.frames))
                )
                done = np.load(io.BytesIO(there.pop(f"{key}.done.npy")))
                assert done == float(episode.frames - 2 in (row, row + 1))
            assert json.loads(there.pop(f"{key}.json")) == {
                "episode": number,
                "frame": stored,
                "timestamp": row / 30.0 + 5,
                "task": "then this" if row >= episode.frames // 2 else f"task {number % 2}",
                "score": number,
                "phase": f"p{row}",
            }
    assert not there
    assert manifest.counts.frames == count
    assert manifest.hz == 15
    assert manifest.source_fps == 30
    assert manifest.vectors["reward"].frames == len(range(0, made[2].frames, 2))
    assert not (tmp_path / "set" / ".work").exists()
    table = pq.read_table(tmp_path / "set" / "index.parquet").to_pydict()
    assert table["episode"] == [0, 1, 2, 3, 4]
    assert table["duration"] == pytest.approx([len(range(0, e.frames, 2)) / 15 for e in made])


def test_jpeg_passes_through_to_the_byte(tmp_path):
    manifest = convert(FakeSource(many(2)), tmp_path / "set")
    there = members(tmp_path / "set")
    assert there["000001_000004.cam0.jpg"] == encode_jpeg(picture(1, 4, "cam0"), 90, "420")
    assert there["000001_000004.cam1.jpg"] == encode_jpeg(picture(1, 4, "cam1"), 92, "444")
    assert manifest.cameras["cam0"].passthrough == manifest.counts.frames
    assert manifest.cameras["cam1"].passthrough == 0


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> Path:
    """A set whose episode 1 was a plainly bad one."""
    out = tmp_path_factory.mktemp("plain") / "set"
    convert(FakeSource(many(4, e1="bad")), out)
    return out


@pytest.mark.parametrize(
    ("does", "reason"),
    [
        ("bad", "obs: its bytes are bad (expected 1, found 2)"),
        ("key", "KeyError: 'obs'"),
        ("nan", "state"),
        ("unnamed", "force: a vector that no metadata promised"),
        ("short", "the pictures end early"),
        ("long", "more pictures than were asked for"),
        ("picture", "cam0, frame 3"),
        ("segv", "reading it killed the process (SIGSEGV)"),
        ("abort", "reading it killed the process (SIGABRT)"),
        ("bus", "reading it killed the process (SIGBUS)"),
    ],
)
def test_a_bad_episode_costs_itself_alone(tmp_path, plain, does, reason):
    bad = FakeSource(many(4, e1=does), path=str(tmp_path / "src"), salt="same")
    manifest = convert(bad, tmp_path / "bad")
    assert [(drop.episode, drop.kind) for drop in manifest.dropped] == [(1, "episode")]
    assert reason in manifest.dropped[0].reason
    assert str(tmp_path) not in (tmp_path / "bad" / "manifest.json").read_text()
    left, right = hashes(tmp_path / "bad"), hashes(plain)
    assert {k: v for k, v in left.items() if k != "manifest.json"} == {
        k: v for k, v in right.items() if k != "manifest.json"
    }
    with pytest.raises(DataError) as caught:
        convert(bad, tmp_path / "strict", ConvertOptions(on_bad="fail"))
    assert caught.value.path is not None
    assert not (tmp_path / "strict" / "manifest.json").exists()
    assert not list((tmp_path / "strict").glob("*.partial"))


def test_many_crashes_in_many_shards(tmp_path):
    made = many(9, e0="segv", e1="abort", e4="segv", e8="bad")
    options = ConvertOptions(frames_per_shard=30, workers=3)
    manifest = convert(FakeSource(made), tmp_path / "a", options)
    assert [drop.episode for drop in manifest.dropped] == [0, 1, 4, 8]
    assert manifest.counts.episodes == 5
    convert(FakeSource(made), tmp_path / "b", replace(options, workers=1))
    assert hashes(tmp_path / "a") == hashes(tmp_path / "b")


def test_all_bad_is_an_error_and_an_emptied_split_a_warning(tmp_path):
    with pytest.raises(DataError, match=r"no episode could be converted.*its bytes are bad"):
        convert(FakeSource(many(2, e0="bad", e1="bad")), tmp_path / "none")
    assert not (tmp_path / "none" / "manifest.json").exists()
    made = [FakeEpisode(id="a", split="val", does="bad"), FakeEpisode(id="b", split="train")]
    manifest = convert(FakeSource(made), tmp_path / "set", ConvertOptions(split_by="source"))
    assert manifest.splits["val"].frames == 0
    assert manifest.warnings == ["split val is empty: all its episodes were dropped"]
    assert (tmp_path / "set" / "val-00000.tar").read_bytes() == bytes(1024)


@pytest.mark.parametrize(("does", "text"), [("enospc", "No space left"), ("memory", "MemoryError|memory")])
def test_a_fault_of_the_machine_is_no_fault_of_the_data(tmp_path, does, text):
    with pytest.raises(WdsmixError, match="resume") as caught:
        convert(FakeSource(many(3, e1=does)), tmp_path / "set")
    assert not isinstance(caught.value, DataError)
    assert caught.value.path == "f1.fake"


@pytest.mark.parametrize(("does", "name"), [("kill", "SIGKILL"), ("exit", "exit code 3")])
def test_a_killed_worker_ends_the_run(tmp_path, does, name):
    options = ConvertOptions(frames_per_shard=20)
    with pytest.raises(WdsmixError, match=name) as caught:
        convert(FakeSource(many(4, e2=does), salt="x"), tmp_path / "set", options)
    assert (caught.value.path, caught.value.where) == ("f2.fake", "ep2")
    assert "resume" in str(caught.value)
    assert not list((tmp_path / "set").glob("*.partial"))
    assert (tmp_path / "set" / ".work" / "train-00000.receipt.json").exists()


def test_a_run_that_failed_goes_on_with_equal_bytes(tmp_path):
    options = ConvertOptions(frames_per_shard=20)
    marker = tmp_path / "marker"
    source = FakeSource(many(5, e3=f"once:{marker}:SIGKILL"))
    with pytest.raises(WdsmixError, match="SIGKILL"):
        convert(source, tmp_path / "a", options)
    before = (tmp_path / "a" / "train-00000.tar").stat().st_mtime_ns
    convert(source, tmp_path / "a", options)
    assert (tmp_path / "a" / "train-00000.tar").stat().st_mtime_ns == before, "a finished shard is not written again"
    convert(source, tmp_path / "b", options)
    assert hashes(tmp_path / "a") == hashes(tmp_path / "b")


@pytest.mark.parametrize("step", ["index", "manifest", "receipt", "tar"])
def test_ended_between_any_two_files(tmp_path, monkeypatch, step):
    source, options = FakeSource(many(5)), ConvertOptions(frames_per_shard=20)
    convert(source, tmp_path / "whole", options)
    out = tmp_path / "set"
    work = WorkFolder(out)
    with monkeypatch.context() as patch:
        if step == "manifest":
            patch.setattr(WorkFolder, "remove", lambda self: 1 / 0)
        else:
            patch.setattr(runner, "finish_set", lambda *args: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            convert(source, out, options)
    if step == "index":
        (out / "index.parquet").write_bytes(b"half of an ind")
        (out / "stats.json.partial").write_bytes(b"{")
    if step == "receipt":
        (out / ".work" / "train-00001.receipt.json").unlink()
        (out / "train-00001.tar.partial").write_bytes(b"stale")
        (out / ".work" / "train-00002.receipt.json.partial").write_bytes(b"{")
    if step == "tar":
        (out / "train-00002.tar").write_bytes(b"cut")
        (out / "train-00000.frames.arrow").unlink()
    assert work.path.exists()
    convert(source, out, options)
    (out / "stats.json.partial").unlink(missing_ok=True)
    assert hashes(out) == hashes(tmp_path / "whole")


def test_complete_sets_are_left_alone_and_others_refused(tmp_path):
    source, out = FakeSource(many(4), args={"dialect": "a"}), tmp_path / "set"
    convert(source, out, ConvertOptions(hz=10))
    before = hashes(out)
    again = run(source, out, ConvertOptions(hz=10, workers=2))
    assert again.already_complete
    assert again.frames == 0
    for other, options, named in (
        (source, ConvertOptions(hz=15), r"--hz: 10\.0 -> 15\.0"),
        (source, ConvertOptions(hz=10, image_size=32), "--image-size: 0 -> 32"),
        (replace(source, args={"dialect": "b"}), ConvertOptions(hz=10), '--dialect: "a" -> "b"'),
        (replace(source, salt="changed"), ConvertOptions(hz=10), "source_fingerprint"),
    ):
        with pytest.raises(ConflictError, match=named):
            convert(other, out, options)
    assert hashes(out) == before


def test_unfinished_sets_with_another_plan_are_refused(tmp_path):
    out = tmp_path / "set"
    run(FakeSource(many(4)), out, ConvertOptions(part=(0, 2), frames_per_shard=20))
    before = hashes(out)
    with pytest.raises(ConflictError, match=r"--frames-per-shard: 20 -> 30; --quality: 92 -> 80"):
        convert(FakeSource(many(4)), out, ConvertOptions(frames_per_shard=30, quality=80))
    after = hashes(out)
    after.pop(".work/lock", None)
    before.pop(".work/lock", None)
    assert after == before


def test_foreign_folders_are_refused(tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("x")
    with pytest.raises(ConflictError, match=r"not empty.*thesis\.tex"):
        convert(FakeSource(many(2)), tmp_path / "full")
    assert hashes(tmp_path / "full").keys() == {"thesis.tex"}
    with pytest.raises(ConflictError, match="not a folder"):
        convert(FakeSource(many(2)), tmp_path / "full" / "thesis.tex")
    (tmp_path / "empty").mkdir()
    convert(FakeSource(many(2)), tmp_path / "empty")


def test_the_set_stays_out_of_its_source(tmp_path):
    (tmp_path / "src").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "src")
    source = FakeSource(many(2), path=str(tmp_path / "src"))
    for out in (tmp_path / "src", tmp_path / "src" / "a" / "set", tmp_path / "link" / "set"):
        with pytest.raises(ConfigError, match="own source"):
            convert(source, out)
    assert not list((tmp_path / "src").iterdir())
    convert(source, tmp_path / "src-set")


def test_two_runs_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(workfolder, "_PATIENCE", 0.1)
    out = tmp_path / "set"
    with Locks(out):
        with pytest.raises(ConflictError, match="at work"):
            Locks(out)
        with pytest.raises(ConflictError, match="at work"):
            Locks(out, (0, 2))
    with Locks(out, (0, 2)), Locks(out, (1, 2)):
        with pytest.raises(ConflictError, match="part 2/2"):
            Locks(out, (1, 2))
        with pytest.raises(ConflictError, match="at work"):
            Locks(out)
        with pytest.raises(ConflictError, match="another count"):
            Locks(out, (2, 3))
    with Locks(out), pytest.raises(ConflictError):
        convert(FakeSource(many(2)), out)
    convert(FakeSource(many(2)), out)


def test_a_lock_on_a_removed_file_is_not_taken_for_one(tmp_path):
    out = tmp_path / "set"
    holder = Locks(out)
    taken: list[Locks] = []
    thread = threading.Thread(target=lambda: taken.append(Locks(out, patience=10)))
    thread.start()
    thread.join(0.3)
    assert thread.is_alive()
    (out / ".work" / "lock").unlink()
    holder.close()
    thread.join(10)
    handle = os.open(out / ".work" / "lock", os.O_RDWR)
    with pytest.raises(BlockingIOError):
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(handle)
    taken[0].close()


def test_sources_that_do_not_pickle_are_named(tmp_path):
    source = FakeSource(many(2))
    object.__setattr__(source, "open", (n for n in range(3)))
    with pytest.raises(ConfigError, match=r"FakeSource.*pickle"):
        convert(source, tmp_path / "set")


@dataclass(frozen=True)
class FullDisk(FakeSource):
    """Fills the disk, as far as the writer can tell, after some frames."""

    def read(self, ref: EpisodeRef) -> Episode:
        if ref.id == "ep3":
            put = ShardWriter._put

            def full(self: ShardWriter, data: bytes) -> None:
                if self.frames + len(self._episodes) and len(data) > 2048:
                    raise OSError(28, "No space left on device")
                put(self, data)

            ShardWriter._put = full  # type: ignore[method-assign]
        return FakeSource.read(self, ref)


def test_a_full_disk_is_told_and_the_run_resumes(tmp_path):
    options = ConvertOptions(frames_per_shard=30)
    with pytest.raises(WdsmixError, match=r"No space left on device.*free some space"):
        convert(FullDisk(many(6)), tmp_path / "set", options)
    assert not list((tmp_path / "set").glob("*.partial"))
    assert (tmp_path / "set" / ".work" / "train-00000.receipt.json").exists()
    convert(FakeSource(many(6)), tmp_path / "set", options)
    convert(FakeSource(many(6)), tmp_path / "whole", options)
    assert hashes(tmp_path / "set") == hashes(tmp_path / "whole")


@dataclass(frozen=True)
class Buggy(FakeSource):
    def read(self, ref: EpisodeRef) -> Episode:
        raise ConfigError("no such key", where="--state")


def test_errors_of_workers_arrive_whole(tmp_path):
    with pytest.raises(ConfigError, match="--state: no such key") as caught:
        convert(Buggy(many(2)), tmp_path / "set")
    assert "in read" in str(caught.value.__cause__)


@pytest.mark.parametrize(
    "changes",
    [
        {"fps": 15.0},
        {"timestamps": np.zeros(3)},
        {"task_index": np.zeros(3, np.int32)},
        {"rows": np.arange(3)},
        {"frame_extras": {"phase": ["x"]}},
        {"frame_extras": {"phase": [object()] * 40}},
        {"vectors": {"state": np.zeros((4, 7), np.float32), "action": np.zeros((5, 4), np.float32)}},
        {"vectors": {"state": np.zeros((0, 7), np.float32), "action": np.zeros((0, 4), np.float32)}},
        {"vectors": {"action": np.zeros((12, 4), np.float32)}},
        {"images": {}},
        {"cameras": {"cam0": Camera(key="d", kind="depth"), "cam1": Camera(key="e")}},
        {"tasks": []},
        {"tasks": ["x" * 4097]},
        {"extras": {"note": "x" * (64 << 10)}},
        {"frame_extras": {"note": ["x" * (128 << 10)] * 13}},
    ],
)
def test_episodes_that_break_their_contract_are_dropped(tmp_path, changes):
    source = OddSource(many(2), odd=changes)
    manifest = convert(source, tmp_path / "set")
    assert [drop.episode for drop in manifest.dropped] == [1]


def test_names_that_utf8_can_not_hold_and_endless_vectors_cost_their_episodes(tmp_path):
    made = [
        *many(2),
        FakeEpisode(id="ep\udcff", file="f0.fake"),
        FakeEpisode(id="ep2", file="f\udcfe.fake"),
        FakeEpisode(id="ep3", file="f0.fake", state=65_537),
    ]
    source = FakeSource(made, args={"key": "\udcfd"})
    manifest = convert(source, tmp_path / "set", ConvertOptions(name="n\udcfc", licence="\udcfb"))
    assert [(drop.source_file, drop.source_episode, drop.kind) for drop in manifest.dropped] == [
        ("f0.fake", "ep\\udcff", "episode"),
        ("f\\udcfe.fake", "ep2", "file"),
        ("f0.fake", "ep3", "episode"),
    ]
    assert manifest.dropped[2].reason == "state has 65537 dimensions, a set at most 65536"
    assert (manifest.name, manifest.licence, manifest.counts.episodes) == ("n\\udcfc", "\\udcfb", 2)


@dataclass(frozen=True)
class OddSource(FakeSource):
    odd: object = None

    def read(self, ref: EpisodeRef) -> Episode:
        episode = FakeSource.read(self, ref)
        if ref.id == "ep1":
            for name, value in self.odd.items():
                setattr(episode, name, value)
        return episode


def test_rows_choose_the_pictures(tmp_path):
    source = OddSource(many(2), odd={"rows": np.arange(13) * 2 + 5})
    convert(source, tmp_path / "set", ConvertOptions(hz=10))
    there = members(tmp_path / "set")
    assert there["000001_000002.cam0.jpg"] == encode_jpeg(picture(1, 17, "cam0"), 90, "420")


def test_closing_is_called_and_files_are_closed_after_faults(tmp_path):
    log = tmp_path / "log"
    source = ClosingSource(many(3, e1="picture"), path=str(log))
    convert(source, tmp_path / "set")
    assert log.read_text() == "ep0 ep1 ep2 "


@dataclass(frozen=True)
class ClosingSource(FakeSource):
    def read(self, ref: EpisodeRef) -> Episode:
        episode = FakeSource.read(self, ref)

        def close() -> None:
            with Path(self.path).open("a") as file:
                file.write(f"{ref.id} ")

        episode.close = close
        return episode


def test_memory_stays_flat(tmp_path):
    code = (
        "import resource, sys\n"
        "from helpers.big_source import BigSource\n"
        "from wdsmix.converters.run import convert\n"
        "if __name__ == '__main__':\n"
        "    convert(BigSource(int(sys.argv[2])), sys.argv[1])\n"
        "    print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, "
        "resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)\n"
    )
    script = tmp_path / "big.py"
    script.write_text(code)
    peaks = []
    for frames in (10, 1200):  # 1200 frames: 660 MB of pixels
        done = subprocess.run(
            [sys.executable, str(script), str(tmp_path / f"set{frames}"), str(frames)],
            env={**os.environ, "PYTHONPATH": str(Path(fake_source.__file__).parents[1])},
            capture_output=True,
            text=True,
            check=True,
        )
        peaks.append([int(word) / 1024 for word in done.stdout.split()])
    assert peaks[1][0] - peaks[0][0] < 40, "worker, MB"
    assert peaks[1][1] - peaks[0][1] < 40, "parent, MB"


def test_planning_reads_metadata_alone(monkeypatch):
    monkeypatch.setattr(FakeSource, "read", lambda *args: 1 / 0)
    assert len(Planning.of(FakeSource(many(4)), ConvertOptions()).refs) == 4
