"""What becomes state and action, and which camera gets which slot."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from helpers.lerobot_fixtures import Made, fixed, opened, picture, shown, write_json, write_video
from wdsmix.converters.lerobot.cameras import default_slots

from wdsmix.errors import ConfigError, DataError


def vectors(width: int, key: str):
    return lambda length, salt=0: fixed(np.random.default_rng([salt, width]).random((length, width), np.float32))


def split(**columns: int):
    """Columns in place of state and action: name (with __ for a dot) -> width."""

    def make(episode, length):
        made = {
            name.replace("__", "."): fixed(np.full((length, width), k + 1, np.float32))
            for k, (name, width) in enumerate(columns.items())
        }
        return {"action": None, "observation.state": None, **made}

    return make


def test_names_of_openpi(tmp_path):
    made = Made(
        columns=lambda episode, length: {
            "observation.state": None,
            "action": None,
            "state": fixed(made.state_of(episode)),
            "actions": fixed(made.action_of(episode)),
        }
    )
    source, refs = opened(made.write(tmp_path / "robot"))
    episode = source.read(refs[0])
    assert np.array_equal(episode.vectors["state"], made.state_of(0))
    assert np.array_equal(episode.vectors["action"], made.action_of(0))


def test_split_columns_need_a_choice(tmp_path):
    made = Made(columns=split(action__joints=6, action__eef_position=3, action__delta_joints=6, state__joints=6))
    root = made.write(tmp_path / "robot")
    with pytest.raises(ConfigError) as said:
        opened(root)
    text = str(said.value)
    assert "action.joints (6)" in text
    assert "--action action.eef_position,action.joints" in text  # deltas beside absolute ones are not joined
    source, refs = opened(root, action=("action.joints", "action.eef_position"))
    episode = source.read(refs[0])
    assert episode.vectors["action"].shape == (9, 9)
    assert episode.vectors["action"][0].tolist() == [1] * 6 + [2] * 3
    assert episode.vectors["state"].shape == (9, 6)
    info = source.describe()
    assert info.details["columns"]["action"] == ["action.joints", "action.eef_position"]
    assert info.vectors["action"].names[0] == "action.joints.dim_0"
    assert not info.vectors["action"].kinds
    assert any("state is state.joints" in text for text in info.warnings)
    with pytest.raises(ConfigError, match=r"--action: no such column of numbers"):
        opened(root, action=("action.absent",))


def test_deltas_are_known_by_their_names(tmp_path):
    made = Made(columns=split(action__delta_eef_position=3, action__delta_eef_rotation=3, state__joints=6))
    root = made.write(tmp_path / "robot")
    source, _ = opened(root, action=("action.delta_eef_position", "action.delta_eef_rotation"))
    assert source.describe().vectors["action"].kinds == ("delta",) * 3 + ("delta_rotation",) * 3


def test_modality_joins_split_columns(tmp_path):
    made = Made(columns=split(action__joints=6, action__gripper=1, state__joints=6))
    root = made.write(tmp_path / "robot")
    modality = {
        "state": {"arm": {"start": 0, "end": 6, "original_key": "state.joints"}},
        "action": {
            "gripper": {"start": 0, "end": 1, "original_key": "action.gripper"},
            "arm": {"start": 2, "end": 6, "original_key": "action.joints", "absolute": False},
            "turn": {
                "start": 0, "end": 2, "original_key": "action.joints", "absolute": False, "rotation_type": "axis_angle",
            },
        },
        "video": {"view": {"original_key": "observation.images.wrist"}},
    }  # fmt: skip
    write_json(root / "meta/modality.json", modality)
    source, refs = opened(root)
    assert source.read(refs[0]).vectors["action"][0].tolist() == [2, 1, 1, 1, 1, 1, 1]
    spec = source.describe().vectors["action"]
    assert spec.names == ("gripper.0", "arm.0", "arm.1", "arm.2", "arm.3", "turn.0", "turn.1")
    assert spec.kinds == ("absolute",) + ("delta",) * 4 + ("delta_rotation",) * 2
    assert opened(root, cameras={"cam0": "view"})[0].describe().cameras["cam0"].key == "observation.images.wrist"
    modality["action"]["arm"]["end"] = 8
    write_json(root / "meta/modality.json", modality)
    with pytest.raises(DataError, match=r"modality.json: action.arm: a part is not in the data"):
        opened(root)


def test_an_extra_part_of_modality_is_told(tmp_path):
    made = Made()
    root = made.write(tmp_path / "robot")
    parts = {"arm": {"start": 0, "end": 2, "absolute": False}, "hand": {"start": 2, "end": 99}}
    write_json(root / "meta/modality.json", {"action": parts})
    info = opened(root)[0].describe()
    assert info.vectors["action"].kinds == ("delta", "delta", "unknown")
    assert any("action.hand ends at 99" in text for text in info.warnings)


def test_leftovers_of_training_are_refused(tmp_path):
    made = Made(
        columns=lambda episode, length: {
            "action": pa.array(np.zeros((length, 5, 3)).tolist()),
            "action_is_pad": pa.array(np.zeros((length, 5), bool).tolist()),
        }
    )
    root = made.write(tmp_path / "robot")
    with pytest.raises(ConfigError, match="chunks of several steps"):
        opened(root)
    source, refs = opened(root, action=("action",))
    assert source.read(refs[0]).vectors["action"].shape == (9, 15)


def test_nothing_to_learn_from(tmp_path):
    made = Made(columns=lambda episode, length: {"action": None, "observation.state": None})
    with pytest.raises(ConfigError, match="neither a state nor an action"):
        opened(made.write(tmp_path / "robot"))


def test_one_of_both_will_do(tmp_path):
    made = Made(columns=lambda episode, length: {"action": None})
    source, refs = opened(made.write(tmp_path / "robot"))
    assert set(source.read(refs[0]).vectors) == {"state"}
    assert any("no action" in text for text in source.describe().warnings)


def test_other_columns(tmp_path):
    made = Made(
        lengths=(4,),
        columns=lambda episode, length: {
            "next.reward": pa.array([0.0, 0, 0, 1]),
            "next.done": pa.array([[False], [False], [False], [True]]),
            "next.success": pa.array([False, False, False, True]),
            "observation.effort": fixed(np.ones((length, 4), np.float32)),
            "observation.environment_state": pa.array([[[1.0, 2.0]] * 3] * length),
            "annotation.human.validity": pa.array([1, 1, 1, 0]),
            "phase": pa.array([0, 0, 1, 1]),
        },
    )
    source, refs = opened(made.write(tmp_path / "robot"))
    episode = source.read(refs[0])
    widths = {name: values.shape[1] for name, values in episode.vectors.items()}
    assert widths == {"state": 4, "action": 3, "reward": 1, "done": 1, "effort": 4, "environment_state": 6}
    assert refs[0].vectors == widths
    assert episode.vectors["done"][:, 0].tolist() == [0, 0, 0, 1]
    assert episode.frame_extras["next.success"] == [False, False, False, True]
    assert episode.frame_extras["annotation.human.validity"] == ["put it down"] * 3 + ["pick it up"]
    assert episode.frame_extras["phase"] == [0, 0, 1, 1]


def test_tasks_of_annotations_and_instructions(tmp_path):
    def columns(episode, length):
        return {"task_index": None, "annotation.human.task_description": pa.array([1] * length)}

    source, refs = opened(Made(columns=columns).write(tmp_path / "numbers"))
    assert source.read(refs[0]).tasks == ["put it down"]
    source, refs = opened(
        Made(
            columns=lambda episode, length: {"task_index": None, "language_instruction": pa.array(["do"] * length)}
        ).write(tmp_path / "texts")
    )
    assert source.read(refs[0]).tasks == ["do"]


PREFIX = "observation.images."


@pytest.mark.parametrize(
    ("keys", "slots"),
    [
        (["front", "wrist"], ["front", "wrist"]),
        (["wrist", "side", "top"], ["top", "wrist", "side"]),
        (["image", "wrist_image"], ["image", "wrist_image"]),
        (["image_0", "image_1", "image_10", "image_2"], ["image_0", "image_1", "image_2", "image_10"]),
        (["image", "image2"], ["image2", "image"]),
        (["high", "left_wrist", "low", "right_wrist"], ["high", "left_wrist", "low", "right_wrist"]),
        (["gripper_cam", "scene"], ["scene", "gripper_cam"]),
        (["left_hand", "right_hand"], ["left_hand", "right_hand"]),
        (["laptop", "phone"], ["laptop", "phone"]),
        (["ego_view"], ["ego_view"]),
        (["b", "a"], ["a", "b"]),
        ([], []),
    ],
)  # fmt: skip
def test_default_slots(keys, slots):
    found = default_slots([PREFIX + key for key in keys])
    assert list(found) == [f"cam{k}" for k in range(len(slots))]
    assert [key.removeprefix(PREFIX) for key in found.values()] == slots


def test_cameras_can_be_chosen(tmp_path):
    made = Made(cameras=tuple(PREFIX + key for key in ("front", "wrist", "head_left")))
    root = made.write(tmp_path / "robot")
    source, refs = opened(root, cameras={"cam0": PREFIX + "head_left", "cam1": "front"})
    assert refs[0].cameras == ("cam0", "cam1")
    episode = source.read(refs[0])
    assert shown(episode, "cam0", [2]) == [(0, 2, 0)]  # the camera's bit is its third: (2 << 15) falls off
    assert shown(episode, "cam1", [2]) == [(0, 2, 0)]
    with pytest.raises(ConfigError) as said:
        opened(root, cameras={"cam0": "nowhere"})
    assert "observation.images.front, observation.images.head_left" in str(said.value)


def test_declared_cameras_that_are_nowhere(tmp_path):
    """GR00T's demo declares egoview and ego_view; only the latter exists."""
    camera = {"dtype": "video", "shape": [64, 64, 3], "names": ["height", "width", "channel"]}
    made = Made(features={PREFIX + "frontview": camera})
    source, refs = opened(made.write(tmp_path / "robot"))
    assert source.describe().cameras["cam0"].key == PREFIX + "front"
    assert "declared but nowhere there: observation.images.frontview" in source.describe().warnings
    assert all(ref.fault is None for ref in refs)


