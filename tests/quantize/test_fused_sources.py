"""Graphs of fused operators as sources: what is quantized of them, and what is exported again."""

from __future__ import annotations

import shutil
from pathlib import Path

import onnx
import pytest

from bertender.core.artifact import Artifact, lineage
from bertender.core.errors import ModelError
from bertender.models.classifier import onnx_file
from bertender.models.graphs import FUSED
from bertender.recipes.stages import STAGES
from bertender.tasks.task import Task
from export.config import ExportConfig
from export.exporter import export
from quantize.config import QuantizeConfig
from quantize.graph_check import failures_if_quantized
from tests.quantize.contexts import target_for
from tests.toy_models import save_artifact, tiny_classifier

LAYERS = 4


def graph_of(model_type: str, optimize: str, task: Task, folder: Path) -> Artifact:
    source = save_artifact(tiny_classifier(model_type, pad_token_id=0), task, folder / "source")
    return export(source, task, ExportConfig.parse({"optimize": optimize}), folder / optimize)


def quantized(source: Artifact, task: Task, out: Path, *, fused_attention: bool) -> Artifact:
    settings = {"scheme": "dynamic", "target": target_for(source.card.family)}
    config = QuantizeConfig.parse({**settings, "fused_attention": fused_attention})
    made = STAGES["quantize"].work([source], task, config, out)
    assert isinstance(made, Artifact)
    return made


@pytest.mark.parametrize(
    ("model_type", "optimize", "fused_attention", "operator", "again"),
    [
        ("bert", "fused", False, "Attention", True),
        pytest.param("bert", "fused", True, "QAttention", True, marks=pytest.mark.slow),
        pytest.param(
            "modernbert", "fused", False, "MultiHeadAttention", False, marks=pytest.mark.slow
        ),
        ("modernbert", "none", True, "MultiHeadAttention", True),
    ],
)
def test_a_graph_is_exported_again_where_it_is_of_another_form(
    model_type: str,
    optimize: str,
    fused_attention: bool,
    operator: str,
    again: bool,
    task: Task,
    tmp_path: Path,
) -> None:
    source = graph_of(model_type, optimize, task, tmp_path)
    made = quantized(source, task, tmp_path / "int8", fused_attention=fused_attention)
    found = made.card.findings.quantization
    assert found is not None and found.products == found.running_in_integers
    operators = [node.op_type for node in onnx.load(onnx_file(made)).graph.node]
    in_one = operator != "Attention" and (fused_attention or optimize == "fused")
    assert operators.count(operator) == LAYERS * in_one
    assert found.fused_attentions == (LAYERS if fused_attention else None)
    assert not FUSED & set(operators)
    parent, model, *_ = [*lineage(made)][1:]
    assert isinstance(parent, Artifact) and isinstance(model, Artifact)
    assert (parent.path != source.path) == again
    assert model.digest == Artifact.load(tmp_path / "source").digest
    assert failures_if_quantized(source if not again else parent, made, task) == ()


def test_without_the_model_it_was_made_of_a_graph_of_weights_is_refused(
    task: Task, tmp_path: Path
) -> None:
    source = graph_of("bert", "fused", task, tmp_path)
    shutil.rmtree(tmp_path / "source")
    with pytest.raises(ModelError, match="Export it again without --optimize fused"):
        quantized(source, task, tmp_path / "int8", fused_attention=False)
    assert not (tmp_path / "int8").exists()
