"""PRECISIONS and OPTIMIZATIONS: the numbers that a graph is stored in, and its fused operators."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
import transformers
from onnx import helper, numpy_helper
from onnxruntime.quantization.calibrate import CalibrationDataReader, MinMaxCalibrater
from pydantic import Field
from transformers import PretrainedConfig, PreTrainedModel

from bertender.core.config import Record
from bertender.core.errors import ModelError
from bertender.core.findings import GraphFindings, LargestNumber
from bertender.models.families import family_name
from bertender.models.graphs import optimized, save_graph
from bertender.models.onnx_session import MOST_MB, ONNX_NAME
from bertender.models.own_models import FUSIONS, NEVER_SEEN
from bertender.text.batch import Encode, Example

# --- from export.half_range
# Constants that float16 can hold, so that a graph survives being converted to it.
#
# Attention masks are written as the least float32, which as float16 is minus infinity; times the
# 0
# of a token that is not masked, that is not a number.

LARGEST = 1e4
"""Replaces larger constants: after a softmax all else becomes 0 next to it, and sums
with it stay far from 65504, the largest number of float16."""


def fit_half_range(model: onnx.ModelProto, stand_in: float = LARGEST) -> None:
    """Bring every single finite number beyond float16's range to +-`stand_in`, in place.

    Tables of weights stay as they are, or the outputs would change.
    """
    for constant in _single_numbers(model):
        value = numpy_helper.to_array(constant)
        if np.isfinite(value).all() and np.abs(value).max() > np.finfo(np.float16).max:
            fitting = np.sign(value) * value.dtype.type(stand_in)
            constant.CopyFrom(numpy_helper.from_array(fitting, constant.name))


def _single_numbers(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Yield the constants of a graph that hold one floating-point number."""
    tensors = [
        attribute.t
        for node in model.graph.node
        if node.op_type == "Constant"
        for attribute in node.attribute
    ]
    for tensor in (*model.graph.initializer, *tensors):
        if tensor.data_type == onnx.TensorProto.FLOAT and np.prod(tensor.dims) == 1:
            yield tensor


# --- from export.activations
# Largest numbers of a graph on real texts, checked before it is stored in float16.
#
# The graph is run in float32 with two outputs more for each tensor, its least and its largest
# number, so that a check of many texts keeps no activation. It is the graph as it was traced: a
# fused operator would hide the attention scores inside it. Masks are not activations, and left
# out:
# they stand in the graph as numbers that nothing else reaches.

logger = logging.getLogger(__name__)

FLOAT16_LARGEST = 65504.0
SAFE_SHARE = 0.5
"""Of it, as the texts that are looked at are few: others may reach further."""
MASK = 1e30
BATCH_TEXTS = 8
SHOWN = 3
"""Nodes that an error names, the worst first."""


class Reach(Record):
    """The largest absolute number at one place of a graph."""

    place: str = Field(description="operator and node that give it, or the name of a weight")
    largest: float


class _Reader(CalibrationDataReader):  # type: ignore[misc]
    """Token batches as the calibrator asks for them."""

    def __init__(self, feeds: Iterator[dict[str, Any]]) -> None:
        self.feeds = feeds

    def get_next(self) -> dict[str, Any] | None:
        return next(self.feeds, None)


def check_overflow(reaches: Sequence[Reach], texts: int, *, allow: bool) -> None:
    """Raise ModelError, or warn, where float16 could not hold what a graph computes.

    Args:
        reaches: of every place, as `largest_numbers` gives them.
        texts: on how many texts they were found.
        allow: only warn.
    """
    allowed = SAFE_SHARE * FLOAT16_LARGEST
    beyond = [reach for reach in reaches if reach.largest > allowed]
    if not beyond:
        return
    worst = "; ".join(f"{reach.place} reaches {reach.largest:.4g}" for reach in beyond[:SHOWN])
    message = (
        f"{len(beyond)} places of this model compute numbers that float16 may not hold, on {texts} "
        f"texts: {worst}; allowed is {allowed:.4g}, {SAFE_SHARE:g} of the largest float16. Use "
        "--precision bfloat16 or float32, or --overflow allow if the logits are proven right."
    )
    if not allow:
        raise ModelError(message)
    logger.warning(message)


