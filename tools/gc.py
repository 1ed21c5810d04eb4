"""``wdsmix gc``: removes old versions of a set from a store."""

from __future__ import annotations

import argparse

from wdsmix.tools.transfers import size

from wdsmix.texts import counted

__all__ = ["HELP", "configure", "run"]

HELP = """List the versions of a set in a store, and remove old ones.

Shows what would go; --delete removes it. The version that latest.json names always stays; so does every version younger
than --older-than hours (a push may be under way, and readers stay on the version they began with). Without latest.json
nothing is removed. A version's manifest goes first, so that a version is never half there and looks whole.
Symbols: = stays, - goes; "no manifest" is a push that did not finish.
Exit codes: 0 done, 2 bad usage, 3 refused, 4 authentication or network.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    parser.add_argument("url", metavar="URL", help="where the set's versions are, such as s3://bucket/sets/lift")
    parser.add_argument("--keep", type=int, default=0, metavar="N", help="keep so many of the newest old versions (0)")
    parser.add_argument(
        "--keep-version", action="append", default=[], metavar="VERSION", help="keep this one (name or digest); repeats"
    )
    parser.add_argument(
        "--older-than", type=float, default=24.0, metavar="HOURS", help="only versions older than this (24)"
    )
    parser.add_argument("--delete", action="store_true", help="remove them, not only show them")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(args: argparse.Namespace) -> int:
    """Lists, removes, and returns the exit code."""
    import dataclasses
    import json
    import sys
    import time

    from wdsmix.tools.console import plain, result_console

    from wdsmix.errors import ConfigError
    from wdsmix.store import open_store
    from wdsmix.store.collect import list_versions, plan_removal, remove_version

    for option in ("keep", "older_than"):
        if not getattr(args, option) >= 0:
            raise ConfigError("bad value", where=f"--{option.replace('_', '-')}", expected="0 or more")
    store, console = open_store(args.url), result_console()
    versions = list_versions(store)
    going = plan_removal(versions, keep=args.keep, keep_names=args.keep_version, older_than=args.older_than * 3600)
    names = {version.name for version in going}
    removed = 0
    if args.delete:
        for version in going:
            removed += remove_version(store, version)
    if args.json:
        rows = [{**dataclasses.asdict(version), "goes": version.name in names} for version in versions]
        sys.stdout.write(json.dumps({"versions": rows, "removed_objects": removed}, indent=1) + "\n")
        return 0
    young = time.time() - args.older_than * 3600
    for version in versions:
        notes = ["latest"] * version.latest + ["no manifest"] * (not version.whole)
        if not version.latest and version.name not in names and version.modified > young:
            notes.append(f"younger than {args.older_than:g} h (--older-than)")
        console.print(
            f"{'-' if version.name in names else '='} {plain(version.name)}  {counted(version.objects, 'object')}  "
            f"{size(version.bytes)}" + "".join(f"  {note}" for note in notes)
        )
    total = size(sum(version.bytes for version in going))
    if args.delete:
        console.print(f"{counted(len(going), 'version')} removed ({counted(removed, 'object')}, {total})")
    else:
        console.print(
            f"{counted(len(going), 'version')} would go ({total})"
            + (f"; --delete removes {'it' if len(going) == 1 else 'them'}" if going else "")
        )
    return 0
