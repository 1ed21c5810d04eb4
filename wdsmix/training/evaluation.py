"""Evaluation: how far a policy's actions are from those of held-out episodes, source by source, exact over ranks.

Errors are means over what is real: valid samples, actions within their episode, dimensions that a robot has and that
have spread. Beside each stands ``mean_mse``, the error of predicting the mean action: for every source, dimension and
place in the chunk the mean over the very frames that are evaluated, so that no other constant does better.

*Normalised* errors are in the units that the policy is trained in, *real* ones in the units of the source (metres,
radians ...). Targets beyond the clip of the normalisation count as lying on it, in both.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from wdsmix.errors import ConfigError, DataError
from wdsmix.mixture.catalog import OpenSource, open_catalog
from wdsmix.mixture.config import MixtureConfig
from wdsmix.mixture.evaluate import EvaluationDataset
from wdsmix.training.batches import prepare
from wdsmix.training.checkpoint import misfits
from wdsmix.training.distributed import Group
from wdsmix.training.policies import Policy, build_policy, policy_config
from wdsmix.training.precision import Precision
from wdsmix.training.shape import check_shape
from wdsmix.training.statistics import check_scales, grown, scales_of

__all__ = ["Evaluator", "dimension_groups", "held_out", "load_policy"]

Report = dict[str, Any]

_WAYPOINT_GROUPS = ("position", "position", "heading", "heading")


class _Sums:
    """Sums over the frames of each source, float64 [S, K, D]: enough for every figure of the report.

    Args:
        sources: S.
        chunk: K.
        width: D.
    """

    NAMES = ("count", "target", "target_square", "error_square", "error")

    def __init__(self, sources: int, chunk: int, width: int) -> None:
        self.values = torch.zeros(len(self.NAMES), sources, chunk, width, dtype=torch.float64)
        self.frames = torch.zeros(sources, dtype=torch.float64)

    def add(self, source: Tensor, valid: Tensor, found: Tensor, target: Tensor, real: Tensor) -> None:
        """Takes in a batch.

        Args:
            source: int64 [B].
            valid: bool [B].
            found: float32 [B, K, D]: the policy's.
            target: float32 [B, K, D].
            real: bool [B, K, D]: what counts.
        """
        real = real & valid[:, None, None]
        target = torch.where(real, target, 0.0).double()
        error = torch.where(real, found, 0.0).double() - target
        parts = (real.double(), target, target.square(), error.square(), error.abs())
        for total, part in zip(self.values, parts, strict=True):
            total.index_add_(0, source, part)
        self.frames.index_add_(0, source, valid.double())


class Evaluator:
    """Evaluates policies on the held-out split of a mixture, again and again.

    Args:
        config: The mixture.
        splits: Names of the held-out split; each source is evaluated on the first that it has. Sources that have none
            are left out, and named in the report.
        batch_size: Samples a batch and rank.
        group: The ranks among which the frames are divided.
        frames: At most about so many of each source, its first ones; None: all.
        threads: That decode.

    Raises:
        ConfigError: no source has one of the splits.
    """

    def __init__(
        self,
        config: MixtureConfig,
        splits: Sequence[str],
        batch_size: int,
        group: Group,
        *,
        frames: int | None = None,
        threads: int | None = None,
    ) -> None:
        self._group = group
        self._splits, self._missing = held_out(config, splits)
        if not self._splits:
            raise ConfigError(
                "no source has a held-out split",
                path=config.path,
                where="eval_split",
                expected=", ".join(splits),
                hint="name another split, one that is not trained on, or set eval_every to 0",
            )
        if batch_size < 1 or (frames is not None and frames < 1):
            raise ConfigError("bad value", where="batch_size, frames", expected="1 or more", found=(batch_size, frames))
        self._steps = None if frames is None else max(1, -(-frames // (batch_size * group.world)))
        # With a limit, each source has a pass of its own: the first frames of a joint one would all be of one source.
        parts: list[tuple[str, list[str]]] = [
            (split, [name for name, chosen in self._splits.items() if chosen == split])
            for split in dict.fromkeys(self._splits.values())
        ]
        if frames is not None:
            parts = [(split, [name]) for split, names in parts for name in names]
        self._passes = [
            (
                names,
                EvaluationDataset(
                    config,
                    batch_size,
                    split,
                    sources=names,
                    rank=group.rank,
                    world_size=group.world,
                    num_threads=threads,
                ),
            )
            for split, names in parts
        ]

    def check(self, checkpoint: Mapping[str, Any]) -> None:
        """Checks that the mixture is one that a checkpoint's policy can be evaluated on.

        Raises:
            ConfigError: shapes or robots differ.
            ConflictError: a source is scaled unlike in training.
        """
        config = policy_config(checkpoint["policy"])
        catalog = self._passes[0][1].catalog  # the same for all, but for the splits
        check_shape(config, catalog)
        robots = {source.embodiment: source.embodiment_id for source in catalog.sources}
        with misfits():
            check_scales(checkpoint["normalization"], catalog)
            grown(checkpoint["embodiments"], robots, rows=config.num_embodiments, may_grow=False)

    @torch.no_grad()
    def run(self, policy: Policy, precision: Precision) -> Report:
        """Evaluates a policy.

        Returns:
            JSON types, the same on every rank: ``mse``, ``l1``, ``mean_mse`` and ``ratio`` (mse / mean_mse), each the
            mean over sources; ``sources``: for each its ``split``, ``frames``, the same figures, and ``groups`` of
            dimensions with ``dims``, ``real_rmse`` and ``real_l1`` beside them; ``left_out``: sources without a
            held-out split.

        Raises:
            DataError: actions of the policy or of a source are not finite.
        """
        training = policy.training
        policy.eval()
        try:
            sources: dict[str, Report] = {}
            for names, dataset in self._passes:
                sources.update(self._pass(names, dataset, policy, precision))
        finally:
            policy.train(training)
        ordered = {name: sources[name] for name in self._splits if name in sources}
        return {**_mean_of(ordered.values()), "sources": ordered, "left_out": self._missing}

    def _pass(
        self, names: Sequence[str], dataset: EvaluationDataset, policy: Policy, precision: Precision
    ) -> dict[str, Report]:
        catalog = dataset.catalog
        layout = catalog.layout
        sums = _Sums(len(catalog.sources), layout.chunk, layout.dims["action"])
        for number, batch in enumerate(dataset):
            if self._steps is not None and number >= self._steps:
                break
            seen = prepare(batch, precision.device, policy.config, None, offsets=layout.offsets, learns=False)
            with precision.autocast():
                found = policy.act(seen)
            real = seen.action_mask[:, None, :] & ~seen.action_is_pad[:, :, None]
            sums.add(batch["source_id"], batch["valid"], found.float().cpu(), seen.action.cpu(), real.cpu())
        self._group.total(sums.values)
        self._group.total(sums.frames)
        for source, finite in zip(catalog.sources, sums.values.isfinite().flatten(2).all(2).all(0), strict=True):
            if not finite:
                raise DataError(
                    "the held-out error is not finite: a state, an action or what the policy makes of them",
                    where=f"source {source.name!r}, split {self._splits[source.name]}",
                    hint="wdsmix validate --level full finds vectors that are not finite",
                )
        scales = scales_of(catalog)
        return {
            source.name: {
                "split": self._splits[source.name],
                "frames": int(sums.frames[source.id]),
                **_figures(sums.values[:, source.id], source, scales[source.name]["action"]["factor"]),
            }
            for source in catalog.sources
            if source.name in names and "action" in scales[source.name]
        }


def load_policy(checkpoint: Mapping[str, Any], weights: Literal["ema", "last"] | None = None) -> Policy:
    """The policy of a checkpoint, on the CPU.

    Args:
        checkpoint: As `load_checkpoint` reads it.
        weights: ``ema``: the averaged ones; ``last``: those of the last step; None: averaged, if they were kept.

    Raises:
        ConfigError: no averaged weights were kept.
        DataError: the weights are not those of the checkpoint's policy.
    """
    ema = checkpoint["ema"]
    if weights == "ema" and ema is None:
        raise ConfigError("the run kept no averaged weights", where="weights", expected="last", found="ema")
    config = policy_config(checkpoint["policy"])
    policy = build_policy(config.policy, config)
    with misfits():
        policy.load_state_dict(checkpoint["model"] if ema is None or weights == "last" else ema["model"])
    return policy


def held_out(config: MixtureConfig, splits: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Which split of each source is held out.

    Returns:
        Source -> the first of ``splits`` that it has and is not trained on; names of the sources without one.
    """
    chosen: dict[str, str] = {}
    missing = []
    for source in open_catalog(config).sources:
        has = [split for split in splits if split in source.set.index.splits and split != source.config.split]
        if has:
            chosen[source.name] = has[0]
        else:
            missing.append(source.name)
    return chosen, missing


