"""ALOHA/ACT files, mapping files, detection, and folders that mix dialects."""

from __future__ import annotations

import sys

import h5py
import numpy as np
import pytest
import yaml
from helpers.hdf5_fixtures import (
    ENCODED,
    open_source,
    pictures,
    read_all,
    rgb,
    vectors,
    write_aloha,
    write_platform,
    write_robomimic,
)
from wdsmix.converters.hdf5 import dialects
from wdsmix.converters.hdf5.dialects import all_dialects
from wdsmix.converters.hdf5.mapping import TEMPLATE, Mapped

from wdsmix import cli
from wdsmix.errors import ConfigError, DataError
from wdsmix.imaging import decode_rgb

SLOTS = {"cam0": "cam_high", "cam1": "cam_left_wrist", "cam2": "cam_low"}


def test_aloha_raw(tmp_path):
    written = write_aloha(tmp_path / "episode_0.hdf5")
    source = open_source(tmp_path)
    (ref,) = source.episodes()
    assert ref.id == "episode_0"
    assert ref.vectors == {"state": 14, "action": 14}
    got, views = read_all(source, ref)
    np.testing.assert_array_equal(got["state"], written["qpos"])
    np.testing.assert_array_equal(got["action"], written["action"])
    info = source.describe()
    assert {slot: camera.key for slot, camera in info.cameras.items()} == SLOTS
    assert info.fps == 30  # raw pictures and a base: Cobot Magic
    assert any("30 frames/s" in warning for warning in info.warnings)
    for slot, key in SLOTS.items():
        assert info.cameras[slot].order == "rgb"
        np.testing.assert_array_equal(np.stack(views[slot]), written["views"][key])


@pytest.mark.parametrize("storage", ENCODED)
def test_aloha_compressed_has_red_and_blue_swapped(tmp_path, storage):
    written = write_aloha(tmp_path / "episode_0.hdf5", storage=storage)
    source = open_source(tmp_path)
    (ref,) = source.episodes()
    with source.read(ref) as episode:
        for slot, key in SLOTS.items():
            assert episode.cameras[slot].order == "bgr"
            seen = [decode_rgb(data, order="bgr") for data in episode.images[slot].read(np.arange(10))]
            error = np.abs(np.stack(seen).astype(int) - written["views"][key]).mean()
            assert error < 3
    assert any("--jpeg-order" in warning for warning in source.describe().warnings)
    source = open_source(tmp_path, "--jpeg-order", "rgb")
    assert source.describe().cameras["cam0"].order == "rgb"
    assert not any("--jpeg-order" in warning for warning in source.describe().warnings)


def test_aloha_more_keys(tmp_path):
    write_aloha(tmp_path / "episode_0.hdf5")
    source = open_source(tmp_path, "--state", "qpos,qvel", "--action", "action,base_action", "--fps", "30")
    (ref,) = source.episodes()
    assert ref.vectors == {"state": 28, "action": 16}
    info = source.describe()
    assert info.fps == 30
    assert info.vectors["action"].names[-2:] == ("base_action_0", "base_action_1")


def test_aloha_depth_cameras_are_left_out(tmp_path):
    write_aloha(tmp_path / "episode_0.hdf5")
    with h5py.File(tmp_path / "episode_0.hdf5", "a") as file:
        file["observations/images/cam_high_depth"] = np.zeros((10, 48, 64), np.uint16)
    (ref,) = open_source(tmp_path).episodes()
    assert ref.fault is None
    assert len(ref.cameras) == 3


def write_odd(path, frames=8, shift=0):
    state, action = vectors(frames, 5, 1), vectors(frames, 4, 2)
    views = pictures(frames)
    with h5py.File(path, "w") as file:
        for name in ("run_1", "run_2", "run_10"):
            group = file.create_group(f"log/{name}")
            group.attrs["goal"] = f"goal of {name}"
            group["pos"], group["vel"], group["cmd"] = state[:, :3], state[:, 3:], action
            group["view"] = views[:, ::-1, :, ::-1]  # upside down and BGR
            group["hand"] = views
            group["r"] = np.arange(frames)
    return state, action, views


MAPPING = {
    "episodes": "/log/run_*",
    "state": ["pos", "vel"],
    "action": ["cmd"],
    "reward": "r",
    "cameras": {"cam0": {"path": "view", "order": "bgr", "flip": "vertical"}, "cam1": "hand"},
    "fps": 12,
    "task": {"attr": "goal"},
}


