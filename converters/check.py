"""``wdsmix check FAMILY SRC``: reads a source and writes nothing.

Works over the `wdsmix.converters.base.Source` protocol. A family can add to the table: its source may have
``checks()`` (the lines of the table, in order) and ``findings()`` ((check, subject, text) for what its own metadata
show), and its errors a ``check`` attribute (a key of the family's ``CHECKS``).
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
from collections.abc import Mapping, Sequence, Set
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from wdsmix.converters.families import right_family_named
from wdsmix.converters.options import add_families, add_mapping_options, available_workers, open_source
from wdsmix.converters.preview import add_preview, preview_path, preview_source
from wdsmix.converters.signals import leave_stops_to_parent, stops_blocked

from wdsmix.errors import DataError
from wdsmix.texts import counted, printable

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from wdsmix.converters.base import Source
    from wdsmix.converters.plausible import Look
    from wdsmix.converters.relation import EpisodeRelation

    from wdsmix.episode import Episode, EpisodeRef, Image, SourceInfo
    from wdsmix.progress import Progress

__all__ = ["HELP", "Line", "Report", "check", "configure", "run"]

HELP = """Read a source, report what is wrong with it, write nothing.

Each line of the table is one check with its count of good and bad files, episodes or pictures, and the first offenders.
Pictures are decoded at the first, middle and last frame of each episode and camera; --full decodes all of them.
Exit code 0: nothing is bad (notes do not count); 1: something is, or there is not one good episode.
"""

_OPENS, _COMPLETE, _READS, _ROWS, _FINITE, _IMAGES = (
    "file opens",
    "fields complete",
    "episode reads",
    "action and state rows equal",
    "values finite",
    "images decodable",
)
_NOTES = frozenset({"rate known", "names without gaps"})
_SHOWN = 5


@dataclass(slots=True)
class Line:
    """One check."""

    name: str
    ok: int = 0
    bad: int = 0
    note: bool = False
    """Whether what is bad is only told, without an exit code."""
    offenders: list[str] = field(default_factory=list)
    """The first ones, in words."""

    def fail(self, subject: str, text: str) -> None:
        """Counts one offender."""
        self.bad += 1
        if len(self.offenders) < _SHOWN:
            self.offenders.append(f"{printable(subject)}: {text}" if subject else text)


@dataclass(slots=True)
class Report:
    """What a check found."""

    source: str
    kind: str
    files: int
    episodes: int
    filtered: int
    frames: int
    lines: dict[str, Line]
    warnings: Sequence[str] = ()

    @property
    def good(self) -> bool:
        """Whether nothing is bad and there is something to convert."""
        return self.episodes > 0 and not any(line.bad and not line.note for line in self.lines.values())

    def to_json(self) -> dict[str, object]:
        """JSON types."""
        return {
            "source": self.source,
            "kind": self.kind,
            "files": self.files,
            "episodes": self.episodes,
            "filtered": self.filtered,
            "frames": self.frames,
            "good": self.good,
            "checks": [
                {"name": line.name, "ok": line.ok, "bad": line.bad, "note": line.note, "offenders": line.offenders}
                for line in self.lines.values()
            ],
            "warnings": list(self.warnings),
        }


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds one subcommand a family."""
    for sub, family in add_families(
        parser, lambda _, family: (family.HELP.strip().splitlines()[0], f"{HELP}\n{family.HELP}")
    ):
        sub.add_argument("src", type=Path, metavar="SRC", help="file or folder to read; never written to")
        family.configure(sub)
        add_mapping_options(sub)
        group = sub.add_argument_group("check")
        group.add_argument("--full", action="store_true", help="decode every picture")
        group.add_argument("--json", action="store_true", help="print the report as JSON")
        group.add_argument("--quiet", action="store_true", help="no progress")
        group.add_argument("--allow-no-camera", action="store_true", help="episodes without any picture are fine")
        group.add_argument("--workers", type=int, default=available_workers(), metavar="N", help="processes")
        add_preview(group, beside=False)


