"""Scanning files: metadata of every episode, in child processes that a crafted file may crash.

A child (`serve`) reads its options and then file names from stdin, and answers each with one line of JSON. One that
dies costs only the file it was reading.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import pickle
import queue
import re
import resource
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from wdsmix.converters.hdf5.detect import UNKNOWN, detect
from wdsmix.converters.hdf5.faults import Hdf5Error
from wdsmix.converters.hdf5.layout import Dialect, FileFacts, name_fault
from wdsmix.converters.hdf5.measure import measure
from wdsmix.converters.hdf5.options import Hdf5Options
from wdsmix.converters.hdf5.pairing import layout_of
from wdsmix.converters.hdf5.safe import Tree
from wdsmix.converters.signals import leave_stops_to_parent, stops_blocked

from wdsmix.errors import ConfigError, DataError, WdsmixError
from wdsmix.limits import MAX_TASK_BYTES, check_size
from wdsmix.texts import printable

__all__ = ["EpisodeScan", "FileScan", "scan_file", "scan_files", "serve"]

_TIMEOUT_S = 900.0
_MEMORY = 4 << 30
"""Bytes that a child may take beyond those it starts with: texts of a crafted file can share their bytes."""
_START = "import sys; sys.path[:] = sys.argv[1:]; from wdsmix.converters.hdf5.scan import serve; serve()"
"""What a child runs: the modules of its parent, never those of a working folder that may hold anything."""


@dataclass(kw_only=True, slots=True)
class EpisodeScan:
    """One episode, from metadata (JSON types)."""

    group: str
    frames: int = 0
    widths: Mapping[str, int] = field(default_factory=dict)
    names: Mapping[str, Sequence[str]] = field(default_factory=dict)
    cameras: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Key -> path, order, flip."""
    split: str | None = None
    fault: str | None = None
    fault_kind: Literal["episode", "filter"] = "episode"
    check: str = ""
    warnings: Sequence[str] = ()


@dataclass(kw_only=True, slots=True)
class FileScan:
    """One file, from metadata (JSON types)."""

    dialect: str = ""
    fps: float = 0.0
    fps_from: str = ""
    embodiment: str = ""
    task: str = ""
    kinds: Mapping[str, Sequence[str]] = field(default_factory=dict)
    details: Mapping[str, object] = field(default_factory=dict)
    episodes: Sequence[EpisodeScan] = ()
    fault: str | None = None
    check: str = ""
    beside: Sequence[str] = ()
    """Files beside it that were looked for, relative to its folder."""
    unknown: bool = False
    config: bool = False
    """Whether the fault is the user's (an option), not the file's."""
    warnings: Sequence[str] = ()


def scan_file(root: Path, file: str, options: Hdf5Options) -> FileScan:
    """Scans one file in this process.

    Args:
        root: The source's folder.
        file: Name below it.
        options: Of the family.
    """
    result = FileScan()
    try:
        with Tree(root / file) as tree:
            dialect = detect(tree, options)
            if dialect is None:
                return FileScan(warnings=("0 episodes: its group /data is empty",))
            result.dialect = dialect.name
            allowed = options.allow_no_camera and dialect.layout is not None
            if dialect.layout is None or (dialect.refusal and not allowed):
                found = ", ".join(line.strip().split("  ")[0] for line in tree.lines(6))
                raise Hdf5Error(dialect.refusal, check="fields", expected="pictures beside the vectors", found=found)
            try:
                _scan_tree(tree, dialect, options, result)
            finally:
                result.beside = sorted(tree.beside)
    except Hdf5Error as fault:
        result.fault, result.check = _short(fault), fault.check
        result.unknown = fault.message.startswith(UNKNOWN)
    except ConfigError as error:
        result.fault, result.config = str(error), True
    except MemoryError:
        result.fault, result.check = "refused: its metadata need too much memory", "safe"
    return result


