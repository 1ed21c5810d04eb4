"""What a set or a source shows that no single value tells: streams that stand still, repeat or equal each other.

Each episode is looked at once: its vectors as whole arrays, of each camera the first, middle and last picture. What is
found is counted over all episodes and told as warnings; nothing of it makes an episode bad.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import simplejpeg
from wdsmix.converters.relation import EpisodeRelation, Relation, relate

from wdsmix.errors import DataError
from wdsmix.imaging import decode_rgb, sniff
from wdsmix.manifest import FieldStats
from wdsmix.texts import counted

__all__ = ["Look", "Looks", "Streams", "far_values", "look", "related", "spread_over"]

Pictures = Mapping[str, Sequence["bytes | npt.NDArray[np.uint8]"]]
"""Slot -> first, middle and last picture of an episode; without depth cameras."""

_MOST_RELATED = 24
_SHORTEST, _LONG = 10, 30
_BLACK_MEAN, _BLACK_MAX = 4.0, 32
_UNWRITTEN = 3
_ROUNDED = 1.01
_LEAP = 0.3
_RARE = 20.0
_FAR = 20.0
_TURN = 6.5
_CORRELATED = 0.7
_SHOWN = 6
_PAIR = ("state", "action")


@dataclass(frozen=True, kw_only=True, slots=True)
class Streams:
    """What is known of the vectors before any is looked at."""

    names: Mapping[str, Sequence[str]]
    """Vector -> a name a dimension, or empty."""
    kinds: Mapping[str, Sequence[str]]
    """Vector -> a kind a dimension, or empty."""
    fps: float
    units: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Vector -> a unit a dimension, or empty."""
    limits: Mapping[str, float] = field(default_factory=dict)
    """Vector -> size that none of its values should have."""

    def unit(self, vector: str, dimension: int) -> str:
        """Of a dimension; empty where it is not known."""
        units = self.units.get(vector, ())
        return units[dimension] if dimension < len(units) else ""

    def name(self, vector: str, dimension: int) -> str:
        """Of a dimension."""
        names = self.names.get(vector, ())
        return names[dimension] if dimension < len(names) else f"{vector}_{dimension}"

    @property
    def comparable(self) -> bool:
        """Whether the action is a wanted state, so that both should move alike."""
        action = self.kinds.get("action", ())
        return bool(action) and set(action) == {"absolute"} and "delta" not in self.kinds.get("state", ())


@dataclass(frozen=True, kw_only=True, slots=True)
class Look:
    """What one episode shows. Small; pickles."""

    still: tuple[str, ...] = ()
    """Vectors in which nothing moves."""
    equal: bool = False
    """Whether the action equals the state in every row."""
    ahead: bool = False
    """Whether the action is the state of the next row."""
    leaps: tuple[int, ...] = ()
    """Dimensions of the state that leave their range for a single row."""
    unwritten: bool = False
    """Whether the last rows of the state are all zeros, as where a recorder was killed."""
    black: tuple[str, ...] = ()
    """Slots whose pictures are black."""
    darkened: tuple[str, ...] = ()
    """Slots whose last picture alone is black."""
    frozen: tuple[str, ...] = ()
    """Slots whose pictures are one and the same while the state moves."""
    twins: tuple[tuple[str, str], ...] = ()
    """Pairs of slots that show the very same pictures."""


