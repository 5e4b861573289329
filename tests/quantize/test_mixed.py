"""Parts that suffer go back first, until the score holds; outliers are what makes them suffer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from torch.func import functional_call
from transformers.modeling_outputs import SequenceClassifierOutput

from bertender.core.artifact import Artifact
from bertender.core.errors import AccuracyError, ConfigError, ModelError, UnknownNameError
from bertender.core.findings import SensitivityFindings
from bertender.models.classifier import onnx_file
from bertender.problems.single_label_classification import SINGLE_LABEL
from bertender.tasks.task import Task
from bertender.training.heads import HEADS
from export.config import ExportConfig
from export.exporter import export
from quantize.config import SENSITIVITIES, QuantizeConfig
from quantize.context import QuantizationContext, Written
from quantize.post_training import calibrated_ranges, write_dynamic, write_with_ranges
from quantize.sensitivity import (
    FLOAT,
    PARTS,
    WeightError,
    measure,
    rounding_error,
    top_eigenvalues,
    write_within_drop,
)
from tests.quantize.contexts import context_of, write
from tests.quick import quick
from tests.toy_models import save_artifact, tiny_classifier

SICK = "/bert/encoder/layer.2/output/dense/MatMul"
FEW = {"sensitivity_texts": 16, "calibration_texts": 32}


def eight_bits(context: QuantizationContext) -> WeightError:
    return partial(rounding_error, context, bits=8)


def curvature_of(context: QuantizationContext, nodes: Sequence[str]) -> SensitivityFindings:
    return measure(context, partial(write_dynamic, context), nodes, eight_bits(context))


@pytest.fixture(scope="module")
def planted(task: Task, tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    """The export of a tiny BERT with one neuron of a layer that fires a hundred times as high.

    Its weight into the layer's output is so much smaller, so that the float model is as before;
    the activation's range is spent on it, and one column of each output's weights on nothing.
    """
    folder = tmp_path_factory.mktemp("planted")
    model = tiny_classifier("bert")
    layer = model.bert.encoder.layer[2]
    with torch.no_grad():
        layer.intermediate.dense.bias[0] = 400.0
        layer.output.dense.weight[:, 0] *= 0.01
        layer.output.dense.weight[:, 1:] *= 20
        model.classifier.weight *= 20
    return export(save_artifact(model, task, folder / "source"), task, ExportConfig(), folder / "x")


@pytest.mark.parametrize("name", quick(SENSITIVITIES, "hessian-trace", "leave-one-out"))
def test_the_part_with_outliers_is_the_most_sensitive(
    name: str, planted: Artifact, task: Task, tmp_path: Path
) -> None:
    settings = {"sensitivity": name, "calibrator": "minmax", **FEW}
    context = context_of(planted, task, tmp_path, **settings)
    nodes = [product.node for product in context.inventory.products]
    ranges = calibrated_ranges(context)

    def write_except(graph: Path, left: Sequence[str]) -> Written:
        return write_with_ranges(context, graph, ranges, left)

    found = measure(context, write_except, nodes, eight_bits(context)).by_node
    assert {*found} == {*nodes}
    assert SICK in [*found][:3]


@pytest.mark.one_path
@pytest.mark.parametrize("base", ["dynamic", "static"])
def test_the_most_sensitive_go_back_until_the_score_holds(
    base: str, float_model: Artifact, task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"base": base, "max_drop": 1.0, "sensitivity": "hessian-trace", **FEW}
    context = context_of(float_model, task, tmp_path, **settings)
    scores = iter([0.5, 0.6, 0.895, 0.99])
    monkeypatch.setitem(vars(context), "score_before", 0.9)
    monkeypatch.setattr(QuantizationContext, "score", lambda self, graph: next(scores))
    written = write("mixed", context, tmp_path / "mixed.onnx")
    assert written.sensitivity.drops == (40.0, 30.0, 0.5)
    assert written.sensitivity.curvature.keys() == written.sensitivity.by_node.keys()
    ranking = list(written.sensitivity.by_node)
    back = [node for node, why in written.float_nodes.items() if "returned to float" in why]
    assert back == ranking[:2]
    assert "number 2 of 29" in written.float_nodes[back[1]]
    constants = {item.name for item in onnx.load(tmp_path / "mixed.onnx").graph.initializer}
    weights = {product.node: product.weight for product in context.inventory.products}
    floats = [each for each in weights if weights[each] in constants]
    assert set(floats) == set(back) & set(weights)


def test_parts_go_back_until_parity_holds_too(
    float_model: Artifact, task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A score that has not moved is no reason to stop where the answers have."""
    settings = {"max_drop": 1.0, "sensitivity": "hessian-trace", **FEW}
    context = context_of(float_model, task, tmp_path, **settings)
    asked: list[str] = []

    def agrees(self: QuantizationContext, graph: Path, tolerance: str) -> bool:
        asked.append(tolerance)
        return len(asked) == 3

    monkeypatch.setitem(vars(context), "score_before", 0.9)
    monkeypatch.setattr(QuantizationContext, "score", lambda self, graph: 0.9)
    monkeypatch.setattr(QuantizationContext, "agrees", agrees)
    written = write("mixed", context, tmp_path / "mixed.onnx")
    assert len(written.sensitivity.returned) == 2 and asked == ["int8"] * 3