def _scan_tree(tree: Tree, dialect: Dialect, options: Hdf5Options, result: FileScan) -> None:
    facts = dialect.facts(tree, options) if dialect.facts else FileFacts(fps=options.fps, fps_from="--fps")
    result.fps, result.fps_from, result.task = facts.fps, facts.fps_from, facts.task
    result.embodiment, result.kinds, result.details = facts.embodiment, facts.kinds, facts.details
    groups = dialect.groups(tree, options)
    result.episodes = [_scan_episode(tree, group, dialect, options, facts) for group in groups]
    result.warnings = [printable(warning, lines=True) for warning in facts.warnings]
    if not groups:
        result.warnings.append("0 episodes")


def _scan_episode(tree: Tree, group: str, dialect: Dialect, options: Hdf5Options, facts: FileFacts) -> EpisodeScan:
    name = group.rsplit("/", 1)[-1]
    scan = EpisodeScan(group=group, split=facts.splits.get(name))
    try:
        wrong = name_fault(name) if group != "/" else None
        if wrong:
            scan.group = name.encode("unicode_escape", "backslashreplace").decode("ascii")
            raise Hdf5Error(wrong, check="safe")
        if facts.selected is not None and name not in facts.selected:
            scan.fault, scan.fault_kind = f"not in mask/{options.mask}", "filter"
            return scan
        if group != "/" and not dialect.virtual and tree.group(group) is None:
            raise Hdf5Error("leads nowhere", where=group)
        layout = layout_of(dialect, tree, group, options, facts)
        scan.warnings = list(layout.warnings)
        for what, value in (("task", layout.task), ("task_zh", layout.task_zh)):
            _check_text(what, value, group)
        scan.fault_kind = "filter"
        if not options.wants_task(layout.task, layout.task_zh):
            scan.fault = f"task {layout.task!r} is not wanted (--task)"
        elif options.min_score is not None and (layout.score is None or layout.score < options.min_score):
            scan.fault = f"score {'unknown' if layout.score is None else layout.score} below {options.min_score:g}"
        elif layout.success is False and (options.failed or dialect.failed) == "drop":
            scan.fault = "the attempt failed, as the file says; --failed keep takes it"
        else:
            scan.fault_kind = "episode"
            if options.gripper == "append" and not layout.gripper and dialect.name == "platform" and not options.state:
                raise Hdf5Error("observation.gripper is missing and --gripper append asks for it", where=group)
            found = measure(tree, group, layout, options)
            scan.frames = found.frames if found.keep is None else len(found.keep)
            scan.widths, scan.names = found.widths, found.names
            scan.cameras = {key: (camera.path, camera.order, camera.flip) for key, camera in layout.cameras.items()}
            scan.warnings += list(found.warnings)
    except Hdf5Error as fault:
        scan.fault, scan.check = _short(fault), fault.check
    return scan


def _check_text(what: str, value: str, group: str) -> None:
    try:
        check_size(what, value, MAX_TASK_BYTES)
    except DataError as error:
        raise Hdf5Error(
            error.message, check="strings", where=group, expected=error.expected, found=error.found
        ) from error


def _short(fault: Hdf5Error) -> str:
    """A fault's text without the path of the file, which its reference carries."""
    return printable(
        str(
            Hdf5Error(
                fault.message,
                check=fault.check,
                where=fault.where,
                expected=fault.expected,
                found=fault.found,
                hint=fault.hint,
            )
        ),
        lines=True,
    )


