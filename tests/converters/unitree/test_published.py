"""Published families: vectors, split keys and whole-body sets, over the LeRobot source."""

from __future__ import annotations

import pickle

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers.unitree_fixtures import motion, open_unitree, read_all, write_published, write_raw
from wdsmix.converters.unitree.tables import ROBOTS, flat_names

from wdsmix import ShardSet, cli
from wdsmix.errors import ConfigError, DataError

WIDTHS = {
    "Unitree_Z1_Single": 7,
    "Unitree_Z1_Dual": 14,
    "Unitree_G1_Dex1": 16,
    "Unitree_G1_Dex1_Sim": 16,
    "Unitree_G1_Dex3": 28,
    "Unitree_G1_Brainco": 26,
    "Unitree_G1_Inspire": 26,
    "Unitree_G1_MoveibleLift_Dex1_UseWaist": 21,
    "Unitree_G1_MoveibleLift_Dex1_NoUseWaist": 19,
    "Unitree_G1_Lift_Dex1_UseWaist": 19,
    "Unitree_G1_Lift_Dex1_NoUseWaist": 17,
}


def trailing(count, width, seed, lag=3):
    action = motion(count + lag, width, seed)
    return action[:count], action[lag:]


def vector_set(root, robot, *, names=None, sign=1, width=None, episodes=3):
    width = width or WIDTHS[robot]
    pairs = [trailing(90, width, seed) for seed in range(episodes)]
    columns = {"observation.state": [s for s, _ in pairs], "action": [sign * a for _, a in pairs]}
    told = None if names is None else {"observation.state": names, "action": names}
    write_published(root, columns, robot=robot, names=told)
    return columns


@pytest.mark.parametrize(("robot", "width"), WIDTHS.items())
def test_robot_tables_have_the_published_widths(robot, width):
    names = flat_names(robot)
    assert len(names) == width
    assert len(set(names)) == width
    assert set(WIDTHS) == set(ROBOTS)


@pytest.mark.parametrize("robot", ["Unitree_G1_Dex3", "Unitree_Z1_Dual"])
def test_vector_family_gets_names_where_none_are_declared(tmp_path, robot):
    written = vector_set(tmp_path / "set", robot)
    source = open_unitree(tmp_path / "set", "--allow-no-camera")
    refs = source.episodes()
    info = source.describe()
    assert info.vectors["state"].names == flat_names(robot)
    assert info.embodiment == robot
    assert info.kind == "unitree/vector-v2.1"
    _, vectors, _ = read_all(pickle.loads(pickle.dumps(source)), refs[1])
    np.testing.assert_array_equal(vectors["action"], written["action"][1].astype(np.float32))
    relation = info.details["relation"]
    assert relation["lag_frames"] == [3.0] * WIDTHS[robot]
    assert min(relation["correlation"]) > 0.99


def test_declared_names_are_kept_and_another_order_is_told(tmp_path):
    joints = ["Waist", "Shoulder", "Elbow", "ForearmRoll", "WristAngle", "WristRotate"]
    left, right = ([f"z1_dual_k{side}{name}" for name in joints] for side in ("Left", "Right"))
    grips = ["z1_dual_kLeftGripper", "z1_dual_kRightGripper"]
    vector_set(tmp_path / "v1", "Unitree_Z1_Dual", names=[[*left, grips[0], *right, grips[1]]])
    vector_set(tmp_path / "v2", "Unitree_Z1_Dual", names=[*left, *right, *grips])
    first, second = (open_unitree(tmp_path / v, "--allow-no-camera").describe() for v in ("v1", "v2"))
    assert not any("another order" in warning for warning in first.warnings)
    assert any("from dimension 6 on (z1_dual_kRightWaist" in warning for warning in second.warnings)
    assert second.vectors["state"].names == (*left, *right, *grips)


