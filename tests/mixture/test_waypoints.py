"""Waypoints: equal to the reference computation of GNM, in every place of an episode and at every scale."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
from helpers.nav_fixtures import write_gnm, write_recon, write_vamos
from hypothesis import given, settings
from hypothesis import strategies as st

from wdsmix import MixtureDataset, cli
from wdsmix.errors import ConfigError
from wdsmix.mixture.assemble import Assembler
from wdsmix.mixture.batch import BatchMemory, batch_fields
from wdsmix.mixture.catalog import open_catalog
from wdsmix.mixture.config import MixtureConfig
from wdsmix.mixture.goals import choose_goals
from wdsmix.mixture.waypoints import poses_ahead


def reference(positions, yaws, t, count, every=1, spacing=1.0, heading=True):
    """A sample's actions as the GNM data loader computes them, in float64: rotate, drop the first, divide."""
    rows = np.arange(t, t + count * every + 1, every)
    rows = rows[rows < len(positions)]
    rows = np.concatenate([rows, np.repeat(rows[-1:], count + 1 - len(rows))])  # the short tail repeats its last
    cos, sin = np.cos(yaws[t]), np.sin(yaws[t])
    rotation = np.array([[cos, -sin], [sin, cos]])
    ahead = (positions[rows] - positions[t]) @ rotation
    turn = yaws[rows] - yaws[t]
    ahead = ahead[1:] / (spacing * every)
    return np.c_[ahead, np.cos(turn[1:]), np.sin(turn[1:])] if heading else ahead


def nav_set(tmp_path: Path, *, lengths=(14, 9, 2), name="drive", options=()) -> tuple[Path, list]:
    """A converted GNM dataset, and its poses in float64."""
    root, out = tmp_path / f"{name}-raw" / name, tmp_path / name
    written = [write_gnm(root / f"t_{k}", length, seed=k + 7) for k, length in enumerate(lengths)]
    assert cli.main(["convert", "nav", str(root), str(out), "--quiet", "--workers", "1", *options]) == 0
    return out, [(one["position"], one["yaw"]) for one in written]


def mixture(*sources, sample=None):
    listed = [
        {"name": f"s{k}", "weight": 1.0, **({"shards": str(s)} if isinstance(s, Path) else s)}
        for k, s in enumerate(sources)
    ]
    return MixtureConfig.from_dict({"sources": listed, "sample": {"action_chunk": 5, **(sample or {})}})


def all_rows(config):
    """Action, its padding and mask, of every frame of the first source, in order."""
    catalog = open_catalog(config)
    assembler = Assembler(catalog)
    size = int(catalog.sources[0].frames.sum())
    memory = BatchMemory(batch_fields(catalog.layout, size))
    rows = np.arange(size, dtype=np.int64)
    samples = assembler.locate(np.zeros(size, np.int32), rows, rows)
    assembler.fill_vectors(samples, memory)
    return {name: memory.arrays[name].copy() for name in ("action", "action_is_pad", "action_mask")}


@pytest.mark.parametrize(("every", "heading"), [(1, True), (1, False), (2, True), (3, False)])
def test_every_frame_equals_the_reference(tmp_path, every, heading):
    folder, poses = nav_set(tmp_path, options=("--spacing", "0.25"))
    form = {"form": "waypoints", "every": every, "heading": heading}
    got = all_rows(mixture({"shards": str(folder), "action": form}))
    width = 4 if heading else 2
    assert got["action"].shape == (25, 5, width)
    row = 0
    for positions, yaws in poses:
        for t in range(len(positions)):
            wanted = reference(positions, yaws, t, 5, every, 0.25, heading)
            np.testing.assert_allclose(got["action"][row], wanted, atol=1e-6)
            pad = [t + (k + 1) * every > len(positions) - 1 for k in range(5)]
            assert got["action_is_pad"][row].tolist() == pad
            row += 1
    assert got["action_mask"].all()


