"""The child's side of a conversion: takes shard jobs from a pipe, tells what it does, writes shards and receipts.

A worker never outlives its parent: a thread reads the pipe, and at its end (the parent is gone) ends the process.
"""

from __future__ import annotations

import os
import pickle
import queue
import threading
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Literal

from wdsmix.converters.base import ConvertOptions, Source
from wdsmix.converters.plan import PlannedShard
from wdsmix.converters.reasons import reason_of
from wdsmix.converters.signals import leave_stops_to_parent
from wdsmix.converters.store_episode import Layout, store_episode
from wdsmix.converters.workfolder import receipt_path

from wdsmix.episode import EpisodeRef
from wdsmix.errors import DataError
from wdsmix.manifest import Dropped
from wdsmix.shards.files import PARTIAL, write_atomic
from wdsmix.shards.receipt import ShardReceipt
from wdsmix.shards.writer import ShardWriter

__all__ = ["Message", "Setup", "ShardJob", "convert_shard", "serve"]

_TELL_EVERY = 0.25


@dataclass(frozen=True, kw_only=True, slots=True)
class Setup:
    """What all jobs of a run share."""

    source: Source
    folder: str
    layout: Layout
    options: ConvertOptions


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardJob:
    """One shard to write."""

    shard: PlannedShard
    refs: tuple[EpisodeRef, ...]
    """One an episode of the shard, in its order."""
    crashed: Mapping[int, str] = field(default_factory=dict)
    """Episodes not to read again -> reason: reading them ended an earlier worker."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    """What a worker tells its parent."""

    kind: Literal["ready", "reading", "idle", "at", "done", "failed"]
    shard: str = ""
    episode: int = -1
    frames: int = 0
    """Planned frames of the shard that are behind."""
    drops: int = 0
    """Episodes of the shard dropped so far."""
    error: bytes = b""
    """Pickled exception of a failed job."""
    trace: str = ""


class _Reporter:
    """Sends progress of one shard, not too often."""

    def __init__(self, connection: Connection, job: ShardJob) -> None:
        self._connection = connection
        self._shard = job.shard.name
        self._last = 0.0
        self.behind = 0
        self.drops = 0

    def send(self, kind: Literal["reading", "idle", "at", "done"], episode: int = -1, frames: int = 0) -> None:
        self._connection.send(
            Message(kind=kind, shard=self._shard, episode=episode, frames=self.behind + frames, drops=self.drops)
        )

    def at(self, frame: int, *, planned: int) -> None:
        now = time.monotonic()
        if now - self._last >= _TELL_EVERY:
            self._last = now
            self.send("at", frames=min(frame, planned))


def serve(connection: Connection, setup: bytes, locks: object) -> None:
    """Body of a worker process.

    Args:
        connection: Duplex pipe to the parent: jobs in, messages out.
        setup: Pickled `Setup`.
        locks: Handles of the run's locks; held as long as this process lives, so that no other run starts meanwhile.
    """
    leave_stops_to_parent()
    jobs: queue.Queue[ShardJob | None] = queue.Queue()
    threading.Thread(target=_receive, args=(connection, jobs), daemon=True).start()
    shard = ""
    try:
        shared: Setup = pickle.loads(setup)
        connection.send(Message(kind="ready"))
        while (job := jobs.get()) is not None:
            shard = job.shard.name
            reporter = _Reporter(connection, job)
            convert_shard(shared, job, reporter)
            reporter.send("done")
    except (BrokenPipeError, ConnectionResetError):
        os._exit(1)  # the parent is gone
    except BaseException as error:
        connection.send(Message(kind="failed", shard=shard, error=_pickled(error), trace=traceback.format_exc()))
    del locks


def _receive(connection: Connection, jobs: queue.Queue[ShardJob | None]) -> None:
    while True:
        try:
            job = connection.recv()
        except (EOFError, OSError):
            os._exit(1)
        jobs.put(job)
        if job is None:
            return


def _pickled(error: BaseException) -> bytes:
    try:
        data = pickle.dumps(error)
        pickle.loads(data)
    except Exception:  # third parties' exceptions need not pickle; their text must arrive all the same
        data = pickle.dumps(RuntimeError(f"{type(error).__name__}: {error}"))
    return data


def convert_shard(setup: Setup, job: ShardJob, reporter: _Reporter) -> ShardReceipt:
    """Writes one shard and its receipt.

    Raises:
        DataError: an episode is bad and ``on_bad`` is ``fail``.
        WdsmixError: the run can't go on.
        OSError: the shard can't be written.
    """
    folder, shard, options = Path(setup.folder), job.shard, setup.options
    root = getattr(setup.source, "path", None)
    dropped: list[Dropped] = []
    for name in (f"{shard.name}.tar", f"{shard.name}.frames.arrow"):  # of a killed run; never write into its inode
        (folder / (name + PARTIAL)).unlink(missing_ok=True)
    layout = setup.layout
    with ShardWriter(folder, shard.name, vectors=layout.widths, cameras=layout.members, split=shard.split) as writer:
        for planned, ref in zip(shard.episodes, job.refs, strict=True):
            try:
                if planned.number in job.crashed:
                    raise DataError(job.crashed[planned.number])
                reporter.send("reading", episode=planned.number)
                store_episode(
                    setup.source,
                    ref,
                    planned.number,
                    writer,
                    layout,
                    options,
                    partial(reporter.at, planned=planned.frames),
                )
            except DataError as error:
                if options.on_bad == "fail":
                    error.path = error.path or ref.file
                    error.where = f"{ref.id}: {error.where}" if error.where else ref.id
                    raise
                reporter.drops += 1
                dropped.append(
                    Dropped(
                        episode=planned.number,
                        source_file=ref.file,
                        source_episode=ref.id,
                        kind="episode",
                        reason=reason_of(error, root),
                    )
                )
            reporter.behind += planned.frames
            reporter.send("idle")
        receipt = writer.close(dropped)
    write_atomic(receipt_path(folder, shard.name), receipt.model_dump_json(indent=1).encode())
    return receipt
