"""Embedding tables of 4 bits in groups, all else as `dynamic`: for size, at no cost in time.

Half of a small encoder's bytes are its table of tokens, of which a text looks up a few rows. So
fewer bits cost no time there, while products of 4 bits do.
"""

from __future__ import annotations

from pathlib import Path

from quantize.context import QuantizationContext, Written
from quantize.dynamic import fuse_if_set, quantize_nodes
from quantize.four_bit_tables import large_tables, write_in_groups

__all__ = ["write_four_bit_embeddings"]


def write_four_bit_embeddings(context: QuantizationContext, target: Path) -> Written:
    """Quantize the float graph into `target`: tables to 4 bits, products as `dynamic` does."""
    inventory, large = context.inventory, large_tables(context)
    products = [each.node for each in inventory.products]
    others = [lookup for lookup in context.tables if lookup not in large]
    nodes = [*products, *inventory.lstms, *others]
    quantize_nodes(context.graph, target, nodes, context.target.weights)
    write_in_groups(target, [*large], context.config.block_size)
    return Written(
        (*products, *inventory.lstms),
        context.reasons,
        tables_of_4_bits=len({*large.values()}),  # two texts look up in one
        fused_attentions=fuse_if_set(context, target),
    )
