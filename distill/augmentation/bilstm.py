"""Data augmentation for a BiLSTM student (Tang et al. 2019, arXiv 1903.12136, section 3.2).

Each word is masked with probability 0.1, or, with another 0.1, replaced by a word of its class,
drawn as often as it stands in the texts. Then, with probability 0.25, one run of 1 to 5 words is
all that remains of the text. Of a pair the first text alone is rewritten, then the second alone,
then both, in turn.
Departures: classes replace the tags of a part-of-speech tagger, and are found by the
form and the company of words (`word_classes`): they are coarser than tags, a word has one class
wherever it stands, and they are made for English; words of other languages fall into few classes.
Words keep what stands between them, where the paper joins tokens with spaces.
"""

from __future__ import annotations

import numpy as np

from distill.augmentation.augmentation import Material, Rewrite
from distill.augmentation.word_classes import WordClasses
from distill.augmentation.words import Span, with_words, word_spans

__all__ = ["dropping_and_swapping", "rewriter"]

MASKED_SHARE = 0.1
SWAPPED_SHARE = 0.1
CUT_SHARE = 0.25
LONGEST_RUN = 5


def dropping_and_swapping(classes: WordClasses, mask: str) -> Rewrite:
    """Mask words, swap words within their class, and cut out a run of them."""

    def rewrite(text: str, generator: np.random.Generator) -> str:
        spans = word_spans(text)
        draws = generator.random((len(spans), 2))
        cut, length, place = generator.random(3)
        words = {}
        for span, (chance, pick) in zip(spans, draws, strict=True):
            if chance < MASKED_SHARE:
                words[span] = mask
            elif chance < MASKED_SHARE + SWAPPED_SHARE:
                words[span] = classes.draw(text[slice(*span)], pick)
        run = _run(spans, 1 + int(length * LONGEST_RUN), place) if cut < CUT_SHARE else spans
        return _cut(text, spans, run, words)

    return rewrite


def _run(spans: list[Span], length: int, place: float) -> list[Span]:
    """Return a run of words that begins at `place`, a share in [0, 1) of its possible starts."""
    first = int(place * max(len(spans) - length + 1, 1))
    return spans[first : first + length]


def _cut(text: str, spans: list[Span], run: list[Span], words: dict[Span, str]) -> str:
    """Return the text with its new words; where not all words are in the run, only the run."""
    if len(run) == len(spans):
        return with_words(text, words)
    start, end = run[0][0], run[-1][1]
    weights = {
        (first - start, last - start): words[first, last]
        for first, last in run
        if (first, last) in words
    }
    return with_words(text[start:end], weights)


def rewriter(material: Material) -> Rewrite:
    """Return what rewrites a text."""
    tokenizer = material.tokenizer
    return dropping_and_swapping(
        WordClasses(material.texts), tokenizer.mask_token or tokenizer.unk_token
    )
