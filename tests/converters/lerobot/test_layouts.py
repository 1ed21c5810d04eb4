"""Which version a dataset is, where its files are, and what info.json may get wrong."""

from __future__ import annotations

import json
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers.lerobot_fixtures import Made, change_info, check_all, opened, write_json, write_lines
from hypothesis import given
from hypothesis import strategies as st
from wdsmix.converters.lerobot.info import read_info
from wdsmix.converters.lerobot.tree import LocalTree, filled

from wdsmix.errors import ConfigError, DataError

V2 = Made(layout=2)
V3 = Made(layout=3, per_video=2, per_data=2)


@pytest.mark.parametrize("made", [V2, V3, Made(layout=2, images=True), Made(layout=3, images=True, per_data=2)])
def test_every_layout(tmp_path, made):
    source = check_all(made, made.write(tmp_path / "robot"))
    info = source.describe()
    assert info.fps == 20
    assert info.embodiment == "so101"
    assert info.kind == f"lerobot/{ {2: 'v2.1', 3: 'v3.0'}[made.layout] }"
    assert {slot: camera.key for slot, camera in info.cameras.items()} == {
        "cam0": "observation.images.front",
        "cam1": "observation.images.wrist",
    }
    assert info.vectors["state"].names == ("s0", "s1", "s2", "s3")
    assert info.vectors["action"].names == ("a0", "a1", "a2")
    assert not info.warnings


def test_v20_has_no_statistics_an_episode(tmp_path):
    made = Made(layout=2, version="v2.0")
    write_json(made.write(tmp_path / "robot") / "meta/stats.json", {"action": {"mean": [0]}})
    assert check_all(made, tmp_path / "robot").describe().kind == "lerobot/v2.0"


@pytest.mark.parametrize("name", ["meta_data/info.json", "data/train-00000-of-00001.parquet"])
def test_version_1_is_refused_with_a_way_out(tmp_path, name):
    (tmp_path / name).parent.mkdir(parents=True)
    (tmp_path / name).write_text("{}")
    with pytest.raises(DataError, match=r"v1 dataset.*converter"):
        opened(tmp_path)


def test_a_folder_that_is_none(tmp_path):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes/a.txt").touch()
    with pytest.raises(DataError, match=r"expected meta/info.json, found notes"):
        opened(tmp_path)
    with pytest.raises(DataError, match="no such folder"):
        opened(tmp_path / "absent")


def test_files_decide_not_the_version_string(tmp_path):
    """A v3.0 info.json over an episode a file: hand-made sets are like that."""
    made = Made(layout=2, version="v3.0", data_template="data/train/episode_{episode_index:06d}.parquet")
    source = check_all(made, made.write(tmp_path / "robot"))
    assert any("says version v3.0" in text for text in source.describe().warnings)


@pytest.mark.parametrize(
    "damage",
    [b"", b"\0" * 8, b"{]", b"[]", b"{}", b'{"fps": 20}'],
    ids=["empty", "zeros", "not json", "a list", "no key", "no features"],
)
def test_a_broken_info_says_what_is_missing(tmp_path, damage):
    V2.write(tmp_path / "robot")
    whole = json.loads((tmp_path / "robot/meta/info.json").read_text())
    (tmp_path / "robot/meta/info.json").write_bytes(damage)
    with pytest.raises(DataError, match=r"meta/info\.json: (is empty|not valid JSON|not a JSON|features: .*--info)"):
        opened(tmp_path / "robot")
    if damage != b"[]":
        check_all(V2, tmp_path / "robot", info=whole)


def test_no_rate_at_all_is_asked_for(tmp_path):
    V2.write(tmp_path / "robot")
    change_info(tmp_path / "robot", lambda info: info.pop("fps"))
    with pytest.raises(ConfigError, match="--fps"):
        opened(tmp_path / "robot")
    assert opened(tmp_path / "robot", fps=20.0)[0].describe().fps == 20


@pytest.mark.parametrize(
    "template",
    [
        "data/chunk-{chunk_index:03d}/episode_{episode_index:06d}.parquet",  # v2 with the variable of v3
        "data/chunk-{episode_index:03d}/episode_{episode_index:06d}.parquet",  # all in chunk-000 in truth
        "data/chunk-{nobody:03d}/episode_{episode_index:06d}.parquet",
        "data/{episode_index.__class__}.parquet",
        "data/chunk-000/episode_{episode_index:099999999d}.parquet",
        "../../../etc/{episode_index}",
    ],
)
def test_wrong_templates(tmp_path, template):
    V2.write(tmp_path / "robot")
    change_info(tmp_path / "robot", lambda info: info.update(data_path=template))
    check_all(V2, tmp_path / "robot")


