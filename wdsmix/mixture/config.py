"""mixture.yaml: which shard sets, in which shares, as what kind of sample.

Everything that can be told wrong from the file alone is an error here, with the file and the key; what needs the sets
themselves (splits, widths, picture sizes, embodiments) is checked by `wdsmix.mixture.catalog`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
    field_validator,
    model_validator,
)
from yaml.constructor import ConstructorError

from wdsmix.errors import ConfigError
from wdsmix.mixture.action_form import ActionForm, as_form, check_modes
from wdsmix.mixture.explain import did_you_mean, explain
from wdsmix.store.opening import SCHEMES, is_url, refuse_half_urls

__all__ = [
    "CORE_VECTORS",
    "RESERVED",
    "GoalConfig",
    "MixtureConfig",
    "Normalization",
    "SampleConfig",
    "SourceConfig",
    "load_mixture",
]

NormMode = Literal["none", "mean_std", "min_max", "q01_q99", "spacing"]

CORE_VECTORS = ("state", "action", "reward", "done")
"""Vectors with a place of their own in a batch; all others are *further* vectors."""

RESERVED = frozenset(
    {
        *CORE_VECTORS,
        "images",
        "image_mask",
        "action_is_pad",
        "observation_is_pad",
        "task",
        "extras",
        "embodiment_id",
        "source_id",
        "episode",
        "frame",
        "step",
        "cursor",
        "valid",
        "replaced",
        "goal_images",
        "goal_image_mask",
        "goal_offset",
        "goal_negative",
    }
)
"""Names in a batch that a further vector can't have."""


def _no_bool(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("expected a number, found true or false")
    return value


def _as_mode(value: object) -> object:
    return {"mode": value} if isinstance(value, str) else value


def _as_bytes(value: object) -> object:
    if not isinstance(value, str):
        return _no_bool(value)
    match = re.fullmatch(r"\s*(\d+)\s*(B|KiB|MiB|GiB|kB|MB|GB)?\s*", value)
    if match is None:
        raise ValueError(f"expected bytes such as 2097152 or 2MiB, found {value!r}")
    units = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "kB": 10**3, "MB": 10**6, "GB": 10**9}
    return int(match[1]) * units[match[2] or "B"]


Name = Annotated[str, Field(min_length=1)]
Whole = Annotated[int, BeforeValidator(_no_bool)]
Count = Annotated[Whole, Field(ge=1)]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Normalization(_Model):
    """How one vector is scaled; written as a word (``q01_q99``) or as ``{mode: q01_q99, clip: 1.5}``."""

    mode: NormMode
    clip: Annotated[float, BeforeValidator(_no_bool), Field(gt=0)] | None = None
    """Bound on the scaled value's magnitude; ``.inf`` for none. Default 10 for mean_std, none for spacing, 1 for
    min_max and q01_q99."""

    @model_validator(mode="after")
    def _check(self) -> Normalization:
        if self.mode == "none" and self.clip is not None:
            raise ValueError("clip has no meaning with mode none")
        return self

    @property
    def bound(self) -> float:
        """The clip in force."""
        if self.clip is not None:
            return self.clip
        return {"none": float("inf"), "spacing": float("inf"), "mean_std": 10.0, "min_max": 1.0, "q01_q99": 1.0}[
            self.mode
        ]


Normalizations = dict[Name, Annotated[Normalization, BeforeValidator(_as_mode)]]


class SourceConfig(_Model):
    """One shard set of the mixture."""

    name: Name
    """Its name in the mixture: state and statistics go by it."""
    shards: Name
    """The set's folder or URL (``s3://``, ``gs://``, ``az://``, ``http(s)://``), or a brace pattern of its tars; a path
    is relative to the file that says so."""
    weight: Annotated[float, BeforeValidator(_no_bool), Field(gt=0, allow_inf_nan=False)]
    """Share of the samples, relative to the other sources' weights."""
    embodiment: Name | None = None
    """Robot; default: the one in the set's manifest."""
    split: Name = "train"
    normalize: Normalizations = {}
    """Overrides ``sample.normalize`` for this source, vector by vector."""
    action: Annotated[ActionForm | None, BeforeValidator(as_form)] = None
    """What its actions become; ``waypoints``: the poses ahead, of a navigation set. Default: as stored."""
    norm_group: Name | None = None
    """Sources of one group are scaled by the statistics of all of them together."""

    @field_validator("shards")
    @classmethod
    def _check_url(cls, value: str) -> str:
        scheme = value.partition("://")[0]
        try:
            refuse_half_urls(value)
        except ConfigError as error:
            raise ValueError(f"{error.message}; expected {error.expected}") from None
        if is_url(value) and scheme.lower() not in SCHEMES:
            raise ValueError(
                f"{scheme}:// is no kind of URL that is known: {', '.join(f'{known}://' for known in SCHEMES)}"
            )
        return value


