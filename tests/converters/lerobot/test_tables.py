"""Tables of v3 metadata: claims, hints, and the shapes they come in."""

from __future__ import annotations

import math

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers.lerobot_fixtures import Made, change_episodes, check_all, opened, write_rows
from wdsmix.converters.lerobot.tables import clean_task, read_tasks
from wdsmix.converters.lerobot.tree import LocalTree

from wdsmix.errors import DataError

MADE = Made(lengths=(8, 11, 6, 9), per_video=2, per_data=2)
SHARED = Made(lengths=(8, 11, 6, 9))


def episodes_file(root):
    return root / "meta/episodes/chunk-000/file-000.parquet"


def test_hints_to_data_files_may_be_wrong(tmp_path):
    """lerobot#2401, #2264, #1919: the rows' own episode_index tells."""
    root = MADE.write(tmp_path / "robot")

    def wrong(rows):
        for row in rows:
            row["data/file_index"] = (row["data/file_index"] + 1) % 7
            row["dataset_from_index"], row["dataset_to_index"] = 999, 3

    change_episodes(root, wrong)
    check_all(MADE, root)


def test_no_hints_at_all(tmp_path):
    root = MADE.write(tmp_path / "robot")
    change_episodes(
        root, lambda rows: [{k: v for k, v in r.items() if not k.startswith(("data/", "dataset"))} for r in rows]
    )
    check_all(MADE, root)


def test_integers_that_became_floats(tmp_path):
    """lerobot#2283."""
    root = MADE.write(tmp_path / "robot")

    def edit(rows):
        for row in rows:
            for key in ("episode_index", "length", "videos/observation.images.front/chunk_index"):
                row[key] = float(row[key])
            row["data/file_index"] = math.nan

    change_episodes(root, edit)
    check_all(MADE, root)


def test_rows_without_an_episode_are_dropped_with_a_word(tmp_path):
    root = MADE.write(tmp_path / "robot")
    change_episodes(root, lambda rows: [*rows, {**rows[0], "episode_index": None}])
    assert any("without an episode_index" in text for text in check_all(MADE, root).describe().warnings)


def test_files_with_other_columns_in_other_order(tmp_path):
    """Resumed recordings start new files; edited ones have other types."""
    root = MADE.write(tmp_path / "robot")
    rows = pq.read_table(episodes_file(root)).to_pylist()
    write_rows(episodes_file(root), rows[:2])
    later = [dict(reversed(list({**row, "length": float(row["length"]), "extra": "x"}.items()))) for row in rows[2:]]
    write_rows(root / "meta/episodes/chunk-000/file-001.parquet", later)
    check_all(MADE, root)


@pytest.mark.parametrize("name", ["meta/episodes/episodes.parquet", "meta/episodes.parquet"])
def test_one_table_instead_of_chunks_or_beside_them(tmp_path, name):
    root = MADE.write(tmp_path / "robot")
    data = episodes_file(root).read_bytes()
    (root / name).write_bytes(data)
    source = check_all(MADE, root)
    assert any("comes twice" in text for text in source.describe().warnings)
    episodes_file(root).unlink()
    check_all(MADE, root)


def test_names_with_underscores_and_names_that_come_twice(tmp_path):
    root = MADE.write(tmp_path / "robot")
    table = pq.read_table(episodes_file(root))
    names = [name.replace("data/", "data_") for name in table.column_names]
    doubled = pa.Table.from_arrays(
        [*table.columns, table.column("length"), pa.array(["a.parquet"] * 4)], names=[*names, "length", "data_path"]
    )
    pq.write_table(doubled, episodes_file(root))
    check_all(MADE, root)


def test_a_broken_table_of_some_episodes(tmp_path):
    root = MADE.write(tmp_path / "robot")
    rows = pq.read_table(episodes_file(root)).to_pylist()
    write_rows(episodes_file(root), rows[:2])
    (root / "meta/episodes/chunk-000/file-001.parquet").write_bytes(b"PAR1 cut off in the middle")
    source, refs = opened(root)
    assert [ref.fault for ref in refs[:2]] == [None, None]
    assert all("does not list it" in ref.fault for ref in refs[2:])
    assert any("file-001.parquet" in text and "no footer" in text for text in source.describe().warnings)


@pytest.mark.parametrize("short", [True, False])
def test_spans_that_end_a_frame_early(tmp_path, short):
    """(length - 1) / fps in some writers."""
    root = MADE.write(tmp_path / "robot")

    def edit(rows):
        for row in rows:
            for key in MADE.cameras:
                row[f"videos/{key}/to_timestamp"] -= short / 20

    change_episodes(root, edit)
    check_all(MADE, root)


def test_starts_that_drift(tmp_path):
    """lerobot#3177: sums of floats; whole frames do not drift."""
    root = SHARED.write(tmp_path / "robot")

    def edit(rows):
        for k, row in enumerate(rows):
            for key in SHARED.cameras:
                row[f"videos/{key}/from_timestamp"] += 0.013 * k
                row[f"videos/{key}/to_timestamp"] += 0.013 * (k + 1)

    change_episodes(root, edit)
    check_all(SHARED, root, fps=20.0)


