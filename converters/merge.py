"""``wdsmix merge``: joins the parts of one conversion into the set that one run would have written."""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wdsmix.converters.workfolder import WorkFolder

    from wdsmix.errors import DataError
    from wdsmix.manifest import FileEntry, Manifest
    from wdsmix.shards.receipt import ShardReceipt

__all__ = ["HELP", "configure", "merge", "run"]

HELP = """Join the parts of one conversion into one set.

Parts are what `wdsmix convert ... --part I/N` leaves. They must have been made with the same arguments from the same
input; their shards are hard-linked into OUT where possible, else copied, and read once to check their sha256. The
parts stay as they are. Without PART, OUT is a folder that all parts were written to.
"""
_CHUNK = 1 << 20
_THREADS = 4


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    parser.add_argument("out", type=Path, metavar="OUT", help="folder of the set; may be one of the parts")
    parser.add_argument("parts", type=Path, nargs="*", metavar="PART", help="folders of the parts")
    parser.add_argument("--quiet", action="store_true", help="no summary")


def run(args: argparse.Namespace) -> int:
    """Merges; 1 if a file of the source was unreadable, as a whole run would end."""
    from wdsmix.converters.summary import exit_code, show_set, unreadable_files

    from wdsmix.texts import printable

    manifest = merge(args.out, args.parts)
    if not args.quiet:
        show_set(args.out, manifest)
    if said := unreadable_files(manifest.dropped):
        sys.stderr.write(f"wdsmix: warning: {printable(said)}\n")
    return exit_code(manifest.dropped)


def merge(out: Path, parts: Sequence[Path] = ()) -> Manifest:
    """Joins parts into a set.

    Args:
        out: Folder of the set; new, one of the parts, or left by an unfinished merge.
        parts: Folders of parts; a shard that two of them hold must be the same in both.

    Raises:
        ConflictError: the parts have different plans (names what differs), or hold different bytes of one shard.
        DataError: shards are missing (names them), or a part's file is damaged.
    """
    from wdsmix.converters.kept import differing
    from wdsmix.converters.run import finish, system_errors_told, terminable
    from wdsmix.converters.workfolder import Locks, WorkFolder

    from wdsmix.errors import ConflictError, DataError

    work = WorkFolder(out)
    work.check_usable()
    others = [WorkFolder(part) for part in parts if part.resolve() != out.resolve()]
    plans = []
    for folder in (work, *others):
        plan = folder.plan()
        if plan is not None:
            plans.append(plan)
        elif folder is not work:
            raise DataError(
                "not a part: it has no plan", path=folder.folder, hint="name folders written by convert --part"
            )
    manifest = work.manifest()
    if manifest is not None:
        for plan in plans:
            work.check_finished(manifest, plan)
        work.remove()
        return manifest
    if not plans:
        raise DataError("no part is there to merge", path=out)
    plan = plans[0]
    with terminable(), system_errors_told(out), Locks(out):
        for folder in others:
            folder.check_plan(plan)
        manifest = work.manifest()
        if manifest is not None:  # a run that held the lock has just finished it
            work.check_finished(manifest, plan)
            work.remove()
            return manifest
        work.adopt(plan)
        receipts = work.receipts(plan)
        for name, difference in differing(work.folder, list(receipts.values()), workers=_THREADS):
            if difference:
                raise _damaged(difference, work.folder / name)
        for folder in others:
            for name, receipt in folder.receipts(plan).items():
                if name not in receipts:
                    receipts[name] = _take(receipt, folder, work)
                elif receipts[name] != receipt:
                    raise ConflictError(
                        "two parts hold different bytes of one shard", path=folder.folder, found=name, where="merge"
                    )
        return finish(work, plan, receipts)


def _take(receipt: ShardReceipt, part: WorkFolder, work: WorkFolder) -> ShardReceipt:
    from wdsmix.converters.workfolder import receipt_path

    from wdsmix.shards.files import PARTIAL, fsync_folder, write_atomic

    for entry in receipt.files:
        partial = work.folder / (entry.name + PARTIAL)
        partial.unlink(missing_ok=True)
        _link_or_copy(part.folder / entry.name, partial, entry)
        partial.replace(work.folder / entry.name)
        partial.unlink(missing_ok=True)  # left by the rename if an earlier merge had linked the same file
    fsync_folder(work.folder)
    write_atomic(receipt_path(work.folder, receipt.shard), receipt.model_dump_json(indent=1).encode())
    return receipt


def _link_or_copy(source: Path, target: Path, entry: FileEntry) -> None:
    from wdsmix.shards.files import file_entry

    try:
        os.link(source, target)
        found = file_entry(target).sha256
        if found != entry.sha256:
            target.unlink()
            raise _damaged(f"expected sha256 {entry.sha256}, found {found}", source)
        return
    except OSError:  # another file system, or one without hard links
        pass
    digest = hashlib.sha256()
    with source.open("rb") as reader, target.open("wb") as writer:
        while chunk := reader.read(_CHUNK):
            digest.update(chunk)
            writer.write(chunk)
        writer.flush()
        os.fsync(writer.fileno())
    if digest.hexdigest() != entry.sha256:
        target.unlink()
        raise _damaged(f"expected sha256 {entry.sha256}, found {digest.hexdigest()}", source)
    shutil.copymode(source, target)


def _damaged(difference: str, path: Path) -> DataError:
    from wdsmix.errors import DataError

    return DataError(
        f"part is damaged: {difference}", path=path, hint="run that part again: it writes the shard anew; then merge"
    )