def scan_files(
    root: Path,
    files: Sequence[str],
    options: Hdf5Options,
    *,
    workers: int,
    advance: Callable[[], None] | None = None,
) -> dict[str, FileScan]:
    """Scans files in child processes, several at once.

    Args:
        root: The source's folder.
        files: Names below it.
        options: Of the family.
        workers: Children at once.
        advance: Called after each file.

    Returns:
        File -> what was found; a file that crashed its child has that as its fault.
    """
    todo: queue.SimpleQueue[str] = queue.SimpleQueue()
    for file in files:
        todo.put(file)
    found: dict[str, FileScan] = {}
    failures: list[BaseException] = []
    lock = threading.Lock()

    children: list[_Child] = []

    def serve() -> None:
        child = _Child(root, options)
        children.append(child)
        try:
            while not failures:
                try:
                    file = todo.get_nowait()
                except queue.Empty:
                    return
                scan = child.ask(file)
                with lock:
                    found[file] = scan
                    if advance is not None:
                        advance()
        except BaseException as error:
            failures.append(error)
        finally:
            child.stop()

    threads = [threading.Thread(target=serve, daemon=True) for _ in range(max(1, min(workers, len(files))))]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    except KeyboardInterrupt as error:
        failures.append(error)
        for child in children:
            child.kill()
        raise
    if failures:
        raise failures[0]
    return {file: found[file] for file in files}


class _Child:
    """One scanning process, started when first asked and again after it died."""

    def __init__(self, root: Path, options: Hdf5Options) -> None:
        self._hello = base64.b64encode(pickle.dumps((root, options, _MEMORY))) + b"\n"
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, file: str) -> FileScan:
        """Scans one file."""
        process = self._process
        if process is None or process.poll() is not None:
            with stops_blocked():
                process = self._process = subprocess.Popen(
                    [sys.executable, "-c", _START, *sys.path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
                )
            if process.stdin is None or process.stdout is None:
                raise WdsmixError("no pipes to the scanning process")
            process.stdin.write(self._hello)
            process.stdin.flush()
            if process.stdout.readline() != b"ready\n":
                raise WdsmixError("the scanning process did not start", found=f"exit code {process.wait()}")
        if process.stdin is None or process.stdout is None:
            raise WdsmixError("no pipes to the scanning process")
        watchdog = threading.Timer(_TIMEOUT_S, process.kill)
        watchdog.start()
        try:
            process.stdin.write(json.dumps(file).encode() + b"\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = b""
        finally:
            watchdog.cancel()
        if line.endswith(b"\n"):
            return _parse(line)
        code = process.wait()
        self.stop()
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        return FileScan(
            fault=f"reading its metadata crashed or hung the HDF5 library ({how}): a damaged or hostile file",
            check="opens",
        )

    def kill(self) -> None:
        """Ends the process at once, whatever it does."""
        if self._process is not None:
            self._process.kill()

    def stop(self) -> None:
        """Ends the process when it is done."""
        if self._process is None:
            return
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._process = None


def _parse(line: bytes) -> FileScan:
    plain = json.loads(line)
    if "crash" in plain:
        raise WdsmixError(plain["crash"])
    plain["episodes"] = [EpisodeScan(**episode) for episode in plain["episodes"]]
    return FileScan(**plain)


def _bound_memory(more: int) -> None:
    """Lets allocations fail once this process has taken so many bytes more, where the system can."""
    try:
        held = re.search(r"VmData:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"))
    except OSError:
        return
    if held is not None:
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        wanted = (int(held[1]) << 10) + more
        resource.setrlimit(resource.RLIMIT_DATA, (wanted if hard < 0 else min(wanted, hard), hard))


def serve() -> None:
    """The loop of a child."""
    leave_stops_to_parent()  # it ends this by closing its stdin
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # whatever a library prints goes to stderr
    root, options, memory = pickle.loads(base64.b64decode(sys.stdin.buffer.readline()))
    _bound_memory(memory)
    answers.write(b"ready\n")
    for line in sys.stdin.buffer:
        try:
            plain = asdict(scan_file(root, json.loads(line), options))
        except Exception as error:  # a bug of ours: reported by the parent, never taken for a fault of the file
            plain = {"crash": f"scanning {line.decode().strip()} failed: {type(error).__name__}: {error}"}
        answers.write(json.dumps(plain).encode() + b"\n")