def test_an_episode_that_was_cut_out_of_the_metadata(tmp_path):
    """The video still holds it: then the start times tell, rounded to whole frames."""
    root = SHARED.write(tmp_path / "robot")
    change_episodes(root, lambda rows: [row for row in rows if row["episode_index"] != 1])
    source, refs = opened(root)
    assert [ref.fault is None for ref in refs] == [True, False, True, True]
    assert "does not list it" in refs[1].fault
    from helpers.lerobot_fixtures import shown

    for number in (0, 2, 3):
        assert shown(source.read(refs[number])) == [(number, k, 0) for k in range(SHARED.lengths[number])]


def test_episodes_of_metadata_without_data_and_the_reverse(tmp_path):
    root = MADE.write(tmp_path / "robot")
    (root / "data/chunk-000/file-001.parquet").unlink()
    _, refs = opened(root)
    assert [ref.fault is None for ref in refs] == [True, True, False, False]
    assert "no data file" in refs[2].fault


def test_a_data_file_without_a_footer_loses_its_episodes_by_name(tmp_path):
    """lerobot#3522, #2529."""
    root = MADE.write(tmp_path / "robot")
    path = root / "data/chunk-000/file-001.parquet"
    path.write_bytes(path.read_bytes()[:-200])
    _, refs = opened(root)
    assert [ref.fault_kind for ref in refs[2:]] == ["file", "file"]
    assert all("file-001.parquet: parquet file has no footer" in ref.fault for ref in refs[2:])
    assert refs[0].fault is None


def test_lengths_are_claims(tmp_path):
    root = Made(layout=3, images=True).write(tmp_path / "robot")
    change_episodes(root, lambda rows: [{**row, "length": row["length"] + 2} for row in rows])
    source = check_all(Made(layout=3, images=True), root)
    assert any("3 episodes have other than the declared rows" in text for text in source.describe().warnings)


def test_no_table_of_episodes(tmp_path):
    pictured = Made(layout=3, images=True)
    root = pictured.write(tmp_path / "images")
    episodes_file(root).unlink()
    assert any("no table of episodes" in text for text in check_all(pictured, root).describe().warnings)
    root = MADE.write(tmp_path / "videos")
    episodes_file(root).unlink()
    with pytest.raises(DataError, match="no table of episodes, without which their videos can't be told apart"):
        opened(root)


@pytest.mark.parametrize(
    "table",
    [
        pa.table({"task_index": [0, 1], "__index_level_0__": ["pick it up", "put it down"]}),
        pa.table({"task_index": pa.array([1.0, 0.0]), "task": ["put it down", "pick it up"]}),
        pa.table({"task": pa.array(["put it down", "pick it up"]).dictionary_encode(), "task_index": [1, 0]}),
        pa.table(
            {
                "task": pa.array(["put it down", "pick it up"], pa.large_string()),
                "task_index": pa.array([1, 0], pa.int8()),
            }
        ),
        pa.table({"other": [1.0, 2.0], "task_index": [1, 0], "task": ["put it down", "pick it up"]}),
    ],
    ids=["0.4", "double", "dictionary", "large", "more columns"],
)
def test_tasks_by_value_in_every_spelling(tmp_path, table):
    """lerobot-dataset-visualizer PR#61: by position is wrong for reordered tables."""
    root = MADE.write(tmp_path / "robot")
    pq.write_table(table, root / "meta/tasks.parquet")
    assert read_tasks(LocalTree(root)) == {0: "pick it up", 1: "put it down"}
    check_all(MADE, root)


def test_a_task_table_without_texts(tmp_path):
    root = MADE.write(tmp_path / "robot")
    pq.write_table(pa.table({"task_index": [0, 1]}), root / "meta/tasks.parquet")
    with pytest.raises(DataError, match="expected task_index and a column of strings"):
        opened(root)


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        ("tf.Tensor(b'pick up the cup', shape=(), dtype=string)", "pick up the cup"),
        ('tf.Tensor(b"it\'s", shape=(), dtype=string)', "it's"),
        ("  pick\n it ", "pick it"),
        (b"bytes", "bytes"),
        (None, ""),
        (7, "7"),
    ],
)
def test_texts_of_tasks(raw, text):
    assert clean_task(raw) == text


def test_tasks_of_the_metadata_where_rows_have_none(tmp_path):
    made = Made(columns=lambda episode, length: {"task_index": None})
    check_all(made, made.write(tmp_path / "robot"))


def test_each_frame_keeps_its_task(tmp_path):
    made = Made(lengths=(6,), columns=lambda episode, length: {"task_index": pa.array([1.0, 1, 0, 0, 1, 7])})
    source, refs = opened(made.write(tmp_path / "robot"))
    episode = source.read(refs[0])
    assert [episode.tasks[k] for k in episode.task_index] == [
        "put it down", "put it down", "pick it up", "pick it up", "put it down", "",
    ]  # fmt: skip


def test_empty_tasks_are_kept_and_counted(tmp_path):
    made = Made(tasks=("", "pick"))
    source, refs = opened(made.write(tmp_path / "robot"))
    assert source.read(refs[0]).tasks == [""]
    assert any("2 episodes have an empty task" in text for text in source.describe().warnings)


def test_subtasks_become_texts(tmp_path):
    made = Made(lengths=(3,), columns=lambda episode, length: {"subtask_index": pa.array([1, 0, 9])})
    root = made.write(tmp_path / "robot")
    pq.write_table(pa.table({"subtask_index": [0, 1], "subtask": ["reach", "grasp"]}), root / "meta/subtasks.parquet")
    source, refs = opened(root)
    assert source.read(refs[0]).frame_extras["subtask_index"] == ["grasp", "reach", 9]
