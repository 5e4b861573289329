"""The benchmark of optimised graphs: every graph answers, is timed, and has its row."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.fusion.measuring import GRAPHS, compare_graphs
from benchmarks.fusion.table import fusion_block, fusion_profile_block
from bertender.core.artifact import Artifact
from bertender.measure.latency import LatencyConfig
from bertender.measure.load import MachineLoad
from bertender.tasks.task import Task


@pytest.mark.slow
def test_every_graph_is_timed_and_has_a_row(teacher: Artifact, task: Task, tmp_path: Path) -> None:
    config = LatencyConfig(processes=1, rounds=2, single_texts=3, batch_size=4, threads=1)
    result = compare_graphs(teacher, task, config, tmp_path)
    for report in (result.natural, result.long):
        assert [row.name for row in report.rows] == list(GRAPHS)
    assert result.long.batch_texts == 1
    fused = {name: {*fused} for name, fused in result.fused.items()}
    assert fused["float32"] == fused["static"] == set()
    assert {"Attention", "SkipLayerNormalization"} <= fused["float32 fused"]
    assert {"QAttention", "SkipLayerNormalization"} <= fused["int8 fused"]
    assert fused["int8 fused attention"] == {"QAttention"}
    assert "SkipLayerNormalization" in fused["int8 all optimizers"]
    assert {*result.scores} == {*GRAPHS}
    # only what is optimised beforehand still has them
    running = [name for name, count in result.skip_layer_norms.items() if count]
    assert running == ["float32 fused", "int8 fused", "int8 all optimizers"]
    sizes = {path.name: path.stat().st_size for path in tmp_path.glob("*.onnx")}
    assert sizes["int8-fused.onnx"] < 0.6 * (tmp_path / "fused" / "model.onnx").stat().st_size

    assert result.natural.load and result.long.load
    for busy in (0.01, 0.5):
        load = MachineLoad(other_work=busy, steal=0.0)
        shown = result.model_copy(update={"long": result.long.model_copy(update={"load": load})})
        (tmp_path / "result.json").write_text(shown.model_dump_json())
        text = fusion_block("result.json", tmp_path / "result.json")
        assert ("shared with other work" in text) == (busy == 0.5)
        assert f"others had {busy:.0%} of the cores" in text
    plain = next(line for line in text.splitlines() if line.startswith("| float32 |"))
    assert plain.count(", -") == 3 and "| 0 |" in plain
    fused = next(line for line in text.splitlines() if line.startswith("| int8 fused |"))
    assert "4 QAttention" in fused and fused.count("x [") == 3
    assert "Raw: `result.json`" in text and "4 layers" in text

    assert {*result.profiles} == {*GRAPHS}
    equal = {  # which operator takes longest depends on what else runs here
        name: times.model_copy(update={"operators_ms": dict.fromkeys(times.operators_ms, 1.0)})
        for name, times in result.profiles.items()
    }
    shown = result.model_copy(update={"profiles": equal})
    (tmp_path / "result.json").write_text(shown.model_dump_json())
    text = fusion_profile_block("result.json", tmp_path / "result.json")
    rows = {name: next(row for row in text.splitlines() if f"| {name} |" in row) for name in GRAPHS}
    assert rows["int8"].endswith("| - | - |"), "nothing to differ from"
    assert "QAttention +1.00" in rows["int8 fused attention"]
    assert "Softmax -1.00" in rows["int8 fused attention"]