class GoalConfig(_Model):
    """Goal frames: a later frame of the sample's own episode, or, as a negative, one of another episode."""

    min_offset: Annotated[Whole, Field(ge=0)] = 0
    """Nearest goal, in frames; less where the episode ends before."""
    max_offset: Count
    """Farthest goal; distances are uniform over what the episode has left, up to this."""
    negative_goal_fraction: Annotated[float, BeforeValidator(_no_bool), Field(ge=0, le=1)] = 0.0
    """Share of goals from other episodes of the source."""
    zero_is_negative: bool = False
    """Where the distance drawn is 0, take a goal from another episode, as GNM does; needs ``min_offset: 0``."""

    @model_validator(mode="after")
    def _check(self) -> GoalConfig:
        if self.min_offset > self.max_offset:
            raise ValueError(f"min_offset {self.min_offset} lies beyond max_offset {self.max_offset}")
        if self.zero_is_negative and self.min_offset:
            raise ValueError(f"zero_is_negative needs min_offset 0, found {self.min_offset}: 0 would never be drawn")
        return self


class SampleConfig(_Model):
    """What one sample of a batch holds."""

    cameras: list[Name] | None = None
    """Camera slots, in the order of the batch; default: every colour camera that some source has."""
    image_size: Annotated[Whole, Field(ge=0, le=16384)] = 0
    """Side of the square that pictures are brought to; 0: as stored."""
    history: Count | None = None
    """n is short for ``observation_offsets`` -n+1 ... 0; default 1."""
    observation_offsets: list[Whole] | None = None
    """Frames, relative to the sample's own, at which observations are taken; ascending."""
    action_chunk: Count = 1
    """Actions of a sample: those at 0 ... action_chunk-1."""
    pad_to: dict[Name, Count] = {}
    """Vector name -> width in the batch; default: the widest source's. Names of further vectors ask for them."""
    vectors: list[Name] = []
    """Further vectors to put into the batch (``pad_to`` may name them as well)."""
    normalize: Normalizations = {}
    """Vector name -> how it is scaled; default: none."""
    reward: bool = False
    done: bool = False
    goal: GoalConfig | None = None
    """Goal frames; default: none."""
    extras: list[Name] = []
    """Facts from the frames' json members (``timestamp``, ``score``, ...) to hand on as lists."""

    @property
    def offsets(self) -> tuple[int, ...]:
        """The observation offsets in force."""
        if self.observation_offsets is not None:
            return tuple(self.observation_offsets)
        return tuple(range(1 - (self.history or 1), 1))

    @property
    def further(self) -> tuple[str, ...]:
        """Further vectors of the batch, in the order of first mention."""
        asked = [*self.vectors, *self.pad_to]
        return tuple(dict.fromkeys(name for name in asked if name not in CORE_VECTORS))

    @model_validator(mode="after")
    def _check(self) -> SampleConfig:
        if self.history is not None and self.observation_offsets is not None:
            raise ValueError("history and observation_offsets exclude each other: give one of them")
        offsets = self.offsets
        if not offsets or any(b <= a for a, b in pairwise(offsets)):
            raise ValueError(f"observation_offsets must ascend and not be empty, found {list(offsets)}")
        for key, values in (("cameras", self.cameras or []), ("vectors", self.vectors), ("extras", self.extras)):
            twice = [value for value, times in Counter(values).items() if times > 1]
            if twice:
                raise ValueError(f"{key} names {twice[0]!r} twice")
        for name in ("reward", "done"):
            if name in self.pad_to or name in self.normalize or name in self.vectors:
                raise ValueError(f"{name} is one number a frame: write '{name}: true' and nothing else")
        core = [name for name in self.vectors if name in CORE_VECTORS]
        if core:
            raise ValueError(f"vectors names {core[0]!r}, which every sample has anyway; it is for further vectors")
        for name in self.further:
            taken = {*RESERVED, *(f"{other}_mask" for other in (*CORE_VECTORS, *self.further))}
            if name in taken:
                raise ValueError(f"a further vector can't be called {name!r}: a batch uses that name")
        return self


