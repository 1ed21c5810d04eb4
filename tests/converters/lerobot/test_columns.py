"""Columns as vectors: every storage, every defect, against plain Python."""

from __future__ import annotations

import json
import math

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers.lerobot_fixtures import Made, check_all, jpeg, opened, picture, png, shown
from hypothesis import given, settings
from hypothesis import strategies as st
from wdsmix.converters.lerobot.columns import column_width, flat_numbers, integers, is_numeric, is_picture, plain

from wdsmix.errors import ConfigError, DataError
from wdsmix.imaging import prepare

numbers = st.one_of(st.none(), st.floats(-1e3, 1e3, width=32), st.just(math.nan))
cells = st.one_of(st.none(), st.lists(numbers, max_size=4))


def by_hand(rows: list, width: int) -> np.ndarray:
    out = np.full((len(rows), width), np.nan, np.float32)
    for k, row in enumerate(rows):
        if row is not None and len(row) == width:
            out[k] = [math.nan if number is None else number for number in row]
    return out


@given(rows=st.lists(cells, max_size=12), start=st.integers(0, 3), kind=st.sampled_from([pa.float32(), pa.float64()]))
def test_lists(rows, start, kind):
    array = pa.array(rows, pa.list_(kind)).slice(start)
    assert np.array_equal(flat_numbers(array, 3, key="x"), by_hand(rows[start:], 3), equal_nan=True)
    large = pa.array(rows, pa.large_list(kind)).slice(start)
    assert np.array_equal(flat_numbers(large, 3, key="x"), by_hand(rows[start:], 3), equal_nan=True)


@given(rows=st.lists(st.one_of(st.none(), st.tuples(numbers, numbers, numbers)), max_size=9), start=st.integers(0, 3))
def test_fixed_lists(rows, start):
    array = pa.array(rows, pa.list_(pa.float32(), 3)).slice(start)
    assert np.array_equal(flat_numbers(array, 3, key="x"), by_hand(rows[start:], 3), equal_nan=True)


@settings(max_examples=40)
@given(
    rows=st.lists(st.lists(st.lists(st.integers(-9, 9), min_size=2, max_size=2), min_size=3, max_size=3), max_size=6),
    start=st.integers(0, 3),
)
def test_tables_in_cells(rows, start):
    array = pa.array(rows, pa.list_(pa.list_(pa.int32()))).slice(start)
    flat = [[number for line in row for number in line] for row in rows[start:]]
    assert np.array_equal(flat_numbers(array, 6, key="x"), np.array(flat, np.float32).reshape(len(flat), 6))
    if flat:
        assert column_width(array) == 6


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (pa.array([1, None, 3]), [1, math.nan, 3]),
        (pa.array([True, False]), [1, 0]),
        (pa.array([[True], [False], None]), [1, 0, math.nan]),
        (pa.array([1.5, 2.5], pa.float16()), [1.5, 2.5]),
        (pa.array([255], pa.uint8()), [255]),
    ],
)
def test_scalars_are_vectors_of_one(array, expected):
    assert np.array_equal(flat_numbers(array, 1, key="x")[:, 0], np.float32(expected), equal_nan=True)


def test_kinds_of_columns():
    assert is_numeric(pa.list_(pa.list_(pa.float32())))
    assert not is_numeric(pa.list_(pa.string()))
    assert is_picture(pa.struct([("bytes", pa.binary()), ("path", pa.string())]))
    assert is_picture(pa.large_binary())
    assert not is_picture(pa.struct([("role", pa.string())]))
    with pytest.raises(DataError, match="x: not numbers"):
        flat_numbers(pa.array(["a"]), 1, key="x")


def test_integers_in_disguise():
    assert integers(pa.chunked_array([pa.array([1.0, 2.0])]), key="k").tolist() == [1, 2]
    assert integers(pa.chunked_array([pa.array([[1], [2]])]), key="k").tolist() == [1, 2]
    for bad in (pa.array([1.5]), pa.array([None, 1])):
        with pytest.raises(DataError, match="k row 0"):
            integers(pa.chunked_array([bad]), key="k")


@given(st.recursive(st.one_of(st.none(), st.floats(), st.binary(), st.text(), st.integers()), st.lists))
def test_plain_values_are_json(value):
    json.dumps(plain(value), allow_nan=False)


