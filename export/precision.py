"""PRECISIONS: the number types of a graph, and OPTIMIZATIONS: its fused operators."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
import transformers
from onnx import helper, numpy_helper
from onnxruntime.quantization.calibrate import CalibrationDataReader, MinMaxCalibrater
from transformers import PretrainedConfig, PreTrainedModel

from bertender.core.errors import ModelError, UnsoundGraphError
from bertender.core.files import scratch_folder
from bertender.core.findings import GraphFindings, LargestNumber
from bertender.models.families import family_name
from bertender.models.graphs import WRITTEN_ATTENTION, optimized, save_graph
from bertender.models.onnx_session import MOST_MB, ONNX_NAME
from bertender.models.steps import FUSIONS, NEVER_SEEN
from bertender.text.batch import Encode, Example

logger = logging.getLogger(__name__)

LARGEST_FITTING = 1e4
"""Replaces larger constants: after a softmax everything else becomes 0 next to it, and sums with it
stay far from 65504, the largest number of float16."""
FLOAT16_LARGEST = 65504.0
SAFE_SHARE = 0.5
"""Allowed share of float16's largest number, since few texts are examined and others may reach
further."""
MASK = 1e30
BATCH_TEXTS = 8
SHOWN = 3
"""Nodes to name in an error, the worst first."""
STORED = "_bfloat16"
"""Suffix of the name of a stored matrix."""
ATTENTION_OPERATORS = ("Attention", WRITTEN_ATTENTION)


class Precision:
    """A row of PRECISIONS, which is also a row of TOLERANCES: float32.

    In all precisions, tokens are int64 inputs and logits float32 outputs.
    """

    def examine(
        self, graph: Path, encode: Encode, examples: Sequence[Example], *, allow: bool
    ) -> LargestNumber | None:
        """Return the largest number in a traced float32 graph, if it matters for the precision.

        Raises:
            UnsoundGraphError: the graph's numbers could overflow in the precision; with `allow`,
                only a warning.
        """
        return None

    def convert(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Return the optimised float32 graph in this precision; it may be changed in place."""
        return model


class Float16(Precision):
    """Computed in float16 on hardware that supports it, such as GPUs.

    ONNX Runtime's CPU has float16 kernels for few operators and computes the others in float32,
    with conversions in between.
    """

    def examine(
        self, graph: Path, encode: Encode, examples: Sequence[Example], *, allow: bool
    ) -> LargestNumber | None:
        reaches = largest_numbers(graph, encode, examples)
        check_overflow(reaches, allow=allow)
        return reaches[0]

    def convert(self, model: onnx.ModelProto) -> onnx.ModelProto:
        # loaded here, since it takes a second that other commands need not wait
        from onnxruntime.transformers.onnx_model import OnnxModel

        converted = OnnxModel(model)
        # its own shape inference knows ONNX Runtime's operators, unlike that of onnx
        converted.convert_float_to_float16(use_symbolic_shape_infer=True, keep_io_types=True)
        converted.topological_sort()
        result: onnx.ModelProto = converted.model
        return result


class Bfloat16(Precision):
    """Matrices stored in bfloat16, half the bytes, and converted to float32 when opened.

    It computes in float32, because ONNX Runtime 1.31 has no bfloat16 CPU kernels for MatMul, Gemm,
    Add, Mul, Softmax, Erf, Tanh or Where: such a graph would not open.
    """

    def convert(self, model: onnx.ModelProto) -> onnx.ModelProto:
        casts = []
        for tensor in model.graph.initializer:
            if tensor.data_type != onnx.TensorProto.FLOAT or len(tensor.dims) < 2:
                continue
            name, stored = tensor.name, tensor.name + STORED
            cast = helper.make_node(
                "Cast", [stored], [name], name=f"{name}_cast", to=onnx.TensorProto.FLOAT
            )
            casts.append(cast)
            numbers = torch.from_numpy(numpy_helper.to_array(tensor).copy()).to(torch.bfloat16)
            rounded = onnx.TensorProto(
                name=stored,
                data_type=onnx.TensorProto.BFLOAT16,
                dims=tensor.dims,
                raw_data=numbers.view(torch.int16).numpy().tobytes(),
            )
            tensor.CopyFrom(rounded)
        nodes = [*casts, *model.graph.node]
        del model.graph.node[:]
        model.graph.node.extend(nodes)
        return model


