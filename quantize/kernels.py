"""KERNELS: the operators that a runtime really runs, and how this CPU adds their integers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from bertender.core.config import Table
from bertender.core.errors import GateError, ModelError
from bertender.core.findings import SaturationFindings
from bertender.models.onnx_session import ONNX_NAME, open_session
from bertender.models.runtimes import DEFAULT_RUNTIME, RUNTIMES, compiled
from quantize.graph import (
    FUSED_ATTENTION,
    PRODUCTS_OF_ATTENTION,
    exact,
    rounded_activation,
    run_cut,
    static_activation,
)
from quantize.product_check import Sample, Twins

# --- from quantize.kernels
# KERNELS: operators that a runtime really runs after it has opened a quantized graph.

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


# --- from quantize.saturation
# Saturation probe: check that this CPU adds the graph's integers exactly.
#
# x86 without 8-bit dot products adds pairs of products in 16 bits; sums beyond that are cut off
# without an error. Each product is judged by itself, on its own integer inputs: it is cut
# out of the graph, run by the kernels that will serve it, and compared with sums in float64. How
# far
# a whole model's logits are from exact ones shows less: in twelve layers rounding grows to more
# than
# saturation does in one.

FloatArray = npt.NDArray[np.float32]
Run = Callable[[onnx.ModelProto, FloatArray], Sequence[FloatArray]]
"""(cut, values of its input) -> its outputs"""
TOLERATED = 1e-3
"""Largest difference of a product's outputs over the largest of them."""


@dataclass(frozen=True)
class Deviation:
    """Distance of a product's sums from exact ones."""

    node: str
    value: float
    """The largest difference of its outputs over the largest of them, its bias left out."""


def probe(
    twins: Iterable[Twins], samples: Mapping[str, Sample], run: Run = run_cut
) -> SaturationFindings:
    """Compare each product of integers with an exact one; raise ModelError where they differ.

    Returns:
        The largest deviation. MatMulNBits rounds inside its kernel and an LSTM cannot be
        cut open: neither has sums that can be compared, and they are not among the products.
    """
    measured = [each for group in twins for each in deviations(group, samples, run)]
    check_saturation(measured)
    worst = max(measured, key=lambda each: each.value, default=None)
    return SaturationFindings(
        products=len(measured),
        rows=max((len(each.largest) for each in samples.values()), default=0),
        largest_deviation=worst and worst.value,
        worst=worst and worst.node,
        allowed=TOLERATED,
    )


def deviations(twins: Twins, samples: Mapping[str, Sample], run: Run) -> Iterator[Deviation]:
    """Yield how far each product that reads one activation is from an exact one."""
    if twins.is_table or all(part.four_bits for part in twins.parts):
        return
    values = _on_the_grid(twins.quantized, samples[twins.start].largest)
    actual = run(twins.quantized, values)
    wanted = run_cut(exact(twins.quantized), values, optimize=False)
    for part, *outputs in zip(twins.parts, actual, wanted, twins.biases, strict=True):
        if not part.four_bits:
            yield Deviation(part.node, _deviation(*outputs))


def _on_the_grid(cut: onnx.ModelProto, values: FloatArray) -> FloatArray:
    """Return activations as a static product rounds them; others as they are.

    A value between two steps may be rounded either way, by a division or by a product with the
    scale's inverse. The sums are not at fault for that.
    """
    rounded = rounded_activation(cut) if static_activation(cut) else None
    return values if rounded is None else run_cut(rounded, values, optimize=False)[0]


def _deviation(actual: FloatArray, wanted: FloatArray, bias: FloatArray) -> float:
    largest = float(np.abs(wanted - bias).max())
    return float(np.abs(actual - wanted).max()) / (largest or 1.0)


def check_saturation(measured: Iterable[Deviation]) -> None:
    """Raise ModelError where a product is too far from an exact one."""
    beyond = sorted(
        (each for each in measured if not each.value <= TOLERATED), key=lambda each: -each.value
    )
    if beyond:
        worst = beyond[0]
        raise ModelError(
            f"this CPU does not add 8-bit products exactly: outputs of {worst.node} are off by "
            f"{worst.value:.2g} of the largest, allowed is {TOLERATED:g} ({len(beyond)} product(s) "
            "beyond it). Its instructions saturate in 16 bits. Weights of 7 bits, by --target "
            "avx2, do not; if these are of 7 bits already, serve the float model here."
        )
