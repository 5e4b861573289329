"""The corpus that a setting names."""

from __future__ import annotations

from dataclasses import dataclass

from distill.corpora.corpus import Corpus, open_corpus, survey

__all__ = ["CorpusText"]


@dataclass(frozen=True)
class CorpusText:
    """A corpus."""

    corpus: Corpus
    path: None = None

    def check(self) -> None:
        open_corpus(self.corpus.source, self.corpus.text_column)

    def digest(self) -> str:
        return survey(self.corpus).sha256
