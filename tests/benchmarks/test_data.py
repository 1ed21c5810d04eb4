"""The data maker: same seed, same bytes; what is written is what the checks and wdsmix read."""

import dataclasses

import numpy as np
import pytest
import simplejpeg
from PIL import Image

from benchmarks import data, photos
from benchmarks.checks import WrongBatchError, check_batch, check_shares
from benchmarks.contenders import decode, wdsmix
from benchmarks.settings import CONTENDERS
from benchmarks.store import SOURCES, Store, write_source

SCALE = data.Scale(name="tiny", episodes=2, shortest=3, longest=5)


@pytest.fixture(scope="module")
def drawn_photographs():
    """Stand-ins: the packages that ship photographs belong to the benchmarks' own extra."""
    rng = np.random.default_rng(0)
    small = [Image.fromarray(rng.integers(0, 256, (12, 16, 3), dtype=np.uint8)) for _ in range(5)]
    pictures = tuple(picture.resize((1000, 900), Image.Resampling.BICUBIC) for picture in small)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(photos, "photographs", lambda: pictures)
        yield pictures


@pytest.fixture(scope="module")
def root(tmp_path_factory, drawn_photographs):
    root = tmp_path_factory.mktemp("benchmarks")
    (root / "store-444").mkdir()
    for number, source in enumerate(SOURCES):
        episodes = [data._episode(number, episode, SCALE)["444"] for episode in range(SCALE.episodes)]
        write_source(root / "store-444", source.name, episodes)
    return root


def test_a_sequence_is_a_function_of_its_seed_and_moves(drawn_photographs):
    first, again, other = (list(photos.sequence(seed, 4, 64)) for seed in ((1, 2, 0), (1, 2, 0), (1, 3, 0)))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert first[0].shape == (64, 64, 3)
    assert first[0].dtype == np.uint8
    assert not np.array_equal(first[0], first[3])
    assert not np.array_equal(first[0], other[0])


def test_both_subsamplings_hold_the_same_pictures(drawn_photographs):
    episode = data._episode(1, 0, SCALE)
    assert np.array_equal(episode["444"]["state"], episode["420"]["state"])
    pair = [simplejpeg.decode_jpeg(episode[name]["jpegs"][0][1]).astype(int) for name in ("444", "420")]
    assert simplejpeg.decode_jpeg_header(episode["420"]["jpegs"][0][1])[3] == "420"
    assert np.abs(pair[0] - pair[1]).mean() < 4


def test_the_store_gives_back_what_went_in(root):
    store = Store(root / "store-444")
    facts = store.facts()
    assert facts["episodes"] == 6
    assert facts["frames"] == sum(len(frames) for frames in store.sources)
    frames = store.sources[2]
    want = data._episode(2, 1, SCALE)["444"]
    row = int(frames.first[1])
    assert frames.jpeg(row, 1).tobytes() == want["jpegs"][0][1]
    assert np.array_equal(frames.state[row : row + frames.lengths[1]], want["state"])
    assert frames.frame[row] == 0
    assert frames.task(row) == SOURCES[2].tasks[want["task"]]


def test_decode_alone_decodes_what_it_says(root):
    contender = CONTENDERS["decode"]
    batch = next(decode.batches(contender, contender.data(root)))
    check_batch(batch, contender, Store(root / "store-444"))


@pytest.mark.parametrize("name", ["wdsmix-threads1", "wdsmix-temporal-threads2"])
def test_wdsmix_passes_the_checks_and_a_changed_batch_does_not(root, name):
    contender = CONTENDERS[name]
    folder = contender.data(root)
    store = Store(root / "store-444")
    if not folder.exists():
        folder.mkdir()
        wdsmix.write(store, folder)
    batch = wdsmix.view(next(iter(wdsmix.batches(contender, folder))), store)
    check_batch(batch, contender, store)
    for field in ("images", "state", "action", "action_mask", "row"):
        changed = {**batch, field: batch[field].copy()}
        first = changed[field].reshape(64, -1)
        first[0, 0] = 1 if first[0, 0] == 0 else first[0, 0] - 1
        if field == "action_mask":
            first[0, 0] = False
        with pytest.raises(WrongBatchError):
            check_batch(changed, contender, store)


def test_shares():
    own, peer = CONTENDERS["wdsmix-threads1"], CONTENDERS["webdataset-tuned"]
    assert check_shares(np.array([32, 19, 13]), own) == pytest.approx(0.2 / 64)
    assert check_shares(np.array([505, 300, 195]), peer) == pytest.approx(0.005)
    with pytest.raises(WrongBatchError):
        check_shares(np.array([505, 300, 195]), own)
    with pytest.raises(WrongBatchError):
        check_shares(np.array([600, 300, 100]), peer)


def test_a_job_survives_its_json():
    from benchmarks.measure import Job

    job = Job(contender=dataclasses.replace(CONTENDERS["hf-docs"], seed=3), root="x", samples=9)
    assert Job.from_json(job.to_json()) == job
