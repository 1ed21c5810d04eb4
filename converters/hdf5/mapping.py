"""The mapping file: an explicit description of a structure that no dialect knows."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from wdsmix.converters.slots import slot_fault

from wdsmix.errors import ConfigError

__all__ = ["FASTEST", "SLOWEST", "TEMPLATE", "Mapped", "MappedCamera", "load_mapping"]

SLOWEST, FASTEST = 0.01, 10_000.0
"""Frames/s beyond which a rate is none."""

TEMPLATE = """\
episodes: /data/*             # glob of the episodes' groups; "/" where a file is one episode
state: [obs/joint_pos]        # datasets (T, ...) within an episode, joined in this order
action: [actions]
# reward: rewards             # optional
# done: dones
cameras:                      # slot -> dataset of pictures in any storage, or {path, order, flip}
  cam0: obs/front_image
  cam1: {path: obs/wrist_image, order: rgb, flip: none}
fps: 20
task: pick up the cube        # a text, or {attr: NAME} or {dataset: NAME} of the episode
# action_shift: 0             # 1: the action of a frame is the next row
"""

_MAX_BYTES = 1 << 20
Key = Annotated[str, Field(min_length=1, max_length=1024)]


def _slot(name: str) -> str:
    if wrong := slot_fault(name):
        raise ValueError(wrong)
    return name


def _no_bool(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("a number is wanted, not true or false")
    return value


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class MappedCamera(_Strict):
    """One camera of a mapping file."""

    path: Key
    order: Literal["rgb", "bgr"] = "rgb"
    flip: Literal["none", "vertical", "rot180"] = "none"


class MappedText(_Strict):
    """A text to be found in the episode."""

    attr: Key | None = None
    dataset: Key | None = None


class Mapped(_Strict):
    """A mapping file."""

    episodes: Key | list[Key] = "/"
    state: Annotated[list[Key], Field(min_length=1)]
    action: Annotated[list[Key], Field(min_length=1)]
    reward: Key | None = None
    done: Key | None = None
    cameras: dict[Annotated[str, AfterValidator(_slot)], Key | MappedCamera] = {}
    fps: Annotated[float, BeforeValidator(_no_bool), Field(ge=SLOWEST, le=FASTEST)]
    task: str | MappedText = ""
    order: Literal["rgb", "bgr"] = "rgb"
    flip: Literal["none", "vertical", "rot180"] = "none"
    action_shift: Literal[0, 1] = 0


def load_mapping(path: Path) -> Mapped:
    """Reads a mapping file.

    Raises:
        ConfigError: absent, over-long, not YAML, or not what a mapping holds; names the key.
    """
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise ConfigError("mapping file too large", path=path, expected=f"at most {_MAX_BYTES} bytes")
        plain = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"can't read the mapping file: {error.strerror}", path=path) from error
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"not YAML: {' '.join(str(error).split())}", path=path) from error
    if not isinstance(plain, dict):
        raise ConfigError("not a mapping file", path=path, expected="keys and values", hint=f"a template:\n{TEMPLATE}")
    for key in plain:
        if key not in Mapped.model_fields:
            close = difflib.get_close_matches(str(key), list(Mapped.model_fields), 1)
            hint = f"did you mean {close[0]!r}?" if close else "known: " + ", ".join(Mapped.model_fields)
            raise ConfigError("unknown key", path=path, where=str(key), hint=hint)
    try:
        return Mapped.model_validate(plain)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ConfigError(first["msg"], path=path, where=where) from error