def test_go2_sample_equals_the_reference(samples, tmp_path):
    source = samples / "nav" / "go2"
    assert cli.main(["convert", "nav", str(source), str(tmp_path / "set"), "--quiet", "--workers", "1"]) == 0
    manifest = json.loads((tmp_path / "set" / "manifest.json").read_text())
    spacing = manifest["details"]["navigation"]["spacing"]
    got = all_rows(mixture({"shards": str(tmp_path / "set"), "action": "waypoints"}, sample={"action_chunk": 8}))
    row = 0
    distances = []
    for name, length in (("go2_20250717_174636", 122), ("go2_20250717_175015", 109)):
        raw = pickle.loads((source / name / "traj_data.pkl").read_bytes())
        positions, yaws = np.array(raw["position"], np.float64), np.array(raw["yaw"], np.float64)
        distances.append(np.linalg.norm(np.diff(positions, axis=0), axis=1))
        for t in range(length):
            wanted = reference(positions, yaws, t, 8, 1, spacing)
            np.testing.assert_allclose(got["action"][row], wanted, atol=1e-6)
            row += 1
    assert row == len(got["action"])
    assert spacing == pytest.approx(np.concatenate(distances).mean(), rel=1e-12)


@settings(max_examples=60)
@given(st.integers(1, 30), st.integers(1, 7), st.integers(1, 4), st.integers(0, 1000))
def test_steps_followed_are_the_poses_they_came_from(length, count, every, seed):
    rng = np.random.default_rng(seed)
    yaws = np.cumsum(rng.uniform(-3, 3, length))
    positions = np.cumsum(rng.normal(0, 0.5, (length, 2)), axis=0) + rng.normal(0, 100, 2)
    steps = np.zeros((length, 3), np.float32)
    for t in range(length - 1):
        ahead = complex(*(positions[t + 1] - positions[t])) * np.exp(-1j * yaws[t])
        steps[t] = [ahead.real, ahead.imag, np.angle(np.exp(1j * (yaws[t + 1] - yaws[t])))]
    frames = np.arange(length)
    made = poses_ahead(steps, np.zeros(length, int), frames, np.full(length, length), count=count, every=every)
    for t in frames:
        wanted = reference(positions, yaws, t, count, every) * [every, every, 1, 1]
        np.testing.assert_allclose(made[t, :, :2], wanted[:, :2], atol=2e-5)
        np.testing.assert_allclose(np.cos(made[t, :, 2]), wanted[:, 2], atol=2e-5)


@pytest.mark.parametrize("mode", ["mean_std", "min_max", "q01_q99"])
def test_statistics_are_those_of_the_waypoints(tmp_path, mode):
    folder, poses = nav_set(tmp_path, lengths=(40, 30))
    plain = [reference(p, y, t, 5)[[t + k + 1 < len(p) for k in range(5)]] for p, y in poses for t in range(len(p))]
    rows = np.concatenate(plain)
    config = mixture(
        {"shards": str(folder), "action": "waypoints", "normalize": {"action": {"mode": mode, "clip": 50}}}
    )
    got = all_rows(config)
    if mode == "mean_std":
        centre, reach = rows.mean(0), rows.std(0)
    else:
        low, high = (rows.min(0), rows.max(0)) if mode == "min_max" else np.quantile(rows, [0.01, 0.99], axis=0)
        centre, reach = (low + high) / 2, (high - low) / 2
    at = 0
    for p, y in poses:
        for t in range(len(p)):
            wanted = (reference(p, y, t, 5) - centre) / reach
            np.testing.assert_allclose(got["action"][at], wanted, atol=2e-2 if mode == "q01_q99" else 1e-4)
            at += 1


def test_groups_pool_waypoints_of_one_kind_only(tmp_path):
    one, poses_one = nav_set(tmp_path, name="one", lengths=(30,))
    two, poses_two = nav_set(tmp_path, name="two", lengths=(20, 25))
    how = {"norm_group": "nav", "normalize": {"action": {"mode": "mean_std", "clip": 50}}, "embodiment": "robot"}
    both = mixture(
        {"shards": str(one), "action": "waypoints", **how}, {"shards": str(two), "action": "waypoints", **how}
    )
    rows = np.concatenate(
        [
            reference(p, y, t, 5)[[t + k + 1 < len(p) for k in range(5)]]
            for p, y in (*poses_one, *poses_two)
            for t in range(len(p))
        ]
    )
    wanted = (reference(*poses_one[0], 3, 5) - rows.mean(0)) / rows.std(0)
    np.testing.assert_allclose(all_rows(both)["action"][3], wanted, atol=1e-4)
    for other in (None, {"form": "waypoints", "heading": False}, {"form": "waypoints", "every": 2}):
        with pytest.raises(ConfigError, match="norm_group"):
            open_catalog(
                mixture(
                    {"shards": str(one), "action": "waypoints", **how}, {"shards": str(two), "action": other, **how}
                )
            )


