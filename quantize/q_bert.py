"""Weights of 2 to 4 bits, allotted by the Hessian and trained, for size.

Shen et al. 2020 (Q-BERT, arXiv 1909.05840): weights of a layer's products have few bits, in groups
of outputs that share a scale; tables and activations have 8 bits; the model is trained with these
errors. With two bit widths, the most sensitive weights get the larger one.

Departures: bits are set per product, not per layer; the curvature is multiplied by the squared
rounding error of the weight (HAWQ-V2, arXiv 1911.03852, eq. 11); levels are symmetric, at the
distance of smallest squared error instead of between the smallest and the largest weight. Products
outside the layers (pooler, classifier, projections of embeddings) have 8 bits. Tables may have 4
bits (section 4.2 of the paper), in groups of a row's values; small tables keep 8, like positions
there.

The file has packed weights: each byte is looked up in a table of its integers, and 3-bit integers
are sums of 2-bit and 1-bit ones, packed separately. The nodes that unpack them are standard ONNX
and depend only on constants, so ONNX Runtime computes them once, when it opens the graph, and
multiplies in 8 bits: as fast as `static`, not faster.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
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
from quantize.four_bit import in_groups, large_tables, write_in_groups
from quantize.graph import constants_of, replace_nodes
from quantize.integers import INTEGERS
from quantize.post_training import name_of_integers, write_dynamic, write_with_ranges
from quantize.qat import (
    LEAST_SCALE,
    Qat,
    RoundedWeight,
    RowRounding,
    Start,
    WeightRounding,
    path_of_table,
    start_of,
    straight_through,
    train_graph,
)
from quantize.sensitivity import measure

LEVEL_DISTANCES: Mapping[int, float] = {2: 0.9957, 3: 0.5860, 4: 0.3352}
"""Bits -> distance between levels, in standard deviations of the weights."""
WIDTHS: Mapping[int, tuple[int, ...]] = {2: (2,), 3: (2, 1), 4: (4,)}
"""Bits -> bits of the parts that sum to an integer, the highest first."""


class QBert(Qat):
    """Training with few bits for the weights in layers."""

    def check(self, model: PreTrainedModel) -> None:
        super().check(model)
        if model.config.num_hidden_layers == 0:
            raise ModelError(
                f"a {model.config.model_type!r} model has no layers, whose weights would have few "
                "bits. Export it, and quantize it with --scheme dynamic."
            )
        family_of(model)  # raises for unknown layers

    def write(self, context: QuantizationContext, target: Path) -> Written:
        start, config = start_of(context), context.config
        few_bit_tables = large_tables(start.context) if config.has_four_bit_tables else {}
        if config.has_four_bit_tables and not few_bit_tables:
            raise ModelError(
                f"{context.source.place} has no embedding table that can have {config.table_bits} "
                "bits: rows must be of an even width. Leave --table-bits out."
            )
        bits, sensitivity = allotted_bits(start)
        eight_bits = INTEGERS[context.target.weights]
        weights: dict[str, WeightRounding] = {
            path: LowBitWeight(bits[path], config.weight_groups)
            if path in bits
            else RoundedWeight(eight_bits)
            for path in start.paths.values()
        }
        in_four_bits = dict.fromkeys(
            map(path_of_table, few_bit_tables.values()), round_in_groups(config.block_size)
        )
        trained = train_graph(start, weights, {**start.tables, **in_four_bits}, target)
        by_node = {node: bits[path] for node, path in trained.paths.items() if path in bits}
        originals, scales = trained.model.originals(), {}
        for node in by_node:
            path = trained.paths[node]
            rounding = trained.model.weights[path]
            assert isinstance(rounding, LowBitWeight)
            scales[node] = rounding.scales(originals[path]).squeeze(1).double().cpu().numpy()
        written = write_with_ranges(
            trained.context, target, trained.ranges, [*few_bit_tables], scales
        )
        products = trained.context.inventory.products
        constants = {
            name_of_integers(each): by_node[each.node] for each in products if each.node in by_node
        }
        pack_constants(target, constants)
        if few_bit_tables:
            write_in_groups(target, [*few_bit_tables], config.block_size)
            written = replace(written, tables_of_4_bits=len({*few_bit_tables.values()}))
        return trained.report(replace(written, weight_bits=by_node, sensitivity=sensitivity))


def allotted_bits(start: Start) -> tuple[dict[str, int], SensitivityFindings | None]:
    """Return the bits of each weight in the layers, by its path, and the reasons.

    A shared weight has the bits of its most sensitive product.
    """
    context, config = start.context, start.context.config
    in_layers = {id(module) for layer in encoder_layers(start.model) for module in layer.modules()}
    nodes = [
        node
        for node, path in start.paths.items()
        if id(start.model.get_submodule(path)) in in_layers
    ]
    if config.sensitive_bits is None:
        return {start.paths[node]: config.weight_bits for node in nodes}, None
    fewest = LowBitWeight(config.weight_bits, config.weight_groups)

    def error(node: str, weight: torch.Tensor) -> float:
        return float((fewest.exported(weight) - weight).square().sum())

    found = measure(context, partial(write_dynamic, context), nodes, error)
    paths = [*dict.fromkeys(start.paths[node] for node in found.by_node)]
    sensitive = max(round(config.sensitive_share * len(paths)), 1)
    bits = dict.fromkeys(paths, config.weight_bits)
    return bits | dict.fromkeys(paths[:sensitive], config.sensitive_bits), found


class LowBitWeight(WeightRounding):
    """Rounds a weight (outputs, inputs) to a few levels; groups of outputs share a scale.

    Levels are evenly spaced and symmetric: odd multiples of half their distance, so that all of
    them are used and the integers fit into the 8 bits of the kernels. Their distance has the
    smallest squared error for normally distributed weights with the group's root mean square (Max
    1960, "Quantizing for minimum distortion", IRE Transactions on Information Theory 6, table II).

    Args:
        bits: a key of LEVEL_DISTANCES.
        groups: number of groups of consecutive outputs that share a scale; a product with fewer
            outputs has a scale for each.
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
        nearest_odd = 2 * (weight / (2 * scales)).floor() + 1
        return nearest_odd.clamp(-self.largest, self.largest) * scales

    def scales(self, weight: torch.Tensor) -> torch.Tensor:
        """Return half the distance between levels for each output: (outputs, 1)."""
        outputs = len(weight)
        groups = min(self.groups, outputs)
        group = torch.arange(outputs, device=weight.device) * groups // outputs
        sums = weight.new_zeros(groups).index_add(0, group, weight.square().mean(dim=1))
        deviations = (sums / group.bincount(minlength=groups)).sqrt()
        halves = LEVEL_DISTANCES[self.bits] / 2 * deviations
        return halves.clamp(min=LEAST_SCALE)[group].unsqueeze(1)


