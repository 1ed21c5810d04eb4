"""D4RL: rows of all episodes one after the other, without groups and without pictures.

::

    observations (N, D), actions (N, A), rewards (N,), terminals (N,)
    timeouts (N,), next_observations (N, D)       optional

An episode ends at a row whose terminal or timeout is true, and with the file. Without ``timeouts`` it also ends where
the next observation is not the one of the next row. ``done`` is the terminal alone: a timeout ends no task.
"""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt
from wdsmix.converters.hdf5.dialects.robomimic import rewards_and_dones
from wdsmix.converters.hdf5.faults import Hdf5Error
from wdsmix.converters.hdf5.layout import Dialect, EpisodeLayout, FileFacts, Part, find_parts
from wdsmix.converters.hdf5.options import Hdf5Options
from wdsmix.converters.hdf5.rules import assumed_rate, rows_of
from wdsmix.converters.hdf5.safe import Tree

from wdsmix.texts import counted

__all__ = ["DIALECTS"]

_FPS = 20.0
_BLOCK_BYTES = 64 << 20
_MOST = 200_000
"""Episodes of one file."""


def _matches(tree: Tree, episode: str) -> bool:
    return episode == "/" and all(
        tree.dataset(f"/{name}") is not None for name in ("observations", "actions", "rewards")
    )


def _flags(tree: Tree, name: str, rows: int) -> npt.NDArray[np.bool_] | None:
    """A column of truth values; None where there is none.

    Raises:
        Hdf5Error: it is not one value a row.
    """
    dataset = tree.dataset(f"/{name}")
    if dataset is None:
        return None
    values = tree.read_vector(f"/{name}").reshape(-1)
    if len(values) != rows:
        raise Hdf5Error(
            "first dimensions differ",
            path=str(tree.path),
            where=f"/{name}",
            check="lengths",
            expected=f"{rows} rows, as /actions",
            found=str(dataset.shape),
        )
    return values.astype(np.bool_)


def _breaks(tree: Tree, rows: int) -> npt.NDArray[np.bool_]:
    """Where the next observation is not the observation of the next row: bool [rows]."""
    found = np.zeros(rows, np.bool_)
    now, then = tree.dataset("/observations"), tree.dataset("/next_observations")
    if now is None or then is None or now.shape != then.shape or len(now.shape or ()) != 2 or now.shape[0] != rows:
        return found
    block = max(1, _BLOCK_BYTES // max(1, now.shape[1] * max(now.dtype.itemsize, then.dtype.itemsize)))
    for start in range(0, rows - 1, block):
        stop = min(start + block, rows - 1)
        after = tree.read_vector("/next_observations", start, stop)
        found[start:stop] = (after != tree.read_vector("/observations", start + 1, stop + 1)).any(axis=1)
    return found


def _ends(tree: Tree) -> tuple[list[tuple[int, int]], int, bool]:
    """The rows (start, stop) of the episodes of two rows or more, how many have one, and whether breaks were used."""
    rows = rows_of(tree, "/actions")
    if rows == 0:
        return [], 0, False
    ends = np.zeros(rows, np.bool_)
    for name in ("terminals", "timeouts"):
        flags = _flags(tree, name, rows)
        if flags is not None:
            ends |= flags
    joined = False
    if tree.dataset("/timeouts") is None:
        breaks = _breaks(tree, rows)
        joined = bool((breaks & ~ends).any())
        ends |= breaks
    ends[-1] = True
    stops = np.flatnonzero(ends) + 1
    spans = list(zip([0, *stops[:-1].tolist()], stops.tolist(), strict=True))
    whole = [span for span in spans if span[1] - span[0] > 1]
    if len(whole) > _MOST:
        raise Hdf5Error(
            "refused: too many episodes",
            path=str(tree.path),
            check="safe",
            expected=f"at most {_MOST}",
            found=str(len(whole)),
        )
    return whole, len(spans) - len(whole), joined


def _groups(tree: Tree, options: Hdf5Options) -> list[str]:
    return [f"/rows_{start}-{stop - 1}" for start, stop in _ends(tree)[0]]


def _facts(tree: Tree, options: Hdf5Options) -> FileFacts:
    _, single, joined = _ends(tree)
    warnings = []
    if single:
        warnings.append(f"{counted(single, 'episode')} of a single row left out")
    if tree.dataset("/timeouts") is None:
        how = "and where next_observations break off" if joined else "alone"
        warnings.append(f"no timeouts: episodes end at terminals {how}")
    return assumed_rate(options, _FPS, "D4RL files", warnings=warnings)


def _layout(tree: Tree, group: str, options: Hdf5Options, facts: FileFacts) -> EpisodeLayout:
    found = re.fullmatch(r"/rows_(\d+)-(\d+)", group)
    if found is None:
        raise Hdf5Error("no such episode", path=str(tree.path), where=group)
    start, stop = int(found[1]), int(found[2]) + 1

    def cut(part: Part) -> Part:
        return Part(path=part.path, name=part.name, start=start, stop=stop)

    return EpisodeLayout(
        state=[cut(part) for part in find_parts(tree, "/", options.state or ("observations",), what="state")],
        action=[cut(part) for part in find_parts(tree, "/", options.action or ("actions",), what="action")],
        optional={name: cut(part) for name, part in rewards_and_dones(tree, "/", done="terminals").items()},
        task=options.instruction or facts.task,
    )


DIALECTS = [
    Dialect(
        name="d4rl",
        rank=140,
        summary="D4RL: observations, actions, rewards, terminals at the root, cut into episodes",
        matches=_matches,
        groups=_groups,
        facts=_facts,
        layout=_layout,
        virtual=True,
        refusal="D4RL files hold no images: rows of observations, actions and rewards "
        "(--allow-no-camera converts these)",
        state="observations",
        action="actions",
        cameras="none",
        rate="20, with a warning",
    )
]
