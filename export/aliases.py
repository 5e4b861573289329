"""Weights under more than one name.

The exporter writes tensors of equal numbers once (all biases that are 0, say) and an Identity node
for each other name. Whoever looks for a product's weight or bias would find a computed tensor.
"""

from __future__ import annotations

import onnx

__all__ = ["drop_aliases"]


def drop_aliases(model: onnx.ModelProto) -> None:
    """Let every node of a graph read its constants by their own names, in place."""
    graph = model.graph
    constants = {tensor.name for tensor in graph.initializer}
    outputs = {output.name for output in graph.output}
    origin: dict[str, str] = {}
    remaining = []
    for node in graph.node:
        source = origin.get(node.input[0], node.input[0]) if node.input else ""
        if node.op_type == "Identity" and source in constants and node.output[0] not in outputs:
            origin[node.output[0]] = source
            continue
        for place, name in enumerate(node.input):
            node.input[place] = origin.get(name, name)
        remaining.append(node)
    del graph.node[:]
    graph.node.extend(remaining)