def test_mapping_file(tmp_path):
    state, _, views = write_odd(tmp_path / "odd.h5")
    (tmp_path / "map.yaml").write_text(yaml.safe_dump(MAPPING))
    source = open_source(tmp_path / "odd.h5", "--mapping", str(tmp_path / "map.yaml"))
    refs = source.episodes()
    assert [ref.id for ref in refs] == ["log/run_1", "log/run_2", "log/run_10"]
    info = source.describe()
    assert info.fps == 12
    assert (info.cameras["cam0"].order, info.cameras["cam0"].flip) == ("bgr", "vertical")
    with source.read(refs[2]) as episode:
        assert episode.tasks == ("goal of run_10",)
        np.testing.assert_array_equal(episode.vectors["state"], state.astype(np.float32))
        assert episode.vectors["reward"].ravel().tolist() == list(range(8))
        seen = np.stack(list(episode.images["cam0"].read(np.arange(8))))
        np.testing.assert_array_equal(seen[:, ::-1, :, ::-1], views)


def test_mapping_can_pair_with_the_next_action(tmp_path):
    state, action, views = write_odd(tmp_path / "odd.h5")
    (tmp_path / "map.yaml").write_text(yaml.safe_dump({**MAPPING, "action_shift": 1}))
    source = open_source(tmp_path / "odd.h5", "--mapping", str(tmp_path / "map.yaml"))
    ref = source.episodes()[0]
    assert ref.frames == 7
    got, seen = read_all(source, ref)
    np.testing.assert_array_equal(got["action"], action[1:].astype(np.float32))
    np.testing.assert_array_equal(got["state"], state[:7].astype(np.float32))
    np.testing.assert_array_equal(np.stack(seen["cam1"]), views[:7])
    assert source.describe().details["pairing"] == "action of the next row"


def test_the_template_is_a_valid_mapping():
    Mapped.model_validate(yaml.safe_load(TEMPLATE))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"stat": ["pos"]}, "did you mean 'state'"),
        ({"fps": 0}, "fps"),
        ({"cameras": {"cam0": {"path": "view", "order": "gbr"}}}, "cameras.cam0"),
        ({"cameras": {"CAM 0": "view"}}, "cameras"),
        ({"state": []}, "state"),
    ],
)
def test_bad_mapping_files(tmp_path, change, message):
    (tmp_path / "map.yaml").write_text(yaml.safe_dump({**MAPPING, **change}))
    with pytest.raises(ConfigError, match=message):
        open_source(tmp_path, "--mapping", str(tmp_path / "map.yaml"))


def test_mapping_files_that_are_none(tmp_path):
    for text in ("- a\n- b\n", "a: [", "x" * (2 << 20)):
        (tmp_path / "map.yaml").write_text(text)
        with pytest.raises(ConfigError):
            open_source(tmp_path, "--mapping", str(tmp_path / "map.yaml"))
    with pytest.raises(ConfigError, match="can't read"):
        open_source(tmp_path, "--mapping", str(tmp_path / "absent.yaml"))
    with pytest.raises(ConfigError, match="needs --mapping"):
        open_source(tmp_path, "--dialect", "mapping")


def test_unknown_structure_shows_the_tree_and_a_template(tmp_path):
    write_odd(tmp_path / "odd.h5")
    with pytest.raises(DataError) as raised:
        open_source(tmp_path / "odd.h5").episodes()
    text = str(raised.value)
    assert "unknown structure" in text
    assert "pos  (8, 3) float64" in text
    assert TEMPLATE in text


def test_the_tree_is_cut_after_forty_lines(tmp_path):
    with h5py.File(tmp_path / "odd.h5", "w") as file:
        for number in range(100):
            file[f"thing_{number}"] = np.zeros(3)
    with pytest.raises(DataError) as raised:
        open_source(tmp_path / "odd.h5").episodes()
    assert "thing_39 " in str(raised.value)
    assert "thing_40 " not in str(raised.value)


