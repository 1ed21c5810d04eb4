"""The form of a source's action in the configuration, and which scales go with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

if TYPE_CHECKING:
    from wdsmix.mixture.config import Normalization, SampleConfig, SourceConfig

__all__ = ["ActionForm", "as_form", "check_modes"]


def _no_bool(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("expected a number, found true or false")
    return value


class ActionForm(BaseModel):
    """What the actions of a source become; written as a word (``waypoints``) or as ``{form: waypoints, ...}``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    form: Literal["waypoints"]
    heading: bool = True
    """Whether cos and sin of the heading follow the position: 4 dimensions, else 2."""
    every: Annotated[int, BeforeValidator(_no_bool), Field(ge=1)] = 1
    """Frames from one waypoint to the next."""


def as_form(value: object) -> object:
    """A bare word as the form it names."""
    return {"form": value} if isinstance(value, str) else value


def check_modes(sources: Sequence[SourceConfig], sample: SampleConfig) -> None:
    """Refuses combinations of form and scale that mean nothing.

    Raises:
        ValueError: names the source.
    """
    _only_action("sample", sample.normalize)
    for source in sources:
        place = f"source {source.name!r}"
        _only_action(place, source.normalize)
        how = source.normalize.get("action", sample.normalize.get("action"))
        mode = None if how is None else how.mode
        if source.action is None and mode == "spacing":
            raise ValueError(
                f"{place}: normalize: spacing goes with 'action: waypoints'; give this source another mode for action"
            )
        if source.action is not None and mode == "none":
            raise ValueError(
                f"{place}: waypoints are divided by the spacing or scaled by their own statistics, never left in "
                "metres: set normalize: {action: spacing}, or mean_std, min_max or q01_q99"
            )


def _only_action(place: str, normalize: Mapping[str, Normalization]) -> None:
    for name, how in normalize.items():
        if how.mode == "spacing" and name != "action":
            raise ValueError(
                f"{place}: normalize: {name} has no spacing; only an action of waypoints can be divided by it"
            )
