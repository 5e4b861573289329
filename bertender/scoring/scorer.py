"""Scorer: predictions for texts, by a model that each process opens itself."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bertender.core.artifact import Artifact
from bertender.core.config import check_least
from bertender.core.errors import ModelError
from bertender.metrics.metric import labels_of_head
from bertender.models.classifier import Classifier, open_classifier
from bertender.models.importing import open_artifact
from bertender.models.runtimes import DEFAULT_RUNTIME
from bertender.problems.problem import Outputs, Problem
from bertender.problems.reading import checked_examples
from bertender.tasks.teacher_files import PREDICTED, PROBABILITIES
from bertender.text.batch import (
    Batch,
    Example,
    Tokenize,
    batched,
    cut_examples,
    length_buckets,
    merged,
)
from bertender.text.tokenizer import padding_of

TOKENS_PER_BATCH = 4096
TEXTS_PER_ENCODING = 128
"""Texts of similar length to tokenise together, so that few are padded."""
TEXTS_PER_BATCH = 1024
"""Texts per batch, for a model that reads raw text."""
SIGNIFICANT = 6
"""Significant digits of a probability."""

SCORE, TRUNCATED = "score", "truncated"
SPANS, RANKING, EMBEDDING = "spans", "ranking", "embedding"
PREDICTION_COLUMNS = (PREDICTED, PROBABILITIES, SCORE, SPANS, RANKING, EMBEDDING, TRUNCATED)

ANSWER = ("label", "score", "logits")
"""Fields of a response."""

Prediction = dict[str, Any]
"""Columns of a prediction: `predicted` and `probabilities` by label, or the columns of its kind of
problem."""


@dataclass(frozen=True)
class Encoded:
    """Tokenised examples, and the batches that they run in."""

    texts: tuple[Example, ...]
    """Texts as given; for a model that labels words, a sentence is one text."""
    examples: tuple[Example, ...]
    """Examples as the model reads them."""
    rows: tuple[tuple[Batch, int], ...]
    """Batch and index of each row of tokens; empty for a model that reads raw text."""
    owners: tuple[int, ...]
    """Index of the example of each row."""
    buckets: tuple[tuple[int, ...], ...]
    """Rows, or examples for a model that reads raw text, by similar length; the longest first."""
    truncated: npt.NDArray[np.bool_]
    """(examples,)"""


@dataclass
class Scorer:
    """A model that predicts texts; it can be pickled, and is opened at its first use.

    Args:
        artifact: an artifact, or the path or name of a model.
        tokens_per_batch: most tokens of a batch, including padding.
        max_length: longest input in tokens; None for the artifact's.
        runtime: row of RUNTIMES for an onnx artifact.
        threads: threads of the runtime; 0 takes OMP_NUM_THREADS, or the runtime's default if it is
            not set.
        prefix: prefix of each column's name.

    Raises (when it is opened): as `open_classifier`.

    Raises:
        ConfigError: `tokens_per_batch` is not positive.

    Example:
        scorer = bertender.Scorer("runs/int8")
        print(scorer(["a text of yours", "another one"])[0]["predicted"])
    """

    artifact: Artifact | str | os.PathLike[str]
    tokens_per_batch: int = TOKENS_PER_BATCH
    max_length: int | None = None
    runtime: str = DEFAULT_RUNTIME
    threads: int = 0
    prefix: str = ""

    def __post_init__(self) -> None:
        check_least(1, tokens_per_batch=self.tokens_per_batch)
        if isinstance(self.artifact, Artifact):
            self.artifact = self.artifact.path
        # a worker's current folder may differ; a hub name is not a path
        if Path(self.artifact).exists():
            self.artifact = str(Path(self.artifact).absolute())

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "classifier"}

    @cached_property
    def classifier(self) -> Classifier:
        """The open model."""
        assert not isinstance(self.artifact, Artifact)
        return open_classifier(
            open_artifact(self.artifact, verify=False),
            threads=self.threads,
            max_length=self.max_length,
            runtime=self.runtime,
        )

    def __call__(self, texts: Sequence[str | Example]) -> list[Prediction]:
        """Return the prediction for each text or pair of texts, in order.

        Raises:
            DataError: `texts` is not a sequence of texts, or the model cannot read one.
            ModelError: a logit is NaN or infinite.
        """
        problem = self.classifier.problem
        examples = checked_examples(texts, problem, self.classifier.text_count)
        given = [problem.to_texts(each) for each in examples]
        found: dict[int, Prediction] = {}
        for predictions in self.run(self.encode(given)) if given else ():
            found.update(predictions)
        return [found[number] for number in range(len(given))]

    def batch_function(self) -> Callable[..., list[Prediction]]:
        """Return a function on arrays, for `pyspark.ml.functions.predict_batch_udf`.

        It takes an array of texts (batch,) for each text column, and returns `predicted` and, if
        labels have probabilities, `probabilities` (labels,) of each row; or the `embedding`
        (width,).
        """
        wanted = {self.prefix + name for name in (PREDICTED, PROBABILITIES, EMBEDDING)}

        def predict(*columns: npt.NDArray[Any]) -> list[Prediction]:
            rows = self([*zip(*(column.tolist() for column in columns), strict=True)])
            return [
                {name: _array(value) for name, value in row.items() if name in wanted}
                for row in rows
            ]

        # Spark counts the parameters
        assert not isinstance(self.artifact, Artifact)
        names = open_artifact(self.artifact, verify=False).card.task.text_columns
        count = 1 if self.classifier.problem.gives_vectors else len(names)
        parameters = [
            inspect.Parameter(f"texts_{number}", inspect.Parameter.POSITIONAL_ONLY)
            for number in range(count)
        ]
        predict.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return predict

    def encode(self, texts: Sequence[Example]) -> Encoded:
        """Return one or more tokenised examples, in batches of similar length.

        Args:
            texts: texts of each example, as from `Problem.to_texts`.
        """
        encode, problem = self.classifier.encode, self.classifier.problem
        examples = [problem.to_example(each) for each in texts]
        order = sorted(range(len(examples)), key=lambda number: sum(map(len, examples[number])))
        truncated = np.zeros(len(examples), dtype=np.bool_)
        if not isinstance(encode, Tokenize):
            by_length = tuple(map(tuple, batched(reversed(order), TEXTS_PER_BATCH)))
            return Encoded(tuple(texts), tuple(examples), (), (), by_length, truncated)
        known = list(examples)
        rows: list[tuple[Batch, int]] = []
        owners: list[int] = []
        lengths: list[int] = []
        for numbers in batched(order, TEXTS_PER_ENCODING):
            batch = encode([examples[number] for number in numbers])
            truncated[numbers] = cut_examples(batch)
            for number, own, count in zip(numbers, batch.examples, batch.counts, strict=True):
                known[number] = own
                owners += [number] * count
            rows += [(batch, row) for row in range(sum(batch.counts))]
            lengths += batch.arrays["attention_mask"].sum(axis=1).tolist()
        buckets = length_buckets(lengths, self.tokens_per_batch)
        in_turn = tuple(map(tuple, reversed(buckets)))
        return Encoded(tuple(texts), tuple(known), tuple(rows), tuple(owners), in_turn, truncated)

    def run(self, encoded: Encoded) -> Iterator[dict[int, Prediction]]:
        """Yield predictions with the index of their example, once their last rows have run.

        Raises:
            ModelError: a logit is NaN or infinite.
        """
        outputs = self._by_rows(encoded) if encoded.rows else self._by_texts(encoded)
        for found in outputs:
            yield self._predictions(encoded, found)

    def _by_texts(self, encoded: Encoded) -> Iterator[dict[int, Outputs]]:
        for bucket in encoded.buckets:
            outputs = self.classifier.outputs([encoded.examples[number] for number in bucket])
            yield dict(zip(bucket, outputs, strict=True))

    def _by_rows(self, encoded: Encoded) -> Iterator[dict[int, Outputs]]:
        classifier, problem = self.classifier, self.classifier.problem
        assert isinstance(classifier.encode, Tokenize)
        padding = padding_of(classifier.encode.tokenizer)
        rows_of: dict[int, list[int]] = {}
        for row, owner in enumerate(encoded.owners):
            rows_of.setdefault(owner, []).append(row)
        waiting: dict[int, Outputs] = {}
        for bucket in encoded.buckets:
            batch = merged([encoded.rows[row] for row in bucket], padding)
            logits = np.asarray(classifier.predictor.logits(batch))
            if len(logits) != len(bucket):
                raise ModelError(
                    f"{classifier.name}: {len(logits)} rows of logits for a batch of "
                    f"{len(bucket)}. Export the model again, with a dynamic batch axis."
                )
            outputs = problem.row_outputs(logits, batch)
            waiting.update(zip(bucket, outputs, strict=True))
            found = {}
            for owner in dict.fromkeys(encoded.owners[row] for row in bucket):
                own = rows_of[owner]
                if all(row in waiting for row in own):
                    found[owner] = problem.joined([waiting.pop(row) for row in own])
            yield found

    def _predictions(self, encoded: Encoded, found: Mapping[int, Outputs]) -> dict[int, Prediction]:
        classifier, problem = self.classifier, self.classifier.problem
        for number, outputs in found.items():
            if not np.isfinite(outputs.logits).all():
                raise ModelError(
                    f"{classifier.name} predicts {encoded.examples[number]!r} with NaN or infinite "
                    "logits. Train or export the model again."
                )
        names, groups = classifier.labels, [[*found]]
        if problem.places_are_labels:  # the number of choices may differ between examples
            groups = [[number] for number in found]
            most = max((len(each) for each in encoded.texts), default=0)
            names = tuple(map(str, range(max(most, len(names)))))
        labels = np.array([label.encode() for label in names], dtype=np.object_)
        predictions: dict[int, Prediction] = {}
        for numbers in filter(None, groups):
            examples = [encoded.examples[number] for number in numbers]
            tensors = problem.response(
                [found[number] for number in numbers],
                examples,
                labels,
                [encoded.texts[number] for number in numbers],
            )
            responses = [
                problem.read_response(tensors, row, example) for row, example in enumerate(examples)
            ]
            columns = _columns(problem, classifier.labels, responses)
            for number, own in zip(numbers, columns, strict=True):
                own[TRUNCATED] = bool(encoded.truncated[number])
                predictions[number] = {self.prefix + name: value for name, value in own.items()}
        return predictions


def prediction_columns(problem: Problem[Any]) -> tuple[str, ...]:
    """Return the possible names of a prediction's columns, without prefix."""
    if has_label_probabilities(problem):
        return PREDICTED, PROBABILITIES, TRUNCATED
    of_heads = (f"{head}_{name}" for head in problem.heads for name in PREDICTION_COLUMNS)
    return (*PREDICTION_COLUMNS, *of_heads)


