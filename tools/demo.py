"""``wdsmix demo``: the main job from end to end, offline, on raw sources that it makes itself."""

from __future__ import annotations

import argparse
import importlib.util
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from wdsmix.errors import ConflictError

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["HELP", "configure", "run"]

HELP = """Make small raw sources, convert, validate and stream them as a mixture.

Writes to OUT (default demo-out): raw/ (HDF5 in three layouts, a LeRobot dataset with videos, Unitree recordings, a
navigation dataset), sets/ (shard sets) and mixture.yaml. Offline, under a minute. Every command that it runs is shown,
to be run again by hand. Without PyAV (the extra `lerobot`) the videos, and that source, are left out."""

MARKER = ".wdsmix-demo"
COMMON = ["--image-size", "128", "--frames-per-shard", "200", "--workers", "2"]
SETS: dict[str, list[str]] = {
    "lift": ["hdf5", "--split-by", "source", "--embodiment", "panda"],
    "chunks": [
        "hdf5",
        "--split-by",
        "file",
        "--val-fraction",
        "0.25",
        "--fps",
        "30",
        "--hz",
        "15",
        "--embodiment",
        "dual_arm",
    ],
    "aloha": ["hdf5", "--val-fraction", "0.25", "--hz", "25", "--embodiment", "aloha"],
    "pick": ["lerobot", "--val-fraction", "0.25"],
    "g1": ["unitree", "--val-fraction", "0.25", "--robot", "Unitree_G1_Dex1"],
    "drive": ["nav", "--split-by", "source", "--splits", "{raw}/drive-splits", "--fps", "4", "--embodiment", "rover"],
}
"""Set -> family and options of its conversion."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    parser.add_argument("out", nargs="?", default="demo-out", type=Path, metavar="OUT")
    parser.add_argument("--steps", type=int, default=40, help="batches to stream (default 40)")


def run(args: argparse.Namespace) -> int:
    """Runs the demo; the exit code of the first command that fails, else 0."""
    from rich.console import Console

    started = time.monotonic()
    console = Console(highlight=False)
    out: Path = args.out
    names = list(SETS)
    if importlib.util.find_spec("av") is None:
        names.remove("pick")
        console.print(
            "[yellow]PyAV is not installed: the LeRobot dataset with videos (pick) is left out; "
            "pip install 'wdsmix\\[lerobot]' brings it.[/yellow]",
            soft_wrap=True,
        )
    _prepare(out, names)
    raw, sets = out / "raw", out / "sets"
    console.print("Making raw sources: HDF5 (robomimic, a platform export, ALOHA), LeRobot, Unitree, navigation ...")
    _make_raw(raw, names)
    commands = [
        ["check", "hdf5", f"{raw}/chunks"],
        *(_convert(name, raw, sets) for name in names),
        *(["validate", f"{sets}/{name}", "--level", "full"] for name in names),
        ["inspect", f"{sets}/chunks"],
        ["mix", "init", *(f"{sets}/{name}" for name in names), "--out", f"{out}/mixture.yaml"],
        ["mix", "plan", f"{out}/mixture.yaml"],
        ["mix", "run", f"{out}/mixture.yaml", "--steps", str(args.steps), "--batch-size", "32"],
    ]
    for command in commands:
        code = _shown(console, command)
        if code:
            console.print(f"[red]wdsmix {command[0]} ended with exit code {code}[/red]")
            return code
    console.print(
        f"\nDone in {time.monotonic() - started:.0f} s. Shard sets lie in {sets}, the mixture in {out}/mixture.yaml."
    )
    return 0


def _convert(name: str, raw: Path, sets: Path) -> list[str]:
    family, *options = SETS[name]
    return ["convert", family, f"{raw}/{name}", f"{sets}/{name}", *(o.format(raw=raw) for o in options), *COMMON]


def _prepare(out: Path, names: Sequence[str]) -> None:
    if out.exists():
        if not out.is_dir():
            raise ConflictError("there is a file in the way", path=out, hint="name a folder")
        if not (out / MARKER).is_file() and any(out.iterdir()):
            raise ConflictError("the folder is not empty and not from an earlier demo", path=out, hint="name another")
        shutil.rmtree(out)
    for folder in (*(f"raw/{name}" for name in names), "sets"):
        (out / folder).mkdir(parents=True)
    (out / MARKER).touch()


def _make_raw(raw: Path, names: Sequence[str]) -> None:
    from wdsmix.tools.demo_data import write_aloha, write_platform, write_robomimic
    from wdsmix.tools.demo_robots import write_lerobot, write_navigation, write_unitree

    write_robomimic(raw / "lift" / "lift.hdf5", episodes=8, frames=60, size=128)
    write_platform(raw / "chunks", chunks=4, episodes=3, frames=60, size=160)
    write_aloha(raw / "aloha", episodes=8, frames=100, size=160)
    if "pick" in names:
        write_lerobot(raw / "pick", episodes=8, frames=60, size=160)
    write_unitree(raw / "g1", episodes=8, frames=60, size=160)
    write_navigation(raw / "drive", raw / "drive-splits", trajectories=12, frames=40, size=120)


def _shown(console: Console, command: Sequence[str]) -> int:
    from rich.markup import escape

    from wdsmix.cli import main

    console.print(f"\n[bold]$ wdsmix {escape(' '.join(command))}[/bold]", soft_wrap=True)
    sys.stdout.flush()
    return main(command)
