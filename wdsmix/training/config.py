"""TrainConfig: what a run is told, from a train.yaml, the command line, or both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from wdsmix.errors import ConfigError, ConflictError
from wdsmix.mixture.explain import explain
from wdsmix.training.precision import PrecisionName

__all__ = ["FIXED", "TrainConfig", "checked", "load_train_config", "resumed_config", "within"]


def _no_bool(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("expected a number, found true or false")
    return value


def _as_size(value: object) -> object:
    return (value, value) if isinstance(value, int) else value


def _as_words(value: object) -> object:
    return [word for word in value.split(",") if word] if isinstance(value, str) else value


Whole = Annotated[int, BeforeValidator(_no_bool), Field(ge=0)]
Count = Annotated[int, BeforeValidator(_no_bool), Field(ge=1)]
Positive = Annotated[float, BeforeValidator(_no_bool), Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, BeforeValidator(_no_bool), Field(ge=0, lt=1)]


class TrainConfig(BaseModel):
    """A run. Every key of train.yaml is one of these; the flags of ``wdsmix train`` set the same."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    policy: str = "bc"
    steps: Count
    """Steps at which the run is over, counted from its very start."""
    schedule_steps: Count | None = None
    """Steps at whose end the learning rate has come down; default: ``steps``."""
    batch_size: Count = 32
    """Samples a step and rank."""
    lr: Positive = 3e-4
    lr_floor: Share = 0.02
    """Share of ``lr`` that is left at the end."""
    warmup_steps: Whole | None = None
    """Default: a twentieth of the schedule, 500 at most."""
    weight_decay: Annotated[float, BeforeValidator(_no_bool), Field(ge=0, allow_inf_nan=False)] = 1e-4
    """Of matrices and kernels; biases, norms and embeddings have none."""
    clip_norm: Positive = 1.0
    ema: Share = 0.999
    """Decay of the averaged weights; 0: none are kept."""
    precision: PrecisionName = "auto"
    device: str = "auto"
    seed: Annotated[Whole, Field(lt=2**63)] = 0
    eval_every: Whole = 500
    """Steps between evaluations; 0: none at all. There is one at the end."""
    eval_split: Annotated[list[str], BeforeValidator(_as_words), Field(min_length=1)] = ["val"]
    """Names of the held-out split; of several, each source is evaluated on the first that it has."""
    eval_frames: Count | None = None
    """At most about so many frames of each source, its first ones; default: all."""
    checkpoint_every: Whole = 500
    """Steps between checkpoints; 0: only at the end."""
    keep: Count = 3
    """Checkpoints that stay."""
    log_every: Count = 10
    workers: Whole = 0
    """DataLoader worker processes; 0: threads of this one."""
    threads: Count | None = None
    """Threads that decode; default: the cores, one in a worker."""
    image_size: Annotated[tuple[Count, Count] | None, BeforeValidator(_as_size)] = None
    """(height, width) the network sees, resized on the device; a number for a square; default: the mixture's."""
    num_embodiments: Count | None = None
    """Rows of the embodiment table; default: 16, or more where an id needs it."""
    options: dict[str, Any] = {}
    """The policy's own keys."""
    augment: dict[str, Any] | None = None
    """Keys of `AugmentConfig`; default: no augmentation."""
    tensorboard: bool = False
    deterministic: bool = False
    """Only operations that give the same bits again, on a GPU too."""

    @model_validator(mode="after")
    def _check(self) -> TrainConfig:
        if self.warmup_steps is not None and self.warmup_steps > self.length:
            raise ValueError(f"warmup_steps {self.warmup_steps} is longer than the schedule, {self.length} steps")
        return self

    @property
    def length(self) -> int:
        """Steps of the schedule in force."""
        return self.schedule_steps or self.steps

    @property
    def warmup(self) -> int:
        """Warm-up steps in force."""
        return min(500, self.length // 20) if self.warmup_steps is None else self.warmup_steps


FIXED = ("policy", "seed", "image_size", "num_embodiments", "options")
"""Keys that a run can't change once it has begun."""


@contextmanager
def within(key: str) -> Iterator[None]:
    """Names what is wrong with the inner keys of ``key`` as the run's configuration does: ``options.width``."""
    try:
        yield
    except ConfigError as error:
        if error.where and not error.where.startswith(f"{key}."):
            error.where = f"{key}.{error.where}"
        raise


def load_train_config(path: Path | None, flags: Mapping[str, Any]) -> dict[str, Any]:
    """Keys of a train.yaml with the command line's laid over them; not yet checked.

    Raises:
        ConfigError: not a file of keys.
    """
    if path is None:
        return dict(flags)
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, RecursionError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"can't read the configuration: {str(error).splitlines()[0]}", path=path) from error
    if not isinstance(content, dict):
        raise ConfigError("not a configuration", path=path, expected="a mapping", found=type(content).__name__)
    return {**content, **flags}


def checked(values: Mapping[str, Any], path: Path | None = None) -> TrainConfig:
    """The configuration that these keys make.

    Raises:
        ConfigError: a key is unknown, missing or has a bad value; names it.
    """
    try:
        return TrainConfig.model_validate(dict(values))
    except ValidationError as error:
        fault = explain(error, path=path, known={(): tuple(TrainConfig.model_fields)})
        if fault.where == "steps" and "steps" not in values:
            how = "give --steps N, or steps: N in the configuration"
            fault.hint = f"{how}; {fault.hint}" if fault.hint else how
        raise fault from error


def resumed_config(
    saved: Mapping[str, Any], values: Mapping[str, Any], *, ranks_then: int, ranks_now: int, path: Path | None = None
) -> TrainConfig:
    """A saved run's configuration with some keys given anew.

    Without a new ``batch_size`` the batch over all ranks stays as it was, however many ranks there are now.

    Raises:
        ConfigError: a bad key, or the old batch can't be divided by the new ranks.
        ConflictError: a key that is fixed for the life of a run.
    """
    before = checked(saved)
    after = {**saved, **values}
    if "batch_size" not in values and ranks_then != ranks_now:
        whole = before.batch_size * ranks_then
        if whole % ranks_now:
            raise ConfigError(
                f"{whole} samples a step can't be divided by {ranks_now} ranks",
                where="batch_size",
                hint="give --batch-size, samples a step and rank",
            )
        after["batch_size"] = whole // ranks_now
    config = checked(after, path)
    for key in FIXED:
        if getattr(config, key) != getattr(before, key):
            raise ConflictError(
                "can't change within a run",
                path=path,
                where=key,
                expected=getattr(before, key),
                found=getattr(config, key),
                hint="start a new run in another folder",
            )
    return config