def largest_numbers(graph: Path, encode: Encode, examples: Sequence[Example]) -> list[Reach]:
    """Return the largest absolute number of each activation and weight, the largest first.

    Args:
        graph: in float32, its masks as they were traced.
        encode: its tokenizer.
        examples: its input texts.
    """
    model = onnx.load(graph)
    givers = {name: node for node in model.graph.node for name in node.output}
    reached = [(f"weight {name}", largest) for name, largest in _weights(model)]
    reached += [
        (f"{givers[name].op_type} {givers[name].name or name}", largest)
        for name, largest in _activations(model, encode, examples)
        if name in givers
    ]
    reaches = [Reach(place=place, largest=largest) for place, largest in reached]
    return sorted(reaches, key=lambda reach: (-reach.largest, reach.place))


def _activations(
    model: onnx.ModelProto, encode: Encode, examples: Sequence[Example]
) -> Iterator[tuple[str, float]]:
    """Yield each floating-point tensor with its largest absolute number on some texts."""
    if not examples:  # the parity gate reports what is wrong with that
        return
    fit_half_range(model, MASK)
    with TemporaryDirectory() as folder:
        save_graph(model, Path(folder) / ONNX_NAME, MOST_MB)
        calibrator = MinMaxCalibrater(
            Path(folder) / ONNX_NAME,
            augmented_model_path=str(Path(folder) / "augmented.onnx"),
            use_external_data_format=True,
        )
        calibrator.augment_graph()
        calibrator.create_inference_session()
        inputs = [entry.name for entry in calibrator.infer_session.get_inputs()]
        calibrator.collect_data(_Reader(_feeds(encode, examples, inputs)))
    for name, reached in calibrator.compute_data().data.items():
        yield name, _largest(np.array(reached.range_value))


def _feeds(
    encode: Encode, examples: Sequence[Example], inputs: Sequence[str]
) -> Iterator[dict[str, Any]]:
    for start in range(0, len(examples), BATCH_TEXTS):
        arrays: Mapping[str, Any] = encode(examples[start : start + BATCH_TEXTS]).arrays
        yield {name: arrays[name] for name in inputs}


def _weights(model: onnx.ModelProto) -> Iterator[tuple[str, float]]:
    """Yield each table of weights; single numbers beyond float16 are masks, and are changed."""
    for tensor in model.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT and np.prod(tensor.dims) > 1:
            yield tensor.name, _largest(numpy_helper.to_array(tensor))


def _largest(numbers: np.ndarray[Any, Any]) -> float:
    sizes = np.nan_to_num(np.abs(numbers), nan=np.inf)  # no number is beyond all of them
    masks = np.isfinite(sizes) & (sizes >= MASK / 2)
    return float(sizes[~masks].max(initial=0.0))


# --- from export.precisions
# PRECISIONS: the numbers that a graph's weights are stored in.
#
# `float16` computes in float16 where the machine can: on a GPU. ONNX Runtime's CPU has float16
# kernels for few operators and computes the others in float32, with conversions between them.
#
# `bfloat16` stores the matrices in bfloat16, half of the bytes, and turns them into float32 when
# the
# graph is opened. It computes in float32, because ONNX Runtime 1.31 has no bfloat16 kernels for
# the
# CPU of MatMul, Gemm, Add, Mul, Softmax, Erf, Tanh or Where: such a graph would not open.
#
# In both, tokens come in as int64 and logits go out as float32.

STORED = "_bfloat16"
"""Suffix of the name of a matrix where it is stored."""


def _as_it_is(model: onnx.ModelProto) -> onnx.ModelProto:
    return model


