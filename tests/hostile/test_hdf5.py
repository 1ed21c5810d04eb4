"""Damaged, unfinished and malicious HDF5 files: each ends in a line of its own, nothing outside is read."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile

import h5py
import numpy as np
import pytest
from helpers.hdf5_fixtures import open_source, pictures, read_all, write_platform, write_robomimic
from wdsmix.converters.hdf5.safe import Budget, Tree
from wdsmix.converters.hdf5.scan import scan_files

from wdsmix.errors import DataError

SECRET = b"root:x:0:0:secret" * 64


@pytest.fixture
def folder(tmp_path):
    """A source with one good chunk; bad ones are put beside it."""
    inside = tmp_path / "source"
    inside.mkdir()
    write_platform(inside / "chunk_001.hdf5")
    (tmp_path / "secret.bin").write_bytes(SECRET)
    with h5py.File(tmp_path / "secret.hdf5", "w") as file:
        file["x"] = np.full((12, 6), 7.0)
        file["pictures"] = pictures(12)
    return inside


def fault_beside_good_ones(folder, kind="file", isolate=False):
    """The fault of chunk_002, after checking that the good chunk is as good as ever."""
    source = open_source(folder, isolate=isolate)
    refs = source.episodes()
    good = [ref for ref in refs if ref.file == "chunk_001.hdf5"]
    assert [ref.fault for ref in good] == [None, None]
    read_all(source, good[1])
    bad = [ref for ref in refs if ref.file == "chunk_002.hdf5"]
    assert bad[0].fault_kind == kind
    assert bad[0].fault is not None
    return bad[0].fault


def whole(folder):
    return (folder / "chunk_001.hdf5").read_bytes()


def test_what_is_not_hdf5(folder):
    path = folder / "chunk_002.hdf5"
    path.write_bytes(b"")
    assert "empty file" in fault_beside_good_ones(folder)
    path.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 123456\n")
    assert "Git LFS pointer" in fault_beside_good_ones(folder)
    assert "123456" in fault_beside_good_ones(folder)
    path.write_bytes(b"\x1f\x8b" + bytes(100))
    assert "an archive (expected an HDF5 file, found gzip" in fault_beside_good_ones(folder)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("chunk.hdf5", b"x" * 50)
    assert "found zip" in fault_beside_good_ones(folder)
    with tarfile.open(path, "w") as archive:
        archive.add(folder / "chunk_001.hdf5", "chunk_001.hdf5")
    assert "found tar" in fault_beside_good_ones(folder)
    path.write_bytes(b"<html>not found</html>")
    assert "not an HDF5 file" in fault_beside_good_ones(folder)


def test_truncated_and_header_only(folder):
    path, data = folder / "chunk_002.hdf5", whole(folder)
    path.write_bytes(data[: len(data) // 2])
    assert f"truncated file: {len(data) // 2} of {len(data)} bytes" in fault_beside_good_ones(folder)
    for size in (40, 96):
        path.write_bytes(data[:size])
        fault = fault_beside_good_ones(folder)
        assert "header only" in fault
        assert f"{size} bytes" in fault


def test_user_block_is_fine(folder):
    (folder / "chunk_002.hdf5").write_bytes(b"#!user block\n".ljust(512, b"\0") + whole(folder))
    assert all(ref.fault is None for ref in open_source(folder).episodes())


def test_killed_writer(folder):
    code = (
        "import h5py, os, numpy as np\n"
        f"f = h5py.File({str(folder / 'chunk_002.hdf5')!r}, 'w', libver='latest')\n"
        "f['x'] = np.zeros(10); f.flush(); os._exit(9)"
    )
    subprocess.run([sys.executable, "-c", code], check=False)
    fault = fault_beside_good_ones(folder)
    assert "its writer did not close it" in fault
    assert "h5clear" in fault


def test_held_by_a_writer(folder):
    path = folder / "chunk_002.hdf5"
    written = write_platform(path, episodes=[1])["episode_001"]
    code = (
        "import h5py, sys\n"
        f"f = h5py.File({str(path)!r}, 'a')\n"
        "f['later'] = 1; f.flush(); print('open', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"open\n"
        source = open_source(folder)
        (ref,) = [ref for ref in source.episodes() if ref.file == "chunk_002.hdf5"]
        np.testing.assert_array_equal(read_all(source, ref)[0]["action"], written["action"])
        writer.communicate()


def test_a_chunk_whose_checksum_is_wrong(folder):
    path = folder / "chunk_002.hdf5"
    write_platform(path, episodes=[1])
    with h5py.File(path, "a") as file:
        group = file["data/episode_001"]
        values = group["action"][...]
        del group["action"]
        made = group.create_dataset("action", data=values, chunks=values.shape, fletcher32=True)
        at = made.id.get_chunk_info(0).byte_offset
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    source = open_source(folder)
    (ref,) = [ref for ref in source.episodes() if ref.file == "chunk_002.hdf5"]
    with pytest.raises(DataError, match="action") as caught:
        read_all(source, ref)
    assert "damaged" in (caught.value.hint or "")


def test_damaged_in_the_middle(folder):
    path = folder / "chunk_002.hdf5"
    write_platform(path, storage="padded", episodes=[1])
    data = bytearray(path.read_bytes())
    for at in range(2000, len(data), 97):
        data[at] ^= 0xFF
    path.write_bytes(data)
    source = open_source(folder, isolate=True)
    for ref in source.episodes():
        if ref.file == "chunk_002.hdf5" and ref.fault is None:
            with pytest.raises(DataError):
                read_all(source, ref)


@pytest.mark.parametrize("seed", range(12))
def test_random_damage_never_ends_in_anything_but_a_data_error(tmp_path, seed):
    path = tmp_path / "chunk_001.hdf5"
    write_platform(path, storage=("padded", "vlen", "group")[seed % 3], episodes=[1, 2], frames=4)
    data = bytearray(path.read_bytes())
    random = np.random.default_rng(seed)
    for at in random.integers(8, len(data), 30):
        data[at] = random.integers(256)
    path.write_bytes(data)
    code = (
        "import sys; sys.path.insert(0, 'tests')\n"
        "from helpers.hdf5_fixtures import open_source, read_all\n"
        "from wdsmix.errors import DataError\n"
        f"source = open_source({str(path)!r}, isolate=True)\n"
        "try:\n"
        "    refs = [ref for ref in source.episodes() if ref.fault is None]\n"
        "except DataError:\n"
        "    refs = []\n"
        "for ref in refs:\n"
        "    try:\n"
        "        read_all(source, ref)\n"
        "    except DataError:\n"
        "        pass\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode <= 0, result.stderr  # a crash of the library (below 0) is the runner's to isolate


def bad_chunk(folder, change):
    path = folder / "chunk_002.hdf5"
    write_platform(path)
    with h5py.File(path, "a") as file:
        change(file["data/episode_001"], folder.parent)


def replace(group, name, link):
    del group[name]
    group[name] = link


LINKS = {
    "external link": lambda g, out: replace(g, "action", h5py.ExternalLink(str(out / "secret.hdf5"), "/x")),
    "external link behind a soft link": lambda g, out: (
        g.file.__setitem__("way", h5py.ExternalLink(str(out / "secret.hdf5"), "/")),
        replace(g, "action", h5py.SoftLink("/way/x")),
    ),
    "external pictures": lambda g, out: replace(
        g, "observation.images.camera_01", h5py.ExternalLink(str(out / "secret.hdf5"), "/pictures")
    ),
    "loop": lambda g, out: replace(g, "action", h5py.SoftLink(g.name + "/action")),
    "long loop": lambda g, out: (
        g.__setitem__("a", h5py.SoftLink(g.name + "/b/x")),
        g.__setitem__("b", h5py.SoftLink(g.name + "/a")),
        replace(g, "action", h5py.SoftLink(g.name + "/a/x")),
    ),
}


@pytest.mark.parametrize("kind", list(LINKS))
def test_links_that_lead_out_or_in_circles(folder, kind):
    bad_chunk(folder, LINKS[kind])
    fault = fault_beside_good_ones(folder, "episode")
    assert "refused: " in fault
    assert ("external link" if "external" in kind else "loop") in fault


def test_an_external_group_of_an_episode(folder):
    path = folder / "chunk_002.hdf5"
    write_platform(path)
    with h5py.File(path, "a") as file:
        file["data/episode_000"] = h5py.ExternalLink(str(folder.parent / "secret.hdf5"), "/")
    refs = [ref for ref in open_source(folder).episodes() if ref.file == "chunk_002.hdf5"]
    assert [ref.fault is None for ref in refs] == [False, True, True]
    assert "external link" in refs[0].fault


def test_links_inside_the_file_are_fine(folder):
    path = folder / "chunk_002.hdf5"
    written = write_platform(path, episodes=[1])["episode_001"]
    with h5py.File(path, "a") as file:
        group = file["data/episode_001"]
        group.move("action", "kept")
        group["action"] = h5py.SoftLink("kept")
        group.move("observation.state", "/elsewhere")
        group["observation.state"] = h5py.SoftLink("/elsewhere")
        file["data/self"] = file["data"]  # a hard cycle
    source = open_source(folder)
    ref = next(ref for ref in source.episodes() if ref.file == "chunk_002.hdf5")
    got, _ = read_all(source, ref)
    np.testing.assert_array_equal(got["action"], written["action"])
    np.testing.assert_array_equal(got["state"][:, :7], written["state"])


def external_storage(group, out):
    del group["action"]
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_external(str(out / "secret.bin").encode(), 0, 12 * 6 * 4)
    space = h5py.h5s.create_simple((12, 6))
    h5py.h5d.create(group.id, b"action", h5py.h5t.IEEE_F32LE, space, plist)


def virtual(group, out):
    del group["action"]
    layout = h5py.VirtualLayout((12, 6), "f8")
    layout[:] = h5py.VirtualSource(str(out / "secret.hdf5"), "x", (12, 6))
    group.create_virtual_dataset("action", layout)


def references(group, out):
    del group["action"]
    group.create_dataset("action", data=[group.ref] * 12, dtype=h5py.ref_dtype)


@pytest.mark.parametrize(
    ("change", "message"),
    [(external_storage, "external raw storage"), (virtual, "virtual dataset"), (references, "references")],
)
def test_data_that_lie_elsewhere(folder, change, message):
    bad_chunk(folder, change)
    fault = fault_beside_good_ones(folder, "episode")
    assert "refused: " in fault
    assert message in fault


def huge(group, out):
    del group["action"]
    group.create_dataset("action", shape=(1 << 24, 512), dtype="f4", chunks=(1, 512))[0, 0] = 1


def unwritten(group, out):
    del group["observation.state"]
    group.create_dataset("observation.state", shape=(12, 7), dtype="f4")


def partly_written(group, out):
    del group["observation.images.camera_01"]
    dataset = group.create_dataset("observation.images.camera_01", (12, 48, 64, 3), "u1", chunks=(4, 48, 64, 3))
    dataset[:5] = pictures(5)


def bomb(group, out):
    del group["observation.images.camera_01"]
    group.create_dataset("observation.images.camera_01", (12, 30_000, 30_000, 3), "u1", chunks=(1, 300, 300, 3))


def text_action(group, out):
    del group["action"]
    group["action"] = np.array([b"left"] * 12)


def scalar_action(group, out):
    del group["action"]
    group["action"] = 3.0


def flat_state(group, out):
    del group["observation.state"]
    group["observation.state"] = np.zeros((12, 0))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (huge, "far more declared than stored"),
        (unwritten, "never written"),
        (partly_written, "written only in part"),
        (bomb, "too large"),
        (text_action, "not numeric"),
        (scalar_action, "not an array"),
        (flat_state, "no dimensions"),
    ],
)
def test_declared_but_not_there(folder, change, message):
    bad_chunk(folder, change)
    assert message in fault_beside_good_ones(folder, "episode")


def test_unavailable_filter_names_it(folder):
    code = 32015  # zstd; not built in

    def squeeze(group, out):
        del group["action"]
        plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plist.set_chunk((12, 6))
        plist.set_filter(code, h5py.h5z.FLAG_OPTIONAL, (3,))
        h5py.h5d.create(group.id, b"action", h5py.h5t.IEEE_F32LE, h5py.h5s.create_simple((12, 6)), plist)

    if h5py.h5z.filter_avail(code):
        pytest.skip("the filter is installed here")
    bad_chunk(folder, squeeze)
    fault = fault_beside_good_ones(folder, "episode")
    assert "filter 32015" in fault
    assert "hdf5plugin" in fault


def test_names_that_are_none(folder):
    def rename(group, out):
        data = group.parent
        data.move("episode_001", "..")
        h5py.h5o.copy(data.id, b"episode_002", data.id, b"bad\xff\xfe")
        data.copy("episode_002", "line\nbreak")
        data.copy("episode_002", "n" * 300)

    bad_chunk(folder, rename)
    refs = [ref for ref in open_source(folder, isolate=True).episodes() if ref.file == "chunk_002.hdf5"]
    assert sum(ref.fault is None for ref in refs) == 1
    for ref in refs:
        if ref.fault is not None:
            assert ref.fault.startswith("refused: ")
            ref.id.encode("utf-8")


def test_messages_spell_out_what_terminals_and_json_must_not_get(folder):
    def rename(group, out):
        del group["action"]
        h5py.h5o.copy(group.id, b"observation.state", group.id, b"bad\xff\x1b[31m")
        group.attrs["task"] = "red \x1b[31m text"

    bad_chunk(folder, rename)
    fault = fault_beside_good_ones(folder, "episode")
    assert fault.isprintable()
    assert "bad\\udcff\\x1b[31m" in fault
    with h5py.File(folder / "chunk_002.hdf5", "a") as file:
        file["data/episode_001/action"] = np.zeros((12, 6))
    source = open_source(folder)
    with source.read(next(ref for ref in source.episodes() if ref.file == "chunk_002.hdf5")) as episode:
        assert episode.tasks == ("red [31m text",)


def test_huge_attributes_are_not_read(folder):
    path = folder / "chunk_002.hdf5"
    with h5py.File(path, "w", libver="latest") as file:
        group = file.create_group("data/episode_001")
        group["action"], group["observation.state"] = np.zeros((4, 2)), np.zeros((4, 2))
        group["observation.images.camera_01"] = pictures(4)
        group.attrs.create("task", np.zeros(32 << 20, np.uint8))
        group.attrs["score"] = np.zeros(100_000)
    source = open_source(path)
    (ref,) = source.episodes()
    assert ref.fault is None
    with source.read(ref) as episode:
        assert episode.tasks == ("",)
        assert episode.extras == {}


def test_budgets():
    assert Budget().frame_bytes > 1920 * 1080 * 3


def test_over_deep_paths(tmp_path):
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        file["/".join("d" * 60)] = 1
        file["data"] = h5py.SoftLink("/".join("d" * 59))
    with Tree(tmp_path / "a.hdf5") as tree, pytest.raises(DataError, match="too deep"):
        tree.get("/data")
    with Tree(tmp_path / "a.hdf5") as tree:
        assert len(tree.lines()) <= 41


def test_links_out_of_the_folder(folder):
    (folder / "chunk_002.hdf5").symlink_to(folder.parent / "secret.hdf5")
    fault = fault_beside_good_ones(folder)
    assert "refused: leads outside the source" in fault
    (folder / "chunk_002.hdf5").unlink()
    (folder / "chunk_002.hdf5").symlink_to(folder / "gone.hdf5")
    assert "leads nowhere" in fault_beside_good_ones(folder)
    (folder / "chunk_002.hdf5").unlink()
    (folder / "chunk_002.hdf5").symlink_to("chunk_001.hdf5")
    source = open_source(folder)
    assert len(source.episodes()) == 2
    assert any("the same file as" in warning for warning in source.describe().warnings)


def test_a_link_that_changes_after_the_scan(folder):
    write_platform(folder / "chunk_002.hdf5")
    source = open_source(folder)
    ref = next(ref for ref in source.episodes() if ref.file == "chunk_002.hdf5")
    (folder / "chunk_002.hdf5").unlink()
    (folder / "chunk_002.hdf5").symlink_to(folder.parent / "secret.hdf5")
    with pytest.raises(DataError, match="leads outside"):
        source.read(ref)


def test_linked_folders_and_pipes(folder):
    (folder / "more").symlink_to(folder.parent)
    os.mkfifo(folder / "chunk_002.hdf5")
    (folder / ".hidden.hdf5").write_bytes(b"x")
    assert "not a regular file" in fault_beside_good_ones(folder)
    source = open_source(folder)
    assert source.fingerprint() == open_source(folder).fingerprint()
    warnings = source.describe().warnings
    assert any("a link to a folder" in warning for warning in warnings)
    assert any("1 hidden files" in warning for warning in warnings)


def test_a_crash_costs_only_its_file(folder, monkeypatch):
    """A child that dies while it reads one file is replaced; the others are scanned."""
    for number in range(2, 7):
        write_platform(folder / f"chunk_{number:03d}.hdf5", episodes=[1])
    hook = folder.parent / "site"
    hook.mkdir()
    (hook / "sitecustomize.py").write_text(
        "import sys\n"
        "if 'wdsmix.converters.hdf5.scan' in ' '.join(sys.orig_argv):\n"
        "    import os, signal, h5py\n"
        "    real = h5py.File\n"
        "    def opener(name, *args, **kwargs):\n"
        "        if 'chunk_003' in str(name):\n"
        "            os.kill(os.getpid(), signal.SIGSEGV)\n"
        "        return real(name, *args, **kwargs)\n"
        "    h5py.File = opener\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(hook))
    source = open_source(folder, isolate=True)
    faults = {ref.file: ref.fault for ref in source.episodes()}
    assert "signal 11" in faults.pop("chunk_003.hdf5")
    assert set(faults.values()) == {None}
    assert len(faults) == 5


def test_no_file_at_all(tmp_path):
    with pytest.raises(DataError, match="no HDF5 files"):
        open_source(tmp_path).episodes()
    with pytest.raises(DataError, match="no such file"):
        open_source(tmp_path / "gone").episodes()


def test_scan_in_children_equals_scan_here(folder):
    write_robomimic(folder / "lift.hdf5")
    here, there = open_source(folder), open_source(folder, isolate=True)
    assert here.episodes() == there.episodes()
    assert here.describe() == there.describe()


def test_no_files_to_scan(tmp_path):
    assert scan_files(tmp_path, [], open_source(tmp_path)._options, workers=2) == {}


def test_flat_memory(tmp_path):
    """Pictures of 370 MB are read while the process stays below 200 MB more than at its start."""
    path = tmp_path / "big.hdf5"
    views = pictures(4, width=640, height=480)
    with h5py.File(path, "w") as file:
        group = file.create_group("data/episode_001")
        group["action"], group["observation.state"] = np.zeros((320, 2)), np.zeros((320, 2))
        for name, chunks in (("camera_01", (1, 480, 640, 3)), ("camera_02", (160, 60, 80, 1))):
            dataset = group.create_dataset(
                f"observation.images.{name}",
                (320, 480, 640, 3) if name == "camera_01" else (320, 240, 320, 3),
                "u1",
                chunks=chunks,
                compression="lzf",
            )
            for at in range(0, 320, 160):
                block = np.resize(views, (160, 480, 640, 3))
                dataset[at : at + 160] = block if name == "camera_01" else block[:, ::2, ::2]
    code = (
        "import sys, resource; sys.path.insert(0, 'tests')\n"
        "import numpy as np\n"
        "from helpers.hdf5_fixtures import open_source\n"
        f"source = open_source({str(path)!r})\n"
        "(ref,) = source.episodes()\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "with source.read(ref) as episode:\n"
        "    n = sum(1 for pair in zip(*(s.read(np.arange(320)) for s in episode.images.values())))\n"
        "assert n == 320\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) < 200_000