def test_stored_types_win_over_declared_ones(tmp_path):
    made = Made(
        columns=lambda episode, length: {
            "action": pa.array(made.action_of(episode).astype(float).tolist()),
            "task_index": pa.array([float(episode % 2)] * length),
            "timestamp": pa.array([[k / 20] for k in range(length)]),
        }
    )
    check_all(made, made.write(tmp_path / "robot"))


def test_a_declared_shape_is_a_claim(tmp_path):
    feature = {"dtype": "float32", "shape": [9], "names": [f"n{k}" for k in range(9)]}
    made = Made(features={"action": feature})
    info = check_all(made, made.write(tmp_path / "robot")).describe()
    assert info.vectors["action"].names == ("dim_0", "dim_1", "dim_2")
    assert any("shape of 9 declared, cells of 3 stored" in text for text in info.warnings)


def bare(episode: int, length: int) -> dict[str, object]:
    return {"frame_index": None, "index": None, "task_index": None, "timestamp": None}


def test_default_columns_may_be_absent(tmp_path):
    made = Made(columns=bare)
    source = check_all(made, made.write(tmp_path / "robot"))
    episode = source.read(source.episodes()[0])
    assert episode.timestamps is None
    assert episode.task_index is None


def test_rows_out_of_order_follow_their_frame_index(tmp_path):
    made = Made(lengths=(6,), layout=2, images=True)
    root = made.write(tmp_path / "robot")
    path = root / "data/chunk-000/episode_000000.parquet"
    table = pq.read_table(path)
    pq.write_table(table.take([3, 0, 5, 1, 2, 4]), path)
    check_all(made, root)


def damaged(episode: int, length: int) -> dict[str, object]:
    if episode != 1:
        return {}
    rows = Made().action_of(1).tolist()
    rows[2], rows[5], rows[7] = None, rows[5][:2], [math.nan, 0.0, 0.0]
    return {"action": pa.array(rows, pa.list_(pa.float32()))}


def test_bad_rows_cost_their_episode_or_only_themselves(tmp_path):
    def columns(episode, length):
        whole = {"action": pa.array(made.action_of(episode).tolist(), pa.list_(pa.float32()))}
        return damaged(episode, length) or whole

    made = Made(columns=columns)
    root = made.write(tmp_path / "robot")
    source, refs = opened(root)
    with pytest.raises(DataError, match="action row 2: 3 rows have values that are null, ragged or not") as said:
        source.read(refs[1])
    assert "--bad-rows row" in str(said.value)
    source, refs = opened(root, bad_rows="row")
    episode = source.read(refs[1])
    kept = [k for k in range(made.lengths[1]) if k not in (2, 5, 7)]
    assert episode.rows.tolist() == kept
    assert shown(episode) == [(1, k, 0) for k in kept]
    assert np.array_equal(episode.vectors["state"], made.state_of(1)[kept])
    assert episode.timestamps == pytest.approx(np.array(kept) / 20)
    assert episode.extras["rows_left_out"] == 3


def test_rows_of_another_episode(tmp_path):
    made = Made(layout=2, columns=lambda episode, length: {"episode_index": pa.array([episode] * (length - 1) + [9])})
    _, refs = opened(made.write(tmp_path / "robot"))
    assert [ref.frames for ref in refs[:3]] == [length - 1 for length in made.lengths]
    assert refs[3].fault is not None


@pytest.mark.parametrize("store", ["struct", "binary", "large", "jpeg"])
def test_pictures_in_cells(tmp_path, store):
    def columns(episode, length):
        encode = jpeg if store == "jpeg" else png
        data = [encode(picture(episode, k, 0)) for k in range(length)]
        if store in ("struct", "jpeg"):
            column = pa.array([{"bytes": d, "path": None} for d in data])
        else:
            column = pa.array(data, pa.binary() if store == "binary" else pa.large_binary())
        return {"observation.images.front": column}

    made = Made(images=True, cameras=("observation.images.front",), columns=columns)
    source = check_all(made, made.write(tmp_path / "robot"))
    episode = source.read(source.episodes()[1])
    cell = next(iter(episode.images["cam0"].read(np.array([3]))))

    class Options:
        image_size, resize, quality, subsampling = 0, "squash", 92, "444"

    data, kind, _, kept = prepare(cell, episode.cameras["cam0"], Options())
    assert kind == "jpeg"
    assert kept == (store == "jpeg")
    if kept:  # the source's own bytes
        assert data == jpeg(picture(1, 3, 0))


