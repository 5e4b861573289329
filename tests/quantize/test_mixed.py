"""Parts that suffer go back first, until the score holds; outliers are what makes them suffer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper

from bertender.core.artifact import Artifact
from bertender.core.errors import AccuracyError, ConfigError, ModelError, UnknownNameError
from bertender.core.predictor import onnx_file
from bertender.tasks.task import Task
from export.onnx_export import ExportConfig, export
from quantize import curvature
from quantize.config import SENSITIVITY_NAMES
from quantize.curvature import eight_bit_error, four_bit_error
from quantize.four_bit import write_four_bit
from quantize.job import Job
from quantize.mixed import BASES, write_mixed
from quantize.quantizer import QuantizeConfig
from quantize.sensitivity import SENSITIVITIES, divergence
from tests.distill.toys import save_artifact, tiny_classifier
from tests.quantize.jobs import job_of

SICK = "/bert/encoder/layer.2/output/dense/MatMul"
FEW = {"sensitivity_texts": 16, "calibration_texts": 32}


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


@pytest.mark.parametrize("name", SENSITIVITIES)
def test_the_part_with_outliers_is_the_most_sensitive(
    name: str, planted: Artifact, task: Task, tmp_path: Path
) -> None:
    job = job_of(planted, task, tmp_path, base="static", calibrator="minmax", **FEW)
    nodes = [product.node for product in job.inventory.products]
    found = SENSITIVITIES[name].measure(job, BASES["static"](job), nodes, eight_bit_error)
    assert list(found) == nodes
    ranking = sorted(nodes, key=lambda node: -found[node])
    assert SICK in ranking[:3]


@pytest.mark.parametrize("base", BASES)
def test_the_most_sensitive_go_back_until_the_score_holds(
    base: str, float_model: Artifact, task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"base": base, "max_drop": 1.0, "sensitivity": "hessian-trace", **FEW}
    job = job_of(float_model, task, tmp_path, **settings)
    scores = iter([0.5, 0.6, 0.895, 0.99])
    monkeypatch.setitem(vars(job), "score_before", 0.9)
    monkeypatch.setattr(Job, "score", lambda self, graph: next(scores))
    written = write_mixed(job, tmp_path / "mixed.onnx")
    assert written.found["drops"] == [40.0, 30.0, 0.5]
    ranking = list(written.found["sensitivity"])
    back = [node for node, why in written.float_nodes.items() if "returned to float" in why]
    assert back == ranking[:2]
    assert "number 2 of 29" in written.float_nodes[back[1]]
    constants = {item.name for item in onnx.load(tmp_path / "mixed.onnx").graph.initializer}
    weights = {product.node: product.weight for product in job.inventory.products}
    floats = [each for each in weights if weights[each] in constants]
    assert set(floats) == set(back) & set(weights)


def test_a_score_that_never_holds_is_refused(
    float_model: Artifact, task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"max_drop": 0.1, "sensitivity": "hessian-trace", "no_embeddings": True, **FEW}
    job = job_of(float_model, task, tmp_path, **settings)
    monkeypatch.setitem(vars(job), "score_before", 0.9)
    monkeypatch.setattr(Job, "score", lambda self, graph: 0.897)
    with pytest.raises(AccuracyError, match=r"of 26 quantized.* lost 0\.3 points.*max_drop=0\.1"):
        write_mixed(job, tmp_path / "mixed.onnx")


def test_mixed_wants_a_bound() -> None:
    with pytest.raises(ConfigError, match=r"how much of it may be lost.*--max-drop 0\.5"):
        QuantizeConfig.parse({"scheme": "mixed"})


def test_four_bits_go_back_to_eight(
    float_model: Artifact, task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"max_drop": 1.0, "sensitivity": "hessian-trace", **FEW}
    job = job_of(float_model, task, tmp_path, **settings)
    scores = iter([0.5, 0.9])
    monkeypatch.setitem(vars(job), "score_before", 0.9)
    monkeypatch.setattr(Job, "score", lambda self, graph: next(scores))
    written = write_four_bit(job, tmp_path / "model.onnx")
    nodes = onnx.load(tmp_path / "model.onnx").graph.node
    kinds = [node.op_type for node in nodes]
    assert written.found["products_of_4_bits"] == kinds.count("MatMulNBits") == 23
    assert kinds.count("MatMulInteger") == 3, "the one that went back, pooler and head"
    (back,) = written.found["returned"]
    assert "returned to 8 bits" in written.found["returned"][back]
    assert back not in written.float_nodes, "8 bits are no floats"
    assert back == next(iter(written.found["sensitivity"]))


@pytest.mark.parametrize("block_size", [16, 32])
def test_weights_of_four_bits_share_a_scale_in_groups(
    block_size: int, float_model: Artifact, task: Task, tmp_path: Path
) -> None:
    job = job_of(float_model, task, tmp_path, block_size=block_size)
    write_four_bit(job, tmp_path / "model.onnx")
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
    assert divergence(logits, logits + 3) == pytest.approx(0, abs=1e-7)
    other = np.log(np.array([[0.25, 0.75], [0.9, 0.1]], dtype=np.float32))
    by_hand = (0.5 * np.log(0.5 / 0.25) + 0.5 * np.log(0.5 / 0.75)) / 2
    assert divergence(logits, other) == pytest.approx(by_hand, rel=1e-5)


def test_curvature_needs_the_artifact_that_was_exported(task: Task, tmp_path: Path) -> None:
    source = save_artifact(tiny_classifier("bert"), task, tmp_path / "source")
    graph = export(source, task, ExportConfig(), tmp_path / "onnx")
    source.path.rename(tmp_path / "elsewhere")
    job = job_of(graph, task, tmp_path, **FEW)
    with pytest.raises(ModelError, match=r"curvature needs the torch artifact.*leave-one-out"):
        SENSITIVITIES["hessian-trace"].measure(job, BASES["dynamic"](job), [SICK], eight_bit_error)


def test_an_unknown_sensitivity_is_refused() -> None:
    assert tuple(SENSITIVITIES) == SENSITIVITY_NAMES
    with pytest.raises(UnknownNameError, match=r"'leave-one-in'\. Did you mean 'leave-one-out'"):
        QuantizeConfig(sensitivity="leave-one-in")


def test_traces_and_eigenvalues_of_a_known_hessian() -> None:
    """Of 1/2 x'Ax the Hessian is A."""
    matrix = torch.diag(torch.tensor([5.0, 1.0, 1.0, 1.0]))
    weights = [torch.ones(4, requires_grad=True), torch.ones(2, requires_grad=True)]
    loss = weights[0] @ matrix @ weights[0] / 2 + 3 * weights[1].square().sum() / 2
    gradients = torch.autograd.grad(loss, weights, create_graph=True)
    generator = torch.Generator().manual_seed(0)
    assert curvature._traces(gradients, weights, generator) == pytest.approx([2.0, 3.0])
    assert curvature._top_eigenvalues(gradients, weights, generator) == pytest.approx(
        [5.0, 3.0], rel=0.02
    )


