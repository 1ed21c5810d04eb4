"""Reference policies, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from wdsmix.errors import ConfigError
from wdsmix.mixture.explain import explain
from wdsmix.training.policies.base import Next, Policy, PolicyBatch, PolicyConfig
from wdsmix.training.policies.bc import BehaviourCloning
from wdsmix.training.policies.offline_rl import OfflineRL
from wdsmix.training.policies.transformer import CausalTransformer
from wdsmix.training.policies.vla import VisionLanguageAction

__all__ = ["POLICIES", "Next", "Policy", "PolicyBatch", "PolicyConfig", "build_policy", "policy_config"]

POLICIES: dict[str, type[Policy]] = {
    "bc": BehaviourCloning,
    "transformer": CausalTransformer,
    "vla": VisionLanguageAction,
    "offline-rl": OfflineRL,
}


def policy_config(values: Mapping[str, Any]) -> PolicyConfig:
    """The checked configuration of the policy that ``values["policy"]`` names.

    Raises:
        ConfigError: no such policy, or a key is unknown, missing or has a bad value.
    """
    name = values.get("policy")
    if name not in POLICIES:
        raise ConfigError("no such policy", where="policy", expected=", ".join(POLICIES), found=name)
    kind = POLICIES[name].Config
    try:
        return kind.model_validate(dict(values))
    except ValidationError as error:
        raise explain(error, path=None, known={(): tuple(kind.model_fields)}) from error


def build_policy(name: str, config: PolicyConfig) -> Policy:
    """A policy with fresh weights, drawn from torch's global generator.

    Args:
        name: Which.
        config: As `policy_config` makes it.

    Raises:
        ConfigError: no such policy, or the configuration of another one.
    """
    if config.policy != name:
        raise ConfigError(
            "the configuration is that of another policy", where="policy", expected=name, found=config.policy
        )
    checked = policy_config(config.model_dump(mode="json"))
    return POLICIES[name](checked)
