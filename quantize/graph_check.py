"""Checks of a quantized graph besides its products: kernels, float nodes, fused attention.

The float graph runs again on the outputs of the quantized products and tables: each part between
two products is compared separately, so rounding errors do not grow from layer to layer. This
locates an ignored mask, a position off by one, dropped token types or another GELU, which 8-bit
errors would hide in the logits.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from bertender.core.artifact import Artifact, lineage
from bertender.core.config import Table
from bertender.core.errors import GateError, ModelError, UnsoundGraphError
from bertender.core.files import scratch_folder
from bertender.models.classifier import onnx_file, problem_of
from bertender.models.onnx_session import ONNX_NAME, open_session
from bertender.models.runtimes import DEFAULT_RUNTIME, RUNTIMES, compiled
from bertender.tasks.task import Task
from bertender.text.tokenizer import load_tokenizer
from quantize.attention import in_plain_form
from quantize.context import Batches
from quantize.graph import (
    FOUR_BIT_LOOKUP,
    FUSED_ATTENTION,
    PRODUCTS_OF_ATTENTION,
    Array,
    makers_of,
    nodes_between,
    open_watched,
    replace_nodes,
    run_subgraph,
    take_inventory,
)
from quantize.product_check import NO_RANGES, compare_products, find_parts, sample_rows
from quantize.smoothing import smoothed_like

PROBED_TEXTS = 64
"""Training texts whose activations are used to check each product."""
TOLERATED = 1e-5
"""Largest `relative_difference` of tensors without rounding. A different order of sums between two
products of a 6 x 384 encoder changes them by at most 3e-7."""
SHOWN = 5
NOT_EXECUTED = frozenset({"Const", "Input", "Output"})
MULTIPLIES = ("FullyConnected", "MatMul")
"""OpenVINO's operators for matrix products; their precision tells floats from integers."""


class Kernels:
    """The operators of a quantized graph as ONNX Runtime runs it, after its fusions."""

    integer_products: Mapping[str, int] = {
        "DynamicQuantizeLSTM": 1,
        "DynamicQuantizeMatMul": 1,
        "MatMulInteger": 1,
        "MatMulIntegerToFloat": 1,
        "MatMulNBits": 1,
        FUSED_ATTENTION: PRODUCTS_OF_ATTENTION,
        "QGemm": 1,
        "QLinearMatMul": 1,
    }
    """Operators with integer weights -> products in each"""

    def operators(self, graph: Path) -> Mapping[str, int]:
        """Count the operators of a graph as run on this CPU, after all fusions."""
        with scratch_folder() as folder:
            optimized = folder / ONNX_NAME
            open_session(graph, optimized=optimized)
            nodes = onnx.load(optimized, load_external_data=False).graph.node
        return Counter(node.op_type for node in nodes)

    def run(self, part: onnx.ModelProto, values: Array) -> list[Array]:
        """Return a sub-graph's outputs for values of its input."""
        return run_subgraph(part, values)


class OpenVinoKernels(Kernels):
    """Products have the precision of their weights after the name, as in "FullyConnected u8"."""

    integer_products: Mapping[str, int] = {
        f"{operator} {integers}": 1
        for operator in MULTIPLIES
        for integers in ("u8", "i8", "u4", "i4")
    }

    def __init__(self, float_type: str) -> None:
        self.float_type = float_type

    def operators(self, graph: Path) -> Mapping[str, int]:
        counts: Counter[str] = Counter()
        for node in compiled(graph, float_type=self.float_type).get_runtime_model().get_ops():
            facts = node.get_rt_info()
            name: str = facts["layerType"].astype(str)
            if name in MULTIPLIES:
                name += f" {facts['runtimePrecision'].astype(str)}"
            if name not in NOT_EXECUTED:
                counts[name] += 1
        return counts

    def run(self, part: onnx.ModelProto, values: Array) -> list[Array]:
        # in float32: bfloat16 would round the integer sums to check
        outputs = compiled(part.SerializeToString())({part.graph.input[0].name: values})
        return [np.asarray(each) for each in outputs.values()]


KERNELS = Table(
    "runtime",
    {
        "onnxruntime": Kernels(),
        "openvino": OpenVinoKernels("f32"),
        "openvino-bf16": OpenVinoKernels("bf16"),
    },
)


