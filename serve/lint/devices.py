"""Rules on the device that runs a graph: what it would run slowly is a warning."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from serve.graph_signature import GraphSignature
from serve.lint.findings import Fault
from serve.lint.ours import backend_parameters, own_graphs
from serve.lint.reading import ReadModel, ReadRepository

__all__ = ["float16_on_cpu", "integers_on_gpu"]

ON_CUDA = "QuantizeLinear, DequantizeLinear and MatMulInteger"
"""The 8-bit operators of ONNX Runtime's CUDA provider, by
https://github.com/microsoft/onnxruntime/blob/main/docs/FAQ.md"""

INTEGER_OPERATORS = frozenset(
    {
        *("QuantizeLinear", "DequantizeLinear", "MatMulInteger", "ConvInteger"),
        *("DynamicQuantizeLinear", "DynamicQuantizeMatMul", "MatMulIntegerToFloat"),
        *("QLinearMatMul", "QLinearConv", "QLinearAdd", "QLinearSoftmax", "QGemm", "QAttention"),
    }
)


def integers_on_gpu(model: ReadModel, repository: ReadRepository) -> Iterator[Fault]:
    """Yield graphs of 8-bit operators on a GPU, where most of them have no kernel."""
    for _, signature in _graphs(model) if "KIND_GPU" in model.kinds else ():
        if operators := sorted(signature.operators & INTEGER_OPERATORS):
            yield Fault(
                model.config_file,
                "instance_group",
                f"KIND_GPU, for a graph with {', '.join(operators)}",
                f"KIND_CPU, or a graph of float32 or float16: the CUDA provider has {ON_CUDA}, "
                "and other 8-bit operators run on the CPU",
            )


def float16_on_cpu(model: ReadModel, repository: ReadRepository) -> Iterator[Fault]:
    """Yield graphs of float16 on the CPU, which has float16 kernels for few operators."""
    for _, signature in _graphs(model) if "KIND_CPU" in model.kinds else ():
        if "TYPE_FP16" in signature.weight_types:
            yield Fault(
                model.config_file,
                "instance_group",
                "KIND_CPU, for a graph of float16",
                "KIND_GPU, or a graph of float32 or 8 bits: ONNX Runtime's CPU provider computes "
                "most of float16 in float32, with conversions between them",
            )


def _graphs(model: ReadModel) -> Iterator[tuple[Path, GraphSignature]]:
    """Yield the graphs that a model runs itself."""
    yield from ((each.file, each.signature) for each in model.graphs if each.signature is not None)
    parameters = backend_parameters(model)
    if parameters is not None and parameters.encoder is None:
        yield from own_graphs(model)
