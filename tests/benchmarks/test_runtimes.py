"""The benchmark of runtimes: every file in every runtime, its row, and what the reading says."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.runtimes.measuring import RuntimeBenchmark, compare_runtimes
from benchmarks.runtimes.reading import fastest_reading, runtimes_reading
from benchmarks.runtimes.table import runtime_block
from bertender.core.artifact import Artifact
from bertender.measure.compare import CompareConfig
from bertender.tasks.task import Task
from export.onnx_export import ExportConfig, export
from quantize.quantizer import QuantizeConfig, quantize

QUICK = CompareConfig(
    runtime=("onnxruntime", "openvino"),
    processes=1,
    rounds=2,
    single_texts=3,
    batch_size=4,
    threads=1,
    noisy=True,
)
NAMES = [
    "plain in ONNX Runtime",
    "plain in OpenVINO",
    "static in ONNX Runtime",
    "static in OpenVINO",
]


@pytest.fixture(scope="module")
def result(
    trained: Artifact, task: Task, tmp_path_factory: pytest.TempPathFactory
) -> RuntimeBenchmark:
    folder = tmp_path_factory.mktemp("runtimes")
    plain = export(trained, task, ExportConfig(), folder / "plain")
    static = quantize(plain, task, QuantizeConfig(scheme="static"), folder / "static")
    return compare_runtimes([plain, static], task, QUICK)


def test_every_file_has_a_row_a_runtime(result: RuntimeBenchmark, tmp_path: Path) -> None:
    assert [row.name for row in result.comparison.rows] == NAMES
    assert [row.name for row in result.long.rows] == NAMES
    text = runtime_block(_files(result, tmp_path))
    first, *others = (line for line in text.splitlines() if " in " in line and line[0] == "|")
    assert first.count("x [") == 0
    assert [line.count("x [") for line in others] == [3, 3, 3]
    assert "4 layers" in text and "Raw: `runtimes.json`" in text


def test_the_aim_is_held_open_or_missed(result: RuntimeBenchmark, tmp_path: Path) -> None:
    lines = _read(result, tmp_path, runtimes_reading, [(0.0, 15.0), (0.1, 8.0), (5.0, 4.0)])
    fastest = "static in OpenVINO, 7.50x [7.50, 7.50] at -5.0 [-5.0, -5.0] points"
    held = "static in ONNX Runtime, 3.75x [3.75, 3.75] at -0.1 [-0.1, -0.1] points"
    assert [line[2:] for line in lines] == [[fastest, "-", held, "-"]] * 3
    lines = _read(result, tmp_path, runtimes_reading, [(0.0, 15.0), (0.1, 20.0), (5.0, 4.0)])
    assert [line[4:] for line in lines] == [["-", "-"]] * 3


def test_a_score_whose_interval_allows_it_leaves_the_aim_open(
    result: RuntimeBenchmark, tmp_path: Path
) -> None:
    losses = [(0.0, 15.0), (0.5, 8.0), (5.0, 8.0)]
    lines = _read(result, tmp_path, runtimes_reading, losses, width=0.4)
    assert [line[4:] for line in lines] == [["-", "static in ONNX Runtime"]] * 3
    assert [line[3] for line in lines] == ["static in OpenVINO"] * 3  # as fast


def test_another_reading_names_the_fastest(result: RuntimeBenchmark, tmp_path: Path) -> None:
    lines = _read(result, tmp_path, fastest_reading, [(0.0, 15.0), (0.1, 8.0), (5.0, 4.0)])
    fastest = "static in OpenVINO, 7.50x [7.50, 7.50] at -5.0 [-5.0, -5.0] points"
    assert [line[2:] for line in lines] == [[fastest, "-"]] * 3


def _read(
    result: RuntimeBenchmark,
    folder: Path,
    reading: Callable[[Mapping[str, Path]], str],
    rows: Sequence[tuple[float, float]],
    width: float = 0.0,
) -> list[list[str]]:
    """Return the cells of a reading's lines, of rows that lose so much and take so long."""
    raw = json.loads(result.model_dump_json())
    for number, (lost, milliseconds) in enumerate([(0.0, 30.0), *rows]):
        _set(raw, number, lost, milliseconds, width)
    text = reading(_files(RuntimeBenchmark.model_validate(raw), folder))
    _, _, *lines = [line for line in text.splitlines() if line.startswith("|")]
    return [line.strip("| ").split(" | ") for line in lines]


def _set(raw: Any, number: int, lost: float, milliseconds: float, width: float) -> None:
    """Give a row a loss of score with its interval, and every sample the same time."""
    row = raw["comparison"]["rows"][number]
    if number:
        row["change"] = {"value": -lost, "low": -lost - width, "high": -lost + width}
    for latency in (row["latency"], raw["long"]["rows"][number]):
        latency["single_ms"] = _same(latency["single_ms"], milliseconds)
        latency["batch_ms"] = _same(latency["batch_ms"], milliseconds)


def _same(samples: Any, milliseconds: float) -> Any:
    if isinstance(samples, list):
        return [_same(each, milliseconds) for each in samples]
    return milliseconds


def _files(result: RuntimeBenchmark, folder: Path) -> dict[str, Path]:
    place = folder / "runtimes.json"
    place.write_text(result.model_dump_json(), encoding="utf-8")
    return {place.name: place}