PRECISIONS: Mapping[str, Precision] = {
    "float32": Precision(),
    "float16": Float16(),
    "bfloat16": Bfloat16(),
}


def fit_half_range(model: onnx.ModelProto, stand_in: float = LARGEST_FITTING) -> None:
    """Replace every scalar constant beyond float16's range by +-`stand_in`, in place.

    Attention masks use the smallest float32, which in float16 is minus infinity; its product with
    the 0 of an unmasked token is not a number. Weight tables are unchanged, since the outputs would
    change otherwise, and so is the bias of a model with one output.
    """
    given = {output.name for output in model.graph.output}
    last = [node for node in model.graph.node if given.intersection(node.output)]
    biases = {name for node in last for name in node.input if name}
    tensors = [
        attribute.t
        for node in model.graph.node
        if node.op_type == "Constant"
        for attribute in node.attribute
    ]
    for constant in (*model.graph.initializer, *tensors):
        if constant.data_type != onnx.TensorProto.FLOAT or np.prod(constant.dims) != 1:
            continue
        if constant.name in biases:
            continue
        value = numpy_helper.to_array(constant)
        if np.isfinite(value).all() and np.abs(value).max() > np.finfo(np.float16).max:
            fitting = np.sign(value) * value.dtype.type(stand_in)
            constant.CopyFrom(numpy_helper.from_array(fitting, constant.name))


def check_overflow(reaches: Sequence[LargestNumber], *, allow: bool) -> None:
    """Raise UnsoundGraphError, or warn, if a graph's numbers could overflow in float16.

    Args:
        reaches: largest numbers in the graph, from `largest_numbers`.
        allow: only warn.
    """
    allowed = SAFE_SHARE * FLOAT16_LARGEST
    beyond = [reach for reach in reaches if reach.largest > allowed]
    if not beyond:
        return
    worst = "; ".join(f"{reach.place} reaches {reach.largest:.4g}" for reach in beyond[:SHOWN])
    message = (
        f"{len(beyond)} places of this model compute numbers that float16 may not hold, on "
        f"{beyond[0].texts} texts: {worst}; allowed is {allowed:.4g}, {SAFE_SHARE:g} of the "
        "largest float16. Use --precision bfloat16 or float32, or --overflow allow if the logits "
        "are proven right."
    )
    if not allow:
        raise UnsoundGraphError(message)
    logger.warning(message)


def largest_numbers(
    graph: Path, encode: Encode, examples: Sequence[Example]
) -> list[LargestNumber]:
    """Return the largest absolute value in each activation and weight, the largest first.

    The graph runs in float32 with two more outputs per tensor, its smallest and largest number, so
    that no activations are kept over many texts. It is the traced graph: a fused operator would
    hide the attention scores inside it. Masks are constants and not activations, and are left out:
    no other numbers reach their size.

    Args:
        graph: graph in float32, with its traced masks.
        encode: encoder of its tokenizer.
        examples: its input texts.
    """
    model = onnx.load(graph)
    makers = {name: node for node in model.graph.node for name in node.output}
    # scalars beyond float16 are masks, and are replaced
    reached = [
        (f"weight {tensor.name}", _largest(numpy_helper.to_array(tensor)))
        for tensor in model.graph.initializer
        if tensor.data_type == onnx.TensorProto.FLOAT and np.prod(tensor.dims) > 1
    ]
    reached += [
        (f"{makers[name].op_type} {makers[name].name or name}", largest)
        for name, largest in _activations(model, encode, examples)
        if name in makers
    ]
    numbers = [
        LargestNumber(place=place, largest=largest, texts=len(examples))
        for place, largest in reached
    ]
    return sorted(numbers, key=lambda number: (-number.largest, number.place))


class _Reader(CalibrationDataReader):  # type: ignore[misc]
    """Token batches, in the interface that the calibrator expects."""

    def __init__(self, batches: Iterator[dict[str, Any]]) -> None:
        self.batches = batches

    def get_next(self) -> dict[str, Any] | None:
        return next(self.batches, None)


