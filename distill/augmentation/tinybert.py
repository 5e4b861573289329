"""TinyBERT's data augmentation (Jiao et al. 2019, arXiv 1909.10351, Algorithm 1).

Each word of letters alone that is not a stop word has 15 candidates. Where a masked language model
is available and the word is one token, they are the model's likeliest words in its place, given
the masked text and the text itself. Otherwise they are the words nearest to it in a table
of embeddings. A copy of the text replaces each word with probability 0.4 by one of its candidates,
drawn evenly.
Departures: the embeddings are the teacher's own, where the paper has GloVe. Vectors of tokens do
not add up to that of a word, so that words of several tokens stay as they are. The candidates are
other words than the one replaced and whole words of letters, and are 15 after these are chosen
(the paper takes 15 tokens and then drops those that continue a word). Both texts of a pair are
rewritten in each copy, each on its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from distill.augmentation.augmentation import Material, Rewrite
from distill.augmentation.masked_words import masked_words
from distill.augmentation.neighbours import nearest_words
from distill.augmentation.whole_words import WholeWords
from distill.augmentation.words import Span, replaceable_words, with_words

__all__ = ["replacing", "rewriter"]

CANDIDATES = 15
REPLACED_SHARE = 0.4

Candidates = Mapping[Span, Sequence[str]]
"""Words that may stand at a place of a text."""


def replacing(candidates: Callable[[str], Candidates], share: float) -> Rewrite:
    """Replace each word that has candidates by one of them, with probability `share`."""

    def rewrite(text: str, generator: np.random.Generator) -> str:
        choices = candidates(text)
        draws = generator.random((len(choices), 2))
        chosen = {
            span: words[int(pick * len(words))]
            for (span, words), (chance, pick) in zip(choices.items(), draws, strict=True)
            if chance < share
        }
        return with_words(text, chosen)

    return rewrite


def rewriter(material: Material) -> Rewrite:
    """Return what rewrites a text."""
    if material.language_model is None:
        return replacing(_near_words(material), REPLACED_SHARE)
    likely = masked_words(material.language_model, material.texts, CANDIDATES, material.bf16)
    return replacing(likely.__getitem__, REPLACED_SHARE)


def _near_words(material: Material) -> Callable[[str], Candidates]:
    whole = WholeWords.of(material.tokenizer)
    words = {text[slice(*span)] for text in material.texts for span in replaceable_words(text)}
    ids = whole.numbered(sorted(words), material.tokenizer)
    embeddings = material.teacher.get_input_embeddings().get_parameter("weight").detach().cpu()
    near = nearest_words(embeddings, whole, sorted(set(ids.values())), CANDIDATES)

    def candidates(text: str) -> Candidates:
        spans = ((span, ids.get(text[slice(*span)])) for span in replaceable_words(text))
        return {span: near[number] for span, number in spans if number is not None}

    return candidates
