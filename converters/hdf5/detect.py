"""Which dialect a file is in: by structure, through its first episode that holds anything."""

from __future__ import annotations

from wdsmix.converters.hdf5.dialects import all_dialects
from wdsmix.converters.hdf5.faults import Hdf5Error
from wdsmix.converters.hdf5.layout import Dialect
from wdsmix.converters.hdf5.mapping import TEMPLATE
from wdsmix.converters.hdf5.options import Hdf5Options
from wdsmix.converters.hdf5.safe import Tree, join

from wdsmix.errors import ConfigError

__all__ = ["UNKNOWN", "chosen", "detect"]

UNKNOWN = "unknown structure"


def chosen(options: Hdf5Options) -> Dialect | None:
    """The dialect that the options name, or None to go by structure.

    Raises:
        ConfigError: there is no such dialect.
    """
    name = "mapping" if options.mapping is not None else options.dialect
    if not name:
        return None
    known = all_dialects()
    if name not in known:
        usable = ", ".join(key for key, dialect in known.items() if dialect.layout is not None)
        raise ConfigError("unknown dialect", where="--dialect", expected=f"one of: {usable}", found=name)
    return known[name]


def detect(tree: Tree, options: Hdf5Options) -> Dialect | None:
    """The dialect of an open file; None: a ``/data`` group without a single child, hence no episodes.

    Raises:
        Hdf5Error: unknown structure, with the tree and a template of a mapping file.
        ConfigError: ``--dialect`` names none.
    """
    named = chosen(options)
    if named is not None:
        return named
    views, children = ["/"], tree.children("/data")
    if tree.group("/data") is not None and not children:
        return None
    first = next((name for name in children if _holds_something(tree, join("data", name))), None)
    if first is not None:
        views.insert(0, join("data", first))
    for dialect in all_dialects().values():
        if any(dialect.matches(tree, view) for view in views):
            return dialect
    if children and first is None:
        return None
    lines = "\n".join(f"    {line}" for line in tree.lines()) or "    (nothing)"
    raise Hdf5Error(
        f"{UNKNOWN}; it holds:\n{lines}",
        path=str(tree.path),
        check="fields",
        hint=f"describe it with a mapping file (--mapping FILE.yaml) such as:\n{TEMPLATE}",
    )


def _holds_something(tree: Tree, path: str) -> bool:
    try:
        return bool(tree.children(path))
    except Hdf5Error:
        return False
