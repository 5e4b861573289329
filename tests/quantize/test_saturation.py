"""Each product's sums beside exact ones, and what a CPU that saturates would add."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from benchmarks.faults import saturating
from bertender.core.artifact import Artifact
from bertender.core.errors import ModelError
from bertender.recipes.stages import STAGES
from bertender.tasks.task import Task
from export.config import ExportConfig
from export.exporter import export
from quantize.config import SCHEMES
from quantize.context import QuantizationContext
from quantize.graph import in_float64, run_subgraph
from quantize.graph_check import KERNELS, operators
from quantize.post_training import write_dynamic
from quantize.product_check import (
    MOST_SATURATION,
    Parts,
    Sample,
    check_saturation,
    check_sums,
    compare_products,
    find_parts,
    sample_rows,
)
from tests.quantize.contexts import SETTINGS, config_of, context_of, write
from tests.toy_models import save_artifact, tiny_classifier

DEEP = {"num_hidden_layers": 12, "hidden_size": 64, "intermediate_size": 256}
BASE = {
    **DEEP,
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_attention_heads": 12,
}
PRODUCTS = 12 * 6 + 2
FLOAT_ROUNDING = 1e-6


def integer_graph(weight: np.ndarray) -> onnx.ModelProto:
    """x (uint8) times a weight (int8), summed in 32 bits."""
    constants = {"w": weight, "x0": np.array(3, np.uint8), "w0": np.array(-2, np.int8)}
    graph = helper.make_graph(
        [helper.make_node("MatMulInteger", ["x", "w", "x0", "w0"], ["y"], name="product")],
        "integers",
        [helper.make_tensor_value_info("x", TensorProto.UINT8, ["batch", len(weight)])],
        [helper.make_tensor_value_info("y", TensorProto.INT32, ["batch", weight.shape[1]])],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8)


def test_the_emulation_is_exact_where_pairs_leave_16_bits() -> None:
    rng = np.random.default_rng(0)
    weight = rng.integers(100, 127, (3072, 5)).astype(np.int8)
    x = rng.integers(200, 255, (4, 3072)).astype(np.uint8)
    wanted = (x.astype(np.int64) - 3) @ (weight.astype(np.int64) + 2)
    assert np.array_equal(
        run_subgraph(in_float64(integer_graph(weight)), x, optimize=False)[0], wanted
    )


def probed(
    context: QuantizationContext, graph: Path
) -> tuple[tuple[Parts, ...], dict[str, Sample]]:
    products = find_parts(context.graph, graph)
    return products, sample_rows(graph, products, context.texts(64, ""))


def written(shape: dict[str, Any], task: Task, folder: Path) -> tuple[QuantizationContext, Path]:
    """The dynamic graph of a BERT of random weights."""
    source = save_artifact(tiny_classifier("bert", **shape), task, folder / "source")
    context = context_of(export(source, task, ExportConfig(), folder / "onnx"), task, folder)
    write_dynamic(context, folder / "model.onnx")
    return context, folder / "model.onnx"


@pytest.fixture(scope="module")
def deep(task: Task, tmp_path_factory: pytest.TempPathFactory) -> tuple[QuantizationContext, Path]:
    return written(DEEP, task, tmp_path_factory.mktemp("deep"))


def at(layer: int, context: QuantizationContext) -> str:
    nodes = [product.node for product in context.inventory.products]
    return next(node for node in nodes if f"layer.{layer}/intermediate" in node)


def saturating_at_seven(cut: onnx.ModelProto, values: Any) -> Any:
    """Add pairs in 16 bits in one product of layer 7, and exactly elsewhere."""
    saturates = "layer.7/intermediate/dense" in cut.graph.output[0].name
    return (saturating if saturates else run_subgraph)(cut, values)


def test_twelve_layers_are_not_accused(deep: tuple[QuantizationContext, Path]) -> None:
    found = check_sums(*probed(*deep))
    assert found.products == PRODUCTS
    assert found.largest_deviation < FLOAT_ROUNDING


def test_a_layer_that_saturates_is_named(deep: tuple[QuantizationContext, Path]) -> None:
    """One of twelve."""
    context, graph = deep
    node = at(7, context)
    with pytest.raises(ModelError, match=rf"outputs of {node} are off by .*\(1 product") as caught:
        check_sums(*probed(context, graph), saturating_at_seven)
    assert f"allowed is {MOST_SATURATION:g}" in str(caught.value)
    assert "--target avx2" in str(caught.value) and "serve the float model" in str(caught.value)


@pytest.mark.slow
def test_no_model_of_twelve_layers_of_768_is_refused(task: Task, tmp_path: Path) -> None:
    """What rounding does to its logits, twelve layers later, says nothing of saturation."""
    context, graph = written(BASE, task, tmp_path)
    products, samples = probed(context, graph)
    found = check_sums(products, samples)
    assert found.products == PRODUCTS and found.largest_deviation < FLOAT_ROUNDING
    assert not [each for each in compare_products(products, samples) if each.failures]
    with pytest.raises(ModelError, match=f"outputs of {at(7, context)}.* saturate in 16 bits"):
        check_sums(products, samples, saturating_at_seven)


@pytest.mark.one_path
@pytest.mark.parametrize("target", ["vnni", "avx2"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_scheme_passes_on_a_cpu_that_adds_exactly(
    scheme: str, target: str, float_model: Artifact, task: Task, tmp_path: Path
) -> None:
    """As it is quantized by the stage; 7-bit weights are exact on every CPU."""
    source = float_model
    if SCHEMES[scheme].source == "torch":
        assert float_model.card.parent is not None
        source = Artifact.load(float_model.path / float_model.card.parent.path)
    config = config_of(scheme, target=target)
    artifact = STAGES["quantize"].make([source], task, config, tmp_path / "int8")
    found = artifact.card.findings.quantization
    products = found.products - (found.products_of_4_bits or 0)
    assert found.saturation.products == products
    assert found.saturation.largest_deviation < FLOAT_ROUNDING
    assert found.product_check.checked == found.products + 3, "and three tables"


@pytest.mark.parametrize("scheme", ["dynamic", "static"])
def test_a_product_runs_alone_by_the_kernels_of_the_whole(
    scheme: str, float_model: Artifact, task: Task, tmp_path: Path
) -> None:
    context = context_of(float_model, task, tmp_path, **{"scheme": scheme, **SETTINGS[scheme]})
    write(scheme, context, tmp_path / "model.onnx")
    alone: dict[str, int] = {}
    for group in find_parts(context.graph, tmp_path / "model.onnx"):
        onnx.save(group.quantized, tmp_path / "cut.onnx")
        for name, count in operators(tmp_path / "cut.onnx").items():
            alone[name] = alone.get(name, 0) + count
    whole = operators(tmp_path / "model.onnx")
    names = KERNELS["onnxruntime"].integer_products
    assert {name: alone.get(name, 0) for name in names} == {
        name: whole.get(name, 0) for name in names
    }


def test_what_has_no_sums_is_not_counted(float_model: Artifact, task: Task, tmp_path: Path) -> None:
    """MatMulNBits rounds inside of its kernel."""
    context = context_of(float_model, task, tmp_path, scheme="four-bit")
    write("four-bit", context, tmp_path / "model.onnx")
    products, samples = probed(context, tmp_path / "model.onnx")
    assert check_sums(products, samples).products == 2, "pooler and head"
    only = [each for each in products if all(part.four_bits for part in each.parts)]
    nothing = {"products": 0, "largest_deviation": None, "worst": None}
    assert check_sums(only, samples) == check_sums([], samples).model_copy(update=nothing)


def test_a_deviation_that_is_no_number_is_refused() -> None:
    with pytest.raises(ModelError, match="off by nan"):
        check_saturation({"/product": float("nan")})
    check_saturation({"/product": MOST_SATURATION})


def test_a_product_that_is_always_zero_is_no_deviation(
    deep: tuple[QuantizationContext, Path],
) -> None:
    products, samples = probed(*deep)
    still = {name: replace(each, largest=0 * each.largest) for name, each in samples.items()}
    assert check_sums(products, still).largest_deviation == 0
