"""The source: one LeRobot dataset."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict

from wdsmix.converters.lerobot.index import Place
from wdsmix.converters.lerobot.open_episode import EpisodeReader, Filmed, Opening
from wdsmix.converters.lerobot.options import LeRobotOptions
from wdsmix.converters.lerobot.positions import Segment
from wdsmix.converters.lerobot.survey import Survey, survey
from wdsmix.converters.lerobot.tree import Tree

from wdsmix.episode import Episode, EpisodeRef, SourceInfo
from wdsmix.errors import DataError

__all__ = ["LeRobotSource"]

_MAX_WARNINGS = 50


class LeRobotSource:
    """A dataset of any version (a `wdsmix.converters.base.Source`). Pickles; holds no open file then.

    Args:
        tree: Its files.
        options: Of the family.
    """

    libraries = ("av",)

    def __init__(self, tree: Tree, options: LeRobotOptions) -> None:
        self._tree = tree
        self._options = options
        self._survey: Survey | None = None
        self._reader: EpisodeReader | None = None

    def __getstate__(self) -> dict[str, object]:
        state: dict[str, object] = {**self.__dict__, "_reader": None, "_survey": None}
        if self._survey is not None:
            state["_reader"] = self._made_reader()
        return state

    @property
    def path(self) -> str | None:
        """The folder on disk."""
        return None if self._tree.path is None else str(self._tree.path)

    @property
    def survey(self) -> Survey:
        """What the dataset holds."""
        if self._survey is None:
            self._survey = survey(self._tree, self._options)
        return self._survey

    def _made_reader(self) -> EpisodeReader:
        found = self.survey
        return EpisodeReader(
            tree=self._tree,
            fps=found.fps,
            roles=found.roles,
            slots=found.cameras.slots,
            tasks=found.tasks,
            subtasks=found.subtasks,
            video_mismatch=self._options.video_mismatch,
            bad_rows=self._options.bad_rows,
        )

    def arguments(self) -> Mapping[str, object]:
        """The options of the family."""
        return self._options.arguments()

    def fingerprint(self) -> str:
        """Hash over names, sizes and some content of the files; of a repository its commit."""
        return self._tree.fingerprint()

    def episodes(self) -> list[EpisodeRef]:
        """All episodes that metadata or data know, by ``episode_index``.

        Raises:
            ConfigError: an option does not fit the dataset.
            DataError: no dataset is there, or what is needed to find episodes can't be read.
        """
        found = self.survey
        return [self._ref(found, episode) for episode in found.metas]

    def _ref(self, found: Survey, episode: int) -> EpisodeRef:
        meta, place = found.metas[episode], found.index.places.get(episode)
        hinted = found.locator.data(meta)
        named = found.locator.data_name(meta)
        file = place.file if place is not None else hinted or named or f"episode {episode}"
        split = next((name for name, (low, high) in found.info.splits.items() if low <= episode < high), None)
        fault, whole_file = self._fault(found, episode, place, hinted)
        if fault:
            return EpisodeRef(
                id=_id(episode),
                file=file,
                frames=0,
                split=split,
                fault=fault,
                fault_kind="file" if whole_file else "episode",
            )
        slots = found.cameras.slots
        filmed = {
            role.key: found.filmed[role.key][episode]
            for role in slots.values()
            if role.store == "video" and episode in found.filmed.get(role.key, {})
        }
        search = [] if place is not None else _search(found.locator.data_files, hinted)
        opening = Opening(
            episode=episode, place=place, search=search, length=meta.length, tasks=meta.tasks, filmed=filmed
        )
        return EpisodeRef(
            id=_id(episode),
            file=file,
            frames=found.rows(episode),
            vectors={name: role.width for name, role in found.roles.vectors.items()},
            cameras=tuple(slot for slot, role in slots.items() if role.store == "cell" or role.key in filmed),
            split=split,
            locator={"opening": json.dumps(asdict(opening), ensure_ascii=False)},
        )

    def _fault(self, found: Survey, episode: int, place: Place | None, hinted: str | None) -> tuple[str, bool]:
        """Why an episode can't be converted, empty where it can, and whether a whole file is to blame."""
        if episode in found.unlisted:
            return "its rows are there, but the table of episodes does not list it", False
        if place is None and not self._tree.remote:
            if hinted is None:
                named = found.locator.data_name(found.metas[episode])
                return "no data file holds it" + (f": there is no {named}" if named else ""), False
            if hinted in found.index.broken:
                return f"{hinted}: {found.index.broken[hinted]}", True
            return f"its rows are not in {hinted}, nor in any other data file", False
        if place is None and not found.metas[episode].length:
            return "the metadata tell no length", False
        if episode in found.index.scattered:
            return f"its rows are in several data files: {found.index.scattered[episode]}", False
        if episode in found.index.unordered:
            return "its rows are not together in the data file", False
        if not self._options.allow_no_camera:
            for role in found.cameras.slots.values():
                if role.store == "video" and episode not in found.filmed.get(role.key, {}):
                    return f"its video of {role.key} is missing", False
        return "", False

    def describe(self) -> SourceInfo:
        """Rate, cameras, names and kinds of the dimensions, and every claim that does not hold."""
        found = self.survey
        warnings = found.warnings
        if len(warnings) > _MAX_WARNINGS:
            warnings = [*warnings[:_MAX_WARNINGS], f"and {len(warnings) - _MAX_WARNINGS} more warnings"]
        parts = {
            vector: {part.name: [part.column, part.start, part.end] for part in of}
            for vector, of in found.modality.parts.items()
        }
        columns = {name: [part.column for part in role.parts] for name, role in found.roles.vectors.items()}
        return SourceInfo(
            name=self._tree.name,
            kind=f"lerobot/{found.info.version}",
            fps=found.fps,
            embodiment=found.info.robot,
            licence=_licence(self._tree),
            vectors={name: role.spec for name, role in found.roles.vectors.items()},
            cameras={slot: role.camera for slot, role in found.cameras.slots.items()},
            details={
                **found.facts,
                **self._tree.facts(),
                "columns": columns,
                "parts": parts,
                "frames": "by position",
            },
            warnings=tuple(warnings),
        )

    def read(self, ref: EpisodeRef) -> Episode:
        """Opens one episode; its pictures are read while they are asked for.

        Raises:
            DataError: it is bad.
        """
        if ref.fault is not None:
            raise DataError(ref.fault, path=ref.file, where=ref.id)
        if self._reader is None:
            self._reader = self._made_reader()
        return self._reader.open(_opening(json.loads(str(ref.locator["opening"]))))

    def close(self) -> None:
        """Closes what reading left open."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None


def _id(episode: int) -> str:
    return f"episode_{episode:06d}"


def _search(files: list[str], hinted: str | None) -> list[str]:
    """Data files in the order in which an episode is looked for: the hinted one, its neighbours, the rest."""
    if hinted not in files:
        return files
    at = files.index(hinted)
    return sorted(files, key=lambda file: (abs(files.index(file) - at), file)) if len(files) < 500 else [hinted, *files]


def _opening(raw: dict[str, object]) -> Opening:
    place, filmed = raw["place"], raw["filmed"]
    films = {}
    for key, value in filmed.items() if isinstance(filmed, dict) else ():
        segment = value["segment"]
        films[key] = Filmed(file=value["file"], segment=Segment(**segment) if segment is not None else None)
    return Opening(
        episode=int(str(raw["episode"])),
        place=Place(**place) if isinstance(place, dict) else None,
        search=[str(name) for name in raw["search"]] if isinstance(raw["search"], list) else [],
        length=int(str(raw["length"])),
        tasks=[str(task) for task in raw["tasks"]] if isinstance(raw["tasks"], list) else [],
        filmed=films,
    )


def _licence(tree: Tree) -> str:
    """The licence that the dataset card's first lines name."""
    if "README.md" not in tree.names():
        return ""
    try:
        head = tree.open_path("README.md").read_bytes()[:4096].decode("utf-8", "replace")
    except (OSError, DataError):
        return ""
    if not head.startswith("---"):
        return ""
    for line in head.split("\n---")[0].splitlines():
        key, colon, value = line.partition(":")
        if colon and key.strip() in ("license", "licence"):
            return value.strip().strip("'\"")
    return ""
