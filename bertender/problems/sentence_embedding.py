"""SENTENCE_EMBEDDING: a text has a vector, whose cosine with others is their similarity.

The data are pairs of texts: with a similarity (any unit), or a query and a text that belongs to it.
An example has a row of tokens for each of its texts; at an endpoint it is one text. Models are
scored by the cosine of each pair, and the rank of each pair's second text among the second texts of
all pairs.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bertender.core.errors import DataError
from bertender.problems.problem import (
    Constant,
    FloatArray,
    IntArray,
    Outputs,
    Tensor,
    Tensors,
    TextProblem,
)
from bertender.problems.reading import Columns
from bertender.problems.regression import REGRESSION
from bertender.text.batch import Batch, Example, TokenizeEach, owners_of, to_examples

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from bertender.text.tokenizer import FileTokenizer

TOGETHER = math.inf
"""Target of a pair that belongs together, without a similarity."""
SAME = 1e-3
"""Smallest spread of cosines: below it, all vectors have collapsed."""
RANKED_AT_ONCE = 1024
LEAST = 1e-30
"""Smallest length of a vector."""
COLLAPSED = "the same vector"
TIE = 1e-6
"""Cosines that differ by less are equal, up to float32 rounding."""


class Vectors(NamedTuple):
    """The prediction for an example."""

    vectors: FloatArray
    """(texts, dimensions)"""
    texts: Example


class SentenceEmbedding(TextProblem[Any]):
    """A text has a vector.

    A target is a number, or TOGETHER; a prediction is the vectors of an example's texts.
    """

    name = "sentence_embedding"
    summary = "a text has a vector; data are pairs of texts, with a similarity or of matching texts"
    columns = Columns(("sentence1", "sentence2"), "score")
    metrics = ("cosine_spearman", "recall_at_1", "recall_at_10")
    model_class = "AutoModelForSentenceEmbedding"
    response_tensors = (Tensor("EMBEDDING", "TYPE_FP32", (-1,)),)
    logits_tensor = "EMBEDDING"
    names_labels = False
    takes_windows = False
    reads_pairs = True
    gives_vectors = True
    decides_within = "texts"
    least_spread = 0.0
    model_settings: Mapping[str, Any] = {"problem_type": None}

    def label_columns(self, column: str) -> tuple[str, ...]:
        """Return the column of similarities; none if the pairs have none."""
        return (column,) if column else ()

    def read_label(self, values: Mapping[str, object], column: str) -> float:
        return REGRESSION.read_label(values, column) if column else TOGETHER

    def label_names(self, found: Sequence[float]) -> tuple[str, ...]:
        """Return the name of the one output."""
        return ("embedding",)

    def unlabelled(self, example: Example) -> float:
        return math.nan

    def by_names(self, target: Any, labels: Sequence[str]) -> Any:
        """Return a number unchanged, and None for vectors, which have no name."""
        return target if isinstance(target, float) else None

    def metrics_of(self, labels: Sequence[str], targets: Sequence[float]) -> tuple[str, ...]:
        """Return all metrics, or only recall if the pairs have no similarities."""
        without = bool(len(targets)) and all(map(math.isinf, targets))
        return self.metrics[without:]

    def asked(self, examples: Sequence[Example]) -> tuple[Example, ...]:
        """Return each text separately."""
        return tuple((text,) for text in chain.from_iterable(examples))

    def text_counts(self, columns: int | None) -> tuple[int, int | None]:
        """Return one: each text has its own vector."""
        return 1, 1

    def asked_columns(self, columns: Sequence[str]) -> tuple[str, ...]:
        """Return the first text: each text has its own vector."""
        return tuple(columns[:1])

    def constant(
        self, targets: Sequence[float], labels: Sequence[str]
    ) -> tuple[str, Callable[[Example], Any]]:
        """Return one vector for all texts: all pairs are equally similar."""

        def answered(example: Example) -> Vectors:
            return Vectors(np.ones((len(example), 1), dtype=np.float32), example)

        return COLLAPSED, answered

    def same_everywhere(
        self, predictions: Any, targets: Sequence[float], labels: Sequence[str]
    ) -> tuple[Constant, ...]:
        """Return the answer of collapsed vectors: all pairs have a cosine of 1."""
        cosines = np.asarray(predictions)[:, 0]
        if len(cosines) < 2 or cosines.min() < 1 - SAME:
            return ()
        truth = f"all {len(cosines)} pairs have a cosine of 1"
        return (Constant(COLLAPSED, 0.0, len(cosines), truth=truth),)

    def encoder(
        self, tokenizer: PreTrainedTokenizerBase | FileTokenizer, max_length: int | None = None
    ) -> TokenizeEach:
        return TokenizeEach(tokenizer, max_length)

    def keep_text(self, examples: Sequence[Example]) -> Batch:
        known = tuple(to_examples(examples))
        return Batch(known, {}, owners=owners_of(known))

    def logits_shape(self, batch: Batch, labels: int) -> tuple[int | None, ...]:
        """Return the shape of the vectors, whose width may vary."""
        return sum(batch.counts), None

    def joined(self, rows: Sequence[Outputs]) -> Outputs:
        """Return the vectors of an example, one for each of its texts."""
        return Outputs(np.concatenate([row.logits for row in rows]), np.arange(len(rows)))

    def decode(self, outputs: Outputs, example: Example) -> Vectors:
        return Vectors(outputs.logits, example)

    def gather(self, predictions: Sequence[Vectors]) -> npt.NDArray[np.float64]:
        """Return cosine and rank of each pair, (pairs, 2).

        The rank, from 1, is that of the second text among the distinct second texts, by their
        cosines with the first text. Equally near texts are ranked before it, so that collapsed
        vectors find nothing.
        """
        if any(len(each.texts) != 2 for each in predictions):
            raise DataError(
                "single texts cannot be scored: vectors are scored by similarities of pairs. Give "
                "pairs: --text-column and --pair-column."
            )
        vectors = np.stack([np.asarray(each.vectors, dtype=np.float64) for each in predictions])
        vectors /= _lengths(vectors)[:, :, None]
        numbers: dict[str, int] = {}
        places = np.array([numbers.setdefault(each.texts[1], len(numbers)) for each in predictions])
        candidates = vectors[np.unique(places, return_index=True)[1], 1]
        cosines, ranks = (vectors[:, 0] * vectors[:, 1]).sum(axis=1), np.empty(len(vectors))
        for start in range(0, len(vectors), RANKED_AT_ONCE):
            own = slice(start, start + RANKED_AT_ONCE)
            found = vectors[own, 0] @ candidates.T
            wanted = np.take_along_axis(found, places[own, None], axis=1)
            ranks[own] = (found >= wanted - TIE).sum(axis=1)
        return np.stack([cosines, ranks], axis=1)

    def decisions(self, outputs: Outputs) -> IntArray:
        """Return each row's nearest neighbour, (rows, 1)."""
        return _nearest(outputs.logits)[0][:, :1]

    def margins(self, outputs: Outputs) -> npt.NDArray[np.float64]:
        """Return the margin of each row's nearest neighbour, (rows, 1).

        If all numbers of the vectors move by this much independently, the difference between the
        two largest cosines changes by its own size, in root mean square.
        """
        lengths = _lengths(outputs.logits)
        rows, cosines = _nearest(outputs.logits)
        if len(rows) < 3:  # no second neighbour
            return np.full((len(rows), 1), np.inf)
        first, second = rows.T
        directions = outputs.logits / lengths[:, None]
        turned = np.linalg.norm(directions[first] - directions[second], axis=1)
        steps = np.sqrt((turned / lengths) ** 2 + lengths[first] ** -2 + lengths[second] ** -2)
        return np.asarray((cosines[:, 0] - cosines[:, 1]) / steps)[:, None]

    def divergence(self, reference: npt.NDArray[Any], candidate: npt.NDArray[Any]) -> float:
        """Return the mean over texts of one minus the cosine."""
        first, second = (np.asarray(each, dtype=np.float64) for each in (reference, candidate))
        lengths = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
        cosines = (first * second).sum(axis=1) / np.maximum(lengths, LEAST)
        return float((1 - cosines).mean())

    def response(
        self,
        outputs: Sequence[Outputs],
        examples: Sequence[Example],
        labels: npt.NDArray[np.object_],
        texts: Sequence[Example],
    ) -> dict[str, npt.NDArray[Any]]:
        return {"EMBEDDING": np.concatenate([each.logits for each in outputs])}

    def lines(self, labels: Sequence[str], scores: Sequence[str], example: Example) -> list[str]:
        """Return one line of JSON for a text; the labels are the numbers of its vector."""
        shown = {"text": example[0], "embedding": [float(each) for each in labels]}
        return [json.dumps(shown, ensure_ascii=False)]

    def read_response(self, tensors: Tensors, row: int, example: Example) -> dict[str, Any]:
        vector = tuple(tensors["EMBEDDING"][row].tolist())
        return {"label": None, "score": None, "logits": vector}


def _lengths(vectors: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    return np.asarray(np.maximum(np.linalg.norm(vectors, axis=-1), LEAST))


def _nearest(vectors: npt.NDArray[Any]) -> tuple[IntArray, npt.NDArray[np.float64]]:
    """Return each row's two nearest neighbours, and their cosines, (rows, 2).

    A missing neighbour has the cosine -inf.
    """
    directions = np.asarray(vectors, dtype=np.float64) / _lengths(vectors)[:, None]
    rows = np.empty((len(vectors), 2), dtype=np.int64)
    cosines = np.empty(rows.shape)
    for start in range(0, len(vectors), RANKED_AT_ONCE):
        own = np.arange(start, min(start + RANKED_AT_ONCE, len(vectors)))
        found = directions[own] @ directions.T
        used = own
        for place in range(2):
            found[own - start, used] = -np.inf
            used = rows[own, place] = found.argmax(axis=1)
            cosines[own, place] = found[own - start, used]
    return rows, cosines


SENTENCE_EMBEDDING = SentenceEmbedding()
