"""Raw recordings: every writer generation, and what is told of them."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest
from helpers.nav_fixtures import jpeg
from helpers.unitree_fixtures import (
    GENERATIONS,
    PLACEHOLDER,
    edited,
    info,
    make_items,
    open_unitree,
    read_all,
    write_json,
    write_pictures,
    write_raw,
)
from PIL import Image

from wdsmix import ShardSet, cli
from wdsmix.errors import ConfigError, DataError

ARM = ["ShoulderPitch", "ShoulderRoll", "ShoulderYaw", "Elbow", "WristRoll", "WristPitch", "WristYaw"]


def only(source):
    (ref,) = source.episodes()
    return ref


@pytest.mark.parametrize("generation", GENERATIONS)
def test_every_generation_gives_the_same_rows(tmp_path, generation):
    written = write_raw(tmp_path / "task" / "episode_0000", generation=generation)
    source = open_unitree(tmp_path)
    ref = only(source)
    assert ref.fault is None
    assert (ref.file, ref.id, ref.frames) == ("task/episode_0000", "episode_0000", 20)
    episode, vectors, pictures = read_all(pickle.loads(pickle.dumps(source)), ref)
    np.testing.assert_array_equal(vectors["state"], written["state"].astype(np.float32))
    np.testing.assert_array_equal(vectors["action"], written["action"].astype(np.float32))
    assert pictures["cam0"] == [written["pictures"][f"colors/{k:06d}_color_0.jpg"] for k in range(20)]
    assert pictures["cam1"] == [written["pictures"][f"colors/{k:06d}_color_1.jpg"] for k in range(20)]
    assert episode.tasks == ("stack the blocks",)
    assert episode.extras["desc"] == "two blocks"
    np.testing.assert_allclose(episode.timestamps if episode.timestamps is not None else [], np.arange(20) / 30)
    further = {"body": 29, "action_body": 3} if generation in ("v1.1", "v1.3") else {}
    assert dict(ref.vectors) == {"state": 28, "action": 28, **further}
    names = source.describe().vectors["state"].names
    assert names[:14] == (*(f"kLeft{n}" for n in ARM), *(f"kRight{n}" for n in ARM))
    assert names[14] == "kLeftHandThumb0"
    assert names[21:] == tuple(
        f"kRightHand{n}" for n in ("Thumb0", "Thumb1", "Thumb2", "Index0", "Index1", "Middle0", "Middle1")
    )


def test_further_parts_can_be_joined(tmp_path):
    written = write_raw(tmp_path / "e", generation="v1.1")
    source = open_unitree(tmp_path, "--state", "left_arm,body", "--action", "left_hand.qpos,right_arm")
    _, vectors, _ = read_all(source, only(source))
    np.testing.assert_array_equal(vectors["state"][:, :7], written["state"][:, :7].astype(np.float32))
    assert vectors["state"].shape == (20, 36)
    wanted = np.c_[written["action"][:, 14:21], written["action"][:, 7:14]].astype(np.float32)
    np.testing.assert_array_equal(vectors["action"], wanted)
    assert "no such part" in only(open_unitree(tmp_path, "--state", "tail")).fault


def test_velocities_and_other_parts_become_further_vectors(tmp_path):
    items, _ = make_items(20)
    for k, item in enumerate(items):
        item["states"]["left_arm"]["qvel"] = [0.1 * k] * 7
        item["states"]["wrist_pose"] = [float(k)] * 6
        item["actions"]["torso"] = {"qvel": 0.5, "height": [1.0]}
    write_pictures(tmp_path / "e", items)
    write_json(tmp_path / "e", items)
    ref = only(open_unitree(tmp_path))
    assert {n: w for n, w in ref.vectors.items() if n not in ("state", "action")} == {
        "left_arm_qvel": 7,
        "wrist_pose": 6,
        "action_torso_qvel": 1,
        "action_torso_height": 1,
    }


@pytest.mark.parametrize(
    ("cameras", "slots"),
    [
        (1, {"cam0": "color_0"}),
        (2, {"cam0": "color_0", "cam1": "color_1"}),
        (3, {"cam0": "color_0", "cam1": "color_1", "cam2": "color_2"}),
        (4, {"cam0": "color_0", "cam1": "color_2", "cam2": "color_1", "cam3": "color_3"}),
    ],
)
def test_camera_slots_follow_the_keys_that_are_there(tmp_path, cameras, slots):
    write_raw(tmp_path / "e", 4, cameras=cameras)
    info_ = open_unitree(tmp_path).describe()
    assert {slot: camera.key for slot, camera in info_.cameras.items()} == slots


def test_cameras_can_be_chosen_and_others_may_lack_pictures(tmp_path):
    written = write_raw(tmp_path / "e", 6)
    for k in range(6):
        (tmp_path / "e" / f"colors/{k:06d}_color_2.jpg").unlink()
    assert "absent" in only(open_unitree(tmp_path)).fault
    source = open_unitree(tmp_path, "--camera", "cam0=color_1")
    _, _, pictures = read_all(source, only(source))
    assert pictures == {"cam0": [written["pictures"][f"colors/{k:06d}_color_1.jpg"] for k in range(6)]}
    with pytest.raises(ConfigError, match="no such camera"):
        open_unitree(tmp_path, "--camera", "cam0=color_9").episodes()


@pytest.mark.parametrize("cut", [1, 3, 40, 700, "item", "comma", "half_character", "nulls"])
def test_cut_off_json_is_recovered_to_the_last_whole_frame(tmp_path, cut):
    items, vectors = make_items(12, generation="v1.3")
    items[9]["note"] = "漢字"
    write_pictures(tmp_path / "e", items)
    path = write_json(tmp_path / "e", items, streamed=True)
    raw = path.read_bytes()
    text = raw.decode()
    starts = [place for place in range(len(text)) if text.startswith('"idx":', place)]
    if cut == "item":
        text, whole = text[: text.rindex("{", 0, starts[8])], 8
    elif cut == "comma":
        text, whole = text[: text.rindex(",", 0, starts[8]) + 1], 8
    elif cut == "half_character":
        raw = raw[: raw.index("字".encode()) + 1]
        text, whole = None, 9
    elif cut == "nulls":
        raw = raw[:-900] + bytes(900)
        text, whole = None, 11
    else:
        raw, text = raw[:-cut], None
        whole = 12 if cut < 4 else 11
    path.write_bytes(raw if text is None else text.encode())
    source = open_unitree(tmp_path)
    ref = only(source)
    assert ref.fault is None
    assert ref.frames == whole
    episode, got, _ = read_all(source, ref)
    np.testing.assert_array_equal(got["state"], vectors["state"][:whole].astype(np.float32))
    assert episode.extras["recovered"] is True
    assert source.describe().details["recovered"] == ["e"]
    assert any("cut off" in warning for warning in source.describe().warnings)


def test_json_damaged_in_the_middle_is_not_taken_for_a_cut(tmp_path):
    items, _ = make_items(12)
    write_pictures(tmp_path / "e", items)
    path = write_json(tmp_path / "e", items, streamed=True)
    raw = path.read_text()
    path.write_text(raw.replace('"idx": 5,', '"idx": 5#', 1))
    assert "damaged in the middle" in only(open_unitree(tmp_path)).fault


def test_dropped_items_shift_nothing(tmp_path):
    items, vectors = make_items(20, first=3)
    kept = [k for k in range(20) if k not in (5, 6, 13)]
    items = [items[k] for k in kept]
    pictures = write_pictures(tmp_path / "e", items)
    write_json(tmp_path / "e", [items[1], items[0], *items[2:]])  # written out of order
    source = open_unitree(tmp_path)
    episode, got, shown = read_all(source, only(source))
    np.testing.assert_array_equal(got["state"], vectors["state"][kept].astype(np.float32))
    assert shown["cam0"] == [pictures[f"colors/{k + 3:06d}_color_0.jpg"] for k in kept]
    np.testing.assert_allclose(episode.timestamps, np.array(kept) / 30)
    assert episode.frame_extras["idx"] == [k + 3 for k in kept]
    info_ = source.describe()
    assert info_.details["never_written"] == 3
    assert any("3 frames were never written" in warning for warning in info_.warnings)


def test_a_frame_without_one_picture_goes_for_all_cameras(tmp_path):
    written = write_raw(tmp_path / "e", 12, generation="v1.3")
    folder = tmp_path / "e"
    (folder / "colors/000002_color_1.jpg").unlink()
    (folder / "colors/000005_color_0.jpg").write_bytes(written["pictures"]["colors/000005_color_0.jpg"][:-200])
    (folder / "colors/000007_color_2.jpg").write_bytes(b"")
    items = edited(written["items"])
    del items[9]["colors"]["color_1"]
    items[10]["colors"]["color_0"] = None
    write_json(folder, items)
    source = open_unitree(tmp_path)
    kept = [0, 1, 3, 4, 6, 8, 11]
    ref = only(source)
    assert ref.frames == len(kept)
    episode, got, shown = read_all(source, ref)
    np.testing.assert_array_equal(got["action"], written["action"][kept].astype(np.float32))
    for slot, camera in (("cam0", 0), ("cam1", 1), ("cam2", 2)):
        assert shown[slot] == [written["pictures"][f"colors/{k:06d}_color_{camera}.jpg"] for k in kept]
    assert episode.extras["frames_left_out"] == 5
    told = source.describe()
    assert sum(told.details["left_out"].values()) == 5
    assert told.details["left_out"]["color_0: a bad picture"] == 1
    assert "5 of 12 frames lack a picture" in only(open_unitree(tmp_path, "--missing-picture", "fail")).fault


def test_a_picture_that_breaks_inside_drops_its_episode(tmp_path, capsys):
    written = write_raw(tmp_path / "src" / "episode_0000", 6)
    write_raw(tmp_path / "src" / "episode_0001", 6, seed=1)
    data = bytearray(written["pictures"]["colors/000003_color_1.jpg"])
    data[200:-100] = bytes(len(data) - 300)
    (tmp_path / "src/episode_0000/colors/000003_color_1.jpg").write_bytes(data)
    assert (
        cli.main(["convert", "unitree", str(tmp_path / "src"), str(tmp_path / "set"), "--quiet", "--workers", "1"]) == 0
    )
    dropped = ShardSet(tmp_path / "set").manifest.dropped
    assert [drop.source_episode for drop in dropped] == ["episode_0000"]


@pytest.mark.parametrize("every", [2, 3])
def test_repeated_pictures_are_measured_and_can_be_left_out(tmp_path, every):
    items, vectors = make_items(24)
    folder = tmp_path / "e"
    for k, item in enumerate(items):  # the loop runs faster than the cameras
        for c, path in enumerate(item["colors"].values()):
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(jpeg(100 * c + k // every))
    write_json(folder, items, info=info(60))
    source = open_unitree(tmp_path)
    told = source.describe()
    new = 24 // every
    assert told.fps == 60
    assert told.details["repeated_pictures"]["frames"] == 24 - new
    assert told.details["rate"]["new_pictures_per_second"] == pytest.approx(60 / every)
    assert any("--dedupe" in warning for warning in told.warnings)
    deduped = open_unitree(tmp_path, "--dedupe")
    episode, got, shown = read_all(deduped, only(deduped))
    np.testing.assert_array_equal(got["state"], vectors["state"][::every].astype(np.float32))
    assert len(set(shown["cam0"])) == len(shown["cam0"]) == new
    np.testing.assert_allclose(episode.timestamps, np.arange(new) * every / 60)
    assert deduped.describe().fps == pytest.approx(60 / every)
    assert not any("--dedupe" in warning for warning in deduped.describe().warnings)
    assert open_unitree(tmp_path, "--fps", "30").describe().fps == 30


def test_one_frozen_camera_is_told_apart(tmp_path):
    written = write_raw(tmp_path / "e", 10)
    for k in range(10):
        (tmp_path / "e" / f"colors/{k:06d}_color_2.jpg").write_bytes(written["pictures"]["colors/000000_color_2.jpg"])
    told = open_unitree(tmp_path).describe().details["repeated_pictures"]
    assert told["cameras"] == {"color_0": 0, "color_1": 0, "color_2": 9}
    assert told["frames"] == 0


def test_rates_asked_and_measured(tmp_path):
    items, _ = make_items(10)
    for k, item in enumerate(items):
        item["timestamp"] = 1_750_000_000.0 + k / 19
    write_pictures(tmp_path / "e", items)
    write_json(tmp_path / "e", items, info=info(30))
    info_ = open_unitree(tmp_path).describe()
    assert info_.details["rate"]["by_time_stamps"] == pytest.approx(19, rel=1e-3)
    assert any("30 frames/s were asked for, the time stamps show 19" in warning for warning in info_.warnings)


def test_without_a_rate_thirty_is_assumed_and_said(tmp_path):
    items, _ = make_items(5)
    write_pictures(tmp_path / "e", items)
    write_json(tmp_path / "e", items, info={"image": {"fps": None}})
    info_ = open_unitree(tmp_path).describe()
    assert info_.fps == 30
    assert any("tells no rate" in warning for warning in info_.warnings)


def test_an_episode_of_another_rate_is_left_out(tmp_path):
    write_raw(tmp_path / "a", 20)
    write_raw(tmp_path / "b", 5, fps=60)
    assert "recorded for 60 frames/s" in open_unitree(tmp_path).episodes()[1].fault
    assert open_unitree(tmp_path, "--fps", "30").episodes()[1].fault is None


@pytest.mark.parametrize(
    ("folder", "levels"), [(".", 0), ("episode_0000", 1), ("task/episode_0000", 2), ("a/task/episode_0000", 3)]
)
def test_recordings_are_found_at_any_depth_up_to_three(tmp_path, folder, levels):
    write_raw(tmp_path / "src" / folder, 4)
    assert only(open_unitree(tmp_path / "src")).fault is None


def test_too_deep_inside_and_nowhere_are_said(tmp_path):
    write_raw(tmp_path / "a/b/c/d/episode_0000", 4)
    with pytest.raises(DataError, match=r"too deep.*a/b/c/d/episode_0000"):
        open_unitree(tmp_path)
    with pytest.raises(DataError, match="a folder of an episode"):
        open_unitree(tmp_path / "a/b/c/d/episode_0000/colors")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no recording"):
        open_unitree(tmp_path / "empty")
    with pytest.raises(DataError, match="no such"):
        open_unitree(tmp_path / "nowhere")


def test_natural_order_and_fixed_subfolders(tmp_path):
    for name in ("take_10", "take_2", "take_1"):
        write_raw(tmp_path / name, 4)
        (tmp_path / name / "audios").mkdir()
        (tmp_path / name / "audios" / "data.json").write_text("{}")
    assert [ref.id for ref in open_unitree(tmp_path).episodes()] == ["take_1", "take_2", "take_10"]


def test_placeholder_tasks_are_told_and_overridden(tmp_path):
    write_raw(tmp_path / "e", 4, text={"goal": PLACEHOLDER, "desc": "", "steps": None})
    assert any("placeholder" in warning for warning in open_unitree(tmp_path).describe().warnings)
    source = open_unitree(tmp_path, "--instruction", "open the drawer")
    episode, _, _ = read_all(source, only(source))
    assert episode.tasks == ("open the drawer",)
    assert episode.extras == {"goal": PLACEHOLDER}
    assert not any("placeholder" in warning for warning in source.describe().warnings)
    write_raw(tmp_path / "f", 4, text={})
    assert any("1 episode has no task" in warning for warning in open_unitree(tmp_path).describe().warnings)


@pytest.mark.parametrize("shared", [4, 6])
def test_overlapping_arm_halves_are_flagged(tmp_path, shared):
    items, _ = make_items(10)
    for item in items:
        left = item["states"]["left_arm"]["qpos"]
        item["states"]["right_arm"]["qpos"][:shared] = left[-shared:]
    write_pictures(tmp_path / "e", items)
    write_json(tmp_path / "e", items)
    warnings = open_unitree(tmp_path).describe().warnings
    assert any(f"last {shared} joints of the left arm" in warning for warning in warnings)


def test_copied_hands_unlike_units_and_swaps(tmp_path):
    items, vectors = make_items(20, ee=6)
    for item in items:
        item["actions"]["right_ee"] = item["actions"]["left_ee"]
        item["states"]["left_ee"]["qpos"] = [500 + 400 * x for x in item["states"]["left_ee"]["qpos"]]
    write_pictures(tmp_path / "e", items)
    write_json(tmp_path / "e", items)
    warnings = " ".join(open_unitree(tmp_path).describe().warnings)
    assert "left and right hand of the action are equal" in warnings
    assert "unlike units" in warnings
    assert "--robot Unitree_G1_Inspire" in warnings
    source = open_unitree(tmp_path, "--swap-hands", "state", "--robot", "Unitree_G1_Inspire")
    _, got, _ = read_all(source, only(source))
    np.testing.assert_allclose(got["state"][:, 14:20], vectors["state"][:, 20:], rtol=1e-6)
    assert source.describe().vectors["state"].names[14] == "kLeftHandPinky"
    wrong = open_unitree(tmp_path, "--robot", "Unitree_G1_Dex3").describe()
    assert any("Unitree_G1_Dex3 has 28 joints, the state has 26" in warning for warning in wrong.warnings)
    with pytest.raises(ConfigError, match="no such robot"):
        open_unitree(tmp_path, "--robot", "R2D2")


def test_action_state_relation_is_measured(tmp_path):
    for k in range(3):
        write_raw(tmp_path / f"e{k}", 120, seed=k, lag=4, cameras=1)
    told = open_unitree(tmp_path).describe()
    relation = told.details["relation"]
    assert relation["lag_frames"] == [4.0] * 28
    assert min(relation["correlation"]) > 0.99
    assert not any("correlate" in warning for warning in told.warnings)
    items, vectors = make_items(120, cameras=1)
    jumps = np.abs(np.diff(vectors["state"], axis=0)).max(axis=0)
    write_pictures(tmp_path / "only" / "e", items)
    write_json(tmp_path / "only" / "e", items)
    own = open_unitree(tmp_path / "only").describe().details["relation"]["state"]
    np.testing.assert_allclose(own["largest_jump"], jumps, atol=1e-5)
    np.testing.assert_allclose(own["min"], vectors["state"].min(0), atol=1e-5)


@pytest.mark.parametrize("dims", [[3], range(28)])
def test_a_negative_correlation_is_a_warning(tmp_path, dims):
    items, vectors = make_items(120, cameras=1)
    state = vectors["state"].copy()
    state[:, list(dims)] *= -1
    for k, item in enumerate(items):
        for name, (low, high) in {
            "left_arm": (0, 7),
            "right_arm": (7, 14),
            "left_ee": (14, 21),
            "right_ee": (21, 28),
        }.items():
            item["states"][name]["qpos"] = state[k, low:high].tolist()
    write_pictures(tmp_path / "e", items)
    write_json(tmp_path / "e", items)
    warnings = [w for w in open_unitree(tmp_path).describe().warnings if "correlate negatively" in w]
    assert len(warnings) == 1
    assert ("kLeftElbow" in warnings[0]) if len(dims) == 1 else ("28 of 28" in warnings[0])


def test_failed_episodes_are_filtered(tmp_path):
    write_raw(tmp_path / "a", 4)
    write_raw(tmp_path / "b", 4)
    (tmp_path / "b" / "FAILED").touch()
    assert [ref.fault_kind for ref in open_unitree(tmp_path).episodes() if ref.fault] == ["filter"]
    assert all(ref.fault is None for ref in open_unitree(tmp_path, "--keep-failed").episodes())


def test_depth_of_the_first_writer_and_not_of_the_second(tmp_path):
    items, _ = make_items(4, generation="oct2024", cameras=1)
    write_pictures(tmp_path / "a", items)
    (tmp_path / "a" / "depths").mkdir()
    values = np.arange(48 * 36, dtype=np.uint16).reshape(36, 48) * 7
    for item in items:
        Image.fromarray(values).save(tmp_path / "a" / item["depths"]["depth_0"])
    write_json(tmp_path / "a", items)
    assert any("--depth keeps it" in warning for warning in open_unitree(tmp_path / "a").describe().warnings)
    command = ["convert", "unitree", str(tmp_path / "a"), str(tmp_path / "set"), "--depth", "--quiet", "--workers", "1"]
    assert cli.main(command) == 0
    assert ShardSet(tmp_path / "set").manifest.cameras["cam1"].kind == "depth"
    write_raw(tmp_path / "b", 4, generation="dec2024")
    assert any("JPEG, 8 bits and lossy" in warning for warning in open_unitree(tmp_path / "b").describe().warnings)


def test_grey_pictures_become_colour(tmp_path):
    items, _ = make_items(4, cameras=2)
    write_pictures(tmp_path / "src" / "e", items)
    for item in items:
        _, x = np.mgrid[0:30, 0:40]
        Image.fromarray((x * 5 % 256).astype(np.uint8)).save(tmp_path / "src" / "e" / item["colors"]["color_0"])
    write_json(tmp_path / "src" / "e", items)
    assert (
        cli.main(["convert", "unitree", str(tmp_path / "src"), str(tmp_path / "set"), "--quiet", "--workers", "1"]) == 0
    )
    opened = ShardSet(tmp_path / "set")
    assert opened.manifest.cameras["cam0"].sizes == [(40, 30)]
    assert opened.manifest.cameras["cam1"].passthrough == 4


def test_avp_sample_fails_with_the_reason_and_converts_with_pictures(samples, tmp_path, capsys):
    sample = samples / "unitree" / "avp_sample"
    assert cli.main(["convert", "unitree", str(sample), str(tmp_path / "no"), "--quiet"]) == 1
    assert "its pictures are absent" in capsys.readouterr().err
    raw = json.loads((sample / "sample_data.json").read_text())
    pictures = write_pictures(tmp_path / "src" / "episode_0000", raw["data"])
    (tmp_path / "src" / "episode_0000" / "data.json").write_bytes((sample / "sample_data.json").read_bytes())
    out = tmp_path / "set"
    assert cli.main(["convert", "unitree", str(tmp_path / "src"), str(out), "--quiet", "--workers", "1"]) == 0
    opened = ShardSet(out)
    episode = opened.episode(0)
    for vector, block in (("state", "states"), ("action", "actions")):
        wanted = [
            [
                number
                for part_ in ("left_arm", "right_arm", "left_hand", "right_hand")
                for number in item[block][part_]["qpos"]
            ]
            for item in raw["data"]
        ]
        np.testing.assert_array_equal(getattr(episode, vector), np.array(wanted, np.float32))
    members = opened.shard(0).members(1)
    assert bytes(members["cam0.jpg"]) == pictures["colors/000001_color_0.jpg"]
    assert cli.main(["check", "unitree", str(tmp_path / "src"), "--quiet"]) == 0
    assert cli.main(["check", "unitree", str(sample), "--quiet"]) == 1
    assert cli.main(["convert", "unitree", str(sample), str(tmp_path / "low"), "--allow-no-camera", "--quiet"]) == 0


def test_many_recordings_are_scanned_in_processes(tmp_path, monkeypatch):
    from wdsmix.converters.unitree import raw

    for k in range(5):
        write_raw(tmp_path / f"e{k}", 4, seed=k)
    alone = open_unitree(tmp_path).episodes()
    monkeypatch.setattr(raw, "_PARALLEL_BYTES", 0)
    source = raw.RawSource(tmp_path, open_unitree(tmp_path)._options, workers=2)
    assert source.episodes() == alone


def test_inputs_and_fingerprint_follow_the_files(tmp_path):
    written = write_raw(tmp_path / "e", 3)
    named = {path.relative_to(tmp_path).as_posix() for path in open_unitree(tmp_path).inputs()}
    assert named == {"e/data.json", *(f"e/{path}" for path in written["pictures"])}
    before = open_unitree(tmp_path).fingerprint()
    write_json(tmp_path / "e", written["items"], text={"goal": "another"})
    assert open_unitree(tmp_path).fingerprint() != before


@pytest.mark.parametrize("name", ["", "-x", "état", "a b", "state", "reward", "json", "cam0", "x" * 70])
def test_parts_of_odd_names_cost_only_their_episode(tmp_path, name):
    items, _ = make_items(4)
    for item in items:
        item["states"][name] = [1.0]
    write_pictures(tmp_path / "bad", items)
    write_json(tmp_path / "bad", items)
    write_raw(tmp_path / "good", 4)
    bad, good = open_unitree(tmp_path).episodes()
    assert "can't be that of a vector" in bad.fault
    assert good.fault is None


def test_parts_and_cameras_without_end_are_refused(tmp_path):
    items, _ = make_items(4)
    for item in items:
        item["states"].update({f"p{k}": [1.0] for k in range(80)})
    write_pictures(tmp_path / "a", items)
    write_json(tmp_path / "a", items)
    items, _ = make_items(4)
    for item in items:
        item["colors"] = {f"color_{k}": item["colors"]["color_0"] for k in range(20)}
    write_pictures(tmp_path / "b", items)
    write_json(tmp_path / "b", items)
    first, second = open_unitree(tmp_path).episodes()
    assert "too many parts" in first.fault
    assert "too many cameras" in second.fault
