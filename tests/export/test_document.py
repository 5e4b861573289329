"""The sample of docs/how-to/export.md opens a graph as bertender does."""

from __future__ import annotations

import re
from pathlib import Path

import onnx
import pytest

from bertender.core import hardware as cpu
from bertender.core.artifact import Artifact
from bertender.models.classifier import onnx_file
from bertender.models.onnx_session import open_session
from bertender.tasks.task import Task
from quantize.config import QuantizeConfig
from quantize.quantizer import quantize


@pytest.mark.one_path
@pytest.mark.parametrize("flags", ["avx2", "avx2 avx512_vnni", "avx2 amx_int8"])
def test_others_open_it_by_the_document_as_bertender_does(
    flags: str,
    exported: Artifact,
    task: Task,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also 8-bit products, which the card's entry is about."""
    config = QuantizeConfig(scheme="dynamic", target="vnni")
    quantized = quantize(exported, task, config, tmp_path / "mine" / "int8")
    page = Path(__file__).parent.parent.parent / "docs" / "how-to" / "export.md"
    (sample,) = re.findall(
        r"```python\n(import json.*?)```", page.read_text(encoding="utf-8"), re.S
    )
    (tmp_path / "cpuinfo").write_text(f"flags\t: {flags}\n")
    sample = sample.replace("/proc/cpuinfo", str(tmp_path / "cpuinfo"))
    sample = sample.replace(
        "session = ", 'options.optimized_model_filepath = "theirs.onnx"\nsession = '
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cpu, "cpu_facts", lambda: ("a CPU", tuple(flags.split())))
    exec(compile(sample, str(page), "exec"), {})
    open_session(onnx_file(quantized), optimized=tmp_path / "ours.onnx")
    theirs, ours = (onnx.load(tmp_path / name).graph for name in ("theirs.onnx", "ours.onnx"))
    assert [node.op_type for node in theirs.node] == [node.op_type for node in ours.node]
    assert [(each.name, each.data_type) for each in theirs.initializer] == [
        (each.name, each.data_type) for each in ours.initializer
    ]