def test_a_renamed_video_folder_and_a_wrong_template(tmp_path):
    for made in (V2, V3):
        root = made.write(tmp_path / f"robot{made.layout}")
        (root / "videos").rename(root / "video")
        check_all(made, root)
        change_info(root, lambda info: info.update(video_path="videos/chunk-{episode_index:03d}/nowhere.mp4"))
        check_all(made, root)


def test_image_sets_that_keep_a_video_template(tmp_path):
    made = Made(layout=2, images=True)
    root = made.write(tmp_path / "robot")
    assert "video_path" in json.loads((root / "meta/info.json").read_text())
    check_all(made, root)


def test_chunks_of_fewer_episodes(tmp_path):
    root = V2.write(tmp_path / "robot")
    change_info(root, lambda info: info.update(chunks_size=2))
    for episode in (2,):
        for old in list(root.rglob(f"episode_{episode:06d}.*")):
            new = root / str(old.relative_to(root)).replace("chunk-000", "chunk-001")
            new.parent.mkdir(parents=True, exist_ok=True)
            old.rename(new)
    check_all(V2, root)


def test_stray_files_are_left_alone(tmp_path):
    root = V2.write(tmp_path / "robot")
    stray = pa.table(
        {"episode": [0, 0], "t": [0.0, 0.1], "cam0_image": pa.array([b"\xff\xd8", b""], pa.large_binary())}
    )
    (root / "data/chunk-001").mkdir()
    for k in range(3):
        pq.write_table(stray, root / f"data/chunk-001/run_{k}.parquet")
    (root / "images/observation.images.front/episode_000000").mkdir(parents=True)  # staging that a writer left behind
    (root / "images/observation.images.front/episode_000000/frame_000000.png").write_bytes(b"")
    source = check_all(V2, root)
    assert any("3 data files without episode_index" in text for text in source.describe().warnings)


def test_totals_are_claims(tmp_path):
    root = V3.write(tmp_path / "robot")
    change_info(
        root, lambda info: info.update(total_episodes=105, total_frames=9, tools=[{"name": "grip"}], odd={"x": 1})
    )
    info = check_all(V3, root).describe()
    assert "info.json declares 105 episodes, the data files hold 3" in info.warnings
    assert "info.json declares 9 frames, the data files hold 28" in info.warnings
    assert info.details["counted"] == {"episodes": 3, "frames": 28}


@pytest.mark.parametrize(
    ("splits", "expected"),
    [
        (None, [None, None, None]),
        ({"train": "0:100"}, ["train", "train", "train"]),
        ({"train": "0:2", "val": "2:3"}, ["train", "train", "val"]),
        ({"train": "0:1", "odd": "all"}, ["train", None, None]),
    ],
)
def test_published_splits(tmp_path, splits, expected):
    root = V2.write(tmp_path / "robot")
    change_info(root, lambda info: info.pop("splits") if splits is None else info.update(splits=splits))
    assert [ref.split for ref in opened(root)[1]] == expected


@pytest.mark.parametrize("robot", [None, "unknown", ""])
def test_no_robot(tmp_path, robot):
    root = V2.write(tmp_path / "robot")
    change_info(root, lambda info: info.update(robot_type=robot))
    assert opened(root)[0].describe().embodiment == ""


def test_links_are_followed(tmp_path):
    """The hub's cache is made of links, to files and to folders."""
    root = V3.write(tmp_path / "real")
    cached = tmp_path / "cached"
    cached.mkdir()
    (cached / "meta").symlink_to(root / "meta")
    (cached / "videos").symlink_to(root / "videos")
    (cached / "data/chunk-000").mkdir(parents=True)
    for k, path in enumerate(sorted((root / "data").rglob("*.parquet"))):
        blob = tmp_path / f"blob{k}"
        shutil.copy(path, blob)
        (cached / "data/chunk-000" / path.name).symlink_to(blob)
    (cached / "loop").symlink_to(cached)
    check_all(V3, cached)


