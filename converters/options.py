"""Options that every source family shares, and the families themselves (entry-point group ``wdsmix.converters``)."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Protocol, cast

from wdsmix.converters.base import ConvertOptions, Source
from wdsmix.converters.slots import slot_fault

from wdsmix.cli import HelpFormatter
from wdsmix.errors import ConfigError

__all__ = [
    "Family",
    "add_families",
    "add_convert_options",
    "add_mapping_options",
    "add_paths",
    "available_workers",
    "convert_options",
    "load_families",
    "open_source",
]


class Family(Protocol):
    """A module behind the entry-point group ``wdsmix.converters``; light to import.

    It may also hold ``SPLIT_BY``, the default of ``--split-by`` (else ``episode``).
    """

    HELP: str

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Adds the options of its own."""
        ...

    def source(self, args: argparse.Namespace) -> Source:
        """Opens ``args.src``; reads ``args.camera``, ``args.state`` and ``args.action`` beside its own options."""
        ...


def load_families() -> dict[str, Family | Exception]:
    """Family name -> its module, or why it can't be imported here."""
    found: dict[str, Family | Exception] = {}
    for point in sorted(entry_points(group="wdsmix.converters"), key=lambda p: p.name):
        try:
            found[point.name] = cast("Family", point.load())
        except Exception as error:  # a family of a third party may fail in any way; the others must still work
            found[point.name] = error
    return found


def add_families(
    parser: argparse.ArgumentParser, describe: Callable[[str, Family], tuple[str, str]]
) -> Iterator[tuple[argparse.ArgumentParser, Family]]:
    """Adds one subcommand a family; yields those that can be imported, to be given their options.

    Args:
        parser: The command's.
        describe: Name and family -> the line and the text of its help.
    """
    families = parser.add_subparsers(dest="family", metavar="FAMILY", required=True)
    for name, family in load_families().items():
        if isinstance(family, Exception):
            families.add_parser(name, help=f"not available: {family}").set_defaults(missing=family)
            continue
        line, text = describe(name, family)
        sub = families.add_parser(name, help=line, description=text, formatter_class=HelpFormatter)
        sub.set_defaults(open_source=family.source)
        yield sub, family


def open_source(args: argparse.Namespace) -> Source:
    """The source that a command names, checked to be there.

    Raises:
        ConfigError: its family can't be imported, or there is no such path.
        DataError: the family finds nothing that it knows.
    """
    if missing := getattr(args, "missing", None):
        raise ConfigError(f"source family {args.family} can't be imported: {missing}")
    if "://" not in str(args.src) and ":/" not in str(args.src) and not getattr(args, "repo_id", None):
        try:
            args.src.lstat()
        except (FileNotFoundError, NotADirectoryError) as error:
            raise ConfigError("no such file or folder", path=args.src) from error
    source: Source = args.open_source(args)
    return source


def available_workers() -> int:
    """Cores that this process may use, at most 8."""
    return min(8, len(os.sched_getaffinity(0)))


def _camera(text: str) -> tuple[str, str]:
    slot, equals, key = text.partition("=")
    if not equals or not key:
        raise argparse.ArgumentTypeError(f"{text!r} is not SLOT=KEY, such as cam0=agentview_image")
    if wrong := slot_fault(slot):
        raise argparse.ArgumentTypeError(f"{text!r} is not SLOT=KEY, such as cam0=agentview_image: {wrong}")
    return slot, key


def _keys(text: str) -> list[str]:
    keys = [key.strip() for key in text.split(",")]
    if not all(keys):
        raise argparse.ArgumentTypeError(f"{text!r} is not a comma-separated list of keys")
    return keys


