"""What a resume keeps is held against the source's files as first seen, and against the bytes that were written."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path

import h5py
import pytest
from helpers.fake_source import FiledSource, many
from helpers.hdf5_fixtures import write_platform
from wdsmix.converters.base import ConvertOptions
from wdsmix.converters.merge import merge
from wdsmix.converters.run import convert, run

from wdsmix.cli import main
from wdsmix.errors import ConflictError, DataError

OPTIONS = {"frames_per_shard": 30, "name": "set"}
PART = ConvertOptions(**OPTIONS, part=(0, 2))
WHOLE = ConvertOptions(**OPTIONS)


def hashes(folder: Path) -> dict[str, str]:
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.rglob("*") if path.suffix != ".lock"
    }


@pytest.fixture
def source(tmp_path) -> FiledSource:
    folder = tmp_path / "src"
    folder.mkdir()
    for name in ("a.bin", "b.bin"):
        (folder / name).write_bytes(bytes(100))
        os.utime(folder / name, ns=(10**18, 10**18 + 5))
    return FiledSource(many(6), path=str(folder))


@pytest.fixture
def begun(source, tmp_path) -> Path:
    """A set of which half is there."""
    run(source, tmp_path / "set", PART)
    return tmp_path / "set"


@pytest.mark.parametrize("part", [PART, ConvertOptions(**OPTIONS, part=(1, 2)), WHOLE])
def test_a_source_that_changed_in_between_is_refused(source, begun, part):
    (Path(source.path) / "b.bin").write_bytes(bytes(99) + b"x")  # the fingerprint does not see it
    with pytest.raises(ConflictError) as caught:
        run(source, begun, part)
    text = str(caught.value)
    assert text.startswith("b.bin: the source changed since this conversion began")
    assert "expected 100 bytes, written 2001-09-09 01:46:40.000000005 UTC, found 100 bytes, written 20" in text
    (record,) = (begun / ".work").glob("source-*.json")
    assert str(record) in text
    record.unlink()  # what the hint offers to those who know better
    run(source, begun, part)


def test_an_unchanged_source_resumes_and_leaves_no_trace(source, begun, tmp_path):
    (record,) = (begun / ".work").glob("source-*.json")
    assert json.loads(record.read_bytes())["files"] == {f"{k}.bin": [100, 10**18 + 5] for k in "ab"}
    resumed = convert(source, begun, WHOLE)
    other = Path(shutil.copytree(source.path, tmp_path / "copy"))
    os.utime(other / "a.bin")
    assert convert(FiledSource(source.made, path=str(other)), tmp_path / "other", WHOLE) == resumed
    assert hashes(begun) == hashes(tmp_path / "other")
    assert not (begun / ".work").exists()


def test_another_copy_of_the_source_may_go_on(source, begun, tmp_path):
    other = Path(shutil.copytree(source.path, tmp_path / "copy"))
    os.utime(other / "a.bin")
    convert(FiledSource(source.made, path=str(other)), begun, WHOLE)


def test_with_nothing_to_mix_with_the_source_may_have_changed(source, tmp_path, monkeypatch):
    def full(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("wdsmix.converters.run.run_jobs", full)
        with pytest.raises(KeyboardInterrupt):
            convert(source, tmp_path / "set", WHOLE)
    (Path(source.path) / "b.bin").write_bytes(b"other")
    convert(source, tmp_path / "set", WHOLE)


def test_a_change_while_it_is_read_keeps_the_set_from_being_finished(source, tmp_path, monkeypatch):
    from wdsmix.converters import run as runner

    real = runner.run_jobs

    def meddled(*args: object, **kwargs: object) -> None:
        real(*args, **kwargs)
        os.utime(Path(source.path) / "a.bin", ns=(1, 1))

    monkeypatch.setattr(runner, "run_jobs", meddled)
    with pytest.raises(ConflictError, match=r"a\.bin: the source changed"):
        convert(source, tmp_path / "set", WHOLE)
    assert not (tmp_path / "set" / "manifest.json").exists()


def test_a_damaged_record(source, begun):
    (record,) = (begun / ".work").glob("source-*.json")
    for text in ("{", "[]", '{"root": "x", "files": {"a": 3}}'):
        record.write_text(text)
        with pytest.raises(DataError, match="damaged"):
            run(source, begun, PART)


def test_hdf5_between_the_samples_of_the_fingerprint(tmp_path, capsys):
    (tmp_path / "src").mkdir()
    write_platform(tmp_path / "src/a.hdf5", episodes=(1, 2, 3, 4), frames=40, storage="raw")
    command = ["convert", "hdf5", str(tmp_path / "src"), str(tmp_path / "set"), "--frames-per-shard", "40", "--quiet"]
    assert main([*command, "--workers", "1", "--part", "1/2"]) == 0
    path = tmp_path / "src/a.hdf5"
    with h5py.File(path, "r") as file:
        at = file["data/episode_003/observation.images.camera_01"].id.get_chunk_info(20).byte_offset
    before = path.read_bytes()
    with path.open("r+b") as file:
        file.seek(at)
        file.write(bytes(1000))
    capsys.readouterr()
    assert main([*command, "--workers", "1"]) == 3
    assert "a.hdf5: the source changed since this conversion began" in capsys.readouterr().err
    path.write_bytes(before)
    status = path.stat()
    (record,) = (tmp_path / "set/.work").glob("source-*.json")
    (size, time) = json.loads(record.read_bytes())["files"]["a.hdf5"]
    assert size == status.st_size
    os.utime(path, ns=(time, time))
    assert main([*command, "--workers", "1"]) == 0


def flip(path: Path, at: int = 3000) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    replaced = path.with_name("flipped")  # a new inode: parts may be hard links
    replaced.write_bytes(data)
    replaced.replace(path)


@pytest.mark.parametrize("suffix", ["tar", "frames.arrow"])
def test_a_kept_shard_that_changed_is_written_again(source, begun, tmp_path, suffix):
    name = next(begun.glob(f"*.{suffix}")).name
    whole = convert(source, tmp_path / "whole", WHOLE)
    flip(begun / name, 700)
    outcome = run(source, begun, WHOLE)
    assert outcome.manifest == whole
    assert hashes(begun) == hashes(tmp_path / "whole")
    (note,) = outcome.notes
    assert note.startswith(f"{name} is not what was written (expected sha256 ")
    assert note.endswith(f": shard {name.split('.')[0]} was written again")


def test_it_is_said_even_if_quiet(tmp_path, capsys):
    from helpers import fake_family

    (tmp_path / "src").mkdir()
    command = ["convert", "fake", str(tmp_path / "src"), str(tmp_path / "set"), "--quiet", "--frames-per-shard", "30"]
    assert fake_family.main([*command, "--part", "1/2"]) == 0
    tar = next((tmp_path / "set").glob("*.tar"))
    flip(tar)
    assert fake_family.main(command) == 0
    assert f"wdsmix: note: {tar.name} is not what was written" in capsys.readouterr().err


def test_merge_seals_no_changed_shard(source, begun, tmp_path):
    run(source, tmp_path / "two", ConvertOptions(**OPTIONS, part=(1, 2)))
    other = next((tmp_path / "two").glob("*.tar"))
    good = other.read_bytes()
    flip(other)
    with pytest.raises(DataError, match="part is damaged: expected sha256") as caught:
        merge(tmp_path / "all", [begun, tmp_path / "two"])
    assert caught.value.path == str(other)
    other.write_bytes(good)
    mine = next(begun.glob("*.tar"))
    flip(mine)
    with pytest.raises(DataError, match=f"part is damaged: {mine.name} is not what was written"):
        merge(begun, [tmp_path / "two"])


def test_a_merge_ended_at_any_step_goes_on_with_the_same_bytes(source, begun, tmp_path, monkeypatch):
    run(source, tmp_path / "two", ConvertOptions(**OPTIONS, part=(1, 2)))
    merge(tmp_path / "whole", [begun, tmp_path / "two"])
    replace, steps = Path.replace, 0

    class Killed(BaseException):
        """Stands for SIGKILL: nothing below handles it but `finally`."""

    for last in range(40):
        steps = 0

        def counted(self: Path, target: Path, last: int = last) -> Path:
            nonlocal steps
            steps += 1
            if steps > 2 * last + 1:
                raise Killed
            done = replace(self, target)
            if steps == 2 * last + 1:
                raise Killed
            return done

        out = tmp_path / f"all{last}"
        with monkeypatch.context() as patched:
            patched.setattr(Path, "replace", counted)
            try:
                merge(out, [begun, tmp_path / "two"])
            except Killed:
                pass
            else:
                break
        merge(out, [begun, tmp_path / "two"])
        assert hashes(out) == hashes(tmp_path / "whole")
    assert last > 5
