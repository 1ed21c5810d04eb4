"""Damaged, contradictory and hostile datasets: the right frames, or one clear reason; nothing is lost in silence."""

from __future__ import annotations

import json
import os
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers.lerobot_fixtures import (
    Made,
    change_episodes,
    change_info,
    check_all,
    fixed,
    full_decode,
    opened,
    picture,
    shown,
    stored,
    write_json,
    write_rows,
    write_video,
)
from hypothesis import given
from hypothesis import strategies as st
from wdsmix.converters.lerobot.positions import Segment, agreeing, frame_numbers, in_order
from wdsmix.converters.video import VideoReader

from wdsmix.cli import main
from wdsmix.errors import ConfigError, DataError, WdsmixError

FRONT = "observation.images.front"
ONE = (FRONT,)


def convert(root, out, *more):
    return main(["convert", "lerobot", str(root), str(out), "--workers", "1", "--quiet", *more])


# --- where an episode lies in a shared video ---


@pytest.mark.parametrize("start", [float("nan"), None, -1.0, 1e12, 0.0])
@pytest.mark.parametrize("episode", [0, 1, 2])
def test_one_start_that_can_not_be_true_moves_no_frame(tmp_path, start, episode):
    made = Made(cameras=ONE)
    root = made.write(tmp_path / "robot")
    change_episodes(root, lambda rows: rows[episode].update({f"videos/{FRONT}/from_timestamp": start}))
    check_all(made, root, fps=20.0)


def test_episodes_that_lie_in_another_order_in_the_video(tmp_path):
    made = Made(cameras=ONE)
    root = made.write(tmp_path / "robot")
    frames: list[np.ndarray] = []
    starts = {}
    for episode in (2, 0, 1):
        starts[episode] = len(frames) / 20
        frames += [picture(episode, k) for k in range(made.lengths[episode])]
    write_video(next(root.rglob("*.mp4")), frames, fps=20)

    def moved(rows):
        for row in rows:
            row[f"videos/{FRONT}/from_timestamp"] = starts[row["episode_index"]]
            row[f"videos/{FRONT}/to_timestamp"] = starts[row["episode_index"]] + row["length"] / 20

    change_episodes(root, moved)
    check_all(made, root)


@given(
    lengths=st.lists(st.integers(2, 50), min_size=3, max_size=9),
    bad=st.integers(0, 8),
    value=st.sampled_from([-7.0, 1e9, 0.0]),
    shuffled=st.randoms(use_true_random=False),
)
def test_order_survives_one_bad_start(lengths, bad, value, shuffled):
    """By number where starts ascend with it; otherwise every episode but the bad one fits the order found."""
    numbers = list(range(len(lengths)))
    starts = [float(sum(lengths[:k])) for k in numbers]
    assert in_order(starts, lengths, numbers, 1.0) == numbers
    starts[bad % len(lengths)] = value
    order = in_order(starts, lengths, numbers, 1.0)
    assert order == numbers
    assert sum(agreeing(order, starts, lengths, 1.0)) >= len(lengths) - 1
    places = numbers[:]
    shuffled.shuffle(places)  # without a bad one, any order is found by the starts
    starts = [0.0] * len(lengths)
    before = 0
    for place in places:
        starts[place] = float(before)
        before += lengths[place]
    assert in_order(starts, lengths, numbers, 1.0) == places


def test_starts_of_which_most_contradict_the_counts_are_refused():
    place = Segment(start=3.0, stop=None, before=0, after=None, total=40, counted=False)
    with pytest.raises(DataError, match=r"expected 0 s \(frame 0\), found 3 s"):
        frame_numbers(20, 40, rate=20.0, segment=place, stamps=None, policy="nearest")


def test_no_start_and_other_counts_are_refused():
    place = Segment(start=None, stop=None, before=10, after=None, total=40)
    with pytest.raises(DataError, match=r"nothing tells where.*expected 40 frames.*found 30 frames"):
        frame_numbers(10, 30, rate=20.0, segment=place, stamps=None, policy="nearest")
    last = Segment(start=None, stop=None, before=30, after=None, total=40)
    numbers, told = frame_numbers(10, 39, rate=20.0, segment=last, stamps=None, policy="nearest")
    assert numbers.tolist() == [*range(30, 39), 38]
    assert "one frame less" in told


