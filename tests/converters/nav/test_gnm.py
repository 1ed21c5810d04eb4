"""GNM folders: every pickle variant, numbering, lengths, splits, spacing, and what is refused."""

from __future__ import annotations

import itertools
import json
import pickle

import numpy as np
import pytest
from helpers.nav_fixtures import POSITIONS, YAWS, body_steps, jpeg, open_nav, walk, write_gnm
from wdsmix.converters.nav.pickles import read_poses

from wdsmix import ShardSet, cli
from wdsmix.errors import ConfigError, DataError


def read_one(source, number=0):
    with source.read(source.episodes()[number]) as episode:
        pictures = {slot: list(stream.read(episode.rows)) for slot, stream in episode.images.items()}
        return {name: values.copy() for name, values in episode.vectors.items()}, pictures


@pytest.mark.parametrize(("position", "yaw", "protocol"), list(itertools.product(POSITIONS, YAWS, (0, 2, 4))))
def test_every_pickle_variant_gives_the_same_poses(tmp_path, position, yaw, protocol):
    positions, yaws = walk(11, seed=3)
    path = tmp_path / "traj_data.pkl"
    path.write_bytes(pickle.dumps({"position": POSITIONS[position](positions), "yaw": YAWS[yaw](yaws)}, protocol))
    got, headings, _ = read_poses(path)
    np.testing.assert_array_equal(got, positions)
    np.testing.assert_allclose(np.exp(1j * headings), np.exp(1j * yaws), atol=1e-12)
    assert headings.shape == (11,)


@pytest.mark.parametrize("module", ["numpy.core.multiarray", "numpy._core.multiarray"])
def test_both_spellings_of_numpys_module_are_read(tmp_path, module):
    positions, yaws = walk(5)
    data = pickle.dumps({"position": positions, "yaw": yaws}, 2)
    for own in ("numpy._core.multiarray", "numpy.core.multiarray"):
        data = data.replace(f"c{own}\n".encode(), f"c{module}\n".encode())
    assert f"c{module}\n".encode() in data
    (tmp_path / "x.pkl").write_bytes(data)
    np.testing.assert_array_equal(read_poses(tmp_path / "x.pkl")[0], positions)


def test_other_keys_and_their_other_lengths_do_not_matter(tmp_path):
    extra = {"timestamps": np.arange(99.0), "linear": [0.1] * 3, "rpm_1": np.zeros(7, np.int64), "name": "ride"}
    written = write_gnm(tmp_path / "set" / "a", key="pos", extra=extra)
    vectors, _ = read_one(open_nav(tmp_path / "set"))
    np.testing.assert_allclose(vectors["state"][:, :2], written["position"], rtol=1e-6)


def test_vectors_pictures_and_numeric_order(tmp_path):
    written = write_gnm(tmp_path / "set" / "a", 13, yaw="wrapped")
    source = open_nav(tmp_path / "set")
    vectors, pictures = read_one(source)
    np.testing.assert_allclose(vectors["action"], body_steps(written["position"], written["yaw"]), atol=1e-6, rtol=1e-6)
    assert not vectors["action"][-1].any()
    assert np.abs(vectors["action"][:, 2]).max() <= np.pi
    turned = vectors["state"][:, 2]
    np.testing.assert_allclose(np.diff(turned), np.diff(written["yaw"]), atol=1e-5)  # unwrapped
    assert pictures["cam0"] == written["jpeg"]  # 10.jpg after 9.jpg, bytes untouched
    info = source.describe()
    assert info.vectors["state"].names == ("x", "y", "yaw")
    assert info.vectors["action"].kinds == ("delta_rotation",) * 3


@pytest.mark.parametrize(("pictures", "frames"), [(14, 12), (13, 12), (11, 11), (10, 10)])
def test_lengths_off_by_at_most_two_are_cut(tmp_path, pictures, frames):
    written = write_gnm(tmp_path / "set" / "a", 12, pictures=pictures)
    source = open_nav(tmp_path / "set")
    (ref,) = source.episodes()
    assert ref.fault is None
    assert ref.frames == frames
    vectors, shown = read_one(source)
    np.testing.assert_allclose(vectors["state"][:, :2], written["position"][:frames], rtol=1e-6)
    assert len(shown["cam0"]) == frames
    (strict,) = open_nav(tmp_path / "set", "--strict").episodes()
    assert "12 positions" in strict.fault


