"""TOKEN_CLASSIFICATION: each word of a sentence has a tag of the BIO scheme, or a plain one.

O is outside of every entity, B-TYPE the first word of one, I-TYPE another word of it. Tags without
these prefixes, such as parts of speech, are labels of their own. A model labels tokens: the first
token of a word has its tag, and no other token has one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from bertender.core.errors import DataError
from bertender.metrics.by_label import Parts
from bertender.metrics.tags import entities
from bertender.problems.problem import (
    NO_LABEL,
    CellError,
    Columns,
    Constant,
    FloatArray,
    IntArray,
    Outputs,
    Problem,
    Tensor,
    Tensors,
    checked_text,
    most_frequent,
    one_label,
    shown,
    softmax_of_largest,
    usable_cell,
)
from bertender.problems.tag_schemes import BEGIN, INSIDE, OUTSIDE, are_bio, are_entity_tags
from bertender.text.batch import Batch, Example, Tokenize, TokenizeWords, keep_words

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from bertender.text.tokenizer import FileTokenizer

WORD_MARK = "\x1f"
"""The unit separator of ASCII: before each word of a request whose words hold white space. Earlier
servers read it as white space."""

Tags = tuple[int, ...]
"""The number of the tag of each word."""


class TokenClassification(Problem[Tags]):
    """Each word of a sentence has a tag."""

    name = "token_classification"
    summary = "each word of a sentence has a tag, BIO or plain"
    columns = Columns(("words",), "tags")
    metrics = ("entity_f1", "tag_accuracy")
    model_class = "AutoModelForTokenClassification"
    onnx_task = "token-classification"
    response_tensors = (
        Tensor("LABEL", "TYPE_STRING", (-1,)),
        Tensor("SCORE", "TYPE_FP32", (-1,)),
        Tensor("LOGITS", "TYPE_FP32", (-1, None)),
    )
    labels_words = True
    separator = " "
    tokenizer_settings: Mapping[str, Any] = {"add_prefix_space": True}
    model_settings: Mapping[str, Any] = {"problem_type": None}

    def read(
        self, values: Mapping[str, object], columns: Columns
    ) -> tuple[Example, tuple[str, ...]]:
        words, tags = (_strings(values, column) for column in (columns.texts[0], columns.label))
        if not words:
            raise CellError(columns.texts[0], "no words. Leave the sentence out")
        if len(words) != len(tags):
            problem = f"{len(tags)} tags for {len(words)} words. There must be one for each"
            raise CellError(columns.label, problem)
        return words, tags

    def label_names(self, found: Sequence[Sequence[str]]) -> tuple[str, ...]:
        """Return O, and for each type of entity by alphabet the two tags that it can have.

        Plain tags come after O by alphabet. O is there in any case: a word that the model does not
        see has it.
        """
        tags = {tag for tags in found for tag in tags} - {OUTSIDE}
        if not are_bio(tags):
            return (OUTSIDE, *sorted(tags))
        types = sorted({tag[len(BEGIN) :] for tag in tags})
        return (OUTSIDE, *(prefix + entity for entity in types for prefix in (BEGIN, INSIDE)))

    def usual_metric(self, labels: Sequence[str]) -> str:
        """Return the F1 of entities, or the share of words where tags mark none."""
        return "entity_f1" if are_entity_tags(labels) else "tag_accuracy"

    def number(self, label: Sequence[str], numbers: Mapping[str, int]) -> Tags:
        return tuple(numbers[tag] for tag in label)

    def unlabelled(self, example: Example) -> tuple[int, ...]:
        return (NO_LABEL,) * len(example)

    def by_names(self, target: Tags, labels: Sequence[str]) -> tuple[str, ...]:
        return tuple(labels[tag] for tag in target)

    def labels_of(self, target: Tags) -> Tags:
        return target

    def parts(self, target: Tags, labels: Sequence[str]) -> Parts:
        """Return the entities, or the tags of words where tags are plain."""
        return entities(target, labels)

    def scored_labels(self, labels: Sequence[str]) -> Sequence[str]:
        """Return none: the types of entities that occur are scored."""
        return ()

    def constant(
        self, targets: Sequence[Tags], labels: Sequence[str]
    ) -> tuple[str, Callable[[Example], Tags]]:
        """Return the most frequent tag, for each word."""
        tag = most_frequent(itertools.chain.from_iterable(targets))
        return labels[tag], lambda example: (tag,) * len(example)

    def same_everywhere(
        self, predictions: Sequence[Tags], targets: Sequence[Tags], labels: Sequence[str]
    ) -> Constant | None:
        predicted, truth = map(itertools.chain.from_iterable, (predictions, targets))
        return one_label(predicted, truth, labels)

    def edge_examples(self, examples: Sequence[Example], tokens: int) -> tuple[Example, Example]:
        words = itertools.chain.from_iterable(itertools.cycle(examples))
        return examples[0][:1], tuple(itertools.islice(words, tokens))  # a word is a token at least

    def encoder(
        self, tokenizer: PreTrainedTokenizerBase | FileTokenizer, max_length: int | None = None
    ) -> Tokenize:
        return TokenizeWords(tokenizer, max_length)

    def keep_text(self, examples: Sequence[Example]) -> Batch:
        return keep_words(examples)

    def logits_shape(self, batch: Batch, labels: int) -> tuple[int, ...]:
        return (*_words_of(batch).shape, labels)

    def row_outputs(self, logits: FloatArray, batch: Batch) -> list[Outputs]:
        """Return the logits of the first token of each word; words that are cut off have none."""
        words = _words_of(batch)  # (batch, seq)
        return [Outputs(logits[row][own >= 0], own[own >= 0]) for row, own in enumerate(words)]

    def decode(self, outputs: Outputs, example: Example) -> Tags:
        """Return a tag for each word; one that the model does not see is outside of any."""
        tags = np.zeros(len(example), dtype=np.int64)  # `label_names` has O first
        tags[outputs.places] = outputs.logits.argmax(axis=1)
        return tuple(tags.tolist())

    def to_example(self, texts: tuple[str, ...]) -> Example:
        """Return the words of a sentence."""
        if len(texts) != 1:
            raise DataError(
                f"{len(texts)} texts, and a tagger reads one sentence. Give one text alone."
            )
        (text,) = texts
        if text.startswith(WORD_MARK):
            return tuple(text.removeprefix(WORD_MARK).split(WORD_MARK))
        return tuple(text.split())

    def to_texts(self, example: Example) -> tuple[str, ...]:
        """Return the sentence of some words; a single text stays as it is."""
        if len(example) == 1 or not any(len(word.split()) > 1 for word in example):
            return (" ".join(example),)
        if marked := [word for word in example if WORD_MARK in word]:
            raise DataError(
                f"the word {marked[0]!r} has the character {WORD_MARK!r}, which separates words on "
                "their way to a server. Leave it out."
            )
        return ("".join(WORD_MARK + word for word in example),)

    def response(
        self,
        outputs: Sequence[Outputs],
        examples: Sequence[Example],
        labels: npt.NDArray[np.object_],
    ) -> dict[str, npt.NDArray[Any]]:
        """Return (batch, words) tensors, as long as the longest sentence; what is beyond is empty.

        A word that the model does not see is O, with score 0 and logits 0.
        """
        shape = len(examples), max(map(len, examples))
        names = np.full(shape, b"", dtype=np.object_)
        scores = np.zeros(shape, dtype=np.float32)
        logits = np.zeros((*shape, len(labels)), dtype=np.float32)
        for row, (own, example) in enumerate(zip(outputs, examples, strict=True)):
            names[row, : len(example)] = labels[0]
            names[row, own.places] = labels[own.logits.argmax(axis=1)]
            scores[row, own.places] = softmax_of_largest(own.logits)
            logits[row, own.places] = own.logits
        return {"LABEL": names, "SCORE": scores, "LOGITS": logits}

    def response_of(
        self, tensors: Tensors, rows: slice, examples: Sequence[Example]
    ) -> dict[str, npt.NDArray[Any]]:
        """Return tensors as long as the longest sentence of the request."""
        longest = max(map(len, examples))
        return {
            name: np.ascontiguousarray(array[rows, :longest]) for name, array in tensors.items()
        }

    def read_response(self, tensors: Tensors, row: int, example: Example) -> dict[str, Any]:
        count = len(example)
        return {
            "label": tuple(label.decode() for label in tensors["LABEL"][row, :count]),
            "score": tuple(tensors["SCORE"][row, :count].tolist()),
            "logits": tuple(tuple(word) for word in tensors["LOGITS"][row, :count].tolist()),
        }

    def joined_logits(self, responses: Sequence[Tensors]) -> FloatArray:
        """Return (batch, words, labels), as long as the longest sentence of all responses."""
        longest = max(tensors["LOGITS"].shape[1] for tensors in responses)
        padded = [
            np.pad(tensors["LOGITS"], ((0, 0), (0, longest - tensors["LOGITS"].shape[1]), (0, 0)))
            for tensors in responses
        ]
        return np.concatenate(padded)

    def lines(self, labels: Sequence[str], scores: Sequence[str], example: Example) -> list[str]:
        """Return a line for each word, and then an empty one."""
        words = zip(labels, scores, example, strict=True)
        return [*("\t".join(each) for each in words), ""]


def _strings(values: Mapping[str, object], column: str) -> tuple[str, ...]:
    cell = usable_cell(values, column)
    if not isinstance(cell, (list, tuple)):
        raise CellError(column, f"{shown(cell)} is not a list. Give a list of strings, one a word")
    return tuple(checked_text(value, column) for value in cell)


def _words_of(batch: Batch) -> IntArray:
    assert batch.words is not None, "an encoder of words states where they begin"
    return batch.words


TOKEN_CLASSIFICATION = TokenClassification()
