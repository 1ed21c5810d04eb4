"""The layout of an episode, with the options of all dialects applied: instructions, and ``--obs-shift``."""

from __future__ import annotations

from dataclasses import replace

from wdsmix.converters.hdf5.faults import Hdf5Error
from wdsmix.converters.hdf5.language import filled, named_instruction
from wdsmix.converters.hdf5.layout import Dialect, EpisodeLayout, FileFacts, Part
from wdsmix.converters.hdf5.options import Hdf5Options
from wdsmix.converters.hdf5.safe import Tree

__all__ = ["layout_of", "pairing_words"]


def layout_of(dialect: Dialect, tree: Tree, group: str, options: Hdf5Options, facts: FileFacts) -> EpisodeLayout:
    """The layout that a dialect tells for an episode, its task and its pairing as the user wants.

    Raises:
        Hdf5Error: the episode is not of that structure, or of one that can't be converted.
    """
    if dialect.layout is None:
        raise Hdf5Error(dialect.refusal, path=str(tree.path), where=group)
    if options.instruction:
        options = replace(options, instruction=filled(options.instruction, tree.path))
    layout = dialect.layout(tree, group, options, facts)
    if options.instructions:
        also = (group.rsplit("/", 1)[-1], str(layout.extras.get("uuid", "")))
        layout = replace(layout, task=named_instruction(options.instructions, tree.path, also) or layout.task)
    return _shifted(tree, layout, options.obs_shift) if options.obs_shift else layout


def _rows(tree: Tree, part: Part, later: int = 0) -> int:
    dataset = tree.dataset(part.path)
    stored = dataset.shape[0] if dataset is not None and dataset.shape else 0
    stored = stored if part.rows is None else len(part.rows)
    return max(0, (stored if part.stop is None else min(part.stop, stored)) - part.start - later)


def _shifted(tree: Tree, layout: EpisodeLayout, shift: int) -> EpisodeLayout:
    """Pairs the action of a row with the observation ``shift`` rows later (-1: the one before it).

    Reward and done stay with their action. The frames that lose their partner are left out.
    """
    first = layout.action[0]
    frames = layout.frames if layout.frames is not None else _rows(tree, first)
    slack = layout.slack if layout.slack is not None else int(layout.frames is not None)
    later = max(0, shift)  # rows by which observations begin later
    after = max(0, -shift)  # rows by which actions do
    if after:
        frames = max(0, frames - after)
    else:
        seen = layout.state[0]
        left = _rows(tree, seen, later)
        frames = left if frames - later <= left < frames else frames
    return replace(
        layout,
        state=[replace(part, start=part.start + later) for part in layout.state],
        gripper=[replace(part, start=part.start + later) for part in layout.gripper],
        cameras={key: replace(camera, start=camera.start + later) for key, camera in layout.cameras.items()},
        action=[replace(part, start=part.start + after) for part in layout.action],
        optional={name: replace(part, start=part.start + after) for name, part in layout.optional.items()},
        keep=None if layout.keep is None else [frame - after for frame in layout.keep if frame >= after],
        frame_extras={name: values[later:] for name, values in layout.frame_extras.items()},
        frames=frames,
        slack=slack + abs(shift),
    )


def pairing_words(dialects: list[Dialect], options: Hdf5Options) -> str:
    """The pairing of observations and actions, in words."""
    if options.mapping is not None:
        words = "action of the next row" if options.mapping.action_shift else "same row"
    else:
        words = "; ".join(dict.fromkeys(dialect.pairing for dialect in dialects)) or "same row"
    if options.obs_shift:
        words += f"; observations of {abs(options.obs_shift)} row {'later' if options.obs_shift > 0 else 'earlier'}"
    return words
