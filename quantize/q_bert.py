"""Weights of 2 to 4 bits, allotted by the Hessian and trained (Q-BERT)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from transformers import PreTrainedModel

from bertender.core.errors import ModelError
from bertender.core.findings import SensitivityFindings
from bertender.models.families import encoder_layers, family_of
from bertender.models.graphs import save_graph
from bertender.models.onnx_session import MOST_MB
from quantize.context import QuantizationContext, Written
from quantize.four_bit import large_tables, round_in_groups, write_in_groups
from quantize.integers import INTEGERS
from quantize.post_training import WeightScales, name_of_integers, write_dynamic, write_with_ranges
from quantize.qat import (
    LEAST_SCALE,
    RoundedWeight,
    RowRounding,
    Start,
    Trained,
    WeightRounding,
    check_trainable,
    path_of_table,
    start_of,
    straight_through,
    train_graph,
)
from quantize.sensitivity import SENSITIVITIES

# --- from quantize.low_bits
# Weights of 2, 3 or 4 bits: groups of a product's outputs share a scale.
#
# Levels are evenly spaced and symmetric: odd multiples of half their distance, so that all of
# them
# are used and the integers fit into the 8 bits that kernels multiply. Their distance is the one
# with
# the least squared error for normally distributed weights of the group's root mean square (Max
# 1960,
# "Quantizing for minimum distortion", IRE Transactions on Information Theory 6, table II).

LEVEL_DISTANCES: Mapping[int, float] = {2: 0.9957, 3: 0.5860, 4: 0.3352}
"""Bits -> distance of two levels, in standard deviations of the weights."""


class LowBitWeight(WeightRounding):
    """Rounds a weight (outputs, inputs) to a few levels.

    Args:
        bits: a key of LEVEL_DISTANCES.
        groups: of consecutive outputs that share a scale; a product with fewer outputs has one for
            each.
    """

    def __init__(self, bits: int, groups: int) -> None:
        super().__init__()
        self.bits = bits
        self.groups = groups
        self.largest = 2**bits - 1

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return straight_through(weight, self.exported(weight.detach()))

    def exported(self, weight: torch.Tensor) -> torch.Tensor:
        scales = self.scales(weight)
        return self._integers(weight, scales) * scales

    def scales(self, weight: torch.Tensor) -> torch.Tensor:
        """Return half the distance of two levels, of each output: (outputs, 1)."""
        outputs = len(weight)
        groups = min(self.groups, outputs)
        group = torch.arange(outputs, device=weight.device) * groups // outputs
        sums = weight.new_zeros(groups).index_add(0, group, weight.square().mean(dim=1))
        deviations = (sums / group.bincount(minlength=groups)).sqrt()
        halves = LEVEL_DISTANCES[self.bits] / 2 * deviations
        return halves.clamp(min=LEAST_SCALE)[group].unsqueeze(1)

    def _integers(self, weight: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        """Return the odd integers nearest to a weight in its scales."""
        nearest = 2 * (weight / (2 * scales)).floor() + 1
        return nearest.clamp(-self.largest, self.largest)


# --- from quantize.packing
# Constants of 2, 3 or 4 bits in a graph: bytes of packed integers, and nodes that unpack them.
#
# A byte looks up all the integers in it. 3 bits are the sum of 2 and 1, each in bytes of its own.
# The
# nodes are ONNX's own and read constants alone, so that ONNX Runtime computes them once, when the
# graph is opened, and then multiplies by the same 8-bit integers as of an unpacked graph.

WIDTHS: Mapping[int, tuple[int, ...]] = {2: (2,), 3: (2, 1), 4: (4,)}
"""Bits -> those of the parts that an integer is the sum of, the highest first."""
BYTE_VALUES = np.arange(256)
ONE_ROW = np.array([-1])


def pack_constants(graph: Path, bits: Mapping[str, int]) -> None:
    """Pack some constants of a graph, in its file.

    Args:
        graph: its constants are of odd 8-bit integers, symmetric around 0.
        bits: name of a constant -> bits of its integers, a key of WIDTHS. The largest integer in
            size is 2**bits - 1.

    Raises:
        ModelError: a constant is missing, or has other integers.
    """
    model = onnx.load(graph)
    packed = _Packed(bits)
    constants = [item for item in model.graph.initializer if item.name in bits]
    if missing := bits.keys() - {item.name for item in constants}:
        raise ModelError(f"{graph} has no constants {', '.join(sorted(missing))} to pack.")
    for constant in constants:
        packed.add(constant.name, numpy_helper.to_array(constant))
        model.graph.initializer.remove(constant)
    model.graph.initializer.extend(packed.constants.values())
    nodes = [*packed.nodes, *model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    save_graph(model, graph, MOST_MB)


class _Packed:
    """Constants and nodes that unpack others."""

    def __init__(self, bits: Mapping[str, int]) -> None:
        self.bits = bits
        self.constants: dict[str, onnx.TensorProto] = {}
        self.nodes: list[onnx.NodeProto] = []

    def add(self, name: str, integers: npt.NDArray[np.int8]) -> None:
        """Add what computes a tensor of integers."""
        bits = self.bits[name]
        if np.any(integers % 2 == 0) or np.abs(integers.astype(np.int64)).max() >= 2**bits:
            raise ModelError(f"{name} has other integers than odd ones of {bits} bits.")
        positions = (integers.astype(np.int64).reshape(-1) + 2**bits - 1) // 2
        parts = [
            self._looked_up(f"{name}_part{place}", positions, bits, place)
            for place in range(len(WIDTHS[bits]))
        ]
        whole = parts[0] if len(parts) == 1 else self._sum(f"{name}_sum", parts)
        sizes = "x".join(map(str, integers.shape))
        shape = self._constant(f"unpacked_shape_{sizes}", np.array(integers.shape))
        self._node("Reshape", name, whole, shape)

    def _looked_up(self, name: str, positions: npt.NDArray[np.int64], bits: int, place: int) -> str:
        """Add a part of integers, by their positions among the levels; return its tensor."""
        width, shift = WIDTHS[bits][place], sum(WIDTHS[bits][place + 1 :])
        part = (positions >> shift) % 2**width
        stored = self._constant(f"{name}_bytes", _in_bytes(part, width))
        table = self._constant(f"unpacked_{bits}_bits_{place}", _table(bits, place))
        numbers = self._node("Cast", f"{name}_numbers", stored, to=TensorProto.INT32)
        values = self._node("Gather", name, table, numbers)
        return values if len(part) % (8 // width) == 0 else self._cut(values, len(part))

    def _cut(self, values: str, count: int) -> str:
        """Add what leaves the first values alone: the last byte has more."""
        ends = (self._constant("unpacked_first", [0]), self._constant(f"unpacked_{count}", [count]))
        return self._node("Slice", f"{values}_cut", self._row(values), *ends)

    def _sum(self, name: str, parts: Sequence[str]) -> str:
        """Add the sum of parts: ONNX Runtime adds integers of 32 bits, not of 8."""
        wide = [
            self._node("Cast", f"{each}_wide", self._row(each), to=TensorProto.INT32)
            for each in parts
        ]
        whole = wide[0]
        for place, each in enumerate(wide[1:], start=1):
            whole = self._node("Add", f"{name}{place}", whole, each)
        return self._node("Cast", name, whole, to=TensorProto.INT8)

    def _row(self, values: str) -> str:
        """Add a tensor in one row: parts have other numbers of integers a byte."""
        return self._node(
            "Reshape", f"{values}_row", values, self._constant("unpacked_all", ONE_ROW)
        )

    def _node(self, operator: str, name: str, *inputs: str, **attributes: Any) -> str:
        node = helper.make_node(operator, [*inputs], [name], name=f"{name}/unpack", **attributes)
        self.nodes.append(node)
        return name

    def _constant(self, name: str, value: npt.ArrayLike) -> str:
        self.constants[name] = numpy_helper.from_array(np.asarray(value), name)
        return name


def _in_bytes(part: npt.NDArray[np.int64], width: int) -> npt.NDArray[np.uint8]:
    """Return integers of some bits in bytes, the first one lowest; what is missing is 0."""
    each = 8 // width
    rows = np.pad(part, (0, -len(part) % each)).reshape(-1, each)
    return np.asarray((rows << _shifts(width)).sum(axis=1), dtype=np.uint8)


def _table(bits: int, place: int) -> npt.NDArray[np.int8]:
    """Return what each byte adds to the integers in it: (256, integers a byte)."""
    width, shift = WIDTHS[bits][place], sum(WIDTHS[bits][place + 1 :])
    part = (BYTE_VALUES[:, None] >> _shifts(width)) % 2**width
    least = 2**bits - 1 if place == 0 else 0
    return np.asarray(2 * (part << shift) - least, dtype=np.int8)


def _shifts(width: int) -> npt.NDArray[np.int64]:
    return np.arange(0, 8, width)


# --- from quantize.q_bert
# Weights of 2 to 4 bits, allotted by the Hessian and trained: for size.
#
# Shen et al. 2020 (Q-BERT, arXiv 1909.05840): weights of a layer's products have few bits, in
# groups
# of outputs with a scale each, tables and activations have 8, and the model is trained with all
# these
# errors. Where two numbers of bits are given, the most sensitive weights have the larger
# one.
#
# Departures: a product has bits of its own, not a layer; the curvature counts with the squared
# error
# that rounding makes in the weight (HAWQ-V2, arXiv 1911.03852, eq. 11); levels are symmetric, at
# the
# distance of least squared error instead of between the smallest and the largest weight. Products
# outside of the layers (pooler, classifier, projections of embeddings) have 8 bits. Tables may
# have
# 4 (section 4.2 of the paper), in groups of a row's values; small ones keep 8, as positions
# there.
#
# In the file the weights have their few bits. ONNX Runtime unpacks them when it opens the graph,
# and
# multiplies in 8 bits: as fast as `static`, not faster.


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