def test_a_shared_video_that_lost_frames_is_flagged_or_refused(tmp_path):
    """Nothing tells where they are missing; the metadata's starts are all there is."""
    made = Made(lengths=(40, 40, 40), cameras=ONE)
    root = made.write(tmp_path / "robot")
    frames = [picture(e, k) for e in range(3) for k in range(30 if e == 1 else 40)]
    write_video(next(root.rglob("*.mp4")), frames, fps=20)
    source, refs = opened(root)
    told = source.read(refs[0]).extras["frame_mapping"]["cam0"]
    assert "the video lacks frames (110 frames for 120 rows" in told
    source, refs = opened(root, video_mismatch="drop")
    for ref in refs:
        with pytest.raises(DataError, match=r"110 frames for 120 rows|found 30 frames"):
            source.read(ref)


# --- rows ---


def test_rows_taken_out_of_an_episode_keep_their_frames(tmp_path):
    """``frame_index`` has a gap, the video has not."""
    for layout in (2, 3):
        made = Made(layout=layout, lengths=(20, 20), per_data=1, cameras=ONE)
        root = made.write(tmp_path / f"robot{layout}")
        path = sorted((root / "data").rglob("*.parquet"))[1]
        table = pq.read_table(path)
        pq.write_table(pa.concat_tables([table.slice(0, 10), table.slice(11)]), path)
        source, refs = opened(root)
        episode = source.read(refs[1])
        kept = [k for k in range(20) if k != 10]
        assert shown(episode) == [(1, k, 0) for k in kept]
        assert np.array_equal(episode.vectors["state"], made.state_of(1)[kept])
        assert "mapped by frame_index" in episode.extras["frame_mapping"]["cam0"]
        assert shown(source.read(refs[0])) == [(0, k, 0) for k in range(20)]


@pytest.mark.parametrize("images", [False, True])
def test_an_episode_in_pieces_is_refused_not_cut(tmp_path, images):
    made = Made(cameras=ONE, images=images)
    root = made.write(tmp_path / "robot")
    path = next((root / "data").rglob("*.parquet"))
    table = pq.read_table(path)
    pq.write_table(table.slice(0, 14), path)
    pq.write_table(table.slice(14), path.with_name("file-001.parquet"))
    _, refs = opened(root)
    assert [ref.fault is None for ref in refs] == [True, False, True]
    assert refs[1].fault == (
        "its rows are in several data files: data/chunk-000/file-000.parquet (5 rows), "
        "data/chunk-000/file-001.parquet (7 rows)"
    )


def test_a_copy_of_an_episode_is_told_and_the_whole_one_taken(tmp_path):
    made = Made(cameras=ONE, per_data=1)
    root = made.write(tmp_path / "robot")
    path = root / "data/chunk-000/file-001.parquet"
    shutil.copy(path, path.with_name("file-007.parquet"))
    source = check_all(made, root)
    assert any("episode 1 is in several data files" in text for text in source.describe().warnings)
    pq.write_table(pq.read_table(path).slice(0, 4), path)  # now the named file holds a part only
    source, refs = opened(root)
    assert refs[1].frames == 12
    assert np.array_equal(source.read(refs[1]).vectors["state"], made.state_of(1))


def test_rows_of_two_episodes_that_alternate_are_refused(tmp_path):
    made = Made(cameras=ONE)
    root = made.write(tmp_path / "robot")
    path = next((root / "data").rglob("*.parquet"))
    table = pq.read_table(path)
    pq.write_table(table.take(pa.array(np.argsort(np.arange(28) % 2, kind="stable"))), path)
    _, refs = opened(root)
    assert {ref.fault for ref in refs} == {"its rows are not together in the data file"}


