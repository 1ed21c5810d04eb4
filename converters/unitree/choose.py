"""Which kind of Unitree source it is."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

from wdsmix.converters.base import Source
from wdsmix.converters.lerobot import options as lerobot_options
from wdsmix.converters.lerobot.tree import tree_from
from wdsmix.converters.unitree.find import has_places
from wdsmix.converters.unitree.options import options_from
from wdsmix.converters.unitree.published import BareTree, check_only_raw, open_published
from wdsmix.converters.unitree.raw import RawSource

from wdsmix.errors import ConfigError, DataError

__all__ = ["open_source"]


def open_source(args: argparse.Namespace) -> Source:
    """Opens ``args.src``: raw recordings, a LeRobot dataset, or bare parquet files of one.

    Raises:
        ConfigError: an option is bad, or has no meaning for what is there.
        DataError: nothing that is known is there.
    """
    src = Path(args.src)
    remote = str(args.src).startswith("hf:") or bool(args.repo_id)
    if not remote and not src.exists():
        raise DataError("no such file or folder", path=src)
    options = options_from(args)
    if remote or (src / "meta" / "info.json").is_file() or _published(src):
        _only_raw(args)
        return open_published(tree_from(args), lerobot_options.options_from(args), options.robot)
    if src.suffix == ".json" or (src.is_dir() and has_places(src)):
        _only_published(args)
        return RawSource(src, options, workers=int(getattr(args, "workers", 1) or 1), quiet=_quiet(args))
    old = sorted(src.rglob("processed_episode_*.hdf5"))[:1] if src.is_dir() else []
    if old:
        raise DataError(
            "recordings of the old h1 and h1_2 branches (ACT-style HDF5) are not read by this family",
            path=src,
            found=old[0].name,
            hint="use `wdsmix convert hdf5` with a mapping file",
        )
    if src.is_dir() and not any(src.rglob("*.parquet")):
        raise DataError(
            "no recording",
            path=src,
            expected="data.json at most three folders down, meta/info.json, or parquet files",
            found=", ".join(sorted(entry.name for entry in src.iterdir())[:6]) or "an empty folder",
        )
    _only_raw(args)
    tree = BareTree(src)
    given = lerobot_options.options_from(args)
    declared = tree.info(options.robot or "Unitree_G1", given.fps)
    return open_published(tree, dataclasses.replace(given, info={**declared, **given.info}), options.robot)


def _published(src: Path) -> bool:
    """Whether a folder is a LeRobot dataset of any version, or the videos of one."""
    if not src.is_dir():
        return False
    if (src / "meta").is_dir() or (src / "meta_data").is_dir():
        return True
    return (src / "videos").is_dir() and not any(src.rglob("*.parquet"))


def _quiet(args: argparse.Namespace) -> bool:
    return bool(getattr(args, "quiet", False))


def _only_published(args: argparse.Namespace) -> None:
    given = {
        "--keep": args.keep not in (None, "all"),
        "--video-mismatch": args.video_mismatch != "nearest",
        "--bad-rows": args.bad_rows != "episode",
        "--info": args.info,
    }
    for option, there in given.items():
        if there:
            raise ConfigError("only with published sets, not with raw recordings (data.json)", where=option)


def _only_raw(args: argparse.Namespace) -> None:
    check_only_raw(
        {
            "--instruction": args.instruction,
            "--dedupe": args.dedupe,
            "--missing-picture": args.missing_picture == "fail",
            "--swap-hands": args.swap_hands,
            "--keep-failed": args.keep_failed,
        }
    )
