"""KERNELS: operators that a runtime really runs after it has opened a quantized graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from bertender.core.errors import GateError
from bertender.core.table import Table
from bertender.models.onnx_predictor import ONNX_NAME
from bertender.models.onnx_session import open_session
from bertender.models.openvino_graph import compiled
from bertender.models.runtimes import DEFAULT_RUNTIME, RUNTIMES
from quantize.cuts import run_cut
from quantize.graph import FUSED_ATTENTION, PRODUCTS_OF_ATTENTION

__all__ = ["INTEGER_PRODUCTS", "KERNELS", "MULTIPLIES", "Kernels", "check_kernels", "operators"]

Array = npt.NDArray[Any]
NOT_EXECUTED = frozenset({"Const", "Input", "Output"})
MULTIPLIES = ("FullyConnected", "MatMul")
"""OpenVINO's operators that multiply matrices; the precision of the weights tells them apart."""


@dataclass(frozen=True)
class Kernels:
    """A row of KERNELS, for a row of RUNTIMES."""

    operators: Callable[[Path], Mapping[str, int]]
    """Counts the operators of a graph as it is run on this CPU, after all fusions."""
    integer_products: Mapping[str, int]
    """Operators that multiply by integer weights, by their names in `operators` -> the products
    that one has"""
    run: Callable[[onnx.ModelProto, Array], list[Array]]
    """(cut of a graph, values of its input) -> its outputs"""


def _onnxruntime_operators(graph: Path) -> Mapping[str, int]:
    with TemporaryDirectory() as folder:
        optimized = Path(folder) / ONNX_NAME
        open_session(graph, optimized=optimized)
        nodes = onnx.load(optimized, load_external_data=False).graph.node
    return Counter(node.op_type for node in nodes)


def _openvino_operators(graph: Path, float_type: str = "f32") -> Mapping[str, int]:
    """Products have the precision of their weights after the name, as in "FullyConnected u8"."""
    nodes = compiled(graph, float_type=float_type).get_runtime_model().get_ops()
    names = Counter(_openvino_operator(node.get_rt_info()) for node in nodes)
    return {name: count for name, count in names.items() if name not in NOT_EXECUTED}


def _openvino_operator(facts: Any) -> str:
    name: str = facts["layerType"].astype(str)
    return f"{name} {facts['runtimePrecision'].astype(str)}" if name in MULTIPLIES else name


def _run_in_openvino(cut: onnx.ModelProto, values: Array) -> list[Array]:
    outputs = compiled(cut.SerializeToString())({cut.graph.input[0].name: values})
    return [np.asarray(each) for each in outputs.values()]


OPENVINO = Kernels(
    operators=_openvino_operators,
    integer_products={
        f"{operator} {integers}": 1
        for operator in MULTIPLIES
        for integers in ("u8", "i8", "u4", "i4")
    },
    run=_run_in_openvino,
)

KERNELS = Table(
    "runtime",
    {
        "onnxruntime": Kernels(
            operators=_onnxruntime_operators,
            integer_products={
                "DynamicQuantizeLSTM": 1,
                "DynamicQuantizeMatMul": 1,
                "MatMulInteger": 1,
                "MatMulIntegerToFloat": 1,
                "MatMulNBits": 1,
                FUSED_ATTENTION: PRODUCTS_OF_ATTENTION,
                "QGemm": 1,
                "QLinearMatMul": 1,
            },
            run=run_cut,
        ),
        "openvino": OPENVINO,
        # sums of integers are checked in float32, as bfloat16 would round them
        "openvino-bf16": replace(
            OPENVINO, operators=partial(_openvino_operators, float_type="bf16")
        ),
    },
)

INTEGER_PRODUCTS = frozenset(KERNELS[DEFAULT_RUNTIME].integer_products)
"""Operators of ONNX Runtime that multiply by integer weights."""


def operators(graph: Path, runtime: str = DEFAULT_RUNTIME) -> dict[str, int]:
    """Count the operators of a graph as a runtime runs it on this CPU, after its fusions."""
    return dict(sorted(KERNELS[runtime].operators(graph).items()))


def check_kernels(actual: dict[str, int], wanted: int, runtime: str = DEFAULT_RUNTIME) -> int:
    """Return how many products run in integers, or raise GateError if fewer than were quantized.

    Args:
        actual: the counts of `operators`.
        wanted: how many products were quantized.
        runtime: what counted them.
    """
    products, title = KERNELS[runtime].integer_products, RUNTIMES[runtime].title
    running = sum(count * products.get(name, 0) for name, count in actual.items())
    if running < wanted:
        raise GateError(
            f"{wanted} products were quantized and {title} runs {running} of them in integers; "
            "all are required. The others would be turned back into floats for each batch, slower "
            "than before. Its version may lack a fusion: install the one of constraints.txt, or "
            "use another --scheme."
        )
    return running
