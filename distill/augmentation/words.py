"""Words of a text and of a vocabulary, and the language model that proposes replacements."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from bertender.core.artifact import Artifact
from bertender.core.errors import BertenderError, ModelError
from bertender.training.checkpoint import tensors_digest
from distill.pretraining.vocabularies import MARKS
from distill.teachers.encoders import (
    find_encoder,
    is_available,
    load_reader_of_words,
)

logger = logging.getLogger(__name__)

Span = tuple[int, int]
"""Start and end of a word in its text, in characters."""

LETTERS = rf"\w[\w{MARKS}]*"
WORD = re.compile(rf"{LETTERS}(?:['’]{LETTERS})*")  # noqa: RUF001  # a typographic apostrophe is meant

_NO_MARKS = dict.fromkeys(map(ord, MARKS))

FORMS_OF_DO = frozenset(("did", "does", "doing", "don", "didn", "doesn"))
CONTRACTED = frozenset(("ca", "ll", "re", "sha", "ve", "wo"))
"""Parts of words where treebanks cut contractions: they 'll, ca n't."""

STOP_WORDS = ENGLISH_STOP_WORDS | FORMS_OF_DO | CONTRACTED
"""scikit-learn's list, with additions."""

Rewrite = Callable[[str, np.random.Generator], str]
"""(text, random generator) -> rewritten text, possibly unchanged"""


@dataclass(frozen=True)
class LanguageModel:
    """An encoder with a masked-language-model head, in eval mode, and its tokenizer."""

    source: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase

    @property
    def digest(self) -> str:
        """A sha256 of all weights, including the head."""
        return tensors_digest(self.model.state_dict())


@dataclass(frozen=True)
class Material:
    """Sources of an augmentation's words."""

    texts: tuple[str, ...]
    """Distinct texts to rewrite."""
    teacher: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    """The teacher's."""
    language_model: LanguageModel | None = None
    bf16: bool = False
    """Compute in bf16, like the training run."""


def is_alphabetic(word: str) -> bool:
    """Return whether a word has only letters, and marks of them."""
    return word.translate(_NO_MARKS).isalpha()


def word_spans(text: str) -> list[Span]:
    """Return the spans of words: runs of letters and digits, joined by inner apostrophes."""
    return [match.span() for match in WORD.finditer(text)]


def replaceable_words(text: str) -> list[Span]:
    """Return the spans of words of at least two letters, and only letters, except stop words."""
    spans = []
    for start, end in word_spans(text):
        word = text[start:end]
        if len(word) > 1 and is_alphabetic(word) and word.lower() not in STOP_WORDS:
            spans.append((start, end))
    return spans


def with_words(text: str, words: Mapping[Span, str]) -> str:
    """Return the text with the words at some spans replaced."""
    parts, place = [], 0
    for (start, end), word in sorted(words.items()):
        parts += [text[place:start], word]
        place = end
    return "".join((*parts, text[place:]))


@dataclass(frozen=True)
class WholeWords:
    """Words of at least two letters that are a single token, by token id."""

    words: Mapping[int, str]

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase) -> Self:
        """Find the whole words of a tokenizer: decoded, and encoded after a space, the id remains.

        This excludes tokens that continue a word, however an architecture marks them.

        Raises:
            ModelError: there are fewer than two whole words, or the tokenizer has no token offsets.
        """
        if not tokenizer.is_fast:
            raise ModelError(
                f"the tokenizer of {tokenizer.name_or_path} has no offsets of its tokens in "
                "a text. Augmentation needs one with a tokenizer.json."
            )
        decoded = tokenizer.batch_decode([[number] for number in range(len(tokenizer))])
        words = [word.strip() for word in decoded]
        letters = {n: word for n, word in enumerate(words) if len(word) > 1 and is_alphabetic(word)}
        each = zip(letters.items(), _tokens(tokenizer, letters.values()), strict=True)
        whole = cls({number: word for (number, word), ids in each if ids == [number]})
        if len(whole.words) < 2:
            raise ModelError(
                f"the vocabulary of {tokenizer.name_or_path} has {len(whole.words)} tokens that "
                "are words. Augmentation needs one of whole words."
            )
        return whole

    @property
    def ids(self) -> torch.Tensor:
        """The ids in ascending order, (words,)."""
        return torch.tensor(sorted(self.words))

    def numbered(self, words: Iterable[str], tokenizer: PreTrainedTokenizerBase) -> dict[str, int]:
        """Return the ids of the single-token words among `words`."""
        each = list(words)
        pairs = zip(each, _tokens(tokenizer, each), strict=True)
        return {word: ids[0] for word, ids in pairs if len(ids) == 1 and ids[0] in self.words}


def _tokens(tokenizer: PreTrainedTokenizerBase, words: Iterable[str]) -> list[list[int]]:
    """Return the token ids of each word inside a text."""
    spaced = [f" {word}" for word in words]
    if not spaced:
        return []
    ids: list[list[int]] = tokenizer(spaced, add_special_tokens=False)["input_ids"]
    return ids


def find_language_model(teacher: Artifact, name: str | None) -> LanguageModel | None:
    """Load the language model `name`, or else the teacher's nearest ancestor that is one.

    Returns None where no name is set and no ancestor on this machine has the head.

    Raises:
        ModelError, HubUnreachableError, DamagedArtifactError: the named model cannot be loaded, or
            has no masked-language-model head.
    """
    if name is not None:
        return load_language_model(find_encoder(name, setting="augmentation-model"))
    for source in _origins(teacher):
        try:
            return load_language_model(source)
        except ModelError as error:
            logger.info("%s", error)
    return None


def load_language_model(source: str) -> LanguageModel:
    """Load an encoder with its masked-language-model head, in float32, on the fastest device.

    Args:
        source: a folder or a hub name.

    Raises:
        ModelError: the model has no such head, no mask token, or cannot be loaded.
    """
    quiet = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()  # it reports at length that a head is missing
    try:
        model, tokenizer = load_reader_of_words(source)
    finally:
        transformers_logging.set_verbosity(quiet)
    model.to(torch.device("cuda" if torch.cuda.is_available() else "cpu"))  # type: ignore[arg-type]
    return LanguageModel(source, model.eval(), tokenizer)


def _origins(artifact: Artifact) -> Iterator[str]:
    """Yield the sources of an artifact, nearest first: its parents, then an encoder."""
    parent, teacher = artifact.card.parent, artifact.card.config.get("teacher")
    try:
        if parent is not None:
            origin = Artifact.load(artifact.path / parent.path)
            yield str(origin.path)
            yield from _origins(origin)
        elif isinstance(teacher, str) and is_available(teacher):
            yield find_encoder(teacher)
    except BertenderError as error:
        logger.info("%s: what it was made from cannot be read: %s", artifact.path, error)
