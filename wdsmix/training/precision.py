"""Precision: which float a device trains in, and a step that survives fp16.

======================  ==========================  =====================================================
device                  compute capability          trains in
======================  ==========================  =====================================================
V100, T4                7.0 to 7.5                  fp16 under autocast, with a gradient scaler
A100, H100, newer       8.0 and more                bf16 under autocast, no scaler
older GPUs, CPU         below 7.0                   fp32
======================  ==========================  =====================================================

The table goes by capability and never by ``torch.cuda.is_bf16_supported()``, which counts slow emulation as support and
so says yes on a V100. What a GPU may run is also a matter of the installed torch: since torch 2.11 only the build for
CUDA 12.6 has kernels for a V100, and `autoselect` says so before the first kernel fails.

fp16 ends at 65504, so three things are kept out of its way: inputs are bounded by the clips of the normalisation
(`check_bounds`), dimensions without spread are exactly 0 and masked (the loader), and losses are summed in fp32 (the
policies). Gradients are scaled up before they underflow; a step whose gradients overflow is skipped and counted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler

from wdsmix.errors import ConfigError, DataError

if TYPE_CHECKING:
    from wdsmix.mixture.catalog import Catalog

__all__ = ["Precision", "PrecisionName", "Stepper", "StepReport", "autoselect", "check_bounds", "has_kernels"]

PrecisionName = Literal["auto", "fp32", "fp16", "bf16"]

INPUT_BOUND = 1000.0
"""Largest magnitude of an input that fp16 takes: its square still fits."""

_DTYPES = {"fp32": None, "fp16": torch.float16, "bf16": torch.bfloat16}
_PATIENCE = 30
"""Skipped steps in a row after which the scale can't be what is wrong: 65536 / 2^30 would be reached."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Precision:
    """What a device trains in."""

    device: torch.device
    dtype: torch.dtype | None
    """Of autocast; None: fp32, no autocast."""
    uses_scaler: bool
    """Whether gradients are scaled."""
    reason: str
    """Why, in words."""

    @property
    def name(self) -> str:
        """``fp32``, ``fp16`` or ``bf16``."""
        return next(name for name, dtype in _DTYPES.items() if dtype is self.dtype)

    def autocast(self) -> AbstractContextManager[Any]:
        """The context of a forward pass."""
        if self.dtype is None:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=self.dtype)


def autoselect(
    device: torch.device | str,
    override: PrecisionName | None = None,
    *,
    capability: tuple[int, int] | None = None,
    arch_list: Sequence[str] | None = None,
) -> Precision:
    """Chooses the precision for a device.

    Args:
        device: Such as ``cuda:0`` or ``cpu``.
        override: ``fp32``, ``fp16`` or ``bf16`` in place of the choice; None or ``auto``: choose.
        capability: The GPU's compute capability; default: asked of the device.
        arch_list: What the installed torch has kernels for; default: ``torch.cuda.get_arch_list()``.

    Raises:
        ConfigError: no such device, no kernels for it in the installed torch, or an override that it can't do.
    """
    device = torch.device(device)
    if override is not None and override != "auto" and override not in _DTYPES:
        raise ConfigError("bad value", where="precision", expected="auto, fp32, fp16 or bf16", found=override)
    asked = None if override in (None, "auto") else override
    if device.type != "cuda":
        return _made(device, asked or "fp32", f"{device.type} trains in fp32 unless asked" if not asked else "as asked")
    if capability is None:
        if not torch.cuda.is_available():
            raise ConfigError(
                "no GPU that this torch can use",
                where="device",
                found=f"torch {torch.__version__}, built for CUDA {torch.version.cuda or 'none'}",
                hint="take --device cpu, or install a build of torch for the driver's CUDA",
            )
        capability = torch.cuda.get_device_capability(device)
    if arch_list is None:
        arch_list = torch.cuda.get_arch_list()
    _check_kernels(capability, arch_list)
    major, minor = capability
    label = f"compute capability {major}.{minor}"
    if asked == "bf16" and major < 8:
        raise ConfigError(
            "the GPU has no bf16",
            where="precision",
            expected="fp16 or fp32",
            found=f"bf16 with {label}",
            hint="torch would emulate it, slower than fp32",
        )
    if asked:
        return _made(device, asked, f"as asked; {label}")
    if major >= 8:
        return _made(device, "bf16", f"{label} has bf16")
    if major == 7:
        return _made(device, "fp16", f"{label} has fp16 tensor cores and no bf16")
    return _made(device, "fp32", f"{label} has no tensor cores")


def _made(device: torch.device, name: str, reason: str) -> Precision:
    return Precision(device=device, dtype=_DTYPES[name], uses_scaler=name == "fp16", reason=reason)


def has_kernels(capability: tuple[int, int], arch_list: Iterable[str]) -> bool:
    """Whether code for these architectures runs on a GPU.

    ``sm_XY`` is machine code: it runs on the same major version from minor Y on. ``compute_XY`` is PTX, compiled by the
    driver for anything from X.Y on. Suffix ``a`` ties either to exactly X.Y, ``f`` to one major version.

    Args:
        capability: (major, minor) of the GPU.
        arch_list: As ``torch.cuda.get_arch_list()`` spells it.
    """
    for arch in arch_list:
        match = re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", arch)
        if match is None:
            continue
        kind, built, suffix = match[1], (int(match[2]), int(match[3])), match[4]
        if suffix == "a":
            runs = built == capability
        elif kind == "sm" or suffix == "f":
            runs = built[0] == capability[0] and built[1] <= capability[1]
        else:
            runs = built <= capability
        if runs:
            return True
    return False