def _activations(
    model: onnx.ModelProto, encode: Encode, examples: Sequence[Example]
) -> Iterator[tuple[str, float]]:
    """Yield each floating-point tensor with its largest absolute value on some texts."""
    if not examples:  # the parity gate reports that there are none
        return
    fit_half_range(model, MASK)
    with scratch_folder() as folder:
        save_graph(model, folder / ONNX_NAME, MOST_MB)
        calibrator = MinMaxCalibrater(
            folder / ONNX_NAME,
            augmented_model_path=str(folder / "augmented.onnx"),
            use_external_data_format=True,
        )
        calibrator.augment_graph()
        calibrator.create_inference_session()
        inputs = [entry.name for entry in calibrator.infer_session.get_inputs()]
        starts = range(0, len(examples), BATCH_TEXTS)
        batches = (encode(examples[start : start + BATCH_TEXTS]).arrays for start in starts)
        feeds = ({name: arrays[name] for name in inputs} for arrays in batches)
        calibrator.collect_data(_Reader(feeds))
    for name, reached in calibrator.compute_data().data.items():
        yield name, _largest(np.array(reached.range_value))


def _largest(numbers: np.ndarray[Any, Any]) -> float:
    sizes = np.nan_to_num(np.abs(numbers), nan=np.inf)  # NaN counts as infinite
    masks = np.isfinite(sizes) & (sizes >= MASK / 2)
    return float(sizes[~masks].max(initial=0.0))


class Optimization:
    """A row of OPTIMIZATIONS: changes to a graph before it is written, here none.

    When ONNX Runtime opens a graph, it optimises it for the machine in any case. The optimizations
    here are for all machines and are in the file, where `bertender quantize` and other runtimes see
    them.
    """

    def accepts(self, model: PreTrainedModel) -> None:
        """Raise ModelError if an architecture does not support the optimization."""

    def prepare(self, model: PreTrainedModel) -> bool:
        """Change a model into the form whose graph is optimised; return whether it changed."""
        return False

    def run(self, path: Path) -> onnx.ModelProto:
        """Return the optimised graph at a path."""
        return onnx.load(path)

    def check(self, model: PreTrainedModel, graph: GraphFindings) -> None:
        """Raise ModelError if the optimised graph lacks the row's operators."""


class Basic(Optimization):
    """Constants are folded."""

    def run(self, path: Path) -> onnx.ModelProto:
        return optimized(path, fuse=False)


class Fused(Optimization):
    """Each layer becomes a few operators, which only ONNX Runtime can run.

    ONNX Runtime's optimizer finds layers by PyTorch's pattern. Heads are counted in each layer
    separately, so that pruned models with uneven heads are fused too.
    """

    def accepts(self, model: PreTrainedModel) -> None:
        row = FUSIONS.get(family_name(model.config), NEVER_SEEN)
        if row.obstacle:
            raise _not_fused(model.config, row.obstacle)

    def prepare(self, model: PreTrainedModel) -> bool:
        fusion = FUSIONS[family_name(model.config)]
        fusion.prepare(model)
        return fusion.prepares

    def run(self, path: Path) -> onnx.ModelProto:
        return optimized(path, fuse=True)

    def check(self, model: PreTrainedModel, graph: GraphFindings) -> None:
        if any(name in graph.fused for name in ATTENTION_OPERATORS):
            return
        raise _not_fused(
            model.config,
            f"its attention, written as {model.config._attn_implementation!r} by transformers "
            f"{transformers.__version__}, is not a pattern that onnxruntime "
            f"{onnxruntime.__version__} recognises",
        )


def _not_fused(config: PretrainedConfig, cause: str) -> ModelError:
    fusible = ", ".join(name for name, row in sorted(FUSIONS.items()) if not row.obstacle)
    return ModelError(
        f"--optimize fused finds no attention to fuse in a {config.model_type!r} model, at least "
        f"1 is required: {cause}. Use --optimize basic, or a family that is fused: {fusible}."
    )


OPTIMIZATIONS: Mapping[str, Optimization] = {
    "none": Optimization(),
    "basic": Basic(),
    "fused": Fused(),
}
