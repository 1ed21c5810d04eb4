"""The platform's export: storage classes, strings, lengths, filters, numbering."""

from __future__ import annotations

import pickle

import h5py
import numpy as np
import pytest
from helpers.hdf5_fixtures import (
    ENCODED,
    STORAGES,
    jpeg,
    open_source,
    pictures,
    read_all,
    rgb,
    write_camera,
    write_platform,
)

from wdsmix.errors import ConfigError, DataError


@pytest.mark.parametrize("storage", STORAGES)
def test_every_storage_class_gives_the_same_pictures_and_vectors(tmp_path, storage):
    written = write_platform(tmp_path / "chunk_001.hdf5", storage=storage)
    source = open_source(tmp_path)
    refs = source.episodes()
    assert [(ref.file, ref.id) for ref in refs] == [
        ("chunk_001.hdf5", "episode_001"),
        ("chunk_001.hdf5", "episode_002"),
    ]
    for ref in refs:
        entry = written[ref.id]
        assert ref.fault is None
        assert ref.frames == 12
        assert ref.cameras == ("cam0", "cam1")
        assert ref.vectors == {"state": 9, "action": 6}
        got, views = read_all(source, ref)
        np.testing.assert_array_equal(got["state"], np.hstack([entry["state"], entry["gripper"]]))
        np.testing.assert_array_equal(got["action"], entry["action"])
        assert got["state"].dtype == np.float32
        assert got["state"].flags.c_contiguous
        for slot, camera in (("cam0", "camera_01"), ("cam1", "camera_02")):
            assert len(views[slot]) == 12
            if storage in ENCODED:
                assert views[slot] == entry[f"jpeg:{camera}"]  # to the byte, padding cut
            else:
                np.testing.assert_array_equal(np.stack(views[slot]), entry[f"pixels:{camera}"])


@pytest.mark.parametrize("storage", STORAGES)
def test_rows_can_be_skipped(tmp_path, storage):
    written = write_platform(tmp_path / "c.hdf5", storage=storage, episodes=[1], frames=40)["episode_001"]
    source = open_source(tmp_path)
    for rows in ([0, 5, 10, 15], [1, 2, 9, 39], [39], [0, 1, 2, 3, 17, 18]):
        with source.read(source.episodes()[0]) as episode:
            views = list(episode.images["cam0"].read(np.array(rows)))
        for row, view in zip(rows, views, strict=True):
            wanted = written["jpeg:camera_01"][row] if storage in ENCODED else written["pixels:camera_01"][row]
            assert np.array_equal(rgb(view), rgb(wanted))


def test_the_source_pickles_and_reads_in_a_copy(tmp_path):
    written = write_platform(tmp_path / "c.hdf5")
    source = open_source(tmp_path)
    refs = source.episodes()
    for copy in (pickle.loads(pickle.dumps(source)), open_source(tmp_path)):
        got, _ = read_all(copy, refs[1])
        np.testing.assert_array_equal(got["action"], written["episode_002"]["action"])


def test_description(tmp_path):
    write_platform(tmp_path / "chunk_001.hdf5")
    info = open_source(tmp_path).describe()
    assert info.kind == "hdf5/platform"
    assert info.fps == 30
    assert any("--fps" in warning for warning in info.warnings)
    assert info.vectors["state"].names[:2] == ("observation.state_0", "observation.state_1")
    assert info.vectors["state"].names[-2:] == ("gripper_0", "gripper_1")
    assert info.vectors["action"].kinds == ()
    assert info.cameras["cam0"].key == "camera_01"
    assert info.details["fps_from"] == ["default"]
    given = open_source(tmp_path, "--fps", "15").describe()
    assert given.fps == 15
    assert not given.warnings


def test_gripper(tmp_path):
    write_platform(tmp_path / "chunk_001.hdf5")
    assert open_source(tmp_path, "--gripper", "ignore").episodes()[0].vectors["state"] == 7
    write_platform(tmp_path / "chunk_002.hdf5", gripper=False)
    source = open_source(tmp_path)
    refs = source.episodes()
    assert [ref.fault for ref in refs] == [None] * 4  # a missing gripper is fine
    assert {ref.vectors["state"] for ref in refs} == {7}
    assert any("gripper" in warning for warning in source.describe().warnings)
    refs = open_source(tmp_path, "--gripper", "append").episodes()
    assert [ref.fault is None for ref in refs] == [True, True, False, False]
    assert "observation.gripper is missing" in refs[2].fault