def test_damaged_pages_are_seen_where_the_file_has_checksums(tmp_path):
    made = Made(layout=2, lengths=(300, 300), cameras=ONE, film=lambda e, n: [(e, 0)] * n)
    root = made.write(tmp_path / "robot")
    path = root / "data/chunk-000/episode_000001.parquet"
    table = pq.read_table(path)
    pq.write_table(table, path, write_page_checksum=True, compression="none", use_dictionary=False)
    data = bytearray(path.read_bytes())
    needle = made.state_of(1)[150].tobytes()
    at = bytes(data).index(needle)
    data[at] ^= 1  # one bit of one number
    path.write_bytes(data)
    source, refs = opened(root)
    with pytest.raises(DataError, match=r"episode_000001\.parquet.*(damaged|checksum)"):
        source.read(refs[1])


# --- videos ---


def structured(count):
    """Pictures whose coding a decoder can find wrong."""
    rng = np.random.default_rng(0)
    coarse = rng.integers(0, 255, (30, 40, 3), dtype=np.uint8)
    wide = np.kron(coarse, np.ones((8, 8, 1), np.uint8))
    return [np.roll(wide, 3 * k, axis=1) for k in range(count)]


def test_frames_predicted_from_a_damaged_one_are_not_given(tmp_path):
    """The decoder conceals a broken slice and goes on; all up to the next key frame would be subtly wrong."""
    path = tmp_path / "v.mp4"
    write_video(path, structured(60), options={"g": "20", "bf": "0", "crf": "23"}, faststart=True)
    good = full_decode(path)
    whole = path.read_bytes()
    told = 0
    for seed in range(6):
        data = bytearray(whole)
        rng = np.random.default_rng(seed)
        at = int(rng.integers(len(data) // 3, len(data) - 300))
        data[at : at + 60] = rng.bytes(60)
        path.write_bytes(data)
        for step in (1, 7):
            numbers = np.arange(0, 60, step)
            with VideoReader(path) as reader:
                given = []
                try:
                    given += [frame.copy() for frame in reader.read(numbers)]
                except DataError as error:
                    told += 1
                    assert "frame" in str(error)  # noqa: PT017 - what came before is checked too
            for number, frame in zip(numbers, given, strict=False):
                assert np.abs(frame.astype(int) - good[number]).max() < 40, (seed, step, number)
    assert told >= 8


def test_a_video_whose_end_is_cut_off_costs_its_episode(tmp_path):
    made = Made(layout=2, lengths=(30, 30), cameras=ONE)
    root = made.write(tmp_path / "robot")
    path = root / f"videos/chunk-000/{FRONT}/episode_000001.mp4"
    write_video(path, [picture(1, k) for k in range(30)], fps=20, faststart=True)
    path.write_bytes(path.read_bytes()[:-700])
    out = tmp_path / "set"
    assert convert(root, out) == 0
    (drop,) = json.loads((out / "manifest.json").read_text())["dropped"]
    assert "cut off" in drop["reason"]
    assert "expected 30 frames" in drop["reason"]
    assert {episode for episode, _ in stored(out)} == {0}


@pytest.mark.parametrize("pixel_format", ["yuv444p", "yuv422p", "yuv420p10le"])
def test_odd_pixel_formats(tmp_path, pixel_format):
    made = Made(layout=2, lengths=(12,), cameras=ONE)
    root = made.write(tmp_path / "robot")
    path = root / f"videos/chunk-000/{FRONT}/episode_000000.mp4"
    write_video(path, [picture(0, k) for k in range(12)], fps=20, pixel_format=pixel_format)
    check_all(made, root)


def test_uneven_frames_sound_and_other_sizes(tmp_path):
    made = Made(layout=2, lengths=(20, 20, 20), cameras=ONE)
    root = made.write(tmp_path / "robot")
    folder = root / f"videos/chunk-000/{FRONT}"
    uneven = np.cumsum([1, 3, 1, 1, 2] * 4).tolist()
    write_video(folder / "episode_000000.mp4", [picture(0, k) for k in range(20)], fps=20, stamps=uneven)
    write_video(folder / "episode_000001.mp4", [picture(1, k) for k in range(20)], fps=20, audio=True)
    write_video(folder / "episode_000002.mp4", [picture(2, k, size=(96, 48)) for k in range(20)], fps=20)
    source = check_all(made, root, fps=20.0)
    source, refs = opened(root, fps=20.0)
    (first, *_) = source.read(refs[2]).images["cam0"].read(np.arange(1))
    assert first.shape == (48, 96, 3)


def test_ten_frames_fewer_cost_the_episode_with_both_counts(tmp_path):
    made = Made(lengths=(40, 40, 40), cameras=ONE, film=lambda e, n: [(e, k) for k in range(n - 10 if e == 1 else n)])
    source, refs = opened(made.write(tmp_path / "robot"))
    for number in (0, 2):
        assert shown(source.read(refs[number])) == [(number, k, 0) for k in range(40)]
    with pytest.raises(DataError, match=r"expected 40 frames, one a row, found 30 frames"):
        source.read(refs[1])


# --- metadata ---


def test_a_missing_data_file_is_named(tmp_path):
    made = Made(layout=2, cameras=ONE)
    root = made.write(tmp_path / "robot")
    (root / "data/chunk-000/episode_000001.parquet").unlink()
    _, refs = opened(root)
    assert refs[1].fault == "no data file holds it: there is no data/chunk-000/episode_000001.parquet"
    assert refs[1].file == "data/chunk-000/episode_000001.parquet"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"state": {"arm": {"start": -1, "end": 2}}}, "state.arm: not a slice"),
        ({"state": {"arm": {"start": True, "end": 2}}}, "state.arm: not a slice"),
        ({"state": {"arm": {"start": 2, "end": 2}}}, "state.arm: not a slice"),
        ({"state": {"arm": [0, 2]}}, "state.arm: not a slice"),
        ({"action": {"arm": {"start": 0, "end": 1, "absolute": "no"}}}, "action.arm.absolute: not true or false"),
        ([1], "not a JSON object"),
    ],
)
def test_nonsense_in_modality(tmp_path, content, said):
    root = Made(layout=2, cameras=ONE).write(tmp_path / "robot")
    write_json(root / "meta/modality.json", content)
    with pytest.raises(DataError, match=said) as caught:
        opened(root)
    assert "meta/modality.json" in str(caught.value)


