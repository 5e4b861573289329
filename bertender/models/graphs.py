"""ONNX graph files: saving, moving and optimizing them, and adapting graphs of other exporters.

A graph is one file, with the weights in a second file where protobuf cannot hold them.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import onnx
from onnx.external_data_helper import ExternalDataInfo, set_external_data, uses_external_data

from bertender.core.errors import ModelError
from bertender.core.progress import quiet_tools
from bertender.models.onnx_session import ERRORS_ONLY, ONNX_DATA_NAME, RENAMES, RUNTIME_DOMAIN

PATTERNS = "bert"
"""The optimizer's name for the patterns of encoders."""
SMALLEST_EXTERNAL_BYTES = 1024
"""Smaller tensors stay in the graph, since shape inference reads some of them."""

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
LOGITS = "logits"
STATES = "last_hidden_state"
"""Output of an embedder's graph that other libraries read, and pool themselves."""
WRITTEN_ATTENTION = "MultiHeadAttention"
"""Attention operator of families that are exported with ONNX Runtime's operators
(`Fusion.prepare`)."""
PROBABILITIES = ("Softmax", "Sigmoid")

FEWER_BITS: Mapping[str, str] = {
    "MatMulNBits": "int4",
    "MatMulBnb4": "int4",
    "GatherBlockQuantized": "int4",
    "DynamicQuantizeLinear": "int8",
    "DynamicQuantizeMatMul": "int8",
    "MatMulInteger": "int8",
    "MatMulIntegerToFloat": "int8",
    "QLinearMatMul": "int8",
    "QuantizeLinear": "int8",
    "DequantizeLinear": "int8",
    "QAttention": "int8",
    "QGemm": "int8",
}
"""Precision of a graph that has an operator, by operator, fewest bits first."""

FUSED = frozenset(
    {"Attention", "EmbedLayerNormalization", "FusedGemm", "FusedMatMul", "PackedAttention"}
)
"""Operators of ONNX Runtime with weights, which are not quantized one by one."""


def save_graph(model: onnx.ModelProto, path: Path, external_above_mb: int) -> None:
    """Write a graph to `path`, replacing an earlier one.

    Args:
        model: graph with all weights in memory; they may be removed from it.
        path: file of the graph. A separate file of weights is written next to it (ONNX_DATA_NAME).
        external_above_mb: most megabytes of weights to keep in the graph file.
    """
    for stale in _external_files(path):
        stale.unlink(missing_ok=True)  # onnx would append to an earlier file
    if weights_size_bytes(model) > external_above_mb * 10**6:
        for tensor in model.graph.initializer:
            if len(tensor.raw_data) >= SMALLEST_EXTERNAL_BYTES:
                set_external_data(tensor, ONNX_DATA_NAME)
    onnx.save(model, path)
    for written in _external_files(path):
        shutil.copymode(path, written)  # onnx makes it readable only by its owner


def move_graph(path: Path, folder: Path) -> Path:
    """Move a graph and its files of weights into a folder, also on another file system."""
    files = _external_files(path)
    for file in (path, *files):
        shutil.move(file, folder / file.name)
    return folder / path.name


def copy_graph(path: Path, folder: Path) -> Path:
    """Copy a graph and its files of weights into a folder; return the copy."""
    for file in (path, *_external_files(path)):
        shutil.copyfile(file, folder / file.name)
    return folder / path.name


def weights_size_bytes(model: onnx.ModelProto) -> int:
    """Return the bytes of a graph's constants; protobuf cannot size a large model."""
    return sum(tensor.ByteSize() for tensor in model.graph.initializer)


def _external_files(path: Path) -> set[Path]:
    """Return the external files of weights of a graph; none if there is no graph at `path`."""
    if not path.is_file():
        return set()
    model = onnx.load(path, load_external_data=False)
    external = (tensor for tensor in model.graph.initializer if uses_external_data(tensor))
    return {path.parent / ExternalDataInfo(tensor).location for tensor in external}


