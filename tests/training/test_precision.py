"""Precision by capability, kernels by architecture, and steps that survive overflow."""

from __future__ import annotations

import math

import pytest
import torch

from wdsmix.errors import ConfigError, DataError
from wdsmix.training.precision import Precision, Stepper, autoselect, has_kernels

CU126 = ["sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90"]
CU128 = ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"]
CU130 = ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_110", "sm_120", "compute_120"]
ALL = [*CU126, "sm_100", "sm_120"]


@pytest.mark.parametrize(
    ("capability", "name", "scaler"),
    [
        ((6, 0), "fp32", False),
        ((7, 0), "fp16", True),
        ((7, 5), "fp16", True),
        ((8, 0), "bf16", False),
        ((8, 6), "bf16", False),
        ((9, 0), "bf16", False),
        ((12, 0), "bf16", False),
    ],
)
def test_table_of_capabilities(capability, name, scaler, monkeypatch):
    # What torch says of a V100, for it counts emulation.
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda *_, **__: True)
    chosen = autoselect("cuda:0", capability=capability, arch_list=ALL)
    assert (chosen.name, chosen.uses_scaler, chosen.device) == (name, scaler, torch.device("cuda:0"))
    assert f"{capability[0]}.{capability[1]}" in chosen.reason
    assert chosen.dtype is {"fp32": None, "fp16": torch.float16, "bf16": torch.bfloat16}[name]


def test_cpu_is_fp32_unless_asked():
    assert (autoselect("cpu").name, autoselect("cpu", "auto").name) == ("fp32", "fp32")
    assert autoselect("cpu", "bf16") == Precision(
        device=torch.device("cpu"), dtype=torch.bfloat16, uses_scaler=False, reason="as asked"
    )
    assert autoselect("cpu", "fp16").uses_scaler
    with pytest.raises(ConfigError, match=r"precision: bad value .*auto, fp32, fp16 or bf16.*fp8"):
        autoselect("cpu", "fp8")


def test_override_on_a_gpu():
    for name in ("fp32", "fp16"):
        assert autoselect("cuda", name, capability=(7, 0), arch_list=CU126).name == name
    assert autoselect("cuda", "fp16", capability=(9, 0), arch_list=CU126).uses_scaler
    with pytest.raises(ConfigError, match="no bf16"):
        autoselect("cuda", "bf16", capability=(7, 0), arch_list=CU126)


@pytest.mark.parametrize("arch_list", [CU128, CU130])
def test_a_build_without_kernels_for_a_v100_names_the_one_that_has_them(arch_list):
    with pytest.raises(ConfigError, match=r"no kernels for this GPU .*expected sm_70.*CUDA 12\.6") as caught:
        autoselect("cuda:0", capability=(7, 0), arch_list=arch_list)
    assert caught.value.exit_code == 2
    autoselect("cuda:0", capability=(7, 0), arch_list=CU126)


def test_other_builds_are_named_too():
    with pytest.raises(ConfigError, match=r"CUDA 12\.8 or later"):
        autoselect("cuda:0", capability=(12, 0), arch_list=CU126)
    with pytest.raises(ConfigError, match="without CUDA"):
        autoselect("cuda:0", capability=(8, 0), arch_list=[])
    with pytest.raises(ConfigError, match=r"get_arch_list\(\) has sm_80"):
        autoselect("cuda:0", capability=(8, 0), arch_list=["sm_90"])


@pytest.mark.parametrize(
    ("capability", "arch_list", "runs"),
    [
        ((8, 6), ["sm_80"], True),  # machine code of the same major version, from its minor on
        ((8, 0), ["sm_86"], False),
        ((8, 9), ["sm_90"], False),
        ((9, 0), ["sm_86"], False),
        ((12, 1), ["sm_120"], True),
        ((10, 0), ["sm_120"], False),
        ((12, 0), ["compute_90"], True),  # PTX is compiled for what comes later
        ((8, 0), ["compute_90"], False),
        ((7, 0), ["compute_70"], True),
        ((9, 0), ["sm_90a"], True),  # a: that architecture alone
        ((12, 0), ["compute_90a"], False),
        ((10, 3), ["sm_100f"], True),  # f: that family
        ((12, 0), ["compute_100f"], False),
        ((7, 0), ["gfx90a", "nonsense", "sm_"], False),
    ],
)
def test_has_kernels(capability, arch_list, runs):
    assert has_kernels(capability, arch_list) is runs


def one_parameter(precision: str, clip: float = math.inf):
    weight = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    return weight, Stepper(autoselect("cpu", precision), optimizer, clip)


def test_clipping_sees_unscaled_gradients():
    weight, stepper = one_parameter("fp16", clip=0.5)
    assert stepper.scale == 65536
    stepper.backward((weight * torch.tensor([3.0, 4.0])).sum())  # its gradient has norm 5
    report = stepper.step()
    assert report.gradient_norm == pytest.approx(5.0)
    assert not report.skipped
    torch.testing.assert_close(weight.detach(), torch.tensor([3.0 - 0.3, 4.0 - 0.4]))
    assert weight.grad is None


def test_an_overflow_skips_the_step_is_counted_and_halves_the_scale():
    weight, stepper = one_parameter("fp16")
    stepper.backward(weight.sum() * torch.tensor(3e38))  # overflows once it is scaled
    report = stepper.step()
    assert (report.skipped, report.scale, stepper.skipped) == (True, 32768.0, 1)
    assert weight.tolist() == [3.0, 4.0]
    stepper.backward(weight.sum())
    assert not stepper.step().skipped
    assert weight.tolist() == [2.0, 3.0]
    _, other = one_parameter("fp16")
    other.load_state_dict(stepper.state_dict())
    assert (other.scale, other.skipped, other.state_dict()) == (32768.0, 1, stepper.state_dict())


def test_overflow_at_every_scale_ends_the_run():
    weight, stepper = one_parameter("fp16")

    def step() -> bool:
        stepper.backward((weight * math.nan).sum())
        return stepper.step().skipped

    assert all(step() for _ in range(29))
    with pytest.raises(DataError, match="overflow at every scale"):
        step()
    assert stepper.skipped == 30


def test_without_a_scaler_a_gradient_that_is_not_finite_is_an_error():
    weight, stepper = one_parameter("fp32")
    stepper.backward((weight * math.inf).sum())
    with pytest.raises(DataError, match="gradients are not finite"):
        stepper.step()
    assert weight.tolist() == [3.0, 4.0]
    assert stepper.scale == 1


@pytest.mark.parametrize("name", ["fp16", "bf16"])
def test_autocast_on_the_cpu(name):
    with autoselect("cpu", name).autocast():
        assert torch.nn.functional.linear(torch.ones(2, 2), torch.ones(2, 2)).dtype is autoselect("cpu", name).dtype
    with autoselect("cpu").autocast():
        assert torch.nn.functional.linear(torch.ones(2, 2), torch.ones(2, 2)).dtype is torch.float32