def operators(graph: Path, runtime: str = DEFAULT_RUNTIME) -> dict[str, int]:
    """Count the operators of a graph as a runtime runs it on this CPU, after its fusions."""
    return dict(sorted(KERNELS[runtime].operators(graph).items()))


def check_kernels(actual: dict[str, int], wanted: int, runtime: str = DEFAULT_RUNTIME) -> int:
    """Return how many products run in integers; raise GateError if fewer than were quantized.

    Args:
        actual: counts of `operators`.
        wanted: number of quantized products.
        runtime: runtime of the counts.
    """
    products, title = KERNELS[runtime].integer_products, RUNTIMES[runtime].title
    running = sum(count * products.get(name, 0) for name, count in actual.items())
    if running < wanted:
        raise GateError(
            f"{wanted} products were quantized, and {title} runs only {running} of them in "
            "integers. The others would be turned back into floats for each batch, slower than "
            "before. Its version may lack a fusion: install the one of constraints.txt, or use "
            "another --scheme."
        )
    return running


@dataclass(frozen=True)
class TensorDifference:
    """A tensor of a quantized graph, and its difference from the expected one."""

    tensor: str
    difference: float
    """Relative root mean square; the largest over batches."""

    @property
    def is_tolerated(self) -> bool:
        return self.difference <= TOLERATED


def largest(differences: Iterable[tuple[str, float]]) -> tuple[TensorDifference, ...]:
    """Return the largest difference of each tensor; NaN counts as the largest."""
    worst: dict[str, float] = {}
    for name, difference in differences:
        worst[name] = float(np.maximum(worst.get(name, 0.0), difference))
    return tuple(TensorDifference(name, difference) for name, difference in worst.items())


def run_with(session: Any, known: Mapping[str, Array], names: Iterable[str]) -> dict[str, Array]:
    """Return some tensors of a graph by name, reusing known ones."""
    asked = [name for name in dict.fromkeys(names) if name not in known]
    inputs = {node.name: known[node.name] for node in session.get_inputs()}
    return {**known, **dict(zip(asked, session.run(asked, inputs), strict=True))}


def relative_difference(actual: Array, wanted: Array) -> float:
    """Return the root mean square of the differences, relative to that of the values."""
    actual, wanted = actual.astype(np.float64), wanted.astype(np.float64)
    size = float(np.sqrt(np.square(wanted).mean()))
    return float(np.sqrt(np.square(actual - wanted).mean())) / (size or 1.0)


@dataclass(frozen=True)
class _FloatNodes:
    """The float graph without its quantized nodes, whose outputs become inputs."""

    model: onnx.ModelProto
    produced: tuple[str, ...]
    """Outputs of the quantized nodes."""
    asked: Mapping[str, str]
    """Inputs of the quantized nodes, and the graph's outputs: name here -> name in the other
    graph."""


def compare_float_nodes(
    float_graph: Path, quantized_graph: Path, batches: Batches
) -> tuple[TensorDifference, ...]:
    """Compare the tensors between the quantized parts of a graph with the float graph.

    Args:
        float_graph: graph before quantization.
        quantized_graph: graph of a scheme; tensors have their names in the float graph.
        batches: real texts, padded to each batch's longest.
    """
    floats = _float_nodes(float_graph, onnx.load(quantized_graph, load_external_data=False))
    names = (*floats.produced, *floats.asked.values())
    with scratch_folder() as folder:
        path = folder / "float.onnx"
        onnx.save(floats.model, path, save_as_external_data=True)  # for more than 2 GB too
        alone, whole = open_session(path), open_watched(quantized_graph, names, folder)

        def differences() -> Iterator[tuple[str, float]]:
            for batch in itertools.chain(batches, [batches.of_two_lengths()]):
                values = run_with(whole, batch.arrays, names)
                produced = {name: values[name] for name in floats.produced}
                wanted = run_with(alone, {**batch.arrays, **produced}, floats.asked)
                for name, other in floats.asked.items():
                    yield name, relative_difference(values[other], wanted[name])

        return largest(differences())


