"""LeRobot datasets v2.0, v2.1 and v3.0, from disk or from the hub, without the lerobot package."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wdsmix.converters.base import Source

__all__ = ["HELP", "configure", "source"]

HELP = """LeRobot datasets v2.0, v2.1 and v3.0, on disk or on the hub.

SRC is the folder that holds meta/info.json, or hf://ORGANISATION/NAME[@REVISION] for a repository of the hub. With
--repo-id, SRC is the folder that receives the repository's files (those already there are not fetched again).

State, action, reward and done come from observation.state (or state), action (or actions), next.reward and next.done;
columns that are split are joined by --state and --action, or as meta/modality.json says. Frames of a video belong to
the rows of an episode by position, never by time stamp; the time stamps are kept. Cameras: cam0 is the one whose name
has top, front, base, main or scene in it (or is image_0 or image2), cam1 the one with wrist, gripper or hand (or
image_1), the others follow; --camera cam0=KEY overrides. Depth cameras are left out unless --depth is given.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the family."""
    group = parser.add_argument_group("LeRobot")
    group.add_argument("--fps", type=float, metavar="N", help="frames per second, against what info.json declares")
    group.add_argument("--depth", action="store_true", help="keep depth cameras too, as 16-bit PNG in millimetres")
    group.add_argument(
        "--keep",
        default="all",
        metavar="KEY,KEY",
        help="other columns to keep: lists of numbers as vectors, the rest in each frame's JSON; all or none "
        "(default: %(default)s)",
    )
    group.add_argument(
        "--video-mismatch",
        choices=["nearest", "drop"],
        default="nearest",
        help="where a video has other than the episode's frames (one more or less is always taken): the frame nearest "
        "in time, if the times fit, or drop the episode; drop also refuses shared videos that lack frames somewhere "
        "(default: %(default)s)",
    )
    group.add_argument(
        "--bad-rows",
        choices=["episode", "row"],
        default="episode",
        help="rows with null, ragged or non-finite values cost their episode, or only themselves (%(default)s)",
    )
    group.add_argument("--info", metavar="FILE", help="JSON whose keys replace those of a broken meta/info.json")
    group = parser.add_argument_group("hub (needs the extra `hub`; HF_ENDPOINT, HF_TOKEN and HF_HUB_OFFLINE hold)")
    group.add_argument("--repo-id", metavar="ORG/NAME", help="dataset repository whose files SRC receives")
    group.add_argument("--revision", metavar="REV", help="branch, tag or commit (default: main)")
    group.add_argument("--cache-dir", metavar="DIR", help="with hf://: where files are kept (default: the hub's cache)")
    group.add_argument(
        "--evict-videos",
        action="store_true",
        help="delete each video that was fetched (and each data file, if they hold the pictures) after its episodes",
    )


def source(args: argparse.Namespace) -> Source:
    """Opens ``args.src``.

    Raises:
        ConfigError: an option is bad.
        DataError: no LeRobot dataset is there.
    """
    from wdsmix.converters.lerobot.dataset import LeRobotSource
    from wdsmix.converters.lerobot.options import options_from
    from wdsmix.converters.lerobot.tree import tree_from

    return LeRobotSource(tree_from(args), options_from(args))
