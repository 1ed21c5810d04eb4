"""A checkpoint's weights as a safetensors file, for whoever serves the policy."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from wdsmix.errors import ConfigError
from wdsmix.shards.files import write_atomic

__all__ = ["export_safetensors"]


def export_safetensors(path: Path, checkpoint: Mapping[str, Any]) -> None:
    """Writes the averaged weights, or the last ones where none were kept, with all that is needed to use them.

    The file's metadata hold, as JSON: ``policy`` (its configuration), ``embodiments``, ``normalization`` (as in the
    checkpoint, tensors as lists) and ``step``.

    Raises:
        ConfigError: safetensors is not installed.
    """
    try:
        from safetensors.torch import save
    except ImportError as error:
        raise ConfigError(
            "safetensors is not installed", where="--safetensors", hint="pip install 'wdsmix[train]'"
        ) from error
    weights = checkpoint["model"] if checkpoint["ema"] is None else checkpoint["ema"]["model"]
    metadata = {key: json.dumps(_plain(checkpoint[key])) for key in ("policy", "embodiments", "normalization", "step")}
    tensors = {name: value.detach().clone().contiguous() for name, value in weights.items()}
    write_atomic(path, save(tensors, metadata=metadata))


def _plain(value: Any) -> Any:
    """Tensors as lists; numbers that JSON lacks as text."""
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    if hasattr(value, "tolist"):
        return value.tolist()
    return str(value) if value in (float("inf"), float("-inf")) else value
