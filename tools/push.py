"""``wdsmix push``: a shard set to an object store."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from wdsmix.tools.transfers import ahead, configure_transfer, show_files, show_retries, size

from wdsmix.texts import counted

if TYPE_CHECKING:
    from wdsmix.store.push import PushPlan, PushResult

__all__ = ["HELP", "configure", "run"]

HELP = """Send a shard set to s3://, gs://, az:// or a folder.

The set goes to URL/v-<digest12>/, which is never changed again, manifest.json last; then URL/latest.json, which readers
of URL follow, is replaced, if nobody else published meanwhile. A push that was stopped goes on where it was: run it
again. What is there already is told by size and checksum and not sent again.
Credentials and endpoint: as for the AWS tools; WDSMIX_S3_ENDPOINT_URL names an endpoint for wdsmix alone.
Symbols of the plan: + new, = same, * differs, ? no file of the set (never removed; see `wdsmix gc`).
Exit codes: 0 done, 1 the set is damaged, 2 bad usage, 3 refused or someone else published, 4 authentication or network.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    parser.add_argument("set", metavar="SET", help="folder of the shard set")
    parser.add_argument("url", metavar="URL", help="where its versions go, such as s3://bucket/sets/lift")
    configure_transfer(parser)
    parser.add_argument("--part-size", type=int, default=16, metavar="MIB", help="size of upload parts in MiB (16)")
    parser.add_argument("--overwrite", action="store_true", help="replace objects of this version that differ")
    parser.add_argument("--no-latest", action="store_true", help="publish the version, but leave latest.json alone")
    parser.add_argument(
        "--no-conditional", action="store_true", help="also use a store that ignores conditional writes"
    )
    parser.add_argument(
        "--abort-incomplete", action="store_true", help="throw away what stopped pushes of this set left, and stop"
    )


def run(args: argparse.Namespace) -> int:
    """Pushes and returns the exit code."""
    import json
    import sys
    from contextlib import ExitStack
    from pathlib import Path

    from wdsmix.tools.console import plain, result_console

    from wdsmix.errors import WdsmixError
    from wdsmix.store import open_store
    from wdsmix.store.push import PushOptions, abort_incomplete, plan_push, push
    from wdsmix.store.transfer import parse_rate

    options = PushOptions(
        jobs=args.jobs,
        part=args.part_size << 20,
        rate=parse_rate(args.bandwidth_limit),
        overwrite=args.overwrite,
        latest=not args.no_latest,
        conditional=not args.no_conditional,
    )
    folder, store, console = Path(args.set), open_store(args.url), result_console()
    if args.abort_incomplete:
        gone = abort_incomplete(folder, store)
        if args.json:
            sys.stdout.write(json.dumps({"aborted": gone}) + "\n")
        else:
            console.print(
                f"{counted(len(gone), 'unfinished upload')} thrown away"
                + "".join(f"\n- {plain(name)}" for name in gone)
            )
        return 0
    if args.dry_run:
        plan = plan_push(folder, store, jobs=args.jobs, uploads=True)
        differs = "differs" in plan.files.values() and not args.overwrite
        if args.json:
            sys.stdout.write(json.dumps(_plan_json(plan), indent=1) + "\n")
        else:
            show_files(console, plan.files)
            for key, _ in plan.incomplete:
                console.print(f"~ {plain(key)}: an unfinished upload")
            console.print(f"would send {size(plan.bytes)} to {plain(plan.target.url)}")
        return 3 if differs else 0
    with ExitStack() as stack:
        tell: list[Any] = []

        def planned(plan: PushPlan) -> None:
            tell.append(ahead(stack, plan.bytes, "push", args.quiet or args.json))

        try:
            result = push(
                folder, store, options, planned=planned, progress=lambda amount, retries: tell[0](amount, retries)
            )
        except (WdsmixError, KeyboardInterrupt) as error:
            if getattr(error, "exit_code", 4) == 4 and tell:
                stack.close()
                sys.stderr.write(f"wdsmix: stopped; what was sent is kept. To go on: {_again(args)}\n")
            raise
    if args.json:
        sys.stdout.write(json.dumps(_result_json(result), indent=1) + "\n")
    else:
        show_retries(console, result.retries)
        kept = f", {counted(result.parts_kept, 'part')} kept from before" if result.parts_kept else ""
        console.print(
            f"[green]✓[/] {plain(store.url)}/{result.version}: {counted(result.files_sent, 'file')} sent "
            f"({size(result.bytes_sent)}{kept}), {result.files_same} there already"
            + (", latest" if result.latest else "")
        )
    return 0


def _again(args: argparse.Namespace) -> str:
    """The command that resumes."""
    import shlex

    words = ["wdsmix", "push", args.set, args.url]
    words += [
        f"--{name.replace('_', '-')}" for name in ("overwrite", "no_latest", "no_conditional") if getattr(args, name)
    ]
    if args.part_size != 16:
        words += ["--part-size", str(args.part_size)]
    return shlex.join(words)


def _plan_json(plan: PushPlan) -> dict[str, Any]:
    return {
        "version": plan.target.url.rpartition("/")[2],
        "digest": plan.local.digest,
        "published": plan.published,
        "latest": plan.latest.version if plan.latest else None,
        "bytes": plan.bytes,
        "files": plan.files,
        "incomplete": [key for key, _ in plan.incomplete],
    }


def _result_json(result: PushResult) -> dict[str, Any]:
    import dataclasses

    return dataclasses.asdict(result)