def test_missing_numbers_are_told(tmp_path):
    write_platform(tmp_path / "chunk_001.hdf5", episodes=[1, 2, 6])
    write_platform(tmp_path / "chunk_004.hdf5", episodes=[1])
    warnings = open_source(tmp_path).describe().warnings
    assert "chunk_001.hdf5: missing in the numbering: episode_003 to episode_005" in warnings
    assert "missing in the numbering: chunk_002 to chunk_003" in warnings


def test_natural_order(tmp_path):
    for number in (1, 2, 10):
        write_platform(tmp_path / f"chunk_{number}.hdf5", episodes=[number])
    with h5py.File(tmp_path / "chunk_1.hdf5", "a") as file:
        for name in ("episode_10", "episode_9"):
            file.copy("data/episode_001", f"data/{name}")
    found = [(ref.file, ref.id) for ref in open_source(tmp_path).episodes()]
    assert found == [
        ("chunk_1.hdf5", "episode_001"),
        ("chunk_1.hdf5", "episode_9"),
        ("chunk_1.hdf5", "episode_10"),
        ("chunk_2.hdf5", "episode_002"),
        ("chunk_10.hdf5", "episode_010"),
    ]


STRINGS = {
    "str": lambda g, v: g.attrs.__setitem__("task", v),
    "bytes": lambda g, v: g.attrs.__setitem__("task", np.bytes_(v.encode())),
    "vlen bytes": lambda g, v: g.attrs.create("task", v.encode(), dtype=h5py.string_dtype("ascii")),
    "array": lambda g, v: g.attrs.create("task", np.array([v], dtype=object), dtype=h5py.string_dtype()),
    "0-d": lambda g, v: g.attrs.create("task", np.array(v, dtype=object), dtype=h5py.string_dtype()),
    "opaque": lambda g, v: g.attrs.__setitem__("task", np.void(v.encode())),
    "gb18030": lambda g, v: g.attrs.__setitem__("task", np.bytes_(v.encode("gb18030"))),
    "quoted, padded": lambda g, v: g.attrs.__setitem__("task", f'  "{v}"  '),
    "child dataset": lambda g, v: g.__setitem__("task", v),
    "child bytes": lambda g, v: g.__setitem__("task", np.bytes_(v.encode("gb18030"))),
    "child array": lambda g, v: g.create_dataset("task", data=[v], dtype=h5py.string_dtype()),
}


@pytest.mark.parametrize("storage", list(STRINGS))
def test_strings_in_any_storage(tmp_path, storage):
    write_platform(tmp_path / "c.hdf5", episodes=[1], attrs=False)
    with h5py.File(tmp_path / "c.hdf5", "a") as file:
        STRINGS[storage](file["data/episode_001"], "拿起 cube é 放下")
    source = open_source(tmp_path)
    with source.read(source.episodes()[0]) as episode:
        assert episode.tasks == ("拿起 cube é 放下",)


def test_wrongly_declared_utf8_is_decoded_and_a_doubtful_one_is_told(tmp_path):
    write_platform(tmp_path / "c.hdf5", episodes=[1, 2], attrs=False)
    with h5py.File(tmp_path / "c.hdf5", "a") as file:
        file["data/episode_001"].attrs.create("task", "放下".encode("gb18030"), dtype=h5py.string_dtype("utf-8"))
        file["data/episode_002"].attrs["task"] = np.bytes_(b"caf\xe9\xff")
    source = open_source(tmp_path)
    refs = source.episodes()
    with source.read(refs[0]) as episode:
        assert episode.tasks == ("放下",)
    with source.read(refs[1]) as episode:
        assert episode.tasks == ("café\xff",)
    assert any("Latin-1" in warning for warning in source.describe().warnings)


def test_task_falls_back_to_chinese_then_to_the_instruction(tmp_path):
    write_platform(tmp_path / "c.hdf5", episodes=[1, 2], attrs=False)
    with h5py.File(tmp_path / "c.hdf5", "a") as file:
        file["data/episode_001"].attrs["task_zh"] = "放下"
        file["data/episode_001"].attrs["task"] = h5py.Empty("S1")
    source = open_source(tmp_path, "--instruction", "do it")
    refs = source.episodes()
    with source.read(refs[0]) as episode:
        assert episode.tasks == ("放下",)
        assert episode.extras == {"task_zh": "放下"}
    with source.read(refs[1]) as episode:
        assert episode.tasks == ("do it",)
        assert episode.extras == {}