def test_a_folder_of_several_dialects(tmp_path):
    write_platform(tmp_path / "a_platform.hdf5", episodes=[1])
    write_robomimic(tmp_path / "sub.hdf5", demos=[3])
    write_aloha(tmp_path / "z_episode_1.hdf5", storage="padded")
    write_odd(tmp_path / "odd.h5")
    source = open_source(tmp_path, "--fps", "20")
    refs = source.episodes()
    assert [(ref.file, ref.locator.get("dialect")) for ref in refs] == [
        ("a_platform.hdf5", "platform"),
        ("odd.h5", None),
        ("sub.hdf5", "robomimic"),
        ("z_episode_1.hdf5", "aloha"),
    ]
    assert refs[1].fault_kind == "file"
    assert refs[1].fault.startswith("unknown structure: log/")
    assert "\n" not in refs[1].fault
    for ref in refs:
        if ref.fault is None:
            _, views = read_all(source, ref)
            assert rgb(views["cam0"][0]).ndim == 3
    info = source.describe()
    assert info.kind == "hdf5/aloha+platform+robomimic"
    assert info.cameras["cam0"].key == "cam_high|camera_01|agentview_image"


def test_other_rates_are_a_fault_of_the_fewer(tmp_path):
    write_platform(tmp_path / "a.hdf5", episodes=[1, 2])
    write_aloha(tmp_path / "b.hdf5", storage="padded")
    source = open_source(tmp_path)
    refs = source.episodes()
    assert source.describe().fps == 30
    assert [ref.fault is None for ref in refs] == [True, True, False]
    assert "50 frames/s" in refs[2].fault


def test_limits_hold_for_what_all_dialects_share(tmp_path):
    (tmp_path / "both").mkdir()
    write_robomimic(tmp_path / "both/a.hdf5")
    write_aloha(tmp_path / "b.hdf5")
    write_robomimic(tmp_path / "a.hdf5")
    assert open_source(tmp_path / "a.hdf5").describe().details["limits"] == {"action": 1.0}
    assert open_source(tmp_path / "b.hdf5").describe().details["limits"] == {"state": 6.5, "action": 6.5}
    assert open_source(tmp_path).describe().details["limits"] == {"action": 6.5}
    assert "limits" not in open_source(tmp_path / "a.hdf5", "--action", "states").describe().details
    write_platform(tmp_path / "c.hdf5")
    assert "limits" not in open_source(tmp_path).describe().details


def test_the_list_of_dialects_is_made_of_them(capsys):
    assert cli.main(["convert", "hdf5", "--dialects"]) == 0
    shown = capsys.readouterr().out
    for name, dialect in all_dialects().items():
        assert f"\n{name}: " in f"\n{shown}"
        for words in (dialect.state, dialect.action, dialect.cameras, dialect.rate, dialect.pairing):
            assert words
            assert words in shown


def test_a_dialect_is_one_module(tmp_path, monkeypatch):
    (tmp_path / "newcomer.py").write_text(
        "from wdsmix.converters.hdf5.layout import Dialect, EpisodeLayout, Part\n"
        "from wdsmix.converters.hdf5.rules import assumed_rate, one_episode, plain_cameras, root_has\n"
        "def layout(tree, group, options, facts):\n"
        "    cameras, warnings = plain_cameras(options, {'eye': '/eye'})\n"
        "    part = Part(path='/pose', name='pose')\n"
        "    return EpisodeLayout(state=[part], action=[part], cameras=cameras, task='x', warnings=warnings)\n"
        "DIALECTS = [Dialect(name='newcomer', rank=5, summary='pose, eye', matches=root_has('pose', 'eye'),\n"
        "    groups=one_episode, facts=lambda tree, options: assumed_rate(options, 7, 'these'), layout=layout)]\n"
    )
    monkeypatch.setattr(dialects, "__path__", [*dialects.__path__, str(tmp_path)])
    all_dialects.cache_clear()
    try:
        with h5py.File(tmp_path / "a.h5", "w") as file:
            file["pose"], file["eye"] = vectors(5, 3, 0), pictures(5)
        source = open_source(tmp_path)
        (ref,) = source.episodes()
        assert (source.describe().kind, source.describe().fps, ref.frames) == ("hdf5/newcomer", 7, 5)
        assert len(read_all(source, ref)[1]["cam0"]) == 5
        assert "newcomer: pose, eye" in dialects.described()
    finally:
        all_dialects.cache_clear()
        sys.modules.pop(f"{dialects.__name__}.newcomer", None)


def test_a_hostile_working_folder_runs_no_code(tmp_path, monkeypatch):
    source = tmp_path / "source"
    source.mkdir()
    write_platform(source / "chunk_001.hdf5", episodes=[1])
    for name in ("h5py", "numpy", "json", "wdsmix"):
        (source / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    monkeypatch.chdir(source)
    (ref,) = open_source(source, isolate=True).episodes()
    assert ref.fault is None
    assert not (tmp_path / "ran").exists()
