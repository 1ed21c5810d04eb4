"""What a dataset holds, found out once before the work: everything that planning needs, and nothing that is large."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from wdsmix.converters.lerobot.cameras import Cameras, choose_cameras
from wdsmix.converters.lerobot.clock import check_spans, check_video, row_rate
from wdsmix.converters.lerobot.columns import column_width, is_numeric
from wdsmix.converters.lerobot.index import DataIndex, Place
from wdsmix.converters.lerobot.info import Info, read_info
from wdsmix.converters.lerobot.locate import Locator
from wdsmix.converters.lerobot.modality import Modality, read_modality
from wdsmix.converters.lerobot.open_episode import Filmed
from wdsmix.converters.lerobot.options import LeRobotOptions
from wdsmix.converters.lerobot.positions import Segment, agreeing, in_order
from wdsmix.converters.lerobot.roles import Roles, choose_roles
from wdsmix.converters.lerobot.tables import EpisodeMeta, open_parquet, read_episodes, read_subtasks, read_tasks
from wdsmix.converters.lerobot.tree import Tree
from wdsmix.converters.video import VideoFacts, probe

from wdsmix.errors import ConfigError, DataError
from wdsmix.texts import counted

__all__ = ["Survey", "survey"]

_CLOCKED = 8
_LISTED = 5


@dataclass(kw_only=True, slots=True)
class Survey:
    """A dataset as planning sees it."""

    info: Info
    modality: Modality
    tasks: Mapping[int, str]
    subtasks: Mapping[int, str]
    metas: dict[int, EpisodeMeta]
    """All episodes that metadata or data know, ascending."""
    index: DataIndex
    """Empty for a dataset that is not on disk yet."""
    locator: Locator
    roles: Roles
    cameras: Cameras
    filmed: Mapping[str, Mapping[int, Filmed]]
    """Video key -> episode -> where."""
    unlisted: frozenset[int]
    """Episodes that only the data know."""
    fps: float
    facts: dict[str, object] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    def rows(self, episode: int) -> int:
        """Rows of an episode, counted where its data are here, else by the metadata."""
        place = self.index.places.get(episode)
        return self.metas[episode].length if place is None else place.stop - place.start


def survey(tree: Tree, options: LeRobotOptions) -> Survey:
    """Reads the metadata, finds every episode's rows and videos, and checks the rate.

    Raises:
        DataError: no dataset, metadata that can't be read, or a declared rate that is contradicted.
        ConfigError: an option does not fit.
    """
    info = read_info(tree, options.info)
    warnings = [*tree.warnings(), *info.warnings]
    fps = options.fps or info.fps
    if not fps:
        raise ConfigError("no frame rate is declared", path="meta/info.json", where="fps", hint="give it with --fps")
    modality = read_modality(tree)
    metas = read_episodes(tree, info, warnings)
    locator = Locator(tree, info)
    index = DataIndex() if tree.remote else DataIndex.of(tree, locator, metas)
    warnings += index.warnings
    _check_any(tree, info, metas, index, locator, warnings)
    unlisted = frozenset(index.places) - frozenset(metas) if metas else frozenset()
    if not metas:
        warnings.append("no table of episodes: they are taken from the data files")
    metas = dict(sorted({**{e: EpisodeMeta(index=e, length=0) for e in index.places}, **metas}.items()))
    schema, widths = _schema(tree, info, locator, index, metas, warnings)
    found = {
        key: _films(key, metas, index, locator, fps)
        for key, feature in info.features.items()
        if feature.dtype == "video"
    }
    cameras = choose_cameras(info, options, modality, schema, {key: len(films) for key, films in found.items()})
    if not cameras.slots and cameras.absent and not options.allow_no_camera:
        _no_video(cameras.absent, locator, metas)
    roles = choose_roles(info, options, modality, schema, widths, warnings)
    result = Survey(
        info=info,
        modality=modality,
        tasks=read_tasks(tree),
        subtasks=read_subtasks(tree),
        metas=metas,
        index=index,
        locator=locator,
        roles=roles,
        cameras=cameras,
        filmed=found,
        unlisted=unlisted,
        fps=fps,
        warnings=warnings,
    )
    _tell(result)
    _clock(tree, options, result)
    return result


def _check_any(
    tree: Tree,
    info: Info,
    metas: Mapping[int, EpisodeMeta],
    index: DataIndex,
    locator: Locator,
    warnings: Sequence[str],
) -> None:
    if metas or (index.places and info.layout == 2):
        return
    shared = any(feature.dtype == "video" for feature in info.features.values())
    if index.places and not shared:
        return
    where = "meta/episodes.jsonl" if info.layout == 2 else "meta/episodes"
    unread = next((text for text in warnings if text.startswith("meta/episodes")), None)
    if unread is not None:
        raise DataError(
            f"no table of episodes can be read: {unread}", path=where, found=f"{len(locator.data_files)} data files"
        )
    broken = next(iter(index.broken.items()), None)
    if broken is not None:
        raise DataError(
            f"{where} is missing, and {broken[0]}: {broken[1]}; a recording that was not finalized looks like this",
            path=tree.path or tree.name,
            found=f"{len(index.broken)} of {len(locator.data_files)} data files unreadable",
        )
    raise DataError(
        "no table of episodes, without which their videos can't be told apart" if index.places else "no episodes",
        path=where,
        found=f"{len(locator.data_files)} data files",
    )


def _no_video(absent: Sequence[str], locator: Locator, metas: Mapping[int, EpisodeMeta]) -> None:
    key, first = absent[0], next(iter(metas.values()), None)
    raise ConfigError(
        f"no video of {', '.join(absent)} is there",
        path="meta/info.json",
        expected=None if first is None else f"such as {locator.video_name(key, first) or key}",
        hint="fetch the videos, or pass --allow-no-camera to store vectors only",
    )


def _schema(
    tree: Tree,
    info: Info,
    locator: Locator,
    index: DataIndex,
    metas: Mapping[int, EpisodeMeta],
    warnings: list[str],
) -> tuple[dict[str, pa.DataType], dict[str, int]]:
    """Column -> type, and column -> numbers in a cell, of the first data file that can be read."""
    candidates = [index.places[e].file for e in metas if e in index.places]
    if not candidates:
        candidates = [file for e in metas if (file := locator.data(metas[e])) is not None]
    for file in dict.fromkeys(candidates[:200]):
        try:
            opened = open_parquet(tree, file)
        except DataError:
            continue
        try:
            kinds = {field.name: field.type for field in reversed(list(opened.schema_arrow))}
            numeric = [name for name, kind in kinds.items() if is_numeric(kind)]
            batch = next(opened.iter_batches(64, columns=numeric), None)
            measured = {
                name: column_width(batch.column(batch.schema.names.index(name))) if batch is not None else 0
                for name in numeric
            }
        except (pa.ArrowException, OSError, ValueError) as error:
            warnings.append(f"{file}: {error}")
            continue
        finally:
            opened.close()
            tree.release(file, keep=True)
        for name, width in measured.items():
            declared = info.features.get(name)
            if declared is not None and width and declared.width != width:
                warnings.append(f"{name}: shape of {declared.width} declared, cells of {width} stored; they are taken")
        ordered = {name: kinds[name] for name in [*(n for n in info.features if n in kinds), *reversed(list(kinds))]}
        return ordered, {n: w or (info.features[n].width if n in info.features else 0) for n, w in measured.items()}
    raise DataError(
        "no data file can be read",
        path=next(iter(index.broken), "data"),
        found="; ".join(list(index.broken.values())[:1]) or f"{counted(len(locator.data_files), 'file')}, no episode",
    )


def _films(
    key: str, metas: Mapping[int, EpisodeMeta], index: DataIndex, locator: Locator, fps: float
) -> dict[int, Filmed]:
    """Episode -> where its pictures of one camera are."""
    files: dict[str, list[EpisodeMeta]] = {}
    for meta in metas.values():
        if (file := locator.video(key, meta)) is not None:
            files.setdefault(file, []).append(meta)
    films: dict[int, Filmed] = {}
    for file, of in files.items():
        if len(of) == 1 and key not in of[0].spans:
            films[of[0].index] = Filmed(file=file, segment=None)
            continue
        spans = [meta.spans.get(key) for meta in of]
        starts = [span.start if span else None for span in spans]
        lengths = [_length(meta, index.places.get(meta.index)) for meta in of]
        order = in_order(starts, lengths, [meta.index for meta in of], fps)
        agree = agreeing(order, starts, lengths, fps)
        most = 2 * sum(agree) > len(agree)  # then a start that does not fit is the one that is wrong
        total, before = sum(lengths), 0
        for rank, place in enumerate(order):
            span, following = spans[place], None
            if rank + 1 < len(order):
                following = starts[order[rank + 1]]
            films[of[place].index] = Filmed(
                file=file,
                segment=Segment(
                    start=starts[place],
                    stop=span.stop if span else None,
                    before=before,
                    after=following,
                    total=total,
                    counted=agree[rank] or most,
                ),
            )
            before += lengths[place]
    return films


def _length(meta: EpisodeMeta, place: Place | None) -> int:
    return meta.length if place is None else place.stop - place.start


def _tell(result: Survey) -> None:
    """Reports claims that do not hold, and what is left out."""
    warnings, info = result.warnings, result.info
    if result.cameras.absent:
        warnings.append(f"declared but nowhere there: {', '.join(result.cameras.absent)}")
    if result.cameras.skipped:
        warnings.append(f"depth is left out: {', '.join(result.cameras.skipped)}; --depth keeps it")
    result.facts["absent_cameras"] = result.cameras.absent
    result.facts["skipped_depth"] = result.cameras.skipped
    if not result.index.places:
        return
    other = [
        e for e, meta in result.metas.items() if e in result.index.places and meta.length not in (0, result.rows(e))
    ]
    if other:
        first = other[0]
        warnings.append(
            f"{counted(len(other), 'episode has', 'episodes have')} other than the declared rows, the first: episode "
            f"{first} with {result.rows(first)}, declared {result.metas[first].length}"
        )
    held = {"episodes": len(result.index.places), "frames": sum(result.rows(e) for e in result.index.places)}
    for what, number in held.items():
        declared = info.totals.get(what)
        if declared is not None and declared != number:
            warnings.append(f"info.json declares {declared} {what}, the data files hold {number}")
    result.facts["declared"] = dict(info.totals)
    result.facts["counted"] = held
    if not result.tasks and {"task_index"} & result.roles.present:
        warnings.append(
            "rows name their task by number, and no table of tasks is there: episodes have the task that the table of "
            "episodes gives them"
        )
    missing = [
        e
        for e, meta in result.metas.items()
        if any(not task for task in meta.tasks) or not (meta.tasks or result.tasks)
    ]
    if missing:
        warnings.append(
            f"{counted(len(missing), 'episode has', 'episodes have')} an empty task or none, the first: "
            f"episode {missing[0]}"
        )


def _clock(tree: Tree, options: LeRobotOptions, result: Survey) -> None:
    """Checks the declared rate, unless the user gave one."""
    if not options.fps:
        check_spans(result.metas.values(), result.fps)
    videos: dict[str, object] = {}
    for slot, role in result.cameras.slots.items():
        films = result.filmed.get(role.key, {}) if role.store == "video" else {}
        filmed = next((films[e] for e in films if e in result.index.places or tree.remote), None)
        if filmed is None:
            continue
        facts = _probe(tree, filmed.file)
        if facts is None:
            continue
        if not options.fps:
            check_video(facts, filmed.file, result.fps)
        declared = str(result.info.features[role.key].details.get("video.codec") or facts.codec)
        if re.sub(r"\W", "", declared.lower()) not in _spellings(facts.codec):
            result.warnings.append(f"{role.key}: codec {declared} declared, {facts.codec} found")
        videos[slot] = {
            "codec": facts.codec,
            "size": [facts.width, facts.height],
            "rate": round(float(facts.rate), 4) if facts.rate else None,
        }
        if tree.remote:
            break
    result.facts["videos"] = videos
    measured, warning = row_rate(_stamps(tree, result), result.fps)
    result.facts["rate"] = {"declared": result.info.fps, "taken": result.fps, **measured}
    if warning:
        result.warnings.append(warning)


def _probe(tree: Tree, file: str) -> VideoFacts | None:
    try:
        return probe(tree.open_path(file))
    except DataError:
        return None  # the episodes that need it are dropped with the reason
    finally:
        tree.release(file, keep=True)


def _spellings(codec: str) -> set[str]:
    same = {
        "h264": {"h264", "avc", "avc1", "libx264", "x264"},
        "hevc": {"hevc", "h265", "hvc1", "hev1", "libx265"},
        "av1": {"av1", "av01", "libsvtav1", "libaomav1", "libdav1d"},
        "mpeg4": {"mpeg4", "mp4v"},
    }
    return same.get(codec, {codec})


def _stamps(tree: Tree, result: Survey) -> list[npt.NDArray[np.float64]]:
    """Time stamps of some episodes, spread over the dataset."""
    if "timestamp" not in result.roles.present or tree.remote:
        return []
    episodes: Sequence[int] = [e for e in result.metas if e in result.index.places]
    step = max(1, len(episodes) // _CLOCKED)
    found = []
    for episode in list(episodes[::step])[:_CLOCKED]:
        place = result.index.places[episode]
        try:
            opened = open_parquet(tree, place.file)
            try:
                column = opened.read(columns=["timestamp"]).column("timestamp")
            finally:
                opened.close()
            found.append(np.asarray(column.cast(pa.float64()).to_numpy()[place.start : place.stop], np.float64))
        except (DataError, pa.ArrowException, OSError, ValueError):
            continue
    return found