def test_every_kind_of_unfetched_file_is_named(tmp_path):
    """lerobot#2268: a pointer in place of a file."""
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12345\n"
    for name in ("meta/info.json", "meta/tasks.jsonl", "meta/episodes.jsonl"):
        root = V2.write(tmp_path / name.replace("/", "_"))
        (root / name).write_bytes(pointer)
        with pytest.raises(DataError, match=f"{name}.*(LFS pointer|not valid JSON)"):
            opened(root)
    root = V3.write(tmp_path / "tasks")
    (root / "meta/tasks.parquet").write_bytes(pointer)
    with pytest.raises(DataError, match=r"meta/tasks\.parquet: is a Git LFS pointer"):
        opened(root)
    root = V2.write(tmp_path / "data")
    (root / "data/chunk-000/episode_000001.parquet").write_bytes(pointer)
    _, refs = opened(root)
    assert "LFS pointer" in refs[1].fault
    assert refs[1].fault_kind == "file"
    assert [ref.fault for ref in refs[::2]] == [None, None]
    root = V2.write(tmp_path / "video")
    (root / "videos/chunk-000/observation.images.front/episode_000001.mp4").write_bytes(pointer)
    source, refs = opened(root)
    with pytest.raises(DataError, match=r"observation\.images\.front/episode_000001\.mp4.*LFS pointer"):
        source.read(refs[1])


def test_blank_lines_and_order_of_jsonl(tmp_path):
    """GR00T#288, unitree_lerobot#41."""
    root = V2.write(tmp_path / "robot")
    for name in ("episodes", "tasks"):
        path = root / f"meta/{name}.jsonl"
        lines = path.read_text().splitlines()
        path.write_text("\ufeff\n" + "\n\n  \n".join(reversed(lines)) + "\n\n\0\0")
    check_all(V2, root)
    (root / "meta/tasks.jsonl").write_text('{"task_index": 0, "task": "a"}\n{"task_index": 1, "ta')
    with pytest.raises(DataError, match=r"meta/tasks\.jsonl: line 2: not valid JSON"):
        opened(root)


def test_extra_keys_of_episodes_do_no_harm(tmp_path):
    root = V2.write(tmp_path / "robot")
    rows = [json.loads(line) for line in (root / "meta/episodes.jsonl").read_text().splitlines()]
    write_lines(root / "meta/episodes.jsonl", [{**row, "cameras": {"front": {"fx": 1.0}}} for row in rows])
    check_all(V2, root)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["a", "b"], ("a", "b")),
        ([["a", "b"]], ("a", "b")),
        ({"motors": ["a", "b"]}, ("a", "b")),
        ({"joints": ["a"], "axes": ["b"]}, ("a", "b")),
        ({"a": 0, "b": 1}, ("a", "b")),
        (None, ("dim_0", "dim_1")),
        (["one"], ("dim_0", "dim_1")),
        ("absent", ("dim_0", "dim_1")),
    ],
)
def test_names_in_every_spelling(tmp_path, names, expected):
    feature = {"dtype": "float32", "shape": [2], **({} if names == "absent" else {"names": names})}
    made = Made(layout=2, lengths=(4,), state=2, features={"observation.state": feature})
    root = made.write(tmp_path / "robot")
    assert opened(root)[0].describe().vectors["state"].names == expected


@pytest.mark.parametrize(
    ("fps", "expected"), [(20.0, 20.0), (29.97, 29.97), ("30000/1001", 30000 / 1001), ("30", 30.0)]
)
def test_rates_are_never_rounded(tmp_path, fps, expected):
    root = Made(layout=2, images=True, lengths=(3,)).write(tmp_path / "robot")
    change_info(root, lambda info: info.update(fps=fps))
    assert read_info(LocalTree(root), {}).fps == expected


@given(st.text(alphabet="{}:abdx0369_./\\", max_size=40))
def test_no_template_can_do_harm(template):
    text = filled(template, {"a": 1, "b": "x", "abd": 22})
    assert text is None or len(text) < 4000


def test_licence_of_the_card(tmp_path):
    root = V2.write(tmp_path / "robot")
    (root / "README.md").write_text("---\nlicense: apache-2.0\ntags: [x]\n---\n# Robot\nlicense: no\n")
    assert opened(root)[0].describe().licence == "apache-2.0"
