"""The words whose embeddings are nearest to a word's own, by cosine."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn import functional

from distill.augmentation.whole_words import WholeWords

__all__ = ["nearest_words"]

WORDS_AT_ONCE = 1024


def nearest_words(
    embeddings: torch.Tensor, whole: WholeWords, ids: Sequence[int], count: int
) -> dict[int, tuple[str, ...]]:
    """Return for each of some whole words the `count` others nearest to it, the nearest first.

    Args:
        embeddings: a model's word embeddings, (vocab, hidden).
        whole: the words that are compared.
        ids: of the words that are asked for; each is one of `whole`.
        count: most words of a result.
    """
    known = whole.ids
    table = functional.normalize(embeddings[known].float(), dim=-1)  # (words, hidden)
    places = torch.searchsorted(known, torch.tensor(ids, dtype=torch.long))
    nearest = [_nearest(table, some, count) for some in places.split(WORDS_AT_ONCE)]
    neighbours = known[torch.cat(nearest)].tolist()
    return {
        asked: tuple(whole.words[number] for number in numbers)
        for asked, numbers in zip(ids, neighbours, strict=True)
    }


def _nearest(table: torch.Tensor, places: torch.Tensor, count: int) -> torch.Tensor:
    """Return the places (asked, count) in the table nearest to some of its rows."""
    cosines = table[places] @ table.T  # (asked, words)
    cosines.scatter_(1, places[:, None], -torch.inf)  # a word is its own nearest
    return cosines.topk(min(count, len(table) - 1)).indices