def has_label_probabilities(problem: Problem[Any]) -> bool:
    """Return whether predictions have a probability for each label."""
    has_own = problem.names_labels and not (problem.per_token or problem.places_are_labels)
    return problem.has_confidence and has_own and not problem.heads


def _columns(
    problem: Problem[Any], labels: Sequence[str], responses: Sequence[Mapping[str, Any]]
) -> list[Prediction]:
    """Return the columns of predictions, given label, score and logits from responses."""
    if problem.gives_vectors:
        return [{EMBEDDING: list(each["logits"])} for each in responses]
    of = _of_heads if problem.heads else _of_one
    found = of(problem, labels, responses)
    for row, each in zip(found, responses, strict=True):
        row.update({name: list(each[name]) for name in (SPANS, RANKING) if name in each})
    return found


def _of_heads(
    problem: Problem[Any], labels: Sequence[str], responses: Sequence[Mapping[str, Any]]
) -> list[Prediction]:
    found: list[Prediction] = [{} for _ in responses]
    for name, kind in problem.heads.items():
        own = [{key: each[key][name] for key in ANSWER} for each in responses]
        columns = _columns(kind, labels_of_head(labels, name), own)
        for row, values in zip(found, columns, strict=True):
            row.update({f"{name}_{key}": value for key, value in values.items()})
    return found


