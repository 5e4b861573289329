"""PRECISIONS: the numbers that a graph is stored in, and OPTIMIZATIONS: its fused operators."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
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
from transformers import PretrainedConfig, PreTrainedModel

from bertender.core.errors import ModelError
from bertender.core.findings import GraphFindings, LargestNumber
from bertender.models.families import family_name
from bertender.models.graphs import WRITTEN_ATTENTION, optimized, save_graph
from bertender.models.onnx_session import MOST_MB, ONNX_NAME
from bertender.models.steps import FUSIONS, NEVER_SEEN
from bertender.text.batch import Encode, Example

logger = logging.getLogger(__name__)

LARGEST_FITTING = 1e4
"""Replaces larger constants: after a softmax all else becomes 0 next to it, and sums
with it stay far from 65504, the largest number of float16."""
FLOAT16_LARGEST = 65504.0
SAFE_SHARE = 0.5
"""Of it, as the texts that are looked at are few: others may reach further."""
MASK = 1e30
BATCH_TEXTS = 8
SHOWN = 3
"""Nodes that an error names, the worst first."""
STORED = "_bfloat16"
"""Suffix of the name of a matrix where it is stored."""
ATTENTION_OPERATORS = ("Attention", WRITTEN_ATTENTION)


class Precision:
    """A row of PRECISIONS, each of which is a row of TOLERANCES too: float32.

    In all of them, tokens come in as int64 and logits go out as float32.
    """

    def examine(
        self, graph: Path, encode: Encode, examples: Sequence[Example], *, allow: bool
    ) -> LargestNumber | None:
        """Return the largest number of a traced graph of float32, where that is of interest.

        Raises:
            ModelError: the precision could not hold what the graph computes; `allow` only warns.
        """
        return None

    def convert(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Return the optimised graph of float32 in this precision; it may be changed in place."""
        return model


class Float16(Precision):
    """Computed in float16 where the machine can: on a GPU.

    ONNX Runtime's CPU has float16 kernels for few operators and computes the others in float32,
    with conversions between them.
    """

    def examine(
        self, graph: Path, encode: Encode, examples: Sequence[Example], *, allow: bool
    ) -> LargestNumber | None:
        reaches = largest_numbers(graph, encode, examples)
        check_overflow(reaches, allow=allow)
        return reaches[0]

    def convert(self, model: onnx.ModelProto) -> onnx.ModelProto:
        # loaded here, because it takes a second that other commands need not wait
        from onnxruntime.transformers.onnx_model import OnnxModel

        converted = OnnxModel(model)
        # its own shape inference knows ONNX Runtime's operators, which that of onnx does not
        converted.convert_float_to_float16(use_symbolic_shape_infer=True, keep_io_types=True)
        converted.topological_sort()
        result: onnx.ModelProto = converted.model
        return result


class Bfloat16(Precision):
    """Matrices stored in bfloat16, half of the bytes, and turned into float32 at opening.

    It computes in float32, because ONNX Runtime 1.31 has no bfloat16 kernels for the CPU of MatMul,
    Gemm, Add, Mul, Softmax, Erf, Tanh or Where: such a graph would not open.
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
    """Bring every single finite number beyond float16's range to +-`stand_in`, in place.

    Attention masks are written as the least float32, which as float16 is minus infinity; times the
    0 of a token that is not masked, that is not a number. Tables of weights are left as they are,
    or the outputs would change, and so is the bias of a model of one number.
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
    """Raise ModelError, or warn, where float16 could not hold what a graph computes.

    Args:
        reaches: of every place, as `largest_numbers` gives them.
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
        raise ModelError(message)
    logger.warning(message)


def largest_numbers(
    graph: Path, encode: Encode, examples: Sequence[Example]
) -> list[LargestNumber]:
    """Return the largest absolute number of each activation and weight, the largest first.

    The graph is run in float32 with two outputs more for each tensor, its least and its largest
    number, so that a check of many texts keeps no activation. It is the graph as it was traced: a
    fused operator would hide the attention scores inside it. Masks are not activations, and left
    out: they are in the graph as numbers that nothing else reaches.

    Args:
        graph: in float32, its masks as they were traced.
        encode: its tokenizer.
        examples: its input texts.
    """
    model = onnx.load(graph)
    makers = {name: node for node in model.graph.node for name in node.output}
    # single numbers beyond float16 are masks, and are changed
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
    """Token batches as the calibrator asks for them."""

    def __init__(self, batches: Iterator[dict[str, Any]]) -> None:
        self.batches = batches

    def get_next(self) -> dict[str, Any] | None:
        return next(self.batches, None)


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
        starts = range(0, len(examples), BATCH_TEXTS)
        batches = (encode(examples[start : start + BATCH_TEXTS]).arrays for start in starts)
        feeds = ({name: arrays[name] for name in inputs} for arrays in batches)
        calibrator.collect_data(_Reader(feeds))
    for name, reached in calibrator.compute_data().data.items():
        yield name, _largest(np.array(reached.range_value))


def _largest(numbers: np.ndarray[Any, Any]) -> float:
    sizes = np.nan_to_num(np.abs(numbers), nan=np.inf)  # no number is beyond all of them
    masks = np.isfinite(sizes) & (sizes >= MASK / 2)
    return float(sizes[~masks].max(initial=0.0))


class Optimization:
    """A row of OPTIMIZATIONS: what is done to a graph before it is written, here nothing.

    Opening a graph, ONNX Runtime optimises it in any case, for the machine that it runs on. What is
    done here is done for all machines, and is in the file: `bertender quantize` and other runtimes
    find it there.
    """

    def accepts(self, model: PreTrainedModel) -> None:
        """Raise ModelError where an architecture cannot have what the row promises."""

    def prepare(self, model: PreTrainedModel) -> bool:
        """Bring a model to the form whose graph is optimised; return whether it was in another."""
        return False

    def run(self, path: Path) -> onnx.ModelProto:
        """Return the graph at a path, optimised."""
        return onnx.load(path)

    def check(self, model: PreTrainedModel, graph: GraphFindings) -> None:
        """Raise ModelError where the optimised graph lacks what the row promises."""


class Basic(Optimization):
    """Constants are folded."""

    def run(self, path: Path) -> onnx.ModelProto:
        return optimized(path, fuse=False)


class Fused(Optimization):
    """Each layer becomes a few operators, which ONNX Runtime alone can run.

    Its own optimizer finds layers by the pattern in which PyTorch wrote them. Heads are counted in
    each layer by itself, so that pruned models with uneven heads are fused like others.
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