def look(vectors: Mapping[str, npt.NDArray[np.floating]], pictures: Pictures) -> Look:
    """Looks at one episode.

    Args:
        vectors: Name -> [T, D].
        pictures: Slot -> its first, middle and last picture, encoded or uint8 [H, W, 3].
    """
    state, action = vectors.get("state"), vectors.get("action")
    main = {name: values for name, values in (("state", state), ("action", action)) if values is not None}
    count = max((len(values) for values in main.values()), default=0)
    still = tuple(name for name, values in main.items() if count >= _SHORTEST and not (values != values[:1]).any())
    alike = state is not None and action is not None and state.shape == action.shape and count > 1 and not still
    keys = {slot: [_key(picture) for picture in shown] for slot, shown in pictures.items() if shown}
    moves = state is not None and count >= _SHORTEST and "state" not in still
    slots = list(keys)
    black = tuple(slot for slot in slots if _is_black(pictures[slot]))
    return Look(
        still=still,
        equal=bool(alike and np.array_equal(state, action)),  # type: ignore[arg-type]
        ahead=bool(alike and np.array_equal(state[1:], action[:-1])),  # type: ignore[index]
        leaps=() if state is None else _leaps(state),
        unwritten=state is not None and "state" not in still and _ends_in_zeros(state),
        black=black,
        darkened=tuple(slot for slot in slots if slot not in black and _all_dark(pictures[slot][-1])),
        frozen=tuple(slot for slot, key in keys.items() if moves and len(key) > 2 and len(set(key)) == 1),
        twins=tuple(
            (one, other) for k, one in enumerate(slots) for other in slots[k + 1 :] if keys[one] == keys[other]
        ),
    )


def _key(picture: bytes | npt.NDArray[np.uint8]) -> bytes:
    return picture if isinstance(picture, bytes) else repr(picture.shape).encode() + picture.tobytes()


