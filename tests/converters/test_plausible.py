"""What streams show that no value tells: each finding where it is, and none where all is well."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
from helpers.nav_fixtures import jpeg
from helpers.unitree_fixtures import edited, motion, write_json, write_raw
from PIL import Image
from wdsmix.converters.plausible import Look, Looks, Streams, far_values, look

from wdsmix import cli
from wdsmix.manifest import FieldStats


def black(size=(48, 36)):
    buffer = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 4, (size[1], size[0], 3), np.uint8)).save(buffer, "JPEG")
    return buffer.getvalue()


STATE, ACTION = motion(60, 5, 1).astype(np.float32), motion(60, 5, 2).astype(np.float32)
PICTURES = {"cam0": [jpeg(1), jpeg(2), jpeg(3)], "cam1": [jpeg(4), jpeg(5), jpeg(6)]}


def seen(state=STATE, action=ACTION, **pictures):
    return look({"state": state, "action": action}, {**PICTURES, **pictures})


def test_nothing_is_found_where_all_is_well():
    assert seen() == Look()
    raw = {slot: [np.asarray(Image.open(io.BytesIO(d))) for d in data] for slot, data in PICTURES.items()}
    assert seen(**raw) == Look()
    noise = np.random.default_rng(3).normal(size=(400, 5)).astype(np.float32)
    grip = (np.arange(60)[:, None] // 20 % 2).astype(np.float32).repeat(5, 1)
    assert seen(state=noise).leaps == ()
    assert seen(state=grip).leaps == ()


def test_each_finding():
    assert seen(action=np.ones_like(ACTION)).still == ("action",)
    assert seen(action=STATE).equal
    assert seen(action=np.concatenate([STATE[1:], STATE[-1:]])).ahead
    leap = STATE.copy()
    leap[30, 2] += 50
    assert seen(state=leap).leaps == (2,)
    assert seen(cam1=[black()] * 3).black == ("cam1",)
    assert seen(cam1=[black(), jpeg(9), black()]).black == ()
    assert seen(cam1=[np.zeros((8, 8, 3), np.uint8)] * 3).black == ("cam1",)
    assert seen(cam0=[jpeg(7)] * 3).frozen == ("cam0",)
    assert seen(state=np.zeros_like(STATE), cam0=[jpeg(7)] * 3).frozen == ()
    assert seen(cam1=PICTURES["cam0"]).twins == (("cam0", "cam1"),)
    assert seen(cam1=[b"no picture"] * 3).black == ()
    assert seen(cam1=[jpeg(8), jpeg(9), black()]).darkened == ("cam1",)
    assert seen(cam1=[black()] * 3).darkened == ()
    killed = STATE.copy()
    killed[40:] = 0
    assert seen(state=killed).unwritten
    assert not seen(state=killed[:41]).unwritten
    assert not seen(state=np.concatenate([STATE[:, :1], np.zeros((5, 1), np.float32)])).unwritten  # a counter, perhaps


def test_findings_are_counted_with_the_first():
    looks = Looks(streams=Streams(names={"state": ["a", "b"]}, kinds={}, fps=10))
    looks.add("one", Look())
    looks.add("two", Look(black=("cam0",), frozen=("cam0",), leaps=(1,)))
    looks.add("three", Look(black=("cam0",)))
    facts, warnings, _ = looks.tell()
    assert facts["episodes"] == 3
    assert warnings == [
        "in 2 of 3 episodes cam0 is black, the first: two",
        "in 1 of 3 episodes the state leaps away for a single frame (b), the first: two",
    ]


def stats(low, q01, q99, high):
    return FieldStats(count=9, mean=[0], std=[1], min=[low], max=[high], q01=[q01], q99=[q99], histogram=[])


@pytest.mark.parametrize(
    ("values", "unit", "said"),
    [
        ((-1, -1, 1, 1), "", ""),
        ((-1, -1, 1, 60), "", "reaches -1 ... 60"),
        ((0, 0, 0, 5), "", ""),
        ((-1, -1, 1, 8.5), "rad", "over a turn"),
        ((-1, -1, 1, 8.5), "", ""),
    ],
)
def test_values_far_out(values, unit, said):
    streams = Streams(names={"state": ["elbow"]}, kinds={}, fps=10, units={"state": [unit]})
    told = far_values(streams, {"state": stats(*values)})
    assert bool(told) == bool(said)
    assert not said or (said in told[0] and "elbow" in told[0])


@pytest.mark.parametrize(
    ("most", "limit", "said"), [(1.4, 1.0, True), (1.005, 1.0, False), (8.5, 6.5, True), (3, 6.5, False)]
)
def test_values_beyond_what_such_data_hold(most, limit, said):
    streams = Streams(names={"action": ["twist"]}, kinds={}, fps=10, limits={"action": limit})
    told = far_values(streams, {"action": stats(-1, -1, 1, most), "state": stats(-1, -1, 1, 9)})
    assert bool(told) == said
    assert not said or f"twist reaches -1 ... {most:g}, beyond the {limit:g}" in told[0]


def test_a_conversion_and_a_check_tell_them(tmp_path, capsys):
    for k in range(2):
        written = write_raw(tmp_path / "src" / f"episode_{k:04d}", 20, seed=k)
        items = edited(written["items"])
        for item in items:
            item["actions"] = item["states"]
        write_json(tmp_path / "src" / f"episode_{k:04d}", items)
        for path in written["pictures"]:
            if path.endswith("color_2.jpg"):
                (tmp_path / "src" / f"episode_{k:04d}" / path).write_bytes(black())
    out = tmp_path / "set"
    assert cli.main(["convert", "unitree", str(tmp_path / "src"), str(out), "--workers", "1"]) == 0
    shown = capsys.readouterr().out
    manifest = json.loads((out / "manifest.json").read_text())
    for said in ("in all 2 episodes the action equals the state in every frame", "in all 2 episodes cam2 is black"):
        assert any(said in warning for warning in manifest["warnings"])
        assert said in " ".join(shown.split())
    assert manifest["details"]["plausibility"]["found"]["cam2 is black"] == 2
    assert cli.main(["check", "unitree", str(tmp_path / "src"), "--workers", "1", "--quiet"]) == 0
    assert "in all 2 episodes cam2 is black" in " ".join(capsys.readouterr().out.split())
    assert cli.main(["validate", str(out), "--level", "full"]) == 0