def test_metadata_are_bounded(tmp_path, monkeypatch):
    from wdsmix.converters.lerobot import info, tables

    made = Made(layout=2, cameras=ONE)
    root = made.write(tmp_path / "robot")
    monkeypatch.setattr(tables, "_LINE_BYTES", 200)
    check_all(made, root)
    with (root / "meta/tasks.jsonl").open("a") as file:
        file.write("x" * 10_000)
    with pytest.raises(DataError, match=r"meta/tasks\.jsonl: line 3: line too long \(expected at most 200 bytes\)"):
        opened(root)
    monkeypatch.setattr(info, "_MAX_JSON", 50)
    with pytest.raises(DataError, match=r"meta/info\.json: too large \(expected at most 50 bytes"):
        opened(root)


@pytest.mark.parametrize(
    "change",
    [
        {"total_episodes": 10**30, "total_frames": 1e308, "chunks_size": 10**40},
        {"chunks_size": -5},
        {"chunks_size": 0.5},
        {"chunks_size": "many", "total_frames": [1], "splits": ["train"], "robot_type": 7},
    ],
)
def test_numbers_of_info_that_can_not_be(tmp_path, change):
    made = Made(layout=2, cameras=ONE)
    root = made.write(tmp_path / "robot")
    change_info(root, lambda info: info.update(change))
    check_all(made, root)


@pytest.mark.parametrize(
    "key", ["../../x", "/etc/passwd", "..", "a b/../c", "{episode_index.__class__}", "前 é", "x\0y"]
)
def test_hostile_names_of_cameras(tmp_path, key):
    made = Made(images=True, cameras=(key,))
    root = made.write(tmp_path / "robot")
    out = tmp_path / "set"
    assert convert(root, out) == 0
    assert {name for one in stored(out).values() for name in one.pictures} == {"cam0"}
    assert json.loads((out / "manifest.json").read_text())["cameras"]["cam0"]["key"] == key
    assert {path.name for path in tmp_path.iterdir()} == {"robot", "set"}