def _is_black(pictures: Sequence[bytes | npt.NDArray[np.uint8]]) -> bool:
    """The middle one first: where it shows something, the others need not be decoded."""
    order = [pictures[len(pictures) // 2], *pictures[: len(pictures) // 2], *pictures[len(pictures) // 2 + 1 :]]
    return all(_all_dark(picture) for picture in order)


def _all_dark(picture: bytes | npt.NDArray[np.uint8]) -> bool:
    if isinstance(picture, bytes):
        try:
            picture = _small(picture)
        except (DataError, ValueError):
            return False
    return bool(picture.max() < _BLACK_MAX and picture.mean() < _BLACK_MEAN)


def _ends_in_zeros(values: npt.NDArray[np.floating]) -> bool:
    """Whether the last rows are zero in every dimension, of which there are several."""
    return values.shape[1] > 1 and len(values) > _UNWRITTEN and not values[-_UNWRITTEN:].any()


def _small(data: bytes) -> npt.NDArray[np.uint8]:
    """A picture at an eighth of its size where that is cheap."""
    if sniff(data) != "jpeg":
        return decode_rgb(data)
    small: npt.NDArray[np.uint8] = simplejpeg.decode_jpeg(
        data, colorspace="GRAY", min_factor=8, min_height=1, min_width=1
    )
    return small


def _leaps(values: npt.NDArray[np.floating]) -> tuple[int, ...]:
    """Dimensions in which one row lies far beyond both its neighbours."""
    if len(values) < _LONG:
        return ()
    before, here, after = values[:-2], values[1:-1], values[2:]
    middle = np.maximum(np.minimum(before, here), np.minimum(np.maximum(before, here), after))
    spread = middle.max(axis=0) - middle.min(axis=0)
    off = np.abs(here - middle)
    out = off.max(axis=0)
    usual = (off.sum(axis=0) - out) / max(len(off) - 1, 1)
    return tuple(np.flatnonzero((out > _LEAP * spread) & (out > _RARE * usual) & (out > 1e-3) & (spread > 0)).tolist())


def related(vectors: Mapping[str, npt.NDArray[np.floating]]) -> EpisodeRelation | None:
    """How state and action of an episode belong together; None where there is nothing to compare."""
    state, action = vectors.get("state"), vectors.get("action")
    if state is None or action is None or state.shape != action.shape or len(state) < 2:
        return None
    return relate(state, action)


def far_values(streams: Streams, stats: Mapping[str, FieldStats]) -> list[str]:
    """Dimensions whose extremes lie far beyond where nearly all values are."""
    told = []
    for vector in _PAIR:
        found = stats.get(vector)
        for k in range(len(found.min)) if found is not None else ():
            low, high = found.q01[k], found.q99[k]  # type: ignore[union-attr]
            least, most = found.min[k], found.max[k]  # type: ignore[union-attr]
            reach = _FAR * (high - low)
            if streams.unit(vector, k) == "rad" and max(-least, most) > _TURN:
                told.append(f"{vector}: {streams.name(vector, k)} reaches {least:.4g} ... {most:.4g} rad: over a turn")
                continue
            limit = streams.limits.get(vector, 0)
            if limit and max(-least, most) > limit * _ROUNDED:
                told.append(
                    f"{vector}: {streams.name(vector, k)} reaches {least:.4g} ... {most:.4g}, beyond the {limit:.3g} "
                    "of such data"
                )
                continue
            if reach > 1e-6 and (most > high + reach or least < low - reach):
                told.append(
                    f"{vector}: {streams.name(vector, k)} reaches {least:.4g} ... {most:.4g}, 98 % of it lie in "
                    f"{low:.4g} ... {high:.4g}"
                )
    return told


@dataclass(kw_only=True, slots=True)
class Looks:
    """Counts what episodes show."""

    streams: Streams
    episodes: int = 0
    found: dict[str, tuple[int, str]] = field(default_factory=dict)
    """Sentence -> how many episodes, and the first."""
    ahead: int = 0
    relation: Relation = field(default_factory=Relation)

    def add(self, name: str, seen: Look) -> None:
        """Counts one episode.

        Args:
            name: What to call it.
            seen: What it shows.
        """
        self.episodes += 1
        self.ahead += seen.ahead and not seen.equal
        said = [f"the {vector} never changes" for vector in seen.still]
        said += ["the action equals the state in every frame"] if seen.equal else []
        said += ["the state is all zeros at the end: was the recorder killed?"] if seen.unwritten else []
        said += [f"{slot} is black" for slot in seen.black]
        said += [f"{slot} is black at the end" for slot in seen.darkened]
        said += [f"{slot} shows one picture while the state moves" for slot in seen.frozen if slot not in seen.black]
        said += [
            f"{one} and {other} show the very same pictures"
            for one, other in seen.twins
            if one not in seen.black or other not in seen.black
        ]
        if seen.leaps:
            dims = ", ".join(self.streams.name("state", k) for k in seen.leaps[:_SHOWN])
            said.append(f"the state leaps away for a single frame ({dims})")
        for text in said:
            count, first = self.found.get(text, (0, name))
            self.found[text] = (count + 1, first)

    def tell(self) -> tuple[dict[str, object], list[str], dict[str, str]]:
        """Facts for the manifest, warnings, and lines of the summary."""
        facts: dict[str, object] = {"episodes": self.episodes, "found": {t: n for t, (n, _) in self.found.items()}}
        warnings = []
        for text, (count, first) in sorted(self.found.items(), key=lambda item: (-item[1][0], item[0])):
            where = (
                f"all {self.episodes} episodes"
                if count == self.episodes > 1
                else f"{count} of {counted(self.episodes, 'episode')}"
            )
            warnings.append(f"in {where} {text}, the first: {first}")
        lines: dict[str, str] = {}
        if self.ahead == self.episodes and self.episodes:
            facts["action_is_next_state"] = True
            lines["action"] = "the state of the next frame"
        if self.relation.episodes:
            widths = [tuple(len(episode.low[vector]) for vector in _PAIR) for episode in self.relation.episodes]
            usual = Counter(widths).most_common(1)[0][0]  # `check` also sees episodes that a set would leave out
            alike = [episode for episode, own in zip(self.relation.episodes, widths, strict=True) if own == usual]
            names = {
                vector: [self.streams.name(vector, k) for k in range(width)]
                for vector, width in zip(_PAIR, usual, strict=True)
            }
            told, said, text = Relation(episodes=alike).facts(names, self.streams.fps, least=_CORRELATED)
            facts["relation"] = told
            warnings += said if self.streams.comparable else []
            lines["action to state"] = text
        return facts, warnings, lines


def spread_over(count: int, most: int = _MOST_RELATED) -> set[int]:
    """Numbers of up to ``most`` of ``count`` episodes, evenly spread."""
    return set(range(0, count, max(1, -(-count // most)))) if count else set()