def _part(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if not match or not 1 <= int(match[1]) <= int(match[2]):
        raise argparse.ArgumentTypeError(f"{text!r} is not I/N with 1 <= I <= N, such as 2/8")
    return int(match[1]) - 1, int(match[2])


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share from 0 to 1")
    return share


class _Slots(argparse.Action):
    """Gathers ``--camera`` into a dict; a slot given twice is an error."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: object, _: object = None
    ) -> None:
        slot, key = cast("tuple[str, str]", values)
        slots: dict[str, str] = dict(getattr(namespace, self.dest) or {})
        if slot in slots:
            parser.error(f"--camera: slot {slot} is given twice ({slots[slot]} and {key})")
        setattr(namespace, self.dest, {**slots, slot: key})


def add_mapping_options(parser: argparse.ArgumentParser) -> None:
    """Adds what says which keys of the source to read.

    Gives ``args.camera`` (dict slot -> key), ``args.state`` and ``args.action`` (list of keys); None where not given.
    """
    group = parser.add_argument_group("what to read")
    group.add_argument(
        "--camera",
        action=_Slots,
        type=_camera,
        metavar="SLOT=KEY",
        help="camera of a slot, repeatable: cam0 is the primary one, cam1 the wrist (default: what the family chooses)",
    )
    for name in ("state", "action"):
        group.add_argument(
            f"--{name}",
            type=_keys,
            metavar="KEY,KEY",
            help=f"keys whose values, joined in this order, are the {name} vector",
        )


def add_convert_options(parser: argparse.ArgumentParser, *, split_by: str = "episode") -> None:
    """Adds the options of the runner; `convert_options` reads them back."""
    group = parser.add_argument_group("rate and pictures")
    group.add_argument(
        "--hz",
        type=float,
        default=0.0,
        metavar="N",
        help="wanted frames per second; every round(fps/N)-th frame is kept, delta actions are summed (0: all frames)",
    )
    group.add_argument(
        "--hz-mode",
        choices=["stride", "nearest"],
        default="stride",
        help="nearest: take the frame next to each multiple of 1/hz, for rates that do not divide the native one "
        "(default: %(default)s)",
    )
    group.add_argument(
        "--action-kind",
        choices=["absolute", "delta"],
        default="",
        help="what the action is, where the source does not say: absolute values are sampled and deltas are summed "
        "when --hz leaves frames out",
    )
    group.add_argument(
        "--image-size", type=int, default=0, metavar="PX", help="side of the square that pictures become (0: keep)"
    )
    group.add_argument(
        "--resize",
        choices=["squash", "fit", "crop"],
        default="squash",
        help="squash stretches, fit adds black bars, crop takes the centre (default: %(default)s)",
    )
    group.add_argument("--quality", type=int, default=92, help="JPEG quality of re-encoded pictures (%(default)s)")
    group.add_argument(
        "--subsampling",
        choices=["444", "420"],
        default="444",
        help="chroma of re-encoded pictures; 420 decodes 40 %% faster and is 22 %% smaller (default: %(default)s)",
    )

    group = parser.add_argument_group("episodes and splits")
    group.add_argument(
        "--val-fraction", type=float, default=0.0, metavar="F", help="share of the units held out for validation"
    )
    group.add_argument(
        "--split-by",
        choices=["file", "episode", "source"],
        default=split_by,
        help="unit of the validation split; source: the split that the source publishes (default: %(default)s)",
    )
    group.add_argument("--seed", type=int, default=0, help="chooses the units of the validation split (%(default)s)")
    group.add_argument(
        "--max-episodes",
        type=int,
        default=0,
        metavar="N",
        help="take the first N that metadata show as good; one that proves bad while it is read is not replaced "
        "(0: all)",
    )
    group.add_argument(
        "--on-bad",
        choices=["drop", "fail"],
        default="drop",
        help="a bad episode is dropped with its reason and counted, or ends the run (default: %(default)s)",
    )
    group.add_argument(
        "--max-dropped",
        type=_share,
        default=0.5,
        metavar="SHARE",
        help="exit with 1 and say so if more than this share of the episodes was bad; the set is finished all the same "
        "(default: %(default)s; 1: never)",
    )
    group.add_argument("--allow-no-camera", action="store_true", help="also take episodes without any picture")

    group = parser.add_argument_group("the set")
    group.add_argument("--name", default="", help="name of the set (default: the source's)")
    group.add_argument("--embodiment", default="", help="robot name (default: the source's, else the set's name)")
    group.add_argument("--licence", "--license", default="", help="licence of the data (default: the source's)")
    group.add_argument(
        "--frames-per-shard",
        type=int,
        default=2000,
        metavar="N",
        help="close a shard before it passes this; a longer episode gets a shard of its own (default: %(default)s)",
    )

    group = parser.add_argument_group("the run (none of these changes a byte of the set)")
    group.add_argument(
        "--workers", type=int, default=available_workers(), metavar="N", help="processes (default: cores, at most 8)"
    )
    group.add_argument(
        "--part",
        type=_part,
        default=(0, 1),
        metavar="I/N",
        help="convert the I-th of N shares of the shards only; `wdsmix merge` then joins the parts",
    )
    group.add_argument("--quiet", action="store_true", help="no progress and no summary")


def convert_options(args: argparse.Namespace, *, extra: Mapping[str, object] | None = None) -> ConvertOptions:
    """The runner's options from parsed arguments.

    Raises:
        ConfigError: a value is out of range.
    """
    names = [name for name in ConvertOptions.__dataclass_fields__ if name != "extra"]
    return ConvertOptions(**{name: getattr(args, name) for name in names}, extra=dict(extra or {}))


def add_paths(parser: argparse.ArgumentParser) -> None:
    """Adds SRC and OUT as ``args.src`` and ``args.out``."""
    parser.add_argument("src", type=Path, metavar="SRC", help="file or folder to read; never written to")
    parser.add_argument("out", type=Path, metavar="OUT", help="folder of the set; new, or left by an unfinished run")