@pytest.mark.parametrize(
    ("source", "sample", "said"),
    [
        ({"action": "waypoints", "normalize": {"action": "none"}}, {}, "never left in metres"),
        ({"action": "waypoints"}, {"normalize": {"action": "none"}}, "never left in metres"),
        ({"normalize": {"action": "spacing"}}, {}, "goes with 'action: waypoints'"),
        ({}, {"normalize": {"action": "spacing"}}, "goes with 'action: waypoints'"),
        ({"action": "waypoints", "normalize": {"state": "spacing"}}, {}, "state has no spacing"),
        ({"action": "waypoints"}, {"normalize": {"state": "spacing"}}, "state has no spacing"),
        ({"action": "positions"}, {}, "bad value"),
        ({"action": {"form": "waypoints", "evry": 2}}, {}, "unknown key"),
        ({"action": {"form": "waypoints", "every": 0}}, {}, "1 or more"),
        ({}, {"goal": {"min_offset": 1, "max_offset": 5, "zero_is_negative": True}}, "min_offset 0"),
    ],
)
def test_combinations_that_mean_nothing_are_errors(source, sample, said):
    with pytest.raises(ConfigError, match=said):
        mixture({"shards": "somewhere", **source}, sample=sample)


def test_sets_without_steps_are_refused(tmp_path):
    from helpers.mixtures import make_set

    make_set(tmp_path / "arm", dims={"state": 3, "action": 3})
    with pytest.raises(ConfigError, match="navigation set's steps"):
        open_catalog(mixture({"shards": str(tmp_path / "arm"), "action": "waypoints"}))
    row = {
        "image": {"bytes": (write_gnm(tmp_path / "g" / "t", 2)["jpeg"][0]), "path": ""},
        "text": "go",
        "trajectory_3d": [[0.0, 0.0, 0.0], [1.0, 0.5, 0.0]],
    }
    write_vamos(tmp_path / "vamos" / "train-0.parquet", [row, row])
    assert cli.main(["convert", "nav", str(tmp_path / "vamos"), str(tmp_path / "v"), "--quiet", "--workers", "1"]) == 0
    with pytest.raises(ConfigError, match="action of 10 dimensions"):
        open_catalog(mixture({"shards": str(tmp_path / "v"), "action": "waypoints"}))


def test_the_loader_gives_the_same_waypoints_beside_other_sources(tmp_path):
    from helpers.mixtures import make_set

    folder, poses = nav_set(tmp_path)
    (tmp_path / "recon").mkdir()
    write_recon(tmp_path / "recon" / "a.hdf5", 20)
    assert cli.main(["convert", "nav", str(tmp_path / "recon"), str(tmp_path / "r"), "--quiet", "--workers", "1"]) == 0
    make_set(tmp_path / "arm", dims={"state": 4, "action": 6}, size=(48, 36))
    spacing = json.loads((folder / "manifest.json").read_text())["details"]["navigation"]["spacing"]
    data = {
        "embodiments": {"drive": 0, "jackal": 1, "arm": 2},
        "sources": [
            {"name": "drive", "shards": str(folder), "weight": 1, "action": "waypoints"},
            {"name": "recon", "shards": str(tmp_path / "r"), "weight": 1, "action": "waypoints"},
            {"name": "arm", "shards": str(tmp_path / "arm"), "weight": 1, "normalize": {"action": "mean_std"}},
        ],
        "sample": {"action_chunk": 5, "image_size": 32},
    }
    dataset = MixtureDataset(MixtureConfig.from_dict(data), batch_size=12)
    seen = 0
    batches = iter(dataset)
    for _ in range(4):
        batch = next(batches)
        for b in range(12):
            if batch["source_id"][b] != 0:
                continue
            positions, yaws = poses[int(batch["episode"][b])]
            wanted = reference(positions, yaws, int(batch["frame"][b]), 5, 1, spacing)
            np.testing.assert_allclose(batch["action"][b, :, :4].numpy(), wanted, atol=1e-6)
            assert batch["action_mask"][b].tolist() == [True] * 4 + [False] * 2
            assert not batch["action"][b, :, 4:].any()
            seen += 1
    assert seen > 8


