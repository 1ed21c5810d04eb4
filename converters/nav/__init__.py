"""Navigation datasets: GNM/ViNT/NoMaD folders, RECON, VAMOS, FrodoBots."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from wdsmix.errors import ConfigError

if TYPE_CHECKING:
    from wdsmix.converters.base import Source

__all__ = ["HELP", "configure", "source"]

HELP = """Navigation data: GNM/ViNT/NoMaD folders, RECON HDF5, VAMOS parquet, FrodoBots rides.

SRC is the folder of a dataset, or one RECON or VAMOS file; the layout is told by what is there:

  layout     recognised by                          frames/s       picture
  gnm        numbered JPEGs and traj_data.pkl       4 (warns)      image
  recon      *.hdf5 with jackal/position and /yaw   4 (warns)      rgb_left (or rgb_right)
  vamos      parquet with trajectory_3d             none           image
  frodobots  ride folders with control_data_*.csv   measured       front

The state is [x, y, yaw] in m and rad; the action is [dx, dy, dyaw], the step to the next frame seen from the robot
(x forward, y left), 0 in the last frame. The mixture makes waypoints of it (action: waypoints). VAMOS rows have no
poses: each is a frame with its future path, K points x_1, y_1 ... as the action. Pickles are never run.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the family."""
    group = parser.add_argument_group("navigation")
    group.add_argument("--fps", type=float, metavar="N", help="frames per second of the recording (default: above)")
    group.add_argument(
        "--spacing",
        type=float,
        metavar="M",
        help="metres between neighbouring frames of the recording, by which waypoints are divided "
        "(metric_waypoint_spacing; default: known by the dataset's name, else measured)",
    )
    group.add_argument(
        "--stride",
        type=int,
        default=1,
        metavar="N",
        help="keep every N-th frame, with steps from one to the next (--hz can't: steps of a turning robot don't add)",
    )
    group.add_argument(
        "--strict", action="store_true", help="reject any difference in the counts of pictures and poses"
    )
    group.add_argument(
        "--splits",
        metavar="DIR",
        help="folder with train/traj_names.txt and test/traj_names.txt; needs --split-by source",
    )
    group.add_argument("--path-points", type=int, default=5, metavar="K", help="VAMOS: points of a path (%(default)s)")
    group.add_argument("--task", action="append", metavar="TEXT", help="VAMOS: only rows whose text holds TEXT")
    group.add_argument("--instruction", metavar="TEXT", help="task of trajectories that carry no language")


def source(args: argparse.Namespace) -> Source:
    """Opens ``args.src``.

    Raises:
        ConfigError: an option is bad.
        DataError: there is no such folder.
    """
    from pathlib import Path

    from wdsmix.converters.nav.options import options_from
    from wdsmix.converters.nav.reader import NavSource

    if args.splits and getattr(args, "split_by", "source") != "source":
        raise ConfigError("lists of a split are for --split-by source", where="--splits", hint="add --split-by source")
    return NavSource(
        Path(args.src),
        options_from(args),
        splits=Path(args.splits) if args.splits else None,
        quiet=bool(getattr(args, "quiet", False)),
    )
