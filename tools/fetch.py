"""``wdsmix fetch``: a shard set from an object store."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from wdsmix.tools.transfers import ahead, configure_transfer, show_files, show_retries, size

from wdsmix.texts import counted

if TYPE_CHECKING:
    from wdsmix.store.fetch import FetchPlan

__all__ = ["HELP", "configure", "run"]

HELP = """Fetch a shard set from s3://, gs://, az://, http(s):// or a folder.

URL is where `wdsmix push` sent it (the latest version is taken), or one version (URL/v-<digest12>), or a copy that
something else made. Files arrive as .part, in ranges; each is checked against its sha256 before it gets its name, and
manifest.json comes last. A fetch that was stopped goes on where it was: run it again. A second run reads nothing
(--recheck hashes what is there and repairs it).
With --shards or --split only those shards come; open such a folder with their names:
ShardSet("DIR/train-{00000..00003}.tar").
Exit codes: 0 done, 1 damaged in the store, 2 bad usage, 3 refused, 4 authentication or network.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    parser.add_argument("url", metavar="URL", help="where the set is, such as s3://bucket/sets/lift")
    parser.add_argument("dir", metavar="DIR", help="folder to bring it to")
    configure_transfer(parser)
    parser.add_argument(
        "--shards", action="append", default=[], metavar="NAMES", help="only these: name, a-{00..07}, wildcard; repeats"
    )
    parser.add_argument(
        "--split", action="append", default=[], metavar="NAME", help="only shards of this split; repeats"
    )
    parser.add_argument("--recheck", action="store_true", help="hash what is there, and fetch anew what is damaged")


def run(args: argparse.Namespace) -> int:
    """Fetches and returns the exit code."""
    import dataclasses
    import json
    import sys
    from contextlib import ExitStack
    from pathlib import Path

    from wdsmix.tools.console import plain, result_console

    from wdsmix.errors import WdsmixError
    from wdsmix.store import open_store
    from wdsmix.store.fetch import FetchOptions, fetch, plan_fetch
    from wdsmix.store.transfer import parse_rate

    options = FetchOptions(
        jobs=args.jobs,
        rate=parse_rate(args.bandwidth_limit),
        shards=tuple(args.shards),
        splits=tuple(args.split),
        recheck=args.recheck,
    )
    folder, store, console = Path(args.dir), open_store(args.url), result_console()
    if args.dry_run:
        plan = plan_fetch(store, folder, options)
        if args.json:
            facts = {"digest": plan.source.digest, "bytes": plan.bytes, "files": plan.files, "shards": plan.shards}
            sys.stdout.write(json.dumps(facts, indent=1) + "\n")
        else:
            show_files(console, plan.files)
            console.print(f"would receive {size(plan.bytes)} from {plain(plan.source.store.url)}")
        return 0
    with ExitStack() as stack:
        tell: list[Any] = []

        def planned(plan: FetchPlan) -> None:
            total = sum(e.bytes for e in plan.source.manifest.files if plan.files.get(e.name, "same") != "same")
            tell.append(ahead(stack, total, "fetch", args.quiet or args.json))

        try:
            result = fetch(
                store, folder, options, planned=planned, progress=lambda amount, retries: tell[0](amount, retries)
            )
        except (WdsmixError, KeyboardInterrupt) as error:
            if getattr(error, "exit_code", 4) == 4 and tell:
                stack.close()
                sys.stderr.write("wdsmix: stopped; what was received is kept. To go on, run the same command again.\n")
            raise
    if args.json:
        sys.stdout.write(json.dumps(dataclasses.asdict(result), indent=1) + "\n")
    else:
        show_retries(console, result.retries)
        for text in result.bad:
            console.print(f"[red]✗[/] {plain(text)}")
        mark = "[red]✗[/]" if result.bad else "[green]✓[/]"
        console.print(
            f"{mark} {plain(str(folder))} {result.digest[:12]}: {counted(result.files_received, 'file')} received "
            f"({size(result.bytes_received)}), {result.files_same} there already"
            + ("" if result.whole else "; not the whole set")
        )
    return 1 if result.bad else 0
