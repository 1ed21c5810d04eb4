"""The runner: makes a shard set of a source, whatever happens on the way.

Order of things: plan (nothing written) -> lock -> plan.json -> shards that have no receipt yet -> index, statistics,
manifest -> `.work` removed. Ended at any point, by any signal, the same call goes on where it stopped, and the bytes
are those of one undisturbed run.
"""

from __future__ import annotations

import errno
import json
import re
import signal
import threading
import time
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from wdsmix.converters.appraise import appraise
from wdsmix.converters.base import ConvertOptions, Source
from wdsmix.converters.jobs import run_jobs
from wdsmix.converters.kept import differing, stamps_of
from wdsmix.converters.plan import Plan, Planning
from wdsmix.converters.store_episode import Layout
from wdsmix.converters.worker import Setup, ShardJob
from wdsmix.converters.workfolder import Locks, WorkFolder

from wdsmix.errors import ConfigError, DataError, WdsmixError
from wdsmix.manifest import Dropped, Manifest
from wdsmix.progress import Progress
from wdsmix.shards.finish import finish_set
from wdsmix.shards.receipt import ShardReceipt

__all__ = ["Outcome", "convert", "finish", "run", "system_errors_told", "terminable"]

_NOTED = re.compile(r'"(frame_mapping|rows_left_out)":')


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What a run did."""

    folder: Path
    plan: Plan
    receipts: tuple[ShardReceipt, ...]
    """Of the shards of this run's part, in plan order."""
    manifest: Manifest | None
    """None after a part: `wdsmix merge` writes it."""
    frames: int
    """Frames written by this run; those found finished are not counted."""
    seconds: float
    already_complete: bool = False
    notes: tuple[str, ...] = ()
    """What the user must hear of, even if quiet."""

    @property
    def dropped(self) -> list[Dropped]:
        """Episodes and files left out: by the plan, and while reading."""
        if self.manifest is not None:
            return self.manifest.dropped
        return [*self.plan.dropped, *(drop for receipt in self.receipts for drop in receipt.dropped)]


def convert(source: Source, out: str | Path, options: ConvertOptions | None = None) -> Manifest:
    """Makes a shard set of a source.

    Worker processes are spawned, so a script needs the usual ``if __name__ == "__main__":`` guard and the source a
    class that can be imported.

    Args:
        source: What to read.
        out: Folder of the set: new, or left by an unfinished run with the same arguments, which is then resumed.
        options: How; its ``part`` must be the whole (see `run` for parts).

    Returns:
        The manifest; bad episodes are in its ``dropped``.

    Raises:
        ConfigError: the options are at fault.
        DataError: nothing could be converted, or an episode is bad and ``on_bad`` is ``fail``.
        ConflictError: the folder holds something else, another plan, or another run.
    """
    options = ConvertOptions() if options is None else options
    if options.part[1] != 1:
        raise ConfigError("a part is no set", where="part", hint="use wdsmix.converters.run.run and merge")
    manifest = run(source, out, options).manifest
    if manifest is None:  # pragma: no cover - a whole run always has one
        raise WdsmixError("the run wrote no manifest", path=out)
    return manifest


def run(source: Source, out: str | Path, options: ConvertOptions, *, quiet: bool = True) -> Outcome:
    """Like `convert`, for parts too, with progress on stderr unless ``quiet``."""
    began = time.monotonic()
    work = WorkFolder(Path(out))
    _check_apart(source, work.folder)
    work.check_usable()
    with terminable(), system_errors_told(work.folder):
        stamps = stamps_of(source)
        planning = Planning.of(source, options)
        plan = planning.plan
        if (manifest := work.manifest()) is not None and not work.path.exists():
            return _complete(work, plan, manifest, began)
        with Locks(work.folder, options.part) as locks:
            if (manifest := work.manifest()) is not None:
                return _complete(work, plan, manifest, began)
            work.adopt(plan)
            shards = plan.part(*options.part)
            receipts = work.receipts(plan)
            work.remember(stamps, anew=not receipts and options.part[1] == 1)
            notes = _forget_damaged(work, receipts, [shard.name for shard in shards], options, quiet)
            jobs = []
            for shard in shards:
                if shard.name not in receipts:
                    work.forget(shard.name)
                    jobs.append(
                        ShardJob(shard=shard, refs=tuple(planning.refs[episode.number] for episode in shard.episodes))
                    )
            _check_fail(options, receipts)
            setup = Setup(source=source, folder=str(work.folder), layout=Layout.of(plan), options=options)
            drops = len(plan.dropped) + sum(len(receipt.dropped) for receipt in receipts.values())
            try:
                with Progress(sum(job.shard.frames for job in jobs), "frames", "convert", quiet=quiet) as progress:
                    if jobs:
                        run_jobs(
                            setup,
                            jobs,
                            workers=options.workers,
                            progress=progress,
                            locks=locks.handles,
                            drops=drops,
                        )
            except BaseException:
                work.clean([job.shard.name for job in jobs])
                raise
            work.remember(stamps_of(source))
            receipts = work.receipts(plan)
            mine = tuple(receipts[shard.name] for shard in shards)
            written = sum(row.frames for job in jobs for row in receipts[job.shard.name].episodes)
            manifest = None
            if options.part[1] == 1:
                manifest = finish(work, plan, receipts)
        return Outcome(
            folder=work.folder,
            plan=plan,
            receipts=mine,
            manifest=manifest,
            frames=written,
            seconds=time.monotonic() - began,
            notes=notes,
        )


