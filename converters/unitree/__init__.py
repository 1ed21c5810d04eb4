"""Unitree recordings: raw teleoperation episodes, and the published families of LeRobot datasets."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from wdsmix.converters import lerobot

if TYPE_CHECKING:
    from wdsmix.converters.base import Source

__all__ = ["HELP", "configure", "source"]

HELP = """Unitree recordings: raw data.json episodes, and published LeRobot sets (vectors, split keys, whole body).

SRC is a folder with recordings (data.json and colors/, up to three folders down), or one data.json; or a LeRobot
dataset, as `wdsmix convert lerobot` takes it (hf:// too); or parquet files of one that came without meta/.

Raw: the state and the action are left_arm, right_arm, left_ee and right_ee (qpos); what else has numbers (body, qvel,
torque) becomes a further vector, body or action_body; --state left_arm,right_arm.qvel chooses. Camera slots: color_0
is cam0; cam1 is the left wrist (color_2 of four cameras, color_1 of three). A frame that lacks one picture is left out
for all cameras. Split keys: left_arm, right_arm, left_gripper, right_gripper, of observation and action each.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the family, and those of LeRobot datasets."""
    group = parser.add_argument_group("Unitree")
    group.add_argument("--robot", metavar="TYPE", help="robot type, such as Unitree_G1_Dex3: names of joints, a check")
    group.add_argument("--instruction", metavar="TEXT", help="raw: the task, instead of what data.json says")
    group.add_argument("--dedupe", action="store_true", help="raw: leave out frames whose pictures all repeat")
    group.add_argument(
        "--missing-picture",
        choices=["drop", "fail"],
        default="drop",
        help="raw: a frame that lacks one of its pictures costs itself, or its episode (default: %(default)s)",
    )
    group.add_argument(
        "--swap-hands", choices=["state", "action", "both"], help="raw: left_ee and right_ee were exchanged in these"
    )
    group.add_argument("--keep-failed", action="store_true", help="raw: also take episodes marked FAILED")
    lerobot.configure(parser)


def source(args: argparse.Namespace) -> Source:
    """Opens ``args.src``.

    Raises:
        ConfigError: an option is bad, or has no meaning for what is there.
        DataError: nothing that is known is there.
    """
    from wdsmix.converters.unitree.choose import open_source

    return open_source(args)