def optimized(graph: Path, *, fuse: bool, only: str | None = None) -> onnx.ModelProto:
    """Optimize a graph with ONNX Runtime's optimizer for transformers: constant folding and fusion.

    Args:
        graph: file of the graph.
        fuse: whether to fuse operators.
        only: the only option of FusionOptions to enable; None keeps their defaults.
    """
    import onnxruntime

    # a slow import that other commands do not need
    from onnxruntime.transformers.fusion_options import FusionOptions
    from onnxruntime.transformers.optimizer import optimize_model

    options = FusionOptions(PATTERNS)
    # the other form counts a text's tokens, which is only right with padding on the right
    options.use_raw_attention_mask(True)
    # fusion finds attention by these norms; where attention is already an operator, separate norm
    # and sum are faster
    stored = onnx.load(graph, load_external_data=False).graph.node
    options.enable_skip_layer_norm = all(node.op_type != WRITTEN_ATTENTION for node in stored)
    if only is not None:
        for name in [name for name in vars(options) if name.startswith("enable_")]:
            setattr(options, name, name == only)
    # the optimizer's sessions would warn of every constant that is unused after a fusion
    onnxruntime.set_default_logger_severity(ERRORS_ONLY)
    with quiet_tools():  # they warn where layers have different heads
        optimizer = optimize_model(
            str(graph),
            PATTERNS,
            num_heads=0,  # 0: read from each layer's shapes
            hidden_size=0,
            optimization_options=options,
            opt_level=1,
            only_onnxruntime=not fuse,
        )
    model: onnx.ModelProto = optimizer.model
    # the optimizer lists all operator sets; a graph should list only those that it uses
    versions = {entry.domain: entry.version for entry in model.opset_import}
    del model.opset_import[:]
    for domain in sorted({node.domain for node in model.graph.node}):
        model.opset_import.append(onnx.helper.make_opsetid(domain, versions.get(domain, 1)))
    return model


def add_runtime_domain(model: onnx.ModelProto) -> None:
    """Add the operator set of ONNX Runtime to a graph."""
    if RUNTIME_DOMAIN not in {each.domain for each in model.opset_import}:
        model.opset_import.append(onnx.helper.make_opsetid(RUNTIME_DOMAIN, 1))


