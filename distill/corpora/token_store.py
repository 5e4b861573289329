"""Token rows on disk, mapped into memory: a run reads the rows of a batch and no more.

Arrow, by the `datasets` library. Rows are fetched a batch at a time, which costs a fifth of
fetching them singly and no more than slices of a flat array.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.compute

from bertender.core.build_once import directory_once
from bertender.core.errors import DataError
from bertender.training.examples import Padding, TokenDataset
from distill.corpora.corpus import Survey, Watched
from distill.corpora.held_out import part_of

if TYPE_CHECKING:
    import datasets

__all__ = ["StoredTokens", "TokenRow", "stored", "stored_parts"]

TokenRow = Mapping[str, Sequence[int] | int]
FILE_NAME = "rows.arrow"
ROWS_AT_ONCE = 1000


class StoredTokens(TokenDataset):
    """A TokenDataset whose rows lie in an Arrow file."""

    def __init__(self, table: datasets.Dataset, padding: Padding) -> None:
        lengths = pyarrow.compute.list_value_length(table.data.column("input_ids")).to_pylist()
        columns = {name: table[name] for name in table.column_names}
        super().__init__(columns, padding, lengths=lengths)
        self.table = table

    def __getitem__(self, index: int) -> dict[str, Any]:
        row: dict[str, Any] = self.table[index]
        return row

    def __getitems__(self, indices: list[int]) -> list[dict[str, Any]]:
        """Return several rows at once, as PyTorch's data loader asks for those of a batch."""
        rows: list[dict[str, Any]] = self.table.__getitems__(indices)
        return rows


def stored(
    rows: Callable[[], Iterator[TokenRow]], directory: Path, padding: Padding
) -> StoredTokens:
    """Write rows to `directory` once, and open them.

    Args:
        rows: gives rows of equal columns: `input_ids` and its companions, and integers. It is
            called unless the directory is there, which it is only when it is complete.
        directory: in the work directory of the run.
        padding: what makes the rows of a batch equally long.

    Raises:
        DataError: there are no rows.
    """
    import datasets  # a second of imports

    # the name of the run's work directory carries all that shapes the rows
    directory_once(directory, "tokens", lambda draft: _write(rows(), draft / FILE_NAME))
    table = datasets.Dataset.from_file(str(directory / FILE_NAME))
    return StoredTokens(table, padding)


def stored_parts(
    passages: Iterable[str],
    surveyed: Survey,
    rows: Callable[[Iterable[str]], Iterator[TokenRow]],
    directory: Path,
    padding: Padding,
    run: int = 1,
) -> tuple[StoredTokens, StoredTokens]:
    """Store the rows of a corpus below `directory`: to train on, and held out.

    Args:
        passages: the corpus, read again for each.
        surveyed: the survey of it.
        rows: makes rows of passages.
        directory: in the work directory of the run.
        padding: what makes the rows of a batch equally long.
        run: so many consecutive passages are held out together; see `part_of`.

    Raises:
        DataError: a part has no rows.
    """

    def of_part(name: str, *, held_out: bool) -> StoredTokens:
        watched = Watched(passages, surveyed, f"tokenise {name} text")
        part = part_of(watched, held_out=held_out, run=run)
        return stored(lambda: rows(part), directory / name, padding)

    return of_part("training", held_out=False), of_part("held-out", held_out=True)


def _write(rows: Iterator[TokenRow], path: Path) -> None:
    from datasets.arrow_writer import ArrowWriter

    first = next(rows, None)
    if first is None:
        raise DataError("the corpus gives no example to train on or to hold out. Give more text.")
    features = _features(first)
    with ArrowWriter(path=str(path), features=features, writer_batch_size=ROWS_AT_ONCE) as writer:
        for row in chain([first], rows):
            writer.write(row)
        writer.finalize()


def _features(row: TokenRow) -> datasets.Features:
    """Return the types of columns: half as wide as Python's integers, which halves the file."""
    from datasets import Features, List, Value

    return Features(
        {
            name: Value("int32") if isinstance(value, int) else List(Value("int32"))
            for name, value in row.items()
        }
    )
