"""What was not quantized is compared with the float graph, between one product and the next."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper

from benchmarks.faults import GRAPH_FAULTS
from bertender.core.artifact import Artifact
from bertender.core.errors import ModelError
from bertender.models.classifier import onnx_file
from bertender.tasks.task import Split, Task
from export.config import ExportConfig
from export.exporter import export
from quantize.config import SCHEMES
from quantize.context import Batches
from quantize.graph_check import TOLERATED, check_float_nodes, compare_float_nodes
from tests.quantize.contexts import SETTINGS, context_of, write
from tests.toy_models import save_artifact, tiny_classifier


def of_pairs(task: Task) -> Task:
    """The task with two texts an example, so that token types are read."""

    def paired(split: Split) -> Split:
        return Split(tuple((text, text) for (text,) in split.examples), split.label_ids)

    return replace(task, train=paired(task.train), dev=paired(task.dev))


@pytest.mark.parametrize(
    "scheme", [name for name, scheme in SCHEMES.items() if scheme.source == "onnx"]
)
def test_nothing_else_is_changed_by_a_scheme(
    scheme: str, float_model: Artifact, task: Task, tmp_path: Path
) -> None:
    context = context_of(float_model, task, tmp_path, scheme=scheme, **SETTINGS[scheme])
    write(scheme, context, tmp_path / "model.onnx")
    findings = compare_float_nodes(context.graph, tmp_path / "model.onnx", context.texts(16, ""))
    check_float_nodes(findings)
    assert "logits" in {each.tensor for each in findings} or len(findings) > 10
    assert max(each.difference for each in findings) < TOLERATED / 10


@pytest.fixture(scope="module")
def lively(tmp_path_factory: pytest.TempPathFactory, task: Task) -> Artifact:
    """The tiny BERT with weights four times as large: of untrained ones GELU is next to linear."""
    folder = tmp_path_factory.mktemp("lively")
    model = tiny_classifier("bert")
    with torch.no_grad():
        for weights in model.parameters():
            weights.mul_(4)
    source = save_artifact(model, task, folder / "source")
    return export(source, task, ExportConfig(), folder / "onnx")


@pytest.mark.parametrize("fault", GRAPH_FAULTS)
def test_a_fault_beside_the_products_is_found(
    fault: str, lively: Artifact, task: Task, tmp_path: Path
) -> None:
    context = context_of(lively, of_pairs(task), tmp_path)
    model = onnx.load(context.graph)
    GRAPH_FAULTS[fault](model)
    onnx.save(model, tmp_path / "faulty.onnx")
    faulty = replace(context, graph=tmp_path / "faulty.onnx")
    write("dynamic", faulty, tmp_path / "model.onnx")
    findings = compare_float_nodes(context.graph, tmp_path / "model.onnx", context.texts(16, ""))
    with pytest.raises(ModelError, match="differ from the float graph"):
        check_float_nodes(findings)


def test_a_graph_of_something_else_is_refused_by_name(
    float_model: Artifact, task: Task, tmp_path: Path
) -> None:
    context = context_of(float_model, task, tmp_path)
    model = onnx.load(onnx_file(float_model))
    for node in model.graph.node:
        node.input[:] = [f"other/{name}" if "/" in name else name for name in node.input]
        node.output[:] = [f"other/{name}" if "/" in name else name for name in node.output]
    onnx.save(model, tmp_path / "other.onnx")
    with pytest.raises(ModelError, match="lacks the tensor"):
        compare_float_nodes(
            context.graph, tmp_path / "other.onnx", Batches(context.classifier.encode, [("a",)])
        )


def test_what_is_no_number_is_no_equal_one(
    float_model: Artifact, task: Task, tmp_path: Path
) -> None:
    context = context_of(float_model, task, tmp_path)
    write("dynamic", context, tmp_path / "model.onnx")
    model = onnx.load(tmp_path / "model.onnx")
    norm = next(item for item in model.graph.initializer if "LayerNorm.weight" in item.name)
    broken = np.full_like(numpy_helper.to_array(norm), np.nan)
    norm.CopyFrom(numpy_helper.from_array(broken, norm.name))
    onnx.save(model, tmp_path / "model.onnx")
    with pytest.raises(ModelError, match="nan"):
        check_float_nodes(
            compare_float_nodes(context.graph, tmp_path / "model.onnx", context.texts(8, ""))
        )


def test_an_ignored_mask_is_found_among_texts_of_one_length(
    lively: Artifact, task: Task, tmp_path: Path
) -> None:
    context = context_of(lively, task, tmp_path)
    model = onnx.load(context.graph)
    GRAPH_FAULTS["mask ignored"](model)
    onnx.save(model, tmp_path / "faulty.onnx")
    write("dynamic", replace(context, graph=tmp_path / "faulty.onnx"), tmp_path / "model.onnx")
    texts = Batches(context.classifier.encode, [("apple pear plum",)] * 8)
    with pytest.raises(ModelError, match="differ from the float graph"):
        check_float_nodes(compare_float_nodes(context.graph, tmp_path / "model.onnx", texts))
