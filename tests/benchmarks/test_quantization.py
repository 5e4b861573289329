"""The quantization benchmark: variants beside the float graph, refusals with their reasons."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.quantization import measuring as quantization
from benchmarks.quantization.measuring import QuantizationBenchmark, run
from benchmarks.quantization.table import quantization_block
from bertender.core.errors import ParityError
from bertender.tasks.task import Task
from quantize.quantizer import QuantizeConfig
from quantize.schemes import SCHEMES
from tests.toy_models import save_artifact, tiny_classifier

FEW = {
    "dynamic": {"scheme": "dynamic"},
    "hopeless": {"scheme": "dynamic", "max_drop": 0.0, "target": "gpu"},
}


def test_every_variant_is_a_config_and_every_scheme_a_variant() -> None:
    configs = [QuantizeConfig.parse(settings) for settings in quantization.VARIANTS.values()]
    assert {config.scheme for config in configs} == set(SCHEMES)


def test_four_bits_have_a_row_whose_ranking_is_read() -> None:
    rows = [each for each in quantization.VARIANTS.values() if each["scheme"] == "four-bit"]
    read = [QuantizeConfig.parse(each) for each in rows if "max_drop" in each]
    assert {each.sensitivity for each in read} == {"hessian-eigenvalue"}


def test_a_refusal_quotes_no_text_of_the_data() -> None:
    error = ParityError(
        "int8 does not agree with float32 (2 failures over 9 predictions):\n"
        "  - min_cosine is -1, allowed at least 0.9; worst: 'a text' (batch of 1)\n"
        "  - decided_agreement is 0.9, allowed at least 0.97; worst: 'another' (batch of 4)"
    )
    assert quantization._reason(error) == (
        "int8 does not agree with float32 (2 failures over 9 predictions): "
        "min_cosine is -1, allowed at least 0.9"
    )


@pytest.mark.slow
def test_it_measures_what_passes_and_names_what_does_not(
    task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = save_artifact(tiny_classifier("bert"), task, tmp_path / "source")
    apart = replace(task, selection=task.train.first(24))
    monkeypatch.setattr(quantization, "recorded_task", lambda artifact, changes: apart)
    monkeypatch.setattr(quantization, "VARIANTS", FEW)
    monkeypatch.setattr(quantization, "LONG_TEXTS", 2)
    monkeypatch.setattr(quantization, "LONG_TOKENS", 12)
    out = tmp_path / "result.json"
    run(source.path, tmp_path / "work", out, None, 1, 2e-5, 2, True, 1)
    result = QuantizationBenchmark.model_validate_json(out.read_text())
    assert [row.name for row in result.comparison.rows] == ["float32", "dynamic"]
    assert len(result.long.rows) == 2
    assert {name: choice.n for name, choice in result.choices.items()} == {
        "float32": 24,
        "dynamic": 24,
    }
    assert set(result.kernels) == {"float32", "dynamic"}
    for times in result.kernels.values():
        assert times.tokens == 12
        assert min(times.products_ms, times.elsewhere_ms) > 0
    assert "DynamicQuantizeMatMul" in result.kernels["dynamic"].operators_ms
    assert list(result.refused) == ["hopeless"] and "slower than 16" in result.refused["hopeless"]
    assert str(tmp_path) not in json.dumps(result.refused)
    assert result.found["dynamic"]["products"] == 26
    made = (tmp_path / "work" / "dynamic" / "model.onnx").stat().st_mtime_ns
    assert result.long.load and all(times.load for times in result.kernels.values())
    text = quantization_block({"result.json": out})
    (constant,) = (line for line in text.splitlines() if line.startswith("| always "))
    assert constant.count("| - ") == 11 and constant.count("[") == 1
    assert "| `dynamic` |" in text and "- `hopeless` was refused:" in text
    assert f"{result.comparison.rows[1].score.value:.3f}" in text
    assert "| Score to choose by |" in text
    run(source.path, tmp_path / "work", None, None, 1, 2e-5, 2, False)
    assert (tmp_path / "work" / "dynamic" / "model.onnx").stat().st_mtime_ns == made
