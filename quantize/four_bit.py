"""4-bit weights in groups, for size: products with weights of 4 bits, all else of 8.

Shen et al. 2020 (Q-BERT, arXiv 1909.05840) give groups of weights a range each; here a group is
`block_size` inputs of one output. Activations come and go in float; while it multiplies, ONNX
Runtime's MatMulNBits rounds them to 8 bits in groups of their own where the CPU has kernels for
that. With `max_drop`, the parts that suffer most go back to 8 bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import onnx
from transformers import PreTrainedModel

from bertender.core.errors import ModelError
from bertender.core.quiet_tools import quiet_tools
from bertender.models.graph_file import MOST_MB, save_graph
from quantize.context import QuantizationContext, Written
from quantize.dynamic import quantize_nodes
from quantize.mixed import EIGHT_BITS, returned

__all__ = ["check_layers", "write_four_bit"]

COMPUTE_IN_INT8 = 4
"""MatMulNBits's accuracy level: activations in groups of 8 bits, where the CPU has kernels."""


def write_four_bit(context: QuantizationContext, target: Path) -> Written:
    """Quantize the float graph into `target`."""
    candidates = _candidates(context)
    if not candidates:
        raise ModelError(
            f"{context.source.path} has no product whose weights can have 4 bits: 0 of "
            f"{len(context.inventory.products)} are without a bias of their own. "
            "Use --scheme dynamic."
        )
    if context.config.max_drop is None:
        return _write(context, target, ())
    return returned(context, target, _write, EIGHT_BITS, candidates)


def check_layers(model: PreTrainedModel) -> None:
    """Raise ModelError for a model without layers: it has a product for a whole text alone."""
    if model.config.num_hidden_layers == 0:
        raise ModelError(
            f"a {model.config.model_type!r} model has no layers, so that its graph has no product "
            "whose weights can have 4 bits. Use --scheme dynamic."
        )


def _candidates(context: QuantizationContext) -> list[str]:
    """Return the products that can have 4 bits: a Gemm has no such form."""
    return [each.node for each in context.inventory.products if not each.is_gemm]


def _write(context: QuantizationContext, target: Path, left: Sequence[str]) -> Written:
    """Write 4 bits for the candidates except some, which have 8 as all else has."""
    inventory = context.inventory
    small = [node for node in _candidates(context) if node not in left]
    others = [each.node for each in inventory.products if each.node not in small]
    nodes = [*others, *inventory.lstms, *context.tables]
    quantize_nodes(context.graph, target, nodes, context.target.weights)
    _write_small(target, small, context.config.block_size)
    quantized = (*small, *others, *inventory.lstms)
    return Written(quantized, context.reasons, products_of_4_bits=len(small))


def _write_small(graph: Path, nodes: Sequence[str], block_size: int) -> None:
    """Give the weights of some products 4 bits, in the file."""
    if not nodes:
        return
    with quiet_tools():
        from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

        quantizer = MatMulNBitsQuantizer(
            onnx.load(graph),
            bits=4,
            block_size=block_size,
            is_symmetric=True,
            accuracy_level=COMPUTE_IN_INT8,
            nodes_to_include=list(nodes),
        )
        quantizer.process()
    save_graph(quantizer.model.model, graph, MOST_MB)
