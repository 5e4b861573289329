"""Every row of SCHEMES: smaller, near its source, the same each time; or nothing is written."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from bertender.core.artifact import Artifact
from bertender.core.errors import ModelError, ParityError, UnknownNameError
from bertender.core.predictor import onnx_file, open_classifier
from bertender.tasks.task import Task
from export.onnx_export import ExportConfig, export
from quantize.quantizer import QuantizeConfig, quantize
from quantize.schemes import SCHEMES
from tests.distill.toys import pair_task, save_artifact, tiny_classifier


@pytest.fixture(scope="module", params=SCHEMES)
def quantized(
    request: pytest.FixtureRequest,
    float_model: Artifact,
    task: Task,
    tmp_path_factory: pytest.TempPathFactory,
) -> Artifact:
    """The tiny BERT by each scheme."""
    out = tmp_path_factory.mktemp("quantized") / "int8"
    return quantize(float_model, task, QuantizeConfig(scheme=request.param), out)


every_scheme = pytest.mark.parametrize("scheme", SCHEMES)


def test_the_file_is_smaller(quantized: Artifact, float_model: Artifact) -> None:
    assert onnx_file(quantized).stat().st_size < 0.75 * onnx_file(float_model).stat().st_size


def test_the_answers_stay_near(quantized: Artifact, float_model: Artifact, task: Task) -> None:
    ours, theirs = (
        open_classifier(artifact).logits(task.dev.examples) for artifact in (quantized, float_model)
    )
    assert not np.array_equal(ours, theirs)
    assert np.abs(ours - theirs).max() < 0.1 * np.abs(theirs).max()


def test_the_card_says_what_was_done(quantized: Artifact, float_model: Artifact) -> None:
    card, source = quantized.card, float_model.card
    assert card.precision == SCHEMES[card.config["scheme"]].precision
    assert (card.kind, card.stage, card.family) == ("onnx", "quantize", source.family)
    assert card.parent is not None and card.parent.digest == float_model.digest
    assert card.metrics["parameters"] == source.metrics["parameters"]
    assert card.metrics["parity"]["passed"]


def test_config_and_tokenizer_come_along(quantized: Artifact, float_model: Artifact) -> None:
    ours, theirs = dict(quantized.card.files), dict(float_model.card.files)
    assert ours.pop("model.onnx") != theirs.pop("model.onnx")
    assert ours == theirs


@every_scheme
def test_the_same_source_gives_the_same_bytes(
    scheme: str, float_model: Artifact, task: Task, tmp_path: Path
) -> None:
    config = QuantizeConfig(scheme=scheme)
    first, second = (quantize(float_model, task, config, tmp_path / name) for name in ("a", "b"))
    assert onnx_file(first).read_bytes() == onnx_file(second).read_bytes()
    assert first.digest == second.digest


@every_scheme
def test_pairs(scheme: str, tmp_path: Path) -> None:
    task = pair_task()
    source = save_artifact(tiny_classifier("bert"), task, tmp_path / "source")
    onnx_model = export(source, task, ExportConfig(), tmp_path / "onnx")
    artifact = quantize(onnx_model, task, QuantizeConfig(scheme=scheme), tmp_path / "int8")
    assert "token_type_ids" in open_classifier(artifact).predictor.inputs


@every_scheme
def test_answers_that_move_too_far_are_refused_and_gone(
    scheme: str,
    float_model: Artifact,
    task: Task,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write = SCHEMES[scheme].write

    def write_negated(source: Path, target: Path) -> None:
        write(source, target)
        model = onnx.load(target)
        scale = next(item for item in model.graph.initializer if item.name.startswith("classifier"))
        scale.CopyFrom(numpy_helper.from_array(-9 * numpy_helper.to_array(scale), scale.name))
        onnx.save(model, target)

    monkeypatch.setitem(SCHEMES, scheme, replace(SCHEMES[scheme], write=write_negated))
    with pytest.raises(ParityError, match="int8 does not answer as onnx does"):
        quantize(float_model, task, QuantizeConfig(scheme=scheme), tmp_path / "int8")
    assert not any(tmp_path.iterdir())


@every_scheme
def test_only_float_graphs_are_quantized(
    scheme: str, teacher: Artifact, task: Task, float_model: Artifact, tmp_path: Path
) -> None:
    config = QuantizeConfig(scheme=scheme)
    with pytest.raises(ModelError, match=r"kind 'torch'; only onnx.*Export it first"):
        quantize(teacher, task, config, tmp_path / "out")
    once = quantize(float_model, task, config, tmp_path / "once")
    with pytest.raises(ModelError, match=r"is int8 already; give the float32 export"):
        quantize(once, task, config, tmp_path / "twice")
    assert [path.name for path in tmp_path.iterdir()] == ["once"]


def test_an_unknown_scheme_is_refused(float_model: Artifact, task: Task, tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match=r"scheme 'dinamic'. Did you mean 'dynamic'"):
        quantize(float_model, task, QuantizeConfig(scheme="dinamic"), tmp_path / "out")