@pytest.mark.parametrize("pictures", [9, 15])
def test_lengths_further_apart_are_rejected(tmp_path, pictures):
    write_gnm(tmp_path / "set" / "a", 12, pictures=pictures)
    (ref,) = open_nav(tmp_path / "set").episodes()
    assert f"{pictures} pictures, 12 positions, 12 yaws" in ref.fault


def broken(folder, what):
    positions, yaws = walk(6)
    if what == "nan":
        positions[3, 1] = np.nan
    elif what == "inf":
        yaws[2] = np.inf
    elif what == "short":
        positions, yaws = positions[:1], yaws[:1]
    data = {"position": positions, "yaw": yaws}
    if what == "no_yaw":
        del data["yaw"]
    elif what == "no_position":
        del data["position"]
    raw = pickle.dumps([positions, yaws] if what == "list" else data, 4)
    raw = {"empty_pickle": b"", "cut_pickle": raw[:-40], "lfs": b"version https://git-lfs.github.com/spec/v1\n"}.get(
        what, raw
    )
    folder.mkdir(parents=True)
    if what != "no_pickle":
        (folder / "traj_data.pkl").write_bytes(raw)
    for k in range(len(positions)):
        (folder / f"{k}.jpg").write_bytes(jpeg(k))
    if what == "cut_picture":
        (folder / "2.jpg").write_bytes(jpeg(2)[:-300])
    elif what == "no_picture":
        (folder / "2.jpg").write_bytes(b"hello, no picture at all")
    elif what == "empty_picture":
        (folder / "2.jpg").write_bytes(b"")
    elif what == "gap":
        (folder / "2.jpg").unlink()
    elif what == "from_one":
        (folder / "0.jpg").unlink()
    elif what == "twice":
        (folder / "02.jpg").write_bytes(jpeg(9))
    elif what == "no_pictures":
        for k in range(6):
            (folder / f"{k}.jpg").unlink()


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("nan", "not finite"),
        ("inf", "not finite"),
        ("short", "too short"),
        ("no_yaw", "no yaw"),
        ("no_position", "no pos"),
        ("list", "not a trajectory"),
        ("empty_pickle", "empty"),
        ("cut_pickle", "damaged"),
        ("lfs", "LFS"),
        ("no_pickle", "no traj_data.pkl"),
        ("cut_picture", "2.jpg: a JPEG that is cut off"),
        ("no_picture", "2.jpg: not a JPEG"),
        ("empty_picture", "2.jpg: the file is empty"),
        ("gap", "expected 2.jpg"),
        ("from_one", "expected 0.jpg"),
        ("twice", "two pictures of one number"),
        ("no_pictures", "no pictures"),
    ],
)
def test_each_defect_has_its_reason_and_costs_one_trajectory(tmp_path, what, reason):
    broken(tmp_path / "set" / "bad", what)
    write_gnm(tmp_path / "set" / "good")
    refs = {ref.id: ref for ref in open_nav(tmp_path / "set").episodes()}
    assert reason in refs["bad"].fault
    assert refs["good"].fault is None


