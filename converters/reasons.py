"""Why an episode was dropped, in words that are the same on every machine: they go into the manifest."""

from __future__ import annotations

import copy
import re
from pathlib import Path

from wdsmix.errors import WdsmixError
from wdsmix.texts import printable

__all__ = ["reason_of", "scrub"]

_ADDRESS = re.compile(r"0x[0-9a-fA-F]{6,}")
_LONGEST = 500


def scrub(text: str, root: str | Path | None) -> str:
    """Takes this machine out of a text: the source's folder, memory addresses, line breaks, what does not print."""
    if root is not None:
        for spelled in sorted(
            {str(root), str(Path(root).absolute()), str(Path(root).resolve())}, key=len, reverse=True
        ):
            if len(spelled) > 1:
                text = text.replace(f"{spelled}/", "").replace(spelled, Path(spelled).name)
    text = printable(" ".join(_ADDRESS.sub("0x...", text).split()))
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def reason_of(error: WdsmixError, root: str | Path | None) -> str:
    """The reason that an error is, without the file's path (the record of a drop has it)."""
    bare = copy.copy(error)
    bare.path = None
    return scrub(str(bare), root)
