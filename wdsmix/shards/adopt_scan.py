"""First look at foreign tars: which samples make an episode, and what the members of a sample are.

Nothing is loaded that could run code: pickled members are named and passed over.
"""

from __future__ import annotations

import io
import json
import mmap
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from wdsmix.errors import ConfigError, DataError
from wdsmix.limits import MAX_VECTOR_WIDTH
from wdsmix.shards.npy import check_length, read_header
from wdsmix.shards.samples import Sample, iter_samples

__all__ = [
    "EpisodeRule",
    "Kind",
    "ShardScan",
    "Span",
    "SuffixScan",
    "mapped_tar",
    "read_json",
    "scan_shard",
    "timestamp",
]

Kind: TypeAlias = Literal["picture", "vector", "json", "text", "ignored"]

PICTURES = frozenset({"jpg", "jpeg", "png", "webp"})
TEXTS = ("txt", "task.txt", "language.txt", "instruction.txt")
"""Suffixes whose text is the task."""
_WHY_IGNORED = {
    **dict.fromkeys(("pkl", "pickle", "pyd", "pth", "pt", "joblib"), "never loaded, as it could run code"),
    "npz": "archives of arrays are not read: store each vector as its own .npy",
    "json": "only the member .json is read",
    "txt": "no task text: .txt, .task.txt, .language.txt or .instruction.txt would be",
}


@dataclass(frozen=True, slots=True)
class EpisodeRule:
    """How a sample tells its episode: ``""`` (each sample is one), ``json:FIELD``, or a regular expression."""

    text: str

    def __post_init__(self) -> None:
        if self.text and not self.text.startswith("json:"):
            try:
                re.compile(self.text)
            except re.error as error:
                raise ConfigError(
                    f"not a regular expression: {error}", where="--episode-from", found=self.text
                ) from error
        if self.text == "json:":
            raise ConfigError("names no field", where="--episode-from", expected="json:FIELD", found=self.text)

    @property
    def json_field(self) -> str:
        """The JSON field, parts joined by dots; empty for another rule."""
        return self.text[5:] if self.text.startswith("json:") else ""

    def of(self, sample: Sample, fields: Mapping[str, Any] | None, path: Path) -> tuple[str, int | None]:
        """Episode id of a sample, and its frame number where the key tells one.

        Raises:
            DataError: the sample does not tell.
        """
        if not self.text:
            return sample.key, None
        if self.json_field:
            value: Any = fields
            for part in self.json_field.split("."):
                value = value.get(part) if isinstance(value, Mapping) else None
            if isinstance(value, bool) or not isinstance(value, (str, int)) or value == "":
                raise DataError(
                    f"the sample's JSON has no episode in field {self.json_field}",
                    path=path,
                    where=sample.place,
                    expected="a string or a whole number",
                    found="no .json" if fields is None else repr(value),
                )
            return str(value), None
        match = re.search(self.text, sample.key)
        if match is None:
            raise DataError(
                "the key does not match the expression that tells the episode",
                path=path,
                where=sample.place,
                expected=self.text,
                found=sample.key,
            )
        groups = match.groupdict()
        first = match.group(1) if match.re.groups else match.group()
        episode = groups.get("episode") or first or ""
        frame = groups.get("frame")
        if frame is not None and not frame.isdecimal():
            raise DataError("the key's frame is not a number", path=path, where=sample.place, found=frame)
        return episode, None if frame is None else int(frame)


@dataclass(slots=True)
class Span:
    """A run of samples of one shard that make one episode."""

    id: str
    first_row: int
    place: str
    """Of its first sample."""
    frames: int = 0
    timed: int = 0
    """Samples whose JSON has a timestamp."""


@dataclass(slots=True)
class SuffixScan:
    """What the members of one suffix are."""

    kind: Kind
    count: int = 0
    widths: Counter[int] = field(default_factory=Counter)
    """Vectors: width -> members."""
    problem: str = ""
    """Why it can't be used."""
    place: str = ""
    """Where the problem shows first."""


@dataclass(slots=True)
class ShardScan:
    """What the first look at one tar found."""

    shard: str
    samples: int = 0
    spans: list[Span] = field(default_factory=list)
    suffixes: dict[str, SuffixScan] = field(default_factory=dict)
    step: float = 0.0
    """Median distance of the timestamps within episodes, s; 0 where there are none."""


@contextmanager
def mapped_tar(path: Path) -> Iterator[mmap.mmap]:
    """Maps a tar for reading.

    Raises:
        DataError: it is empty or can't be read.
    """
    try:
        with path.open("rb") as file:
            if not file.seek(0, io.SEEK_END):
                raise DataError("the tar is empty", path=path, expected="at least its end marker", found="0 bytes")
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise DataError(f"can't be read: {error}", path=path) from error
    yield mapped  # not closed by force: an error on its way out may still refer to it


