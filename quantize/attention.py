"""Attentions of a dynamically quantized graph as one operator each: ONNX Runtime's QAttention.

In ONNX's own operators, query, key and value are three products, and their outputs are transposed
for each head. QAttention multiplies once and transposes nothing. It gets the integers and the
scales of the plain graph. The gates take them out of it again (`in_plain_form`), judge the products
one by one, and compare each operator with the operators that it replaces.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import onnx
from transformers import PreTrainedModel

from bertender.core.errors import ModelError
from bertender.models.families import family_name
from bertender.models.fusions import FUSIONS, NEVER_SEEN
from bertender.models.graph_file import MOST_MB, save_graph
from bertender.models.graph_optimizer import add_runtime_domain, optimized
from quantize.attention_operators import FusedAttention, find_attentions

__all__ = ["check_attention", "fuse_attention", "rewritten"]

ONLY_ATTENTION = "enable_attention"


def fuse_attention(float_graph: Path, quantized_graph: Path) -> int:
    """Make one operator of each attention of a quantized graph, and replace its file.

    Args:
        float_graph: what the other was made of.
        quantized_graph: its products are dynamic. An attention with a float product is left.

    Returns:
        The number of attentions that are one operator now.

    Raises:
        ModelError: there is none. The file is not changed.
    """
    floats, quantized = onnx.load(float_graph), onnx.load(quantized_graph)
    fused = [
        *find_attentions(optimized(float_graph, fuse=True, only=ONLY_ATTENTION), floats, quantized)
    ]
    if not fused:
        raise ModelError(
            "no attention of this graph can be one operator of 8 bits: ONNX Runtime's optimizer "
            "finds none in it, or its products are float. Leave --fused-attention out."
        )
    save_graph(_fused(quantized, fused), quantized_graph, MOST_MB)
    return len(fused)


def check_attention(model: PreTrainedModel) -> None:
    """Raise ModelError where the plain export of a model's family has no attention to fuse."""
    row = FUSIONS.get(family_name(model.config), NEVER_SEEN)
    if row.obstacle_in_a_plain_export:
        fused = ", ".join(
            name for name, each in sorted(FUSIONS.items()) if not each.obstacle_in_a_plain_export
        )
        raise ModelError(
            f"no attention of a {model.config.model_type!r} model can be one operator of 8 bits: "
            f"{row.obstacle_in_a_plain_export}. Leave --fused-attention out; it is for {fused}."
        )


def _fused(model: onnx.ModelProto, fused: Sequence[FusedAttention]) -> onnx.ModelProto:
    add_runtime_domain(model)
    replaced = {name for each in fused for name in each.node.output}
    others = [node for node in model.graph.node if replaced.isdisjoint(node.output)]
    nodes = [node for each in fused for node in (*each.masks, each.node)]
    constants = [tensor for each in fused for tensor in each.constants]
    return rewritten(model, [*others, *nodes], constants)


def rewritten(
    model: onnx.ModelProto,
    nodes: Iterable[onnx.NodeProto],
    constants: Iterable[onnx.TensorProto],
) -> onnx.ModelProto:
    """Return a graph of other nodes, in any order, without those and the constants not read.

    Args:
        model: changed in place.
        nodes: all of them. Of those with the same output, the first one stands.
        constants: new ones. Of those with the same name, the graph's own among them, one stands.
    """
    from onnxruntime.transformers.onnx_model import OnnxModel

    graph, known = model.graph, {each.name for each in model.graph.initializer}
    new = {each.name: each for each in constants if each.name not in known}
    computed: dict[str, onnx.NodeProto] = {}
    for node in nodes:
        computed.setdefault(next(filter(None, node.output)), node)
    del graph.node[:], graph.value_info[:]
    graph.node.extend(computed.values())
    graph.initializer.extend(new.values())
    made = OnnxModel(model)
    made.prune_graph(allow_remove_graph_inputs=False)
    made.topological_sort()
    return model
