"""A repository of the hub, against a hub in this process."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers.lerobot_fixtures import Made, shown, stored

pytest.importorskip("huggingface_hub", reason="needs the extra hub")
from helpers.fake_hub import COMMIT, FakeHub
from wdsmix.converters.lerobot.dataset import LeRobotSource
from wdsmix.converters.lerobot.hub import HubTree
from wdsmix.converters.lerobot.options import LeRobotOptions

from wdsmix.cli import main
from wdsmix.errors import ConfigError, DataError, StorageError
from wdsmix.manifest import Manifest

MADE = Made(lengths=(5, 6, 4, 7, 5), per_video=2, per_data=2, cameras=("observation.images.front",))
VIDEO = "videos/observation.images.front/chunk-000/file-{:03d}.mp4"


@pytest.fixture
def hub(tmp_path, monkeypatch):
    with FakeHub("lab/robot", MADE.write(tmp_path / "origin")) as served:
        monkeypatch.setenv("HF_ENDPOINT", served.endpoint)
        monkeypatch.delenv("HF_TOKEN", raising=False)
        yield served


def opened_tree(tree: HubTree):
    source = LeRobotSource(tree, LeRobotOptions())
    return source, source.episodes()


@pytest.mark.parametrize("where", ["folder", "cache_dir"])
def test_only_what_is_needed_is_fetched(hub, tmp_path, where):
    tree = HubTree("lab/robot", **{where: tmp_path / "here"})
    assert tree.commit == COMMIT
    assert tree.names() == {name: path.stat().st_size for name, path in hub.files.items()}  # over several pages
    source, refs = opened_tree(tree)
    assert [ref.frames for ref in refs] == list(MADE.lengths)
    early = {name for name in hub.fetched if name.startswith(("data/", "videos/"))}
    assert early == {"data/chunk-000/file-000.parquet", VIDEO.format(0)}  # the first of each, to look at
    episode = source.read(refs[2])
    assert shown(episode) == [(2, k, 0) for k in range(4)]
    assert np.array_equal(episode.vectors["action"], MADE.action_of(2))
    assert VIDEO.format(2) not in hub.fetched
    assert set(hub.fetched.values()) == {1}
    again, refs = opened_tree(HubTree("lab/robot", **{where: tmp_path / "here"}))
    again.read(refs[2])
    assert set(hub.fetched.values()) == {1}  # the second run fetches nothing again
    assert again.fingerprint() == source.fingerprint()
    facts = source.describe().details
    assert (facts["repo_id"], facts["revision"], facts["commit"]) == ("lab/robot", "main", COMMIT)


def test_wrong_hints_are_searched_around(hub, tmp_path):
    """lerobot#2401 on the hub: the neighbour file holds the episode."""
    from helpers.lerobot_fixtures import change_episodes

    def wrong(rows):
        for row in rows:
            row["data/file_index"] = max(0, row["data/file_index"] - 1)

    change_episodes(Path(hub.files["meta/info.json"]).parents[1], wrong)
    source, refs = opened_tree(HubTree("lab/robot", folder=tmp_path / "here"))
    for number, ref in enumerate(refs):
        assert np.array_equal(source.read(ref).vectors["state"], MADE.state_of(number))


@pytest.mark.parametrize("where", ["folder", "cache_dir"])
def test_videos_are_evicted(hub, tmp_path, where):
    tree = HubTree("lab/robot", evict=True, **{where: tmp_path / "here"})
    source, refs = opened_tree(tree)

    def there() -> set[str]:
        return {path.name for path in (tmp_path / "here").rglob("*.mp4")}

    most = 0
    for number, ref in enumerate(refs):
        assert shown(source.read(ref)) == [(number, k, 0) for k in range(MADE.lengths[number])]
        most = max(most, len(there()))
    assert most == 1
    source.close()
    assert there() == set()
    size = hub.files[VIDEO.format(0)].stat().st_size
    blobs = [path for path in (tmp_path / "here").rglob("*") if path.is_file() and path.stat().st_size == size]
    assert not blobs
    assert hub.fetched[VIDEO.format(1)] == 1


