"""``wdsmix index``: makes a shard set of WebDataset tars that something else wrote."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from wdsmix.texts import counted

if TYPE_CHECKING:
    from wdsmix.manifest import Manifest

__all__ = ["HELP", "configure", "run"]

HELP = """Adopt WebDataset tars: write the side files of a shard set beside them.

Every *.tar in DIR becomes a shard; the tars are only read. Written: a frame table per tar, index.parquet, stats.json
and manifest.json. What becomes of the members of a sample:

  .jpg .jpeg .png .webp   camera slots cam0, cam1 ... in order of their names, or as --camera says
  .npy                    one number or one dimension of numbers: a vector, as float32; NAME.npy becomes NAME
  .json                   field task, language or instruction: the task; timestamp: seconds
  .txt                    the task, where the JSON has none (also .task.txt, .language.txt, .instruction.txt)
  anything else           ignored and named in a warning; pickles are never loaded

Which samples make an episode:

  --episode-from REGEX        searched in the key; group "episode", else the first group; group "frame" is checked
                              to ascend and gives the time (frame / hz)
  --episode-from json:FIELD   field of the sample's JSON (a.b for nested ones)
  neither                     each sample is an episode of one frame

The frames of an episode must follow each other in one tar. Ids that are different whole numbers are kept as episode
numbers; others are numbered, and `ShardSet.episode("a.tar/ID")` finds them.
Tars whose names begin with train-, val- or test- form that split, others train.

example: wdsmix index DIR --episode-from '(?P<episode>.+)_(?P<frame>[0-9]+)$' --hz 10 --vector state=qpos.npy
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    parser.add_argument("folder", metavar="DIR", help="folder of the tars")
    parser.add_argument("--episode-from", default="", metavar="RULE", help="REGEX on the key, or json:FIELD")
    parser.add_argument("--split-from", default="", metavar="REGEX", help="on the tar's name; its first group")
    parser.add_argument("--camera", action="append", default=[], metavar="SLOT=SUFFIX", help="such as cam0=img.jpg")
    parser.add_argument("--vector", action="append", default=[], metavar="NAME=SUFFIX", help="such as state=qpos.npy")
    parser.add_argument("--hz", type=float, default=0.0, help="frames per second (by the timestamps, else 1)")
    parser.add_argument("--name", default="", help="name of the set (the folder's)")
    parser.add_argument("--embodiment", default="", help="robot (the set's name)")
    parser.add_argument("--licence", default="", help="licence of the data")
    parser.add_argument("--jobs", type=int, default=0, metavar="N", help="processes, one tar each (0: the CPUs)")
    parser.add_argument("--force", action="store_true", help="index again what was indexed before")
    parser.add_argument("--json", action="store_true", help="print a summary as JSON")


def run(args: argparse.Namespace) -> int:
    """Adopts the tars and says what became of them."""
    import json
    import os
    import sys
    from contextlib import ExitStack

    from wdsmix.errors import ConfigError
    from wdsmix.progress import Progress
    from wdsmix.shards.adopt import AdoptOptions, adopt

    if args.jobs < 0:
        raise ConfigError("bad value", where="--jobs", expected="0 or more", found=args.jobs)
    options = AdoptOptions(
        episode_from=args.episode_from,
        split_from=args.split_from,
        name=args.name,
        embodiment=args.embodiment,
        licence=args.licence,
        hz=args.hz,
        cameras=_pairs("--camera", args.camera),
        vectors=_pairs("--vector", args.vector),
        force=args.force,
        jobs=args.jobs or min(len(os.sched_getaffinity(0)), 16),
    )
    with ExitStack() as stack:

        def progress(label: str, tars: int) -> Progress:
            stack.close()  # ends the one before
            return stack.enter_context(Progress(tars, "tars", label, quiet=args.json))

        manifest = adopt(args.folder, options, progress=lambda label, tars: progress(label, tars).advance)
    if args.json:
        sys.stdout.write(json.dumps(_summary(manifest), indent=1, ensure_ascii=False) + "\n")
    else:
        _show(manifest)
    return 0


def _pairs(option: str, texts: list[str]) -> dict[str, str]:
    from wdsmix.errors import ConfigError

    made: dict[str, str] = {}
    for text in texts:
        name, equals, suffix = text.partition("=")
        if not (name and equals and suffix) or name in made:
            raise ConfigError("bad or repeated value", where=option, expected="NAME=SUFFIX", found=text)
        made[name] = suffix.lstrip(".")
    return made


def _summary(manifest: Manifest) -> dict[str, object]:
    return manifest.model_dump(
        mode="json", include={"name", "hz", "counts", "splits", "cameras", "vectors", "warnings", "details"}
    )


def _show(manifest: Manifest) -> None:
    from wdsmix.tools.console import plain, result_console

    console = result_console()
    counts = manifest.counts
    for warning in manifest.warnings:
        console.print(f"[yellow]![/] {plain(warning)}")
    for slot, camera in manifest.cameras.items():
        sizes = ", ".join(f"{w}x{h}" for w, h in camera.sizes[:3]) + (" ..." if len(camera.sizes) > 3 else "")
        console.print(
            f"  {slot} = .{plain(camera.member)}: {counted(camera.frames, f'{camera.encoding} picture')}, {sizes}"
        )
    for name, vector in manifest.vectors.items():
        console.print(
            f"  {plain(name)} = .{plain(vector.member)}: {vector.width} wide, {counted(vector.frames, 'frame')}"
        )
    console.print(
        f"[green]✓[/] {plain(manifest.name)}: {counted(counts.frames, 'frame')} of "
        f"{counted(counts.episodes, 'episode')} in "
        f"{counted(counts.shards, 'tar')}, {manifest.hz:g} Hz"
    )
