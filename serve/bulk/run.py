"""Sending many texts: so many requests at a time, each one's predictions recorded as they come."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field

from bertender.core.card import LeftOutRows
from bertender.core.config import Record
from bertender.core.errors import DataError, ServingError
from bertender.core.progress import Bar, SilentBar, progress_bar
from bertender.tasks.bad_rows import SkippedRows, stop, together
from bertender.text.example import Example
from serve.bulk.files import COLUMNS, write_predictions
from serve.bulk.journal import Memory, Predictions, open_journal
from serve.bulk.texts import Texts
from serve.client.async_endpoint import AsyncEndpoint
from serve.client.served_model import Classification

__all__ = ["BulkRun", "classify_all", "classify_to_file"]


class BulkRun(Record):
    """What a run has written."""

    output: str
    texts: int
    resumed: int
    left_out: LeftOutRows | None
    truncated: int = Field(description="texts that were cut to the model's input")


async def classify_all(endpoint: AsyncEndpoint, texts: Texts) -> Mapping[int, Classification]:
    """Return a prediction for each text, by row and in their order; errors as for a file."""
    predictions = Memory()
    await _send(endpoint, texts, predictions, SilentBar())
    await _check_same_model(endpoint, "none is shown")
    return dict(sorted(predictions.by_row.items()))


async def classify_to_file(endpoint: AsyncEndpoint, texts: Texts, output: Path) -> BulkRun:
    """Write the predictions for some texts to a file; an interrupted run continues.

    Raises:
        BusyError: another process writes the same file.
        RowError: a text is refused, and bad rows are not left out.
        DataError: they are left out, and nothing else is there.
        ServingError: as in `Endpoint`; what came until then is not asked again. Or the model was
            replaced meanwhile.
    """
    identity = {
        "texts": _digest(texts.texts),
        "model": endpoint.model.digest,
        "columns": [*COLUMNS],  # an earlier version's predictions may lack one
    }
    with open_journal(output, identity) as journal:
        resumed = len(journal.by_row)
        with progress_bar(f"classify {output.name}", len(texts.texts), "texts") as bar:
            left_out = await _send(endpoint, texts, journal, bar)
        await _check_same_model(endpoint, f"{output} is not written")
        rows = sorted(journal.by_row)
        examples = [texts.texts[row] for row in rows]
        predictions = [journal.by_row[row] for row in rows]
        write_predictions(output, texts.columns, examples, predictions)
    return BulkRun(
        output=str(output),
        texts=len(rows),
        resumed=resumed,
        left_out=left_out,
        truncated=sum(each.truncated for each in predictions),
    )


async def _check_same_model(endpoint: AsyncEndpoint, consequence: str) -> None:
    """Raise ServingError where predictions may be of two models."""
    if not await endpoint.is_same_model():
        raise ServingError(
            "another model was deployed meanwhile, so that the predictions would be of two: "
            f"{consequence}. Run the same command again: it begins anew."
        )


def _digest(texts: Sequence[Example]) -> str:
    digest = hashlib.sha256()
    for text in texts:
        digest.update(json.dumps(text).encode() + b"\n")
    return digest.hexdigest()


@dataclass(frozen=True)
class _Sending:
    """Requests about some texts, and what came of them."""

    endpoint: AsyncEndpoint
    texts: Texts
    predictions: Predictions
    skipped: SkippedRows

    async def send(self, rows: Sequence[int]) -> None:
        """Ask for the predictions of rows that go into one request, all but those left out."""
        remaining = rows
        while remaining:
            remaining = await self._ask(remaining)

    async def _ask(self, rows: Sequence[int]) -> Sequence[int]:
        """Send a request; return the rows to ask for again, where one of them was refused."""
        to_example = self.endpoint.model.problem.endpoint.to_example
        try:
            examples = [to_example(self.texts.texts[row]) for row in rows]
            self.predictions.add(rows, await self.endpoint.classify(examples))
        except (DataError, ServingError) as error:
            if (refused := self.texts.error_of(error, rows)) is None:
                raise
            (self.skipped if self.texts.skips_bad_rows else stop)(refused[1])
            return [row for row in rows if row != refused[0]]
        return []


async def _send(
    endpoint: AsyncEndpoint, texts: Texts, predictions: Predictions, bar: Bar
) -> LeftOutRows | None:
    """Ask for the predictions that are not there yet; return what was left out of the texts."""
    missing = [row for row in range(len(texts.texts)) if row not in predictions.by_row]
    bar.skip(len(texts.texts) - len(missing))
    size = endpoint.batch_size
    requests = iter([missing[start : start + size] for start in range(0, len(missing), size)])
    sending = _Sending(endpoint, texts, predictions, SkippedRows())

    async def send() -> None:
        for rows in requests:  # shared: each takes the next
            await sending.send(rows)
            bar.advance(len(rows))

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(endpoint.concurrency):
                group.create_task(send())
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None
    return _left_out(texts, sending.skipped, predictions)


def _left_out(texts: Texts, skipped: SkippedRows, predictions: Predictions) -> LeftOutRows | None:
    """Return the rows left out by reading and by sending, in the order of the file."""
    refused = skipped.report()
    if refused and not predictions.by_row:
        first = refused.first[0]
        raise DataError(
            f"{texts.source}: no text is left; the first that was left out, {first.place}: "
            f"{first.reason}"
        )
    return together(texts.left_out, refused)