@pytest.mark.parametrize("key", ["../../../etc", "{episode_index.__class__}", ".."])
def test_hostile_names_of_videos_find_nothing(tmp_path, key):
    made = Made(layout=2, cameras=ONE)
    root = made.write(tmp_path / "robot")
    change_info(root, lambda info: info["features"].update({key: info["features"].pop(FRONT)}))
    with pytest.raises(WdsmixError, match="no video") as caught:
        opened(root)
    assert "--allow-no-camera" in str(caught.value)
    assert opened(root, allow_no_camera=True)[1][0].fault is None


def test_devices_and_pipes_are_no_files(tmp_path):
    made = Made(layout=2, cameras=ONE)
    root = made.write(tmp_path / "robot")
    os.mkfifo(root / "meta/modality.json")
    (root / "meta/tasks.jsonl").unlink()
    (root / "meta/tasks.jsonl").symlink_to("/dev/zero")
    check_all(made, root)


def test_an_episode_number_that_no_key_can_hold(tmp_path):
    made = Made(layout=2, cameras=ONE)
    root = made.write(tmp_path / "robot")
    with (root / "meta/episodes.jsonl").open("a") as file:
        for index in (10**25, -4):
            file.write(json.dumps({"episode_index": index, "length": 10**30, "tasks": [1, None, {"a": 2}]}) + "\n")
    out = tmp_path / "set"
    assert convert(root, out) == 0
    assert len(json.loads((out / "manifest.json").read_text())["dropped"]) == 2
    assert len(stored(out)) == sum(made.lengths)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--camera", "cam0=nope"], f"--camera: no such camera (expected one of: {FRONT}, found nope)"),
        (["--fps", "0"], "--fps: bad value"),
        (["--fps", "nan"], "--fps: bad value"),
        (["--max-episodes", "-1"], "--max-episodes: bad value"),
        (["--state", "nope"], "--state: no such column of numbers"),
        (["--keep", "nope"], "--keep: no such column"),
    ],
)
def test_options_that_can_not_be(tmp_path, capsys, more, said):
    root = Made(layout=2, cameras=ONE, lengths=(4,)).write(tmp_path / "robot")
    assert convert(root, tmp_path / "set", *more) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "set/manifest.json").exists()


def test_a_part_that_is_none(tmp_path, capsys):
    root = Made(layout=2, cameras=ONE, lengths=(4,)).write(tmp_path / "robot")
    assert convert(root, tmp_path / "set", "--part", "3/2") == 2
    assert "3/2" in capsys.readouterr().err


def test_a_rate_above_the_native_one_keeps_all_frames_and_says_so(tmp_path):
    root = Made(layout=2, cameras=ONE, lengths=(9,)).write(tmp_path / "robot")
    assert convert(root, tmp_path / "set", "--hz", "60") == 0
    manifest = json.loads((tmp_path / "set/manifest.json").read_text())
    assert (manifest["hz"], manifest["counts"]["frames"]) == (20.0, 9)
    assert "--hz 60 of 20 gives 20 frames per second" in manifest["warnings"]


def test_states_of_any_number_type(tmp_path):
    def columns(episode, length):
        return {
            "observation.state": pa.array([[k, 2**24, -3, episode] for k in range(length)], pa.list_(pa.int64())),
            "action": pa.array([[[k, 1.5], [2.5, -k]] for k in range(length)], pa.list_(pa.list_(pa.float64()))),
        }

    source, refs = opened(Made(cameras=ONE, columns=columns).write(tmp_path / "robot"))
    episode = source.read(refs[1])
    assert episode.vectors["state"].tolist() == [[k, 2**24, -3, 1] for k in range(12)]
    assert episode.vectors["action"].tolist() == [[k, 1.5, 2.5, -k] for k in range(12)]


def test_a_table_of_episodes_with_a_row_twice(tmp_path):
    made = Made(cameras=ONE)
    root = made.write(tmp_path / "robot")
    path = next((root / "meta/episodes").rglob("*.parquet"))
    rows = pq.read_table(path).to_pylist()
    write_rows(path, [*rows, {**rows[1], "length": 3}])
    source = check_all(made, root)
    assert any("episode 1 comes twice" in text for text in source.describe().warnings)


