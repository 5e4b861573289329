"""The findings about a machine, also about machines that are not this one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bertender.cli.doctor import Finding, findings
from bertender.core.hardware import INTERESTING_FLAGS
from bertender.core.machine import DATA_VARIABLE
from bertender.models.runtimes import RUNTIMES
from serve.server import installation
from serve.server.advisories import AS_OF
from tests.core.machines import bare


def test_every_finding_has_a_value_and_a_meaning() -> None:
    said = findings(bare())
    assert len({finding.name for finding in said}) == len(said)
    for finding in said:
        assert finding.value and finding.meaning
        assert finding.value != "absent" or not finding.ok


def test_findings_tell_machines_apart() -> None:
    rich = bare(
        cpu_flags=INTERESTING_FLAGS,
        gpu="H100",
        versions={"torch": "2", **{runtime.package: "1" for runtime in RUNTIMES.values()}},
    )
    poor_ok = {finding.name for finding in findings(bare()) if finding.ok}
    rich_findings = {finding.name: finding for finding in findings(rich)}
    gained = {name for name, finding in rich_findings.items() if finding.ok} - poor_ok
    assert gained == {
        "AVX2",
        "AVX-512",
        "AMX",
        "int8 dot products (VNNI, AMX)",
        "bf16 (AVX-512, AMX)",
        "GPU",
        "PyTorch",
        *(runtime.title for runtime in RUNTIMES.values()),
    }
    assert rich_findings["GPU"].value == "H100"


def test_instructions_that_the_kernel_denies_are_not_just_absent() -> None:
    denied = bare(cpu_flags=("avx512_vnni",), denied_flags=("amx_bf16", "amx_int8"))
    of_denied, of_old = (
        next(each for each in findings(machine) if each.name == "AMX")
        for machine in (denied, bare())
    )
    assert not of_denied.ok and not of_old.ok
    assert "amx_bf16 and amx_int8" in of_denied.meaning and "seccomp" in of_denied.meaning
    assert "denies" not in of_old.meaning


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_every_runtime_is_listed_with_what_installs_it(runtime: str) -> None:
    (absent,) = (each for each in findings(bare()) if each.name == RUNTIMES[runtime].title)
    assert not absent.ok and f"`--runtime {runtime}`" in absent.meaning
    assert RUNTIMES[runtime].install in absent.meaning


@pytest.mark.server
def test_a_server_that_cannot_run_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files may all be there, and this Python be one that its stubs cannot load."""
    monkeypatch.setattr("serve.server.installation.PYTHON", "3.99")
    (finding,) = (found for found in findings(bare()) if found.name == "Triton server")
    assert not finding.ok and "3.99" in finding.meaning


@pytest.mark.server
def test_a_server_that_predates_fixes_is_named_with_them() -> None:
    (finding,) = (found for found in findings(bare()) if found.name == "Triton version")
    assert finding.value == "2.51.0" and not finding.ok
    assert "23319" in finding.meaning and "--tritonserver" in finding.meaning
    assert f"as of {AS_OF}" in finding.meaning


@pytest.mark.server
def test_a_server_with_every_fix_is_clean_as_of_a_date(monkeypatch: pytest.MonkeyPatch) -> None:
    newest = replace(installation.find_installation(), version="2.99.0")
    monkeypatch.setattr(installation, "find_installation", lambda: newest)
    (finding,) = (found for found in findings(bare()) if found.name == "Triton version")
    assert finding.ok and f"as of {AS_OF}" in finding.meaning


def test_a_folder_of_data_without_any_is_not_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def said() -> Finding:
        return findings(bare())[-1]

    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path / "gone"))
    assert not said().ok and said().value.endswith("gone") and "no such folder" in said().meaning
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path))
    assert not said().ok and "SST-2 with train.tsv" in said().meaning
    (tmp_path / "SST-2").mkdir()
    (tmp_path / "SST-2" / "train.tsv.xz").touch()
    assert said().ok
    monkeypatch.delenv(DATA_VARIABLE)
    assert said().value == "absent"


@pytest.mark.parametrize(("python", "ok"), [("3.13.1", True), ("3.14.0", False)])
def test_a_python_that_is_not_tested_is_said(python: str, ok: bool) -> None:
    assert findings(bare().model_copy(update={"python": python}))[0].ok is ok
