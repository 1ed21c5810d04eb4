"""The sequence itself. A change here is a breaking change: raise ORDER_VERSION and label it in CHANGELOG.md."""

from __future__ import annotations

import hashlib

import numpy as np
from helpers.orders import source_of

from wdsmix.mixture.hashing import hash64, key_of, permutation
from wdsmix.mixture.order import MixtureOrder


def test_hash_and_permutation():
    assert key_of(0, "lift", "blocks", 1) == GOLDEN["key"]
    assert [int(x) for x in hash64(7, np.arange(3))] == GOLDEN["hash"]
    assert permutation(42, 10).tolist() == GOLDEN["permutation"]


def test_first_steps_and_a_long_run():
    order = MixtureOrder(
        [source_of("lift", [40, 7, 31, 90, 2] * 9, weight=0.7), source_of("chunks", [60] * 8, weight=0.3)],
        seed=0,
        streams=4,
        window=128,
        block_bytes=16_000,
    )
    step = order.step(12)
    assert step.source.tolist() == GOLDEN["source"]
    assert step.row.tolist() == GOLDEN["row"]
    assert step.sample.tolist() == GOLDEN["sample"]
    digest = hashlib.sha256()
    for _ in range(500):
        step = order.step(12)
        digest.update(step.source.astype("<i4").tobytes() + step.row.astype("<i8").tobytes())
    assert digest.hexdigest() == GOLDEN["digest"]


GOLDEN: dict[str, object] = {
    "key": 5589167869634550321,
    "hash": [7191089600892374487, 309689372594955804, 16616101746815609346],
    "permutation": [4, 1, 6, 2, 8, 3, 9, 0, 7, 5],
    "source": [1, 0, 0, 0, 1, 0, 0, 1, 0, 0, 0, 0],
    "row": [139, 1317, 475, 1321, 181, 1304, 576, 12, 689, 857, 925, 1411],
    "sample": [2, 0, 6, 11, 5, 1, 7, 8, 9, 3, 10, 4],
    "digest": "f6499e414ee32a5cfffb002ddb15e4827aee0149be0656f71242d4a54cfffe35",
}
