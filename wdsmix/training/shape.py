"""The shape of a policy: from the mixture's layout when a run begins, and checked against it ever after."""

from __future__ import annotations

from typing import Any

from wdsmix.errors import ConfigError
from wdsmix.mixture.catalog import Catalog
from wdsmix.training.config import TrainConfig, within
from wdsmix.training.policies import PolicyConfig, policy_config

__all__ = ["check_shape", "policy_shape"]

ROWS = 16
"""Rows of an embodiment table, at least."""


def policy_shape(catalog: Catalog, train: TrainConfig) -> PolicyConfig:
    """The configuration of a new policy for a mixture.

    Raises:
        ConfigError: an option that the policy lacks, one that the mixture settles, or too few embodiment rows.
    """
    derived = _derived(catalog)
    settled = [key for key in train.options if key in {*derived, "policy", "image_size", "num_embodiments"}]
    if settled:
        raise ConfigError(
            f"{settled[0]} is settled by the mixture or by a key of its own, not by the policy's options",
            where=f"options.{settled[0]}",
        )
    ids = {source.embodiment: source.embodiment_id for source in catalog.sources}
    most = max([*ids.values(), *catalog.config.embodiments.values()])
    rows = train.num_embodiments or max(ROWS, most + 1)
    if most >= rows:
        name = next(name for name, number in {**ids, **catalog.config.embodiments}.items() if number == most)
        raise ConfigError(
            f"the embodiment table has no row for {name!r}", where="num_embodiments", expected=most + 1, found=rows
        )
    layout = catalog.layout
    size = train.image_size or (max(layout.height, 1), max(layout.width, 1))
    values = {"policy": train.policy, **derived, "image_size": size, "num_embodiments": rows}
    policy_config(values)
    with within("options"):
        return policy_config({**values, **train.options})


def check_shape(config: PolicyConfig, catalog: Catalog) -> None:
    """Checks that batches of a mixture have the shape of a policy.

    Raises:
        ConfigError: names the first difference, and the key of the mixture that settles it.
    """
    keys = {
        "cameras": "sample.cameras",
        "history": "sample.history",
        "chunk": "sample.action_chunk",
        "state_dim": "sample.pad_to.state",
        "action_dim": "sample.pad_to.action",
    }
    for name, found in _derived(catalog).items():
        expected = getattr(config, name)
        if found == expected:
            continue
        raise ConfigError(
            "the mixture's samples do not have the shape of the policy",
            path=catalog.config.path,
            where=keys[name],
            expected=expected,
            found=found,
            hint="wdsmix expand grows a policy" if name.endswith("_dim") and found > expected else None,
        )


def _derived(catalog: Catalog) -> dict[str, Any]:
    layout = catalog.layout
    return {
        "cameras": len(layout.cameras),
        "history": sum(offset <= 0 for offset in layout.offsets),
        "chunk": layout.chunk,
        "state_dim": layout.dims["state"],
        "action_dim": layout.dims["action"],
    }
