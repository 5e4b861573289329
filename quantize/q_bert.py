"""Weights of 2 to 4 bits, allotted by the Hessian and trained: for size.

Shen et al. 2020 (Q-BERT, arXiv 1909.05840): weights of a layer's products have few bits, in groups
of outputs with a scale each, tables and activations have 8, and the model is trained with all these
errors. Where two numbers of bits are given, the most sensitive weights have the larger
one.

Departures: a product has bits of its own, not a layer; the curvature counts with the squared error
that rounding makes in the weight (HAWQ-V2, arXiv 1911.03852, eq. 11); levels are symmetric, at the
distance of least squared error instead of between the smallest and the largest weight. Products
outside of the layers (pooler, classifier, projections of embeddings) have 8 bits. Tables may have
4 (section 4.2 of the paper), in groups of a row's values; small ones keep 8, as positions there.

In the file the weights have their few bits. ONNX Runtime unpacks them when it opens the graph, and
multiplies in 8 bits: as fast as `static`, not faster.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from transformers import PreTrainedModel

from bertender.core.errors import ModelError
from bertender.core.findings import SensitivityFindings
from bertender.models.families import encoder_layers, family_of
from quantize.affine import INTEGERS
from quantize.context import QuantizationContext, Written
from quantize.dynamic import write_dynamic
from quantize.fake_quantization import RoundedWeight, RowRounding, WeightRounding
from quantize.four_bit_tables import large_tables, round_in_groups, write_in_groups
from quantize.low_bits import LowBitWeight
from quantize.packing import pack_constants
from quantize.qat import check_trainable
from quantize.qdq import WeightScales, name_of_integers
from quantize.sensitivity import SENSITIVITIES
from quantize.static import write_with_ranges
from quantize.training import Start, Trained, path_of_table, start_of, train_graph

__all__ = ["check_layers", "write_q_bert"]


def check_layers(model: PreTrainedModel) -> None:
    """Raise ModelError for a model with an LSTM, without layers, or whose layers are not known."""
    check_trainable(model)
    if model.config.num_hidden_layers == 0:
        raise ModelError(
            f"a {model.config.model_type!r} model has no layers, whose weights would have few "
            "bits. Export it, and quantize it with --scheme dynamic."
        )
    family_of(model)


def write_q_bert(context: QuantizationContext, target: Path) -> Written:
    """Train the float model with errors of few bits, and write its graph to `target`."""
    start = start_of(context)
    few = _tables_of_few_bits(start.context)
    allotment = _allotment(start)
    weights = _roundings(start, allotment.bits)
    trained = train_graph(start, weights, _table_roundings(start, few), target)
    bits = _by_node(trained, allotment.bits)
    written = _write(trained, bits, few, target)
    findings = replace(written, weight_bits=bits, sensitivity=allotment.sensitivity)
    return trained.report(findings)


def _write(
    trained: Trained, bits: Mapping[str, int], few: Mapping[str, str], target: Path
) -> Written:
    """Write the trained model's graph, with packed weights and tables."""
    scales = _scales(trained, bits)
    written = write_with_ranges(trained.context, target, trained.ranges, [*few], scales)
    pack_constants(target, _by_constant(trained, bits))
    if not few:
        return written
    write_in_groups(target, [*few], trained.context.config.block_size)
    return replace(written, tables_of_4_bits=len({*few.values()}))


def _tables_of_few_bits(context: QuantizationContext) -> dict[str, str]:
    """Return the look-ups in tables that have fewer than 8 bits: node -> name of the table.

    Raises:
        ModelError: none can have the few bits that are asked for.
    """
    config = context.config
    if not config.has_tables_of_4_bits:
        return {}
    few = large_tables(context)
    if not few:
        raise ModelError(
            f"{context.source.path} has no embedding table that can have {config.table_bits} bits: "
            "rows must be of an even width. Leave --table-bits out."
        )
    return few


def _table_roundings(start: Start, few: Mapping[str, str]) -> dict[str, RowRounding]:
    """Return what rounds the rows of each embedding, by its path."""
    in_groups = round_in_groups(start.context.config.block_size)
    return {**start.tables, **dict.fromkeys(map(path_of_table, few.values()), in_groups)}


def _roundings(start: Start, low: Mapping[str, int]) -> dict[str, WeightRounding]:
    """Return what rounds the weight of each product, by the layer's path; `low` has the bits."""
    eight_bits, groups = INTEGERS[start.context.target.weights], start.context.config.weight_groups
    return {
        path: LowBitWeight(low[path], groups) if path in low else RoundedWeight(eight_bits)
        for path in start.paths.values()
    }


@dataclass(frozen=True)
class _Allotment:
    """Bits of each weight of a layer, and why."""

    bits: Mapping[str, int]
    """By the layer's path."""
    sensitivity: SensitivityFindings | None = None


def _allotment(start: Start) -> _Allotment:
    """Return the bits of each weight; a shared one goes by its most sensitive product."""
    context, config = start.context, start.context.config
    nodes = _in_layers(start)
    if config.sensitive_bits is None:
        return _Allotment({start.paths[node]: config.weight_bits for node in nodes})
    row = SENSITIVITIES[config.sensitivity]
    measured = row.measure(context, write_dynamic, nodes, _low_bit_error)
    ranking = sorted(nodes, key=lambda node: -measured.by_node[node])
    paths = [*dict.fromkeys(start.paths[node] for node in ranking)]
    sensitive = max(round(config.sensitive_share * len(paths)), 1)
    bits = dict.fromkeys(paths, config.weight_bits)
    bits |= dict.fromkeys(paths[:sensitive], config.sensitive_bits)
    by_node = {node: measured.by_node[node] for node in ranking}
    findings = SensitivityFindings(
        by_node=by_node, curvature=measured.curvature, drops=(), returned={}
    )
    return _Allotment(bits, findings)


def _in_layers(start: Start) -> list[str]:
    """Return the nodes of the products of the model's layers."""
    layers = {id(module) for layer in encoder_layers(start.model) for module in layer.modules()}
    return [
        node for node, path in start.paths.items() if id(start.model.get_submodule(path)) in layers
    ]


def _low_bit_error(context: QuantizationContext, node: str, weight: torch.Tensor) -> float:
    """Return the summed squared error of a weight (outputs, inputs) of the fewest bits."""
    rounding = LowBitWeight(context.config.weight_bits, context.config.weight_groups)
    return float((rounding.exported(weight) - weight).square().sum())


def _by_node(trained: Trained, low: Mapping[str, int]) -> dict[str, int]:
    """Return the bits of products of the trained model's graph."""
    paths = trained.paths.items()
    return {node: low[path] for node, path in paths if path in low}


def _by_constant(trained: Trained, bits: Mapping[str, int]) -> dict[str, int]:
    """Return the bits of the constants that have products' weights."""
    products = trained.context.inventory.products
    return {name_of_integers(each): bits[each.node] for each in products if each.node in bits}


def _scales(trained: Trained, bits: Mapping[str, int]) -> dict[str, WeightScales]:
    """Return the scales (outputs,) of the weights of few bits, by node."""
    weights = trained.model.originals()
    scales = {}
    for node in bits:
        path = trained.paths[node]
        rounding = trained.model.weights[path]
        assert isinstance(rounding, LowBitWeight)
        scales[node] = rounding.scales(weights[path]).squeeze(1).double().cpu().numpy()
    return scales