def _forget_damaged(
    work: WorkFolder, receipts: dict[str, ShardReceipt], shards: Sequence[str], options: ConvertOptions, quiet: bool
) -> tuple[str, ...]:
    """Reads kept shards once before they are built upon; takes out of ``receipts`` those that changed."""
    kept = [receipts[name] for name in shards if name in receipts]
    notes = []
    with Progress(len(kept), "shards", "verify what is kept", quiet=quiet or not kept) as progress:
        for name, difference in differing(work.folder, kept, workers=options.workers):
            progress.advance(1)
            if difference:
                del receipts[name]
                notes.append(f"{difference}: shard {name} was written again")
    return tuple(notes)


def _check_whole(folder: Path, plan: Plan, there: Container[str]) -> None:
    """Makes sure that no shard is missing.

    Raises:
        DataError: one is (names them).
    """
    missing = [shard.name for shard in plan.shards if shard.name not in there]
    if missing:
        shown = ", ".join(missing[:10]) + (", ..." if len(missing) > 10 else "")
        raise DataError(
            f"{len(missing)} of {len(plan.shards)} shards are missing: {shown}",
            path=folder,
            hint="run the parts that hold them, or name their folders",
        )


def finish(work: WorkFolder, plan: Plan, receipts: dict[str, ShardReceipt]) -> Manifest:
    """Writes index, statistics and manifest of a set whose shards are all there, and removes the work folder.

    Raises:
        DataError: a shard is missing, or no episode is in any.
    """
    _check_whole(work.folder, plan, receipts)
    if not any(receipt.episodes for receipt in receipts.values()):
        first = next((drop for receipt in receipts.values() for drop in receipt.dropped), None)
        raise DataError(
            "no episode could be converted" + (f"; the first one: {first.reason}" if first else ""),
            path=first.source_file if first else work.folder,
            where=first.source_episode if first else None,
        )
    filled = {receipt.split for receipt in receipts.values() if receipt.episodes}
    empty = sorted({shard.split for shard in plan.shards} - filled)
    seen = appraise(work.folder, plan, [receipts[shard.name] for shard in plan.shards])
    report = plan.details.get("report")
    details = {
        **plan.details,
        "plausibility": seen.facts,
        "report": {**(report if isinstance(report, dict) else {}), **seen.lines},
    }
    warnings = [
        *plan.warnings,
        *_noted(receipts[shard.name] for shard in plan.shards),
        *seen.warnings,
        *(f"split {split} is empty: all its episodes were dropped" for split in empty),
    ]
    manifest = finish_set(
        work.folder, list(receipts.values()), {**plan.header(), "details": details, "warnings": warnings}
    )
    work.remove()
    return manifest


def _noted(receipts: Iterable[ShardReceipt]) -> list[str]:
    """What episodes say of frames and rows that were not one to one, each thing once with how many say it."""
    said: dict[str, list[str]] = {}
    for row in (row for receipt in receipts for row in receipt.episodes):
        extras = json.loads(row.extras) if _NOTED.search(row.extras) else {}
        mapping, left_out = extras.get("frame_mapping"), extras.get("rows_left_out")
        texts = sorted({str(text) for text in mapping.values()}) if isinstance(mapping, dict) else []
        for text in [*texts, *([f"bad rows left out: {left_out}"] if left_out else [])]:
            alike = re.sub(r"\d+", "N", text)
            said.setdefault(alike, []).append(f"{row.source_episode or row.source_file}: {text}")
    ranked = sorted(said.values(), key=lambda texts: (-len(texts), texts[0]))
    return [f"{len(texts)} episode{'s' * (len(texts) > 1)}, the first {texts[0]}" for texts in ranked]


def _complete(work: WorkFolder, plan: Plan, manifest: Manifest, began: float) -> Outcome:
    work.check_finished(manifest, plan)
    work.remove()  # a run that ended right after the manifest left it
    return Outcome(
        folder=work.folder,
        plan=plan,
        receipts=(),
        manifest=manifest,
        frames=0,
        seconds=time.monotonic() - began,
        already_complete=True,
    )


def _check_apart(source: Source, out: Path) -> None:
    path = getattr(source, "path", None)
    if path is None:
        return
    read, written = Path(path).resolve(), out.resolve()
    if written == read or read in written.parents:
        raise ConfigError("the set would be written into its own source", path=out, where="OUT", found=f"SRC {path}")


def _check_fail(options: ConvertOptions, receipts: dict[str, ShardReceipt]) -> None:
    if options.on_bad == "fail":
        for receipt in receipts.values():
            for drop in receipt.dropped:
                raise DataError(
                    drop.reason,
                    path=drop.source_file,
                    where=drop.source_episode,
                    hint=f"an earlier run dropped it from {receipt.shard}",
                )


@contextmanager
def system_errors_told(folder: Path) -> Iterator[None]:
    """Turns a full disk and the like into an error that says what to do."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise WdsmixError(
            error.strerror or str(error),
            path=folder if full else error.filename or folder,
            hint=("free some space and " if full else "")
            + "run the same command again to resume: finished shards are kept",
        ) from error


@contextmanager
def terminable() -> Iterator[None]:
    """Ends the run on SIGTERM as Ctrl-C does, where handlers can be set."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before if before is not None else signal.SIG_DFL)