def test_a_width_that_is_not_the_robots_is_told(tmp_path):
    vector_set(tmp_path / "set", "Unitree_G1_Dex3", width=26)
    info = open_unitree(tmp_path / "set", "--allow-no-camera").describe()
    assert any("Unitree_G1_Dex3 has 28 joints, 26 are stored" in warning for warning in info.warnings)
    named = open_unitree(tmp_path / "set", "--allow-no-camera", "--robot", "Unitree_G1_Inspire").describe()
    assert named.vectors["state"].names == flat_names("Unitree_G1_Inspire")


def test_an_action_of_the_other_sign_is_a_warning(tmp_path):
    vector_set(tmp_path / "set", "Unitree_Z1_Dual", sign=-1)
    info = open_unitree(tmp_path / "set", "--allow-no-camera").describe()
    assert any("14 of 14 dimensions" in warning for warning in info.warnings)


SPLIT = {"left_arm": 7, "right_arm": 7, "left_gripper": 0, "right_gripper": 0, "left_ee": 6, "right_ee": 6}


def split_set(root, *, meta=True):
    columns = {}
    for seed, (prefix, body) in enumerate((("observation.", 29), ("action.", 7))):
        for place, (key, width) in enumerate({**SPLIT, "body": body}.items()):
            rows = [motion(40, width or 1, 100 * seed + 10 * place + e) for e in range(2)]
            columns[prefix + key] = [r if width else r[:, 0] for r in rows]
    write_published(root, columns, robot="Unitree_G1", meta=meta)
    return columns


@pytest.mark.parametrize("meta", [True, False])
def test_split_keys_are_joined_in_the_configured_order(tmp_path, meta):
    written = split_set(tmp_path / "set", meta=meta)
    source = open_unitree(tmp_path / "set", "--allow-no-camera")
    refs = source.episodes()
    assert [ref.fault for ref in refs] == [None, None]
    _, vectors, _ = read_all(source, refs[1])
    for name, prefix in (("state", "observation."), ("action", "action.")):
        keys = ("left_arm", "right_arm", "left_gripper", "right_gripper")
        wanted = np.column_stack([written[prefix + key][1] for key in keys])
        np.testing.assert_array_equal(vectors[name], wanted.astype(np.float32))
    np.testing.assert_array_equal(vectors["body"], written["observation.body"][1].astype(np.float32))
    np.testing.assert_array_equal(vectors["action_body"], written["action.body"][1].astype(np.float32))
    assert (vectors["left_ee"].shape, vectors["action_left_ee"].shape) == ((40, 6), (40, 6))
    names = source.describe().vectors["state"].names
    assert len(names) == 16
    assert names[14:] == ("observation.left_gripper", "observation.right_gripper")
    assert names[0].startswith("observation.left_arm.")


def test_unitrees_own_order_can_be_asked_for(tmp_path):
    written = split_set(tmp_path / "set")
    keys = [f"observation.{k}" for k in ("left_arm", "right_arm", "right_gripper", "left_gripper")]
    source = open_unitree(tmp_path / "set", "--allow-no-camera", "--state", ",".join(keys))
    _, vectors, _ = read_all(source, source.episodes()[0])
    np.testing.assert_array_equal(vectors["state"][:, 14], written["observation.right_gripper"][0].astype(np.float32))


@pytest.mark.parametrize("hand", [2, 12])
def test_whole_body_sets(tmp_path, hand):
    parts = {"lower_body": 15, "left_arm": 7, "right_arm": 7, "left_leg": 6}
    columns = {f"observation.state.{k}": [motion(40, w, i)] for i, (k, w) in enumerate(parts.items())}
    columns["observation.state.hand_state"] = [motion(40, hand, 9)]
    columns |= {f"action.{k}": [motion(40, w, 20 + i)] for i, (k, w) in enumerate(parts.items())}
    columns["action.hand_cmd"] = [motion(40, hand, 29)]
    write_published(tmp_path / "set", columns, robot="Unitree_G1")
    source = open_unitree(tmp_path / "set", "--allow-no-camera")
    _, vectors, _ = read_all(source, source.episodes()[0])
    keys = ("lower_body", "left_arm", "right_arm", "hand_state")
    wanted = np.column_stack([columns[f"observation.state.{key}"][0] for key in keys]).astype(np.float32)
    np.testing.assert_array_equal(vectors["state"], wanted)
    assert vectors["action"].shape == (40, 29 + hand)
    assert vectors["state_left_leg"].shape == (40, 6)


