"""SeveralHeads: several kinds of problems on one text, in one pass.

An encoder has several heads, which are rows of one layer: labels are named HEAD:LABEL, head by
head. For graphs, pruning and quantization, such a model is a normal classifier of texts or tokens.
If a head tags words, the others read the first token.
"""

from __future__ import annotations

import copy
import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from bertender.core.errors import ConfigError
from bertender.metrics import METRICS
from bertender.metrics.metric import AND, OF_HEAD, HeadTargets, Parts, is_labelled, labels_of_head
from bertender.problems.problem import (
    Constant,
    FloatArray,
    IntArray,
    Outputs,
    Problem,
    Tensor,
    Tensors,
    TextProblem,
)
from bertender.problems.reading import CellError, Columns
from bertender.text.batch import NO_WORD, Batch, Example, Tokenize

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from bertender.text.tokenizer import FileTokenizer

BETWEEN = ","
"""Separator of the heads in a problem type, and of their label columns."""
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
"""Name of a head, the prefix of its tensors at an endpoint."""
FEWEST = 2


def head_name(task: str) -> str:
    """Return the name of a task's head, given the task's name."""
    return re.sub(r"\W", "_", task)


class NoLabel(NamedTuple):
    """A head's missing label."""

    target: Any


class SeveralHeads(Problem[HeadTargets]):
    """Several kinds of problems on one text.

    Args:
        heads: kind of each head by name; the last may label words, the others have one row of
            logits per text.

    Raises:
        ConfigError: the kinds cannot share a text, or a name is invalid.
    """

    summary = "several of these on one text"
    per_token = False

    def __init__(self, heads: Mapping[str, Problem[Any]]) -> None:
        _check(heads)
        self.heads = dict(heads)
        self.slices: dict[str, slice] = {}
        """Slice of each head in all labels; empty before `of_labels`."""
        self.own_labels: Mapping[str, tuple[str, ...]] = {}
        """Labels of each head, without its name; empty before `of_labels`."""
        self.base_name, self.base = [*heads.items()][-1]
        """The head that determines how texts are read: the last one."""
        self.name = BETWEEN.join(f"{name}{OF_HEAD}{kind.name}" for name, kind in heads.items())
        self.columns = Columns(self.base.columns.texts, BETWEEN.join(heads))
        self.model_class = self.base.model_class
        self.tokenizer_settings = self.base.tokenizer_settings
        # transformers has no loss for several heads
        self.model_settings = {**self.base.model_settings, "problem_type": None}
        for flag in ("takes_pairs", "takes_windows", "per_token", "labels_words", "separator"):
            setattr(self, flag, getattr(self.base, flag))
        self.has_thresholds = any(kind.has_thresholds for kind in heads.values())
        self.names_labels = any(kind.names_labels for kind in heads.values())
        self.response_tensors = self._tensors()
        self.metrics = self._metrics()

    def of_labels(self, labels: Sequence[str]) -> Self:
        problem = copy.copy(self)
        problem.slices = {}
        place = 0
        for name, own in groupby(labels, key=lambda label: label.partition(OF_HEAD)[0]):
            end = place + len([*own])
            problem.slices[name] = slice(place, end)
            place = end
        if [*problem.slices] != [*self.heads]:
            raise ConfigError(
                f"problem type {self.name!r}: labels of the heads {', '.join(problem.slices)}, and "
                f"there are {', '.join(self.heads)}. Each label is HEAD:LABEL, head by head."
            )
        problem.own_labels = {name: labels_of_head(labels, name) for name in problem.slices}
        problem.response_tensors = problem._tensors()
        problem.metrics = problem._metrics()
        return problem

    def _tensors(self) -> tuple[Tensor, ...]:
        return tuple(
            Tensor(f"{name}_{each.name}", each.triton_type, self._sizes(name, each))
            for name, kind in self.heads.items()
            for each in kind.response_tensors
        )

    def _sizes(self, name: str, tensor: Tensor) -> tuple[int | None, ...]:
        labels = len(self.own_labels.get(name, ()))
        return tuple(labels or -1 if size is None else size for size in tensor.sizes)

    def _metrics(self) -> tuple[str, ...]:
        """Return the mean of the heads' default scores, and the scores of each."""
        of_heads = [
            [
                f"{name}{OF_HEAD}{metric}"
                for metric in kind.metrics_of(self.own_labels.get(name, ()), ())
                if not METRICS[metric].reads_logits
            ]
            for name, kind in self.heads.items()
        ]
        return AND.join(own[0] for own in of_heads), *itertools.chain(*of_heads)

    def settings_to_learn(self, labels: Sequence[str]) -> Mapping[str, Any]:
        return self.base.settings_to_learn(labels_of_head(labels, self.base_name))

    # reading

    def usual_columns(self, there: Sequence[str]) -> Columns:
        return Columns(self.base.usual_columns(there).texts, self.columns.label)

    def more_columns(self, named: str | None, there: Sequence[str]) -> tuple[str, ...]:
        return self.base.more_columns(named, there)

    def read_texts(self, values: Mapping[str, object], columns: Sequence[str]) -> Example:
        return self.base.read_texts(values, columns)

    def text_counts(self, columns: int | None) -> tuple[int, int | None]:
        return self.base.text_counts(columns)

    def text_of_cell(self, values: Mapping[str, object], column: str) -> str:
        return self.base.text_of_cell(values, column)

    def label_columns(self, column: str) -> tuple[str, ...]:
        columns = tuple(each.strip() for each in column.split(BETWEEN))
        if len(columns) != len(self.heads):
            raise ConfigError(
                f"label_column={column}: {len(columns)} columns for the {len(self.heads)} heads "
                f"{', '.join(self.heads)}. Give one for each, by commas, in their order."
            )
        return columns

    def read(self, values: Mapping[str, object], columns: Columns) -> tuple[Example, HeadTargets]:
        """Return the example, and each head's label, which may be missing."""
        named = self.label_columns(columns.label)
        example: Example | None = None
        labels: list[Any] = []
        for kind, column in zip(self.heads.values(), named, strict=True):
            own = values.get(column, "")
            missing = own is None or own == "" or (isinstance(own, float) and own != own)
            if missing and column in values:
                labels.append(None)
            elif isinstance(kind, TextProblem):
                labels.append(kind.read_label(values, column))
            else:
                example, label = kind.read(values, Columns(columns.texts, column))
                labels.append(label)
        if all(label is None for label in labels):
            raise CellError(named[0], f"no label, nor in {', '.join(map(repr, named[1:]))}")
        if example is None:
            example = self._without_labels(values, columns)
        return example, HeadTargets(
            NoLabel(kind.unlabelled(example)) if label is None else label
            for kind, label in zip(self.heads.values(), labels, strict=True)
        )

    def _without_labels(self, values: Mapping[str, object], columns: Columns) -> Example:
        texts = self.base.read_texts(values, columns.texts)
        return self.base.to_example(texts) if self.labels_words else texts

    def example_of_head(self, name: str, example: Example) -> Example:
        """Return an example for a model with one head: words are joined to a text."""
        if self.labels_words and not self.heads[name].labels_words:
            return (" ".join(example),)
        return example

    def label_names(self, found: Sequence[HeadTargets]) -> tuple[str, ...]:
        names: list[str] = []
        for place, (name, kind) in enumerate(self.heads.items()):
            own = [each[place] for each in found if not isinstance(each[place], NoLabel)]
            names += (f"{name}{OF_HEAD}{label}" for label in kind.label_names(own))
        return tuple(names)

    def number(
        self, label: HeadTargets | Mapping[str, Any], numbers: Mapping[str, int]
    ) -> HeadTargets:
        labels = label.values() if isinstance(label, Mapping) else label
        return HeadTargets(
            own.target if isinstance(own, NoLabel) else kind.number(own, self._own(name, numbers))
            for (name, kind), own in zip(self.heads.items(), labels, strict=True)
        )

    def _own(self, name: str, numbers: Mapping[str, int]) -> dict[str, int]:
        """Return the numbers of one head's labels, from 0, given those of all labels."""
        start, first = f"{name}{OF_HEAD}", self.slices[name].start
        return {
            label.removeprefix(start): number - first
            for label, number in numbers.items()
            if label.startswith(start)
        }

    def unlabelled(self, example: Example) -> HeadTargets:
        return HeadTargets(kind.unlabelled(example) for kind in self.heads.values())

    def by_names(self, target: HeadTargets, labels: Sequence[str]) -> dict[str, Any]:
        """Return the target of each head by the name of the head."""
        own_labels = self.of_labels(labels).own_labels
        return {
            name: kind.by_names(own, own_labels[name]) if is_labelled(own) else NoLabel(own)
            for (name, kind), own in zip(self.heads.items(), target, strict=True)
        }

    def labels_of(self, target: HeadTargets) -> Sequence[int]:
        return tuple(
            self.slices[name].start + number
            for (name, kind), own in zip(self.heads.items(), target, strict=True)
            if is_labelled(own)
            for number in kind.labels_of(own)
            if number >= 0
        )

    def parts(self, target: HeadTargets, labels: Sequence[str]) -> Parts:
        return {
            (f"{name}{OF_HEAD}{label}", place)
            for (name, kind), own in zip(self.heads.items(), target, strict=True)
            if kind.names_labels and is_labelled(own)
            for label, place in kind.parts(own, self.own_labels[name])
        }

    def where_labelled(self, prediction: HeadTargets, target: HeadTargets) -> HeadTargets:
        pairs = zip(prediction, target, strict=True)
        return HeadTargets(own if is_labelled(true) else true for own, true in pairs)

    def scored_labels(self, labels: Sequence[str]) -> Sequence[str]:
        return [
            f"{name}{OF_HEAD}{label}"
            for name, kind in self.heads.items()
            for label in kind.scored_labels(self.own_labels[name])
        ]

    def constant(
        self, targets: Sequence[HeadTargets], labels: Sequence[str]
    ) -> tuple[str, Callable[[Example], HeadTargets]]:
        """Return the best answer of each head."""
        names, answers = [], []
        for place, (name, kind) in enumerate(self.heads.items()):
            own = [each[place] for each in targets if is_labelled(each[place])]
            answer, answered = kind.constant(own, self.own_labels[name])
            names.append(f"{name}{OF_HEAD}{answer}")
            answers.append(answered)
        return "; ".join(names), lambda example: HeadTargets(each(example) for each in answers)

    def same_everywhere(
        self,
        predictions: Sequence[HeadTargets],
        targets: Sequence[HeadTargets],
        labels: Sequence[str],
    ) -> tuple[Constant, ...]:
        constants: list[Constant] = []
        for place, (name, kind) in enumerate(self.heads.items()):
            rows = [row for row, true in enumerate(targets) if is_labelled(true[place])]
            predicted, true = (
                [each[row][place] for row in rows] for each in (predictions, targets)
            )
            if rows:
                constants += (
                    each._replace(answer=f"{name}{OF_HEAD}{each.answer}", head=name)
                    for each in kind.same_everywhere(predicted, true, self.own_labels[name])
                )
        return tuple(constants)

    def edge_examples(self, examples: Sequence[Example], tokens: int) -> tuple[Example, Example]:
        return self.base.edge_examples(examples, tokens)

    # batches and outputs

    def encoder(
        self, tokenizer: PreTrainedTokenizerBase | FileTokenizer, max_length: int | None = None
    ) -> Tokenize:
        return self.base.encoder(tokenizer, max_length)

    def reading(self, tokenizer: PreTrainedTokenizerBase | FileTokenizer) -> Self:
        problem = copy.copy(self)
        problem.base = self.base.reading(tokenizer)
        return problem

    def keep_text(self, examples: Sequence[Example]) -> Batch:
        """Return examples as a batch; if words have labels, the first place is NO_WORD."""
        batch = self.base.keep_text(examples)
        if batch.words is None:
            return batch
        return replace(batch, words=np.pad(batch.words, ((0, 0), (1, 0)), constant_values=NO_WORD))

    def logits_shape(self, batch: Batch, labels: int) -> tuple[int | None, ...]:
        return self.base.logits_shape(batch, labels)

    def row_outputs(self, logits: FloatArray, batch: Batch) -> list[Outputs]:
        """Return the outputs of each row. If words have labels, outputs for the first token come
        first, at NO_WORD. Logits that no head reads are 0."""
        rows = self.base.row_outputs(logits, batch)
        if not self.labels_words:
            return rows
        of_words = np.zeros(logits.shape[-1], dtype=bool)
        for name, kind in self.heads.items():
            of_words[self.slices[name]] = kind.labels_words
        return [
            own._replace(
                logits=np.concatenate([first[None] * ~of_words, own.logits * of_words]),
                places=np.concatenate([[NO_WORD], own.places]),
            )
            for first, own in zip(logits[:, 0], rows, strict=True)
        ]

    def joined(self, rows: Sequence[Outputs]) -> Outputs:
        return self.base.joined(rows)

    def rows_of_head(self, name: str, places: IntArray) -> npt.NDArray[np.bool_]:
        """Return the rows of outputs of one head, by their places."""
        if not self.labels_words:
            return np.ones(len(places), dtype=bool)
        return np.asarray((places != NO_WORD) == self.heads[name].labels_words)

    def of_head(self, name: str, outputs: Outputs) -> Outputs:
        """Return the outputs of one head."""
        own, rows = self.slices[name], self.rows_of_head(name, outputs.places)
        logits = outputs.logits[rows][:, own]
        if not self.heads[name].labels_words:
            return Outputs(logits, np.zeros(len(logits), dtype=np.int64))
        parts = outputs.parts and outputs.parts._replace(logits=outputs.parts.logits[:, own])
        return Outputs(logits, outputs.places[rows], parts)

    def decode(self, outputs: Outputs, example: Example) -> HeadTargets:
        return HeadTargets(
            kind.decode(self.of_head(name, outputs), example) for name, kind in self.heads.items()
        )

    @property
    def has_confidence(self) -> bool:
        return any(kind.has_confidence for kind in self.heads.values())

    def confidence(
        self, outputs: Sequence[Outputs], labels: Sequence[str]
    ) -> npt.NDArray[np.float64]:
        """Return the confidence of the least confident head."""
        of_heads = [
            kind.confidence([self.of_head(name, each) for each in outputs], self.own_labels[name])
            for name, kind in self.heads.items()
            if kind.has_confidence
        ]
        return np.asarray(np.min(of_heads, axis=0))

    def decisions(self, outputs: Outputs) -> IntArray:
        of_heads = [
            kind.decisions(outputs._replace(logits=outputs.logits[:, self.slices[name]]))
            for name, kind in self.heads.items()
        ]
        return np.concatenate(of_heads, axis=1)

    def margins(self, outputs: Outputs) -> npt.NDArray[np.float64]:
        """Return the margins of all heads; infinite for a head that does not read a row."""
        of_heads = []
        for name, kind in self.heads.items():
            own = kind.margins(outputs._replace(logits=outputs.logits[:, self.slices[name]]))
            is_read = self.rows_of_head(name, outputs.places)
            of_heads.append(np.where(is_read[:, None], own, np.inf))
        return np.concatenate(of_heads, axis=1)

    def probable(self, logits: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        parts = (kind.probable(logits[:, self.slices[name]]) for name, kind in self.heads.items())
        return np.concatenate([*parts], axis=1)

    def divergence(self, reference: npt.NDArray[Any], candidate: npt.NDArray[Any]) -> float:
        """Return the sum of the heads' divergences."""
        return sum(
            kind.divergence(reference[:, self.slices[name]], candidate[:, self.slices[name]])
            for name, kind in self.heads.items()
        )

    # requests and responses

    def asked(self, examples: Sequence[Example]) -> tuple[Example, ...]:
        return self.base.asked(examples)

    def asked_columns(self, columns: Sequence[str]) -> tuple[str, ...]:
        return self.base.asked_columns(columns)

    def to_example(self, texts: tuple[str, ...]) -> Example:
        return self.base.to_example(texts)

    def to_texts(self, example: Example) -> tuple[str, ...]:
        return self.base.to_texts(example)

    def response(
        self,
        outputs: Sequence[Outputs],
        examples: Sequence[Example],
        labels: npt.NDArray[np.object_],
        texts: Sequence[Example],
    ) -> dict[str, npt.NDArray[Any]]:
        """Return the tensors of all heads, prefixed with their heads' names."""
        tensors = {}
        for name, kind in self.heads.items():
            own_labels = np.array([each.encode() for each in self.own_labels[name]], np.object_)
            own = [self.of_head(name, each) for each in outputs]
            found = kind.response(own, examples, own_labels, texts)
            tensors.update({f"{name}_{tensor}": array for tensor, array in found.items()})
        return tensors

    def response_of(
        self, tensors: Tensors, rows: slice, examples: Sequence[Example]
    ) -> dict[str, npt.NDArray[Any]]:
        return {
            f"{name}_{tensor}": array
            for name, kind in self.heads.items()
            for tensor, array in kind.response_of(
                _tensors_of(tensors, name), rows, examples
            ).items()
        }

    def read_response(self, tensors: Tensors, row: int, example: Example) -> dict[str, Any]:
        """Return label, score and logits by head, and spans of the head that has spans."""
        found = {
            name: kind.read_response(_tensors_of(tensors, name), row, example)
            for name, kind in self.heads.items()
        }
        spans = [own["spans"] for own in found.values() if "spans" in own]
        values: dict[str, Any] = {
            key: {name: own[key] for name, own in found.items()}
            for key in ("label", "score", "logits")
        }
        return {**values, **({"spans": spans[0]} if spans else {})}

    def logits_at(self, places: Sequence[int] | IntArray, logits: Any) -> npt.NDArray[Any]:
        """Return the logits at some positions (rows, labels), given those of each head by name."""
        found = np.zeros((len(places), max(own.stop for own in self.slices.values())))
        is_word = np.asarray(places) != NO_WORD
        for name, kind in self.heads.items():
            own = self.slices[name]
            if kind.labels_words:
                found[is_word, own] = kind.logits_at(np.asarray(places)[is_word], logits[name])
            else:
                found[0, own] = logits[name]
        return found

    def joined_logits(self, responses: Sequence[Tensors]) -> FloatArray:
        """Return the logits of all heads, (batch, labels) or (batch, 1 + words, labels)."""
        by_head = {
            name: kind.joined_logits([_tensors_of(each, name) for each in responses])
            for name, kind in self.heads.items()
        }
        if not self.labels_words:
            return np.concatenate([*by_head.values()], axis=1)
        words = max(array.shape[1] for array in by_head.values() if array.ndim > 2)
        return np.concatenate(
            [
                np.pad(array, ((0, 0), (1, words - array.shape[1]), (0, 0)))
                if array.ndim > 2
                else np.pad(array[:, None], ((0, 0), (0, words), (0, 0)))
                for array in by_head.values()
            ],
            axis=2,
        )

    def lines(
        self, labels: Sequence[str], scores: Sequence[str], example: Example
    ) -> Iterable[str]:
        """Return no lines: each head has its own spans."""
        return ()


def _tensors_of(tensors: Tensors, name: str) -> dict[str, npt.NDArray[Any]]:
    """Return the tensors of one head without its prefix."""
    start = f"{name}_"
    return {
        tensor.removeprefix(start): array
        for tensor, array in tensors.items()
        if tensor.startswith(start)
    }


def _check(heads: Mapping[str, Problem[Any]]) -> None:
    named = ", ".join(heads)
    if len(heads) < FEWEST:
        raise ConfigError(f"heads {named}: give at least {FEWEST} heads.")
    for name in heads:
        if not NAME.fullmatch(name):
            raise ConfigError(
                f"head {name!r}: a name has letters, digits and underscores, and begins with a "
                "letter. Give NAME:KIND for each head in --problem-type."
            )
        if clash := [other for other in heads if other != name and other.startswith(f"{name}_")]:
            raise ConfigError(
                f"heads {name!r} and {clash[0]!r}: one name is a prefix of the other."
            )
    for name in [name for name, kind in heads.items() if kind.labels_words]:
        if name != [*heads][-1]:
            raise ConfigError(
                f"head {name!r} labels words: only the last head may. The heads are {named}. Name "
                "it, and the column of its labels, last."
            )
    for name, kind in heads.items():
        if not kind.shares_encoder:
            raise ConfigError(
                f"head {name!r}: {kind.name} cannot share an encoder with other heads, as it reads "
                "more than a text. Train a model of it alone."
            )
