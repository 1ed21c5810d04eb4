"""--preview: the pictures that were stored, in their places; written whole, and never part of the set."""

from __future__ import annotations

import h5py
import numpy as np
import pytest
from helpers.nav_fixtures import write_gnm
from PIL import Image

from wdsmix import ShardSet, cli


def find(sheet: np.ndarray, part: np.ndarray) -> bool:
    height, width = part.shape[:2]
    for y, x in np.argwhere((sheet == part[0, 0]).all(axis=-1)):
        if np.array_equal(sheet[y : y + height, x : x + width], part):
            return True
    return False


def shown(pixels: np.ndarray) -> np.ndarray:
    """A 48x36 picture as a cell of 160 shows it."""
    return np.array(Image.fromarray(pixels).resize((160, 120), Image.Resampling.NEAREST))


@pytest.fixture
def drive(tmp_path):
    for k in range(2):
        write_gnm(tmp_path / "src" / f"t_{k}", 7, seed=k)
    return tmp_path / "src"


def test_a_conversion_with_its_sheet(drive, tmp_path, capsys):
    plain, out = tmp_path / "plain", tmp_path / "set"
    command = ["convert", "nav", str(drive), "OUT", "--workers", "1", "--quiet"]
    assert cli.main([plain.as_posix() if word == "OUT" else word for word in command]) == 0
    command[3] = str(out)
    assert cli.main([*command, "--name", "src", "--preview"]) == 0
    assert "set.preview.png" in capsys.readouterr().err
    assert not list(tmp_path.glob("*.partial"))
    opened = ShardSet(out)
    sheet = np.array(Image.open(tmp_path / "set.preview.png").convert("RGB"))
    for frame in (0, 3, 6, 7, 10, 13):  # first, middle and last of both
        assert find(sheet, shown(opened.frame(frame).images["cam0"]))
    assert not find(sheet, shown(opened.frame(1).images["cam0"]))
    assert cli.main(["validate", str(out), "--level", "full"]) == 0
    tars = [(folder / "train-00000.tar").read_bytes() for folder in (plain, out)]
    assert tars[0] == tars[1]
    digest = opened.digest
    assert cli.main([*command, "--name", "src", "--preview", str(tmp_path / "again.webp")]) == 0
    assert Image.open(tmp_path / "again.webp").format == "WEBP"
    assert ShardSet(out).digest == digest


def test_a_check_with_its_sheet(drive, tmp_path):
    assert (
        cli.main(["check", "nav", str(drive), "--quiet", "--workers", "1", "--preview", str(tmp_path / "c.png")]) == 0
    )
    sheet = np.array(Image.open(tmp_path / "c.png").convert("RGB"))
    first = np.asarray(Image.open(drive / "t_1" / "6.jpg").convert("RGB"))
    assert sheet.shape[0] > 2 * 120
    cell = shown(first).astype(int)
    best = min(
        np.abs(sheet[y : y + 120, x : x + 160].astype(int) - cell).mean()
        for y in range(0, sheet.shape[0] - 119)
        for x in (6 + 2 * 166,)
    )
    assert best < 2  # decoders may differ by a step


@pytest.mark.parametrize(
    ("option", "said"),
    [
        (["--preview", "set"], "no kind of picture"),
        (["--preview", "OUT/x.png"], "the files of its manifest alone"),
        (["--preview", "nowhere/x.png"], "no such folder"),
        (["--preview", "--part", "1/2"], "a part is no set"),
    ],
)
def test_wrong_usage_is_told_before_anything_is_written(drive, tmp_path, capsys, option, said):
    out = tmp_path / "set"
    words = [str(tmp_path / word.replace("OUT", "set")) if "/x" in word else word for word in option]
    assert cli.main(["convert", "nav", str(drive), str(out), "--quiet", "--workers", "1", *words]) == 2
    assert said in capsys.readouterr().err
    assert not out.exists()


def test_an_unknown_structure_its_template_filled_in_and_its_sheet(tmp_path, capsys):
    rows = np.linspace(0, 1, 24 * 3).reshape(24, 3)
    pictures = np.random.default_rng(0).integers(0, 255, (24, 36, 48, 3), np.uint8)
    (tmp_path / "src").mkdir()
    with h5py.File(tmp_path / "src" / "a.hdf5", "w") as file:
        group = file.create_group("runs/one")
        group["joints"], group["command"], group["views/front"] = rows, rows + 1, pictures
        group.attrs["what"] = "lift it"
    out = tmp_path / "set"
    command = ["convert", "hdf5", str(tmp_path / "src"), str(out), "--workers", "1", "--quiet"]
    assert cli.main(command) == 1
    told = capsys.readouterr().err
    assert "joints  (24, 3) float64" in told
    template = told[told.index("episodes: /data/*") :]
    for old, new in (
        ("/data/*", "/runs/*"),
        ("obs/joint_pos", "joints"),
        ("[actions]", "[command]"),
        ("obs/front_image", "{path: views/front, order: bgr, flip: vertical}"),
        ("  cam1: {path: obs/wrist_image, order: rgb, flip: none}\n", ""),
        ("pick up the cube", "{attr: what}"),
    ):
        assert old in template
        template = template.replace(old, new)
    (tmp_path / "m.yaml").write_text(template)
    assert cli.main([*command, "--mapping", str(tmp_path / "m.yaml"), "--preview"]) == 0
    frame = ShardSet(out).frame(5)
    assert frame.task == "lift it"
    np.testing.assert_allclose(frame.vectors["action"], rows[5] + 1, atol=1e-6)
    assert np.abs(frame.images["cam0"].astype(int) - pictures[5][::-1, :, ::-1]).mean() < 40  # noise through a JPEG
    assert Image.open(tmp_path / "set.preview.png").height > 150
