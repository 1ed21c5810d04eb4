"""Foreign WebDataset tars become shard sets; the oracles are the stock webdataset package and tarfile."""

from __future__ import annotations

import hashlib
import io
import json
import pickle
import shutil
import tarfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import webdataset as wds
from helpers.damage import faults, flip, full, kinds
from helpers.sets import picture, toy_set
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from wdsmix.errors import ConfigError, ConflictError, DataError
from wdsmix.shards.adopt import AdoptOptions, adopt
from wdsmix.shards.reader import ShardSet
from wdsmix.shards.verify import verify

RULE = r"(?P<episode>.+)_(?P<frame>\d+)$"


def npy(values: object, dtype: str = "<f4") -> bytes:
    out = io.BytesIO()
    np.save(out, np.array(values, dtype))
    return out.getvalue()


def sample(number: int) -> dict[str, bytes]:
    return {
        "cam0.jpg": picture(number),
        "state.npy": npy([number, number / 3, -number]),
        "json": json.dumps({"task": f"task {number // 4}", "note": number}).encode(),
    }


def pack(path: Path, samples: Mapping[str, Mapping[str, bytes]], format: int = tarfile.USTAR_FORMAT, **options) -> Path:
    """A tar by the standard library: ``prefix`` before each name, ``folders`` as entries of their own."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=format) as tar:
        for key, members in samples.items():
            if options.get("folders"):
                info = tarfile.TarInfo(options.get("prefix", "") + key.rpartition("/")[0])
                info.type = tarfile.DIRTYPE
                tar.addfile(info)
            for suffix, data in members.items():
                info = tarfile.TarInfo(f"{options.get('prefix', '')}{key}.{suffix}")
                info.size, info.mtime = len(data), options.get("mtime", 0)
                tar.addfile(info, io.BytesIO(data))
    return path


def hashes(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


def go(folder: Path, rule: str = RULE, **options) -> ShardSet:
    adopt(folder, AdoptOptions(episode_from=rule, **options))
    report = full(folder)
    assert report.ok, list(map(str, report.faults))
    return ShardSet(folder)


@pytest.fixture
def stock(tmp_path: Path) -> Path:
    """Two tars by the stock writer with its defaults: float times, pictures and arrays encoded by it."""
    folder = tmp_path / "stock"
    folder.mkdir()
    for shard in range(2):
        with wds.TarWriter(str(folder / f"train-{shard:05d}.tar")) as sink:
            for episode in range(2):
                for frame in range(3):
                    number = 100 * shard + 10 * episode + frame
                    pixels = np.full((8, 10, 3), number, np.uint8)
                    pixels[:, :4] = 200
                    sink.write(
                        {
                            "__key__": f"run{shard}{episode}_{frame:03d}",
                            "front.png": pixels,
                            "hand.jpg": picture(number),
                            "qpos.npy": np.array([number, 0.1, number / 7]),
                            "json": {"instruction": f"do {episode}", "timestamp": 5 + frame / 20},
                            "cls": number,
                            "pyd": {"harmless": number},
                        }
                    )
    return folder


def test_tars_of_the_stock_writer(stock: Path) -> None:
    before = hashes(stock)
    times = {path.name: path.stat().st_mtime_ns for path in stock.iterdir()}
    opened = go(stock, vectors={"state": "qpos.npy"})
    assert {name: value for name, value in hashes(stock).items() if name in before} == before
    assert {name: (stock / name).stat().st_mtime_ns for name in times} == times
    urls = [str(stock / f"{shard}.tar") for shard in opened.manifest.shards]
    theirs = list(wds.WebDataset(urls, shardshuffle=False))
    assert len(opened) == len(theirs) == 12
    for i, other in enumerate(theirs):
        frame = opened.frame(i)
        assert np.array_equal(frame.images["cam0"], np.array(Image.open(io.BytesIO(other["front.png"]))))
        wanted = np.load(io.BytesIO(other["qpos.npy"])).astype(np.float32)
        assert frame.vectors["state"].tobytes() == wanted.tobytes()
        facts = json.loads(other["json"])
        assert (frame.task, frame.timestamp) == (facts["instruction"], facts["timestamp"])
        assert frame.frame == i % 3
        assert frame.episode == i // 3
        assert opened.index.source(i // 3) == (f"train-{i // 6:05d}.tar", other["__key__"][:5])
    manifest = opened.manifest
    assert manifest.hz == 20
    assert any("20 frames per second by the samples' timestamps" in text for text in manifest.warnings)
    assert manifest.details["adopted"] is True
    assert set(manifest.details["ignored_members"]) == {"cls", "pyd"}
    assert (manifest.cameras["cam0"].encoding, manifest.cameras["cam1"].encoding) == ("png", "jpeg")
    assert manifest.cameras["cam1"].sizes == [(16, 12)]
    assert opened.episode("train-00001.tar/run10").vectors["state"].shape == (3, 3)
    states = np.stack([opened.frame(i).vectors["state"] for i in range(12)]).astype(np.float64)
    np.testing.assert_allclose(opened.stats.fields["state"].mean, states.mean(axis=0), rtol=1e-12)
    assert opened.index.duration(0) == pytest.approx(3 / 20)


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize("prefix", ["", "./", "data/" + 30 * "long_" + "/"])
@pytest.mark.parametrize("folders", [False, True])
def test_every_spelling_of_a_tar(tmp_path: Path, format: int, prefix: str, folders: bool) -> None:
    samples = {f"day/e{k // 4}_{k % 4}": sample(k) for k in range(8)}
    pack(tmp_path / "a.tar", samples, format, prefix=prefix, folders=folders, mtime=1.5)
    opened = go(tmp_path)
    assert [opened.index.source(i)[1] for i in range(2)] == [f"{prefix.removeprefix('./')}day/e{k}" for k in range(2)]
    assert [opened.frame(i).vectors["state"][0] for i in range(8)] == list(range(8))
    assert [opened.frame(i).timestamp for i in range(4)] == [0, 1, 2, 3]
    assert opened.frame(5).extras == {"note": 5}


def test_names_that_need_extension_headers(tmp_path: Path) -> None:
    for name, format in (("gnu", tarfile.GNU_FORMAT), ("pax", tarfile.PAX_FORMAT)):
        key = "ü" * 70 + "_"
        pack(tmp_path / name / "a.tar", {f"{key}{k}": sample(k) for k in range(3)}, format)
        opened = go(tmp_path / name)
        assert opened.index.source(0)[1] == key[:-1]
        assert len(opened.episode(0)) == 3


def test_each_sample_an_episode_without_a_rule(tmp_path: Path) -> None:
    pack(tmp_path / "a.tar", {f"k{k}": sample(k) for k in range(3)})
    pack(tmp_path / "b.tar", {f"k{k}": sample(10 + k) for k in range(2)})
    opened = go(tmp_path, "")
    assert opened.index.frames.tolist() == [1] * 5
    assert opened.episode("b.tar/k1").vectors["state"][0, 0] == 11
    assert any("episode of one frame (--episode-from)" in text for text in opened.manifest.warnings)
    assert any("1 frame per second (--hz sets it)" in text for text in opened.manifest.warnings)


def test_numbers_are_kept_and_frames_give_the_time(tmp_path: Path) -> None:
    keys = ["0012_000", "0012_002", "0012_004", "0003_001", "0003_002"]
    pack(tmp_path / "a.tar", {key: sample(k) for k, key in enumerate(keys)})
    opened = go(tmp_path, r"^(\d+)_(?P<frame>\d+)$", hz=10)
    assert opened.index.episode.tolist() == [12, 3]
    assert opened.episode(12).timestamps.tolist() == [0, 0.2, 0.4]
    assert opened.index.tasks(0) == ["task 0"]
    assert opened.frame(2).frame == 2


def test_episode_from_json(tmp_path: Path) -> None:
    samples = {}
    for k in range(6):
        samples[f"{k:03d}"] = {**sample(k), "json": json.dumps({"meta": {"demo": f"d{k // 3}"}}).encode()}
    samples["000"]["txt"] = b" open the drawer \n"
    pack(tmp_path / "a.tar", samples)
    opened = go(tmp_path, "json:meta.demo")
    assert [opened.index.source(i)[1] for i in range(2)] == ["d0", "d1"]
    assert opened.index.tasks(0) == ["open the drawer", ""]
    assert opened.frame(0).task == "open the drawer"


@pytest.mark.parametrize("field", ["json:episode", "json:note.deeper", "json:task2"])
def test_json_without_the_episode(tmp_path: Path, field: str) -> None:
    pack(tmp_path / "a.tar", {"k0": sample(0)})
    with pytest.raises(DataError, match=r"a\.tar: byte 0, key k0: .*no episode in field"):
        adopt(tmp_path, AdoptOptions(episode_from=field))


def test_splits_by_name(tmp_path: Path) -> None:
    for name in ("train-0", "val-0", "test-1", "other", "trainer"):
        pack(tmp_path / f"{name}.tar", {f"{name}_{k}": sample(k) for k in range(2)})
    opened = go(tmp_path)
    assert opened.manifest.shards == ["other", "train-0", "trainer", "val-0", "test-1"]
    assert {split: counts.frames for split, counts in opened.manifest.splits.items()} == {
        "train": 6,
        "val": 2,
        "test": 2,
    }
    assert opened.stats.fields["state"].count == 6


def test_split_from(tmp_path: Path) -> None:
    for name in ("a_holdout", "b_fit"):
        pack(tmp_path / f"{name}.tar", {f"{name}_{k}": sample(k) for k in range(2)})
    opened = go(tmp_path, split_from="_(.*)$")
    assert sorted(opened.manifest.splits) == ["fit", "holdout"]
    shutil.rmtree(tmp_path)
    pack(tmp_path / "c.tar", {"c_0": sample(0)})
    with pytest.raises(DataError, match="--split-from"):
        adopt(tmp_path, AdoptOptions(episode_from=RULE, split_from="_(.*)$"))


def test_kinds_of_members(tmp_path: Path) -> None:
    members = {
        "image_10.webp": _webp(1),
        "image_9.jpeg": picture(2),
        "flag.npy": npy(True, "?"),
        "count.npy": npy([2**24 + 1, 5], "<i8"),
        "big.npy": npy([1.5, 2.5], ">f8"),
        "npy": npy([7.0]),
        "matrix.npy": npy([[1.0, 2.0]]),
        "objects.npy": npy([{"a": 1}], "O"),
        "words.npy": npy(["a"], "<U1"),
        "none.npy": npy([]),
        "data.npz": b"PK",
        "model.pth": pickle.dumps(_Bomb()),
        "x.pkl": pickle.dumps(_Bomb()),
        "meta.json": b"broken",
        "caption.txt": b"\xff",
    }
    pack(tmp_path / "a.tar", {"e_0": members})
    opened = go(tmp_path)
    assert {slot: camera.member for slot, camera in opened.manifest.cameras.items()} == {
        "cam0": "image_9.jpeg",
        "cam1": "image_10.webp",
    }
    frame = opened.frame(0)
    assert {name: rows.tolist() for name, rows in frame.vectors.items()} == {
        "flag": [1],
        "count": [2**24, 5],
        "big": [1.5, 2.5],
        "vector": [7],
    }
    assert frame.images["cam1"].shape == (6, 4, 3)
    ignored = opened.manifest.details["ignored_members"]
    assert set(ignored) == {name for name in members if name not in ("image_10.webp", "image_9.jpeg", "npy")} - {
        "flag.npy",
        "count.npy",
        "big.npy",
    }
    assert "never loaded" in ignored["objects.npy"]
    assert "could run code" in ignored["model.pth"]
    assert "its own .npy" in ignored["data.npz"]
    assert any("beyond 2^24 were rounded to float32 in count" in text for text in opened.manifest.warnings)


class _Bomb:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return pytest.fail, ("a pickle was loaded",)


def _webp(shade: int) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (4, 6), (shade, 2, 3)).save(out, "webp", lossless=True)
    return out.getvalue()


def test_members_that_only_some_samples_have(tmp_path: Path) -> None:
    samples = {f"e_{k}": sample(k) for k in range(4)}
    del samples["e_1"]["cam0.jpg"]
    del samples["e_2"]["state.npy"]
    pack(tmp_path / "a.tar", samples)
    opened = go(tmp_path)
    assert "cam0" not in opened.frame(1).images
    assert "state" not in opened.frame(2).vectors
    assert opened.manifest.cameras["cam0"].frames == opened.manifest.vectors["state"].frames == 3
    assert opened.stats.fields["state"].mean[0] == pytest.approx((0 + 1 + 3) / 3, rel=1e-12)


def test_depth_pictures(tmp_path: Path) -> None:
    out = io.BytesIO()
    Image.fromarray(np.arange(12, dtype=np.uint16).reshape(3, 4) * 500).save(out, "png")
    pack(tmp_path / "a.tar", {"e_0": {"depth.png": out.getvalue(), "rgb.jpg": picture(0)}})
    opened = go(tmp_path)
    assert opened.manifest.cameras["cam0"].kind == "depth"
    assert opened.frame(0).images["cam0"].tolist() == (np.arange(12).reshape(3, 4) * 500).tolist()


def test_chosen_cameras_and_vectors(tmp_path: Path) -> None:
    pack(tmp_path / "a.tar", {"e_0": {"a.jpg": picture(0), "b.jpg": picture(1), "q.npy": npy([1]), "r.npy": npy([2])}})
    opened = go(tmp_path, cameras={"cam1": "b.jpg"}, vectors={"state": "q.npy"})
    assert list(opened.manifest.cameras) == ["cam1"]
    assert opened.manifest.details["ignored_members"] == {"a.jpg": "not named by --camera"}
    assert {name: entry.member for name, entry in opened.manifest.vectors.items()} == {"state": "q.npy", "r": "r.npy"}


BAD_OPTIONS = [
    ({"episode_from": "("}, "--episode-from"),
    ({"episode_from": "json:"}, "--episode-from"),
    ({"split_from": "x"}, "--split-from"),
    ({"split_from": "("}, "--split-from"),
    ({"hz": -1.0}, "--hz"),
    ({"hz": float("nan")}, "--hz"),
    ({"jobs": 0}, "--jobs"),
    ({"cameras": {"front": "cam0.jpg"}}, "--camera"),
    ({"cameras": {"cam0": "nope.jpg"}}, "--camera cam0.*expected cam0.jpg, found nope.jpg"),
    ({"cameras": {"cam0": "state.npy"}}, "--camera cam0"),
    ({"vectors": {"state": "nope.npy"}}, "--vector state"),
    ({"vectors": {"a/b": "state.npy"}}, "--vector"),
    ({"vectors": {"a": "state.npy", "b": "state.npy"}}, "--vector"),
]


@pytest.mark.parametrize(("options", "words"), BAD_OPTIONS)
def test_wrong_options(tmp_path: Path, options: dict, words: str) -> None:
    pack(tmp_path / "a.tar", {"e_0": sample(0)})
    with pytest.raises(ConfigError, match=words):
        adopt(tmp_path, AdoptOptions(**options))
    assert [path.name for path in tmp_path.iterdir()] == ["a.tar"]


def test_two_members_for_one_vector(tmp_path: Path) -> None:
    pack(tmp_path / "a.tar", {"e_0": {"q.npy": npy([1]), "state.npy": npy([2])}})
    with pytest.raises(ConfigError, match="two members for vector state"):
        adopt(tmp_path, AdoptOptions(vectors={"state": "q.npy"}))


def _members(*names: str) -> list[tuple[str, bytes]]:
    return [(name, npy([1.0]) if name.endswith(".npy") else picture(1)) for name in names]


HOSTILE = [
    (_members("a.jpg", "b.jpg", "a.npy"), "byte {2}: key a comes back after other samples"),
    (_members("a.jpg", "README", "b.jpg"), "byte {1}: a member has no suffix"),
    (_members("a.jpg", "d/._a.jpg"), "byte {1}: a member has no suffix"),
    (_members("a.jpg", "._a.jpg"), "byte {1}: a member has no suffix"),
    (_members("a.jpg", "a.jpg"), "byte {1}: suffix jpg occurs twice in sample a"),
    (_members("a.jpg", "a.JPG"), "byte {1}: suffix JPG occurs twice in sample a"),
    (_members("a.jpg", "b.JPG"), "spelled in two ways"),
    ([("a.jpg", b"nonsense")], "byte 0, key a, jpg: not a JPEG, PNG or WebP"),
    ([("a.jpg", b"\xff\xd8\xff\xe0\0\x10")], "byte 0, key a, jpg"),
    ([("a.jpg", picture(0)), ("b.jpg", _webp(1))], "byte {1}, key b, jpg: another kind of picture"),
    ([("a.npy", npy([1.0, float("nan")]))], "byte 0, key a, npy, dimension 1: .*NaN"),
    ([("a.npy", npy([1e300], "<f8"))], "too large for float32"),
    ([("a.npy", b"\x93NUMPY\x01\0v\0{'descr': ")], "byte 0, key a, npy: not a readable .npy"),
    ([("a.npy", npy([1.0])[:-2])], "byte 0, key a, npy: the .npy is cut"),
    ([("a.npy", npy([1.0])), ("a.json", b"{")], "byte 0, key a, json: not JSON"),
    ([("a.npy", npy([1.0])), ("a.json", b"[1]")], "byte 0, key a, json: the JSON is not an object"),
    ([("a.npy", npy([1.0])), ("a.txt", b"\xff")], "byte 0, key a, txt: not UTF-8"),
    ([("a.npy", npy([[1.0]]))], "no picture and no vector"),
    ([], "no sample|no picture"),
]


@pytest.mark.parametrize(("members", "words"), HOSTILE)
def test_hostile_tars_are_refused_with_their_place(
    tmp_path: Path, members: list[tuple[str, bytes]], words: str
) -> None:
    offsets = []
    with tarfile.open(tmp_path / "x.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            offsets.append(tar.offset)
            tar.addfile(info, io.BytesIO(data))
    for k, offset in enumerate(offsets):
        words = words.replace(f"{{{k}}}", str(offset))
    with pytest.raises(DataError, match=words) as caught:
        adopt(tmp_path)
    assert not members or "x.tar" in str(caught.value) or "no picture" in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["x.tar"]


def test_links_are_refused(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        info = tarfile.TarInfo("a.jpg")
        info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(info)
    with pytest.raises(DataError, match=r"x\.tar: byte 0"):
        adopt(tmp_path)


@pytest.mark.parametrize("keep", [0, 300, 512, 2048, -1, -512, -1024])
def test_truncated_tars(tmp_path: Path, keep: int) -> None:
    path = pack(tmp_path / "x.tar", {f"e_{k}": sample(k) for k in range(3)})
    with tarfile.open(path) as tar:
        last = tar.getmembers()[-1]
        end = last.offset_data + (last.size + 511) // 512 * 512
    data = path.read_bytes()[: end + 1024]
    path.write_bytes(data[:keep] if keep >= 0 else data[: len(data) + keep])
    with pytest.raises(DataError, match=r"x\.tar: (byte \d+|the tar is empty)"):
        adopt(tmp_path)


def test_episodes_that_are_not_contiguous(tmp_path: Path) -> None:
    pack(tmp_path / "one" / "x.tar", {key: sample(0) for key in ("a_0", "b_0", "a_1")})
    with pytest.raises(
        DataError, match=r"x\.tar: byte \d+, key a_1: the frames of episode a .*began at byte 0, key a_0"
    ):
        adopt(tmp_path / "one", AdoptOptions(episode_from=RULE))
    pack(tmp_path / "two" / "x.tar", {"a_0": sample(0)})
    pack(tmp_path / "two" / "y.tar", {"a_1": sample(0)})
    with pytest.raises(
        DataError, match=r"y\.tar: byte 0, key a_1: episode a lies in two tars.*x\.tar at byte 0, key a_0"
    ):
        adopt(tmp_path / "two", AdoptOptions(episode_from=RULE))
    pack(tmp_path / "three" / "x.tar", {"a_1": sample(0), "a_0": sample(0)})
    with pytest.raises(DataError, match=r"key a_0: the frames of episode a are not in order"):
        adopt(tmp_path / "three", AdoptOptions(episode_from=RULE))
    with pytest.raises(DataError, match=r"key a_1: the key does not match"):
        adopt(tmp_path / "three", AdoptOptions(episode_from=r"^(\d)"))


def test_vectors_of_varying_width(tmp_path: Path) -> None:
    pack(tmp_path / "x.tar", {"a_0": {"v.npy": npy([1]), "w.npy": npy([1])}, "a_1": {"v.npy": npy([1, 2])}})
    with pytest.raises(DataError, match=r"x\.tar.*v\.npy: can't be vector state: its width varies \(1, 2\)"):
        adopt(tmp_path, AdoptOptions(vectors={"state": "v.npy"}))
    opened = go(tmp_path)
    assert list(opened.manifest.vectors) == ["w"]
    assert any("members .v.npy are ignored: its width varies (1, 2)" in text for text in opened.manifest.warnings)


def test_names_and_folders_that_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such folder"):
        adopt(tmp_path / "nowhere")
    with pytest.raises(DataError, match="no tar"):
        adopt(tmp_path)
    (tmp_path / "a.tar.gz").touch()
    with pytest.raises(DataError, match=r"a\.tar\.gz: compressed"):
        adopt(tmp_path)
    (tmp_path / "a.tar.gz").rename(tmp_path / "a b.tar")
    with pytest.raises(DataError, match=r"a b\.tar"):
        adopt(tmp_path)


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    toy_set(tmp_path / "toy")
    before = hashes(tmp_path / "toy")
    for force in (False, True):
        with pytest.raises(ConflictError, match="not made by index"):
            adopt(tmp_path / "toy", AdoptOptions(force=force))
    assert hashes(tmp_path / "toy") == before
    folder = tmp_path / "own"
    pack(folder / "a.tar", {"e_0": sample(0)})
    (folder / "stats.json").write_text("mine")
    with pytest.raises(ConflictError, match=r"stats\.json"):
        adopt(folder)
    assert (folder / "stats.json").read_text() == "mine"
    (folder / "stats.json").unlink()
    (folder / ".work").mkdir()
    with pytest.raises(ConflictError, match="not finished"):
        adopt(folder, AdoptOptions(force=True))


def test_force_indexes_again(tmp_path: Path) -> None:
    pack(tmp_path / "a.tar", {"a_0": sample(0)})
    pack(tmp_path / "b.tar", {"b_0": sample(1)})
    first = go(tmp_path).digest
    with pytest.raises(ConflictError, match="--force"):
        adopt(tmp_path, AdoptOptions(episode_from=RULE))
    before = hashes(tmp_path)
    assert go(tmp_path, force=True).digest == first
    assert hashes(tmp_path) == before  # same tars, same options, same bytes
    (tmp_path / "b.tar").unlink()
    opened = go(tmp_path, force=True, hz=30)
    assert opened.manifest.shards == ["a"]
    assert not (tmp_path / "b.frames.arrow").exists()


def test_processes_give_the_same_bytes(stock: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = Path(shutil.copytree(stock, tmp_path / "other"))
    go(stock, name="x")
    monkeypatch.setattr("wdsmix.shards.adopt._INLINE_BYTES", 0)
    done: list[tuple[str, int]] = []
    adopt(
        other,
        AdoptOptions(episode_from=RULE, name="x", jobs=2),
        progress=lambda label, total: lambda n: done.append((label, n)),
    )
    assert hashes(other) == hashes(stock)
    assert sorted(done) == [("index", 1)] * 2 + [("scan", 1)] * 2
    flip(other / "train-00001.tar", 200, 1)
    with pytest.raises(DataError, match=r"train-00001\.tar: byte 0"):
        adopt(other, AdoptOptions(episode_from=RULE, name="x", jobs=2, force=True))
    assert {path.suffix for path in other.iterdir()} == {".tar", ".arrow", ".json", ".parquet"}


def test_validation_sees_damage_in_adopted_sets(stock: Path) -> None:
    opened = go(stock)
    report = verify(stock, level="quick")
    assert report.ok
    with tarfile.open(stock / "train-00001.tar") as tar:
        info = tar.getmember("run11_001.hand.jpg")
        key = tar.getmember("run11_001.cls")
    flip(stock / "train-00001.tar", info.offset_data + 9, 3)
    report = full(stock)
    [crc] = faults(report, "crc")
    assert crc.where == f"row 4, 000003_000001, byte {key.offset}"
    flip(stock / "train-00001.tar", info.offset_data + 9, 3)
    flip(stock / "train-00001.tar", info.offset + 3, 3)
    report = full(stock)
    assert {"crc", "header"} <= kinds(report)
    assert any(f"byte {info.offset}" in fault.where for fault in faults(report, "header"))
    assert opened.manifest.name == "stock"


@settings(max_examples=40)
@given(
    st.lists(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=2, max_size=2), min_size=1),
    st.sampled_from([tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]),
    st.integers(1, 5),
)
def test_what_is_adopted_is_what_was_packed(
    tmp_path_factory: pytest.TempPathFactory, rows: list[list[float]], format: int, length: int
) -> None:
    folder = tmp_path_factory.mktemp("packed")
    samples = {f"{k // length}_{k % length}": {"v.npy": npy(row)} for k, row in enumerate(rows)}
    pack(folder / "a.tar", samples, format)
    opened = go(folder)
    assert opened.index.frames.tolist() == [min(length, len(rows) - k) for k in range(0, len(rows), length)]
    found = np.concatenate([opened.episode(e).vectors["v"] for e in range(len(opened.index))])
    assert found.tobytes() == np.array(rows, np.float32).tobytes()
    shutil.rmtree(folder)


def test_a_vector_that_is_not_there_takes_no_memory(tmp_path: Path) -> None:
    declared = io.BytesIO()
    np.lib.format.write_array_header_1_0(declared, {"descr": "<f4", "fortran_order": False, "shape": (99999999999,)})
    pack(tmp_path / "a.tar", {"a_0": {**sample(0), "big.npy": declared.getvalue()}})
    with pytest.raises(DataError, match=r"a_0, .*big\.npy: the \.npy is cut .*expected 399999999996 bytes, found 0"):
        adopt(tmp_path, AdoptOptions(episode_from=RULE))


def test_a_vector_that_is_too_wide_is_ignored_and_named(tmp_path: Path) -> None:
    pack(tmp_path / "a.tar", {"a_0": {**sample(0), "big.npy": npy(np.zeros(65_537), "u1")}})
    manifest = adopt(tmp_path, AdoptOptions(episode_from=RULE))
    assert list(manifest.vectors) == ["state"]
    assert any(".big.npy are ignored: it has 65537 dimensions" in text for text in manifest.warnings)
