"""The plan: layout, drops, splits, shards, parts, and what differs between two of them."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from helpers.fake_source import FakeEpisode, FakeSource, many
from hypothesis import given
from hypothesis import strategies as st
from wdsmix.converters.base import ConvertOptions
from wdsmix.converters.plan import Plan, Planning, differences

from wdsmix.errors import ConfigError, DataError


def planned(made: list[FakeEpisode], *, fps: float = 30.0, kinds: dict | None = None, **options: object) -> Plan:
    return Planning.of(FakeSource(made, fps=fps, kinds=kinds or {}), ConvertOptions(**options)).plan


def layout(plan: Plan) -> dict[str, list[int]]:
    return {shard.name: [episode.number for episode in shard.episodes] for shard in plan.shards}


def test_json_gives_it_back():
    plan = planned(many(9), val_fraction=0.3, hz=10, image_size=64, extra={"x": (1, 2)})
    again = Plan.model_validate_json(plan.to_bytes())
    assert again == plan
    assert again.digest == plan.digest
    assert json.loads(plan.to_bytes())["arguments"]["hz"] == 10.0
    assert plan.hz == 10
    assert not {"workers", "part", "on_bad"} & set(plan.arguments)


def test_what_changes_no_byte_changes_no_plan():
    base = planned(many(9), hz=10)
    assert planned(many(9), hz=10.0, workers=3, part=(1, 2), on_bad="fail").digest == base.digest
    assert planned(many(9), hz=15).digest != base.digest
    moved = FakeSource(many(9), path="/elsewhere/fake")
    assert Planning.of(moved, ConvertOptions(hz=10)).plan.digest == base.digest


def test_shards_fill_up_and_long_episodes_stand_alone():
    frames = [4, 5, 3, 25, 2, 10, 1, 1, 9]
    made = [FakeEpisode(id=f"e{k}", frames=n) for k, n in enumerate(frames)]
    assert layout(planned(made, frames_per_shard=10)) == {
        "train-00000": [0, 1],
        "train-00001": [2],
        "train-00002": [3],
        "train-00003": [4],
        "train-00004": [5],
        "train-00005": [6, 7],
        "train-00006": [8],
    }
    halved = planned(made, frames_per_shard=10, hz=15)
    assert [shard.frames for shard in halved.shards] == [7, 13, 8, 5]


@given(
    frames=st.lists(st.integers(1, 60), min_size=1, max_size=40),
    limit=st.integers(1, 80),
    parts=st.integers(1, 6),
    fraction=st.sampled_from([0.0, 0.2, 0.5]),
)
def test_every_episode_is_in_one_shard_of_one_split_and_one_part(frames, limit, parts, fraction):
    made = [FakeEpisode(id=f"e{k}", frames=n) for k, n in enumerate(frames)]
    if fraction and not 0 < round(fraction * len(made)) < len(made):
        return
    plan = planned(made, frames_per_shard=limit, val_fraction=fraction)
    numbers = [episode.number for shard in plan.shards for episode in shard.episodes]
    assert sorted(numbers) == list(range(len(made)))
    for shard in plan.shards:
        assert shard.frames <= limit or len(shard.episodes) == 1
        assert [e.number for e in shard.episodes] == sorted(e.number for e in shard.episodes)
        assert shard.name.startswith(shard.split)
    for split in ("train", "val"):
        names = [shard.name for shard in plan.shards if shard.split == split]
        assert names == [f"{split}-{k:05d}" for k in range(len(names))]
    held = [episode for shard in plan.shards if shard.split == "val" for episode in shard.episodes]
    assert len(held) == round(fraction * len(made))
    shares = [plan.part(k, parts) for k in range(parts)]
    assert sorted(shard.name for share in shares for shard in share) == sorted(shard.name for shard in plan.shards)
    loads = [sum(shard.frames for shard in share) for share in shares]
    assert max(loads) - min(loads) <= max(shard.frames for shard in plan.shards)


def test_held_out_units_depend_on_seed_and_name_alone():
    made = many(20)
    first = {e.id for s in planned(made, val_fraction=0.25).shards if s.split == "val" for e in s.episodes}
    turned = {e.id for s in planned(made[::-1], val_fraction=0.25).shards if s.split == "val" for e in s.episodes}
    other = {e.id for s in planned(made, val_fraction=0.25, seed=1).shards if s.split == "val" for e in s.episodes}
    assert len(first) == 5
    assert first == turned
    assert first != other


def test_split_by_file_keeps_files_whole():
    plan = planned(many(12, files=4), split_by="file", val_fraction=0.25)
    files = {split: {e.file for s in plan.shards if s.split == split for e in s.episodes} for split in ("train", "val")}
    assert len(files["val"]) == 1
    assert not files["val"] & files["train"]


@pytest.mark.parametrize(
    ("made", "options"),
    [
        (many(3), {"val_fraction": 0.1}),
        (many(1), {"val_fraction": 0.5}),
        (many(12, files=1), {"val_fraction": 0.5, "split_by": "file"}),
        (many(3), {"val_fraction": 0.9}),
        (many(3), {"split_by": "source"}),
        ([FakeEpisode(id="a", split="x")], {"split_by": "source", "val_fraction": 0.5}),
        ([FakeEpisode(id="a", split="x y"), FakeEpisode(id="b", split="x-y")], {"split_by": "source"}),
    ],
)
def test_impossible_splits_name_the_option(made, options):
    with pytest.raises(ConfigError, match=r"--split-by"):
        planned(made, **options)


def test_published_splits():
    made = [
        FakeEpisode(id="a", split="valid"),
        FakeEpisode(id="b", split="train"),
        FakeEpisode(id="c"),
        FakeEpisode(id="d", split="20-percent"),
    ]
    plan = planned(made, split_by="source")
    assert layout(plan) == {"train-00000": [1], "20_percent-00000": [3], "valid-00000": [0]}
    assert [(drop.episode, drop.kind) for drop in plan.dropped] == [(2, "filter")]


def test_faults_and_odd_widths_are_dropped_and_keep_their_numbers():
    made = [
        FakeEpisode(id="a", frames=5, state=14),
        FakeEpisode(id="b", frames=3, state=7),
        FakeEpisode(id="c", frames=3, state=7),
        FakeEpisode(id="", file="bad.fake", fault="no signature", fault_kind="file"),
        FakeEpisode(id="d", fault="score 2 is below 3", fault_kind="filter"),
        FakeEpisode(id="e", frames=0),
        FakeEpisode(id="f", cameras=()),
    ]
    plan = planned(made)
    assert layout(plan) == {"train-00000": [1, 2]}
    assert plan.vectors["state"].width == 7
    assert [(drop.episode, drop.kind, drop.reason) for drop in plan.dropped] == [
        (0, "episode", "state has 14 dimensions, the set has 7"),
        (3, "file", "no signature"),
        (4, "filter", "score 2 is below 3"),
        (5, "episode", "it has no frames"),
        (6, "episode", "it has no camera (--allow-no-camera would keep it)"),
    ]
    assert layout(planned(made, allow_no_camera=True)) == {"train-00000": [1, 2, 6]}
    with pytest.raises(DataError, match="no signature"):
        planned(made, on_bad="fail")
    with pytest.raises(DataError, match="state has 14"):
        planned(made[:3], on_bad="fail")
    planned([made[1], made[4]], on_bad="fail")


def test_equal_widths_go_to_the_first_seen():
    made = [FakeEpisode(id="a", state=9), FakeEpisode(id="b", state=3)]
    assert planned(made).vectors["state"].width == 9


def test_first_good_episodes():
    made = [FakeEpisode(id="x", fault="bad"), *many(5), FakeEpisode(id="y", fault="bad")]
    plan = planned(made, max_episodes=2)
    assert layout(plan) == {"train-00000": [1, 2]}
    assert [drop.episode for drop in plan.dropped] == [0]


def test_nothing_left():
    with pytest.raises(DataError, match="2 x too dark"):
        planned([FakeEpisode(id="a", fault="too dark"), FakeEpisode(id="b", fault="too dark")])
    with pytest.raises(DataError, match="no episode at all"):
        planned([])
    with pytest.raises(ConfigError, match="--allow-no-camera"):
        planned([FakeEpisode(id="a", cameras=())])
    with pytest.raises(DataError, match="twice"):
        planned([FakeEpisode(id="a"), FakeEpisode(id="a")])


def test_reasons_name_no_folder_of_this_machine():
    made = [*many(2), FakeEpisode(id="z", fault="/data/lab/a.fake: damaged\nat 0x7f3a12bc45de")]
    plan = Planning.of(FakeSource(made, path="/data/lab"), ConvertOptions()).plan
    assert plan.dropped[0].reason == "a.fake: damaged at 0x..."


def test_rotation_deltas_and_rates():
    kinds = {"action": ("delta", "delta_rotation", "delta", "absolute")}
    with pytest.raises(ConfigError, match="--hz 0"):
        planned(many(3), kinds=kinds, hz=10)
    assert planned(many(3), kinds=kinds).hz == 30
    plan = planned(many(3), hz=12)
    assert plan.hz == 15
    assert "--hz-mode nearest" in plan.warnings[0]
    assert "unknown" in plan.warnings[1]
    assert planned(many(3), hz=12, hz_mode="nearest").hz == 12
    assert not planned(many(3), kinds={"action": ("absolute",) * 4}, hz=10).warnings
    assert "do not fit" in planned(many(3), kinds={"action": ("absolute",) * 3}).warnings[0]


def test_the_user_says_what_the_source_does_not():
    assert "--action-kind" in planned(many(2), hz=10).warnings[0]
    plan = planned(many(2), hz=10, action_kind="delta")
    assert plan.vectors["action"].kinds == ["delta"] * 4
    assert not plan.warnings
    partly = planned(many(2), kinds={"action": ("unknown", "absolute", "delta", "unknown")}, action_kind="delta")
    assert partly.vectors["action"].kinds == ["delta", "absolute", "delta", "delta"]


def test_a_fraction_too_small_names_one_that_works():
    with pytest.raises(ConfigError, match=r"--val-fraction 0\.13 or more"):
        planned(many(4), val_fraction=0.05)
    planned(many(4), val_fraction=0.13)
    with pytest.raises(ConfigError, match="leave --val-fraction out"):
        planned(many(1), val_fraction=0.5)


def test_nearest_is_not_recommended_where_it_would_be_refused():
    assert "--hz-mode nearest meets it" in planned(many(2), fps=20, hz=15).warnings[0]
    rotation = {"action": ("delta_rotation",) * 4}
    assert "nearest" not in planned(many(2), fps=20, hz=15, kinds=rotation).warnings[0]


def test_differences_are_named():
    source = FakeSource(many(4), args={"dialect": "a"})
    old = Planning.of(source, ConvertOptions(hz=10)).plan.model_dump()
    new = Planning.of(replace(source, args={"dialect": "b"}, salt="x"), ConvertOptions(image_size=64)).plan.model_dump()
    found = differences(old, new)
    assert found[:3] == ["--hz: 10.0 -> 0.0", "--image-size: 0 -> 64", '--dialect: "a" -> "b"']
    assert any(line.startswith("source_fingerprint: ") for line in found)
    assert differences(old, old) == []
    libraries = {**old, "libraries": {**old["libraries"], "pillow": "1.0"}}
    assert differences(libraries, old)[0].startswith('libraries.pillow: "1.0" -> ')


def test_options_out_of_range():
    for bad in ({"hz": float("nan")}, {"hz": float("inf")}, {"quality": 0}, {"val_fraction": 1.0}, {"part": (2, 2)}):
        with pytest.raises(ConfigError, match="bad value"):
            ConvertOptions(**bad)
