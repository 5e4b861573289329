"""What is found out about the machine, also about machines that are not this one."""

from __future__ import annotations

from pathlib import Path

import pytest

from bertender.core import hardware as cpu
from bertender.core.hardware import INTERESTING_FLAGS, cpu_facts, denied_flags, usable_cores
from bertender.core.machine import (
    Environment,
    data_directory,
    environment,
    file_of_distribution,
    supports_bf16,
)
from tests.core.machines import bare

INTEL = "processor\t: 0\nmodel name\t: Xeon 9\nflags\t\t: fpu avx2 avx512f avx512_vnni amx_bf16\n\n"
SECOND = "processor\t: 1\nmodel name\t: Other\nflags\t\t: amx_int8\n"
ARM = "processor\t: 0\nBogoMIPS\t: 243.75\nFeatures\t: fp asimd i8mm bf16\nCPU part\t: 0xd40\n"


def test_this_machine() -> None:
    found = environment()
    assert found is environment()
    assert found.cores == usable_cores()
    assert found.memory_bytes > 2**28
    assert {"torch", "transformers", "numpy", "onnxruntime"} <= found.versions.keys()
    assert set(found.cpu_flags) <= set(INTERESTING_FLAGS)


def test_json_and_back_without_paths() -> None:
    text = environment().model_dump_json()
    assert Environment.model_validate_json(text) == environment()
    assert str(Path.home()) not in text and "site-packages" not in text


@pytest.mark.parametrize(
    ("text", "model", "flags"),
    [
        (INTEL + SECOND, "Xeon 9", ("avx2", "avx512f", "avx512_vnni", "amx_bf16")),
        (ARM, None, ()),
        ("", None, ()),
    ],
)
def test_cpu_facts(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    model: str | None,
    flags: tuple[str, ...],
) -> None:
    monkeypatch.setattr(cpu, "amx_is_permitted", lambda: True)
    (tmp_path / "cpuinfo").write_text(text)
    found_model, found_flags = cpu_facts(tmp_path / "cpuinfo")
    assert found_flags == flags
    assert found_model == model if model else found_model


def test_flags_that_the_kernel_denies_are_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu, "amx_is_permitted", lambda: False)
    (tmp_path / "cpuinfo").write_text(INTEL)
    assert cpu_facts(tmp_path / "cpuinfo") == ("Xeon 9", ("avx2", "avx512f", "avx512_vnni"))
    assert denied_flags(tmp_path / "cpuinfo") == ("amx_bf16",)


def test_no_cpuinfo(tmp_path: Path) -> None:
    model, flags = cpu_facts(tmp_path / "absent")
    assert flags == () and model


@pytest.mark.parametrize(("flags", "answer"), [((), False), (("amx_bf16",), True)])
def test_bf16_follows_the_cpu(
    monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...], answer: bool
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("bertender.core.machine.environment", lambda: bare(cpu_flags=flags))
    assert supports_bf16() is answer


def test_data_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("BERTENDER_DATA", str(tmp_path))
    assert data_directory() == tmp_path
    monkeypatch.setenv("BERTENDER_DATA", str(tmp_path / "absent"))
    assert data_directory() is None
    monkeypatch.delenv("BERTENDER_DATA")
    assert data_directory() is None


def test_files_of_distributions() -> None:
    place = file_of_distribution("numpy", "core/__init__.py")
    assert place is not None and place.is_file()
    assert file_of_distribution("numpy", "no/such/file") is None
    assert file_of_distribution("no-such-distribution", "x") is None
