"""HDF5 robot datasets: detection by structure, safe reading, one dialect a module."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wdsmix.converters.base import Source

__all__ = ["HELP", "SPLIT_BY", "configure", "source"]

HELP = """HDF5 files: platform exports, simulators, ALOHA and other robots, and others by a mapping file.

SRC is one file or a folder; each file is read by its own structure. --dialects lists those that are known, with the
state, action, cameras and rate of each. Depth cameras are left out. --state and --action take keys of the episode (of
obs or observations too).
"""
SPLIT_BY = "file"


class _List(argparse.Action):
    """Prints what is known of each dialect."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: object, values: object, option_string: str | None = None
    ) -> None:
        from wdsmix.converters.hdf5.dialects import described

        sys.stdout.write(described())
        parser.exit()


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the family."""
    group = parser.add_argument_group("HDF5")
    group.add_argument("--dialects", action=_List, nargs=0, help="list the dialects with their defaults, and exit")
    group.add_argument("--dialect", metavar="NAME", help="read every file as this dialect (default: by its structure)")
    group.add_argument("--mapping", metavar="FILE", help="YAML file that describes episodes, state, action and cameras")
    group.add_argument("--fps", type=float, metavar="N", help="frames per second of the recordings (default: above)")
    group.add_argument(
        "--gripper",
        choices=["auto", "append", "ignore"],
        default="auto",
        help="platform: append observation.gripper to the state; auto: where all episodes have it alike "
        "(default: %(default)s)",
    )
    group.add_argument("--min-score", type=float, metavar="X", help="only episodes with this quality score or a better")
    group.add_argument(
        "--task",
        action="append",
        metavar="TEXT",
        help="only episodes whose task (or task_zh) contains TEXT, or matches it if it has * or ?; repeatable",
    )
    group.add_argument(
        "--instruction",
        metavar="TEXT",
        help="task of episodes that carry no language; {folder} and {file} in it stand for the names of the file's "
        "folder and of the file",
    )
    group.add_argument(
        "--instructions",
        metavar="FILE",
        help="tasks by the name of an episode, file or folder, or by a pattern of paths, whatever the files say: JSON "
        "{name: text}, or CSV with the columns task and instruction",
    )
    group.add_argument(
        "--instruction-key",
        metavar="KEY",
        help="which text of a file of instructions beside the episode, such as simplified_instruction or unseen",
    )
    group.add_argument("--mask", metavar="KEY", help="robomimic: only the demonstrations of mask/KEY")
    group.add_argument(
        "--jpeg-order",
        choices=["rgb", "bgr"],
        help="colour order of raw pictures, or that a plain decode of encoded ones gives (default: the dialect's; it "
        "goes into the manifest)",
    )
    group.add_argument(
        "--image-flip", choices=["none", "vertical", "rot180"], help="undo pictures that are stored upside down"
    )
    group.add_argument(
        "--obs-shift",
        type=int,
        choices=[-1, 0, 1],
        default=0,
        help="the action of a row goes with the observation so many rows later; -1 where a recorder stored the "
        "observation after the action, as LIBERO's released files do (default: %(default)s)",
    )
    group.add_argument(
        "--failed",
        choices=["keep", "drop"],
        help="what becomes of attempts that the source calls failed (default: keep; isaaclab: drop)",
    )
    group.add_argument("--raw-size", metavar="WxH", help="size of raw pictures that are stored flat, such as 640x480")
    group.add_argument(
        "--on-length-mismatch",
        choices=["drop", "error", "truncate", "index-resample"],
        default="drop",
        help="an episode whose streams have unequal rows is dropped, ends the run, is cut to the shortest (small "
        "differences only), or is stretched to the action by nearest index (default: %(default)s)",
    )
    group.add_argument(
        "--length-tolerance", type=int, default=2, metavar="N", help="rows that truncate may cut (%(default)s)"
    )


def source(args: argparse.Namespace) -> Source:
    """Opens ``args.src``.

    Raises:
        ConfigError: an option is bad.
    """
    from pathlib import Path

    from wdsmix.converters.hdf5.detect import chosen
    from wdsmix.converters.hdf5.options import options_from
    from wdsmix.converters.hdf5.reader import Hdf5Source

    options = options_from(args)
    chosen(options)
    return Hdf5Source(
        Path(args.src),
        options,
        workers=int(getattr(args, "workers", 0) or 0),
        quiet=bool(getattr(args, "quiet", False)),
    )
