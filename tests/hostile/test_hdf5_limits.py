"""HDF5 files that lie about sizes, scales, names and structure: told, bounded, and never a loss of what is good."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path

import h5py
import numpy as np
import pytest
from helpers.hdf5_fixtures import open_source, pictures, read_all, write_aloha, write_platform, write_robomimic
from wdsmix.converters.check import check
from wdsmix.converters.hdf5.images import survey
from wdsmix.converters.hdf5.safe import Budget, Tree

from wdsmix.cli import main
from wdsmix.errors import DataError
from wdsmix.limits import MAX_TASK_BYTES

CAMERA = "data/episode_002/observation.images.camera_01"


@pytest.fixture
def path(tmp_path) -> Path:
    """Three good episodes in one file."""
    made = tmp_path / "src" / "a.hdf5"
    made.parent.mkdir()
    write_platform(made, episodes=(1, 2, 3), frames=10, storage="padded")
    return made


def replace(path: Path, key: str, **how: object) -> None:
    with h5py.File(path, "r+") as file:
        if key in file:
            del file[key]
        file.create_dataset(key, **how)


def faults(path: Path) -> list[str | None]:
    return [ref.fault for ref in open_source(path).episodes()]


# --- sizes ------------------------------------------------------------------------------------------------------------


def test_a_wide_vector_is_refused_before_it_has_names(path):
    replace(path, "data/episode_002/action", shape=(10, 20_000_000), dtype="u1", chunks=(10, 500_000), compression=9)
    with h5py.File(path, "r+") as file:
        file["data/episode_002/action"][:, :10] = 1
    tracemalloc.start()
    try:
        first, second, third = faults(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (first, third) == (None, None)
    assert "too many dimensions for a vector (expected at most 65536, found 20000000)" in (second or "")
    assert peak < 50 << 20


def test_parts_of_a_vector_count_together(path):
    for key in ("s1", "s2"):
        replace(path, f"data/episode_001/{key}", data=np.ones((10, 40_000), "f4"))
    ref = open_source(path, "--state", "s1,s2").episodes()[0]
    assert "expected at most 65536, found 80000" in (ref.fault or "")


def test_a_chunk_that_would_be_inflated_whole_is_refused(path, monkeypatch):
    replace(path, CAMERA, data=np.zeros((10, 48, 64, 3), "u1"), chunks=(10, 48, 64, 3), compression="gzip")
    assert faults(path) == [None, None, None]
    tight = Budget(chunk_bytes=10 * 48 * 64 * 3 - 1)
    with Tree(path, tight) as tree, pytest.raises(DataError, match="refused: too large a chunk"):
        survey(tree, f"/{CAMERA}")
    replace(path, CAMERA, data=np.zeros((10, 48, 64, 3), "u1"), chunks=(10, 48, 64, 3))  # read in pieces
    with Tree(path, tight) as tree:
        survey(tree, f"/{CAMERA}")
    assert Budget().chunk_bytes == 1 << 30


def test_a_mask_of_one_huge_chunk(tmp_path, monkeypatch):
    write_robomimic(tmp_path / "a.hdf5")
    with h5py.File(tmp_path / "a.hdf5", "r+") as file:
        file.create_dataset("mask/big", (3,), "S8", maxshape=(None,), chunks=(200_000_000,), compression="gzip")
    (ref,) = open_source(tmp_path / "a.hdf5").episodes()
    assert ref.fault_kind == "file"
    assert "too large a chunk" in (ref.fault or "")


# --- floating-point pictures ------------------------------------------------------------------------------------------

VIEWS = pictures(40, seed=1)


def float_episode(path: Path, values: np.ndarray) -> list[np.ndarray]:
    path.unlink(missing_ok=True)
    write_platform(path, episodes=(2,), frames=len(values), storage="padded", cameras=())
    replace(path, CAMERA, data=values)
    (ref,) = open_source(path).episodes()
    return read_all(open_source(path), ref)[1]["cam0"]


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_both_scales_are_told(path, dtype):
    for scale in (1, 255):
        got = float_episode(path, (VIEWS / scale).astype(dtype))
        assert np.abs(np.array(got).astype(int) - VIEWS).max() <= (0 if dtype != "f2" else 1)


def test_overshoot_of_resampling_is_clipped_and_changes_no_scale(path):
    values = (VIEWS / 255).astype("f4")
    values[0, 0, 0, 0], values[3, 0, 0, 0] = 1.005, -0.005
    got = np.array(float_episode(path, values)).astype(int)
    assert (got[0, 0, 0, 0], got[3, 0, 0, 0]) == (255, 0)
    same = np.ones(VIEWS.shape, bool)
    same[0, 0, 0, 0] = same[3, 0, 0, 0] = False
    assert (got == VIEWS)[same].all()


def test_a_dark_first_middle_and_last_picture_do_not_decide(path):
    values = VIEWS.astype("f4")
    values[0], values[20], values[39] = 0, 0.5, 0
    values[21] = VIEWS[21] > 100
    got = float_episode(path, values)
    np.testing.assert_array_equal(got[10], VIEWS[10])
    assert got[20].max() == got[21].max() == 1


def test_a_picture_of_another_scale_is_a_fault_that_names_it(path):
    values = (VIEWS / 255).astype("f4")
    values[8] = VIEWS[8]  # not among those looked at first
    with pytest.raises(DataError, match=rf"camera_01 row 8: values outside .*expected 0 to 1, .*{VIEWS[8].max():g}\)"):
        float_episode(path, values)
    values = VIEWS.astype("f4")
    values[9] = VIEWS[9] / 255
    with pytest.raises(DataError, match=r"camera_01 row 9: values outside .*expected 0 to 255, .*found 0.* to 0\."):
        float_episode(path, values)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        (VIEWS / 127.5 - 1, "signed pictures are not converted"),
        (VIEWS / 255 * 1.3, "no known scale"),
        (VIEWS * 16.0, "no known scale"),
        (np.where(np.arange(40)[:, None, None, None] == 5, np.nan, VIEWS / 255), "row 5: not finite"),
        (np.where(np.arange(40)[:, None, None, None] == 5, -40.0, VIEWS), "values outside|no known scale"),
    ],
)
def test_what_fits_no_scale_is_a_fault(path, values, text):
    with pytest.raises(DataError, match=text):
        float_episode(path, values.astype("f4"))


# --- names ------------------------------------------------------------------------------------------------------------


def test_a_file_name_that_is_not_utf8_costs_that_file(path, capsys):
    bad = os.fsencode(path.parent) + b"/bad\xff.h5"
    Path(os.fsdecode(bad)).write_bytes(path.read_bytes())
    source = open_source(path.parent)
    refs = source.episodes()
    assert [(ref.file, ref.fault) for ref in refs][-1] == ("bad\\udcff.h5", "refused: its name is not UTF-8; rename it")
    assert [ref.fault for ref in refs[:3]] == [None] * 3
    report = check(source, "src")
    assert (report.files, report.episodes, report.good) == (2, 3, False)
    out = path.parent.parent / "set"
    assert main(["convert", "hdf5", str(path.parent), str(out), "--workers", "1"]) == 1
    assert main(["check", "hdf5", str(path.parent), "--workers", "1"]) == 1
    shown = capsys.readouterr()
    assert "bad\\udcff.h5" in shown.out
    manifest = json.loads((out / "manifest.json").read_bytes())
    assert manifest["counts"]["episodes"] == 3
    assert [(drop["source_file"], drop["kind"]) for drop in manifest["dropped"]] == [("bad\\udcff.h5", "file")]


def test_a_folder_name_that_is_not_utf8(path):
    folder = Path(os.fsdecode(os.fsencode(path.parent.parent) + b"/odd\xfe"))
    path.parent.rename(folder)
    out = folder.parent / "set"
    assert main(["convert", "hdf5", str(folder), str(out), "--workers", "1", "--quiet"]) == 0
    assert json.loads((out / "manifest.json").read_bytes())["name"] == "odd\\udcfe"
    alone = Path(os.fsdecode(os.fsencode(folder) + b"/\xfd.h5"))
    (folder / "a.hdf5").rename(alone)
    assert main(["convert", "hdf5", str(alone), str(folder.parent / "two"), "--quiet"]) == 1


@pytest.mark.parametrize("name", ["c" * 300, "wrist\ncam", "wrist\x9bcam"])
@pytest.mark.parametrize("dialect", ["platform", "robomimic", "aloha"])
def test_a_camera_with_an_impossible_name_is_told(tmp_path, dialect, name):
    made = tmp_path / "a.hdf5"
    if dialect == "platform":
        write_platform(made, episodes=(1,))
        where, old, new = "data/episode_001", "observation.images.camera_02", f"observation.images.{name}"
    elif dialect == "robomimic":
        write_robomimic(made, demos=(0,), masks=False)
        where, old, new = "data/demo_0/obs", "robot0_eye_in_hand_image", f"{name}_image"
    else:
        write_aloha(made)
        where, old, new = "observations/images", "cam_low", name
    with h5py.File(made, "r+") as file:
        file[where].move(old, new)
    source = open_source(made)
    (ref,) = source.episodes()
    assert ref.fault is None
    told = [text for text in source.describe().warnings if "left out: camera" in text]
    assert len(told) == 1
    assert told[0].isprintable()
    assert "refused: a name" in told[0]
    assert any("left out: camera" in text for _, _, text in source.findings())
    assert not check(source, "src").good


def test_control_characters_reach_no_terminal(path, capsys):
    hostile = path.with_name("a\x1b[2J\u202eb.hdf5")
    path.rename(hostile)
    hostile.with_name("c\x9b31m\nd.h5").write_bytes(b"")
    for command in ("convert", "check"):
        words = [
            command,
            "hdf5",
            str(path.parent),
            *([str(path.parent.parent / "set")] if command == "convert" else []),
        ]
        assert main([*words, "--workers", "1"]) == 1
        shown = capsys.readouterr()
        assert "c\\x9b31m\\nd.h5" in shown.out
        assert all(char.isprintable() or char == "\n" for char in shown.out + shown.err)
    hostile.unlink()
    assert main(["convert", "hdf5", str(hostile), str(path.parent.parent / "two")]) == 2
    assert "a\\x1b[2J\\u202eb.hdf5" in capsys.readouterr().err


# --- texts ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["task", "task_zh"])
def test_an_endless_task_is_a_fault(path, key):
    with h5py.File(path, "r+") as file:
        file["data/episode_002"].attrs.create(key, "B" * (MAX_TASK_BYTES + 1), dtype=h5py.string_dtype())
        file["data/episode_003"].attrs.create(key, "B" * MAX_TASK_BYTES, dtype=h5py.string_dtype())
    first, second, third = faults(path)
    assert (first, third) == (None, None)
    assert f"{key} is too long (expected at most 4096 bytes, found 4097 bytes)" in (second or "")


# --- structure --------------------------------------------------------------------------------------------------------


def test_a_stray_first_group_is_its_own_fault(path):
    with h5py.File(path, "r+") as file:
        file["data/episode_000_notes/x"] = np.zeros(3)
    assert [fault is None for fault in faults(path)] == [False, True, True, True]


def test_a_damaged_first_episode_is_its_own_fault(path):
    with h5py.File(path, "r+") as file:
        for key in list(file["data/episode_001"]):
            del file[f"data/episode_001/{key}"]
        file["data/episode_001/junk"] = np.zeros(4)
    first, *others = faults(path)
    assert others == [None, None]
    assert "observation.state" in (first or "")


def test_a_first_episode_that_leads_outside_is_its_own_fault(path, tmp_path):
    write_robomimic(tmp_path / "b.hdf5")
    with h5py.File(tmp_path / "b.hdf5", "r+") as file:
        del file["data/demo_0/actions"]
        file["data/demo_0/actions"] = h5py.ExternalLink(str(path), "/data/episode_001/action")
    first, *others = faults(tmp_path / "b.hdf5")
    assert others == [None, None]
    assert "external link" in (first or "")


def test_what_most_episodes_show_decides(path):
    with h5py.File(path, "r+") as file:  # a stray one in the manner of another dialect, of a lower rank
        file["data/a_first/states"] = np.zeros((4, 2))
        file["data/a_first/actions"] = np.zeros((4, 2))
    source = open_source(path)
    assert [ref.fault is None for ref in source.episodes()] == [False, True, True, True]
    assert source.describe().kind == "hdf5/platform"


def test_nothing_that_is_known_stays_unknown(tmp_path):
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        for k in range(3):
            file[f"data/x{k}/y"] = np.zeros(3)
    with pytest.raises(DataError, match="unknown structure"):
        open_source(tmp_path / "a.hdf5").episodes()


# --- words ------------------------------------------------------------------------------------------------------------


def test_variable_length_strings_are_named_even_if_never_written(path):
    replace(path, CAMERA, shape=(10,), dtype=h5py.string_dtype())
    assert "variable-length strings end at the first zero byte" in (faults(path)[1] or "")


@pytest.mark.parametrize(("value", "rate"), [("true", 20.0), ("1e-300", 20.0), ("1e308", 20.0), ("12.5", 12.5)])
def test_a_rate_that_is_none(tmp_path, value, rate):
    env = f'{{"env_name": "L", "type": 1, "env_kwargs": {{"control_freq": {value}}}}}'
    write_robomimic(tmp_path / "a.hdf5", env_args=env, masks=False)
    source = open_source(tmp_path / "a.hdf5")
    assert all(ref.fault is None for ref in source.episodes())
    info = source.describe()
    assert info.fps == rate
    assert any("is no rate: 20 frames/s assumed" in text for text in info.warnings) == (rate == 20.0)


def test_scanning_a_wide_file_takes_no_memory_in_the_parent(path):
    replace(path, "data/episode_002/action", data=np.ones((10, 65_537), "u1"), compression="gzip")
    code = (
        "import sys; sys.argv[1:] = ['check', 'hdf5', sys.argv[1], '--workers', '1', '--quiet'];"
        "from wdsmix.cli import main; sys.exit(main())"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "too many dimensions" in done.stdout


# --- mapping files, and pictures that no encoder takes ----------------------------------------------------------------

MAPPING = """\
episodes: /data/*
state: [observation.state]
action: [action]
cameras: {cam0: observation.images.camera_01}
fps: 30
"""


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ("30", "true", "fps: Value error, a number is wanted"),
        ("30", "1e-300", "fps: Input should be greater"),
        ("cam0", "json", "json is that of a vector or of the JSON"),
        ("cam0", "state", "state is that of a vector or of the JSON"),
        ("cam0", "c" * 65, "not a name of a slot"),
        ("cam0", "CAM", "not a name of a slot"),
    ],
)
def test_mapping_files_that_can_not_be_meant(path, capsys, old, new, text):
    given = path.parent.parent / "map.yaml"
    given.write_text(MAPPING.replace(old, new))
    for command in (["convert", "hdf5", str(path), str(given.with_name("set"))], ["check", "hdf5", str(path)]):
        assert main([*command, "--mapping", str(given), "--workers", "1", "--quiet"]) == 2
        assert text in capsys.readouterr().err


def test_a_task_of_a_mapping_file_is_cleaned_like_any_other(path):
    given = path.parent.parent / "map.yaml"
    given.write_text(MAPPING + 'task: "a\\x1b[2Jb\\ud800 c"\n')
    source = open_source(path, "--mapping", str(given))
    with source.read(source.episodes()[0]) as episode:
        assert episode.tasks == ("a [2Jb c",)
    assert check(source, "src").good


@pytest.mark.parametrize("slot", ["json", "done", "c" * 65])
def test_slots_given_as_options(path, capsys, slot):
    words = ["convert", "hdf5", str(path), str(path.parent.parent / "set"), "--camera", f"{slot}=camera_01"]
    assert main(words) == 2
    assert "not a name of a slot" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("shape", "text"),
    [((10, 0, 4, 3), "pictures without pixels"), ((10, 1, 70_000, 3), "sides of at most 65500 pixels")],
)
@pytest.mark.parametrize("dtype", ["u1", "f4"])
def test_pictures_of_impossible_sizes_are_told_by_the_scan(path, shape, text, dtype):
    replace(path, CAMERA, data=np.zeros(shape, dtype), **({"compression": "gzip"} if shape[1] else {}))
    assert text in (faults(path)[1] or "")