def check_float_nodes(findings: Sequence[TensorDifference]) -> None:
    """Raise GateError if tensors between the products differ from the float graph."""
    beyond = [each for each in findings if not each.is_tolerated]
    if beyond:
        listed = "; ".join(f"{each.tensor}: {each.difference:.2g}" for each in beyond[:SHOWN])
        raise GateError(
            f"{len(beyond)} of {len(findings)} tensors between quantized products differ from the "
            f"float graph by more than {TOLERATED:g} of their size. {listed}. More than the "
            "products was changed: quantize the graph of `bertender export` again."
        )


def _float_nodes(float_graph: Path, quantized: onnx.ModelProto) -> _FloatNodes:
    """Cut the quantized parts out of a float graph.

    Raises:
        ModelError: the quantized graph lacks a tensor: it is from another float graph.
    """
    inventory, floats = take_inventory(float_graph), onnx.load(float_graph)
    # the weight of a product of constants may belong to a quantized product
    products = (each.node for each in (*inventory.products, *inventory.of_constants))
    quantizable = {*products, *inventory.tables, *inventory.lstms}
    same = {*_signatures(quantized)}
    changed = [
        node
        for node, signature in zip(floats.graph.node, _signatures(floats), strict=True)
        if node.name in quantizable and signature not in same
    ]
    produced = tuple(dict.fromkeys(name for node in changed for name in node.output if name))
    asked = {output.name: output.name for output in floats.graph.output}
    makers = makers_of(quantized)
    for node in changed:
        asked |= {name: name for name in node.input if name}
        if node.op_type == "Gather":  # the quantized look-up may have other row indices
            maker = makers.get(node.output[0])
            while maker is not None and maker.op_type not in ("Gather", FOUR_BIT_LOOKUP):
                maker = makers.get(maker.input[0])
            asked[node.input[1]] = (maker or node).input[1]
    given = {item.name for item in floats.graph.initializer} | {*produced}
    asked = {name: other for name, other in asked.items() if name not in given}
    known = {entry.name for entry in quantized.graph.input} | makers.keys()
    if lacking := [name for name in (*produced, *asked.values()) if name not in known]:
        raise ModelError(
            f"the quantized graph lacks the tensor {lacking[0]!r} of the float graph "
            f"({len(lacking)} are missing). Give the float graph that it was made from."
        )
    names, inputs = {node.name for node in changed}, {entry.name for entry in floats.graph.input}
    replace_nodes(floats, [node for node in floats.graph.node if node.name not in names])
    floats.graph.input.extend(
        helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in produced
    )
    del floats.graph.output[:]
    floats.graph.output.extend(
        onnx.ValueInfoProto(name=name) for name in asked if name not in inputs
    )
    del floats.graph.value_info[:]
    return _FloatNodes(floats, produced, asked)


def _signatures(model: onnx.ModelProto) -> Iterator[tuple[Any, ...]]:
    """Yield each node's inputs, and those among them that are constants.

    A weight shared with another product is computed in the quantized graph, under its old name.
    """
    constants = {item.name for item in model.graph.initializer}
    for node in model.graph.node:
        yield node.name, node.op_type, *((name, name in constants) for name in node.input)


def compare_attentions(
    plain_graph: Path, graph: Path, batches: Batches
) -> tuple[TensorDifference, ...]:
    """Compare each fused attention with the same attention in standard ONNX operators.

    Each operator runs separately, on the activation of the plain graph. Both multiply the same
    integers; only the order of float sums differs.

    Args:
        plain_graph: graph from `in_plain_form`.
        graph: graph to be served; without fused attentions there is nothing to compare.
        batches: real texts, padded to each batch's longest.
    """
    stored = onnx.load(graph, load_external_data=False)
    makers = makers_of(stored)
    activations = {
        node.output[0]: makers[node.input[0]].input[0]
        for node in stored.graph.node
        if node.op_type == FUSED_ATTENTION
    }
    if not activations:
        return ()
    operators = _operators_alone(onnx.load(graph), activations)
    names = (*activations, *activations.values())
    with scratch_folder() as folder:
        plain = open_watched(plain_graph, names, folder)
        alone = open_session(operators.SerializeToString())

        def differences() -> Iterator[tuple[str, float]]:
            for batch in itertools.chain(batches, [batches.of_two_lengths()]):
                wanted = run_with(plain, batch.arrays, names)
                known = {name: array for name, array in wanted.items() if name not in activations}
                for name, actual in run_with(alone, known, activations).items():
                    if name in activations:
                        yield name, relative_difference(actual, wanted[name])

        return largest(differences())