@pytest.mark.slow
def test_a_score_that_never_holds_is_refused(
    float_model: Artifact, task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"max_drop": 0.1, "sensitivity": "hessian-trace", "no_embeddings": True, **FEW}
    context = context_of(float_model, task, tmp_path, **settings)
    monkeypatch.setitem(vars(context), "score_before", 0.9)
    monkeypatch.setattr(QuantizationContext, "score", lambda self, graph: 0.897)
    with pytest.raises(AccuracyError, match=r"of 26 quantized.* lost 0\.3 points.*max_drop=0\.1"):
        write("mixed", context, tmp_path / "mixed.onnx")


def test_a_graph_without_parts_that_may_return_is_tried_as_it_is(
    float_model: Artifact, task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = context_of(float_model, task, tmp_path, max_drop=1.0)
    monkeypatch.setitem(vars(context), "score_before", 0.9)
    monkeypatch.setattr(QuantizationContext, "agrees", lambda self, graph, tolerance: True)
    nothing_returns = partial(write_dynamic, context)
    monkeypatch.setattr(QuantizationContext, "score", lambda self, graph: 0.9)
    written = write_within_drop(context, tmp_path / "held.onnx", nothing_returns, FLOAT, [])
    assert written.sensitivity.drops == (0.0,) and not written.sensitivity.returned
    monkeypatch.setattr(QuantizationContext, "score", lambda self, graph: 0.5)
    with pytest.raises(AccuracyError, match="lost 40 points"):
        write_within_drop(context, tmp_path / "lost.onnx", nothing_returns, FLOAT, [])


def test_mixed_wants_a_bound() -> None:
    with pytest.raises(ConfigError, match=r"how much of it may be lost.*--max-drop 0\.5"):
        QuantizeConfig.parse({"scheme": "mixed"})


def test_four_bits_go_back_to_eight(
    float_model: Artifact, task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"max_drop": 1.0, "sensitivity": "hessian-trace", **FEW}
    context = context_of(float_model, task, tmp_path, **settings)
    scores = iter([0.5, 0.9])
    monkeypatch.setitem(vars(context), "score_before", 0.9)
    monkeypatch.setattr(QuantizationContext, "score", lambda self, graph: next(scores))
    written = write("four-bit", context, tmp_path / "model.onnx")
    nodes = onnx.load(tmp_path / "model.onnx").graph.node
    kinds = [node.op_type for node in nodes]
    assert written.products_of_4_bits == kinds.count("MatMulNBits") == 23
    assert kinds.count("MatMulInteger") == 3, "the one that went back, pooler and head"
    (back,) = written.sensitivity.returned
    assert "returned to 8 bits" in written.sensitivity.returned[back]
    assert back not in written.float_nodes, "8 bits are no floats"
    assert back == next(iter(written.sensitivity.by_node))


@pytest.mark.parametrize("block_size", [16, 32])
def test_weights_of_four_bits_share_a_scale_in_groups(
    block_size: int, float_model: Artifact, task: Task, tmp_path: Path
) -> None:
    context = context_of(float_model, task, tmp_path, block_size=block_size)
    write("four-bit", context, tmp_path / "model.onnx")
    graph = onnx.load(tmp_path / "model.onnx").graph
    constants = {item.name: numpy_helper.to_array(item) for item in graph.initializer}
    source = {
        item.name: numpy_helper.to_array(item)
        for item in onnx.load(onnx_file(float_model)).graph.initializer
    }
    node = next(each for each in graph.node if each.op_type == "MatMulNBits")
    packed, scales = constants[node.input[1]], constants[node.input[2]].reshape(-1)
    weight = source[node.input[1].removesuffix("_Q4")]  # (inputs, outputs)
    assert packed.size == weight.size // 2
    assert len(scales) == weight.size // block_size
    low, high = packed & 15, packed >> 4
    steps = np.stack([low, high], axis=-1).reshape(weight.shape[1], -1).astype(int) - 8
    found = steps * np.repeat(scales.reshape(weight.shape[1], -1), block_size, axis=1)
    assert np.abs(found.T - weight).max() <= 1.01 * np.abs(scales).max()


def test_divergence_is_zero_of_equal_answers_and_by_hand() -> None:
    logits = np.log(np.array([[0.5, 0.5], [0.9, 0.1]], dtype=np.float32))
    assert SINGLE_LABEL.divergence(logits, logits + 3) == pytest.approx(0, abs=1e-7)
    other = np.log(np.array([[0.25, 0.75], [0.9, 0.1]], dtype=np.float32))
    by_hand = (0.5 * np.log(0.5 / 0.25) + 0.5 * np.log(0.5 / 0.75)) / 2
    assert SINGLE_LABEL.divergence(logits, other) == pytest.approx(by_hand, rel=1e-5)


def test_curvature_needs_the_artifact_that_was_exported(task: Task, tmp_path: Path) -> None:
    source = save_artifact(tiny_classifier("bert"), task, tmp_path / "source")
    graph = export(source, task, ExportConfig(), tmp_path / "onnx")
    source.path.rename(tmp_path / "elsewhere")
    context = context_of(graph, task, tmp_path, sensitivity="hessian-trace", **FEW)
    with pytest.raises(ModelError, match=r"curvature needs the torch artifact.*leave-one-out"):
        curvature_of(context, [SICK])


def test_an_unknown_sensitivity_is_refused() -> None:
    with pytest.raises(UnknownNameError, match=r"'leave-one-in'\. Did you mean 'leave-one-out'"):
        QuantizeConfig(sensitivity="leave-one-in")


class Confident(torch.nn.Module):
    """A classifier of two layers whose logits are so far apart that none is in doubt."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.hidden, self.head = torch.nn.Linear(4, 5), torch.nn.Linear(5, 2)

    def forward(self, rows: torch.Tensor) -> SequenceClassifierOutput:
        return SequenceClassifierOutput(logits=1e5 * self.head(torch.tanh(self.hidden(rows))))


def test_a_confident_model_has_the_curvature_of_the_labelled_loss() -> None:
    """By its own outputs it has none, and all parts would be equal."""
    model: Any = Confident()
    rows, weight = torch.randn(16, 4), model.hidden.weight
    logits = model(rows).logits
    assert logits.softmax(dim=-1).amax(dim=-1).min() > 0.999
    labels = logits.argmax(dim=-1)
    labels[:4] = 1 - labels[:4]  # a few mistakes, as a trained model makes

    def loss(values: torch.Tensor) -> torch.Tensor:
        moved = functional_call(model, {"hidden.weight": values}, (rows,)).logits
        return torch.nn.functional.cross_entropy(moved, labels)

    hessian: Any = torch.autograd.functional.hessian
    dense = hessian(loss, weight.detach()).reshape(weight.numel(), -1)
    wanted = float(torch.linalg.eigvalsh(dense)[-1])
    assert wanted > 1
    value = HEADS[SINGLE_LABEL.name].hard_loss(model(rows).logits, {"labels": labels})
    (gradient,) = torch.autograd.grad(value, weight, create_graph=True)
    (found,) = top_eigenvalues([gradient], [weight], torch.Generator().manual_seed(0))
    assert found.value == pytest.approx(wanted, rel=0.02)


@pytest.mark.parametrize("name", ["hessian-trace", "hessian-eigenvalue"])
def test_curvature_is_of_the_labels_of_the_texts(
    name: str, float_model: Artifact, task: Task, tmp_path: Path
) -> None:
    other = replace(task, train=replace(task.train, label_ids=(0,) * len(task.train)))
    found = []
    for place, each in (("one", task), ("two", other)):
        (tmp_path / place).mkdir()
        settings = {"sensitivity": name, "sensitivity_texts": 8}
        found.append(
            curvature_of(context_of(float_model, each, tmp_path / place, **settings), [SICK])
        )
    assert found[0].by_node != found[1].by_node
    said = found[0].curvature[SICK]
    assert len(said.steps) == PARTS and min(said.steps) > 1
    assert said.mean + said.deviation > 0


def test_labels_stay_with_their_texts(float_model: Artifact, task: Task, tmp_path: Path) -> None:
    context = context_of(float_model, task, tmp_path, seed=3)
    known = dict(zip(task.train.examples, task.train.label_ids, strict=True))
    drawn = context.drawn(20)
    assert len(drawn) == 20 and list(drawn.examples) == list(context.texts(20, "").examples)
    assert [known[each] for each in drawn.examples] == list(drawn.label_ids)


@pytest.mark.slow
def test_four_bits_may_all_go_back(
    float_model: Artifact, task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"max_drop": 1.0, "sensitivity": "hessian-trace", **FEW}
    context = context_of(float_model, task, tmp_path, **settings)
    scores = iter([0.5] * 24 + [0.9])
    monkeypatch.setitem(vars(context), "score_before", 0.9)
    monkeypatch.setattr(QuantizationContext, "score", lambda self, graph: next(scores))
    written = write("four-bit", context, tmp_path / "model.onnx")
    assert written.products_of_4_bits == 0 and len(written.sensitivity.returned) == 24


@pytest.mark.parametrize("bound", [{}, {"max_drop": 1.0}])
def test_a_model_without_a_place_for_four_bits_is_refused(
    bound: dict[str, float], task: Task, tmp_path: Path
) -> None:
    source = save_artifact(tiny_classifier("bertender-bilstm"), task, tmp_path / "source")
    graph = export(source, task, ExportConfig(), tmp_path / "onnx")
    with pytest.raises(ModelError, match=r"no product whose weights can have 4 bits.*dynamic"):
        write("four-bit", context_of(graph, task, tmp_path, **bound), tmp_path / "model.onnx")


def test_curvature_of_a_graph_with_other_names_is_refused(task: Task, tmp_path: Path) -> None:
    source = save_artifact(tiny_classifier("bertender-bilstm"), task, tmp_path / "source")
    graph = export(source, task, ExportConfig(), tmp_path / "onnx")
    other = onnx.load(onnx_file(graph))
    for node in other.graph.node:
        node.name = f"/elsewhere{node.name}"
    onnx.save(other, onnx_file(graph))
    context = context_of(graph, task, tmp_path, sensitivity="hessian-trace", **FEW)
    nodes = [product.node for product in context.inventory.products]
    with pytest.raises(ModelError, match=r"the model has no weight .*--sensitivity leave-one-out"):
        curvature_of(context, nodes)


def test_errors_of_weights_are_those_of_what_is_written(
    float_model: Artifact, task: Task, tmp_path: Path
) -> None:
    context = context_of(float_model, task, tmp_path, block_size=16)
    graph = onnx.load(onnx_file(float_model)).graph
    source = {item.name: numpy_helper.to_array(item) for item in graph.initializer}
    write("four-bit", context, tmp_path / "model.onnx")
    product = context.inventory.products[0]
    weight = torch.tensor(source[product.weight].T)  # (outputs, inputs)
    eight = rounding_error(context, product.node, weight, bits=8)
    assert eight < rounding_error(context, product.node, weight, bits=4) / 50
    (table, name) = next(iter(context.inventory.tables.items()))
    values = torch.tensor(source[name])
    made = onnx.load(tmp_path / "model.onnx").graph
    constants = {item.name: numpy_helper.to_array(item) for item in made.initializer}
    steps = constants[f"{name}_quantized"].astype(float) - constants[f"{name}_zero_point"]
    wanted = ((steps * constants[f"{name}_scale"] - source[name]) ** 2).sum()
    assert rounding_error(context, table, values, bits=8) == pytest.approx(wanted, rel=1e-3)
