"""Rules on a model of ONNX: its tensors in config.pbtxt against those of the graph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from serve.lint.findings import Fault
from serve.lint.reading import Graph, ReadModel, ReadRepository
from serve.repository.config_pbtxt import (  # type: ignore[attr-defined]
    ANY,
    GraphSignature,
    TensorSignature,
    triton,
)

SIDES = ("input", "output")


@dataclass(frozen=True)
class _Pair:
    """A tensor of config.pbtxt and the one of the graph that has its name."""

    field: str
    declared: Any
    own: TensorSignature


def graphs(model: ReadModel, repository: ReadRepository) -> Iterator[Fault]:
    """Yield graphs that cannot be read."""
    for graph in model.graphs:
        if graph.signature is None:
            yield Fault(graph.file, "", graph.problem, "a graph of ONNX")


def weight_files(model: ReadModel, repository: ReadRepository) -> Iterator[Fault]:
    """Yield files with weights that a graph names and that are not next to it."""
    for graph, signature in _read(model):
        for name in sorted(signature.weight_files):
            if not (graph.file.parent / name).is_file():
                yield Fault(graph.file, "external_data", f"{name} is missing", "next to the graph")


def tensor_names(model: ReadModel, repository: ReadRepository) -> Iterator[Fault]:
    """Yield tensors that the graph does not have, and inputs that nobody would give it."""
    for graph, signature in _read(model):
        for side in SIDES:
            yield from _unknown_tensors(model, graph, side, _own(signature, side))
        yield from _missing_inputs(model, signature)


def _unknown_tensors(
    model: ReadModel, graph: Graph, side: str, own: Sequence[TensorSignature]
) -> Iterator[Fault]:
    names = [tensor.name for tensor in own]
    for place, tensor in enumerate(_declared(model, side)):
        if tensor.name not in names:
            allowed = f"an {side} of {graph.file.name}: {', '.join(names)}"
            yield Fault(model.config_file, f"{side}[{place}].name", repr(tensor.name), allowed)


def _missing_inputs(model: ReadModel, signature: GraphSignature) -> Iterator[Fault]:
    declared = [tensor.name for tensor in _declared(model, "input")]
    for tensor in signature.inputs if declared else ():  # without any, Triton completes them
        if tensor.name not in declared:
            value = f"{tensor.name!r} is missing"
            yield Fault(model.config_file, "input", value, "every input of the graph")


def unused_outputs(model: ReadModel, repository: ReadRepository) -> Iterator[Fault]:
    """Yield outputs of a graph that no request gets."""
    declared = [tensor.name for tensor in _declared(model, "output")]
    for _, signature in _read(model):
        for tensor in signature.outputs:
            if declared and tensor.name not in declared:
                value = f"{tensor.name!r} of the graph is missing"
                yield Fault(model.config_file, "output", value, "any; no request gets this one")


def tensor_types(model: ReadModel, repository: ReadRepository) -> Iterator[Fault]:
    """Yield data types that differ from the graph's."""
    for pair in _pairs(model):
        declared = triton.DataType.Name(pair.declared.data_type)
        if declared != pair.own.data_type:
            field = f"{pair.field}.data_type"
            yield Fault(model.config_file, field, declared, pair.own.data_type)


def tensor_shapes(model: ReadModel, repository: ReadRepository) -> Iterator[Fault]:
    """Yield ranks and fixed dimensions that differ from the graph's."""
    for pair in _pairs(model):
        own = pair.own.dims
        # the graph does not say, or has a scalar, or rows of several requests in one tensor
        if not own or getattr(pair.declared, "allow_ragged_batch", False):
            continue
        own, declared = own[1:] if _batches(model) else own, _dims(pair.declared)
        if not _fits(declared, own, exactly=pair.field.startswith("output")):
            yield Fault(model.config_file, f"{pair.field}.dims", str(declared), str(list(own)))


