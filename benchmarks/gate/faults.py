"""FAULTS: what can go wrong with a candidate, each planted where it would sit.

A fault changes what the candidate reads (its tokenizer), what it predicts (its labels), the float
graph that it is made from, or the quantized graph. Each lists the variants and
tasks that it can be planted in: single texts have no token types to drop.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from tokenizers import normalizers

from benchmarks.gate.graph_faults import GRAPH_FAULTS, PlantGraph
from benchmarks.gate.product_faults import FAULTS as PRODUCT_FAULTS
from benchmarks.gate.product_faults import PlantProduct, change, exchange
from bertender.models.predictor import Classifier, Predictor
from bertender.text.batch import Batch, Example, Tokenize

__all__ = ["FAULTS", "Fault"]

CUT_TOKENS = 16
FLOAT, QUANTIZED = ("float32",), ("dynamic", "static-mse")
BOTH = (*FLOAT, *QUANTIZED)
OF_PAIRS = {"token types dropped": frozenset({"token_type_ids"})}
"""Faults of graphs that read pairs, and the inputs that they are about."""
OF_SCHEME = {"dynamic": "dynamic", "static": "static-mse"}


@dataclass(frozen=True)
class Fault:
    """A row of FAULTS; exactly one of the ways to plant it is there."""

    variants: tuple[str, ...]
    classifier: Callable[[Classifier], Classifier] | None = None
    graph: PlantGraph | None = None
    """Changes the float graph, before anything is quantized."""
    product: PlantProduct | None = None
    """Changes the quantized graph, at one product in the middle."""
    saturates: bool = False
    """The graph is sound, and the CPU adds pairs of products in 16 bits."""
    pairs_only: bool = False
    reads: frozenset[str] = frozenset()
    """Inputs of the graph that it is about."""


@dataclass(frozen=True)
class _Permuted:
    """A model whose labels have moved by one place."""

    predictor: Predictor

    def logits(self, batch: Batch) -> Any:
        return np.roll(self.predictor.logits(batch), 1, axis=1)


def _permuted(sound: Classifier) -> Classifier:
    return replace(sound, predictor=_Permuted(sound.predictor))


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
    weights = [
        name
        for node in model.graph.node
        for name in node.input[1:2]
        if node.op_type in ("MatMul", "Gemm") and len(floats.get(name, ())) == 2
    ]
    first = weights[len(weights) // 2]
    other = next(name for name in weights if name != first and floats[name] == floats[first])
    return first, other


def _zero_weight(model: onnx.ModelProto) -> None:
    first, _ = _middle(model)
    change(_constants(model), first, np.zeros_like)


def _swap_weights(model: onnx.ModelProto) -> None:
    exchange(_constants(model), *_middle(model))


def _constants(model: onnx.ModelProto) -> dict[str, onnx.TensorProto]:
    return {item.name: item for item in model.graph.initializer}


FAULTS: Mapping[str, Fault] = {
    "labels permuted": Fault(BOTH, classifier=_permuted),
    "truncated at 16 tokens": Fault(BOTH, classifier=_cut),
    "tokenizer of another case": Fault(BOTH, classifier=_cased),
    "texts of a pair swapped": Fault(BOTH, classifier=_turned, pairs_only=True),
    **{
        name: Fault(
            BOTH, graph=plant, pairs_only=name in OF_PAIRS, reads=OF_PAIRS.get(name, frozenset())
        )
        for name, plant in GRAPH_FAULTS.items()
    },
    "weights of a layer zeroed, before": Fault(FLOAT, graph=_zero_weight),
    "weights of two layers swapped, before": Fault(FLOAT, graph=_swap_weights),
    **{
        name: Fault(tuple(OF_SCHEME[scheme] for scheme in schemes), product=plant)
        for name, (plant, schemes) in PRODUCT_FAULTS.items()
    },
    "sums saturate in 16 bits": Fault(("dynamic",), saturates=True),
}
"""Fault -> how it is planted."""