def test_videos_without_rows_and_other_wrecks_are_said(tmp_path, capsys):
    video = tmp_path / "bread" / "videos" / "chunk-000" / "observation.images.cam" / "episode_000000.mp4"
    video.parent.mkdir(parents=True)
    video.write_bytes(b"x")
    assert cli.main(["convert", "unitree", str(tmp_path / "bread"), str(tmp_path / "out"), "--quiet"]) == 1
    assert "videos only" in capsys.readouterr().err
    (tmp_path / "old" / "meta_data").mkdir(parents=True)
    (tmp_path / "old" / "meta_data" / "info.json").write_text("{}")
    with pytest.raises(DataError, match="v1"):
        open_unitree(tmp_path / "old").episodes()
    (tmp_path / "h1").mkdir()
    (tmp_path / "h1" / "processed_episode_3.hdf5").write_bytes(b"x")
    with pytest.raises(DataError, match="old h1"):
        open_unitree(tmp_path / "h1")
    (tmp_path / "odd").mkdir()
    pq.write_table(pq.read_table(_some_parquet(tmp_path)).select(["timestamp"]), tmp_path / "odd" / "x.parquet")
    with pytest.raises(DataError, match="no recording"):
        open_unitree(tmp_path / "odd")


def _some_parquet(tmp_path):
    vector_set(tmp_path / "some", "Unitree_Z1_Single", episodes=1)
    return next((tmp_path / "some").rglob("*.parquet"))


@pytest.mark.parametrize("wreck", [b"version https://git-lfs.github.com/spec/v1\n", b"PAR1 cut off"])
def test_a_file_that_is_no_parquet_costs_its_episode(tmp_path, wreck):
    vector_set(tmp_path / "set", "Unitree_Z1_Single")
    (tmp_path / "set" / "data/chunk-000/episode_000001.parquet").write_bytes(wreck)
    refs = open_unitree(tmp_path / "set", "--allow-no-camera").episodes()
    assert [ref.fault is None for ref in refs] == [True, False, True]


def test_options_of_raw_recordings_are_not_ignored(tmp_path):
    vector_set(tmp_path / "set", "Unitree_Z1_Single")
    for option in (["--instruction", "x"], ["--dedupe"], ["--swap-hands", "both"], ["--keep-failed"]):
        with pytest.raises(ConfigError, match="only with raw recordings"):
            open_unitree(tmp_path / "set", *option)


def test_sim_as_a_judge_is_a_split_key_set(samples, tmp_path, capsys):
    sample = samples / "unitree" / "sim_as_a_judge"
    assert cli.main(["convert", "unitree", str(sample), str(tmp_path / "no"), "--quiet"]) == 2
    assert "--allow-no-camera" in capsys.readouterr().err
    out = tmp_path / "set"
    command = ["convert", "unitree", str(sample), str(out), "--allow-no-camera", "--quiet", "--workers", "1"]
    assert cli.main(command) == 0
    opened = ShardSet(out)
    table = pq.read_table(sample / "episode_000000.parquet").to_pydict()
    episode = opened.episode(0)
    for name, prefix in (("state", "observation."), ("action", "action.")):
        keys = ("left_arm", "right_arm", "left_gripper", "right_gripper")
        wanted = np.column_stack([np.array(table[prefix + key], np.float32) for key in keys])
        np.testing.assert_array_equal(getattr(episode, name), wanted)
        np.testing.assert_allclose(opened.stats.fields[name].mean, wanted.astype(np.float64).mean(0), rtol=1e-9)
    lag = opened.manifest.details["relation"]["lag_frames"]
    assert 2 <= np.median(lag) <= 5
    assert opened.index.source(0)[0] == "episode_000000.parquet"
    assert cli.main(["check", "unitree", str(sample), "--allow-no-camera", "--quiet"]) == 0


