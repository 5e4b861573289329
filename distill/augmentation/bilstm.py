"""Data augmentation for a BiLSTM student (Tang et al. 2019, arXiv 1903.12136, section 3.2).

Each word is masked with probability 0.1, or, with another 0.1, replaced by a word of its class,
drawn by frequency in the texts. Then, with probability 0.25, the text is cut to one run of 1 to 5
words. In a pair the first text alone is rewritten, then the second alone, then both, in turn.
Departures: word classes replace the tags of a part-of-speech tagger, and are found from the form
and the neighbours of words (`WordClasses`). They are coarser than tags, a word has one class in all
contexts, and they are made for English; words of other languages fall into few classes. Spaces and
punctuation between words are kept, where the paper joins tokens with spaces.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from distill.augmentation.words import (
    Material,
    Rewrite,
    is_alphabetic,
    with_words,
    word_spans,
)

MASKED_SHARE = 0.1
SWAPPED_SHARE = 0.1
CUT_SHARE = 0.25
LONGEST_RUN = 5

CLOSED_CLASSES: Mapping[str, str] = {
    "determiner": "a an the this that these those my your his her its our their some any no every "
    "each another",
    "pronoun": "i you he she it we they me him us them someone anyone everyone something anything "
    "everything nothing",
    "preposition": "of in for with on at by from about as into like through after over between out "
    "against during without before under around among",
    "conjunction": "and or but nor yet if because although though while than",
    "question": "who what which when where why how whose",
    "auxiliary": "is are was were be been am has have had",
    "modal": "can could will would shall should may might must",
    "degree": "very too so more most less least quite rather",
    "to": "to",
    "negation": "not never",
}
"""Words of each closed class; no word is in two classes."""

TELLING_ENDINGS: Mapping[str, tuple[str, ...]] = {
    "adverb": ("ly",),
    "noun": ("tion", "sion", "ness", "ment", "ity", "ism", "ance", "ence", "ship"),
    "nouns": ("tions", "sions", "ments", "ities", "isms", "ships"),
    "adjective": ("ful", "less", "ous", "ive", "able", "ible", "ical"),
}
OTHER_ENDINGS = ("ing", "ed", "est", "s", "")
"""Endings shared by several classes; the first that fits counts."""

SHORTEST_STEM = 2

_CLOSED = {word: name for name, words in CLOSED_CLASSES.items() for word in words.split()}


def rewriter(material: Material) -> Rewrite:
    """Return the rewriter of this augmentation."""
    tokenizer = material.tokenizer
    return dropping_and_swapping(
        WordClasses(material.texts), tokenizer.mask_token or tokenizer.unk_token
    )


def dropping_and_swapping(classes: WordClasses, mask: str) -> Rewrite:
    """Return a rewriter that masks words, swaps words within their class, and cuts out a run."""

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
        longest = 1 + int(length * LONGEST_RUN)
        if cut >= CUT_SHARE or len(spans) <= longest:
            return with_words(text, words)
        first = int(place * (len(spans) - longest + 1))
        run = spans[first : first + longest]
        start, end = run[0][0], run[-1][1]
        inside = {(a - start, b - start): words[a, b] for a, b in run if (a, b) in words}
        return with_words(text[start:end], inside)

    return rewrite


class WordClasses:
    """Words of some texts by class, drawn by their frequency."""

    def __init__(self, texts: Iterable[str]) -> None:
        sentences = [[text[slice(*span)].lower() for span in word_spans(text)] for text in texts]
        counts = Counter(word for words in sentences for word in words if is_alphabetic(word))
        self._class_of = _classify_words(counts, sentences)
        members: dict[object, list[str]] = defaultdict(list)
        for word in sorted(counts):
            members[self._class_of[word]].append(word)
        self._members = {
            name: (words, np.cumsum([counts[word] for word in words]))
            for name, words in members.items()
        }

    def draw(self, word: str, chance: float) -> str:
        """Return a word of the class of `word`: the quantile `chance`, in [0, 1), by frequency.

        A word that is in no text, or has other characters than letters, is returned unchanged.
        """
        name = self._class_of.get(word.lower())
        if name is None:
            return word
        words, totals = self._members[name]
        return words[int(np.searchsorted(totals, chance * totals[-1], side="right"))]


def _classify_words(
    counts: Mapping[str, int], sentences: Sequence[Sequence[str]]
) -> dict[str, tuple[str, ...]]:
    """Return the class of each word.

    Closed classes are lists. An open word belongs to the class of its ending where that is clear
    (-ly, -ness). Otherwise its class is its ending, the closed class that most often precedes it in
    the texts, and whether an open word mostly follows: after determiners, nouns end a phrase and
    adjectives do not.
    """
    before: dict[str, Counter[str]] = defaultdict(Counter)
    followed: dict[str, Counter[bool]] = defaultdict(Counter)
    for words in sentences:
        for place, word in enumerate(words):
            left = _CLOSED.get(words[place - 1]) if place else None
            if left is not None:
                before[word][left] += 1
            right = words[place + 1] if place + 1 < len(words) else None
            followed[word][right is not None and right not in _CLOSED] += 1
    return {word: _class_of(word, before[word], followed[word]) for word in counts}


def _class_of(word: str, before: Counter[str], followed: Counter[bool]) -> tuple[str, ...]:
    """Return the class of a word of letters alone."""
    if word in _CLOSED:
        return (_CLOSED[word],)
    for name, endings in TELLING_ENDINGS.items():
        if any(_ends(word, ending) for ending in endings):
            return (name,)
    ending = next(ending for ending in OTHER_ENDINGS if _ends(word, ending))
    commonest = min(before, key=lambda name: (-before[name], name), default="")
    return (ending, commonest, "open" if followed[True] > followed[False] else "closed")


def _ends(word: str, ending: str) -> bool:
    return word.endswith(ending) and len(word) >= len(ending) + SHORTEST_STEM * bool(ending)