def run(args: argparse.Namespace) -> int:
    """Checks; 1 if something is bad."""
    preview = preview_path(args.preview)
    with right_family_named(args):
        source = open_source(args)
        report = check(
            source,
            str(args.src),
            full=args.full,
            allow_no_camera=args.allow_no_camera,
            workers=max(1, args.workers),
            quiet=args.quiet or args.json,
        )
    if args.json:
        sys.stdout.write(json.dumps(report.to_json(), indent=1, ensure_ascii=False) + "\n")
    else:
        _show(report)
    if preview is not None:
        for text in preview_source(source, preview):
            sys.stderr.write(f"wdsmix: warning: preview: {printable(text)}\n")
        sys.stderr.write(f"wdsmix: preview: {printable(str(preview))}\n")
    return 0 if report.good else 1


def check(
    source: Source,
    name: str,
    *,
    full: bool = False,
    allow_no_camera: bool = False,
    workers: int = 0,
    quiet: bool = True,
) -> Report:
    """Checks a source.

    Args:
        source: A `wdsmix.converters.base.Source`.
        name: What to call it.
        full: Decode every picture instead of three of each camera and episode.
        allow_no_camera: Whether an episode without pictures is fine.
        workers: Processes that read, which a crafted file may crash; 0: this one.
        quiet: No progress.
    """
    from wdsmix.progress import Progress

    refs = source.episodes()
    info = source.describe()
    names = getattr(source, "checks", None)
    order = list(names()) if callable(names) else [_OPENS, _COMPLETE, _READS]
    lines = {line: Line(line, note=line in _NOTES) for line in (*order, _READS, _ROWS, _FINITE, _IMAGES)}
    findings = getattr(source, "findings", None)
    told: set[str] = set()
    for line, subject, text in findings() if callable(findings) else ():
        lines.setdefault(line, Line(line)).fail(subject, text)
        told.add(text)
    good = [ref for ref in refs if ref.fault is None]
    for ref in refs:
        if ref.fault is not None and ref.fault_kind != "filter" and not callable(findings):
            lines[_OPENS if ref.fault_kind == "file" else _COMPLETE].fail(_subject(ref), ref.fault)
        elif ref.fault is not None and ref.fault_kind == "episode" and ref.fault not in told:
            lines[_COMPLETE].fail(_subject(ref), ref.fault)
    frames = 0
    with Progress(len(good), "episodes", "check", quiet=quiet) as bar:
        results = _read_all(source, good, full=full, workers=workers, bar=bar)
    for ref, found in zip(good, results, strict=True):
        if not ref.cameras and not allow_no_camera:
            lines[_COMPLETE].fail(_subject(ref), "it has no pictures (--allow-no-camera: that is fine)")
        for line, count in found.passed.items():
            lines[line].ok += count
        for line, text in found.failed:
            lines.setdefault(line, Line(line)).fail(_subject(ref), text)
        frames += found.frames
    files = {ref.file for ref in refs}
    bad_files = {ref.file for ref in refs if ref.fault_kind == "file" and ref.fault is not None}
    for line in lines.values():
        if line.name == _OPENS:
            line.ok = len(files - bad_files)
        elif line.note:  # of files, not of episodes
            line.ok = max(0, len(files - bad_files) - line.bad)
        elif line.name not in (_READS, _ROWS, _FINITE, _IMAGES):
            line.ok = max(0, sum(ref.fault is None or ref.fault_kind != "file" for ref in refs) - line.bad)
    return Report(
        source=name,
        kind=info.kind,
        files=len(files),
        episodes=len(good),
        filtered=sum(ref.fault_kind == "filter" for ref in refs),
        frames=frames,
        lines={key: line for key, line in lines.items() if line.ok or line.bad},
        warnings=[*info.warnings, *_implausible(info, good, results)],
    )


def _implausible(info: SourceInfo, refs: Sequence[EpisodeRef], results: Sequence[_Found]) -> list[str]:
    """What single values do not tell: see `wdsmix.converters.plausible`."""
    from wdsmix.converters.plausible import Looks, Streams, spread_over

    specs = info.vectors
    streams = Streams(
        names={name: spec.names for name, spec in specs.items()},
        kinds={name: spec.kinds for name, spec in specs.items()},
        fps=info.fps,
    )
    looks = Looks(streams=streams)
    compared = set() if {"relation", "navigation"} & set(info.details) else spread_over(len(refs))
    for number, (ref, found) in enumerate(zip(refs, results, strict=True)):
        if found.seen is not None:
            looks.add(_subject(ref), found.seen)
        if found.relation is not None and number in compared:
            looks.relation.episodes.append(found.relation)
    return looks.tell()[1]