def test_only_wanted_cells_are_given(tmp_path):
    made = Made(images=True, lengths=(40, 40), cameras=("observation.images.front",))
    source, refs = opened(made.write(tmp_path / "robot"))
    episode = source.read(refs[1])
    for rows in ([0, 7, 14], [39], [3, 4, 30], [1]):
        assert shown(episode, rows=rows) == [(1, k, 0) for k in rows]


@pytest.mark.parametrize(
    "place", ["{path}", "images/observation.images.front/episode_{episode:06d}/{path}", "images/{path}"]
)
def test_cells_that_name_a_file(tmp_path, place):
    root = tmp_path / "robot"

    def columns(episode, length):
        cells = []
        for k in range(length):
            path = f"e{episode}-frame-{k:06d}.png"
            file = root / place.format(path=path, episode=episode)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(png(picture(episode, k, 0)))
            cells.append({"bytes": None, "path": str(file.resolve()) if k == 0 else path})
        return {"observation.images.front": pa.array(cells, pa.struct([("bytes", pa.binary()), ("path", pa.string())]))}

    made = Made(images=True, cameras=("observation.images.front",), columns=columns)
    check_all(made, made.write(root))


@pytest.mark.parametrize("path", ["absent.png", "/etc/hostname", "../secret.png", "a/../../secret.png"])
def test_cells_that_name_a_file_elsewhere(tmp_path, path):
    (tmp_path / "secret.png").write_bytes(png(picture(0, 0)))
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    made = Made(
        images=True,
        cameras=("observation.images.front",),
        columns=lambda episode, length: {
            "observation.images.front": pa.array([{"bytes": None, "path": path}] * length, kind)
        },
    )
    source, refs = opened(made.write(tmp_path / "robot"))
    with pytest.raises(DataError, match=r"observation\.images\.front row 0: the picture's file is not in the dataset"):
        shown(source.read(refs[0]))


@pytest.mark.parametrize("cell", [None, b"", b"GIF89a..."])
def test_cells_without_a_picture(tmp_path, cell):
    def columns(episode, length):
        cells = [png(picture(episode, k)) for k in range(length)]
        cells[4] = cell
        return {"observation.images.front": pa.array(cells, pa.binary())}

    made = Made(images=True, cameras=("observation.images.front",), columns=columns)
    source, refs = opened(made.write(tmp_path / "robot"))
    episode = source.read(refs[0])
    assert shown(episode, rows=[3]) == [(0, 3, 0)]
    with pytest.raises(DataError, match=r"observation\.images\.front row 4"):
        shown(episode)


def test_language_columns_do_no_harm(tmp_path):
    role = pa.struct([("role", pa.string()), ("content", pa.string()), ("timestamp", pa.float32())])
    made = Made(
        lengths=(3,),
        columns=lambda episode, length: {
            "language_persistent": pa.array(
                [[{"role": "user", "content": "go", "timestamp": 0.5}], [], None], pa.list_(role)
            ),
            "note": pa.array(["a", None, "c"]),
            "when": pa.array([0, 1, 2], pa.timestamp("ms")),
            "strange": pa.array([math.nan, math.inf, 1.0]),
        },
    )
    source, refs = opened(made.write(tmp_path / "robot"))
    extras = source.read(refs[0]).frame_extras
    assert extras["language_persistent"] == [[{"role": "user", "content": "go", "timestamp": 0.5}], [], None]
    assert extras["note"] == ["a", None, "c"]
    assert extras["strange"] == [None, None, 1.0]
    json.dumps(extras)
    source, refs = opened(tmp_path / "robot", keep=("note",))
    assert set(source.read(refs[0]).frame_extras) == {"note"}
    source, refs = opened(tmp_path / "robot", keep=())
    assert not source.read(refs[0]).frame_extras
    with pytest.raises(ConfigError, match="--keep: no such column"):
        opened(tmp_path / "robot", keep=("absent",))
