"""The structures that are known. To add one, add a module with ``DIALECTS``; nothing else changes."""

from __future__ import annotations

import importlib
import pkgutil
from functools import lru_cache

from wdsmix.converters.hdf5.layout import Dialect

__all__ = ["all_dialects"]


@lru_cache(maxsize=1)
def all_dialects() -> dict[str, Dialect]:
    """Name -> dialect, in the order of detection."""
    found: list[Dialect] = []
    for module in pkgutil.iter_modules(__path__):
        found += importlib.import_module(f"{__name__}.{module.name}").DIALECTS
    return {dialect.name: dialect for dialect in sorted(found, key=lambda dialect: (dialect.rank, dialect.name))}
