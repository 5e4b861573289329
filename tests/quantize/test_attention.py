"""Attention and products as one operator of 8 bits each: the same logits, and each fault found."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

from bertender.cli.findings import quantization_lines
from bertender.core.artifact import Artifact
from bertender.core.errors import ConfigError, ModelError
from bertender.models.classifier import onnx_file
from bertender.models.own_models import TABLE_MODELS, expected_on_disk
from bertender.models.runtimes import RUNTIMES
from bertender.models.steps import FUSIONS
from bertender.recipes.stage import Product
from bertender.recipes.stages import STAGES
from bertender.tasks.task import Task
from quantize.attention import fuse_attention, fuse_products, in_plain_form
from quantize.config import QuantizeConfig
from quantize.context import QuantizationContext
from quantize.graph import FOUR_BIT_LOOKUP, FUSED_ATTENTION, FUSED_PRODUCT
from quantize.graph_check import (
    check_attentions,
    compare_attentions,
    compare_float_nodes,
    failures_if_quantized,
)
from quantize.post_training import write_dynamic
from quantize.quantizer import quantize, write_graph
from tests.exports import PlainExport
from tests.quantize.contexts import HERE, compared, context_of, target_for

LAYERS = 4
IN_PLAIN_EXPORTS = [name for name, row in FUSIONS.items() if not row.obstacle_in_a_plain_export]
UNEVEN_HEADS = "bertender-pruned-bert"
NOT_FUSED = ("deberta-v2", *TABLE_MODELS)
HIDDEN = {"albert": 1}
"""Layers whose pattern the optimizer does not see."""
FUSED: dict[str, Any] = {"scheme": "dynamic", "fused_attention": True}
WEIGHT, BIAS, ACTIVATION_SCALE, SCALE, ZERO_POINT = 1, 2, 3, 4, 7
"""Inputs of QAttention."""

Fault = Callable[[onnx.ModelProto], None]


def counted(graph: Path) -> Counter[str]:
    return Counter(node.op_type for node in onnx.load(graph).graph.node)


def written(context: QuantizationContext, folder: Path) -> tuple[Path, Path]:
    """A plain graph, and the same with attention of one operator each."""
    plain, fused = folder / "written.onnx", folder / "fused.onnx"
    write_dynamic(context, plain)
    shutil.copyfile(plain, fused)
    fuse_attention(context.graph, fused)
    return plain, fused


def operators(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    return [node for node in model.graph.node if node.op_type == FUSED_ATTENTION]


@pytest.fixture
def context(float_model: Artifact, task: Task, tmp_path: Path) -> QuantizationContext:
    return context_of(float_model, task, tmp_path, scheme="dynamic")


@pytest.fixture(scope="module")
def fused_model(
    float_model: Artifact, task: Task, tmp_path_factory: pytest.TempPathFactory
) -> Artifact:
    folder = tmp_path_factory.mktemp("fused")
    return quantize(float_model, task, QuantizeConfig(**FUSED), folder / "fused")


@pytest.fixture(params=[*IN_PLAIN_EXPORTS, UNEVEN_HEADS])
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def of_family(
    family: str, plain_export: PlainExport, task: Task, tmp_path: Path
) -> QuantizationContext:
    source = plain_export(family)[1]
    return context_of(source, task, tmp_path, target_for(family), scheme="dynamic")


def test_each_attention_is_one_operator_with_the_same_logits(
    family: str, of_family: QuantizationContext, tmp_path: Path
) -> None:
    plain, fused = written(of_family, tmp_path)
    before, after, count = counted(plain), counted(fused), LAYERS - HIDDEN.get(family, 0)
    assert after[FUSED_ATTENTION] == count
    assert after["MatMulInteger"] == before["MatMulInteger"] - 3 * count
    assert after["Softmax"] == before["Softmax"] - count
    batch = of_family.texts(16, "compare").of_two_lengths()
    wanted, actual = (RUNTIMES["onnxruntime"].open(path).logits(batch) for path in (plain, fused))
    # a value between two steps may round to either
    np.testing.assert_allclose(actual, wanted, atol=0.01 * np.abs(wanted).max())


def test_the_plain_form_is_the_graph_before(of_family: QuantizationContext, tmp_path: Path) -> None:
    before, fused = written(of_family, tmp_path)
    assert in_plain_form(of_family.graph, before, tmp_path) == before
    again = in_plain_form(of_family.graph, fused, tmp_path)
    batch = of_family.texts(16, "compare").of_two_lengths()
    wanted, actual = (RUNTIMES["onnxruntime"].open(path).logits(batch) for path in (before, again))
    np.testing.assert_array_equal(actual, wanted)


@pytest.mark.parametrize("fused_attention", [False, True])
def test_each_product_for_arm_is_one_operator_with_the_same_logits(
    fused_attention: bool, family: str, plain_export: PlainExport, task: Task, tmp_path: Path
) -> None:
    if target_for(family) != "vnni":
        pytest.skip("ONNX Runtime cannot run its shared weights of 8 bits on this CPU")
    source, settings = plain_export(family)[1], {**FUSED, "fused_attention": fused_attention}
    graphs = {}
    for target in ("vnni", "arm64"):
        context = context_of(source, task, tmp_path, target, **settings)
        graphs[target] = tmp_path / f"{target}.onnx"
        write_dynamic(context, graphs[target])
    before, after = (counted(graph) for graph in graphs.values())
    assert after[FUSED_PRODUCT] == before["MatMulInteger"] > 0 and not after["MatMulInteger"]
    again = in_plain_form(context.graph, graphs["arm64"], tmp_path)
    batch = context.texts(16, "compare").of_two_lengths()
    plain, fused, unfused = (
        RUNTIMES["onnxruntime"].open(graph).logits(batch) for graph in (*graphs.values(), again)
    )
    np.testing.assert_allclose(fused, plain, atol=0.01 * np.abs(plain).max())
    if not fused_attention:
        np.testing.assert_array_equal(unfused, plain)


def test_weights_with_zero_points_stay_as_they_are(
    float_model: Artifact, task: Task, tmp_path: Path
) -> None:
    """The kernels of ARM with SME take none of them."""
    graph = tmp_path / "model.onnx"
    write_dynamic(context_of(float_model, task, tmp_path, scheme="dynamic"), graph)
    model = onnx.load(graph)
    product = next(node for node in model.graph.node if node.op_type == "MatMulInteger")
    (zero_point,) = (each for each in model.graph.initializer if each.name == product.input[3])
    other = numpy_helper.to_array(zero_point) + np.int8(1)
    zero_point.CopyFrom(numpy_helper.from_array(other, zero_point.name))
    onnx.save(model, graph)
    count = counted(graph)["MatMulInteger"]
    assert fuse_products(graph) == counted(graph)[FUSED_PRODUCT] == count - 1
    assert counted(graph)["MatMulInteger"] == 1


def test_a_fault_in_a_product_for_arm_is_found(
    float_model: Artifact, task: Task, tmp_path: Path
) -> None:
    config = QuantizeConfig(scheme="dynamic", target="arm64")
    artifact = quantize(float_model, task, config, tmp_path / "arm")
    findings = artifact.card.findings.quantization
    assert findings is not None and findings.operators[FUSED_PRODUCT] == findings.products
    assert failures_if_quantized(float_model, artifact, task) == ()
    model = onnx.load(onnx_file(artifact))
    operator = next(node for node in model.graph.node if node.op_type == FUSED_PRODUCT)
    (scale,) = (each for each in model.graph.initializer if each.name == operator.input[2])
    scale.CopyFrom(numpy_helper.from_array(1.1 * numpy_helper.to_array(scale), scale.name))
    onnx.save(model, onnx_file(artifact))
    failures = failures_if_quantized(float_model, artifact, task)
    assert failures and any("product" in each for each in failures)


def test_layers_that_share_weights_share_those_of_the_operator(
    plain_export: PlainExport, task: Task, tmp_path: Path
) -> None:
    source = plain_export("albert")[1]
    context = context_of(source, task, tmp_path, target_for("albert"), scheme="dynamic")
    found = operators(onnx.load(written(context, tmp_path)[1]))
    assert len(found) == LAYERS - 1 and len({node.input[WEIGHT] for node in found}) == 1


def test_the_gates_judge_each_product_of_it(fused_model: Artifact) -> None:
    findings = fused_model.card.findings.quantization
    assert findings is not None
    assert findings.operators[FUSED_ATTENTION] == findings.fused_attentions == LAYERS
    assert findings.running_in_integers == findings.products == 6 * LAYERS + 2
    assert findings.product_check is not None and findings.product_check.checked == 6 * LAYERS + 5
    assert f"{LAYERS} QAttention" in quantization_lines(fused_model.card.findings)[0]


def test_verify_judges_it_too(fused_model: Artifact, float_model: Artifact, task: Task) -> None:
    assert failures_if_quantized(float_model, fused_model, task) == ()


def with_constants(
    change: Callable[[np.ndarray], np.ndarray], *places: int
) -> Callable[[onnx.ModelProto], None]:
    """A fault in constants of the first operator."""

    def faulty(model: onnx.ModelProto) -> None:
        constants = {each.name: each for each in model.graph.initializer}
        for place in places:
            constant = constants[operators(model)[0].input[place]]
            array = change(numpy_helper.to_array(constant))
            constant.CopyFrom(numpy_helper.from_array(array, constant.name))

    return faulty


def with_attribute(name: str, value: float) -> Fault:
    """A fault in an attribute of the first operator."""

    def faulty(model: onnx.ModelProto) -> None:
        operator = operators(model)[0]
        others = [each for each in operator.attribute if each.name != name]
        del operator.attribute[:]
        operator.attribute.extend([*others, onnx.helper.make_attribute(name, value)])

    return faulty


def of_the_next_layer(place: int) -> Fault:
    """A fault in the wiring: two operators read an input of each other."""

    def faulty(model: onnx.ModelProto) -> None:
        first, second, *_ = operators(model)
        first.input[place], second.input[place] = second.input[place], first.input[place]

    return faulty


def query_last(array: np.ndarray) -> np.ndarray:
    return np.concatenate([*reversed(np.split(array, 3, axis=-1))], axis=-1)


@pytest.mark.parametrize(
    ("fault", "where"),
    [
        (with_constants(lambda scale: scale * np.float32(1.1), SCALE), "product"),
        (with_constants(lambda bias: bias + np.float32(0.1), BIAS), "rest"),
        (with_constants(query_last, WEIGHT, BIAS, SCALE, ZERO_POINT), "operator"),
        *(
            pytest.param(fault, "operator", marks=pytest.mark.slow)
            for fault in (
                of_the_next_layer(ACTIVATION_SCALE),
                with_attribute("num_heads", 1),
                with_attribute("scale", 1.0),
                with_attribute("mask_filter_value", 0.0),
            )
        ),
    ],
    ids=["scale", "bias", "order", "activation", "heads", "scale of scores", "mask value"],
)
def test_a_fault_of_an_operator_is_found(
    fault: Fault, where: str, context: QuantizationContext, tmp_path: Path
) -> None:
    fused = written(context, tmp_path)[1]
    model = onnx.load(fused)
    fault(model)
    onnx.save(model, fused)
    plain, texts = in_plain_form(context.graph, fused, tmp_path), context.texts(16, "compare")
    attentions = compare_attentions(plain, fused, texts)
    found = {
        "product": any(each.failures for each in compared(context.graph, plain, texts)),
        "rest": any(
            not each.is_tolerated for each in compare_float_nodes(context.graph, plain, texts)
        ),
        "operator": any(not each.is_tolerated for each in attentions),
    }
    assert found == {name: name == where for name in found}
    if where == "operator":
        with pytest.raises(
            ModelError, match=r"[12] of 4 fused attentions.*Leave --fused-attention out"
        ):
            check_attentions(attentions)


def test_an_unproven_graph_has_it_too(float_model: Artifact, task: Task, tmp_path: Path) -> None:
    write_graph(float_model, task, FUSED, tmp_path / "model.onnx")
    assert counted(tmp_path / "model.onnx")[FUSED_ATTENTION] == LAYERS


def test_tables_of_4_bits_go_with_it(float_model: Artifact, task: Task, tmp_path: Path) -> None:
    settings = {"scheme": "four-bit-embeddings", "block_size": 16, "target": HERE}
    config = QuantizeConfig.parse({**settings, "fused_attention": True})
    artifact = quantize(float_model, task, config, tmp_path / "fused")
    assert failures_if_quantized(float_model, artifact, task) == ()
    found = counted(onnx_file(artifact))
    assert found[FUSED_ATTENTION] == LAYERS and found[FOUR_BIT_LOOKUP] == 1


def test_an_attention_with_a_float_product_stays(
    context: QuantizationContext, tmp_path: Path
) -> None:
    (query, *_) = [each.node for each in context.inventory.products if "query" in each.node]
    graph = tmp_path / "model.onnx"
    write_dynamic(context, graph, [query])
    assert fuse_attention(context.graph, graph) == LAYERS - 1
    assert any(node.name == query for node in onnx.load(graph).graph.node)


@pytest.mark.parametrize("family", NOT_FUSED)
def test_where_there_is_none_nothing_is_written(
    family: str, plain_export: PlainExport, task: Task, tmp_path: Path
) -> None:
    config = QuantizeConfig(**FUSED, target=target_for(family))
    source, exported = plain_export(family)
    with pytest.raises(
        ModelError, match=r"Leave --fused-attention out; it works for albert, bert, "
    ):
        quantize(exported, task, config, tmp_path / "fused")
    assert not (tmp_path / "fused").exists()
    planned = Product("export", "onnx", model=expected_on_disk(source.path))
    with pytest.raises(
        ModelError, match=r"Leave --fused-attention out; it works for albert, bert, "
    ):
        STAGES["quantize"].check_source(config, 0, "onnx", planned)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"scheme": "static"}, "dynamic or four-bit-embeddings does"),
        ({"scheme": "dynamic", "runtime": "openvino"}, "no 8-bit attention operator"),
    ],
)
def test_who_does_not_read_it_says_so(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        QuantizeConfig(**settings, fused_attention=True).check_rules()


def test_no_warning_of_a_library_is_shown(
    float_model: Artifact, task: Task, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """ONNX Runtime would name each constant that a fusion leaves without a reader."""
    context = context_of(float_model, task, tmp_path, scheme="dynamic", fused_attention=True)
    onnxruntime.set_default_logger_severity(2)  # warnings, as in a new process
    write_dynamic(context, tmp_path / "model.onnx")
    assert "Removing initializer" not in capfd.readouterr().err
