"""Parts of a list of texts: the outputs on each are computed and cached by themselves.

A killed run continues after the last part that it has finished, and a run on more texts, or without
some that stand together, computes little besides the parts that are new. For that, a part ends
where the tokens of a text say so, wherever it stands in the list: what is added or left out changes
the part that it is in, and seldom those behind it. The outputs on a part depend on nothing but its
own texts.
"""

from __future__ import annotations

import zlib
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import TypeAlias, overload

import numpy as np
import torch
from numpy.typing import NDArray

from bertender.training.examples import TokenDataset

__all__ = ["LEAST_TEXTS", "MOST_TEXTS", "Column", "Rows", "joined_rows", "parts_of", "rows_at"]

LEAST_TEXTS = 4096
"""Of a part. Batches of like length form inside a part: in parts of this size and the mean that
ONE_OF gives, sentences need 4 % more tokens with padding than in one list, and in parts of 1,024 to
2,048 they need 21 %."""
ONE_OF = 8192
"""One text of so many ends the part that it is in, if this is long enough. Were the least length
the larger of the two, ends would depend mostly on where the part before has begun."""
MOST_TEXTS = 4 * ONE_OF


class Rows(Sequence[torch.Tensor]):
    """Rows of several tensors below one another, each of which may be memory-mapped.

    Args:
        parts: the tensors.
        numbers: those of the rows that are there, in order; None for all.
    """

    def __init__(
        self, parts: Sequence[torch.Tensor], numbers: NDArray[np.int64] | None = None
    ) -> None:
        self.parts = parts
        self.starts = [0, *accumulate(map(len, parts))]
        self.numbers = np.arange(self.starts[-1]) if numbers is None else numbers

    def __len__(self) -> int:
        return len(self.numbers)

    @overload
    def __getitem__(self, index: int) -> torch.Tensor: ...

    @overload
    def __getitem__(self, index: slice) -> Rows: ...

    def __getitem__(self, index: int | slice) -> torch.Tensor | Rows:
        if isinstance(index, slice):
            return Rows(self.parts, self.numbers[index])
        number = int(self.numbers[index])
        part = bisect_right(self.starts, number) - 1
        return self.parts[part][number - self.starts[part]]

    def at(self, numbers: Sequence[int]) -> Rows:
        """Return some of the rows."""
        return Rows(self.parts, self.numbers[np.asarray(numbers, dtype=np.int64)])


Column: TypeAlias = torch.Tensor | Rows
"""A row each example."""


def joined_rows(parts: Sequence[torch.Tensor]) -> Column:
    """Return the rows of all parts, none of which is copied."""
    return parts[0] if len(parts) == 1 else Rows(parts)


def rows_at(column: Column, numbers: Sequence[int]) -> Column:
    """Return some rows of a column."""
    return column.at(numbers) if isinstance(column, Rows) else column[list(numbers)]


def parts_of(examples: TokenDataset) -> list[TokenDataset]:
    """Cut examples into parts of LEAST_TEXTS to MOST_TEXTS; the last one may be shorter."""
    ends = [*_ends(examples.columns["input_ids"]), len(examples)]
    return [examples.part(start, end) for start, end in pairwise(dict.fromkeys((0, *ends)))]


def _ends(texts: Sequence[Sequence[int]] | torch.Tensor) -> Iterator[int]:
    start = 0
    for end, ids in enumerate(texts, start=1):
        long_enough = end - start >= LEAST_TEXTS
        if long_enough and (end - start == MOST_TEXTS or _ends_a_part(ids)):
            yield end
            start = end


def _ends_a_part(ids: Sequence[int] | torch.Tensor) -> bool:
    return zlib.crc32(np.asarray(ids, dtype="<i4").tobytes()) % ONE_OF == 0