@pytest.mark.parametrize(
    ("value", "score"),
    [
        (0.75, 0.75),
        (1, 1.0),
        ("0.9", 0.9),
        (np.array([0.25]), 0.25),
        (np.bytes_(b"2"), 2.0),
        ("good", None),
        (float("nan"), None),
        (np.array([1.0, 2.0]), None),
        (True, 1.0),
    ],
)
def test_scores(tmp_path, value, score):
    write_platform(tmp_path / "c.hdf5", episodes=[1], attrs=False)
    with h5py.File(tmp_path / "c.hdf5", "a") as file:
        file["data/episode_001"].attrs["score"] = value
    source = open_source(tmp_path)
    with source.read(source.episodes()[0]) as episode:
        assert episode.extras.get("score") == score


def test_score_as_a_child_dataset(tmp_path):
    write_platform(tmp_path / "c.hdf5", episodes=[1], attrs=False)
    with h5py.File(tmp_path / "c.hdf5", "a") as file:
        file["data/episode_001/score"] = 0.5
    source = open_source(tmp_path)
    with source.read(source.episodes()[0]) as episode:
        assert episode.extras == {"score": 0.5}


def test_filters_are_filters_not_faults(tmp_path):
    write_platform(tmp_path / "c.hdf5", episodes=[1, 2, 3])  # scores 0.6, 0.7, 0.8
    with h5py.File(tmp_path / "c.hdf5", "a") as file:
        del file["data/episode_003"].attrs["score"]
    refs = open_source(tmp_path, "--min-score", "0.65").episodes()
    assert [ref.fault is None for ref in refs] == [False, True, False]
    assert {ref.fault_kind for ref in refs if ref.fault} == {"filter"}
    for pattern, good in (
        ("BLOCK 2", [1]),
        ("*box", [0, 1, 2]),
        ("put", [0, 1, 2]),
        ("积木1", [0]),
        ("put block", [0, 1, 2]),
    ):
        refs = open_source(tmp_path, "--task", pattern).episodes()
        assert [k for k, ref in enumerate(refs) if ref.fault is None] == good, pattern
    refs = open_source(tmp_path, "--task", "block 1", "--task", "block 3").episodes()
    assert [ref.fault_kind if ref.fault else "" for ref in refs] == ["", "filter", ""]


def test_nested_spelling(tmp_path):
    state, action, views = np.ones((5, 3)), np.zeros((5, 2)), pictures(5)
    with h5py.File(tmp_path / "c.hdf5", "w") as file:
        group = file.create_group("data/episode_001")
        group["action"], group["observation/state"] = action, state
        write_camera(group.create_group("observation/images"), "head", views, "vlen")
    source = open_source(tmp_path)
    (ref,) = source.episodes()
    got, seen = read_all(source, ref)
    np.testing.assert_array_equal(got["state"], state)
    assert len(seen["cam0"]) == 5


def cut(path, name, rows, episode="episode_001"):
    with h5py.File(path, "a") as file:
        group = file[f"data/{episode}"]
        values = group[name][()]
        del group[name]
        if values.dtype.kind == "O":
            dataset = group.create_dataset(name, (rows,), dtype=h5py.vlen_dtype(np.uint8))
            for row in range(rows):
                dataset[row] = values[row]
        else:
            group[name] = values[:rows]


def test_unequal_lengths(tmp_path):
    path = tmp_path / "c.hdf5"
    written = write_platform(path, episodes=[1, 2], frames=12)["episode_001"]
    cut(path, "observation.images.camera_02", 11)
    refs = open_source(tmp_path).episodes()
    assert refs[1].fault is None
    assert "first dimensions differ" in refs[0].fault
    assert "action 12" in refs[0].fault
    assert "observation.images.camera_02 11" in refs[0].fault
    assert refs[0].fault_kind == "episode"

    with pytest.raises(DataError, match="first dimensions differ"):
        open_source(tmp_path, "--on-length-mismatch", "error").episodes()

    source = open_source(tmp_path, "--on-length-mismatch", "truncate")
    ref = source.episodes()[0]
    assert ref.frames == 11
    got, views = read_all(source, ref)
    np.testing.assert_array_equal(got["action"], written["action"][:11])
    assert views["cam0"] == written["jpeg:camera_01"][:11]

    cut(path, "observation.images.camera_02", 5)
    refs = open_source(tmp_path, "--on-length-mismatch", "truncate").episodes()
    assert "--length-tolerance 2" in refs[0].fault
    refs = open_source(tmp_path, "--on-length-mismatch", "truncate", "--length-tolerance", "7").episodes()
    assert refs[0].frames == 5


