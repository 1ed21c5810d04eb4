"""What raw recordings tell of themselves, for the manifest and the summary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from wdsmix.converters.relation import Relation
from wdsmix.converters.slots import natural_key
from wdsmix.converters.unitree.options import UnitreeOptions
from wdsmix.converters.unitree.recording import RawEpisode
from wdsmix.converters.unitree.tables import table_of

from wdsmix.texts import counted

__all__ = ["PLACEHOLDERS", "Report"]

PLACEHOLDERS = frozenset({"pick up the red cup on the table", "pick up cube", "pick up the cube"})
"""Goals that the recorder's source code holds, and that nobody edited."""

_MANY_REPEATS = 0.05


@dataclass(kw_only=True, slots=True)
class Report:
    """Gathers facts and warnings of a source."""

    options: UnitreeOptions
    fps: float
    asked: float
    names: Mapping[str, Sequence[str]]
    details: dict[str, object] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    def tell(
        self,
        episodes: Sequence[RawEpisode],
        counts: Sequence[tuple[str, int, int, Sequence[str]]],
        relation: Relation,
    ) -> None:
        """Fills details and warnings.

        Args:
            episodes: The good ones.
            counts: Folder, frames kept, items and cameras of each.
            relation: Of their vectors.
        """
        lines: dict[str, str] = {}
        self._rate(episodes, counts, lines)
        self._left_out(episodes, counts, lines)
        facts, warnings, text = relation.facts(self.names, self.fps)
        self.warnings += warnings
        lines["action to state"] = text
        self._cameras(counts)
        self._tasks(episodes)
        self._robot()
        self._notes(episodes, counts)
        traits = Counter(trait for episode in episodes for trait in episode.traits)
        self.details |= {
            "relation": facts,
            "writer": dict(sorted(traits.items())),
            "parts": {name: list(parts) for episode in episodes[:1] for name, parts in episode.parts.items()},
            "report": lines,
        }

    def _rate(
        self,
        episodes: Sequence[RawEpisode],
        counts: Sequence[tuple[str, int, int, Sequence[str]]],
        lines: dict[str, str],
    ) -> None:
        dropped = sum(episode.left_out.get("repeated pictures", 0) for episode in episodes)
        looked_at = sum(count[1] for count in counts) + dropped
        repeated = sum(episode.all_repeated for episode in episodes)
        share = repeated / looked_at if looked_at else 0.0
        asked = self.options.fps or self.asked or self.fps
        stamped = sorted(episode.measured_fps for episode in episodes if episode.measured_fps)
        measured = stamped[len(stamped) // 2] if stamped else None
        if episodes and not self.asked and not self.options.fps:
            self.warnings.append(f"data.json tells no rate: {self.fps:g} frames/s are assumed (--fps)")
        if measured and abs(measured - asked) > 0.1 * asked:
            self.warnings.append(f"{asked:g} frames/s were asked for, the time stamps show {measured:.3g}: see --fps")
        new = asked * (1 - share)
        if share > _MANY_REPEATS and not self.options.dedupe:
            self.warnings.append(
                f"{100 * share:.0f} % of the frames repeat all pictures of the one before: the loop ran at {asked:g} "
                f"frames/s, the cameras gave about {new:.3g}; --dedupe leaves repeats out"
            )
        self.details["rate"] = {
            "asked": self.asked or None,
            "taken": self.fps,
            "by_time_stamps": None if measured is None else round(measured, 3),
            "new_pictures_per_second": round(new, 3),
        }
        per_camera: Counter[str] = Counter()
        for episode in episodes:
            per_camera.update(episode.repeated)
        self.details["repeated_pictures"] = {
            "frames": repeated,
            "of": looked_at,
            "cameras": dict(sorted(per_camera.items())),
            "left_out": self.options.dedupe,
        }
        lines["rate"] = f"{asked:g} frames/s asked for, {new:.3g} new pictures a second" + (
            f", {measured:.3g} by time stamps" if measured else ""
        )
        if not per_camera:
            lines["rate"] = f"{asked:g} frames/s asked for"
            return
        lines["repeated pictures"] = f"{repeated} of {looked_at} frames" + (
            ", left out" if self.options.dedupe and repeated else ""
        )

    def _left_out(
        self,
        episodes: Sequence[RawEpisode],
        counts: Sequence[tuple[str, int, int, Sequence[str]]],
        lines: dict[str, str],
    ) -> None:
        causes: Counter[str] = Counter()
        for episode in episodes:
            causes.update(episode.left_out)
        recovered = [count[0] for count, episode in zip(counts, episodes, strict=True) if episode.recovered]
        gaps = sum(episode.gaps for episode in episodes)
        gappy = sum(episode.gaps > 0 for episode in episodes)
        if recovered:
            self.warnings.append(
                f"{counted(len(recovered), 'data.json is', 'data.json are')} cut off (a crash while recording); what "
                f"is whole of them was taken, the first: {recovered[0]}"
            )
        if gaps:
            self.warnings.append(
                f"{counted(gaps, 'frame was', 'frames were')} never written "
                f"(numbers missing in {counted(gappy, 'episode')})"
            )
        lacking = sum(number for cause, number in causes.items() if cause != "repeated pictures")
        if lacking:
            told = ", ".join(f"{cause} {number}" for cause, number in sorted(causes.items()))
            self.warnings.append(
                f"{counted(lacking, 'frame lacks a picture and is', 'frames lack a picture and are')} left out for all "
                f"cameras: {told}"
            )
        self.details["left_out"] = dict(sorted(causes.items()))
        self.details["never_written"] = gaps
        self.details["recovered"] = recovered
        lines["left out"] = (
            f"{counted(sum(causes.values()), 'frame')}; {gaps} never written; "
            f"{counted(len(recovered), 'episode')} recovered"
        )

    def _cameras(self, counts: Sequence[tuple[str, int, int, Sequence[str]]]) -> None:
        sets = Counter(tuple(count[3]) for count in counts)
        self.details["cameras"] = {", ".join(keys) or "none": number for keys, number in sets.items()}
        if len(sets) > 1:
            told = "; ".join(f"{number} with {', '.join(keys) or 'none'}" for keys, number in sets.most_common(4))
            self.warnings.append(
                f"episodes differ in their cameras ({told}): a number may stand for another camera in each; convert "
                "them apart, or check --camera"
            )

    def _tasks(self, episodes: Sequence[RawEpisode]) -> None:
        tasks = Counter(episode.task for episode in episodes)
        left = [task for task in tasks if task.lower().strip(" .") in PLACEHOLDERS]
        if left and not self.options.instruction:
            number = sum(tasks[task] for task in left)
            self.warnings.append(
                f"the task of {counted(number, 'episode')} is the recorder's own placeholder ({left[0]!r}): "
                "--instruction TEXT says what was really done"
            )
        if tasks.get("", 0):
            self.warnings.append(
                f"{counted(tasks[''], 'episode has', 'episodes have')} no task: --instruction TEXT gives one"
            )

    def _robot(self) -> None:
        table = table_of(self.options.robot) if self.options.robot else None
        if table is None:
            numbered = [name for name in self.names.get("state", ()) if name[:8] in ("left_ee_", "right_ee")]
            if numbered:
                self.warnings.append(
                    "several hands have this number of joints, in different orders, so that they are numbered; "
                    "--robot Unitree_G1_Inspire or Unitree_G1_Brainco names them"
                )
            return
        expected = sum(len(names) for names in table.values())
        found = len(self.names.get("state", ()))
        if expected != found:
            self.warnings.append(
                f"{self.options.robot} has {expected} joints, the state has {found}: is it that robot?"
            )

    def _notes(self, episodes: Sequence[RawEpisode], counts: Sequence[tuple[str, int, int, Sequence[str]]]) -> None:
        places: dict[str, list[str]] = {}
        for count, episode in zip(counts, episodes, strict=True):
            for note in episode.notes:
                places.setdefault(note, []).append(count[0])
        for note, folders in sorted(places.items(), key=lambda item: natural_key(item[1][0])):
            more = f" ({len(folders)} such episodes)" if len(folders) > 1 else ""
            self.warnings.append(f"{folders[0]}: {note}{more}")
