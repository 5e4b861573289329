"""What a processor has for 8-bit models, also of machines that are not this one."""

from __future__ import annotations

import subprocess
import sys

import pytest

from bertender.core.hardware import has_int8_acceleration
from bertender.core.machine import (
    environment,
    is_arm64,
    processor_here,
    processor_name,
)
from tests.core.machines import bare


@pytest.mark.parametrize(
    ("flags", "answer"),
    [((), False), (("avx2", "avx512f"), False), (("avx_vnni",), True), (("amx_int8",), True)],
)
def test_int8_acceleration(flags: tuple[str, ...], answer: bool) -> None:
    assert has_int8_acceleration(bare(cpu_flags=flags).cpu_flags) is answer


@pytest.mark.parametrize(
    ("platform", "answer"),
    [("Linux x86_64", False), ("Linux aarch64", True), ("Darwin arm64", True), ("Linux", False)],
)
def test_arm_is_known_by_its_names(platform: str, answer: bool) -> None:
    assert is_arm64(bare(platform=platform)) is answer


@pytest.mark.parametrize(
    ("flags", "denied", "name"),
    [
        ((), (), "old"),
        (("avx2", "avx512_vnni"), (), "old (AVX-512 VNNI)"),
        (("avx512_vnni",), ("amx_bf16", "amx_int8"), "old (AVX-512 VNNI; AMX denied)"),
    ],
)
def test_a_processor_is_named_with_its_instructions(
    flags: tuple[str, ...], denied: tuple[str, ...], name: str
) -> None:
    assert processor_name(bare(cpu_flags=flags, denied_flags=denied)) == name


def test_this_machine_has_the_name_that_its_environment_has() -> None:
    assert processor_here() == processor_name(environment())


def test_naming_this_machine_loads_no_pytorch() -> None:
    code = (
        "import sys; from serve.profiles import MachineKey, ServeConfig; "
        "MachineKey.of_this_machine(ServeConfig()); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
