"""TOKEN_CLASSIFICATION: each word of a sentence has a tag of the BIO scheme, or a plain one.

O is a word outside of entities, B-TYPE the first word of one, I-TYPE a later one. Tags without
prefixes, such as parts of speech, are labels of their own. A model labels tokens: only the first
token of a word has its tag.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from bertender.core.errors import DataError
from bertender.metrics.metric import NO_LABEL, Parts
from bertender.metrics.tags import (
    BEGIN,
    INSIDE,
    OUTSIDE,
    Entity,
    are_bio,
    are_entity_tags,
    continued,
    entities,
    entities_of,
)
from bertender.problems.problem import (
    SPAN_OUTPUTS,
    SPAN_TENSORS,
    Constant,
    FloatArray,
    IntArray,
    Outputs,
    Problem,
    Softmax,
    Span,
    Tensor,
    Tensors,
    WordParts,
    most_frequent,
    most_spans,
    one_label,
    read_spans,
    softmax_of_largest,
    span_tensors,
)
from bertender.problems.reading import (
    CellError,
    Columns,
    checked_text,
    shown,
    usable_cell,
    visible_text,
)
from bertender.text.batch import Batch, Example, Tokenize, TokenizeWords, keep_words
from bertender.text.tokenizer import CONTINUED_LABELS

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from bertender.text.tokenizer import FileTokenizer

ENTITY = "entity"
"""Label of spans if there is one kind of entity, without a name."""
NO_WORDS = "no words. Leave the sentence out"
WORD_MARK = "\x1f"
"""ASCII's unit separator, before each word of a request if words contain white space. Older servers
read it as white space."""

Tags = tuple[int, ...]
"""Tag number of each word."""


class TokenClassification(Softmax, Problem[Tags]):
    """Each word of a sentence has a tag."""

    name = "token_classification"
    summary = "each word of a sentence has a tag, BIO or plain"
    columns = Columns(("words",), "tags")
    metrics = ("entity_f1", "tag_accuracy")
    model_class = "AutoModelForTokenClassification"
    response_tensors = (
        Tensor("LABEL", "TYPE_STRING", (-1,)),
        Tensor("SCORE", "TYPE_FP32", (-1,)),
        Tensor("LOGITS", "TYPE_FP32", (-1, None)),
        *SPAN_OUTPUTS,
    )
    per_token = True
    labels_words = True
    shares_encoder = True
    separator = " "
    tokenizer_settings: Mapping[str, Any] = {"add_prefix_space": True}
    model_settings: Mapping[str, Any] = {"problem_type": None}

    def settings_to_learn(self, labels: Sequence[str]) -> Mapping[str, Any]:
        """Return settings that split words into parts; see `tokenizer`."""
        numbers = {label: number for number, label in enumerate(labels)}
        later = [numbers.get(continued(label), number) for label, number in numbers.items()]
        return {**self.tokenizer_settings, CONTINUED_LABELS: later}

    def read(
        self, values: Mapping[str, object], columns: Columns
    ) -> tuple[Example, tuple[str, ...]]:
        words, tags = (_strings(values, column) for column in (columns.texts[0], columns.label))
        if not words:
            raise CellError(columns.texts[0], NO_WORDS)
        if len(words) != len(tags):
            problem = f"{len(tags)} tags for {len(words)} words. Give one for each"
            raise CellError(columns.label, problem)
        return words, tags

    def label_names(self, found: Sequence[Sequence[str]]) -> tuple[str, ...]:
        """Return O, and for each type of entity, alphabetically, its two possible tags.

        Plain tags follow O alphabetically. O is always included, as the tag of words that the model
        does not see.
        """
        tags = {tag for tags in found for tag in tags} - {OUTSIDE}
        if not are_bio(tags):
            return (OUTSIDE, *sorted(tags))
        types = sorted({tag[len(BEGIN) :] for tag in tags})
        return (OUTSIDE, *(prefix + entity for entity in types for prefix in (BEGIN, INSIDE)))

    def metrics_of(self, labels: Sequence[str], targets: Sequence[Tags]) -> tuple[str, ...]:
        """Return the F1 of entities first, or the accuracy of plain tags."""
        return self.metrics if are_entity_tags(labels) else self.metrics[::-1]

    def number(self, label: Sequence[str], numbers: Mapping[str, int]) -> Tags:
        return tuple(numbers[tag] for tag in label)

    def unlabelled(self, example: Example) -> tuple[int, ...]:
        return (NO_LABEL,) * len(example)

    def by_names(self, target: Tags, labels: Sequence[str]) -> tuple[str, ...]:
        return tuple(labels[tag] for tag in target)

    def labels_of(self, target: Tags) -> Tags:
        return target

    def parts(self, target: Tags, labels: Sequence[str]) -> Parts:
        """Return the entities, or the tags of words if tags are plain."""
        return entities(target, labels)

    def scored_labels(self, labels: Sequence[str]) -> Sequence[str]:
        """Return none: only types of entities that occur are scored."""
        return ()

    def constant(
        self, targets: Sequence[Tags], labels: Sequence[str]
    ) -> tuple[str, Callable[[Example], Tags]]:
        """Return the most frequent tag for each word."""
        tag = most_frequent(itertools.chain.from_iterable(targets))
        return labels[tag], lambda example: (tag,) * len(example)

    def same_everywhere(
        self, predictions: Sequence[Tags], targets: Sequence[Tags], labels: Sequence[str]
    ) -> tuple[Constant, ...]:
        predicted, truth = map(itertools.chain.from_iterable, (predictions, targets))
        return one_label(predicted, truth, labels)

    def edge_examples(self, examples: Sequence[Example], tokens: int) -> tuple[Example, Example]:
        words = itertools.chain.from_iterable(itertools.cycle(examples))
        return examples[0][:1], tuple(
            itertools.islice(words, tokens)
        )  # a word has at least one token

    def encoder(
        self, tokenizer: PreTrainedTokenizerBase | FileTokenizer, max_length: int | None = None
    ) -> Tokenize:
        return TokenizeWords(tokenizer, max_length)

    def keep_text(self, examples: Sequence[Example]) -> Batch:
        return keep_words(examples)

    def logits_shape(self, batch: Batch, labels: int) -> tuple[int | None, ...]:
        return (*_words_of(batch).shape, labels)

    def row_outputs(self, logits: FloatArray, batch: Batch) -> list[Outputs]:
        """Return the logits of the first token of each word that is not truncated."""
        words = _words_of(batch)  # (batch, seq)
        if batch.parts is None:
            return [Outputs(logits[row][own >= 0], own[own >= 0]) for row, own in enumerate(words)]
        found = []
        for row, (own, offsets) in enumerate(zip(words, batch.parts, strict=True)):
            later = offsets > 0
            last = np.maximum.accumulate(own)  # the word that began last
            parts = WordParts(logits[row][later], last[later], offsets[later])
            found.append(Outputs(logits[row][own >= 0], own[own >= 0], parts))
        return found

    def decode(self, outputs: Outputs, example: Example) -> Tags:
        """Return a tag for each word; O for words that the model does not see."""
        tags = np.zeros(len(example), dtype=np.int64)  # `label_names` has O first
        tags[outputs.places] = outputs.logits.argmax(axis=1)
        return tuple(tags.tolist())

    def truth_of(
        self, outputs: Outputs, target: Tags, labels: int
    ) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
        tags = np.asarray(target, dtype=np.int64)[outputs.places]
        truth = np.zeros((len(tags), labels), dtype=bool)
        known = tags >= 0
        truth[np.flatnonzero(known), tags[known]] = True
        return truth, known

    def to_example(self, texts: tuple[str, ...]) -> Example:
        """Return the words of a sentence."""
        if len(texts) != 1:
            raise DataError(f"{len(texts)} texts, and a tagger reads one sentence. Give one text.")
        (text,) = texts
        if text.startswith(WORD_MARK):
            return tuple(text.removeprefix(WORD_MARK).split(WORD_MARK))
        return tuple(text.split())

    def text_counts(self, columns: int | None) -> tuple[int, int | None]:
        """Return one word, or more; a sentence may also be one text."""
        return 1, None

    def text_of_cell(self, values: Mapping[str, object], column: str) -> str:
        """Return the text in a cell unchanged, as spans are character positions in it; or that of
        a list of words."""
        if isinstance(values.get(column), (list, tuple)):
            if words := _strings(values, column):
                return self.text_of(words)
            raise CellError(column, NO_WORDS)
        return visible_text(usable_cell(values, column), column)

    def to_texts(self, example: Example) -> tuple[str, ...]:
        """Return the sentence of some words; a single text is unchanged."""
        return example if len(example) == 1 else (self.text_of(example),)

    def text_of(self, words: Example) -> str:
        """Return the text of words for a request, with marks if words have white space.

        Raises:
            DataError: a word contains the mark itself.
        """
        if not any(len(word.split()) > 1 for word in words):
            return " ".join(words)
        if marked := [word for word in words if WORD_MARK in word]:
            raise DataError(
                f"the word {marked[0]!r} has the character {WORD_MARK!r}, which separates words in "
                "requests. Leave it out."
            )
        return "".join(WORD_MARK + word for word in words)

    def response(
        self,
        outputs: Sequence[Outputs],
        examples: Sequence[Example],
        labels: npt.NDArray[np.object_],
        texts: Sequence[Example],
    ) -> dict[str, npt.NDArray[Any]]:
        """Return (batch, words) tensors, as long as the longest sentence, and (batch, spans)
        tensors, as long as the largest number of spans, padded with empty values.

        Words that the model does not see are O, with score 0 and logits 0.
        """
        shape = len(examples), max(map(len, examples))
        names = np.full(shape, b"", dtype=np.object_)
        scores = np.zeros(shape, dtype=np.float32)
        logits = np.zeros((*shape, len(labels)), dtype=np.float32)
        for row, (own, example) in enumerate(zip(outputs, examples, strict=True)):
            names[row, : len(example)] = labels[0]
            names[row, own.places] = labels[own.logits.argmax(axis=1)]
            scores[row, own.places] = softmax_of_largest(own.logits, self.temperature)
            logits[row, own.places] = own.logits
        named = [label.decode() for label in labels]
        sentences = zip(outputs, examples, texts, strict=True)
        spans = [
            spans_of(own, words, text, named, self.temperature) for own, words, (text,) in sentences
        ]
        return {"LABEL": names, "SCORE": scores, "LOGITS": logits, **span_tensors(spans)}

    def response_of(
        self, tensors: Tensors, rows: slice, examples: Sequence[Example]
    ) -> dict[str, npt.NDArray[Any]]:
        """Return tensors as long as the request's longest sentence and largest number of spans."""
        words = max(map(len, examples))
        spans = most_spans(tensors, rows)
        return {
            name: np.ascontiguousarray(array[rows, : spans if name in SPAN_TENSORS else words])
            for name, array in tensors.items()
        }

    def read_response(self, tensors: Tensors, row: int, example: Example) -> dict[str, Any]:
        count = len(example)
        return {
            "spans": read_spans(tensors, row),
            "label": tuple(label.decode() for label in tensors["LABEL"][row, :count]),
            "score": tuple(tensors["SCORE"][row, :count].tolist()),
            "logits": tuple(tuple(word) for word in tensors["LOGITS"][row, :count].tolist()),
        }

    def lines(self, labels: Sequence[str], scores: Sequence[str], example: Example) -> list[str]:
        """Return a line for each word, and an empty one."""
        words = zip(labels, scores, example, strict=True)
        return [*("\t".join(each) for each in words), ""]


