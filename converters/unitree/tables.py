"""Robots: names of their joints, by part. A table gives names and a check; what is stored decides the dimensions."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["ROBOTS", "flat_names", "part_names"]

_ARM = ("ShoulderPitch", "ShoulderRoll", "ShoulderYaw", "Elbow", "WristRoll", "WristPitch", "WristYaw")
_DEX3_LEFT = ("Thumb0", "Thumb1", "Thumb2", "Middle0", "Middle1", "Index0", "Index1")
_DEX3_RIGHT = ("Thumb0", "Thumb1", "Thumb2", "Index0", "Index1", "Middle0", "Middle1")
_BRAINCO = ("Thumb", "ThumbAux", "Index", "Middle", "Ring", "Pinky")
_INSPIRE = ("Pinky", "Ring", "Middle", "Index", "ThumbBend", "ThumbRotation")
_Z1 = ("Waist", "Shoulder", "Elbow", "ForearmRoll", "WristAngle", "WristRotate", "Gripper")


def _sided(side: str, names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"k{side}{name}" for name in names)


_ARMS = {"left_arm": _sided("Left", _ARM), "right_arm": _sided("Right", _ARM)}
_DEX1 = {"left_ee": ("kLeftGripper",), "right_ee": ("kRightGripper",)}
_WAIST = {"waist": ("kWaistYaw", "kWaistPitch")}
_LIFT = {"lift": ("kLift",)}
_MOVE = {"move": ("kMoveX", "kMoveYaw")}

ROBOTS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "Unitree_Z1_Single": {"left_arm": tuple(f"k{name}" for name in _Z1)},
    "Unitree_Z1_Dual": {"left_arm": _sided("Left", _Z1), "right_arm": _sided("Right", _Z1)},
    "Unitree_G1_Dex1": {**_ARMS, **_DEX1},
    "Unitree_G1_Dex1_Sim": {**_ARMS, **_DEX1},
    "Unitree_G1_Dex3": {
        **_ARMS,
        "left_ee": _sided("LeftHand", _DEX3_LEFT),
        "right_ee": _sided("RightHand", _DEX3_RIGHT),
    },
    "Unitree_G1_Brainco": {
        **_ARMS,
        "left_ee": _sided("LeftHand", _BRAINCO),
        "right_ee": _sided("RightHand", _BRAINCO),
    },
    "Unitree_G1_Inspire": {
        **_ARMS,
        "left_ee": _sided("LeftHand", _INSPIRE),
        "right_ee": _sided("RightHand", _INSPIRE),
    },
    "Unitree_G1_MoveibleLift_Dex1_UseWaist": {**_ARMS, **_WAIST, **_LIFT, **_MOVE, **_DEX1},
    "Unitree_G1_MoveibleLift_Dex1_NoUseWaist": {**_ARMS, **_LIFT, **_MOVE, **_DEX1},
    "Unitree_G1_Lift_Dex1_UseWaist": {**_ARMS, **_WAIST, **_LIFT, **_DEX1},
    "Unitree_G1_Lift_Dex1_NoUseWaist": {**_ARMS, **_LIFT, **_DEX1},
}
"""Robot type -> part -> joints, in the order of state and action."""

ALIASES = {"Unitree_G1_Gripper": "Unitree_G1_Dex1"}

_BY_WIDTH = {
    ("left_ee", 1): _DEX1["left_ee"],
    ("right_ee", 1): _DEX1["right_ee"],
    ("left_ee", 7): ROBOTS["Unitree_G1_Dex3"]["left_ee"],
    ("right_ee", 7): ROBOTS["Unitree_G1_Dex3"]["right_ee"],
    ("left_arm", 7): _ARMS["left_arm"],
    ("right_arm", 7): _ARMS["right_arm"],
}
"""What a part of this width can only be; six fingers have two orders, so that they have none."""


def table_of(robot: str) -> Mapping[str, tuple[str, ...]] | None:
    """The parts of a robot; None where it is not known."""
    return ROBOTS.get(ALIASES.get(robot, robot))


def flat_names(robot: str) -> tuple[str, ...] | None:
    """All joints of a robot in order; None where it is not known."""
    table = table_of(robot)
    return None if table is None else tuple(name for names in table.values() for name in names)


def part_names(part: str, width: int, robot: str = "") -> tuple[str, ...]:
    """Names of a part's numbers: the robot's, else what its width tells, else numbered ones."""
    table = table_of(robot) or {}
    known = table.get(part)
    if known is not None and len(known) == width:
        return known
    if not table or part not in table:
        by_width = _BY_WIDTH.get((part, width))
        if by_width is not None and not (table and part.endswith("_arm")):
            return by_width
    return tuple(f"{part}_{k}" for k in range(width))