def test_an_episode_without_one_of_its_videos(tmp_path):
    made = Made(layout=2)
    root = made.write(tmp_path / "robot")
    (root / "videos/chunk-000/observation.images.wrist/episode_000001.mp4").unlink()
    _, refs = opened(root)
    assert [ref.fault for ref in refs] == [None, "its video of observation.images.wrist is missing", None]
    source, refs = opened(root, allow_no_camera=True)
    assert refs[1].cameras == ("cam0",)
    assert set(source.read(refs[1]).images) == {"cam0"}


def test_pictures_that_are_not_declared(tmp_path):
    from helpers.lerobot_fixtures import png

    def columns(episode, length):
        return {"wrist_image": pa.array([png(picture(episode, k, 1)) for k in range(length)])}

    source, refs = opened(Made(cameras=("observation.images.front",), columns=columns).write(tmp_path / "robot"))
    assert source.describe().cameras["cam1"].key == "wrist_image"
    assert shown(source.read(refs[2]), "cam1") == [(2, k, 1) for k in range(7)]


def test_a_codec_that_is_not_the_declared_one(tmp_path):
    camera = {"dtype": "video", "shape": [64, 64, 3], "names": None, "video_info": {"video.codec": "h264"}}
    made = Made(layout=2, codec="mpeg4", cameras=(PREFIX + "front",), features={PREFIX + "front": camera})
    source, refs = opened(made.write(tmp_path / "robot"))
    info = source.describe()
    assert "observation.images.front: codec h264 declared, mpeg4 found" in info.warnings
    assert info.details["videos"]["cam0"] == {"codec": "mpeg4", "size": [64, 64], "rate": 20.0}
    assert shown(source.read(refs[0])) == [(0, k, 0) for k in range(9)]


@pytest.mark.parametrize("spelled", ["avc1", "libx264", "H.264"])
def test_spellings_of_the_same_codec(tmp_path, spelled):
    camera = {
        "dtype": "video",
        "shape": [3, 64, 64],
        "names": ["channel", "height", "width"],
        "info": {"video.codec": spelled},
    }
    made = Made(cameras=(PREFIX + "front",), features={PREFIX + "front": camera})
    assert not opened(made.write(tmp_path / "robot"))[0].describe().warnings


def test_sizes_come_from_the_frames(tmp_path):
    made = Made(layout=2, cameras=(PREFIX + "front",), lengths=(5,))
    root = made.write(tmp_path / "robot")
    frames = [picture(0, k, size=(96, 48)) for k in range(5)]
    write_video(root / "videos/chunk-000/observation.images.front/episode_000000.mp4", frames)
    source, refs = opened(root)
    pixels = next(iter(source.read(refs[0]).images["cam0"].read(np.array([0]))))
    assert pixels.shape == (48, 96, 3)