def _float16(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a float32 graph that computes in float16."""
    # loaded here, because it takes a second that other commands need not wait
    from onnxruntime.transformers.onnx_model import OnnxModel

    converted = OnnxModel(model)
    # its own shape inference knows ONNX Runtime's operators, which that of onnx does not
    converted.convert_float_to_float16(use_symbolic_shape_infer=True, keep_io_types=True)
    converted.topological_sort()
    result: onnx.ModelProto = converted.model
    return result


def _bfloat16(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a float32 graph whose matrices are stored in bfloat16."""
    matrices = [
        tensor
        for tensor in model.graph.initializer
        if tensor.data_type == onnx.TensorProto.FLOAT and len(tensor.dims) > 1
    ]
    nodes = [*map(_cast_of, matrices), *model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    for matrix in matrices:
        _store(matrix)
    return model


def _cast_of(matrix: onnx.TensorProto) -> onnx.NodeProto:
    """Return what gives a matrix, under its own name, from where it is stored."""
    name = matrix.name
    return helper.make_node(
        "Cast", [name + STORED], [name], name=f"{name}_cast", to=onnx.TensorProto.FLOAT
    )


def _store(matrix: onnx.TensorProto) -> None:
    """Round a tensor to bfloat16, in place."""
    numbers = torch.from_numpy(numpy_helper.to_array(matrix).copy()).to(torch.bfloat16)
    matrix.CopyFrom(
        onnx.TensorProto(
            name=matrix.name + STORED,
            data_type=onnx.TensorProto.BFLOAT16,
            dims=matrix.dims,
            raw_data=numbers.view(torch.int16).numpy().tobytes(),
        )
    )


def _anything(graph: Path, encode: Encode, examples: Sequence[Example], allow: bool) -> None:
    return None


def _within_float16(
    graph: Path, encode: Encode, examples: Sequence[Example], allow: bool
) -> LargestNumber:
    """Return the largest number of a graph, or refuse what float16 may not hold."""
    reaches = largest_numbers(graph, encode, examples)
    check_overflow(reaches, len(examples), allow=allow)
    return LargestNumber(**dict(reaches[0]), texts=len(examples))


@dataclass(frozen=True)
class Precision:
    """A row of PRECISIONS, each of which is a row of TOLERANCES too."""

    convert: Callable[[onnx.ModelProto], onnx.ModelProto] = _as_it_is
    """Takes the optimised graph of float32; it may be changed in place."""
    examine: Callable[[Path, Encode, Sequence[Example], bool], LargestNumber | None] = _anything
    """(traced graph of float32, encode, texts, whether overflow is allowed) -> for the card

    Raises ModelError where the precision could not hold what the graph computes.
    """


PRECISIONS: Mapping[str, Precision] = {
    "float32": Precision(),
    "float16": Precision(_float16, examine=_within_float16),
    "bfloat16": Precision(_bfloat16),
}

# --- from export.fusion
# Fused attention in a graph: which models can have it, and whether a graph has it.
#
# ONNX Runtime's own optimizer finds layers by the pattern in which PyTorch wrote them. Heads are
# counted in each layer by itself, so that pruned models with uneven heads are fused like others.

ATTENTION_OPERATORS = ("Attention", "MultiHeadAttention")


def prepare_for_fusion(model: PreTrainedModel) -> None:
    """Bring a model, which `check_fusible` has passed, to the form that the optimizer knows."""
    FUSIONS[family_name(model.config)].prepare(model)


def check_fusible(model: PreTrainedModel) -> None:
    """Raise ModelError where no attention of a model's family can be fused."""
    row = FUSIONS.get(family_name(model.config), NEVER_SEEN)
    if row.obstacle:
        raise _not_fused(model.config, row.obstacle)


def require_fused_attention(model: PreTrainedModel, graph: GraphFindings) -> None:
    """Raise ModelError where a graph has no fused attention."""
    if any(name in graph.fused for name in ATTENTION_OPERATORS):
        return
    written = model.config._attn_implementation
    cause = (
        f"its attention, written as {written!r} by transformers {transformers.__version__}, is not "
        f"a pattern that onnxruntime {onnxruntime.__version__} recognises"
    )
    raise _not_fused(model.config, cause)


def _not_fused(config: PretrainedConfig, cause: str) -> ModelError:
    fusible = ", ".join(name for name, row in sorted(FUSIONS.items()) if not row.obstacle)
    return ModelError(
        f"--optimize fused finds no attention to fuse in a {config.model_type!r} model, at least "
        f"1 is required: {cause}. Use --optimize basic, or a family that is fused: {fusible}."
    )


# --- from export.optimization
# OPTIMIZATIONS: what is done to a graph before it is written.
#
# Opening a graph, ONNX Runtime optimises it in any case, for the machine that it runs on. What is
# done here is done for all machines, and stays in the file: `bertender quantize` and other
# runtimes
# find it there. A fused graph has operators that ONNX Runtime alone can run.


def _nothing(*arguments: Any) -> None:
    return None


@dataclass(frozen=True)
class Optimization:
    """A row of OPTIMIZATIONS."""

    run: Callable[[Path], onnx.ModelProto]
    """Returns the graph at a path, optimised."""
    accepts: Callable[[PreTrainedModel], None] = _nothing
    """(model) raises where its architecture cannot have what the row promises."""
    prepare: Callable[[PreTrainedModel], None] = _nothing
    """(model) is called before its graph is written."""
    check: Callable[[PreTrainedModel, GraphFindings], None] = _nothing
    """(model, graph) raises where the optimised graph lacks what the row promises."""


OPTIMIZATIONS: Mapping[str, Optimization] = {
    "none": Optimization(onnx.load),
    "basic": Optimization(partial(optimized, fuse=False)),
    "fused": Optimization(
        partial(optimized, fuse=True),
        accepts=check_fusible,
        prepare=prepare_for_fusion,
        check=require_fused_attention,
    ),
}
