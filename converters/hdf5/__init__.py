"""HDF5 robot datasets: detection by structure, safe reading, one dialect a module."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wdsmix.converters.base import Source

__all__ = ["HELP", "SPLIT_BY", "configure", "source"]

HELP = """HDF5 files: platform exports, simulators, ALOHA and other robots, and others by a mapping file.

SRC is one file or a folder; each file is read by its own structure. Defaults of each dialect:

  dialect        state                               action      cameras                frames/s
  platform       observation.state, and              action      observation.images.*   30 (warns)
                 observation.gripper where all have it
  robomimic,     robot<i>_eef_pos, _eef_quat,        actions     obs/*_image            control_freq,
  mimicgen,      _gripper_qpos (of obs)                                                 else 20 (warns)
  robocasa
  libero         ee_states, gripper_states           actions     obs/*_rgb, turned over control_freq, else 20
  isaaclab,      joint_pos, else eef_pos, eef_quat,  actions     pictures in obs        20 (warns)
  leisaac        gripper_pos, else all of obs
  maniskill      agent/qpos, agent/qvel, else obs    actions     sensor_data/*/rgb,     control_freq of the JSON
                                                                 image/*/rgb            beside it, else 20
  maniskill-raw  env_states (--allow-no-camera)      actions     none                   (the same)
  minari         all numbers in observations         actions     pictures in there      20 (warns)
  robohive       observations                        actions     visual_dict/rgb:*      from time, else 25
  d4rl           observations (--allow-no-camera)    actions     none                   20 (warns)
  aloha          observations/qpos                   action      observations/images/*  50; Cobot Magic and
                                                                                        Unitree 30, RDT 25
  fastumi        qpos of each robot_<i>              action      images/* of each       20
  television     observation.state                   qpos_action observation.image.*    60
  robotwin       state/*_{arm,ee}_joint_states       action/*    vision/*/colors        frequency, else 16.67
  robotwin-legacy
                 joint_action/*_{arm,gripper}        of the next observation/*/rgb      16.67
                                                     row
  robomind       puppet/joint_position*, else        master/*,   observations/          30
                 franka/joint_position               else next   rgb_images/*
  agilex         arm/jointStatePosition/puppet*      master*     camera/color/*         30
  droid          joint_positions, gripper_position   action/     recordings/MP4/*.mp4   15
                 of observation/robot_state          (the same)
  agibot         state/{joint,effector,head,waist}/  action/     videos/*.mp4 of the    30
                 position                            (the same)  episode's observations
  robosuite-raw  states (with --allow-no-camera)     actions     none                   20 (warns)
  mapping        what --mapping FILE.yaml says

Depth cameras are left out. --state and --action take keys of the episode (of obs or observations too).
"""
SPLIT_BY = "file"


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the family."""
    group = parser.add_argument_group("HDF5")
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