def spans_of(
    outputs: Outputs, words: Example, text: str, labels: Sequence[str], temperature: float = 1.0
) -> list[Span]:
    """Return the spans of a text, in their order.

    Entities are read from the tags of all parts of words that the model sees; with plain tags, a
    span is a run of equal tags in one word. The score is the mean probability of the tags.

    Args:
        outputs: outputs for the text.
        words: number of its words.
        text: text as in the request. If its words follow WORD_MARKs, offsets refer to the words
            joined by spaces.
        labels: labels of the model.
        temperature: temperature of its calibration.
    """
    text, starts = _placed(words, text)
    logits, owners, offsets = outputs.logits, outputs.places, np.zeros_like(outputs.places)
    if outputs.parts is not None:
        logits = np.concatenate([logits, outputs.parts.logits])
        owners = np.concatenate([owners, outputs.parts.words])
        offsets = np.concatenate([offsets, outputs.parts.offsets])
    order = np.lexsort((offsets, owners))
    owned = owners[order].tolist()
    begins = [
        starts[word] + offset for word, offset in zip(owned, offsets[order].tolist(), strict=True)
    ]
    ends = [
        min(following, starts[word] + len(words[word]))
        for word, following in zip(owned, [*begins, len(text)][1:], strict=True)
    ]
    tags = [labels[number] for number in logits[order].argmax(axis=1)]
    scores = softmax_of_largest(logits[order], temperature)
    found_in = entities_of(tags) if are_entity_tags(labels) else _runs(tags, owned)
    found = []
    for entity in found_in:
        start, end = begins[entity.first], ends[entity.end - 1]
        score = float(scores[entity.first : entity.end].mean())
        found.append(Span(entity.kind or ENTITY, score, start, end, text[start:end]))
    return found