@pytest.mark.parametrize("rows", [1, 2, 5, 7, 11, 12])
def test_index_resample_takes_the_nearest_scaled_row(tmp_path, rows):
    path = tmp_path / "c.hdf5"
    written = write_platform(path, episodes=[1], frames=12)["episode_001"]
    cut(path, "observation.images.camera_01", rows)
    cut(path, "observation.state", rows)
    source = open_source(tmp_path, "--on-length-mismatch", "index-resample")
    (ref,) = source.episodes()
    assert ref.frames == 12
    got, views = read_all(source, ref)
    wanted = [int(np.floor(t * (rows - 1) / 11 + 0.5)) for t in range(12)]
    assert views["cam0"] == [written["jpeg:camera_01"][row] for row in wanted]
    np.testing.assert_array_equal(got["state"][:, :7], written["state"][wanted])
    np.testing.assert_array_equal(got["action"], written["action"])
    assert views["cam1"] == written["jpeg:camera_02"]


def test_incomplete_short_and_empty_episodes(tmp_path):
    path = tmp_path / "c.hdf5"
    write_platform(path, episodes=range(1, 7))
    with h5py.File(path, "a") as file:
        del file["data/episode_001/action"]
        del file["data/episode_002/observation.state"]
        for number, rows in ((3, 0), (4, 1)):
            group = file[f"data/episode_{number:03d}"]
            for name in list(group):
                del group[name]
            group["action"], group["observation.state"] = np.zeros((rows, 6)), np.zeros((rows, 7))
        del file["data/episode_005"]
        file.create_group("data/episode_005")
    faults = {ref.id: ref.fault for ref in open_source(tmp_path).episodes()}
    assert "action 'action' is missing" in faults["episode_001"]
    assert "observation.gripper" in faults["episode_001"]  # what is there
    assert "'observation.state' is missing" in faults["episode_002"]
    assert "too short" in faults["episode_003"]
    assert "too short" in faults["episode_004"]
    assert "missing" in faults["episode_005"]
    assert faults["episode_006"] is None


@pytest.mark.parametrize("name", ["observation.state", "action", "observation.gripper"])
@pytest.mark.parametrize("value", [np.nan, np.inf, 1e39])
def test_non_finite_values_name_row_and_dimension(tmp_path, name, value):
    path = tmp_path / "c.hdf5"
    write_platform(path, episodes=[1])
    with h5py.File(path, "a") as file:
        group = file["data/episode_001"]
        values = group[name][()].astype(np.float64)
        values[4, 1] = value
        del group[name]
        group[name] = values
    source = open_source(tmp_path)
    (ref,) = source.episodes()
    with pytest.raises(DataError, match=r"row 4 dimension 1: not finite"):
        source.read(ref)


def test_any_numeric_type_becomes_float32(tmp_path):
    path = tmp_path / "c.hdf5"
    write_platform(path, episodes=[1], gripper=False)
    for dtype in (">f8", "<f2", "i4", ">i2", "u1", "bool"):
        values = (np.arange(12 * 3).reshape(12, 3) % 2).astype(dtype)
        with h5py.File(path, "a") as file:
            group = file["data/episode_001"]
            del group["action"]
            group["action"] = values
        source = open_source(tmp_path)
        got, _ = read_all(source, source.episodes()[0])
        np.testing.assert_array_equal(got["action"], values.astype(np.float32))
        assert got["action"].dtype == np.dtype("float32")
        assert got["action"].dtype.isnative


def test_camera_slots_can_be_chosen(tmp_path):
    write_platform(tmp_path / "c.hdf5", cameras=("camera_01", "camera_02", "hand_left"), episodes=[1])
    info = open_source(tmp_path).describe()
    assert {slot: camera.key for slot, camera in info.cameras.items()} == {
        "cam0": "camera_01",
        "cam1": "hand_left",
        "cam2": "camera_02",
    }
    source = open_source(tmp_path, "--camera", "cam0=camera_02", "--camera", "cam1=observation.images.camera_01")
    assert source.episodes()[0].cameras == ("cam0", "cam1")
    assert source.describe().cameras["cam0"].key == "camera_02"
    with pytest.raises(ConfigError, match="camera_01, camera_02, hand_left"):
        open_source(tmp_path, "--camera", "cam0=top").episodes()


def test_an_episode_without_a_camera_that_others_have(tmp_path):
    write_platform(tmp_path / "c.hdf5", episodes=[1, 2])
    with h5py.File(tmp_path / "c.hdf5", "a") as file:
        del file["data/episode_002/observation.images.camera_01"]
    refs = open_source(tmp_path).episodes()
    assert [ref.cameras for ref in refs] == [("cam0", "cam1"), ("cam1",)]