def _subject(ref: EpisodeRef) -> str:
    return f"{ref.file}/{ref.id}" if ref.id else ref.file


def _labels(source: object) -> Mapping[str, str]:
    """The family's own names of checks, by the ``check`` attribute of its errors."""
    module = sys.modules.get(type(source).__module__)
    found = getattr(module, "CHECKS", {})
    return found if isinstance(found, dict) else {}


@dataclass(slots=True)
class _Found:
    """What reading one episode showed."""

    frames: int = 0
    passed: dict[str, int] = field(default_factory=dict)
    """Line -> what was good."""
    failed: list[tuple[str, str]] = field(default_factory=list)
    """(line, text)."""
    seen: Look | None = None
    relation: EpisodeRelation | None = None

    def ok(self, line: str) -> None:
        self.passed[line] = self.passed.get(line, 0) + 1


def _read_all(source: Source, refs: Sequence[EpisodeRef], *, full: bool, workers: int, bar: Progress) -> list[_Found]:
    """Reads episodes, in child processes where ``workers`` is not 0: one that dies costs the episode it was reading."""
    if not workers or not refs:
        found = []
        for ref in refs:
            found.append(_check_episode(source, ref, full=full))
            bar.advance(1)
        return found
    done: dict[int, _Found] = {}
    todo = list(range(len(refs)))[::-1]
    crashed = "reading it crashed the process: a damaged or hostile file"
    while todo:
        suspects: list[int] = []
        with _pool(source, min(workers, len(todo))) as pool:
            running: dict[Future[_Found], int] = {}
            while (todo or running) and not suspects:
                while todo and len(running) < workers:
                    number = todo.pop()
                    try:
                        running[_submit(pool, refs[number], full)] = number
                    except BrokenProcessPool:
                        suspects.append(number)
                        break
                for future in wait(running, return_when=FIRST_COMPLETED).done if running else ():
                    number = running.pop(future)
                    try:
                        done[number] = future.result()
                        bar.advance(1)
                    except BrokenProcessPool:
                        suspects.append(number)
            suspects += running.values()
        for number in sorted(suspects):
            with _pool(source, 1) as pool:
                try:
                    done[number] = _submit(pool, refs[number], full).result()
                except BrokenProcessPool:
                    done[number] = _Found(failed=[(_READS, crashed)])
            bar.advance(1)
    return [done[number] for number in range(len(refs))]


_child_source: Source | None = None


