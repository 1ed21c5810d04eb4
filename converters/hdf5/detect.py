"""Which dialect a file is in: by structure, through its first episodes that hold anything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import islice

from wdsmix.converters.hdf5.dialects import all_dialects
from wdsmix.converters.hdf5.faults import Hdf5Error
from wdsmix.converters.hdf5.layout import Dialect
from wdsmix.converters.hdf5.mapping import TEMPLATE
from wdsmix.converters.hdf5.options import Hdf5Options
from wdsmix.converters.hdf5.safe import Tree, join

from wdsmix.errors import ConfigError

__all__ = ["UNKNOWN", "chosen", "detect"]

UNKNOWN = "unknown structure"
_LOOKED_AT = 16
"""Episodes that have a say: a stray or damaged one is outvoted, and then a fault of its own."""


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
    children = tree.children("/data")
    if tree.group("/data") is not None and not children:
        return None
    filled = (join("data", name) for name in children if _holds_something(tree, join("data", name)))
    views = list(islice(filled, _LOOKED_AT))
    found = _vote(tree, views or ["/"])
    if found is not None:
        return found
    if children and not views:
        return None
    lines = "\n".join(f"    {line}" for line in tree.lines()) or "    (nothing)"
    raise Hdf5Error(
        f"{UNKNOWN}; it holds:\n{lines}",
        path=str(tree.path),
        check="fields",
        hint=f"describe it with a mapping file (--mapping FILE.yaml) such as:\n{TEMPLATE}",
    )


def _vote(tree: Tree, views: Sequence[str]) -> Dialect | None:
    """The dialect that most views show (ties: the earlier one); each shows the first that fits it or the root.

    Raises:
        Hdf5Error: no view shows one, and one of them can't be looked at.
    """
    votes: Counter[str] = Counter()
    wrong: Hdf5Error | None = None
    for view in views:
        try:
            seen = next((d for d in all_dialects().values() if d.matches(tree, view) or d.matches(tree, "/")), None)
        except Hdf5Error as fault:
            wrong = wrong or fault
            continue
        if seen is not None:
            votes[seen.name] += 1
    if votes:
        return all_dialects()[votes.most_common(1)[0][0]]
    if wrong is not None:
        raise wrong
    return None


def _holds_something(tree: Tree, path: str) -> bool:
    try:
        return bool(tree.children(path))
    except Hdf5Error:
        return False