def test_empty_folders_topomaps_and_foreign_files_beside_trajectories(tmp_path):
    root = tmp_path / "set"
    write_gnm(root / "traj_2")
    write_gnm(root / "traj_10", seed=1)
    (root / "traj_3").mkdir()
    (root / "map").mkdir()
    for k in range(3):
        (root / "map" / f"{k}.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    for k in range(4):
        (root / "traj_2" / f"diff_{k}.jpg").write_bytes(jpeg(k + 50))
    (root / "traj_2" / "dataset_dist_0_to_20.pkl").write_bytes(b"cache")
    refs = open_nav(root).episodes()
    assert [ref.id for ref in refs] == ["map", "traj_2", "traj_3", "traj_10"]
    assert "topomap" in refs[0].fault
    assert "empty folder" in refs[2].fault
    assert (refs[1].frames, refs[1].fault) == (12, None)


def test_nothing_to_convert_is_an_error(tmp_path, capsys):
    broken(tmp_path / "set" / "bad", "nan")
    assert cli.main(["convert", "nav", str(tmp_path / "set"), str(tmp_path / "out"), "--quiet"]) == 1
    assert "not finite" in capsys.readouterr().err


def test_published_split_is_read_never_made(tmp_path):
    for k in range(5):
        write_gnm(tmp_path / "recon" / f"t_{k}", 4, seed=k)
    for split, names in (("train", ["t_0", "t_1", "", "gone"]), ("test", ["t_3"])):
        (tmp_path / "data_splits" / "recon" / split).mkdir(parents=True)
        (tmp_path / "data_splits" / "recon" / split / "traj_names.txt").write_text("\n".join(names) + "\n")
        (tmp_path / "data_splits" / "recon" / split / "dataset_recon.lmdb").write_bytes(b"cache")
    source = open_nav(tmp_path / "recon", "--splits", str(tmp_path / "data_splits"))
    assert [ref.split for ref in source.episodes()] == ["train", "train", None, "test", None]
    warnings = " ".join(source.describe().warnings)
    assert "1 of 4 names of the split have no folder, such as gone" in warnings
    assert "2 trajectories are in no list" in warnings
    out = tmp_path / "out"
    command = [
        "convert",
        "nav",
        str(tmp_path / "recon"),
        str(out),
        "--splits",
        str(tmp_path / "data_splits"),
        "--quiet",
    ]
    assert cli.main(command) == 2
    assert cli.main([*command, "--split-by", "source"]) == 0
    manifest = json.loads((out / "manifest.json").read_text())
    assert {name: counts["episodes"] for name, counts in manifest["splits"].items()} == {"train": 2, "test": 1}
    with pytest.raises(ConfigError, match="no lists of names"):
        open_nav(tmp_path / "recon", "--splits", str(tmp_path))


@pytest.mark.parametrize(
    ("options", "warns"), [((), False), (("--spacing", "0.35"), False), (("--spacing", "0.9"), True)]
)
def test_spacing_is_measured_and_told(tmp_path, options, warns):
    written = [write_gnm(tmp_path / "set" / f"t_{k}", 20, seed=k)["position"] for k in range(3)]
    measured = np.concatenate([np.hypot(*np.diff(p, axis=0).T) for p in written]).mean()
    info = open_nav(tmp_path / "set", *options).describe()
    told = info.details["navigation"]
    assert told["measured_spacing"] == pytest.approx(measured, rel=1e-12)
    assert told["spacing"] == (float(options[1]) if options else told["measured_spacing"])
    assert any("times the measured" in warning for warning in info.warnings) is warns
    assert any("4 frames/s are assumed" in warning for warning in info.warnings)
    assert not any("assumed" in warning for warning in open_nav(tmp_path / "set", "--fps", "4").describe().warnings)


def test_spacing_is_known_by_the_datasets_name(tmp_path):
    write_gnm(tmp_path / "scand" / "t", 20)
    told = open_nav(tmp_path / "scand").describe().details["navigation"]
    assert told["spacing"] == 0.38


def test_stride_makes_steps_between_kept_frames(tmp_path):
    written = write_gnm(tmp_path / "set" / "a", 20)
    source = open_nav(tmp_path / "set", "--stride", "3", "--spacing", "0.2", "--fps", "12")
    vectors, pictures = read_one(source)
    kept = np.arange(0, 20, 3)
    np.testing.assert_allclose(
        vectors["action"], body_steps(written["position"][kept], written["yaw"][kept]), atol=1e-6
    )
    assert pictures["cam0"] == [written["jpeg"][k] for k in kept]
    assert source.describe().details["navigation"]["spacing"] == pytest.approx(0.6)
    assert source.describe().fps == 4


def test_leaving_frames_out_by_rate_is_refused(tmp_path, capsys):
    write_gnm(tmp_path / "set" / "a", 20)
    command = ["convert", "nav", str(tmp_path / "set"), str(tmp_path / "out"), "--hz", "2", "--quiet"]
    assert cli.main(command) == 2
    assert "dx, dy, dyaw" in capsys.readouterr().err


def test_repeated_pictures_are_counted(tmp_path):
    written = write_gnm(tmp_path / "set" / "a", 12)
    for k in (3, 4, 9):
        (tmp_path / "set" / "a" / f"{k}.jpg").write_bytes(written["jpeg"][k - 1] if k != 4 else written["jpeg"][2])
    info = open_nav(tmp_path / "set").describe()
    assert info.details["pictures"]["repeats"] == 3
    assert any("3 of 12 pictures repeat" in warning for warning in info.warnings)


def test_go2_sample(samples, tmp_path):
    source = samples / "nav" / "go2"
    assert cli.main(["convert", "nav", str(source), str(tmp_path / "set"), "--quiet", "--workers", "1"]) == 0
    opened = ShardSet(tmp_path / "set")
    assert opened.manifest.counts.frames == 122 + 109
    rows = []
    for episode, name in zip(opened.episodes(), ("go2_20250717_174636", "go2_20250717_175015"), strict=True):
        raw = pickle.loads((source / name / "traj_data.pkl").read_bytes())  # a sample that lies here, of lists alone
        positions, yaws = np.array(raw["position"]), np.unwrap(np.array(raw["yaw"]))
        wanted = body_steps(positions, yaws)
        np.testing.assert_allclose(episode.action, wanted, atol=1e-7)
        np.testing.assert_allclose(episode.state, np.c_[positions, yaws], rtol=1e-6, atol=1e-7)
        rows.append(wanted)
    told = opened.stats.fields["action"]
    np.testing.assert_allclose(told.mean, np.concatenate(rows).mean(0), atol=1e-8)
    np.testing.assert_allclose(told.std, np.concatenate(rows).std(0), rtol=1e-6)
    assert cli.main(["check", "nav", str(source), "--quiet"]) == 0


def test_a_run_ends_in_a_missing_folder(tmp_path):
    with pytest.raises(DataError, match="no such file or folder"):
        open_nav(tmp_path / "nowhere")


def test_inputs_are_all_files_that_are_read(tmp_path):
    for name in ("a", "b"):
        write_gnm(tmp_path / "set" / name, 3)
    named = {path.relative_to(tmp_path / "set").as_posix() for path in open_nav(tmp_path / "set").inputs()}
    assert named == {f"{t}/{n}" for t in ("a", "b") for n in ("traj_data.pkl", "0.jpg", "1.jpg", "2.jpg")}
    before = open_nav(tmp_path / "set").fingerprint()
    (tmp_path / "set" / "a" / "1.jpg").write_bytes(jpeg(999, 50, 40))
    assert open_nav(tmp_path / "set").fingerprint() != before


def test_one_trajectory_is_a_source_too(tmp_path):
    written = write_gnm(tmp_path / "drive", 5)
    source = open_nav(tmp_path / "drive")
    (ref,) = source.episodes()
    assert (ref.file, ref.id) == ("drive", "drive")
    assert read_one(source)[1]["cam0"] == written["jpeg"]


@pytest.mark.parametrize(("change", "said"), [("yaw", "are these radians"), ("position", "more than 10 m")])
def test_scrambled_fields_are_told(tmp_path, change, said):
    positions, yaws = walk(8)
    write_gnm(tmp_path / "set" / "a", 8)
    data = {"position": positions * (100 if change == "position" else 1), "yaw": yaws + (90 if change == "yaw" else 0)}
    (tmp_path / "set" / "a" / "traj_data.pkl").write_bytes(pickle.dumps(data, 4))
    assert any(said in warning for warning in open_nav(tmp_path / "set").describe().warnings)