def _placed(words: Example, text: str) -> tuple[str, list[int]]:
    """Return the text of the offsets, and each word's start in it."""
    if text.startswith(WORD_MARK):
        text = " ".join(words)
    starts, end = [], 0
    for word in words:
        starts.append(text.index(word, end))  # only white space separates words
        end = starts[-1] + len(word)
    return text, starts


def _runs(tags: Sequence[str], owners: Sequence[int]) -> list[Entity]:
    """Return the runs of parts of a word with equal plain tags."""
    runs: list[Entity] = []
    pairs = enumerate(zip(owners, tags, strict=True))
    for (_, tag), run in itertools.groupby(pairs, key=lambda part: part[1]):
        places = [place for place, _ in run]
        if tag != OUTSIDE:
            runs.append(Entity(tag, places[0], places[-1] + 1))
    return runs


def _strings(values: Mapping[str, object], column: str) -> tuple[str, ...]:
    cell = usable_cell(values, column)
    if not isinstance(cell, (list, tuple)):
        raise CellError(column, f"{shown(cell)} is not a list. Give a list of strings, one a word")
    return tuple(checked_text(value, column) for value in cell)


def _words_of(batch: Batch) -> IntArray:
    assert batch.words is not None, "an encoder of words states where they begin"
    return batch.words


TOKEN_CLASSIFICATION = TokenClassification()