def _check_kernels(capability: tuple[int, int], arch_list: Sequence[str]) -> None:
    if has_kernels(capability, arch_list):
        return
    major, minor = capability
    if (5, 0) <= capability <= (7, 2):
        build = "install the build of torch for CUDA 12.6 (cu126), which keeps kernels for GPUs before sm_75"
    elif major >= 10:
        build = "install a build of torch for CUDA 12.8 or later (cu128, cu130)"
    else:
        build = f"install a build of torch whose torch.cuda.get_arch_list() has sm_{major}{minor}"
    raise ConfigError(
        "the installed torch has no kernels for this GPU",
        where="device",
        expected=f"sm_{major}{minor}",
        found=", ".join(arch_list) or "a build without CUDA",
        hint=build,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class StepReport:
    """What one step did."""

    gradient_norm: float
    """Of the unscaled gradients, before clipping; not finite where they overflowed."""
    skipped: bool
    """Whether the gradients overflowed, so that parameters stayed as they were."""
    scale: float
    """Of the next step's loss; 1 without a scaler."""


class Stepper:
    """Backward pass and optimiser step in a precision.

    Args:
        precision: What is trained in.
        optimizer: Steps the parameters of its groups.
        clip_norm: Gradients are scaled down to this norm; infinite: never.
    """

    def __init__(self, precision: Precision, optimizer: torch.optim.Optimizer, clip_norm: float) -> None:
        self._optimizer, self._clip = optimizer, clip_norm
        self._parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self._scaler = GradScaler(precision.device.type, enabled=precision.uses_scaler)
        self._in_a_row = 0
        self.skipped = 0
        """Steps skipped so far, over the whole run."""

    @property
    def scale(self) -> float:
        """What losses are multiplied by before the backward pass; 1 without a scaler."""
        return float(self._scaler.get_scale())

    def backward(self, loss: Tensor) -> None:
        """Adds the (scaled) gradients of a loss (float32 scalar)."""
        self._scaler.scale(loss).backward()  # type: ignore[no-untyped-call]

    def step(self) -> StepReport:
        """Unscales, clips, steps unless a gradient overflowed, and clears the gradients.

        Raises:
            DataError: gradients are not finite and no scale can help.
        """
        self._scaler.unscale_(self._optimizer)
        norm = float(torch.nn.utils.clip_grad_norm_(self._parameters, self._clip))
        before = self.scale
        if not self._scaler.is_enabled() and not torch.isfinite(torch.tensor(norm)):
            raise DataError("the gradients are not finite", found=f"norm {norm}")
        self._scaler.step(self._optimizer)
        self._scaler.update()
        self._optimizer.zero_grad(set_to_none=True)
        skipped = self.scale < before
        self.skipped += skipped
        self._in_a_row = self._in_a_row + 1 if skipped else 0
        if self._in_a_row >= _PATIENCE:
            raise DataError("the gradients overflow at every scale", found=f"{_PATIENCE} steps skipped in a row")
        return StepReport(gradient_norm=norm, skipped=skipped, scale=self.scale)

    def state_dict(self) -> dict[str, Any]:
        """The scaler's state and the counts, as plain containers."""
        return {"scaler": self._scaler.state_dict(), "skipped": self.skipped, "in_a_row": self._in_a_row}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes to a saved state; a scaler's is left out where one of the two runs has none."""
        if state["scaler"] and self._scaler.is_enabled():
            self._scaler.load_state_dict(state["scaler"])
        self.skipped, self._in_a_row = int(state["skipped"]), int(state["in_a_row"])


def check_bounds(precision: Precision, catalog: Catalog) -> None:
    """Refuses inputs that fp16 may not hold: vectors that are neither clipped nor small by their statistics.

    Raises:
        ConfigError: names the source, the vector and the largest value.
    """
    if precision.dtype is not torch.float16:
        return
    for name in ("state", "action"):
        for source, scale in zip(catalog.sources, catalog.scales[name], strict=True):
            stats = source.set.stats.fields.get(name)
            if scale is None or stats is None or scale.bound <= INPUT_BOUND or stats.count == 0:
                continue
            if name == "action" and source.waypoints is not None:  # a few spacings ahead
                continue
            ends = [
                (abs(v - c) * f)
                for row in (stats.min, stats.max)
                for v, c, f in zip(row, scale.centre, scale.factor, strict=True)
            ]
            if max(ends) > INPUT_BOUND:
                raise ConfigError(
                    f"{name} is not bounded, and fp16 would overflow",
                    path=catalog.config.path,
                    where=f"source {source.name!r}: normalize",
                    expected=f"values within {INPUT_BOUND:g}",
                    found=f"{max(ends):g}",
                    hint=f"normalise it, such as normalize: {{{name}: mean_std}}, or train with --precision fp32",
                )
