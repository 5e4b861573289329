"""FAULTS: faults of a candidate of the gate, each planted in its place.

A fault changes what the candidate reads (its tokenizer), what it predicts (its labels), the float
graph that it is made from, or the quantized graph. They are planted by the benchmark of the gate,
and by the tests of the checks that must find them.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper
from tokenizers import normalizers

from bertender.models.classifier import Classifier
from bertender.models.graphs import save_graph
from bertender.models.onnx_session import MOST_MB
from bertender.models.runtimes import Predictor
from bertender.problems.problem import Problem
from bertender.text.batch import Batch, Example, Tokenize
from bertender.text.windows import NO_ANSWER
from quantize.graph import Product, in_float64, nodes_between, run_subgraph

Constants = Mapping[str, onnx.TensorProto]
PlantProduct = Callable[[onnx.ModelProto, Constants, Product, Product], None]
"""(graph, its constants, the product, another of the same shape)"""


def planted(
    graph: Path, plant: PlantProduct, product: Product, other: Product, target: Path
) -> Path:
    """Write a graph with a fault at `target`."""
    model = onnx.load(graph)
    plant(model, _constants(model), product, other)
    save_graph(model, target, MOST_MB)
    return target


def _constants(model: onnx.ModelProto) -> dict[str, onnx.TensorProto]:
    return {item.name: item for item in model.graph.initializer}


def change(constants: Constants, name: str, function: Callable[[Any], Any]) -> None:
    before = numpy_helper.to_array(constants[name])
    after = np.asarray(function(before)).astype(before.dtype)
    constants[name].CopyFrom(numpy_helper.from_array(after, name))


def exchange(constants: Constants, first: str, second: str) -> None:
    values = [numpy_helper.to_array(constants[name]) for name in (first, second)]
    change(constants, first, lambda _: values[1])
    change(constants, second, lambda _: values[0])


def changed_weight(part: str, function: Callable[[Any], Any]) -> PlantProduct:
    """Return what changes the integers, the scale or the zero point of a weight."""
    return lambda model, constants, product, other: change(
        constants, f"{product.weight}_{part}", function
    )


def weight_scale(factor: float) -> PlantProduct:
    return changed_weight("scale", lambda scale: scale * factor)


def swapped(model: onnx.ModelProto, constants: Constants, product: Product, other: Product) -> None:
    for suffix in ("quantized", "scale"):
        exchange(constants, *(f"{each.weight}_{suffix}" for each in (product, other)))


def halved_activation_scale(
    model: onnx.ModelProto, constants: Constants, product: Product, other: Product
) -> None:
    """Clip the outer halves of the range."""
    change(constants, f"{product.activation}_scale", lambda scale: scale / 2)


def activation_zero_point(
    model: onnx.ModelProto, constants: Constants, product: Product, other: Product
) -> None:
    """Other integers stand for 0 when they are read than when they were written."""
    name = f"{product.activation}_zero_point"
    wrong = numpy_helper.to_array(constants[name])
    wrong = np.asarray(wrong + 8 if wrong < 200 else wrong - 8).astype(wrong.dtype)
    model.graph.initializer.append(numpy_helper.from_array(wrong, f"{name}_wrong"))
    for node in model.graph.node:
        if node.op_type == "DequantizeLinear" and name in node.input:
            node.input[2] = f"{name}_wrong"


EVERYWHERE = ("dynamic", "static")
PRODUCT_FAULTS: Mapping[str, tuple[PlantProduct, tuple[str, ...]]] = {
    "weight scale x1.1": (weight_scale(1.1), EVERYWHERE),
    "weight scale x1.5": (weight_scale(1.5), EVERYWHERE),
    "weight scale x2": (weight_scale(2.0), EVERYWHERE),
    "weight scale /2": (weight_scale(0.5), EVERYWHERE),
    "weight zero point off by 8": (changed_weight("zero_point", lambda zero: zero + 8), EVERYWHERE),
    "weights zeroed": (changed_weight("quantized", np.zeros_like), EVERYWHERE),
    "weights of two layers swapped": (swapped, EVERYWHERE),
    "activation scale /2": (halved_activation_scale, ("static",)),
    "activation zero point off by 8": (activation_zero_point, ("static",)),
}
"""Fault -> how it is planted, and in graphs of which schemes."""


PlantGraph = Callable[[onnx.ModelProto], None]


def _nodes(model: onnx.ModelProto, *operators: str) -> list[onnx.NodeProto]:
    return [node for node in model.graph.node if node.op_type in operators]


def _insert(model: onnx.ModelProto, before: onnx.NodeProto, made: list[onnx.NodeProto]) -> None:
    """Put nodes in front of another, which is changed already: it is copied here."""
    nodes = [*model.graph.node]
    place = nodes.index(before)
    del model.graph.node[:]
    model.graph.node.extend([*nodes[:place], *made, *nodes[place:]])


def _read_instead(model: onnx.ModelProto, old: str, new: str) -> None:
    for node in model.graph.node:
        node.input[:] = [new if name == old else name for name in node.input]


def _constant(model: onnx.ModelProto, name: str, value: float, kind: type = np.float32) -> str:
    model.graph.initializer.append(numpy_helper.from_array(np.array(value, dtype=kind), name))
    return name


def ignore_mask(model: onnx.ModelProto) -> None:
    """Attend to padding as to text."""
    _read_instead(model, "attention_mask", "fault/ones")
    made = [
        helper.make_node("Equal", ["attention_mask", "attention_mask"], ["fault/true"]),
        helper.make_node("Cast", ["fault/true"], ["fault/ones"], to=onnx.TensorProto.INT64),
    ]
    _insert(model, model.graph.node[0], made)


def drop_token_types(model: onnx.ModelProto) -> None:
    """Read both texts of a pair as the first."""
    _read_instead(model, "token_type_ids", "fault/zeros")
    made = [helper.make_node("Sub", ["token_type_ids", "token_type_ids"], ["fault/zeros"])]
    _insert(model, model.graph.node[0], made)


def shift_positions(model: onnx.ModelProto) -> None:
    """Give each token the position of the one behind it."""
    lookup = next(node for node in _nodes(model, "Gather") if "position" in node.input[0])
    one = _constant(model, "fault/one", 1, np.int64)
    made = [helper.make_node("Add", [lookup.input[1], one], ["fault/shifted"])]
    lookup.input[1] = "fault/shifted"
    _insert(model, lookup, made)


def approximate_gelu(model: onnx.ModelProto) -> None:
    """Compute GELU by the formula with tanh."""
    while nodes := _nodes(model, "Erf"):
        node = nodes[0]
        stem = f"fault/{node.output[0]}"
        root = _constant(model, f"{stem}/root", math.sqrt(2))
        cubed = _constant(model, f"{stem}/cubic", 0.044715)
        slope = _constant(model, f"{stem}/slope", math.sqrt(2 / math.pi))
        made = [
            helper.make_node("Mul", [node.input[0], root], [f"{stem}/x"]),
            helper.make_node("Mul", [f"{stem}/x", f"{stem}/x"], [f"{stem}/x2"]),
            helper.make_node("Mul", [f"{stem}/x2", f"{stem}/x"], [f"{stem}/x3"]),
            helper.make_node("Mul", [f"{stem}/x3", cubed], [f"{stem}/bent"]),
            helper.make_node("Add", [f"{stem}/x", f"{stem}/bent"], [f"{stem}/sum"]),
            helper.make_node("Mul", [f"{stem}/sum", slope], [f"{stem}/inner"]),
        ]
        node.op_type = "Tanh"
        node.input[0] = f"{stem}/inner"
        _insert(model, node, made)


def attend_by_queries(model: onnx.ModelProto) -> None:
    """Multiply queries by queries, of the first layer, and leave the keys unread."""
    constants = _constants(model)
    products = _nodes(model, "MatMul")
    scores = next(node for node in products if constants.keys().isdisjoint(node.input))
    turned = "fault/queries"
    made = [helper.make_node("Transpose", [scores.input[0]], [turned], perm=[0, 1, 3, 2])]
    scores.input[1] = turned
    _insert(model, scores, made)


def raise_bias(model: onnx.ModelProto) -> None:
    """Add 0.1 to each number of a feed-forward bias in the middle, for all texts alike.

    Feed-forward biases are the longest. One of keys would be no fault: it adds the same to all
    scores of a query.
    """
    sizes = {item.name: item.dims[0] for item in model.graph.initializer if len(item.dims) == 1}
    sums = _nodes(model, "Add", "Gemm")
    biases = [name for node in sums for name in node.input if name in sizes]
    longest = [name for name in biases if sizes[name] == max(map(sizes.__getitem__, biases))]
    change(_constants(model), longest[len(longest) // 2], lambda bias: bias + 0.1)


GRAPH_FAULTS: Mapping[str, PlantGraph] = {
    "mask ignored": ignore_mask,
    "token types dropped": drop_token_types,
    "positions off by one": shift_positions,
    "GELU by tanh": approximate_gelu,
    "scores without keys": attend_by_queries,
    "bias of a layer raised": raise_bias,
}


CUT_TOKENS = 16
FLOAT, QUANTIZED = ("float32",), ("dynamic", "static-mse")
BOTH = (*FLOAT, *QUANTIZED)
OF_SCHEME = {"dynamic": "dynamic", "static": "static-mse"}


@dataclass(frozen=True)
class Fault:
    """A row of FAULTS; exactly one of the ways to plant it is there."""

    group: str
    """The row of the table that counts it."""
    variants: tuple[str, ...]
    classifier: Callable[[Classifier], Classifier] | None = None
    graph: PlantGraph | None = None
    """Changes the float graph, before anything is quantized."""
    product: PlantProduct | None = None
    """Changes the quantized graph, at one product in the middle."""
    saturates: bool = False
    """The graph is sound, and the CPU adds pairs of products in 16 bits."""
    pairs_only: bool = False
    reads: str | None = None
    """The input of the graph that it is about; None for any."""
    problem: str | None = None
    """The problem type whose answers it is about; None for all."""


Answers = Callable[[Any, Batch], Any]
"""(logits, the batch) -> what a faulty model gives"""


@dataclass(frozen=True)
class _Changed:
    """A model with a fault in its answers."""

    predictor: Predictor
    change: Answers

    def logits(self, batch: Batch) -> Any:
        return self.change(self.predictor.logits(batch), batch)


def _rolled(axis: int) -> Answers:
    return lambda logits, batch: np.roll(logits, 1, axis=axis)


def _rolled_in_examples(logits: Any, batch: Batch) -> Any:
    return np.concatenate([np.roll(own, 1, axis=0) for own in batch.by_example(logits)])


def _late_ends(logits: Any, batch: Batch) -> Any:
    return np.stack([logits[..., 0], np.roll(logits[..., 1], 1, axis=1)], -1)


def _likely_last(logits: Any, batch: Batch) -> Any:
    return logits + 9 * (np.arange(logits.shape[-1]) == logits.shape[-1] - 1)


def _likely_without_answer(logits: Any, batch: Batch) -> Any:
    return logits + 9 * np.array(batch.words == NO_ANSWER)[..., None]


ONE_LABEL, SEVERAL_HEADS = "single_label_classification", "several heads"
"""The second stands for the problem type of any model with several heads."""
ANSWER_FAULTS: Mapping[str, tuple[str, Answers]] = {
    "labels permuted": (ONE_LABEL, _rolled(-1)),
    "labels of a set permuted": ("multi_label_classification", _rolled(-1)),
    "thresholds 1 too low": ("multi_label_classification", lambda logits, batch: logits + 1),
    "numbers 1.1 times as large": ("regression", lambda logits, batch: logits * 1.1),
    "tags one token late": ("token_classification", _rolled(1)),
    "dimensions one place on": ("sentence_embedding", _rolled(-1)),
    "vectors twice as long": ("sentence_embedding", lambda logits, batch: 2 * logits),
    "answers one token late": ("question_answering", _rolled(1)),
    "ends one token late": ("question_answering", _late_ends),
    "no answer 9 logits too likely": ("question_answering", _likely_without_answer),
    "labels of all heads permuted": (SEVERAL_HEADS, _rolled(-1)),
    "last label of the last head 9 logits too likely": (SEVERAL_HEADS, _likely_last),
    "choices permuted": ("multiple_choice", _rolled_in_examples),
    "passages permuted": ("ranking", _rolled_in_examples),
    "scores negated": ("ranking", lambda logits, batch: -logits),
}
"""Fault -> the problem type whose answers it is about, and what it makes of logits."""


def kind_of(problem: Problem[Any]) -> str:
    """Return what ANSWER_FAULTS calls a kind of problem."""
    return SEVERAL_HEADS if problem.heads else problem.name


def with_answers(sound: Classifier, name: str) -> Classifier:
    """Plant a row of ANSWER_FAULTS."""
    return replace(sound, predictor=_Changed(sound.predictor, ANSWER_FAULTS[name][1]))


def _cut(sound: Classifier) -> Classifier:
    assert isinstance(sound.encode, Tokenize)
    return replace(sound, encode=Tokenize(sound.encode.tokenizer, CUT_TOKENS))


def _cased(sound: Classifier) -> Classifier:
    """Leave capitals and accents as they are, which the vocabulary does not know."""
    assert isinstance(sound.encode, Tokenize)
    tokenizer = copy.deepcopy(sound.encode.tokenizer)
    tokenizer.backend_tokenizer.normalizer = normalizers.BertNormalizer(
        lowercase=False, strip_accents=False
    )
    return replace(sound, encode=Tokenize(tokenizer, sound.encode.max_length))


class _SecondFirst(Tokenize):
    """Reads the second text of a pair first."""

    def __call__(self, examples: Sequence[Example]) -> Batch:
        turned = super().__call__([example[::-1] for example in examples])
        return Batch(tuple(examples), turned.arrays)


def _turned(sound: Classifier) -> Classifier:
    assert isinstance(sound.encode, Tokenize)
    return replace(sound, encode=_SecondFirst(sound.encode.tokenizer, sound.encode.max_length))


def _middle(model: onnx.ModelProto) -> tuple[str, str]:
    """Return the names of two weights of one shape, in the middle of a graph."""
    floats = {name: tuple(item.dims) for name, item in _constants(model).items()}
    seconds = [name for node in _nodes(model, "MatMul", "Gemm") for name in node.input[1:2]]
    weights = [name for name in seconds if len(floats.get(name, ())) == 2]
    first = weights[len(weights) // 2]
    other = next(name for name in weights if name != first and floats[name] == floats[first])
    return first, other


def _zero_weight(model: onnx.ModelProto) -> None:
    first, _ = _middle(model)
    change(_constants(model), first, np.zeros_like)


def _swap_weights(model: onnx.ModelProto) -> None:
    exchange(_constants(model), *_middle(model))


FAULTS: Mapping[str, Fault] = {
    **{
        name: Fault(
            "labels permuted" if problem == ONE_LABEL else "wrong numbers, sets, tags",
            BOTH,
            classifier=partial(with_answers, name=name),
            problem=problem,
        )
        for name, (problem, _) in ANSWER_FAULTS.items()
    },
    "truncated at 16 tokens": Fault("other texts read", BOTH, classifier=_cut),
    "tokenizer of another case": Fault("other texts read", BOTH, classifier=_cased),
    "texts of a pair swapped": Fault("other texts read", BOTH, classifier=_turned, pairs_only=True),
    **{name: Fault("wrong graph", BOTH, graph=plant) for name, plant in GRAPH_FAULTS.items()},
    "token types dropped": Fault(
        "wrong graph", BOTH, graph=drop_token_types, pairs_only=True, reads="token_type_ids"
    ),
    "weights of a layer zeroed, before": Fault("wrong float weights", FLOAT, graph=_zero_weight),
    "weights of two layers swapped, before": Fault(
        "wrong float weights", FLOAT, graph=_swap_weights
    ),
    **{
        name: Fault(
            "wrong 8-bit weights" if schemes == EVERYWHERE else "wrong activation scales",
            tuple(OF_SCHEME[scheme] for scheme in schemes),
            product=plant,
        )
        for name, (plant, schemes) in PRODUCT_FAULTS.items()
    },
    "sums saturate in 16 bits": Fault("sums saturate in 16 bits", ("dynamic",), saturates=True),
}
"""Fault -> how it is planted."""


FloatArray = npt.NDArray[np.float32]
LOWEST, HIGHEST = -(2**15), 2**15 - 1


def saturating(cut: onnx.ModelProto, values: FloatArray) -> list[FloatArray]:
    """Run a cut of dynamic products, as `run_subgraph` does, on such a CPU."""
    right = run_subgraph(in_float64(cut), values, optimize=False)
    ends = [output.name for output in cut.graph.output]
    lost = [_lost(cut, end, values) for end in ends]
    return [exactly - loss for exactly, loss in zip(right, lost, strict=True)]


def _lost(cut: onnx.ModelProto, end: str, values: FloatArray) -> Any:
    """Return the loss of a product's outputs to saturation."""
    nodes = nodes_between(cut, [cut.graph.input[0].name], [end])
    (product,) = (node for node in nodes if node.op_type == "MatMulInteger")
    (scales,) = (node for node in nodes if node.name.endswith("_quant_scales_mul"))
    inner = onnx.ModelProto()
    inner.CopyFrom(cut)
    del inner.graph.output[:]
    inner.graph.output.extend(
        onnx.ValueInfoProto(name=name) for name in (product.input[0], scales.output[0])
    )
    integers, scale = run_subgraph(inner, values, optimize=False)
    weight = numpy_helper.to_array(_constants(cut)[product.input[1]])
    return lost_of_sums(integers.astype(np.int64), weight.astype(np.int64)) * scale


def lost_of_sums(
    integers: npt.NDArray[np.int64], weight: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Return the loss of pairs over 16 bits: integers (rows, inputs), weight (inputs, outputs)."""
    lost = np.zeros((len(integers), weight.shape[1]), dtype=np.int64)
    for place in range(0, len(weight), 2):
        pair = integers[:, place : place + 2] @ weight[place : place + 2]
        lost += pair - np.clip(pair, LOWEST, HIGHEST)
    return lost
