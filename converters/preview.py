"""``--preview``: a contact sheet of what a conversion stored, or of what a check read."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wdsmix.converters.base import ConvertOptions

from wdsmix.errors import ConfigError, DataError
from wdsmix.texts import counted

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from wdsmix.converters.base import Source
    from wdsmix.converters.isolate import Isolated

    from wdsmix.episode import Episode, EpisodeRef
    from wdsmix.report.sheet import SheetRow

__all__ = ["add_preview", "preview_path", "preview_set", "preview_source"]

_EPISODES = 6
_PATIENCE = 60.0
"""Seconds for the three moments of an episode; most take less than one."""
_ENDING = ".preview.png"


def add_preview(group: argparse._ArgumentGroup, *, beside: bool) -> None:
    """Adds ``--preview``.

    Args:
        group: Of the parser.
        beside: Whether the name may be left out, for a picture beside the set.
    """
    text = "write a contact sheet: first, middle and last pictures of a few episodes, with tasks and how they were read"
    if beside:
        text += f" (default name: OUT{_ENDING})"
        group.add_argument("--preview", nargs="?", const=Path(), type=Path, metavar="PNG", help=text)
    else:
        group.add_argument("--preview", type=Path, metavar="PNG", help=text)


def preview_path(given: Path | None, out: Path | None = None) -> Path | None:
    """Where the sheet goes; None: none is wanted.

    Args:
        given: Of the command line; empty: beside the set.
        out: Folder of the set.

    Raises:
        ConfigError: no picture's name, no such folder, or inside the set, whose files are all in its manifest.
    """
    from wdsmix.report.sheet import PICTURE_KINDS

    if given is None:
        return None
    path = given
    if given == Path() and out is not None:
        path = out.parent / (out.resolve().name + _ENDING)
    if path.suffix.lower() not in PICTURE_KINDS:
        raise ConfigError(
            "no kind of picture",
            where="--preview",
            expected=", ".join(PICTURE_KINDS),
            found=str(path),
            hint="give --preview after the paths, or its own picture's name",
        )
    where = path.resolve()
    if out is not None and out.resolve() in where.parents:
        raise ConfigError("a set holds the files of its manifest alone", path=path, where="--preview", hint="elsewhere")
    if out is not None and where.parent == out.resolve().parent:
        return path  # the folder is made with the set
    if not where.parent.is_dir():
        raise ConfigError("no such folder", path=where.parent, where="--preview")
    return path


def preview_set(folder: Path, path: Path) -> None:
    """Writes the sheet of a finished set.

    Raises:
        ConfigError: the file can't be written.
        DataError: the set is damaged.
    """
    from wdsmix.report.sheet import contact_sheet, write_picture
    from wdsmix.shards.reader import ShardSet

    opened = ShardSet(folder)
    try:
        write_picture(contact_sheet(opened, episodes=_EPISODES), path, "--preview")
    finally:
        opened.close()


def preview_source(source: Source, path: Path) -> list[str]:
    """Writes the sheet of a source: a few of its good episodes, read as a conversion would read them.

    They are read in a process of their own, which a crafted file may crash or keep busy: then the row says so.

    Returns:
        Which episodes ended the process, or were given up, and how.

    Raises:
        ConfigError: the file can't be written.
        DataError: no episode can be shown.
    """
    from wdsmix.converters.isolate import Isolated

    from wdsmix.report.sheet import SheetHead, camera_text, draw_sheet, settings_text, spread, write_picture

    good = [ref for ref in source.episodes() if ref.fault is None]
    info = source.describe()
    if not good:
        raise DataError("no good episode to show", where="--preview")
    with Isolated(_PATIENCE) as child:
        told: list[str] = []
        rows = [_row_there(child, source, good[k], told) for k in spread(len(good), _EPISODES)]
    sizes: dict[str, list[tuple[int, int]]] = {
        slot: sorted(
            {
                (int(pixels.shape[1]), int(pixels.shape[0]))
                for row in rows
                for pixels in row.pictures.get(slot, ())
                if pixels is not None
            }
        )
        for slot in info.cameras
    }
    head = SheetHead(
        title=f"{info.name}  {counted(sum(ref.frames for ref in good), 'frame')}, not converted",
        settings=settings_text(info.kind, info.fps, info.fps, info.details),
        cameras={
            slot: (camera.key, camera_text(slot, sizes[slot], info.details)) for slot, camera in info.cameras.items()
        },
        sizes=[size for found in sizes.values() for size in found],
    )
    write_picture(draw_sheet(head, rows), path, "--preview")
    return told


def _row_there(child: Isolated, source: Source, ref: EpisodeRef, told: list[str]) -> SheetRow:
    from wdsmix.report.sheet import SheetRow

    try:
        return child.call(_row, source, ref)
    except DataError as error:  # the process died, or took too long
        told.append(f"{_name(ref)}: {error.message}")
        return SheetRow(caption=error.message, origin=_name(ref), pictures={})


def _name(ref: EpisodeRef) -> str:
    return f"{ref.file}/{ref.id}" if ref.id else ref.file


def _row(source: Source, ref: EpisodeRef) -> SheetRow:
    from wdsmix.report.sheet import SheetRow

    try:
        with source.read(ref) as episode:
            count = len(episode)
            task = " / ".join(episode.tasks[:2]) or "no task"
            pictures = {slot: _pictures(episode, slot, count) for slot in episode.images}
    except DataError as error:
        return SheetRow(caption=f"can't be read: {error.message}", origin=_name(ref), pictures={})
    return SheetRow(caption=task, origin=f"{counted(count, 'frame')} · {_name(ref)}", pictures=pictures)


def _pictures(episode: Episode, slot: str, count: int) -> Sequence[npt.NDArray[Any] | None]:
    import numpy as np

    from wdsmix.imaging import decode_depth, decode_rgb, prepare
    from wdsmix.report.moments import moments

    picks = np.array(moments(count), np.int64)
    native = picks if episode.rows is None else episode.rows[picks]
    camera = episode.cameras[slot]
    shown: list[npt.NDArray[np.uint8 | np.uint16] | None] = [None] * len(picks)
    try:
        for k, image in enumerate(episode.images[slot].read(native.astype(np.int64))):
            data = prepare(image, camera, ConvertOptions())[0]
            shown[k] = decode_depth(data) if camera.kind == "depth" else decode_rgb(data)
    except DataError:
        pass  # the check's own table names it; the cell stays empty
    return shown
