"""Raw recordings: each defect has its reason and costs as little as it must."""

from __future__ import annotations

import pytest
from helpers.nav_fixtures import jpeg
from helpers.unitree_fixtures import (
    edited,
    make_items,
    open_unitree,
    part,
    write_json,
    write_pictures,
    write_raw,
)

from wdsmix import cli


def only(source):
    (ref,) = source.episodes()
    return ref


def change(items, what):
    if what == "no_states":
        for item in items:
            item["states"] = {}
    elif what == "null_states":
        for item in items:
            item["states"] = None
    elif what == "no_actions":
        for item in items:
            del item["actions"]
    elif what == "width":
        items[6]["states"]["left_ee"] = part([0.0] * 6)
    elif what == "empty_once":
        items[6]["actions"]["right_ee"] = {"qpos": []}
    elif what == "nan":
        items[3]["states"]["left_arm"]["qpos"][2] = float("nan")
    elif what == "infinite":
        items[3]["actions"]["left_arm"]["qpos"][2] = float("inf")
    elif what == "huge":
        items[3]["actions"]["left_arm"]["qpos"][2] = 1e300
    elif what == "text":
        items[3]["states"]["left_arm"]["qpos"][2] = "0.5"
    elif what == "twice":
        items[4]["idx"] = 3
    elif what == "no_object":
        items[4] = 17
    elif what == "block":
        items[4]["states"] = [1, 2]
    elif what == "empty":
        items.clear()
    elif what == "one":
        del items[1:]
    return items


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("no_states", "no states"),
        ("null_states", "no states"),
        ("no_actions", "no actions"),
        ("width", "states.left_ee: a part changes its width (expected 7 numbers as at idx 0, found 6 at idx 6)"),
        ("empty_once", "changes its width"),
        ("nan", "not finite"),
        ("infinite", "not finite"),
        ("huge", "beyond float32"),
        ("text", "not a number"),
        ("twice", "two frames of one number"),
        ("no_object", "no object"),
        ("block", "not an object"),
        ("empty", "data is empty"),
        ("one", "too short"),
    ],
)
def test_each_defect_has_its_reason_and_costs_one_episode(tmp_path, what, reason):
    items, _ = make_items(10)
    write_pictures(tmp_path / "bad", items)
    write_json(tmp_path / "bad", change(edited(items), what))
    write_raw(tmp_path / "good", 10, seed=1)
    bad, good = open_unitree(tmp_path).episodes()
    assert reason in bad.fault
    assert good.fault is None


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", "empty"),
        (bytes(100), "empty"),
        (b"version https://git-lfs.github.com/spec/v1\n", "LFS"),
        (b"[1, 2]", "not a recording"),
        (b'{"info": {}}', "no list of frames"),
        (b'{"info": {"version": "1.0', "cut off before its first frame"),
        (b"\xff\xfe" + b"a" * 50, "not UTF-8"),
        (b'{"data": ' + b"[" * 100_000, "nested too deeply"),
    ],
)
def test_files_that_are_no_recording(tmp_path, raw, reason):
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "data.json").write_bytes(raw)
    assert reason in only(open_unitree(tmp_path)).fault


@pytest.mark.parametrize(
    "path",
    [
        "../other/colors/x.jpg",
        "/etc/passwd",
        "colors/../../secret.jpg",
        "..\\..\\x.jpg",
        "C:\\x.jpg",
        "colors/\x00.jpg",
    ],
)
def test_a_path_that_leaves_the_folder_is_refused(tmp_path, path):
    written = write_raw(tmp_path / "e", 4)
    (tmp_path / "secret.jpg").write_bytes(jpeg(0))
    items = edited(written["items"])
    items[2]["colors"]["color_0"] = path
    write_json(tmp_path / "e", items)
    assert "refused" in only(open_unitree(tmp_path)).fault


@pytest.mark.parametrize("what", ["file", "folder"])
def test_a_link_that_leaves_the_folder_is_refused(tmp_path, what):
    write_raw(tmp_path / "src" / "e", 4)
    colors = tmp_path / "src" / "e" / "colors"
    (tmp_path / "elsewhere").mkdir()
    if what == "folder":
        colors.rename(tmp_path / "elsewhere" / "colors")
        colors.symlink_to(tmp_path / "elsewhere" / "colors")
    else:
        name = colors / "000003_color_2.jpg"
        name.rename(tmp_path / "elsewhere" / "x.jpg")
        name.symlink_to(tmp_path / "elsewhere" / "x.jpg")
    assert "refused" in only(open_unitree(tmp_path / "src")).fault


def test_no_episode_left_is_an_error(tmp_path, capsys):
    items, _ = make_items(4)
    write_json(tmp_path / "src" / "e", change(items, "no_states"))
    assert cli.main(["convert", "unitree", str(tmp_path / "src"), str(tmp_path / "out"), "--quiet"]) == 1
    assert "no states" in capsys.readouterr().err


def test_vectors_of_one_width_but_other_parts_are_not_joined(tmp_path):
    write_raw(tmp_path / "a", 20, ee=7)
    items, _ = make_items(6, ee=7)
    for item in items:  # also 28 numbers
        for block in (item["states"], item["actions"]):
            block["left_ee"], block["right_ee"] = part([0.1] * 6), part([0.2] * 8)
    write_pictures(tmp_path / "b", items)
    write_json(tmp_path / "b", items)
    refs = open_unitree(tmp_path).episodes()
    assert refs[0].fault is None
    assert "left_ee 6 + right_ee 8" in refs[1].fault


def test_episodes_with_other_cameras_are_told(tmp_path):
    write_raw(tmp_path / "a", 6, cameras=4)
    write_raw(tmp_path / "b", 4, cameras=3)
    info_ = open_unitree(tmp_path).describe()
    assert any("episodes differ in their cameras" in warning for warning in info_.warnings)