def dimension_groups(source: OpenSource) -> dict[str, list[int]]:
    """Groups of an action's dimensions, by name without the number behind it: ``arm_0``, ``arm_1`` are ``arm``."""
    width = source.widths["action"]
    if source.waypoints is not None:
        names: Sequence[str] = _WAYPOINT_GROUPS[:width]
    else:
        stored = source.set.manifest.vectors["action"].names
        names = [re.sub(r"[_.\s]*\d+$", "", name) or "action" for name in stored] or ["action"] * width
    groups: dict[str, list[int]] = {}
    for place, name in enumerate(names):
        groups.setdefault(name, []).append(place)
    return groups


def _figures(sums: Tensor, source: OpenSource, factor: Tensor) -> Report:
    """Figures of a source from its sums, float64 [5, K, D]; ``factor`` float64 [d]: normalised units per real one."""
    count, target, target_square, square, absolute = sums
    # The mean action of each place in the chunk: its error is the variance.
    spread = target_square - target.square() / count.clamp(min=1)
    spread = torch.where(spread > 1e-12 * target_square, spread, 0.0)  # what is left of the sums' rounding
    live = (count.sum(0) > 0)[: len(factor)]
    unit = torch.where(live, 1 / torch.where(live, factor, 1.0), 0.0)

    def means(dims: Sequence[int]) -> Report:
        total = count[:, dims].sum()
        if not total:
            return {"mse": None, "l1": None, "mean_mse": None, "ratio": None}
        mse, mean_mse = float(square[:, dims].sum() / total), float(spread[:, dims].sum() / total)
        return {
            "mse": mse,
            "l1": float(absolute[:, dims].sum() / total),
            "mean_mse": mean_mse,
            "ratio": mse / mean_mse if mean_mse > 0 else None,
        }

    groups = {}
    for name, places in dimension_groups(source).items():
        dims = [place for place in places if live[place]]
        total = count[:, dims].sum() if dims else torch.zeros(())
        groups[name] = {
            "dims": len(dims),
            **means(dims),
            "real_rmse": float(((square[:, dims].sum(0) * unit[dims].square()).sum() / total).sqrt()) if dims else None,
            "real_l1": float((absolute[:, dims].sum(0) * unit[dims]).sum() / total) if dims else None,
        }
    return {**means(list(range(len(factor)))), "groups": groups}


def _mean_of(reports: Any) -> Mapping[str, float | None]:
    """Means over sources, which count alike; ``ratio`` is that of the means."""
    rows = [report for report in reports if report["mse"] is not None]
    if not rows:
        return dict.fromkeys(("mse", "l1", "mean_mse", "ratio"))
    out = {key: sum(row[key] for row in rows) / len(rows) for key in ("mse", "l1", "mean_mse")}
    return {**out, "ratio": out["mse"] / out["mean_mse"] if out["mean_mse"] > 0 else None}
