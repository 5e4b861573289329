"""RANKING: order the passages of a query by their scores.

An example is a query with any number of passages. A model (a cross-encoder) reads the query and one
passage at a time, as a pair of texts, and has one output. Scores compare the passages of one query;
passages with equal scores keep their order. Targets are the relevances of the passages: 0 for none,
1, or higher grades.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from bertender.metrics.ranking import ranked
from bertender.problems.problem import (
    Constant,
    FloatArray,
    IntArray,
    Outputs,
    Tensor,
    Tensors,
    TextProblem,
)
from bertender.problems.reading import (
    CellError,
    Columns,
    checked_text,
    first_words,
    shown,
    text_of_cell,
    usable_cell,
)
from bertender.problems.regression import REGRESSION
from bertender.text.batch import Batch, Example, Tokenize, TokenizePassages

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from bertender.text.tokenizer import FileTokenizer

Relevances = tuple[float, ...]

ROW_OF_PASSAGE = Columns(("query", "passage"), "relevance")
"""Columns of a file with one passage per row."""
QUERY = ("query", "anchor", "question")
POSITIVE = "positive"
NEGATIVE = re.compile(r"negatives?([ _-]?\d+)?", re.IGNORECASE)
"""Columns of a file with a query, a relevant passage and other passages in each row."""
MOST_TRAINED = 16
"""Most passages of a query in training."""
SAME = 1e-5
"""Share of the largest score: smaller differences count as equal."""
AS_GIVEN = "the order given"
NOTHING = float(np.finfo(np.float32).min)
"""Padding of the scores in a response."""
NO_PASSAGE = -1
"""Padding of the numbers in a response."""


class Ranking(TextProblem[Relevances]):
    """Order the passages of a query."""

    name = "ranking"
    summary = "the passages of a query are put in order, by a score for each"
    columns = Columns(("query", "passages"), "relevance")
    metrics = ("ndcg_at_10", "mean_reciprocal_rank", "recall_at_1", "recall_at_5")
    response_tensors = (
        Tensor("SCORES", "TYPE_FP32", (-1,)),
        Tensor("ORDER", "TYPE_INT32", (-1,)),
    )
    logits_tensor = "SCORES"
    beyond = NOTHING
    takes_windows = False
    reads_pairs = True
    takes_list = True
    names_labels = False
    decides_within = "example"
    model_settings: Mapping[str, Any] = {
        "problem_type": None,
        # CrossEncoder would put a sigmoid over the scores
        "sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"},
    }

    def usual_columns(self, there: Sequence[str]) -> Columns:
        """Return the columns of a query with a list of passages, with one passage per row, or with
        a relevant passage and others."""
        if self.columns.texts[1] in there:
            return self.columns
        if POSITIVE in there:
            query = next((name for name in QUERY if name in there), QUERY[0])
            return Columns((query, POSITIVE), "")
        return ROW_OF_PASSAGE if ROW_OF_PASSAGE.texts[1] in there else self.columns

    def more_columns(self, named: str | None, there: Sequence[str]) -> tuple[str, ...]:
        """Return the passage columns: one, or those of a relevant passage and others."""
        if named is None:
            named = self.usual_columns(there).texts[1]
        if named == POSITIVE:
            return (named, *(name for name in there if NEGATIVE.fullmatch(name.strip())))
        return tuple(each.strip() for each in named.split(","))

    def text_names(self, columns: Columns, example: Example) -> tuple[str, ...]:
        """Return one name for all passages."""
        query, *more = columns.texts
        return query, more[0] if len(more) == 1 else self.columns.texts[1]

    def text_counts(self, columns: int | None) -> tuple[int, int | None]:
        """Return a query with a passage, or more."""
        return 2, None

    def label_columns(self, column: str) -> tuple[str, ...]:
        """Return the relevance column; none if relevances follow from the passage columns."""
        return (column,) if column else ()

    def read_texts(self, values: Mapping[str, object], columns: Sequence[str]) -> Example:
        query, *more = columns
        passages = [_passages(values, column) for column in more]
        return text_of_cell(values, query), *chain(*passages)

    def read(self, values: Mapping[str, object], columns: Columns) -> tuple[Example, Relevances]:
        query, *more = columns.texts
        passages = [_passages(values, column) for column in more]
        example = text_of_cell(values, query), *chain(*passages)
        if columns.label:
            is_list = self.part_of(values, columns.texts) is None
            return example, _relevances(values, columns.label, example[1:], is_list)
        if len(more) < 2:
            raise CellError(
                more[0],
                "the file has no column of relevances. Name one by --label-column, or give a "
                f"column {POSITIVE!r} and one, or several, of negatives",
            )
        counts = [len(each) for each in passages]
        truth = (*[1.0] * counts[0], *[0.0] * sum(counts[1:]))
        # a separate column would put the relevant passages first in every query
        order = sorted(range(len(truth)), key=lambda place: _drawn(example[0], example[1 + place]))
        return (
            (example[0], *(example[1 + place] for place in order)),
            tuple(truth[place] for place in order),
        )

    def read_label(self, values: Mapping[str, object], column: str) -> float:
        relevance = REGRESSION.read_label(values, column)
        if relevance < 0:
            raise CellError(
                column, f"the relevance {relevance:g} is below 0. Give 0 for what is not relevant"
            )
        return relevance

    def part_of(self, values: Mapping[str, object], columns: Sequence[str]) -> str | None:
        """Return the query of a row with one passage, or with a relevant passage and others."""
        query, *more = columns
        if len(more) == 1 and not isinstance(values[more[0]], str):
            return None
        return text_of_cell(values, query)

    def whole(self, parts: Sequence[tuple[Example, Any]], columns: Columns) -> tuple[Example, Any]:
        """Return a query with the distinct passages of its rows.

        Raises:
            CellError: a passage has two relevances, or none is relevant.
        """
        query = parts[0][0][0]
        passages = [passage for example, _ in parts for passage in example[1:]]
        if parts[0][1] is None:  # unlabelled
            return (query, *passages), None
        relevances = [each for _, label in parts for each in label]
        known: dict[str, float] = {}
        for passage, relevance in zip(passages, relevances, strict=True):
            if known.setdefault(passage, relevance) != relevance:
                raise CellError(
                    columns.label or columns.texts[-1],
                    f"the passage {shown(passage)} of this query has the relevances "
                    f"{known[passage]:g} and {relevance:g}. Leave one of them out",
                )
        if not any(known.values()):
            raise CellError(
                columns.label or columns.texts[-1],
                f"none of the {len(known)} passages of this query is relevant. Give a relevant "
                "one, or leave the query out",
            )
        return (query, *known), tuple(known.values())

    def to_learn(self, example: Example, target: Relevances) -> tuple[Example, Relevances]:
        """Return an example with at most MOST_TRAINED passages, in order: those of the highest
        relevance, and others drawn by a hash of the texts.

        Gao et al. 2021 (arXiv 2101.08751) train on groups of a relevant passage and a few others.
        """
        query, *passages = example
        if len(passages) <= MOST_TRAINED:
            return example, target
        by_worth = sorted(
            range(len(passages)),
            key=lambda place: (
                0.0 if math.isnan(target[place]) else -target[place],
                _drawn(query, passages[place]),
            ),
        )
        # at most half of them relevant
        relevant = [place for place in by_worth if target[place] > 0][: MOST_TRAINED // 2]
        others = [place for place in by_worth if not target[place] > 0]
        kept = sorted([*relevant, *others][:MOST_TRAINED])
        return (
            (query, *(passages[place] for place in kept)),
            tuple(target[place] for place in kept),
        )

    def told_apart_by(self, example: Example) -> Example:
        """Return the query."""
        return example[:1]

    def label_names(self, found: Sequence[Any]) -> tuple[str, ...]:
        """Return the name of the one output."""
        return ("relevance",)

    def unlabelled(self, example: Example) -> Relevances:
        return (math.nan,) * (len(example) - 1)

    def by_names(self, target: Relevances, labels: Sequence[str]) -> tuple[str, ...]:
        """Return the numbers of the passages, from 0, the best first."""
        return tuple(map(str, ranked(target).tolist()))

    def constant(
        self, targets: Sequence[Relevances], labels: Sequence[str]
    ) -> tuple[str, Callable[[Example], Relevances]]:
        """Return the original order of the passages."""
        return AS_GIVEN, lambda example: tuple(-float(place) for place in range(len(example) - 1))

    def same_everywhere(
        self,
        predictions: Sequence[Relevances],
        targets: Sequence[Relevances],
        labels: Sequence[str],
    ) -> tuple[Constant, ...]:
        """Return the original order if a model gives all passages of a query the same score. Its
        share is that of queries whose first passage is one of the most relevant.
        """
        pairs = [
            (np.asarray(own), true)
            for own, true in zip(predictions, targets, strict=True)
            if len(set(true)) > 1 and len(own) == len(true)
        ]
        largest = max((float(np.abs(own).max()) for own, _ in pairs), default=0.0)
        if not pairs or any(np.ptp(own) > SAME * largest for own, _ in pairs):
            return ()
        right = sum(true[0] == max(true) for _, true in pairs)
        share, count = right / len(pairs), len(pairs)
        truth = f"{share:.1%} of {count} queries have a most relevant passage first"
        return (Constant(AS_GIVEN, share, count, truth=truth),)

    def edge_examples(self, examples: Sequence[Example], tokens: int) -> tuple[Example, Example]:
        """Return a query with two passages: of few words, and of more than `tokens` tokens."""
        query, *passages = examples[0]
        short, long = super().edge_examples([(query, passages[0])], tokens)
        return (short[0], *first_words(passages[:2])), (query, long[1], *passages[1:2])

    def encoder(
        self, tokenizer: PreTrainedTokenizerBase | FileTokenizer, max_length: int | None = None
    ) -> Tokenize:
        return TokenizePassages(tokenizer, max_length)

    def logits_shape(self, batch: Batch, labels: int) -> tuple[int | None, ...]:
        """Return one score per row; for an endpoint, one per passage of the longest list."""
        return (len(batch), None) if batch.owners is None else (len(batch.owners), 1)

    def row_outputs(self, logits: FloatArray, batch: Batch) -> list[Outputs]:
        """Return the scores of each row as a column, without NOTHING; NaN and -inf stay, for the
        checks that the scores are finite."""
        own = [row[row != NOTHING] for row in logits]
        return [Outputs(each[:, None], np.arange(len(each))) for each in own]

    def joined(self, rows: Sequence[Outputs]) -> Outputs:
        """Return the scores of a query's passages as a column, (passages, 1)."""
        logits = np.concatenate([each.logits for each in rows])
        return Outputs(logits, np.arange(len(logits)))

    def decode(self, outputs: Outputs, example: Example) -> Relevances:
        """Return the scores of the passages."""
        return tuple(outputs.logits[:, 0].tolist())

    def decisions(self, outputs: Outputs) -> IntArray:
        """Return the index of the best passage, (1, 1)."""
        return np.asarray([[outputs.places[outputs.logits[:, 0].argmax()]]], dtype=np.int64)

    def margins(self, outputs: Outputs) -> npt.NDArray[np.float64]:
        """Return half the distance between the two best scores, (1, 1); 0 for one passage."""
        first, *others = np.sort(outputs.logits[:, 0])[::-1][:2].tolist()
        return np.array([[(first - others[0]) / 2 if others else 0.0]])

    def response(
        self,
        outputs: Sequence[Outputs],
        examples: Sequence[Example],
        labels: npt.NDArray[np.object_],
        texts: Sequence[Example],
    ) -> dict[str, npt.NDArray[Any]]:
        """Return scores in the order of the passages, and passage numbers with the best first.

        Both are (batch, passages), padded with NOTHING and NO_PASSAGE.
        """
        most = max(len(own.logits) for own in outputs)
        scores = np.full((len(outputs), most), NOTHING, dtype=np.float32)
        order = np.full((len(outputs), most), NO_PASSAGE, dtype=np.int32)
        for row, own in enumerate(outputs):
            scores[row, : len(own.logits)] = own.logits[:, 0]
            order[row, : len(own.logits)] = ranked(own.logits[:, 0])
        return {"SCORES": scores, "ORDER": order}

    def response_of(
        self, tensors: Tensors, rows: slice, examples: Sequence[Example]
    ) -> dict[str, npt.NDArray[Any]]:
        """Return tensors as wide as the request's largest number of passages."""
        most = max(len(example) for example in examples) - 1
        return {name: np.ascontiguousarray(array[rows, :most]) for name, array in tensors.items()}

    def read_response(self, tensors: Tensors, row: int, example: Example) -> dict[str, Any]:
        count = len(example) - 1
        scores, order = (tensors[name][row, :count].tolist() for name in ("SCORES", "ORDER"))
        return {
            "label": tuple(map(str, order)),
            "score": None,
            "logits": tuple(scores),
            "ranking": [
                {"number": number, "score": scores[number], "text": example[1 + number]}
                for number in order
            ],
        }

    def logits_at(self, places: Sequence[int] | IntArray, logits: Any) -> npt.NDArray[Any]:
        return np.asarray(logits)[list(places)][:, None]

    def lines(self, labels: Sequence[str], scores: Sequence[str], example: Example) -> list[str]:
        """Return a line for each passage, the best first, and an empty one."""
        pairs = zip(labels, scores, strict=True)
        return [*(f"{number}\t{score}\t{example[1 + int(number)]}" for number, score in pairs), ""]