def _of_one(
    problem: Problem[Any], labels: Sequence[str], responses: Sequence[Mapping[str, Any]]
) -> list[Prediction]:
    found = [{PREDICTED: _plain(each["label"])} for each in responses]
    if has_label_probabilities(problem):
        logits = np.array([each["logits"] for each in responses])
        probabilities = rounded(problem.probabilities(logits, labels))
        for row, values in zip(found, probabilities.tolist(), strict=True):
            row[PROBABILITIES] = dict(zip(labels, values, strict=True))
        return found
    for row, each in zip(found, responses, strict=True):
        if each["score"] is not None:
            row[SCORE] = _plain(each["score"])
    return found


def _array(value: Any) -> Any:
    """Return labels, numbers or probabilities as an array (labels,); a single value unchanged."""
    if isinstance(value, dict):
        value = [*value.values()]
    if not isinstance(value, list):
        return value
    return np.array(value) if value else np.array(value, dtype=np.str_)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def rounded(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return values with SIGNIFICANT digits, the precision of probabilities from float32 logits."""
    exponents = np.floor(np.log10(np.maximum(values, 1e-300)))
    factors = 10.0 ** np.clip(SIGNIFICANT - 1 - exponents, 0, 300)
    return np.asarray(np.round(values * factors) / factors)