class ForeignGraph:
    """A graph of another exporter, adapted to bertender: its logits are renamed to `logits`.

    Args:
        path: file of the graph.
        labels: labels of the model, in the order of the artifact's logits.
        order: number of each label in the model.
        per_token: whether logits are (batch, seq, labels) instead of (batch, labels).

    Raises:
        ModelError: the graph cannot be read, takes other inputs than tokens or a fixed number of
            them, or has no output that can be the logits of these labels.
    """

    def __init__(
        self, path: Path, labels: Sequence[str], order: Sequence[int], *, per_token: bool
    ) -> None:
        try:
            self.model = onnx.load(path)
        except Exception as error:  # errors of protobuf and onnx have no common base
            raise ModelError(f"{path} cannot be read as a graph of ONNX: {error}") from None
        self.path = path
        self.inputs = self._checked_inputs()
        self._name_logits(labels, rank=3 if per_token else 2)
        if tuple(order) != tuple(range(len(order))):
            self._reorder(order)
        for number, node in enumerate(self.model.graph.node):
            node.name = node.name or f"{node.op_type}_{number}"  # quantization needs names

    @property
    def precision(self) -> str:
        """Data type of the weights with the fewest bits."""
        graph = self.model.graph
        operators = {node.op_type for node in nodes_of(graph)}
        for operator, precision in FEWER_BITS.items():
            if operator in operators:
                bits = [
                    each.i
                    for node in nodes_of(graph)
                    for each in node.attribute
                    if each.name == "bits"
                ]
                in_blocks_of_8 = bool(bits) and all(each == 8 for each in bits)
                return "int8" if in_blocks_of_8 else precision
        types = {tensor.data_type for tensor in graph.initializer}
        if onnx.TensorProto.FLOAT16 in types:
            return "float16"
        return "bfloat16" if onnx.TensorProto.BFLOAT16 in types else "float32"

    @property
    def optimize(self) -> str:
        """`fused` where the graph has operators of ONNX Runtime."""
        operators = {node.op_type for node in nodes_of(self.model.graph)}
        return "fused" if operators & FUSED else "none"

    def parameters(self) -> int:
        """Return the number of parameters."""
        return sum(int(math.prod(tensor.dims)) for tensor in self.model.graph.initializer)

    def _checked_inputs(self) -> list[str]:
        """Return the names of the inputs; raise ModelError unless they are dynamic token arrays."""
        stored = {tensor.name for tensor in self.model.graph.initializer}
        inputs = [each for each in self.model.graph.input if each.name not in stored]
        unknown = [each.name for each in inputs if each.name not in INPUTS]
        if unknown or not inputs:
            raise ModelError(
                f"{self.path} takes {', '.join(each.name for each in inputs) or 'nothing'}, and "
                f"a classifier of texts takes some of {', '.join(INPUTS)}. Export it again."
            )
        for each in inputs:
            tensor = each.type.tensor_type
            sizes = [dim.dim_value for dim in tensor.shape.dim]
            if tensor.elem_type != onnx.TensorProto.INT64:
                raise ModelError(
                    f"{self.path}: input {each.name} is not of 64-bit integers, as the exporters "
                    "of transformers write it. Export it again with int64 inputs."
                )
            if any(sizes):
                raise ModelError(
                    f"{self.path}: input {each.name} has the fixed size {sizes} (0 is free). It "
                    "would refuse other batches and lengths: export it again with dynamic axes "
                    "for batch and sequence."
                )
        return [each.name for each in inputs]

    def _name_logits(self, labels: Sequence[str], rank: int) -> None:
        """Rename the output with the logits to `logits`; raise ModelError where there is none."""
        outputs = self.model.graph.output
        fitting = [each for each in outputs if each.name == LOGITS] or [
            each
            for each in outputs
            if len(dims := each.type.tensor_type.shape.dim) == rank
            and dims[-1].dim_value in (0, len(labels))
        ]
        if len(fitting) != 1:
            raise ModelError(
                f"{self.path} has the outputs {', '.join(each.name for each in outputs)}: none "
                f"is called {LOGITS}, and {len(fitting)} could be the logits of "
                f"{len(labels)} labels. Export it as a classifier (Optimum: --task "
                "text-classification or token-classification)."
            )
        (output,) = fitting
        made_by = {name: node for node in self.model.graph.node for name in node.output}
        last = made_by.get(output.name)
        while last is not None and last.op_type in RENAMES:  # as behind float16
            last = made_by.get(last.input[0])
        if last is not None and last.op_type in PROBABILITIES:
            raise ModelError(
                f"{self.path}: its output {output.name} is that of {last.op_type}, so that it has "
                "probabilities, and a softmax of these would be their score. Export the model with "
                "its logits."
            )
        sizes = [dim.dim_value for dim in output.type.tensor_type.shape.dim]
        if sizes and sizes[-1] not in (0, len(labels)):
            raise ModelError(
                f"{self.path}: its logits are of {sizes[-1]} labels, and config.json names "
                f"{len(labels)}: {', '.join(labels)}. Give the config.json of its model."
            )
        self._rename(output.name, LOGITS)
        output.name = LOGITS

    def _reorder(self, order: Sequence[int]) -> None:
        """Reorder the labels by a node that gathers them along the last axis."""
        graph, theirs = self.model.graph, f"{LOGITS}_in_their_order"
        self._rename(LOGITS, theirs)
        numbers = onnx.helper.make_tensor(
            "label_order", onnx.TensorProto.INT64, [len(order)], order
        )
        graph.initializer.append(numbers)
        graph.node.append(
            onnx.helper.make_node("Gather", [theirs, numbers.name], [LOGITS], axis=-1)
        )

    def _rename(self, old: str, new: str) -> None:
        """Rename a tensor, also in branches."""
        for node in nodes_of(self.model.graph):
            node.output[:] = [new if name == old else name for name in node.output]
            node.input[:] = [new if name == old else name for name in node.input]


def nodes_of(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Yield all nodes of a graph, including those of its branches."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from nodes_of(attribute.g)
