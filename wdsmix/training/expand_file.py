"""Expand, from file to file: checkpoints of ``wdsmix train``, safetensors, and torch files that hold a state dict."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from wdsmix.errors import ConfigError, ConflictError, DataError, StorageError
from wdsmix.shards.files import write_atomic
from wdsmix.training.checkpoint import (
    FORMAT,
    checked_checkpoint,
    load_checkpoint,
    load_plain,
    misfits,
    save_checkpoint,
)
from wdsmix.training.expand import SIDES, Init, Rule, expand_checkpoint, expand_tensors, policy_rules

__all__ = ["expand_file"]

SAFETENSORS = ".safetensors"
LARGEST = 1 << 20
"""What a side may grow to."""


def expand_file(
    source: Path,
    out: Path,
    sizes: Mapping[str, int],
    *,
    init: Init = "mean",
    seed: int = 0,
    rules: Sequence[Rule] = (),
) -> dict[str, tuple[list[int], list[int]]]:
    """Grows a checkpoint and writes the result to a new file, whole or not at all.

    Args:
        source: A checkpoint, or the folder of a run (its latest one); safetensors by their ending, else a torch file.
        out: The new file; of the same kind.
        sizes: ``state``, ``action``, ``embodiment`` -> size to grow to.
        init: What new rows hold.
        seed: For ``normal``.
        rules: Which tensors grow; needed, and allowed, only for files that don't say which policy they are of.

    Returns:
        Name -> old and new shape of each tensor of the model that grew.

    Raises:
        ConfigError: no sizes, rules that don't fit, or a file of another kind.
        ConflictError: the new file exists, or a size would shrink.
        DataError: the file is damaged, or holds more than tensors and plain data.
        StorageError: the new file can't be written.
    """
    if not sizes:
        raise ConfigError("nothing to grow", expected="a new size of " + ", ".join(SIDES.values()))
    for side, size in sizes.items():
        if not 1 <= size <= LARGEST:
            raise ConfigError("bad size", where=SIDES[side], expected=f"1 to {LARGEST}", found=size)
    if out.exists():
        raise ConflictError("the output exists and is never written over", path=out, hint="name another file")
    kinds = {path.suffix == SAFETENSORS for path in (source, out)}
    if len(kinds) > 1:
        raise ConfigError(
            "input and output are of different kinds", path=out, expected=f"{SAFETENSORS} for both or none"
        )
    try:
        if source.suffix == SAFETENSORS:
            return _expand_safetensors(source, out, sizes, init, seed, rules)
        return _expand_torch(source, out, sizes, init, seed, rules)
    except (ConfigError, ConflictError) as error:
        error.path = error.path or str(source)
        raise
    except OSError as error:
        raise StorageError(f"can't write: {error}", path=out) from error


def _expand_torch(
    source: Path, out: Path, sizes: Mapping[str, int], init: Init, seed: int, rules: Sequence[Rule]
) -> dict[str, tuple[list[int], list[int]]]:
    content = load_checkpoint(source) if source.is_dir() else load_plain(source)
    if not isinstance(content, dict):
        raise ConfigError("not a state dict", path=source, expected="name -> tensor", found=type(content).__name__)
    if content.get("format") == FORMAT:
        if rules:
            raise ConfigError("the checkpoint says itself what may grow", where="--rule")
        checkpoint = checked_checkpoint(content, source)
        with misfits(source):
            grown = expand_checkpoint(checkpoint, sizes, init=init, seed=seed)
        save_checkpoint(out, grown)
        return _changed(checkpoint["model"], grown["model"])
    if not content or not all(isinstance(value, Tensor) for value in content.values()):
        raise ConfigError("neither a checkpoint of wdsmix nor a state dict", expected="name -> tensor")
    with misfits(source):
        tensors = expand_tensors(content, _needed(rules), sizes, init=init, seed=seed)
    buffer = io.BytesIO()
    torch.save(tensors, buffer)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(out, buffer.getvalue())
    return _changed(content, tensors)


def _expand_safetensors(
    source: Path, out: Path, sizes: Mapping[str, int], init: Init, seed: int, rules: Sequence[Rule]
) -> dict[str, tuple[list[int], list[int]]]:
    try:
        from safetensors import SafetensorError, safe_open
        from safetensors.torch import save
    except ImportError as error:
        raise ConfigError("safetensors is not installed", hint="pip install 'wdsmix[train]'") from error
    try:
        with safe_open(source, framework="pt") as file:
            metadata = dict(file.metadata() or {})
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
        policy = json.loads(metadata["policy"]) if "policy" in metadata else None
        if not isinstance(policy, dict | None):
            raise ValueError("its policy is not a mapping of keys")
    except FileNotFoundError as error:
        raise ConfigError("no such file", path=source) from error
    except (OSError, RecursionError, SafetensorError, ValueError) as error:
        raise DataError(f"can't be read as safetensors: {error}", path=source) from error
    if policy is not None:
        if rules:
            raise ConfigError("the file says itself what may grow", where="--rule")
        rules = policy_rules(policy)
        metadata["policy"] = json.dumps({**policy, **{SIDES[side]: size for side, size in sizes.items()}})
    with misfits(source):
        grown = expand_tensors(tensors, _needed(rules), sizes, init=init, seed=seed)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(out, save(grown, metadata=metadata or None))
    return _changed(tensors, grown)


def _needed(rules: Sequence[Rule]) -> Sequence[Rule]:
    if not rules:
        raise ConfigError(
            "the file does not say which policy it is of", where="--rule", hint="name what grows, as PATTERN=SIDE:AXIS"
        )
    return rules


def _changed(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> dict[str, tuple[list[int], list[int]]]:
    return {
        name: (list(old.shape), list(after[name].shape))
        for name, old in before.items()
        if old.shape != after[name].shape
    }
