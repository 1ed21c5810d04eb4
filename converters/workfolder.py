"""`.work`: what an unfinished set knows of itself, and the locks that keep two runs apart.

::

    <set>/.work/
      plan.json                 written first; a run with another plan is refused
      <shard>.receipt.json      its presence says that the shard is finished
      source-<hash>.json        size and time of each source file as first seen (see `kept`)
      lock                      held by a whole run or a merge alone, by parts together
      parts-of-<n>.lock         held by parts of the same count together
      part-<i>-of-<n>.lock      held by one part

Locks are `flock`s: they end with the processes that hold them (workers inherit them), so none is ever stale.
The folder goes when manifest.json is there.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from pydantic import ValidationError
from wdsmix.converters.kept import Stamps
from wdsmix.converters.plan import Plan, differences

from wdsmix.errors import ConflictError, DataError
from wdsmix.manifest import Manifest, read_model
from wdsmix.shards.files import PARTIAL, fsync_folder
from wdsmix.shards.receipt import ShardReceipt

__all__ = ["Locks", "WorkFolder", "receipt_path"]

_WORK = ".work"
_PATIENCE = 3.0
_NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP})


def receipt_path(folder: Path, shard: str) -> Path:
    """Where the receipt of a shard is, while the set is unfinished."""
    return folder / _WORK / f"{shard}.receipt.json"


class Locks:
    """Keeps other runs away from a folder until closed; a context manager.

    Args:
        folder: Folder of the set.
        part: (i, n) with i from 0; n = 1 is a whole run, which nothing else may share.
        patience: Seconds to wait for locks of processes that are just ending (default: 3).

    Raises:
        ConflictError: another run is at work there.
    """

    def __init__(self, folder: Path, part: tuple[int, int] = (0, 1), *, patience: float | None = None) -> None:
        self.handles: list[int] = []
        self._work = folder / _WORK
        self._until = time.monotonic() + (_PATIENCE if patience is None else patience)
        index, count = part
        try:
            if count == 1:
                self._take("lock", fcntl.LOCK_EX, "another run")
            else:
                self._take("lock", fcntl.LOCK_SH, "a run of the whole set, or a merge,")
                self._take(f"parts-of-{count}.lock", fcntl.LOCK_SH, "another run")
                self._take(f"part-{index + 1}-of-{count}.lock", fcntl.LOCK_EX, f"part {index + 1}/{count}")
                self._refuse_other_counts(count)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Locks:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Lets others in."""
        while self.handles:
            os.close(self.handles.pop())

    def _take(self, name: str, how: int, who: str) -> None:
        path = self._work / name
        while True:
            self._work.mkdir(parents=True, exist_ok=True)
            try:
                handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
            except FileNotFoundError:  # a run that just finished removed the folder in between
                continue
            try:
                fcntl.flock(handle, how | fcntl.LOCK_NB)
            except OSError as error:
                os.close(handle)
                if error.errno in _NO_LOCKS:
                    return  # a file system without locks: nothing can be promised there
                if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                    raise
                if time.monotonic() > self._until:
                    raise ConflictError(
                        f"{who} is at work there", path=self._work.parent, hint="wait for it, or stop it first"
                    ) from error
                time.sleep(0.05)
                continue
            try:
                same = os.path.samestat(os.fstat(handle), path.stat())
            except FileNotFoundError:
                same = False
            if same:
                self.handles.append(handle)
                return
            os.close(handle)  # its last holder finished the set and removed the file: try again

    def _refuse_other_counts(self, count: int) -> None:
        for path in sorted(self._work.glob("parts-of-*.lock")):
            if path.name == f"parts-of-{count}.lock":
                continue
            handle = os.open(path, os.O_RDWR)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise ConflictError(
                    "parts of another count are at work there", path=self._work.parent, found=path.stem
                ) from error
            finally:
                os.close(handle)