def test_config_errors_are_not_data_errors(tmp_path):
    root = Made(layout=2, cameras=ONE, lengths=(4,)).write(tmp_path / "robot")
    shutil.rmtree(root / "videos")
    with pytest.raises(ConfigError, match=rf"no video of {FRONT} is there.*episode_000000\.mp4"):
        opened(root)


def test_a_conversion_that_loses_most_episodes_is_loud(tmp_path, capsys):
    made = Made(layout=2, cameras=ONE, lengths=(5,) * 6)
    root = made.write(tmp_path / "robot")
    for episode in range(1, 5):
        (root / f"videos/chunk-000/{FRONT}/episode_{episode:06d}.mp4").unlink()
    out = tmp_path / "set"
    assert convert(root, out) == 1
    said = capsys.readouterr().err
    assert "warning: 4 of 6 episodes were left out, more than --max-dropped 0.5 allows" in said
    assert f"4 times: its video of {FRONT} is missing" in said
    assert (out / "manifest.json").is_file()
    assert {episode for episode, _ in stored(out)} == {0, 5}
    assert convert(root, tmp_path / "known", "--max-dropped", "0.7") == 0
    assert capsys.readouterr().err == ""
    assert convert(root, tmp_path / "bad", "--max-dropped", "2") == 2


def test_what_was_not_one_to_one_is_counted_in_the_manifest(tmp_path):
    def columns(episode, length):
        states = np.full((length, 4), episode, np.float32)
        states[2] = np.nan if episode == 2 else states[2]
        return {"observation.state": fixed(states)}

    short = Made(layout=2, columns=columns, film=lambda e, n: [(e, k) for k in range(n - 1 if e else n)])
    root = short.write(tmp_path / "robot")
    assert convert(root, tmp_path / "set", "--bad-rows", "row") == 0
    warnings = json.loads((tmp_path / "set/manifest.json").read_text())["warnings"]
    assert [text for text in warnings if "the first episode_" in text] == [
        "2 episodes, the first episode_000001: the video has one frame less than the episode has rows: "
        "its last frame stands for two",
        "1 episode, the first episode_000002: bad rows left out: 1",
    ]


def test_reasons_name_the_video(tmp_path):
    """The episode's own file is that of its rows; the one at fault is another."""
    made = Made(layout=2, lengths=(20, 20, 20))
    root = made.write(tmp_path / "robot")
    cut = root / "videos/chunk-000/observation.images.wrist/episode_000001.mp4"
    cut.write_bytes(cut.read_bytes()[:500])
    short = root / f"videos/chunk-000/{FRONT}/episode_000002.mp4"
    write_video(short, [picture(2, k) for k in range(9)], fps=20)
    assert convert(root, tmp_path / "set", "--max-dropped", "1") == 0
    dropped = json.loads((tmp_path / "set/manifest.json").read_text())["dropped"]
    assert [drop["reason"].partition(" (")[0] for drop in dropped] == [
        "videos/chunk-000/observation.images.wrist/episode_000001.mp4: video does not open: "
        "Invalid data found when processing input",
        f"videos/chunk-000/{FRONT}/episode_000002.mp4, {FRONT}: the video has other than the episode's frames, "
        "and the rows' times do not fit it",
    ]


def test_a_cut_table_of_episodes_is_named(tmp_path):
    root = Made(cameras=ONE).write(tmp_path / "robot")
    path = next((root / "meta/episodes").rglob("*.parquet"))
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(DataError, match=r"meta/episodes/chunk-000/file-000\.parquet.*no footer"):
        opened(root)


@pytest.mark.parametrize("layout", [2, 3])
def test_no_table_of_tasks_is_told(tmp_path, layout):
    made = Made(layout=layout, cameras=ONE)
    root = made.write(tmp_path / "robot")
    next((root / "meta").glob("tasks.*")).unlink()
    assert any("no table of tasks is there" in text for text in check_all(made, root).describe().warnings)