def test_data_files_with_pictures_are_evicted_too(tmp_path, monkeypatch):
    made = Made(lengths=(5, 6, 4, 7, 5), per_data=2, images=True, cameras=("observation.images.front",))
    with FakeHub("lab/robot", made.write(tmp_path / "origin")) as served:
        monkeypatch.setenv("HF_ENDPOINT", served.endpoint)
        source, refs = opened_tree(HubTree("lab/robot", folder=tmp_path / "here", evict=True))
        for number, ref in enumerate(refs):
            assert shown(source.read(ref)) == [(number, k, 0) for k in range(made.lengths[number])]
            assert len(list((tmp_path / "here/data").rglob("*.parquet"))) == 1
        source.close()
        assert not list((tmp_path / "here/data").rglob("*.parquet"))


def test_a_video_in_use_elsewhere_is_not_evicted(hub, tmp_path):
    first = HubTree("lab/robot", folder=tmp_path / "here", evict=True)
    second = HubTree("lab/robot", folder=tmp_path / "here", evict=True)
    path = first.open_path(VIDEO.format(0))
    assert second.open_path(VIDEO.format(0)) == path
    first.release(VIDEO.format(0))
    assert path.exists()
    second.release(VIDEO.format(0))
    assert not path.exists()
    assert first.open_path(VIDEO.format(0)).exists()


def test_by_the_command(hub, tmp_path):
    out, plain = tmp_path / "set", tmp_path / "plain"
    command = ["convert", "lerobot", "hf://lab/robot", str(out), "--quiet", "--workers", "2", "--frames-per-shard", "8"]
    assert main([*command, "--cache-dir", str(tmp_path / "cache"), "--evict-videos", "--revision", "v3.0"]) == 0
    manifest = Manifest.model_validate_json((out / "manifest.json").read_bytes())
    assert manifest.details["commit"] == COMMIT
    assert manifest.name == "robot"
    assert "the repository has no tag v3.0; main is taken" in manifest.warnings  # GR00T#171
    assert "cache" not in str(manifest.arguments)
    command[2], command[3] = str(tmp_path / "origin"), str(plain)
    assert main(command) == 0
    ours, theirs = stored(out), stored(plain)
    assert {key: one.raw for key, one in ours.items()} == {key: one.raw for key, one in theirs.items()}
    folder = tmp_path / "folder"
    assert main(["convert", "lerobot", str(folder), str(tmp_path / "third"), "--repo-id", "lab/robot", "--quiet"]) == 0
    assert (folder / "meta/info.json").is_file()


def test_tags_branches_and_commits(hub, tmp_path):
    hub.revisions.add("v2.1")
    assert not HubTree("lab/robot", "v2.1", cache_dir=tmp_path).warnings()
    assert not HubTree("lab/robot", COMMIT, cache_dir=tmp_path).warnings()
    with pytest.raises(ConfigError, match=r"--revision: no such revision \(found draft\)"):
        HubTree("lab/robot", "draft", cache_dir=tmp_path)


def test_refusals_say_what_to_do(hub, tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match=r"no such dataset repository.*lab/other.*HF_TOKEN"):
        HubTree("lab/other", cache_dir=tmp_path)
    hub.gated = True
    with pytest.raises(StorageError, match="access to the repository has to be granted"):
        HubTree("lab/robot", cache_dir=tmp_path)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(StorageError, match="can't be reached"):
        HubTree("lab/robot", cache_dir=tmp_path)


def test_a_damaged_download_is_not_kept(hub, tmp_path):
    name = "data/chunk-000/file-001.parquet"
    hub.damaged.add(name)
    tree = HubTree("lab/robot", folder=tmp_path / "here")
    with pytest.raises(StorageError, match=f"{name}: download is damaged"):
        tree.open_path(name)
    assert not (tmp_path / "here" / name).exists()
    hub.damaged.clear()
    assert tree.open_path(name).read_bytes() == hub.files[name].read_bytes()
    with pytest.raises(DataError, match="no such file"):
        tree.open_path("data/absent.parquet")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--revision", "main"], "--revision"),
        (["--cache-dir", "x"], "--cache-dir"),
        (["--evict-videos"], "--evict-videos"),
    ],
)
def test_options_of_the_hub_without_one(tmp_path, capsys, more, said):
    MADE.write(tmp_path / "robot")
    assert main(["convert", "lerobot", str(tmp_path / "robot"), str(tmp_path / "set"), "--quiet", *more]) == 2
    assert said in capsys.readouterr().err


def test_contradictions(tmp_path, capsys):
    base = ["convert", "lerobot", "hf://lab/robot@v2.1", str(tmp_path / "set"), "--quiet"]
    assert main([*base, "--revision", "main"]) == 2
    assert main([*base, "--repo-id", "a/b"]) == 2
    base[2] = str(tmp_path)
    assert main([*base, "--repo-id", "a/b", "--cache-dir", "x"]) == 2