class WorkFolder:
    """The state of a set's folder before, while and after it is written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / _WORK

    def check_usable(self) -> None:
        """Refuses a folder that holds anything but a set, finished or not.

        Raises:
            ConflictError: it holds something else, or is a file.
        """
        if not self.folder.exists():
            return
        if not self.folder.is_dir():
            raise ConflictError("not a folder", path=self.folder)
        names = {path.name for path in self.folder.iterdir()}
        if names and not names & {"manifest.json", _WORK}:
            raise ConflictError(
                "folder is not empty and holds no set of ours",
                path=self.folder,
                found=", ".join(sorted(names)[:3]),
                hint="choose a new folder",
            )

    def manifest(self) -> Manifest | None:
        """The manifest of a finished set."""
        path = self.folder / "manifest.json"
        data = _bytes_of(path)
        return None if data is None else read_model(Manifest, data, path)

    def plan(self) -> Plan | None:
        """The plan of an unfinished set."""
        path = self.path / "plan.json"
        data = _bytes_of(path)
        return None if data is None else read_model(Plan, data, path)

    def adopt(self, plan: Plan) -> None:
        """Writes the plan, or makes sure that the one already there is the same.

        Raises:
            ConflictError: another one is there; names each difference.
        """
        self._first("plan.json", plan.to_bytes())
        self.check_plan(plan)

    def remember(self, stamps: Stamps | None, *, anew: bool = False) -> None:
        """Keeps what the source's files looked like, or makes sure that they still do.

        Args:
            stamps: Of now; None: the source tells none.
            anew: Nothing is kept of earlier runs, so that these stamps are the first ones.

        Raises:
            ConflictError: a file changed since the first run here.
        """
        if stamps is None:
            return
        path = self.path / stamps.name
        if anew:
            path.unlink(missing_ok=True)
        self._first(path.name, stamps.to_bytes())
        Stamps.from_bytes(path.read_bytes(), path).check(stamps, path, self.folder)

    def _first(self, name: str, data: bytes) -> None:
        """Writes a file of `.work`, unless a run that shares the folder was faster."""
        self.path.mkdir(parents=True, exist_ok=True)
        path = self.path / name
        if path.exists():
            return
        mine = self.path / f"{name}.{os.getpid()}{PARTIAL}"
        with mine.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(mine, path)  # unlike a rename, fails where another was faster
        except FileExistsError:
            pass
        except OSError:  # a file system without hard links
            mine.replace(path)
        mine.unlink(missing_ok=True)
        fsync_folder(self.path)

    def check_plan(self, plan: Plan) -> None:
        """Makes sure that the plan there is this one.

        Raises:
            ConflictError: it is another one; names each difference.
        """
        there = self.plan()
        if there is not None and there.digest != plan.digest:
            raise _conflict(self.folder, "an unfinished set with another plan is there", there.model_dump(), plan)

    def check_finished(self, manifest: Manifest, plan: Plan) -> None:
        """Makes sure that a finished set is what the plan would give.

        Raises:
            ConflictError: it is not; names each difference.
        """
        if manifest.plan_digest != plan.digest:
            there = {name: value for name, value in manifest.model_dump().items() if name in _COMPARED}
            raise _conflict(self.folder, "a finished set with another plan is there", there, plan)

    def receipts(self, plan: Plan) -> dict[str, ShardReceipt]:
        """Receipts of the shards that are finished: those whose files are there and as long as they say."""
        found: dict[str, ShardReceipt] = {}
        for shard in plan.shards:
            path = receipt_path(self.folder, shard.name)
            data = _bytes_of(path)
            if data is None:
                continue
            try:
                receipt = ShardReceipt.model_validate_json(data)
            except ValidationError as error:
                raise DataError(
                    "receipt of a shard is damaged", path=path, hint="delete it: its shard is then written again"
                ) from error
            files = [(self.folder / entry.name, entry.bytes) for entry in receipt.files]
            if all(file.is_file() and file.stat().st_size == size for file, size in files):
                found[shard.name] = receipt
        return found

    def forget(self, shard: str) -> None:
        """Removes the receipt of a shard that is to be written again, before its files are touched."""
        receipt_path(self.folder, shard).unlink(missing_ok=True)

    def clean(self, shards: Sequence[str]) -> None:
        """Removes the partial files of shards."""
        for shard in shards:
            for name in (f"{shard}.tar", f"{shard}.frames.arrow"):
                (self.folder / (name + PARTIAL)).unlink(missing_ok=True)

    def remove(self) -> None:
        """Removes the work folder of a finished set; the lock last."""
        if not self.path.is_dir():
            return
        for path in self.path.iterdir():
            if path.suffix != ".lock" and path.name != "lock":
                path.unlink()
        shutil.rmtree(self.path, ignore_errors=True)
        fsync_folder(self.folder)


def _bytes_of(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


_COMPARED = (
    "name",
    "kind",
    "embodiment",
    "licence",
    "source_fps",
    "hz",
    "arguments",
    "libraries",
    "converter",
    "converter_version",
    "source_fingerprint",
)


def _conflict(folder: Path, message: str, there: dict[str, object], plan: Plan) -> ConflictError:
    mine = {name: value for name, value in plan.model_dump().items() if name in there}
    named = differences(there, mine) or ["details of the plan"]
    shown = "; ".join(named[:6]) + ("; ..." if len(named) > 6 else "")
    return ConflictError(
        f"{message}: {shown}", path=folder, hint="use the old arguments, or choose a new folder (or delete this one)"
    )