def test_state_and_action_keys(tmp_path):
    written = write_platform(tmp_path / "c.hdf5", episodes=[1])["episode_001"]
    source = open_source(tmp_path, "--state", "observation.gripper,observation.state", "--action", "observation.state")
    got, _ = read_all(source, source.episodes()[0])
    np.testing.assert_array_equal(got["state"], np.hstack([written["gripper"], written["state"]]))
    np.testing.assert_array_equal(got["action"], written["state"])


def test_raw_rows_among_jpeg_rows(tmp_path):
    views = pictures(8)
    raw = {0, 3}
    rows = [views[t].tobytes() if t in raw else jpeg(views[t]) for t in range(8)]
    for storage in ("vlen", "padded"):
        path = tmp_path / f"{storage}.hdf5"
        write_platform(path, episodes=[1], frames=8, cameras=())
        with h5py.File(path, "a") as file:
            write_camera(file["data/episode_001"], "observation.images.camera_01", rows, storage)
        source = open_source(path)
        _, seen = read_all(source, source.episodes()[0])
        for t, view in enumerate(seen["cam0"]):
            if t in raw:
                np.testing.assert_array_equal(view, views[t])
            else:
                assert view == rows[t]


def test_flat_raw_pictures_need_a_size(tmp_path):
    views = pictures(4, width=50, height=30)
    path = tmp_path / "c.hdf5"
    write_platform(path, episodes=[1], frames=4, cameras=())
    with h5py.File(path, "a") as file:
        file["data/episode_001/observation.images.camera_01"] = views.reshape(4, -1)
    source = open_source(path)
    with pytest.raises(DataError, match="--raw-size"):
        read_all(source, source.episodes()[0])
    source = open_source(path, "--raw-size", "50x30")
    _, seen = read_all(source, source.episodes()[0])
    np.testing.assert_array_equal(np.stack(seen["cam0"]), views)


def test_a_common_size_is_known(tmp_path):
    views = pictures(2, width=160, height=120)
    write_platform(tmp_path / "c.hdf5", episodes=[1], frames=2, cameras=())
    with h5py.File(tmp_path / "c.hdf5", "a") as file:
        file["data/episode_001/observation.images.camera_01"] = views.reshape(2, -1)
    source = open_source(tmp_path)
    _, seen = read_all(source, source.episodes()[0])
    np.testing.assert_array_equal(np.stack(seen["cam0"]), views)


@pytest.mark.parametrize("storage", ENCODED)
def test_bad_pictures_name_camera_and_row(tmp_path, storage):
    good = [jpeg(view) for view in pictures(6)]
    cases = {
        "no picture": b"" if storage == "vlen" else b"\0",
        "not a picture": b"hello" * 40,
        "damaged picture": good[0][:20],
        "size changes": jpeg(pictures(1, width=32, height=32)[0]),
    }
    for number, (message, bad) in enumerate(cases.items()):
        path = tmp_path / f"{number}.hdf5"
        write_platform(path, episodes=[1], frames=6, cameras=())
        with h5py.File(path, "a") as file:
            rows = [*good[:4], bad, good[5]]
            write_camera(file["data/episode_001"], "observation.images.camera_01", rows, storage)
        source = open_source(path)
        with pytest.raises(DataError, match=message) as raised:
            read_all(source, source.episodes()[0])
        assert "camera_01 row 4" in str(raised.value)


def test_never_written_vlen_rows(tmp_path):
    write_platform(tmp_path / "c.hdf5", episodes=[1], frames=6, cameras=())
    with h5py.File(tmp_path / "c.hdf5", "a") as file:
        dataset = file["data/episode_001"].create_dataset(
            "observation.images.camera_01", (6,), dtype=h5py.vlen_dtype(np.uint8)
        )
        for row, view in enumerate(pictures(3)):
            dataset[row] = np.frombuffer(jpeg(view), np.uint8)
    source = open_source(tmp_path)
    with pytest.raises(DataError, match=r"row 3: no picture: never written"):
        read_all(source, source.episodes()[0])


def test_vlen_strings_are_refused(tmp_path):
    write_platform(tmp_path / "c.hdf5", episodes=[1], frames=3, cameras=())
    with h5py.File(tmp_path / "c.hdf5", "a") as file:
        name = "observation.images.camera_01"
        file["data/episode_001"].create_dataset(name, data=[b"\xff\xd8\xff\xe0"] * 3, dtype=h5py.string_dtype("ascii"))
    (ref,) = open_source(tmp_path).episodes()
    assert "first zero byte" in ref.fault
