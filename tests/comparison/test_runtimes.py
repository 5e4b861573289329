"""verify and compare in every runtime: whose logits, whose times, and what the table says."""

from __future__ import annotations

from typing import Any

import pytest

from bertender.cli.findings import parity_lines
from bertender.comparison.compare import compare
from bertender.comparison.records import CompareConfig, Comparison
from bertender.comparison.table import comparison_lines, markdown_table
from bertender.core.artifact import Artifact
from bertender.core.errors import ConfigError, RuntimeMissingError
from bertender.gate.artifacts import VerifyConfig, verify
from bertender.models.runtimes import RUNTIMES, Runtime
from bertender.tasks.task import Task
from tests.runtimes import EVERY_RUNTIME, needs

SMALL = {
    "single_texts": 2,
    "batch_size": 4,
    "rounds": 2,
    "warmup_rounds": 0,
    "warmup_texts": 0,
    "processes": 1,
    "threads": 1,
}


def no_graphs(*artifacts: object) -> None:
    """Of artifacts that were not quantized, no graphs are compared."""


@pytest.fixture(scope="module")
def exported(plain_export: Any) -> tuple[Artifact, Artifact]:
    pair: tuple[Artifact, Artifact] = plain_export("bert")
    return pair


@pytest.mark.parametrize("runtime", EVERY_RUNTIME)
def test_verify_runs_the_candidate_in_it(
    runtime: str, exported: tuple[Artifact, Artifact], task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = count_opened(runtime, monkeypatch)
    parity = verify(*exported, task, VerifyConfig(runtime=runtime), no_graphs)
    assert parity.passed and parity.runtime == runtime and len(opened) == 1
    assert any(
        f"predictions in {RUNTIMES[runtime].title};" in line for line in parity_lines(parity)
    )


def count_opened(runtime: str, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Record what a runtime opens."""
    kind, opened = type(RUNTIMES[runtime]), list[object]()
    really = kind.open

    def opening(row: Runtime, *arguments: Any, **settings: Any) -> Any:
        opened.append(arguments)
        return really(row, *arguments, **settings)

    monkeypatch.setattr(kind, "open", opening)
    return opened


@needs("openvino")
def test_compare_has_a_row_for_each_runtime(
    exported: tuple[Artifact, Artifact], task: Task
) -> None:
    config = CompareConfig.parse({**SMALL, "runtime": "onnxruntime,openvino"})
    comparison = compare(exported, task, config)
    assert [(row.name, row.runtime) for row in comparison.rows] == [
        ("source", None),
        ("onnx in ONNX Runtime", "onnxruntime"),
        ("onnx in OpenVINO", "openvino"),
    ]
    source, *graphs = comparison.rows
    assert {row.score.value for row in graphs} == {source.score.value}
    assert [row.parity is None for row in graphs] == [False, True], "checked in ONNX Runtime alone"
    over = comparison.rows[2].speedup_over_onnx_float32
    assert over is not None and comparison.rows[1].speedup_over_onnx_float32.value == 1.0
    text = "\n".join([markdown_table(comparison), *comparison_lines(comparison)])
    assert "(openvino float32)" in text and "(onnxruntime float32)" in text
    assert "1 threads for PyTorch, ONNX Runtime and OpenVINO alike" in text
    assert f"openvino {RUNTIMES['openvino'].version}" in text
    assert Comparison.model_validate_json(comparison.model_dump_json()) == comparison


def test_one_runtime_leaves_the_names_alone(
    exported: tuple[Artifact, Artifact], task: Task
) -> None:
    comparison = compare(exported, task, CompareConfig.parse(SMALL))
    assert [row.name for row in comparison.rows] == ["source", "onnx"]
    assert [row.runtime for row in comparison.rows] == [None, "onnxruntime"]
    assert "for PyTorch and ONNX Runtime alike" in markdown_table(comparison)
    assert "openvino" not in markdown_table(comparison)


def test_a_runtime_of_no_artifact_is_refused(
    exported: tuple[Artifact, Artifact], task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Runtime, "version", "1.0")
    source, _ = exported
    message = r"runtime=openvino runs onnx artifacts.*source.*bertender export"
    with pytest.raises(ConfigError, match=message):
        compare([source], task, CompareConfig.parse({**SMALL, "runtime": "openvino"}))
    with pytest.raises(ConfigError, match=message):
        verify(source, source, task, VerifyConfig(runtime="openvino"), no_graphs)


def test_a_missing_or_unknown_runtime_is_refused_before_any_work(
    exported: tuple[Artifact, Artifact], task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Runtime, "version", None)
    with pytest.raises(RuntimeMissingError, match="'onnxruntime' is not installed"):
        compare(exported, task, CompareConfig.parse(SMALL))
    with pytest.raises(RuntimeMissingError, match=r"bertender\[openvino\]"):
        verify(*exported, task, VerifyConfig(runtime="openvino"), no_graphs)
    for config in (CompareConfig, VerifyConfig):
        with pytest.raises(ConfigError, match=r"Did you mean 'openvino'\? Known: onnxruntime, o"):
            config.parse({"runtime": "openvin"})
    with pytest.raises(ConfigError, match="at least 1"):
        CompareConfig.parse({"runtime": ""})