def batch_dimension(model: ReadModel, repository: ReadRepository) -> Iterator[Fault]:
    """Yield a batching model with a tensor whose first dimension is fixed, or is not there."""
    assert model.config is not None
    if model.config.max_batch_size < 0:
        value = str(model.config.max_batch_size)
        yield Fault(model.config_file, "max_batch_size", value, "0 or more")
    shapes = {pair.own.name: pair.own.dims for pair in _pairs(model)}
    fixed = [f"{name} is {list(dims)}" for name, dims in shapes.items() if dims and dims[0] != ANY]
    if fixed and _batches(model):
        value = f"{model.config.max_batch_size}, and in the graph {', '.join(fixed)}"
        allowed = "0, or a graph whose first dimensions are dynamic"
        yield Fault(model.config_file, "max_batch_size", value, allowed)


def warm_up(model: ReadModel, repository: ReadRepository) -> Iterator[Fault]:
    """Yield samples of the warm-up that are not the model's inputs."""
    assert model.config is not None
    inputs = {tensor.name: tensor for tensor in model.config.input}
    needed = {name for name, tensor in inputs.items() if not tensor.optional}
    for place, sample in enumerate(model.config.model_warmup):
        field = f"model_warmup[{place}]"
        if not needed <= set(sample.inputs) <= set(inputs):
            value = f"inputs {', '.join(sorted(sample.inputs)) or 'of no name'}"
            yield Fault(model.config_file, field, value, f"those of the model: {', '.join(inputs)}")
        for name in sorted(set(sample.inputs) & set(inputs)):
            if not _is_sample(sample.inputs[name], inputs[name]):
                value, allowed = _type_and_dims(sample.inputs[name]), _type_and_dims(inputs[name])
                yield Fault(model.config_file, f'{field}.inputs["{name}"]', value, allowed)


def _type_and_dims(tensor: Any) -> str:
    return f"{triton.DataType.Name(tensor.data_type)} {list(tensor.dims)}"


def _is_sample(sample_input: Any, tensor: Any) -> bool:
    fits = len(sample_input.dims) == len(tensor.dims) and all(
        wanted in (ANY, dim) for dim, wanted in zip(sample_input.dims, tensor.dims, strict=True)
    )
    return bool(sample_input.data_type == tensor.data_type and fits)


def _read(model: ReadModel) -> Iterator[tuple[Graph, GraphSignature]]:
    for graph in model.graphs:
        if graph.signature is not None:
            yield graph, graph.signature


def _own(signature: GraphSignature, side: str) -> Sequence[TensorSignature]:
    return signature.inputs if side == "input" else signature.outputs


def _declared(model: ReadModel, side: str) -> Sequence[Any]:
    declared: Sequence[Any] = getattr(model.config, side)
    return declared


def _pairs(model: ReadModel) -> Iterator[_Pair]:
    for _, signature in _read(model):
        for side in SIDES:
            own = {tensor.name: tensor for tensor in _own(signature, side)}
            for place, tensor in enumerate(_declared(model, side)):
                if tensor.name in own:
                    yield _Pair(f"{side}[{place}]", tensor, own[tensor.name])


def _batches(model: ReadModel) -> bool:
    assert model.config is not None
    return bool(model.config.max_batch_size > 0)


def _dims(tensor: Any) -> list[int]:
    """Return the dimensions that reach the model, the batch's left out."""
    return list(tensor.reshape.shape if tensor.HasField("reshape") else tensor.dims)


def _fits(declared: Sequence[int], own: Sequence[int], *, exactly: bool) -> bool:
    """Return whether Triton's backend takes declared dimensions.

    Where the graph has a number, it wants that number. Where the graph takes any, an input may have
    a number, and an output may not (`CompareDimsSupported` of the backend).
    """
    return len(declared) == len(own) and all(
        wanted == dim or (wanted == ANY and not exactly)
        for dim, wanted in zip(declared, own, strict=True)
    )
