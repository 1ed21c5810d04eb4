from __future__ import annotations

import copy
import pickle
from pathlib import Path

import pytest
import yaml

from wdsmix.errors import ConfigError
from wdsmix.mixture.config import MixtureConfig, load_mixture

GOOD = {
    "seed": 0,
    "embodiments": {"panda": 0, "dual_arm": 1},
    "sources": [
        {"name": "lift", "shards": "sets/lift", "weight": 0.7, "embodiment": "panda"},
        {"name": "chunks", "shards": "sets/chunks", "weight": 0.3, "embodiment": "dual_arm", "split": "train"},
    ],
    "sample": {
        "cameras": ["cam0", "cam1"],
        "image_size": 128,
        "history": 1,
        "action_chunk": 16,
        "pad_to": {"state": 32, "action": 32},
        "normalize": {"state": "mean_std", "action": "q01_q99"},
    },
    "streams": 8,
    "window": 8192,
}


def test_the_documented_example(tmp_path: Path) -> None:
    path = tmp_path / "mixture.yaml"
    path.write_text(yaml.safe_dump(GOOD), encoding="utf-8")
    config = load_mixture(path)
    assert [source.name for source in config.sources] == ["lift", "chunks"]
    assert config.sample.offsets == (0,)
    assert config.sample.normalize["action"].mode == "q01_q99"
    assert config.sample.normalize["action"].bound == 1.0
    assert config.sample.normalize["state"].bound == 10.0
    assert config.block_bytes == 2 * 2**20
    assert config.folder == tmp_path
    again = pickle.loads(pickle.dumps(config))
    assert again == config
    assert again.folder == tmp_path


def test_defaults() -> None:
    config = MixtureConfig.from_dict({"sources": [{"name": "a", "shards": "a", "weight": 1}]})
    assert (config.seed, config.streams, config.window, config.block_bytes) == (0, 8, 8192, 2097152)
    assert config.sources[0].split == "train"
    assert config.sample.offsets == (0,)
    assert config.sample.action_chunk == 1
    assert config.sample.image_size == 0


@pytest.mark.parametrize(
    ("history", "offsets", "expected"),
    [(1, None, (0,)), (3, None, (-2, -1, 0)), (None, [-4, 0, 1], (-4, 0, 1)), (None, None, (0,))],
)
def test_offsets(history: int | None, offsets: list[int] | None, expected: tuple[int, ...]) -> None:
    sample = {key: value for key, value in (("history", history), ("observation_offsets", offsets)) if value}
    config = MixtureConfig.from_dict({"sources": [{"name": "a", "shards": "a", "weight": 1}], "sample": sample})
    assert config.sample.offsets == expected


@pytest.mark.parametrize(
    ("text", "expected"), [("2MiB", 2097152), ("512 KiB", 524288), (1000, 1000), ("3MB", 3_000_000), ("77", 77)]
)
def test_block_bytes(text: object, expected: int) -> None:
    assert MixtureConfig.from_dict({**GOOD, "block_bytes": text}).block_bytes == expected


@pytest.mark.parametrize(("clip", "bound"), [(1.5, 1.5), (float("inf"), float("inf"))])
def test_clip(clip: float, bound: float) -> None:
    data = copy.deepcopy(GOOD)
    data["sample"]["normalize"] = {"state": {"mode": "q01_q99", "clip": clip}}
    assert MixtureConfig.from_dict(data).sample.normalize["state"].bound == bound


