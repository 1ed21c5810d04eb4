"""What lies in the tars of a set, read without any code of the project."""

from __future__ import annotations

import tarfile
from pathlib import Path


def samples_of(folder: Path) -> dict[str, dict[str, bytes]]:
    """Sample key -> member suffix -> bytes, by tarfile."""
    found: dict[str, dict[str, bytes]] = {}
    for path in sorted(folder.glob("*.tar")):
        with tarfile.open(path) as archive:
            for member in archive:
                key, _, suffix = member.name.partition(".")
                found.setdefault(key, {})[suffix] = archive.extractfile(member).read()
    return found
