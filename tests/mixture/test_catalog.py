from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
from helpers.mixtures import make_set

from wdsmix.errors import ConfigError
from wdsmix.mixture.catalog import Catalog, open_catalog
from wdsmix.mixture.config import MixtureConfig


def opened(mixture: dict, **sample: object) -> Catalog:
    data = copy.deepcopy(mixture)
    data["sample"].update(sample)
    return open_catalog(MixtureConfig.from_dict(data))


def test_sources_and_layout(mixture: dict) -> None:
    catalog = opened(mixture)
    lift, chunks = catalog.sources
    assert lift.frames.tolist() == [9, 4, 12, 6]  # the train episodes alone
    assert lift.number.tolist() == [0, 1, 3, 4]
    assert lift.ends.tolist() == [9, 13, 25, 31]
    assert (lift.embodiment, lift.embodiment_id) == ("panda", 5)
    assert (chunks.embodiment, chunks.embodiment_id) == ("dual_arm", 2)
    layout = catalog.layout
    assert layout.cameras == ("cam0", "cam1")
    assert (layout.height, layout.width) == (16, 20)
    assert layout.dims == {"state": 16, "action": 16}
    assert catalog.new_order().sizes == {"lift": 31, "chunks": 16}


def test_widths_default_to_the_widest_source(mixture: dict) -> None:
    assert opened(mixture, pad_to={}, vectors=["text_emb"]).layout.dims == {"state": 14, "action": 14, "text_emb": 6}


def test_cameras_default_to_all(mixture: dict) -> None:
    assert opened(mixture, cameras=None).layout.cameras == ("cam0", "cam1")


def test_another_split(mixture: dict) -> None:
    mixture["sources"] = [{**mixture["sources"][0], "split": "val"}]
    assert opened(mixture).sources[0].number.tolist() == [2, 5]


def test_paths_are_relative_to_the_file(sets: Path) -> None:
    data = {"sources": [{"name": "a", "shards": "lift", "weight": 1}]}
    catalog = open_catalog(MixtureConfig.from_dict(data, path=sets / "mixture.yaml"))
    assert catalog.sources[0].set.path == sets / "lift"


@pytest.mark.parametrize(
    ("pattern", "numbers"),
    [
        ("lift/train-{00000..00001}.tar", [0, 1, 3, 4]),
        ("lift/train-00001.tar", [3, 4]),
        ("lift/train-{00001,00000}.tar", [0, 1, 3, 4]),
    ],
)
def test_brace_patterns(sets: Path, pattern: str, numbers: list[int]) -> None:
    data = {"sources": [{"name": "a", "shards": pattern, "weight": 1}]}
    source = open_catalog(MixtureConfig.from_dict(data, folder=sets)).sources[0]
    assert source.number.tolist() == numbers
    whole = open_catalog(
        MixtureConfig.from_dict({"sources": [{"name": "a", "shards": "lift", "weight": 1}]}, folder=sets)
    )
    assert source.order.digest != whole.sources[0].order.digest
    assert source.order.digest.startswith(whole.sources[0].order.digest)


@pytest.mark.parametrize(
    ("pattern", "split", "words"),
    [
        ("lift/val-00000.tar", "train", ["another split", "expected shards of train", "found val"]),
        ("lift/{train,val}-00000.tar", "train", ["another split"]),
        ("lift/train-{00000..00009}.tar", "train", ["train-00002"]),
        ("{lift,chunks}/train-00000.tar", "train", ["within one set", "2 folders"]),
        ("lift/train-{00000..00001.tar", "train", ["unbalanced braces"]),
        ("lift/train-{00000..00001}.zip", "train", [".tar"]),
        ("lift", "test", ["no split 'test'", "train, val"]),
        ("chunks", "val", ["no split 'val'", "expected one of train"]),
    ],
)
def test_shards_that_are_not_there(sets: Path, pattern: str, split: str, words: list[str]) -> None:
    data = {"sources": [{"name": "a", "shards": pattern, "weight": 1, "split": split}]}
    with pytest.raises(ConfigError) as caught:
        open_catalog(MixtureConfig.from_dict(data, path=sets / "mix.yaml"))
    for word in ["source 'a'", *words]:
        assert word in str(caught.value)


def test_a_missing_set_names_the_source(sets: Path) -> None:
    data = {"sources": [{"name": "a", "shards": "nowhere", "weight": 1}]}
    with pytest.raises(ConfigError, match="source 'a'") as caught:
        open_catalog(MixtureConfig.from_dict(data, folder=sets))
    assert str(sets / "nowhere") in str(caught.value)