def test_four_bits_may_all_go_back(
    float_model: Artifact, task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"max_drop": 1.0, "sensitivity": "hessian-trace", **FEW}
    job = job_of(float_model, task, tmp_path, **settings)
    scores = iter([0.5] * 24 + [0.9])
    monkeypatch.setitem(vars(job), "score_before", 0.9)
    monkeypatch.setattr(Job, "score", lambda self, graph: next(scores))
    written = write_four_bit(job, tmp_path / "model.onnx")
    assert written.found["products_of_4_bits"] == 0 and len(written.found["returned"]) == 24


@pytest.mark.parametrize("bound", [{}, {"max_drop": 1.0}])
def test_a_model_without_a_place_for_four_bits_is_refused(
    bound: dict[str, float], task: Task, tmp_path: Path
) -> None:
    source = save_artifact(tiny_classifier("bertender-bilstm"), task, tmp_path / "source")
    graph = export(source, task, ExportConfig(), tmp_path / "onnx")
    with pytest.raises(ModelError, match=r"no product whose weights can have 4 bits.*dynamic"):
        write_four_bit(job_of(graph, task, tmp_path, **bound), tmp_path / "model.onnx")


def test_curvature_of_a_graph_with_other_names_is_refused(task: Task, tmp_path: Path) -> None:
    source = save_artifact(tiny_classifier("bertender-bilstm"), task, tmp_path / "source")
    graph = export(source, task, ExportConfig(), tmp_path / "onnx")
    job = job_of(graph, task, tmp_path, **FEW)
    nodes = [product.node for product in job.inventory.products]
    with pytest.raises(ModelError, match=r"the model has no weight .*--sensitivity leave-one-out"):
        SENSITIVITIES["hessian-trace"].measure(job, BASES["dynamic"](job), nodes, eight_bit_error)


def test_errors_of_weights_are_those_of_what_is_written(
    float_model: Artifact, task: Task, tmp_path: Path
) -> None:
    job = job_of(float_model, task, tmp_path, block_size=16)
    graph = onnx.load(onnx_file(float_model)).graph
    source = {item.name: numpy_helper.to_array(item) for item in graph.initializer}
    write_four_bit(job, tmp_path / "model.onnx")
    product = job.inventory.products[0]
    weight = torch.tensor(source[product.weight].T)  # (outputs, inputs)
    eight = eight_bit_error(job, product.node, weight)
    assert eight < four_bit_error(job, product.node, weight) / 50
    (table, name) = next(iter(job.inventory.tables.items()))
    values = torch.tensor(source[name])
    made = onnx.load(tmp_path / "model.onnx").graph
    constants = {item.name: numpy_helper.to_array(item) for item in made.initializer}
    steps = constants[f"{name}_quantized"].astype(float) - constants[f"{name}_zero_point"]
    wanted = ((steps * constants[f"{name}_scale"] - source[name]) ** 2).sum()
    assert eight_bit_error(job, table, values) == pytest.approx(wanted, rel=1e-3)
