"""Optimised graphs: the same answers, fused where a family can be, and never silently not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

from bertender.core.artifact import Artifact
from bertender.core.errors import ModelError
from bertender.core.findings import GraphFindings
from bertender.models.classifier import onnx_file, open_classifier
from bertender.models.families import FAMILIES
from bertender.models.onnx_session import open_session
from bertender.models.own_models import TABLE_MODELS
from bertender.models.steps import FUSIONS
from bertender.tasks.task import Task
from export.config import ExportConfig
from export.exporter import export
from export.precision import OPTIMIZATIONS
from tests.exports import PlainExport
from tests.quick import quick
from tests.toy_models import OWN_SHAPES, SHAPES, VOCABULARY, save_artifact, tiny_classifier

LAYERS = 4


def origin(model_type: str) -> str:
    return model_type.removeprefix("bertender-pruned-")


ARCHITECTURES = [*SHAPES, *OWN_SHAPES]
FUSIBLE = [name for name in ARCHITECTURES if not FUSIONS[origin(name)].obstacle]


def exported(model_type: str, task: Task, folder: Path, **settings: Any) -> Artifact:
    source = save_artifact(tiny_classifier(model_type, pad_token_id=0), task, folder / "source")
    return export(source, task, ExportConfig(**settings), folder / "onnx")


def graph_of(artifact: Artifact) -> GraphFindings:
    graph = artifact.card.findings.graph
    assert graph is not None
    return graph


def test_every_architecture_has_a_row() -> None:
    assert FUSIONS.keys() >= {*FAMILIES, *map(origin, ARCHITECTURES)}
    assert set(OPTIMIZATIONS) == {"none", "basic", "fused"}


def test_how_attention_is_fused_is_stated_by_the_row_of_the_family() -> None:
    """A family that its row would bring to another form needs no line in `export`."""
    assert {name: FUSIONS[name] for name in FAMILIES} == {
        name: family.fusion for name, family in FAMILIES.items()
    }
    assert FUSIONS.keys() == {*FAMILIES, *TABLE_MODELS}


@pytest.mark.one_path
@pytest.mark.parametrize("model_type", [name for name in FUSIBLE if name in OWN_SHAPES])
def test_attention_is_fused_in_every_layer(model_type: str, task: Task, tmp_path: Path) -> None:
    """With uneven heads: the shapes of pruned models have 2, 1, 4 and 3."""
    artifact = exported(model_type, task, tmp_path, optimize="fused")
    report = graph_of(artifact)
    found = {name: report.fused.get(name, 0) for name in ("Attention", "SkipLayerNormalization")}
    if origin(model_type) == "modernbert":  # it is written so, and not found by its norms
        written = {"MultiHeadAttention": LAYERS, "RotaryEmbedding": 2 * LAYERS}
        assert report.fused.items() >= written.items() and not any(found.values())
    else:
        assert found == {"Attention": LAYERS, "SkipLayerNormalization": 2 * LAYERS}
    assert report.layers == LAYERS
    graph = onnx.load(onnx_file(artifact))
    assert {entry.domain for entry in graph.opset_import} == {"", "com.microsoft"}
    heads = [
        attribute.i
        for node in graph.graph.node
        for attribute in node.attribute
        if attribute.name == "num_heads"
    ]
    assert heads == OWN_SHAPES[model_type]["heads_kept"]


def test_a_window_longer_than_the_traced_text_is_in_the_graph(task: Task, tmp_path: Path) -> None:
    """transformers 5 makes no mask of a text that is shorter; a longer one has it all the same."""
    model = tiny_classifier("modernbert", local_attention=64, max_position_embeddings=64)
    source = save_artifact(model, task, tmp_path / "source")
    artifact = export(source, task, ExportConfig(optimize="fused"), tmp_path / "onnx")
    ids = torch.randint(5, VOCABULARY, (2, 40), generator=torch.Generator().manual_seed(0))
    tokens = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    tokens["attention_mask"][1, 30:] = 0
    with torch.inference_mode():
        wanted = model(**tokens).logits.numpy()
    session = open_session(onnx_file(artifact))
    (logits,) = session.run(None, {name: each.numpy() for name, each in tokens.items()})
    np.testing.assert_allclose(logits, wanted, atol=1e-5)


@pytest.mark.parametrize("optimize", quick(("basic", "fused"), "fused"))
@pytest.mark.parametrize("opset", [14, 20])
def test_the_pattern_is_found_in_every_operator_set(
    opset: int, optimize: str, teacher: Artifact, task: Task, tmp_path: Path
) -> None:
    """Layer norms are one operator from 17 on."""
    config = ExportConfig(opset=opset, optimize=optimize)
    report = graph_of(export(teacher, task, config, tmp_path / "onnx"))
    assert report.opset == opset
    assert report.fused.get("Attention", 0) == LAYERS * (optimize == "fused")


@pytest.mark.parametrize("model_type", [name for name in OWN_SHAPES if name not in FUSIBLE])
def test_a_family_without_fused_attention_is_refused_with_the_reason(
    model_type: str, task: Task, tmp_path: Path
) -> None:
    with pytest.raises(ModelError) as raised:
        exported(model_type, task, tmp_path, optimize="fused")
    said, row = str(raised.value), FUSIONS[model_type.removeprefix("bertender-pruned-")]
    assert f"in a '{model_type}' model, at least 1 is required: {row.obstacle}" in said
    assert "Use --optimize basic, or a family that is fused: albert, bert," in said
    assert not (tmp_path / "onnx").exists()


@pytest.mark.one_path
@pytest.mark.parametrize("model_type", ARCHITECTURES)
def test_a_basic_graph_is_smaller_and_has_plain_operators(
    model_type: str, task: Task, tmp_path: Path, plain_export: PlainExport
) -> None:
    source, plain_artifact = plain_export(model_type)
    artifact = export(source, task, ExportConfig(optimize="basic"), tmp_path / "onnx")
    plain, report = graph_of(plain_artifact), graph_of(artifact)
    assert report.nodes < plain.nodes and report.opset == plain.opset
    assert report.fused == {} and report.optimize == "basic"
    assert [entry.domain for entry in onnx.load(onnx_file(artifact)).opset_import] == [""]


def test_attention_that_is_not_recognised_is_an_error_that_says_what_wrote_it(
    teacher: Artifact, task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a release of transformers that writes it otherwise."""
    monkeypatch.setattr(OPTIMIZATIONS["fused"], "run", OPTIMIZATIONS["basic"].run)
    said = (
        r"written as 'eager' by transformers [45]\.[0-9.]+, is not a pattern that onnxruntime 1\."
    )
    with pytest.raises(ModelError, match=said):
        export(teacher, task, ExportConfig(optimize="fused"), tmp_path / "onnx")
    assert not any(tmp_path.iterdir())


def test_a_family_that_nobody_has_looked_at_is_refused(
    teacher: Artifact, task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fewer = {name: row for name, row in FUSIONS.items() if name != "bert"}
    monkeypatch.setattr("export.precision.FUSIONS", fewer)
    with pytest.raises(ModelError, match="no pattern is known for its layers"):
        export(teacher, task, ExportConfig(optimize="fused"), tmp_path / "onnx")


@pytest.mark.one_path
@pytest.mark.parametrize("optimize", reversed(OPTIMIZATIONS))
def test_weights_in_a_file_of_their_own_are_optimised_alike(
    optimize: str, teacher: Artifact, task: Task, tmp_path: Path
) -> None:
    one, two = (
        export(
            teacher, task, ExportConfig(optimize=optimize, external_above_mb=int(mb)), tmp_path / mb
        )
        for mb in ("0", "2000")
    )
    assert graph_of(one) == graph_of(two)
    logits = [open_classifier(each).logits(task.dev.examples) for each in (one, two)]
    assert np.array_equal(*logits)