def check_attentions(findings: Sequence[TensorDifference]) -> None:
    """Raise UnsoundGraphError if a fused attention is wrong, which no other scheme fixes."""
    beyond = [each for each in findings if not each.is_tolerated]
    if beyond:
        worst = max(beyond, key=lambda each: each.difference)
        raise UnsoundGraphError(
            f"{len(beyond)} of {len(findings)} fused attentions are wrong: {worst.tensor} has a "
            f"relative difference of {worst.difference:.2g}, allowed is {TOLERATED:g}. Leave "
            "--fused-attention out."
        )


def _operators_alone(model: onnx.ModelProto, activations: Mapping[str, str]) -> onnx.ModelProto:
    """Return a graph with only the fused operators, whose inputs are their activations."""
    starts = dict.fromkeys(activations.values())
    inputs = list(model.graph.input)
    nodes = nodes_between(model, [*starts, *(each.name for each in inputs)], [*activations])
    read = {name for node in nodes for name in node.input}
    made = helper.make_graph(
        nodes,
        "attentions",
        [each for each in inputs if each.name in read]
        + [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in starts],
        [onnx.ValueInfoProto(name=name) for name in activations],
        [each for each in model.graph.initializer if each.name in read],
    )
    return helper.make_model(made, opset_imports=model.opset_import, ir_version=model.ir_version)


def float_source(reference: Artifact, candidate: Artifact) -> Artifact | None:
    """Return the float graph that a candidate was quantized from; None if it is missing.

    This is the reference itself, or an export of it among the candidate's ancestors.
    """
    if candidate.card.kind != "onnx" or candidate.card.stage != "quantize":
        return None
    made_of = [each for each in lineage(candidate) if isinstance(each, Artifact)]
    digests = {each.digest for each in made_of}
    floats = [
        each for each in made_of if each.card.kind == "onnx" and each.card.precision == "float32"
    ]
    return floats[0] if floats and reference.digest in digests else None


def failures_if_quantized(
    reference: Artifact, candidate: Artifact, task: Task
) -> tuple[str, ...] | None:
    """Return the faults of a quantized graph relative to its float graph.

    None without such a graph: the artifact is not quantized, or was made from another graph than
    the reference's. Logits alone do not reveal a scale that is a tenth too large in one of forty
    products.
    """
    floats = float_source(reference, candidate)
    return None if floats is None else graph_failures(floats, candidate, task)


def graph_failures(floats: Artifact, candidate: Artifact, task: Task) -> tuple[str, ...]:
    """Return each product, table or tensor in between that differs from the float graph.

    Args:
        floats: the candidate's `float_source`.
        candidate: a quantized graph.
        task: task whose training texts are used.
    """
    problem = problem_of(floats)
    encode = problem.encoder(load_tokenizer(floats.path))
    texts = Batches(encode, task.calibration.examples[:PROBED_TEXTS], "check products", problem)
    quantization = candidate.card.findings.quantization
    ranges = quantization.ranges if quantization else NO_RANGES
    graph = onnx_file(candidate)
    with scratch_folder() as folder:
        float_graph = smoothed_like(onnx_file(floats), graph, folder)
        plain = in_plain_form(float_graph, graph, folder)
        groups = find_parts(float_graph, plain)
        products = compare_products(groups, sample_rows(plain, groups, texts), ranges)
        between = compare_float_nodes(float_graph, plain, texts)
        attentions = compare_attentions(plain, graph, texts)
    off = {
        **{f"before {each.tensor}": each for each in between},
        **{f"fused attention {each.tensor}": each for each in attentions},
    }
    return (
        *(f"product {each.node}: {', '.join(each.failures)}" for each in products if each.failures),
        *(
            f"{place}: off by {each.difference:.2g}, allowed at most {TOLERATED:g}"
            for place, each in off.items()
            if not each.is_tolerated
        ),
    )
