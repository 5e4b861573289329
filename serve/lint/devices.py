"""Rules on the device that runs a graph: what it would run slowly is a warning."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bertender.models.runtimes import RUNTIMES
from serve.backend.running import SERVED_RUNTIMES
from serve.lint.findings import Fault
from serve.lint.ours import backend_parameters, own_graphs
from serve.lint.reading import ReadModel, ReadRepository
from serve.repository.config_pbtxt import GraphSignature

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


@dataclass(frozen=True)
class Device:
    """The device of a model's graphs, and the field of the configuration that sets it."""

    field: str
    value: str
    is_gpu: bool
    other: str
    """The value for the other kind of device."""
    is_ours: bool = False
    """Whether our backend runs them in its own process."""


def integers_on_gpu(model: ReadModel, repository: ReadRepository) -> Iterator[Fault]:
    """Yield graphs of 8-bit operators on a GPU, where most of them have no kernel."""
    yield from (fault for device, fault in _of_integers(model) if not device.is_ours)


def unsuited_runtime(model: ReadModel, repository: ReadRepository) -> Iterator[Fault]:
    """Yield graphs of 8-bit operators in a runtime of GPUs, which our backend refuses to load."""
    yield from (fault for device, fault in _of_integers(model) if device.is_ours)


def _of_integers(model: ReadModel) -> Iterator[tuple[Device, Fault]]:
    for device, signature in _placed(model):
        operators = sorted(signature.operators & INTEGER_OPERATORS)
        if device.is_gpu and operators:
            fault = Fault(
                model.config_file,
                device.field,
                f"{device.value}, for a graph with {', '.join(operators)}",
                f"{device.other}, or a graph of float32 or float16: the CUDA provider has "
                f"{ON_CUDA}, and other 8-bit operators run on the CPU",
            )
            yield device, fault


def float16_on_cpu(model: ReadModel, repository: ReadRepository) -> Iterator[Fault]:
    """Yield graphs of float16 on the CPU, which has float16 kernels for few operators."""
    for device, signature in _placed(model):
        if not device.is_gpu and "TYPE_FP16" in signature.weight_types:
            yield Fault(
                model.config_file,
                device.field,
                f"{device.value}, for a graph of float16",
                f"{device.other}, or a graph of float32 or 8 bits: the CPU computes most of "
                "float16 in float32, with conversions between them",
            )


def _placed(model: ReadModel) -> Iterator[tuple[Device, GraphSignature]]:
    """Yield the graphs that a model runs itself, each with every device that runs it."""
    devices = [*_devices(model)]
    yield from ((device, signature) for _, signature in _graphs(model) for device in devices)


def _devices(model: ReadModel) -> Iterator[Device]:
    parameters = backend_parameters(model)
    name = parameters and SERVED_RUNTIMES[parameters.runtime].in_process
    if name:  # in the process of our backend, whatever Triton's device of that is
        is_gpu = RUNTIMES[name].needs_gpu
        others = (other for other, row in RUNTIMES.items() if row.needs_gpu != is_gpu)
        yield Device('parameters["runtime"]', name, is_gpu, " or ".join(others), is_ours=True)
        return
    for kind, other in (("KIND_GPU", "KIND_CPU"), ("KIND_CPU", "KIND_GPU")):
        if kind in model.kinds:
            yield Device("instance_group", kind, kind == "KIND_GPU", other)


def _graphs(model: ReadModel) -> Iterator[tuple[Path, GraphSignature]]:
    """Yield the graphs that a model runs itself."""
    yield from ((each.file, each.signature) for each in model.graphs if each.signature is not None)
    parameters = backend_parameters(model)
    if parameters is not None and parameters.encoder is None:
        yield from own_graphs(model)