def test_further_vectors_in_order_of_mention() -> None:
    data = copy.deepcopy(GOOD)
    data["sample"]["vectors"] = ["gripper"]
    data["sample"]["pad_to"] = {"text_emb": 8, "state": 32, "gripper": 2}
    assert MixtureConfig.from_dict(data).sample.further == ("gripper", "text_emb")


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        (("sedd",), 1, ["sedd", "unknown key", "did you mean 'seed'?"]),
        (("sources", 0, "wieght"), 1, ["sources[0].wieght", "did you mean 'weight'?"]),
        (("sample", "image_sise"), 1, ["sample.image_sise", "did you mean 'image_size'?"]),
        (("sample", "normalize"), {"state": {"mode": "min_max", "clp": 1}}, ["state.clp", "did you mean 'clip'?"]),
        (("zzz",), 1, ["zzz", "known: seed, embodiments, sources"]),
        (("sources", 1, "weight"), 0, ["sources[1].weight", "more than 0", "found 0"]),
        (("sources", 1, "weight"), float("inf"), ["sources[1].weight", "finite"]),
        (("sources", 1, "weight"), float("nan"), ["sources[1].weight"]),
        (("sources", 1, "weight"), True, ["sources[1].weight", "true or false"]),
        (("sources", 1, "weight"), "much", ["sources[1].weight", "a number", "'much'"]),
        (("sources", 1, "name"), "lift", ["two sources", "'lift'"]),
        (("sources", 1, "name"), "", ["sources[1].name", "not empty"]),
        (("sources", 0, "shards"), "s4://b/lift", ["sources[0].shards", "s4://", "no kind of URL", "s3://"]),
        (("sources",), [], ["sources", "at least 1"]),
        (("sources",), None, ["sources", "a list"]),
        (("sample", "normalize"), {"state": "meanstd"}, ["normalize.state", "did you mean 'mean_std'?"]),
        (("sample", "normalize"), {"stat": "none"}, ["'stat'", "did you mean 'state'?"]),
        (("sample", "normalize"), {"state": {"mode": "none", "clip": 2}}, ["clip"]),
        (("sources", 0, "normalize"), {"acton": "none"}, ["'lift'", "did you mean 'action'?"]),
        (("sample", "history"), 0, ["sample.history", "1 or more"]),
        (("sample", "observation_offsets"), [0, 1], ["history and observation_offsets"]),
        (("sample", "action_chunk"), 1.5, ["sample.action_chunk", "a whole number", "1.5"]),
        (("sample", "pad_to"), {"state": 0}, ["sample.pad_to.state", "1 or more"]),
        (("sample", "pad_to"), {"reward": 4}, ["reward"]),
        (("sample", "vectors"), ["state"], ["'state'"]),
        (("sample", "vectors"), ["frame"], ["'frame'", "uses that name"]),
        (("sample", "vectors"), ["a", "a_mask"], ["'a_mask'"]),
        (("sample", "cameras"), ["cam0", "cam0"], ["cameras", "'cam0' twice"]),
        (("embodiments",), {"a": 0, "b": 0}, ["embodiments", "id 0"]),
        (("embodiments",), {"a": -1}, ["embodiments.a", "0 or more"]),
        (("streams",), 0, ["streams", "1 or more"]),
        (("block_bytes",), "2 pounds", ["block_bytes", "2MiB", "2 pounds"]),
    ],
)
def test_faults_name_the_key(place: tuple[str | int, ...], value: object, words: list[str], tmp_path: Path) -> None:
    data: object = copy.deepcopy(GOOD)
    inner = data
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    with pytest.raises(ConfigError) as caught:
        MixtureConfig.from_dict(data, path="mix.yaml")
    text = str(caught.value)
    assert text.startswith("mix.yaml: ")
    for word in words:
        assert word in text
    assert "pydantic" not in text
    assert "Input should" not in text


def test_missing_key() -> None:
    with pytest.raises(ConfigError, match=r"sources\[0\]\.weight: missing"):
        MixtureConfig.from_dict({"sources": [{"name": "a", "shards": "a"}]})


def test_more_faults_are_counted() -> None:
    with pytest.raises(ConfigError, match="1 more fault beside this one"):
        MixtureConfig.from_dict({"sources": [{"name": "a", "shards": "a", "weight": -1}], "sed": 1})


@pytest.mark.parametrize("data", [None, [], "text", 3])
def test_not_a_mapping(data: object) -> None:
    with pytest.raises(ConfigError, match="not a mixture"):
        MixtureConfig.from_dict(data)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("seed: [", ["not valid YAML", "line"]),
        ("seed: 1\nseed: 2\n", ["'seed' is given twice", "line 2"]),
        ("sample: {image_size: 1, image_size: 2}\n", ["'image_size' is given twice"]),
        ("!!python/object/apply:os.system ['true']", ["not valid YAML"]),
        ("", ["not a mixture"]),
    ],
)
def test_files_that_are_no_mixture(text: str, words: list[str], tmp_path: Path) -> None:
    path = tmp_path / "m.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_mixture(path)
    assert str(path) in str(caught.value)
    for word in words:
        assert word in str(caught.value)


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="can't read the mixture: No such file"):
        load_mixture(tmp_path / "none.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"name: \xff\xfe")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load_mixture(tmp_path / "latin.yaml")