def round_in_groups(size: int) -> RowRounding:
    """Return a function that rounds looked-up rows like `in_groups` rounds the whole table."""

    def rounded(
        table: torch.nn.Embedding, numbers: torch.Tensor, rows: torch.Tensor
    ) -> torch.Tensor:
        distinct, places = numbers.unique(return_inverse=True)  # a text repeats tokens
        values = table.weight.detach()[distinct].cpu().numpy()
        integers, scales = in_groups(values, size)
        left = integers * scales.repeat(size, axis=1)[:, : values.shape[1]]
        return straight_through(rows, torch.from_numpy(left).to(rows)[places])

    return rounded


def pack_constants(graph: Path, bits: Mapping[str, int]) -> None:
    """Pack some integer constants of a graph, in its file.

    Args:
        graph: graph whose constants are odd 8-bit integers, symmetric around 0.
        bits: name of a constant -> bits of its integers, a key of WIDTHS. The largest absolute
            integer is 2**bits - 1.

    Raises:
        ModelError: a constant is missing, or has other integers.
    """
    model = onnx.load(graph)
    constants = constants_of(model)
    if missing := bits.keys() - constants.keys():
        raise ModelError(f"{graph} has no constants {', '.join(sorted(missing))} to pack.")
    packed = _Packed()
    for name, constant in constants.items():
        if name in bits:
            packed.add(name, numpy_helper.to_array(constant), bits[name])
            model.graph.initializer.remove(constant)
    model.graph.initializer.extend(packed.constants.values())
    replace_nodes(model, [*packed.nodes, *model.graph.node])
    save_graph(model, graph, MOST_MB)


class _Packed:
    """Packed constants, and the nodes that unpack them."""

    def __init__(self) -> None:
        self.constants: dict[str, onnx.TensorProto] = {}
        self.nodes: list[onnx.NodeProto] = []

    def add(self, name: str, integers: npt.NDArray[np.int8], bits: int) -> None:
        """Add the nodes that compute a tensor of integers."""
        if np.any(integers % 2 == 0) or np.abs(integers.astype(np.int64)).max() >= 2**bits:
            raise ModelError(f"{name} must have odd integers of {bits} bits.")
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
        """Add a part of integers, given their positions among the levels; return its tensor."""
        width, shift = WIDTHS[bits][place], sum(WIDTHS[bits][place + 1 :])
        part, in_byte = (positions >> shift) % 2**width, 8 // width
        shifts = np.arange(0, 8, width)
        # integers in bytes, the first one lowest; the last byte is padded with 0
        rows = np.pad(part, (0, -len(part) % in_byte)).reshape(-1, in_byte)
        packed = np.asarray((rows << shifts).sum(axis=1), dtype=np.uint8)
        # the integers of each byte: (256, integers a byte)
        added = 2 * (((np.arange(256)[:, None] >> shifts) % 2**width) << shift)
        least = 2**bits - 1 if place == 0 else 0
        stored = self._constant(f"{name}_bytes", packed)
        table = self._constant(f"unpacked_{bits}_bits_{place}", (added - least).astype(np.int8))
        numbers = self._node("Cast", f"{name}_numbers", stored, to=TensorProto.INT32)
        values, count = self._node("Gather", name, table, numbers), len(part)
        if count % in_byte == 0:
            return values
        ends = (self._constant("unpacked_first", [0]), self._constant(f"unpacked_{count}", [count]))
        return self._node("Slice", f"{values}_cut", self._row(values), *ends)

    def _sum(self, name: str, parts: Sequence[str]) -> str:
        """Add the sum of parts: ONNX Runtime adds 32-bit integers, but not 8-bit ones."""
        whole, *others = (
            self._node("Cast", f"{each}_wide", self._row(each), to=TensorProto.INT32)
            for each in parts
        )
        for place, each in enumerate(others, start=1):
            whole = self._node("Add", f"{name}{place}", whole, each)
        return self._node("Cast", name, whole, to=TensorProto.INT8)

    def _row(self, values: str) -> str:
        """Add a tensor reshaped to one row: parts have different numbers of integers per byte."""
        all_of_it = self._constant("unpacked_all", np.array([-1]))
        return self._node("Reshape", f"{values}_row", values, all_of_it)

    def _node(self, operator: str, name: str, *inputs: str, **attributes: Any) -> str:
        node = helper.make_node(operator, [*inputs], [name], name=f"{name}/unpack", **attributes)
        self.nodes.append(node)
        return name

    def _constant(self, name: str, value: npt.ArrayLike) -> str:
        self.constants[name] = numpy_helper.from_array(np.asarray(value), name)
        return name
