"""Every layout of real robots and two arms: through the command, against what its writer laid down."""

from __future__ import annotations

import json

import numpy as np
import pytest
from helpers.hdf5_converted import convert, npy
from helpers.hdf5_fixtures import open_source, rgb
from helpers.hdf5_real_robots import WRITERS, real_frames
from helpers.tars import samples_of

from wdsmix.cli import main


@pytest.fixture(scope="module")
def real(samples):
    return real_frames(samples)


def compare(folder, written):
    """Each vector to the bit, each picture to the level."""
    found = samples_of(folder)
    assert len(found) == len(written.action)
    state, action = written.state.astype(np.float32), written.action.astype(np.float32)
    for frame in range(len(action)):
        sample = found[f"000000_{frame:06d}"]
        np.testing.assert_array_equal(npy(sample["state.npy"]), state[frame], err_msg=f"state {frame}")
        np.testing.assert_array_equal(npy(sample["action.npy"]), action[frame], err_msg=f"action {frame}")
        assert {name for name in sample if name.startswith("cam")} == {f"{slot}.jpg" for slot in written.views}
        for slot, views in written.views.items():
            error = np.abs(rgb(sample[f"{slot}.jpg"]).astype(int) - views[frame]).mean()
            assert error < 2.5, (slot, frame, error)
            others = [k for k in range(len(views)) if (views[k] != views[frame]).any()]
            nearest = min(np.abs(rgb(sample[f"{slot}.jpg"]).astype(int) - views[k]).mean() for k in others)
            assert error <= nearest, (slot, frame)
        extras = json.loads(sample["json"])
        assert extras["task"] == written.task
        for name, values in written.extras.items():
            assert extras[name] == values[frame]


def upright(picture, camera):
    """RGB as it was before it was stored, by hand."""
    pixels = rgb(picture)[..., ::-1] if camera.order == "bgr" else rgb(picture)
    return {"none": pixels, "vertical": pixels[::-1], "rot180": pixels[::-1, ::-1]}[camera.flip]


@pytest.mark.parametrize("name", WRITERS)
def test_a_layout_comes_back_as_it_was_written(name, real, tmp_path):
    write, dialect = WRITERS[name]
    written = write(tmp_path / "episode_7.hdf5", real)
    source = open_source(tmp_path)
    (ref,) = source.episodes()
    assert ref.fault is None
    assert (ref.frames, ref.locator["dialect"]) == (len(written.action), dialect)
    info = source.describe()
    assert info.kind == f"hdf5/{dialect}"
    assert info.fps == pytest.approx(written.fps)
    assert info.details["pairing"] == written.pairing
    assert {slot: (camera.key, camera.order) for slot, camera in info.cameras.items()} == {
        slot: (key, written.order) for slot, key in written.keys.items()
    }
    assert set(info.vectors["action"].kinds) == {"absolute"}
    assert any("hold no rate" in text or "frequency" in text for text in info.warnings)
    with source.read(ref) as episode:
        np.testing.assert_array_equal(episode.vectors["state"], written.state.astype(np.float32))
        np.testing.assert_array_equal(episode.vectors["action"], written.action.astype(np.float32))
        assert episode.tasks == (written.task,)
        for key, values in written.extras.items():
            assert episode.frame_extras[key] == values
        rows = np.arange(ref.frames) if episode.rows is None else episode.rows
        for slot, views in written.views.items():
            seen = [upright(picture, episode.cameras[slot]) for picture in episode.images[slot].read(rows)]
            assert_same_pictures(np.stack(seen), views)


def assert_same_pictures(seen, views):
    """To the level of the codec, and nearer to their own than to any other frame."""
    assert seen.shape == views.shape
    errors = np.abs(seen[:, None].astype(np.int16) - views[None].astype(np.int16)).mean((2, 3, 4))
    own = np.diagonal(errors)
    assert own.max() < 2.5
    assert (own[:, None] <= errors + 1e-9).all()


@pytest.mark.parametrize("name", ["mobile-aloha", "robotwin-legacy", "agilex-paths", "agibot", "droid"])
def test_through_the_command(name, real, tmp_path, capsys):
    write, dialect = WRITERS[name]
    (tmp_path / "source").mkdir()
    written = write(tmp_path / "source/episode_7.hdf5", real)
    assert convert(tmp_path / "source", tmp_path / "set") == 0
    compare(tmp_path / "set", written)
    manifest = json.loads((tmp_path / "set/manifest.json").read_text())
    assert manifest["kind"] == f"hdf5/{dialect}"
    assert manifest["hz"] == pytest.approx(written.fps)
    assert manifest["details"]["pairing"] == written.pairing
    for slot, key in written.keys.items():
        kept = {"key": key, "order_flip": [[written.order, "none"]]}
        assert manifest["details"]["cameras"][f"{dialect}:{slot}"] == kept
    assert main(["validate", str(tmp_path / "set"), "--level", "full"]) == 0
    capsys.readouterr()


def test_check_shows_the_dialects(real, tmp_path, capsys):
    for name in ("act-plus-plus", "robotwin", "robomind-franka"):
        WRITERS[name][0](tmp_path / f"{name}.hdf5", real.cut(4))
    assert main(["check", "hdf5", str(tmp_path), "--workers", "1", "--fps", "30", "--full", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["kind"] == "hdf5/aloha+robomind+robotwin"
    assert (report["episodes"], report["frames"]) == (3, 11)
