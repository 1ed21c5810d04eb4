"""wdsmix: robot datasets to WebDataset shards, and weighted mixtures of shards to PyTorch.

Public names load on first use, so that a command which needs no torch does not wait for it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wdsmix.converters.base import ConvertOptions, Source
    from wdsmix.converters.run import convert
    from wdsmix.episode import Episode, EpisodeRef
    from wdsmix.mixture.config import MixtureConfig, load_mixture
    from wdsmix.mixture.evaluate import EvaluationDataset
    from wdsmix.mixture.loader import MixtureDataset
    from wdsmix.shards.reader import ShardSet

__all__ = [
    "ConvertOptions",
    "Episode",
    "EpisodeRef",
    "EvaluationDataset",
    "MixtureConfig",
    "MixtureDataset",
    "ShardSet",
    "Source",
    "__version__",
    "convert",
    "load_mixture",
]

__version__ = "0.1.0"

_HOME = {
    "ConvertOptions": "wdsmix.converters.base",
    "Source": "wdsmix.converters.base",
    "convert": "wdsmix.converters.run",
    "Episode": "wdsmix.episode",
    "EpisodeRef": "wdsmix.episode",
    "MixtureConfig": "wdsmix.mixture.config",
    "load_mixture": "wdsmix.mixture.config",
    "EvaluationDataset": "wdsmix.mixture.evaluate",
    "MixtureDataset": "wdsmix.mixture.loader",
    "ShardSet": "wdsmix.shards.reader",
}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'wdsmix' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)
