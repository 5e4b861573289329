"""What a comparison over runtimes notes of a machine, and where the note is read again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from bertender.cli.doctor import findings
from bertender.comparison.compare import compare, runtime_note
from bertender.comparison.records import CompareConfig, Comparison
from bertender.core.machine import RuntimeNote, note_of_machine, save_note, shown_note
from bertender.models.runtimes import RUNTIMES
from bertender.tasks.task import Task
from tests.exports import PlainExport

PACKAGES = tuple(runtime.package for runtime in RUNTIMES.values() if not runtime.needs_gpu)
QUICK: dict[str, Any] = {
    "runtime": ("onnxruntime", "openvino"),
    "processes": 1,
    "rounds": 2,
    "single_texts": 3,
    "batch_size": 4,
    "threads": 1,
}


@pytest.fixture(scope="module")
def comparison(plain_export: PlainExport, task: Task) -> Comparison:
    _, exported = plain_export("bert")
    compared = compare([exported], task, CompareConfig(**QUICK, noisy=True))
    return _with_config(compared, noisy=False)


def _with_config(comparison: Comparison, **settings: object) -> Comparison:
    conditions = comparison.circumstances
    config = conditions.config.model_copy(update=settings)
    changed = conditions.model_copy(update={"config": config})
    return comparison.model_copy(update={"circumstances": changed})


def _timed(comparison: Comparison, times_ms: Mapping[str, Sequence[float]]) -> Comparison:
    """Return a comparison whose runtimes take these times, a round each."""
    rows = []
    for row in comparison.rows:
        times = times_ms[row.runtime or ""]
        samples = {"single_ms": [[[time] for time in times]], "batch_ms": [times]}
        latency = row.latency.model_copy(update=samples)
        rows.append(row.model_copy(update={"latency": latency}))
    return comparison.model_copy(update={"rows": tuple(rows)})


def _noted(comparison: Comparison) -> RuntimeNote:
    note = runtime_note(comparison)
    assert note is not None
    return note


def test_the_faster_runtime_is_named_with_its_ratio(comparison: Comparison) -> None:
    note = _noted(_timed(comparison, {"onnxruntime": (3.0, 3.0), "openvino": (2.0, 2.0)}))
    assert [each.runtime for each in note.uses] == ["OpenVINO", "OpenVINO"]
    words = shown_note(note)
    assert "one text: onnx in OpenVINO (float32) is 1.50x [1.50, 1.50] as fast as onnx in" in words
    assert "batches of 4: onnx in OpenVINO" in words


def test_runtimes_are_alike_where_the_interval_holds_one(comparison: Comparison) -> None:
    note = _noted(_timed(comparison, {"onnxruntime": (2.0, 4.0, 2.0), "openvino": (3.0,) * 3}))
    assert shown_note(note).count("are alike") == 2


@pytest.mark.parametrize("change", ["noisy", "one runtime"])
def test_nothing_is_noted_of_times_that_say_nothing(comparison: Comparison, change: str) -> None:
    if change == "noisy":
        assert runtime_note(_with_config(comparison, noisy=True)) is None
    else:
        one = comparison.model_copy(update={"rows": comparison.rows[:1]})
        assert runtime_note(one) is None


def test_what_a_gpu_ran_says_nothing_of_the_cpu(comparison: Comparison) -> None:
    timed = _timed(comparison, {"onnxruntime": (3.0, 3.0), "openvino": (2.0, 2.0)})
    first, second = timed.rows
    on_gpu = second.model_copy(update={"runtime": "onnxruntime-cuda"})
    assert runtime_note(timed.model_copy(update={"rows": (first, on_gpu)})) is None


def test_models_of_other_sizes_are_left_out(comparison: Comparison) -> None:
    timed = _timed(comparison, {"onnxruntime": (3.0, 3.0), "openvino": (2.0, 2.0)})
    large, second = timed.rows
    size = second.size.model_copy(update={"parameters": 1})
    small = second.model_copy(update={"size": size})
    assert runtime_note(timed.model_copy(update={"rows": (large, small)})) is None


def test_the_doctor_shows_the_note_of_this_machine_alone(
    comparison: Comparison, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BERTENDER_CACHE", str(tmp_path))
    here = comparison.circumstances.environment
    absent = _faster(here)
    assert not absent.ok and "--runtime onnxruntime,openvino" in absent.meaning
    note = _noted(_timed(comparison, {"onnxruntime": (3.0, 3.0), "openvino": (2.0, 2.0)}))
    save_note(note)
    assert note_of_machine(here, PACKAGES) == note
    assert _faster(here).value == shown_note(note)
    for change in ({"cpu_model": "another"}, {"denied_flags": ("amx_int8",)}):
        assert not _faster(here.model_copy(update=change)).ok
    newer = here.model_copy(update={"versions": {**here.versions, "openvino": "9999"}})
    assert not _faster(newer).ok


def test_a_note_that_cannot_be_read_counts_as_none(
    comparison: Comparison, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BERTENDER_CACHE", str(tmp_path))
    save_note(_noted(_timed(comparison, {"onnxruntime": (3.0,) * 2, "openvino": (2.0,) * 2})))
    (place,) = tmp_path.rglob("*.json")
    place.write_text("{", encoding="utf-8")
    assert note_of_machine(comparison.circumstances.environment, PACKAGES) is None


def test_a_comparison_is_not_lost_where_the_folder_cannot_be_written(
    comparison: Comparison, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    monkeypatch.setenv("BERTENDER_CACHE", str(tmp_path / "file"))
    save_note(_noted(_timed(comparison, {"onnxruntime": (3.0,) * 2, "openvino": (2.0,) * 2})))
    assert note_of_machine(comparison.circumstances.environment, PACKAGES) is None


def _faster(environment: Any) -> Any:
    (row,) = (each for each in findings(environment) if each.name == "faster runtime")
    return row