def test_draft_and_plan_name_the_form(tmp_path, capsys):
    folder, _ = nav_set(tmp_path)
    text = tmp_path / "mixture.yaml"
    assert cli.main(["mix", "init", str(folder), "--out", str(text)]) == 0
    assert "action: waypoints" in text.read_text()
    assert cli.main(["mix", "plan", str(text)]) == 0
    assert "spacing" in capsys.readouterr().out
    assert cli.main(["mix", "run", str(text), "--steps", "2", "--batch-size", "4"]) == 0


def test_norm_groups_of_other_names_are_refused(tmp_path):
    from helpers.unitree_fixtures import motion, write_published

    joints = ["Waist", "Shoulder", "Elbow", "ForearmRoll", "WristAngle", "WristRotate"]
    left, right = ([f"k{side}{name}" for name in joints] for side in ("Left", "Right"))
    orders = {"v1": [*left, "kLG", *right, "kRG"], "v2": [*left, *right, "kLG", "kRG"]}
    for name, names in orders.items():
        rows = [motion(40, 14, seed) for seed in range(2)]
        columns = {"observation.state": rows, "action": rows}
        told = {"observation.state": names, "action": names}
        write_published(tmp_path / "raw" / name, columns, robot="Z1", names=told)
        command = ["convert", "unitree", str(tmp_path / "raw" / name), str(tmp_path / name), "--allow-no-camera"]
        assert cli.main([*command, "--quiet", "--workers", "1"]) == 0
    grouped = [{"shards": str(tmp_path / name), "norm_group": "z1"} for name in orders]
    with pytest.raises(ConfigError, match="'kRightWaist' in s1"):
        open_catalog(mixture(*grouped, sample={"normalize": {"action": "mean_std"}}))
    open_catalog(
        mixture(
            *({**one, "norm_group": f"g{k}"} for k, one in enumerate(grouped)),
            sample={"normalize": {"action": "mean_std"}},
        )
    )


def test_goals_as_gnm_draws_them():
    ends = np.cumsum([40, 3, 25, 60])
    size, draws = int(ends[-1]), 40
    row = np.tile(np.arange(size), draws)
    goals = choose_goals(
        seed=3,
        name="nav",
        draw=np.arange(size * draws),
        row=row,
        ends=ends,
        lowest=0,
        highest=20,
        negative_fraction=0.0,
        zero_is_negative=True,
    )
    episode = np.searchsorted(ends, row, side="right")
    left = np.minimum(ends[episode] - 1 - row, 20)
    other = np.searchsorted(ends, goals.row, side="right")
    assert (goals.negative == (other != episode)).all()
    assert (goals.offset[~goals.negative] >= 1).all()
    assert (goals.row[~goals.negative] == row[~goals.negative] + goals.offset[~goals.negative]).all()
    for value in (0, 1, 5, 20):  # uniform over 0 ... left, and 0 is the negative
        mine = left == value
        share = goals.negative[mine].mean()
        assert abs(share - 1 / (value + 1)) < 4 * np.sqrt(share * (1 - share) / mine.sum()) + 1e-9
    plain = choose_goals(
        seed=3,
        name="nav",
        draw=np.arange(size * draws),
        row=row,
        ends=ends,
        lowest=0,
        highest=20,
        negative_fraction=0.0,
    )
    assert not plain.negative.any()
    np.testing.assert_array_equal(plain.offset[~goals.negative], goals.offset[~goals.negative])
