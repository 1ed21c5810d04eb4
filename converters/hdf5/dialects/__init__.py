"""The structures that are known. To add one, add a module with ``DIALECTS``; nothing else changes."""

from __future__ import annotations

import importlib
import pkgutil
from functools import lru_cache

from wdsmix.converters.hdf5.layout import Dialect

__all__ = ["all_dialects", "described"]


@lru_cache(maxsize=1)
def all_dialects() -> dict[str, Dialect]:
    """Name -> dialect, in the order of detection."""
    found: list[Dialect] = []
    for module in pkgutil.iter_modules(__path__):
        found += importlib.import_module(f"{__name__}.{module.name}").DIALECTS
    return {dialect.name: dialect for dialect in sorted(found, key=lambda dialect: (dialect.rank, dialect.name))}


def described() -> str:
    """The dialects in words, with their defaults."""
    lines: list[str] = []
    for dialect in all_dialects().values():
        lines.append(f"{dialect.name}: {dialect.summary.removeprefix(dialect.name + ': ')}")
        facts = {
            "state": dialect.state,
            "action": dialect.action,
            "cameras": dialect.cameras,
            "frames/s": dialect.rate,
            "pairing": dialect.pairing,
            "refused": dialect.refusal,
        }
        lines += [f"  {name:<9} {words}" for name, words in facts.items() if words]
    return "\n".join(lines) + "\n"