def _passages(values: Mapping[str, object], column: str) -> tuple[str, ...]:
    """Return the passages in a cell: a list, or one."""
    cell = usable_cell(values, column)
    if isinstance(cell, str):
        return (text_of_cell(values, column),)
    if not isinstance(cell, list | tuple):
        raise CellError(
            column,
            f"{shown(cell)} is neither a text nor a list of texts. Give a list in JSONL or "
            "Parquet, or a passage a row",
        )
    if not cell:
        raise CellError(column, "an empty list. A query needs at least one passage")
    return tuple(checked_text(each, column) for each in cell)


def _relevances(
    values: Mapping[str, object], column: str, passages: Sequence[str], is_list: bool
) -> Relevances:
    """Return the relevance of each passage.

    For one passage it is a number. For a list of passages, it is a list of numbers, or the relevant
    passages: a number from 0, a text, or a list of texts.

    Raises:
        CellError: the cell is none of these.
    """
    cell = usable_cell(values, column)
    if not is_list:
        return (RANKING.read_label(values, column),)
    given = cell if isinstance(cell, list | tuple) else [cell]
    texts = {each.strip() for each in given if isinstance(each, str)}
    if given and len(texts) == len(given) and texts <= {*passages}:
        return tuple(float(passage in texts) for passage in passages)
    if given is cell:
        if len(given) != len(passages):
            raise CellError(
                column,
                f"{len(given)} relevances for {len(passages)} passages. Give one for each, the "
                "texts of the relevant ones, or, of one relevant passage, its number from 0",
            )
        return tuple(RANKING.read_label({column: each}, column) for each in given)
    number = REGRESSION.read_label(values, column)
    if number not in range(len(passages)):
        raise CellError(
            column,
            f"{shown(cell)} is not an index of the {len(passages)} passages. Give one, or a list "
            "with a relevance for each",
        )
    return tuple(float(place == number) for place in range(len(passages)))


def _drawn(query: str, passage: str) -> bytes:
    """Return the hash by which passages of a query are drawn."""
    return hashlib.sha256(f"{query}\0{passage}".encode(errors="surrogatepass")).digest()


RANKING = Ranking()
