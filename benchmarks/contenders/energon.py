"""megatron-energon: a blend of crude datasets, each with a cooker."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import yaml
from megatron.energon import (
    Cooker,
    DefaultTaskEncoder,
    Sample,
    WorkerConfig,
    basic_sample_keys,
    edataclass,
    get_savable_loader,
    get_train_dataset,
    stateless,
)
from megatron.energon.flavors.webdataset.prepare import WebdatasetPreparator

from benchmarks.contenders.common import collate_tuned, documented
from benchmarks.contenders.webdataset import raw_of, write_tars
from benchmarks.settings import BATCH, Contender
from benchmarks.store import SOURCES, Store

__all__ = ["batches", "view", "write"]

_FIELDS = ("images", "state", "state_mask", "action", "action_mask", "task", "source", "row")
_DATASET = "__module__: megatron.energon\n__class__: CrudeWebdataset\n"


def write(store: Store, folder: Path) -> None:
    """The same tars as webdataset's, with energon's index, and a blend over them."""
    twin = folder.parent / folder.name.replace("energon", "webdataset")
    if (twin / ".complete").is_file():
        for path in twin.glob("*/*.tar"):
            (folder / path.parent.name).mkdir(exist_ok=True)
            os.link(path, folder / path.parent.name / path.name)
    else:
        write_tars(store, folder)
    for source in SOURCES:
        inside = folder / source.name
        WebdatasetPreparator.prepare_dataset(
            inside, sorted(path.name for path in inside.glob("*.tar")), split_parts_ratio=[("train", 1.0)], workers=1
        )
        (inside / ".nv-meta" / "dataset.yaml").write_text(_DATASET)
    blend = [{"path": f"./{source.name}", "weight": source.weight} for source in SOURCES]
    (folder / "blend.yaml").write_text(
        yaml.safe_dump(
            {
                "__module__": "megatron.energon",
                "__class__": "MetadatasetV2",
                "splits": {"train": {"blend": blend}},
            }
        )
    )


@edataclass
class _Frame(Sample):
    images: torch.Tensor
    state: torch.Tensor
    state_mask: torch.Tensor
    action: torch.Tensor
    action_mask: torch.Tensor
    task: str
    source: int
    row: int


@edataclass
class _Raw(Sample):
    raw: dict[str, Any]


@stateless
def _cook(sample: dict[str, Any]) -> _Raw:
    return _Raw(**basic_sample_keys(sample), raw=raw_of(sample))


class _Documented(DefaultTaskEncoder):
    # Decoding comes after the shuffle buffer, in encode_sample: a buffer of pixels would cost gigabytes.
    decoder = None
    cookers = (Cooker(_cook),)

    @stateless
    def encode_sample(self, sample: _Raw) -> _Frame:
        facts = documented(sample.raw)
        tensors = {name: torch.as_tensor(value) for name, value in facts.items() if hasattr(value, "dtype")}
        return _Frame.derive_from(sample, **{**facts, **tensors})


class _Tuned(DefaultTaskEncoder):
    decoder = None
    cookers = (Cooker(_cook),)

    @stateless
    def batch(self, samples: list[_Raw]) -> dict[str, Any]:
        return collate_tuned([sample.raw for sample in samples])

    @stateless
    def encode_batch(self, batch: dict[str, Any]) -> dict[str, Any]:
        return batch


def batches(contender: Contender, folder: Path) -> Iterable[Any]:
    """As documented: decode in encode_sample (Pillow), its batching; tuned: bytes up to the batch function."""
    dataset = get_train_dataset(
        folder / "blend.yaml",
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=contender.workers, seed_offset=contender.seed),
        batch_size=BATCH,
        shuffle_buffer_size=1000,
        max_samples_per_sequence=100,
        task_encoder=_Documented() if contender.form == "docs" else _Tuned(),
    )
    return get_savable_loader(dataset)


def view(batch: Any, store: Store) -> dict[str, Any]:
    """A batch as a mapping."""
    return batch if isinstance(batch, dict) else {name: getattr(batch, name) for name in _FIELDS}