def test_raw_and_published_are_told_apart(tmp_path):
    vector_set(tmp_path / "published", "Unitree_Z1_Single")
    write_raw(tmp_path / "raw" / "episode_0000", 4)
    assert open_unitree(tmp_path / "published", "--allow-no-camera").describe().kind.startswith("unitree/vector")
    assert open_unitree(tmp_path / "raw").describe().kind == "unitree/raw"


@pytest.mark.parametrize("option", [("--keep", "none"), ("--bad-rows", "row"), ("--video-mismatch", "drop")])
def test_options_of_published_sets_are_not_ignored(tmp_path, option):
    write_raw(tmp_path / "e", 4)
    with pytest.raises(ConfigError, match="only with published sets"):
        open_unitree(tmp_path, *option)


def test_episodes_in_another_order_with_running_time_stamps(tmp_path):
    written = vector_set(tmp_path / "set", "Unitree_Z1_Single")
    listed = tmp_path / "set" / "meta" / "episodes.jsonl"
    lines = listed.read_text().splitlines()
    listed.write_text("\n".join([lines[2], lines[0], lines[1]]) + "\n")
    for episode in range(3):
        path = tmp_path / "set" / "data" / "chunk-000" / f"episode_{episode:06d}.parquet"
        table = pq.read_table(path)
        place = table.schema.get_field_index("timestamp")
        stamps = pa.array((np.arange(table.num_rows) / 30 + 3.0 * episode).astype(np.float32))
        pq.write_table(table.set_column(place, "timestamp", stamps), path)
    source = open_unitree(tmp_path / "set", "--allow-no-camera")
    refs = source.episodes()
    assert [ref.id for ref in refs] == [f"episode_{k:06d}" for k in range(3)]
    for k, ref in enumerate(refs):
        np.testing.assert_array_equal(read_all(source, ref)[1]["state"], written["observation.state"][k].astype("f4"))


def test_episodes_without_frames_are_listed(tmp_path):
    vector_set(tmp_path / "set", "Unitree_Z1_Single")
    path = tmp_path / "set" / "data" / "chunk-000" / "episode_000001.parquet"
    pq.write_table(pq.read_table(path).slice(0, 0), path)
    out = tmp_path / "out"
    command = ["convert", "unitree", str(tmp_path / "set"), str(out), "--allow-no-camera", "--quiet", "--workers", "1"]
    assert cli.main(command) == 0
    manifest = ShardSet(out).manifest
    assert manifest.counts.episodes == 2
    assert [drop.source_episode for drop in manifest.dropped] == ["episode_000001"]


def test_split_keys_from_the_hub(tmp_path, monkeypatch):
    pytest.importorskip("huggingface_hub")
    from helpers.fake_hub import FakeHub

    written = split_set(tmp_path / "origin")
    with FakeHub("lab/robot", tmp_path / "origin") as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        monkeypatch.delenv("HF_TOKEN", raising=False)
        out = tmp_path / "set"
        options = ["--cache-dir", str(tmp_path / "cache"), "--allow-no-camera", "--quiet", "--workers", "1"]
        assert cli.main(["convert", "unitree", "hf://lab/robot", str(out), *options]) == 0
    opened = ShardSet(out)
    assert opened.manifest.kind == "unitree/split-v2.1"
    assert opened.manifest.details["repo_id"] == "lab/robot"
    wanted = np.column_stack([written[f"action.{key}"][1] for key in list(SPLIT)[:4]]).astype(np.float32)
    np.testing.assert_array_equal(opened.episode(1).action, wanted)
