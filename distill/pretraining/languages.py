"""Languages of a corpus, sampled more evenly than their shares.

XLM (Lample and Conneau 2019, arXiv 1901.07291, section 3.1, eq. 1): where p_i is the share of
language i, it is sampled with

    q_i = p_i^alpha / sum_j p_j^alpha

so that an alpha below 1 gives rare languages more of the vocabulary and the training. Departures:
repetition replaces sampling. A pass has all text of every language, and text of language i is
repeated evenly, f_i = (q_i / p_i) / min_j (q_j / p_j) times on average. Shares are of tokens, or of
characters before there is a vocabulary; the paper's are of sentences.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat

import numpy as np
from numpy.typing import NDArray

from bertender.core.errors import ConfigError
from bertender.core.findings import LanguageShare
from distill.pretraining.config import PretrainConfig
from distill.pretraining.corpus import Corpus, Survey, Watched, survey
from distill.pretraining.rows import StoredTokens

DECIMALS = 9
"""Digits of a factor: 3 must not be computed as 2.9999."""


@dataclass(frozen=True)
class Language:
    """A language: a part of a corpus, and its survey."""

    name: str
    passages: Iterable[str]
    surveyed: Survey


@dataclass(frozen=True)
class Repeated:
    """Passages of several languages, repeated by their factors, without ends of documents."""

    languages: Sequence[Language]
    factors: Sequence[float]

    def __iter__(self) -> Iterator[str]:
        for language, factor in zip(self.languages, self.factors, strict=True):
            times = repetitions(language.surveyed.passages, factor).tolist()
            for passage, count in zip(filter(None, language.passages), times, strict=True):
                yield from repeat(passage, count)


def languages_of(passages: Iterable[str], config: PretrainConfig) -> tuple[Language, ...]:
    """Read a corpus once and return its languages; without `language_alpha`, it is one language.

    Raises:
        ConfigError: `config.language_alpha` is set, and the corpus has no parts or lacks one.
        DataError: a language has too few passages to train and hold out.
    """
    parts: Sequence[tuple[str, Iterable[str]]] = [("", passages)]
    if config.language_alpha is not None:
        if not isinstance(passages, Corpus):
            raise ConfigError(
                f"language_alpha={config.language_alpha}: these passages have no languages. Give a "
                "corpus of several parts by commas, a language each."
            )
        passages.opened()  # all parts exist
        parts = [(part.source, part) for part in passages.parts()]
    languages = tuple(Language(name, part, survey(part)) for name, part in parts)
    for language in languages:
        language.surveyed.check_enough(language.name)
    return languages


def sampled_shares(sizes: Sequence[float], alpha: float) -> NDArray[np.float64]:
    """Return q of each language (languages,), from their sizes in any unit."""
    powers = (np.asarray(sizes, dtype=float) / sum(sizes)) ** alpha
    shares: NDArray[np.float64] = powers / powers.sum()
    return shares


def factors_of(sizes: Sequence[float], alpha: float) -> list[float]:
    """Return f of each language: the mean repetitions of its text in a pass, at least 1."""
    more = sampled_shares(sizes, alpha) / np.asarray(sizes, dtype=float)
    factors: list[float] = np.round(more / more.min(), DECIMALS).tolist()
    return factors


def repetitions(count: int, factor: float) -> NDArray[np.int64]:
    """Return the repetitions of each item: floor((k + 1) f) - floor(k f) for item k."""
    times: NDArray[np.int64] = np.diff(np.floor(np.arange(count + 1) * factor)).astype(np.int64)
    return times


def sampled_passages(languages: Sequence[Language], alpha: float | None) -> Iterable[str]:
    """Return the passages for training a vocabulary, with a progress bar."""
    what = "train the vocabulary"
    if alpha is None:
        (whole,) = languages
        return Watched(whole.passages, whole.surveyed, what)
    factors = factors_of([each.surveyed.characters for each in languages], alpha)
    count = sum(
        int(repetitions(each.surveyed.passages, factor).sum())
        for each, factor in zip(languages, factors, strict=True)
    )
    size = Survey(sha256="", passages=count, documents=0)
    return Watched(Repeated(languages, factors), size, what)


def sampled_rows(
    rows: Sequence[StoredTokens], names: Sequence[str], alpha: float | None
) -> tuple[StoredTokens, tuple[LanguageShare, ...]]:
    """Return the rows of a pass over several languages, and the shares of tokens.

    Args:
        rows: training rows of each language.
        names: names of the languages.
        alpha: exponent of the shares; None for a single language.
    """
    if alpha is None:
        return joined(rows), ()
    sizes = [sum(each.lengths) for each in rows]
    factors = factors_of(sizes, alpha)
    times = [repetitions(len(each), f) for each, f in zip(rows, factors, strict=True)]
    after = [int(np.dot(each.lengths, own)) for each, own in zip(rows, times, strict=True)]
    shares = tuple(
        LanguageShare(name=name, tokens=size, share=size / sum(sizes), sampled=own / sum(after))
        for name, size, own in zip(names, sizes, after, strict=True)
    )
    return joined(rows, np.concatenate(times)), shares


def joined(rows: Sequence[StoredTokens], times: NDArray[np.int64] | None = None) -> StoredTokens:
    """Concatenate rows of several files, each repeated by `times`, or once."""
    if len(rows) == 1 and times is None:
        return rows[0]
    import datasets  # takes a second

    table = datasets.concatenate_datasets([each.table for each in rows])
    lengths = np.concatenate([each.lengths for each in rows])
    if times is not None:
        numbers = np.repeat(np.arange(len(table)), times)
        table, lengths = table.select(numbers), lengths[numbers]
    return StoredTokens(table, rows[0].padding, lengths.tolist())