@pytest.mark.parametrize("where", ["folder", "cache_dir"])
def test_offline_what_was_fetched_is_there(hub, tmp_path, monkeypatch, where):
    import huggingface_hub.constants

    source, refs = opened_tree(HubTree("lab/robot", **{where: tmp_path / "here"}))
    source.read(refs[0])
    before = hub.fetched.total()
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    source, refs = opened_tree(HubTree("lab/robot", **{where: tmp_path / "here"}))
    assert shown(source.read(refs[1])) == [(1, k, 0) for k in range(6)]
    assert "its video of observation.images.front is missing" in refs[4].fault
    assert any("HF_HUB_OFFLINE" in text for text in source.describe().warnings)
    assert hub.fetched.total() == before
    with pytest.raises((StorageError, DataError), match=r"does not hold this revision|no LeRobot dataset"):
        opened_tree(HubTree("lab/robot", **{where: tmp_path / "elsewhere"}))


@pytest.fixture
def pauses(monkeypatch):
    """Time that passes between tries, not waited for."""
    slept: list[float] = []
    monkeypatch.setattr("wdsmix.converters.lerobot.hub.time.sleep", slept.append)
    return slept


@pytest.mark.parametrize("part", ["/revision/", "/tree/", "/resolve/"])
@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_hub_is_asked_again(hub, tmp_path, pauses, part, status):
    hub.busy[part] = [status] * 2
    source, refs = opened_tree(HubTree("lab/robot", folder=tmp_path / "here"))
    assert shown(source.read(refs[4])) == [(4, k, 0) for k in range(5)]
    assert hub.busy[part] == []
    assert hub.fetched[VIDEO.format(2)] == 1


def test_a_hub_that_stays_busy_ends_the_run_and_the_next_goes_on(hub, tmp_path, pauses):
    out = tmp_path / "set"
    command = ["convert", "lerobot", str(tmp_path / "here"), str(out), "--repo-id", "lab/robot", "--quiet"]
    assert main([*command, "--workers", "1", "--max-episodes", "1", "--frames-per-shard", "8"]) == 0
    hub.busy["/resolve/"] = [503] * 1000
    with pytest.raises(StorageError, match=r"busy: HTTP 503|can't be reached"):
        HubTree("lab/robot", folder=tmp_path / "here").open_path("data/chunk-000/file-002.parquet")
    hub.busy.clear()
    assert HubTree("lab/robot", folder=tmp_path / "here").open_path("data/chunk-000/file-002.parquet").is_file()


def test_a_killed_run_leaves_a_video_that_the_next_one_uses_and_evicts(hub, tmp_path):
    gone = HubTree("lab/robot", cache_dir=tmp_path / "cache", evict=True)
    left = gone.open_path(VIDEO.format(0))  # and never released: its process was killed
    for handle in gone._held.values():
        import os

        os.close(handle)
    source, refs = opened_tree(HubTree("lab/robot", cache_dir=tmp_path / "cache", evict=True))
    assert shown(source.read(refs[1])) == [(1, k, 0) for k in range(6)]
    source.close()
    assert hub.fetched[VIDEO.format(0)] == 1
    assert not left.exists()
    assert not [
        p for p in (tmp_path / "cache").rglob("*") if p.is_file() and p.stat().st_size > 2000 and "mp4" in p.name
    ]


def test_the_whole_set_never_lies_on_disk_at_once(hub, tmp_path):
    """A set larger than the disk: the most that is there is one video a camera and worker."""
    cache, out = tmp_path / "cache", tmp_path / "set"
    videos = {path.stat().st_size for name, path in hub.files.items() if name.endswith(".mp4")}
    tree = HubTree("lab/robot", cache_dir=cache, evict=True)
    fetch, most = HubTree._fetched, []

    def counted(self, name):
        path = fetch(self, name)
        blobs = [p for p in cache.rglob("*") if p.is_file() and not p.is_symlink() and p.stat().st_size in videos]
        most.append(len(blobs))
        return path

    HubTree._fetched = counted
    try:
        source, refs = opened_tree(tree)
        for number, ref in enumerate(refs):
            assert shown(source.read(ref)) == [(number, k, 0) for k in range(MADE.lengths[number])]
        source.close()
    finally:
        HubTree._fetched = fetch
    assert max(most) <= 2  # the one before is let go when the next is open
    assert not out.exists()