def _pool(source: Source, workers: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(
        workers, mp_context=multiprocessing.get_context("spawn"), initializer=_start_child, initargs=(source,)
    )


def _submit(pool: ProcessPoolExecutor, ref: EpisodeRef, full: bool) -> Future[_Found]:
    with stops_blocked():  # this may start a child
        return pool.submit(_check_in_child, ref, full)


def _start_child(source: Source) -> None:
    global _child_source
    leave_stops_to_parent()
    _child_source = source


def _check_in_child(ref: EpisodeRef, full: bool) -> _Found:
    if _child_source is None:
        raise RuntimeError("the child got no source")
    return _check_episode(_child_source, ref, full=full)


def _check_episode(source: Source, ref: EpisodeRef, *, full: bool) -> _Found:
    """Reads one episode."""
    import numpy as np
    from wdsmix.converters.plausible import look, related

    from wdsmix.limits import MAX_TASK_BYTES, check_size
    from wdsmix.report.moments import moments
    from wdsmix.shards.content import FrameTexts

    found = _Found()
    try:
        with source.read(ref) as episode:
            found.ok(_READS)
            lengths = {name: len(values) for name, values in episode.vectors.items()}
            if len(set(lengths.values())) > 1:
                found.failed.append((_ROWS, ", ".join(f"{name} {length}" for name, length in lengths.items())))
                return found
            found.ok(_ROWS)
            count = len(episode)
            wrong = {
                name: np.argwhere(~np.isfinite(values))[0].tolist()
                for name, values in episode.vectors.items()
                if not np.isfinite(values).all()
            }
            if wrong:
                found.failed.append((_FINITE, ", ".join(f"{name} at {place}" for name, place in wrong.items())))
            else:
                found.ok(_FINITE)
            for task in episode.tasks:
                check_size("a task", task, MAX_TASK_BYTES)
                FrameTexts(episode.extras, episode.frame_extras, count).of(0, 0, 0.0, task)
            picks = np.arange(count) if full else np.array(moments(count))
            native = picks if episode.rows is None else episode.rows[picks]
            kept = frozenset(np.searchsorted(picks, moments(count)).tolist())
            shown = {
                slot: _check_pictures(episode, slot, native.astype(np.int64), found, kept) for slot in episode.images
            }
            found.frames = count
            rgb = {slot: pictures for slot, pictures in shown.items() if episode.cameras[slot].kind == "rgb"}
            found.seen = look(episode.vectors, {slot: p for slot, p in rgb.items() if len(p) == len(kept)})
            found.relation = related(episode.vectors)
    except DataError as error:
        label = _labels(source).get(getattr(error, "check", ""), _READS)
        bare = DataError(error.message, where=error.where, expected=error.expected, found=error.found, hint=error.hint)
        found.failed.append((label, str(bare)))
    except Exception as error:  # a source of a third party may fail in any way
        found.failed.append((_READS, f"{type(error).__name__}: {error}"))
    return found


def _check_pictures(
    episode: Episode, slot: str, rows: npt.NDArray[np.int64], found: _Found, kept: Set[int]
) -> list[Image]:
    """Decodes pictures of one camera; returns those whose places are to be kept."""
    from wdsmix.imaging import decode_depth, decode_rgb

    done = 0
    shown: list[Image] = []
    try:
        for picture in episode.images[slot].read(rows):
            if isinstance(picture, bytes):
                (decode_depth if episode.cameras[slot].kind == "depth" else decode_rgb)(picture)
            if done in kept:
                shown.append(picture if isinstance(picture, bytes) else picture.copy())
            done += 1
            found.ok(_IMAGES)
        if done != len(rows):
            raise DataError("the pictures end early", expected=len(rows), found=done)
    except DataError as error:
        place = f"{slot} ({episode.cameras[slot].key})" + (f", frame {int(rows[done])}" if done < len(rows) else "")
        bare = DataError(error.message, where=error.where, expected=error.expected, found=error.found, hint=error.hint)
        found.failed.append((_IMAGES, f"{place}: {bare}"))
    return shown


def _show(report: Report) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    table = Table()
    console.print(escape(printable(f"{report.source} ({report.kind})")), soft_wrap=True)
    table.add_column("check")
    table.add_column("ok", justify="right")
    table.add_column("bad", justify="right")
    noted = any(line.note and line.bad for line in report.lines.values())
    if noted:
        table.add_column("noted", justify="right")
    for line in report.lines.values():
        colour = "" if not line.bad else "yellow" if line.note else "red"
        counts = ["", str(line.bad)] if line.note and noted else [str(line.bad), ""]
        table.add_row(line.name, str(line.ok), *counts[: 1 + noted], style=colour)
    console.print(table)
    for line in report.lines.values():
        if line.bad:
            console.print(f"{line.name}: {line.bad} {'noted' if line.note else 'bad'}", style="bold")
        for offender in line.offenders:
            console.print(f"  {escape(printable(offender, lines=True))}", soft_wrap=True, highlight=False)
        if line.bad > len(line.offenders):
            console.print(f"  ... and {line.bad - len(line.offenders)} more")
    for warning in report.warnings:
        console.print(f"note: {escape(printable(warning))}", soft_wrap=True)
    filtered = f", {report.filtered} filtered out" if report.filtered else ""
    verdict = "ready to convert" if report.good else "not good as it is"
    console.print(
        f"{counted(report.files, 'file')}, {counted(report.episodes, 'good episode')}{filtered}, "
        f"{counted(report.frames, 'frame')} read: {verdict}"
    )
