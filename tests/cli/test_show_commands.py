"""bertender show: lineage, whole or broken."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from bertender.core.artifact import Artifact
from tests.cli.made import Made
from tests.front import fail, last_line, succeed


@pytest.fixture
def copy(made: Made, tmp_path: Path) -> Path:
    """The folder of the artifacts, to do harm to."""
    return shutil.copytree(made.folder, tmp_path / "a [bold] folder")


def test_lineage_goes_back_to_the_encoder(made: Made, teacher: Artifact) -> None:
    said = last_line(succeed("show", made["int8"], "--json"))
    stages = [entry["stage"] for entry in said]
    assert stages == ["quantize", "export", "distill", "finetune", "finetune"]
    assert said[-1]["digest"] == teacher.digest
    assert said[0]["card"]["config"]["scheme"] == "four-bit-embeddings"


def test_words_for_a_person(made: Made) -> None:
    lines = succeed("show", made["onnx"]).stdout.splitlines()
    digest = Artifact.load(made["onnx"]).digest[:12]
    assert lines[0].startswith(f"onnx {digest}  stage export, onnx, distilbert, float32, task a")
    assert lines[2].startswith("  student ") and "learning_rate=0.003" in lines[3]


def test_a_moved_family_is_still_whole(copy: Path) -> None:
    stages = [entry.get("stage") for entry in last_line(succeed("show", copy / "int8", "--json"))]
    assert stages[:4] == ["quantize", "export", "distill", "finetune"]


def test_a_parent_that_is_gone_is_said(copy: Path) -> None:
    shutil.rmtree(copy / "student")
    said = last_line(succeed("show", copy / "int8", "--json"))
    assert [entry.get("stage") for entry in said] == ["quantize", "export", None]
    assert "no artifact at" in said[2]["missing"] and "student" in said[2]["missing"]
    shown = succeed("show", copy / "int8").stdout
    assert str(copy / "student") in shown, "the place is shown as it is, brackets and all"


def test_a_parent_that_is_another_by_now_is_said(copy: Path) -> None:
    shutil.rmtree(copy / "student")
    shutil.copytree(copy / "teacher", copy / "student")
    said = last_line(succeed("show", copy / "onnx", "--json"))
    assert "holds another artifact by now" in said[1]["missing"]


def test_a_damaged_parent_is_said(copy: Path) -> None:
    (copy / "student" / "model.safetensors").write_bytes(b"")
    said = last_line(succeed("show", copy / "onnx", "--json"))
    assert "model.safetensors differs" in said[1]["missing"]


def test_a_damaged_artifact_is_an_error(copy: Path) -> None:
    (copy / "int8" / "model.onnx").unlink()
    assert "model.onnx is missing" in fail("show", copy / "int8")