def read_json(mapped: mmap.mmap, sample: Sample, path: Path) -> dict[str, Any] | None:
    """The sample's ``.json`` object; None without one.

    Raises:
        DataError: it is not a JSON object.
    """
    member = sample.members.get("json")
    if member is None:
        return None
    try:
        value = json.loads(mapped[member.data : member.data + member.size].decode())
    except (ValueError, RecursionError) as error:
        raise DataError(f"not JSON: {error}", path=path, where=f"{sample.place}, json") from error
    if not isinstance(value, dict):
        raise DataError(
            "the JSON is not an object", path=path, where=f"{sample.place}, json", found=type(value).__name__
        )
    return value


def timestamp(fields: Mapping[str, Any] | None) -> float | None:
    """The finite number under ``timestamp``, or None."""
    value = None if fields is None else fields.get("timestamp")
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < 1e300:
        return None
    return float(value)


def scan_shard(path: Path, rule: EpisodeRule) -> ShardScan:
    """Parses all headers of a tar, the JSON, and the headers of the .npy members.

    Raises:
        DataError: the tar is damaged, a sample does not tell its episode, an episode comes back after another, or its
            frame numbers do not ascend.
    """
    found = ShardScan(path.name[: -len(".tar")])
    starts: dict[str, str] = {}
    last_frame: int | None = None
    last_time: float | None = None
    steps: list[float] = []
    with mapped_tar(path) as mapped:
        for sample in iter_samples(mapped, path=path):
            fields = read_json(mapped, sample, path)
            episode, frame = rule.of(sample, fields, path)
            if not found.spans or found.spans[-1].id != episode or not rule.text:
                if episode in starts:
                    raise DataError(
                        f"the frames of episode {episode} do not follow each other (it began at {starts[episode]})",
                        path=path,
                        where=sample.place,
                        hint="the frames of an episode must be contiguous in one tar: sort them before packing",
                    )
                starts[episode] = sample.place
                found.spans.append(Span(episode, found.samples, sample.place))
                last_frame = last_time = None
            span = found.spans[-1]
            if frame is not None and last_frame is not None and frame <= last_frame:
                raise DataError(
                    f"the frames of episode {episode} are not in order",
                    path=path,
                    where=sample.place,
                    expected=f"a frame after {last_frame}",
                    found=frame,
                )
            last_frame = frame
            time = timestamp(fields)
            if time is not None:
                span.timed += 1
                if last_time is not None:
                    steps.append(time - last_time)
            last_time = time
            span.frames += 1
            found.samples += 1
            for suffix in sample.members:
                _see(found.suffixes, suffix, sample, mapped, path)
    found.step = float(np.median(steps)) if steps else 0.0
    return found


def _see(suffixes: dict[str, SuffixScan], suffix: str, sample: Sample, mapped: mmap.mmap, path: Path) -> None:
    scan = suffixes.get(suffix)
    if scan is None:
        scan = suffixes[suffix] = _first(suffix)
        scan.place = f"{path.name}, {sample.place}"
    scan.count += 1
    if scan.kind == "vector":
        member = sample.members[suffix]
        head = mapped[member.data : member.data + min(member.size, 4096)]
        width, problem = _npy_width(head, member.size, path, f"{sample.place}, {suffix}")
        scan.widths[width] += 1
        if problem and not scan.problem:
            scan.problem, scan.place = problem, f"{path.name}, {sample.place}"


def _first(suffix: str) -> SuffixScan:
    low = suffix.lower()
    extension = low.rsplit(".", 1)[-1]
    if extension in PICTURES:
        return SuffixScan("picture")
    if extension == "npy":
        return SuffixScan("vector")
    if low == "json":
        return SuffixScan("json")
    if low in TEXTS:
        return SuffixScan("text")
    return SuffixScan("ignored", problem=_WHY_IGNORED.get(extension, "not a kind of member that is known"))


def _npy_width(head: bytes, size: int, path: Path, where: str) -> tuple[int, str]:
    """Width of a vector by its .npy header; or 0 and why it is none.

    Raises:
        DataError: damaged, or of another length than its header says.
    """
    try:
        header = read_header(head)
        shape, dtype = header.shape, header.dtype
        if not dtype.hasobject:
            check_length(header, size)
    except DataError as error:
        raise DataError(error.message, path=path, where=where, expected=error.expected, found=error.found) from error
    if dtype.hasobject:
        return 0, "it holds pickled objects, which are never loaded"
    if dtype.kind not in "fiub":
        return 0, f"it holds {dtype}, not numbers"
    if len(shape) > 1:
        return 0, f"it is an array {list(shape)}, not a vector"
    width = shape[0] if shape else 1
    if width > MAX_VECTOR_WIDTH:
        return 0, f"it has {width} dimensions, a vector at most {MAX_VECTOR_WIDTH}"
    return (width, "") if width else (0, "it is empty")