@pytest.mark.parametrize(
    ("sample", "words"),
    [
        ({"pad_to": {"state": 8}}, ["sample.pad_to.state", "'chunks'", "14 or more", "found 8", "never cut"]),
        ({"cameras": ["cam2"]}, ["'cam2'", "did you mean"]),
        ({"vectors": ["text_embb"]}, ["'text_embb'", "did you mean 'text_emb'?"]),
        ({"pad_to": {"text_em": 8}}, ["'text_em'", "did you mean 'text_emb'?"]),
    ],
)
def test_samples_that_do_not_fit(mixture: dict, sample: dict, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        opened(mixture, **sample)
    for word in words:
        assert word in str(caught.value)


def test_reward_that_no_source_has(mixture: dict) -> None:
    mixture["sources"] = mixture["sources"][1:]
    mixture["sample"]["cameras"] = ["cam0"]
    with pytest.raises(ConfigError, match="no source has a vector 'reward'"):
        opened(mixture, reward=True)


def test_embodiments(mixture: dict) -> None:
    del mixture["embodiments"]
    with pytest.raises(ConfigError, match=r"embodiments: .*more than one.*dual_arm, panda"):
        opened(mixture)
    with pytest.raises(ConfigError, match=r"unknown embodiment 'panda' of source 'lift'.*did you mean 'pandas'"):
        opened({**mixture, "embodiments": {"pandas": 0, "dual_arm": 1}})
    one = [{**source, "embodiment": "x"} for source in mixture["sources"]]
    assert [source.embodiment_id for source in opened({**mixture, "sources": one}).sources] == [0, 0]


def test_pictures_of_different_size_need_image_size(mixture: dict, tmp_path: Path) -> None:
    make_set(tmp_path / "big", size=(40, 30), embodiment="panda")
    mixture["sources"].append({"name": "big", "shards": str(tmp_path / "big"), "weight": 1})
    with pytest.raises(ConfigError) as caught:
        opened(mixture)
    for word in ["sample.image_size", "20x16 in lift/cam0", "40x30 in big/cam0"]:
        assert word in str(caught.value)
    assert opened(mixture, image_size=24).layout.height == 24


def test_norm_groups_merge_statistics(tmp_path: Path) -> None:
    for name, shift in (("a", 0.0), ("b", 8.0)):
        make_set(
            tmp_path / name,
            episodes=[30, 20],
            change=lambda number, vectors, shift=shift: {k: v + np.float32(shift) for k, v in vectors.items()},
        )
    data = {
        "sources": [{"name": n, "shards": n, "weight": 1, "norm_group": "g"} for n in ("a", "b")],
        "sample": {"normalize": {"state": "mean_std", "action": "min_max"}},
    }
    catalog = open_catalog(MixtureConfig.from_dict(data, folder=tmp_path))
    rows = np.concatenate([source.set.shard(0).vectors["state"].astype(np.float64) for source in catalog.sources])
    for scale in catalog.scales["state"]:
        np.testing.assert_allclose(scale.centre, rows.mean(axis=0), rtol=1e-9)
        np.testing.assert_allclose(1 / scale.factor, rows.std(axis=0), rtol=1e-9)
    alone = [{**source, "norm_group": None} for source in data["sources"]]
    apart = open_catalog(MixtureConfig.from_dict({**data, "sources": alone}, folder=tmp_path))
    assert abs(apart.scales["state"][0].centre - apart.scales["state"][1].centre).min() > 7


def test_norm_group_of_different_widths(mixture: dict) -> None:
    for source in mixture["sources"]:
        source["norm_group"] = "g"
    with pytest.raises(ConfigError, match=r"norm_group.*state differs in width.*7 in lift, 14 in chunks"):
        opened(mixture, normalize={"state": "mean_std"})


def test_a_set_without_statistics(tmp_path: Path) -> None:
    make_set(tmp_path / "a", splits=["val"] * 3)
    data = {
        "sources": [{"name": "a", "shards": "a", "weight": 1, "split": "val"}],
        "sample": {"normalize": {"state": "mean_std"}},
    }
    with pytest.raises(ConfigError, match=r"source 'a': no statistics of 'state'.*normalize: \{state: none\}"):
        open_catalog(MixtureConfig.from_dict(data, folder=tmp_path))
    data["sources"][0]["normalize"] = {"state": "none"}
    assert open_catalog(MixtureConfig.from_dict(data, folder=tmp_path)).scales["state"][0].factor.tolist() == [1] * 4