class MixtureConfig(_Model):
    """A whole mixture.yaml."""

    seed: Whole = 0
    embodiments: dict[Name, Annotated[Whole, Field(ge=0, lt=2**31)]] = {}
    """Robot name -> id, never inferred from order; needed when the sources hold more than one."""
    sources: Annotated[list[SourceConfig], Field(min_length=1)]
    sample: SampleConfig = SampleConfig()
    streams: Count = 8
    """How many places of a source are read side by side; ranks up to this number read different bytes."""
    window: Count = 8192
    """Frames of a source within which the order is mixed; about two windows of encoded frames are live."""
    block_bytes: Annotated[int, BeforeValidator(_as_bytes), Field(ge=1)] = 2 * 2**20
    """About how many neighbouring bytes are shuffled as one."""
    on_error: Literal["raise", "skip"] = "raise"
    """What a frame that can't be read does: end the run, or be replaced by the nearest readable one of its block."""
    max_skipped: Annotated[Whole, Field(ge=0)] = 100
    """With ``on_error: skip``: how many replaced samples in one reading process end the run after all."""
    first_batch_timeout_s: Annotated[float, BeforeValidator(_no_bool), Field(ge=0)] = 300.0
    """After how many seconds without a first batch the run ends, naming what it waits for; 0: never."""

    cache_dir: str | None = None
    """Folder of the node's cache of sets that lie in stores, on a disk of the node; relative to the file that says so.
    Default: what WDSMIX_CACHE_DIR names, else a folder below /var/tmp."""
    cache_limit: Annotated[int, BeforeValidator(_as_bytes), Field(ge=1)] | None = None
    """Bytes that the cache may take on the disk; default: half of what is free or taken by it."""
    read_ahead: Annotated[int, BeforeValidator(_as_bytes), Field(ge=1)] = 2 * 2**30
    """Bytes that a process fetches from stores ahead of their use, at most; they wait on the disk, not in memory."""

    _path: Path | None = PrivateAttr(default=None)
    _folder: Path | None = PrivateAttr(default=None)

    @property
    def path(self) -> Path | None:
        """The file it was read from."""
        return self._path

    @property
    def folder(self) -> Path:
        """What relative paths are relative to: the file's folder, else the working directory."""
        return self._folder or Path.cwd()

    @property
    def cache_folder(self) -> Path | None:
        """``cache_dir``, where it is given."""
        return None if self.cache_dir is None else self.folder / Path(self.cache_dir).expanduser()

    @classmethod
    def from_dict(
        cls, data: Mapping[str, Any], *, path: str | Path | None = None, folder: str | Path | None = None
    ) -> MixtureConfig:
        """Checks a configuration given as plain data.

        Args:
            data: The content of a mixture.yaml.
            path: Where it came from; for messages.
            folder: What relative paths are relative to; default: the folder of ``path``, else the working directory.

        Raises:
            ConfigError: a key is unknown, missing or has a bad value.
        """
        if not isinstance(data, Mapping):
            raise ConfigError(
                "not a mixture", path=path, expected="a mapping with the key sources", found=type(data).__name__
            )
        try:
            config = cls.model_validate(dict(data))
        except ValidationError as error:
            raise explain(error, path=path, known=_KEYS) from error
        config._path = None if path is None else Path(path).absolute()
        base = Path(folder) if folder is not None else config._path.parent if config._path else Path.cwd()
        config._folder = base.absolute()
        return config

    @model_validator(mode="after")
    def _check(self) -> MixtureConfig:
        twice = [name for name, times in Counter(source.name for source in self.sources).items() if times > 1]
        if twice:
            raise ValueError(f"two sources have the name {twice[0]!r}; state goes by it, so it must be unique")
        ids = Counter(self.embodiments.values())
        for name, number in self.embodiments.items():
            if ids[number] > 1:
                raise ValueError(f"embodiments: two have the id {number}, {name!r} among them")
        known = ["state", "action", *self.sample.further]
        where: dict[str, Iterable[str]] = {"sample.normalize": self.sample.normalize}
        where.update({f"source {source.name!r}: normalize": source.normalize for source in self.sources})
        for place, names in where.items():
            for name in names:
                if name not in known:
                    raise ValueError(f"{place}: {name!r} is no vector of the sample; {did_you_mean(name, known)}")
        check_modes(self.sources, self.sample)
        return self


_KEYS = {
    (): tuple(MixtureConfig.model_fields),
    ("sources", "*"): tuple(SourceConfig.model_fields),
    ("sources", "*", "action"): tuple(ActionForm.model_fields),
    ("sample",): tuple(SampleConfig.model_fields),
    ("sample", "goal"): tuple(GoalConfig.model_fields),
    ("sample", "normalize", "*"): tuple(Normalization.model_fields),
    ("sources", "*", "normalize", "*"): tuple(Normalization.model_fields),
}


class _Loader(yaml.SafeLoader):
    """YAML's safe loader, which refuses a key given twice instead of taking the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[object] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True) if isinstance(key_node, yaml.ScalarNode) else None
            if key is not None and key in seen:
                raise ConstructorError(None, None, f"the key {key!r} is given twice", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


def load_mixture(path: str | Path) -> MixtureConfig:
    """Reads and checks a mixture.yaml.

    Raises:
        ConfigError: no such file, not YAML, or not a mixture; names the file and the key.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise ConfigError(f"can't read the mixture: {reason}", path=path) from error
    try:
        # A subclass of SafeLoader: it builds plain data only.
        data = yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = None if mark is None else f"line {mark.line + 1}, column {mark.column + 1}"
        raise ConfigError(f"not valid YAML: {getattr(error, 'problem', error)}", path=path, where=where) from error
    return MixtureConfig.from_dict(data, path=path)
