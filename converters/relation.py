"""How action and state of a source belong together: correlation and lag per dimension, ranges and jumps.

In a healthy recording the state follows the commanded action by a few frames. A negative correlation tells of a
flipped sign, a lag of many frames of misaligned rows; neither can be seen in the statistics alone.
"""

from __future__ import annotations

import warnings as python_warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from wdsmix.texts import counted

__all__ = ["EpisodeRelation", "Relation", "relate"]

Float64Array = npt.NDArray[np.float64]

_LAGS = 31
_SHORTEST = 16
_ROWS = 6000
_STILL = 1e-6
_LONG_LAG_S = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class EpisodeRelation:
    """What one episode shows; all float64 [D], NaN where a dimension does not move.

    Correlations have no entry where the vectors differ in width or the episode is shorter than 16 rows.
    """

    frames: int
    same: Float64Array
    """Correlation of action and state in the same row."""
    best: Float64Array
    """The correlation of largest size, over lags of 0 to 30 rows."""
    lag: Float64Array
    """Rows by which the state trails the action there."""
    low: Mapping[str, Float64Array]
    """``state`` and ``action`` -> minimum."""
    high: Mapping[str, Float64Array]
    jump: Mapping[str, Float64Array]
    """Largest change from one row to the next."""


def relate(state: npt.NDArray[np.floating], action: npt.NDArray[np.floating]) -> EpisodeRelation:
    """Compares the rows of one episode.

    Args:
        state: [T, Ds]; correlated with ``action`` where it is as wide.
        action: [T, Da].
    """
    vectors = {"state": np.asarray(state, np.float64), "action": np.asarray(action, np.float64)}
    width = state.shape[1] if state.shape[1] == action.shape[1] else 0
    if len(state) < _SHORTEST:
        width = 0
    short, long = vectors["state"][:_ROWS, :width], vectors["action"][:_ROWS, :width]
    table = np.full((_LAGS, width), np.nan)
    for lag in range(min(_LAGS, max(1, len(short) // 2))):
        table[lag] = _correlation(short[lag:], long[: len(long) - lag])
    known = ~np.isnan(table).all(axis=0)
    at = np.zeros(width, np.int64)
    at[known] = np.nanargmax(np.abs(table[:, known]), axis=0)
    return EpisodeRelation(
        frames=len(state),
        same=table[0] if len(table) else np.full(width, np.nan),
        best=table[at, np.arange(width)],
        lag=np.where(known, at, np.nan),
        low={name: values.min(axis=0) for name, values in vectors.items()},
        high={name: values.max(axis=0) for name, values in vectors.items()},
        jump={
            name: np.abs(np.diff(values, axis=0)).max(axis=0) if len(values) > 1 else np.zeros(values.shape[1])
            for name, values in vectors.items()
        },
    )


def _correlation(left: Float64Array, right: Float64Array) -> Float64Array:
    left, right = left - left.mean(axis=0), right - right.mean(axis=0)
    spread = np.sqrt((left**2).mean(axis=0)), np.sqrt((right**2).mean(axis=0))
    moving = (spread[0] > _STILL) & (spread[1] > _STILL)
    result = np.full(left.shape[1], np.nan)
    np.divide((left * right).mean(axis=0), spread[0] * spread[1], out=result, where=moving)
    return result


@dataclass(kw_only=True, slots=True)
class Relation:
    """What all episodes together show."""

    episodes: list[EpisodeRelation] = field(default_factory=list)

    def facts(
        self, names: Mapping[str, Sequence[str]], fps: float, *, least: float = 0.0
    ) -> tuple[dict[str, object], list[str], str]:
        """What to tell.

        Args:
            names: ``state`` and ``action`` -> a name a dimension.
            fps: Frames per second.
            least: Size of a correlation from which it is believed enough to warn.

        Returns:
            Facts for the manifest, warnings, and one line for the summary.
        """
        facts: dict[str, object] = {"episodes": len(self.episodes)}
        for name in ("state", "action"):
            facts[name] = self._ranges(name, names.get(name, ()))
        compared = [episode for episode in self.episodes if len(episode.same)]
        if not compared or {len(episode.same) for episode in compared} != {len(names.get("action", ()))}:
            return facts, [], "not compared: too short, or of different width"
        with python_warnings.catch_warnings():
            python_warnings.simplefilter("ignore", RuntimeWarning)  # dimensions that never move
            same, best, lag = (
                np.nanmedian(np.stack([getattr(episode, part) for episode in compared]), axis=0)
                for part in ("same", "best", "lag")
            )
            middle, middle_lag = float(np.nanmedian(best)), float(np.nanmedian(lag))
        facts["correlation"] = [_plain(value) for value in best]
        facts["correlation_same_row"] = [_plain(value) for value in same]
        facts["lag_frames"] = [_plain(value) for value in lag]
        warnings: list[str] = []
        flipped = [str(names["action"][k]) for k in range(len(same)) if same[k] < -least and best[k] < -least]
        if flipped and len(flipped) > len(same) // 2:
            warnings.append(
                f"action and state correlate negatively in {len(flipped)} of {len(same)} dimensions (median "
                f"{middle:.2f}): one of them has the wrong sign"
            )
        elif flipped:
            warnings.append(f"action and state correlate negatively: {', '.join(flipped[:8])}: is their sign right?")
        if np.isnan(middle):
            return facts, warnings, "nothing moves"
        late = counted(round(middle_lag), "frame")
        if middle_lag > _LONG_LAG_S * fps and abs(middle) > least:
            warnings.append(f"the state trails the action by {late} ({middle_lag / fps:.2f} s): are rows aligned?")
        text = f"correlation {middle:.2f}, state trails action by {late} ({middle_lag / fps:.2f} s)"
        return facts, warnings, text

    def _ranges(self, name: str, names: Sequence[str]) -> dict[str, object]:
        if not self.episodes:
            return {}
        low = np.min(np.stack([episode.low[name] for episode in self.episodes]), axis=0)
        high = np.max(np.stack([episode.high[name] for episode in self.episodes]), axis=0)
        jump = np.max(np.stack([episode.jump[name] for episode in self.episodes]), axis=0)
        return {
            "names": list(names),
            "min": [_plain(value) for value in low],
            "max": [_plain(value) for value in high],
            "largest_jump": [_plain(value) for value in jump],
        }


def _plain(value: float) -> float | None:
    return round(float(value), 6) if np.isfinite(value) else None
