"""The parent's side of a conversion: shard jobs in spawned processes, any of which may die and not end the run.

A worker that a crash signal ends while it reads an episode costs that episode: it is dropped with the signal as its
reason and its shard is written again, without it, by a fresh process. A worker that is killed from outside ends the
run, which can then be resumed. No worker is left behind, whatever ends the run.
"""

from __future__ import annotations

import multiprocessing
import pickle
import signal
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing import connection as mpc
from multiprocessing import reduction
from multiprocessing.process import BaseProcess

from wdsmix.converters.signals import stops_blocked
from wdsmix.converters.worker import Message, Setup, ShardJob, serve

from wdsmix.errors import ConfigError, DataError, WdsmixError
from wdsmix.progress import Progress

__all__ = ["run_jobs"]

_CRASHES = frozenset({signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE})


class _WorkerTraceError(Exception):
    """Carries the traceback of a worker as the cause of the error it raised."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


class _Worker:
    """One child process and what it was last heard to do."""

    def __init__(self, setup: bytes, locks: Sequence[int]) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe(duplex=True)
        self.job: ShardJob | None = None
        self.reading = -1
        with stops_blocked():
            self.process: BaseProcess = context.Process(
                target=serve, args=(theirs, setup, _Handles(locks)), daemon=True, name="wdsmix-worker"
            )
            self.process.start()
        theirs.close()

    def give(self, job: ShardJob) -> None:
        self.job = job
        self.reading = -1
        with suppress(BrokenPipeError, ConnectionResetError):  # it has just died; the sentinel tells
            self.connection.send(job)

    def messages(self) -> Iterator[Message]:
        """All that it has said and nobody has heard."""
        try:
            while self.connection.poll(0):
                yield self.connection.recv()
        except (EOFError, OSError):
            return

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.connection.close()


class _Handles:
    """Sends lock handles along with a spawned process."""

    def __init__(self, handles: Sequence[int]) -> None:
        self.handles = handles

    def __reduce__(self) -> tuple[object, ...]:
        return tuple, ([reduction.DupFd(handle) for handle in self.handles],)


def run_jobs(
    setup: Setup,
    jobs: Sequence[ShardJob],
    *,
    workers: int,
    progress: Progress,
    locks: Sequence[int] = (),
    drops: int = 0,
) -> None:
    """Writes shards; returns when all have their receipts.

    Args:
        setup: What the jobs share.
        jobs: The shards, in order.
        workers: Processes at a time.
        progress: Is advanced by planned frames, with the number of drops.
        locks: Handles that the workers hold as long as they live.
        drops: Episodes dropped before.

    Raises:
        ConfigError: the source can't be sent to a process.
        WdsmixError: what a job raised, or a worker was killed.
    """
    try:
        packed = pickle.dumps(setup)
    except Exception as error:
        raise ConfigError(
            f"the source can't be sent to a worker process: {error}",
            where=type(setup.source).__qualname__,
            hint="it must pickle without open files",
        ) from error
    _Run(packed, setup, deque(jobs), progress, locks, drops).run(min(workers, len(jobs)))


class _Run:
    def __init__(
        self,
        packed: bytes,
        setup: Setup,
        pending: deque[ShardJob],
        progress: Progress,
        locks: Sequence[int],
        drops: int,
    ) -> None:
        self.packed = packed
        self.setup = setup
        self.pending = pending
        self.progress = progress
        self.locks = locks
        self.workers: list[_Worker] = []
        self.behind: dict[str, int] = {}
        self.dropped: dict[str, int] = {"": drops}

    def run(self, count: int) -> None:
        try:
            for _ in range(count):
                self._start()
            while self.workers:
                handles: list[object] = [worker.connection for worker in self.workers]
                handles += [worker.process.sentinel for worker in self.workers]
                ready = set(map(id, mpc.wait(handles, timeout=1.0)))  # type: ignore[arg-type]
                for worker in list(self.workers):
                    dead = not worker.process.is_alive()
                    if id(worker.connection) in ready or dead:
                        for message in worker.messages():
                            self._hear(worker, message)
                    if dead and worker in self.workers:
                        self._bury(worker)
                self.progress.advance(0)
        finally:
            for worker in self.workers:
                worker.end()

    def _start(self) -> None:
        self.workers.append(_Worker(self.packed, self.locks))

    def _give(self, worker: _Worker) -> None:
        if self.pending:
            worker.give(self.pending.popleft())
        else:
            self.workers.remove(worker)
            worker.end()

    def _hear(self, worker: _Worker, message: Message) -> None:
        if message.kind == "failed":
            raise _unpacked(message)
        if message.kind == "ready":
            self._give(worker)
            return
        if message.kind in ("reading", "idle"):
            worker.reading = message.episode
        self._count(message.shard, message.frames, message.drops)
        if message.kind == "done":
            self._give(worker)

    def _count(self, shard: str, frames: int, drops: int) -> None:
        step = frames - self.behind.get(shard, 0)
        self.behind[shard] = frames
        self.dropped[shard] = drops
        total = sum(self.dropped.values())
        self.progress.advance(step, **({"drops": total} if total else {}))

    def _bury(self, worker: _Worker) -> None:
        """A worker ended without having been told to."""
        worker.process.join()
        code = worker.process.exitcode or 0
        job, number = worker.job, worker.reading
        name = signal.Signals(-code).name if -code in set(signal.Signals) else f"exit code {code}"
        if job is None or number < 0 or -code not in _CRASHES:
            raise WdsmixError(
                f"a worker process ended ({name})"
                + (f" while it wrote {job.shard.name}" if job is not None else " before it took up work"),
                path=None if job is None or number < 0 else self._ref(job, number)[0],
                where=None if job is None or number < 0 else self._ref(job, number)[1],
                hint=_hint(job, -code),
            )
        reason = f"reading it killed the process ({name})"
        if self.setup.options.on_bad == "fail":
            file, episode = self._ref(job, number)
            raise DataError(reason, path=file, where=episode)
        self.workers.remove(worker)
        worker.end()
        self.pending.appendleft(replace(job, crashed={**job.crashed, number: reason}))
        self._count(job.shard.name, 0, 0)
        self._start()

    def _ref(self, job: ShardJob, number: int) -> tuple[str, str]:
        episode = next(episode for episode in job.shard.episodes if episode.number == number)
        return episode.file, episode.id


def _hint(job: ShardJob | None, number: int) -> str:
    if job is None:
        return 'a script that calls convert needs the guard `if __name__ == "__main__":`'
    if number == signal.SIGKILL:
        return "run the same command again to resume; if memory ran out, use fewer --workers"
    return "run the same command again to resume"


def _unpacked(message: Message) -> BaseException:
    error: BaseException = pickle.loads(message.error)
    error.__cause__ = _WorkerTraceError(message.trace)
    return error
