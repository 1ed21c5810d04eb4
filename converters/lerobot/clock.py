"""The frame rate: what info.json declares against what spans, videos and rows show."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
from wdsmix.converters.lerobot.positions import median_rate
from wdsmix.converters.lerobot.tables import EpisodeMeta
from wdsmix.converters.video import VideoFacts

from wdsmix.errors import DataError

__all__ = ["check_spans", "check_video", "row_rate"]

_SAME = 0.01
"""Relative difference of rates that is none."""


def _hint(fps: float) -> str:
    return f"--fps says which is right, such as --fps {fps:g}"


def check_spans(metas: Iterable[EpisodeMeta], fps: float) -> None:
    """Checks the declared rate against the spans that the metadata give episodes in their videos.

    Some writers end a span one frame early, and some videos have a frame too many or too few; so one frame explains
    itself.

    Raises:
        DataError: most spans tell another rate; names both.
    """
    rates: list[float] = []
    wrong = 0
    first = ""
    for meta in metas:
        for key, span in meta.spans.items():
            if span.start is None or span.stop is None or span.stop <= span.start or meta.length < 2:
                continue
            seconds = span.stop - span.start
            implied = seconds * fps
            rates.append(meta.length / seconds)
            if abs(meta.length - implied) > max(1.6, _SAME * meta.length):
                wrong += 1
                first = first or f"episode {meta.index}, {key}: {meta.length} frames in {seconds:g} s"
            break
    if rates and wrong > len(rates) / 2:
        rate = float(np.median(rates))
        raise DataError(
            "the declared frame rate contradicts the spans in meta/episodes",
            path="meta/info.json",
            where="fps",
            expected=f"{rate:.4g} frames/s ({first})",
            found=f"{fps:g}",
            hint=_hint(round(rate, 3)),
        )


def check_video(facts: VideoFacts, name: str, fps: float) -> None:
    """Checks the declared rate against a video.

    Raises:
        DataError: the video has another one; names both.
    """
    if not facts.rate:
        return
    rate = float(facts.rate)
    frames = facts.frames or 1
    explained = facts.frames > 1 and abs(frames / fps - frames / rate) * fps <= 1.001
    if abs(rate - fps) > _SAME * fps and not explained:
        raise DataError(
            "the declared frame rate contradicts the video's own",
            path=name,
            expected=f"{fps:g} frames/s (info.json)",
            found=f"{rate:.4g} frames/s",
            hint=_hint(round(rate, 3)),
        )


def row_rate(episodes: Sequence[npt.NDArray[np.float64]], fps: float) -> tuple[dict[str, object], str]:
    """What the rows' own time stamps show of some episodes.

    Returns:
        Facts for the manifest, and a warning, empty where the rate is as declared and even.
    """
    rates = [rate for stamps in episodes if (rate := median_rate(stamps))]
    if not rates:
        return {}, ""
    steps = np.concatenate([np.diff(stamps) for stamps in episodes])
    steps = steps[np.isfinite(steps)]
    rate = float(np.median(rates))
    jitter = float(np.abs(steps * rate - 1).max()) if len(steps) else 0.0
    facts: dict[str, object] = {
        "measured_hz": round(rate, 4),
        "jitter": round(jitter, 4),
        "episodes_measured": len(rates),
    }
    if abs(rate - fps) > _SAME * fps:
        return facts, f"the rows' time stamps tell {rate:.4g} frames/s, {fps:g} are declared; they are kept as they are"
    if jitter > 0.1:
        shown = f"{steps.min():.4g} to {steps.max():.4g} s"
        return facts, f"the rows' time stamps are uneven (steps of {shown} at {fps:g} frames/s); they are kept"
    return facts, ""
