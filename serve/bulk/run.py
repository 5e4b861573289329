"""Sending many texts: so many requests at a time, each one's predictions recorded as they come."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from bertender.core.config import Record
from bertender.core.progress import Bar, SilentBar, progress_bar
from bertender.text.example import Example
from serve.bulk.files import write_predictions
from serve.bulk.journal import Memory, Predictions, open_journal
from serve.client.async_endpoint import AsyncEndpoint
from serve.client.served_model import Classification

__all__ = ["BulkRun", "classify_all", "classify_to_file"]


class BulkRun(Record):
    """What a run has written."""

    output: str
    texts: int
    resumed: int


async def classify_all(
    endpoint: AsyncEndpoint, examples: Sequence[Example]
) -> list[Classification]:
    """Return a prediction for each example, in their order."""
    predictions = Memory()
    await _send(endpoint, examples, predictions, SilentBar())
    return [predictions.by_row[row] for row in range(len(examples))]


async def classify_to_file(
    endpoint: AsyncEndpoint,
    texts: Sequence[Example],
    text_columns: Sequence[str],
    output: Path,
) -> BulkRun:
    """Write the predictions for some texts to a file; an interrupted run continues.

    Raises:
        BusyError: another process writes the same file.
        ServingError: as in `Endpoint`; what came until then is not asked again.
    """
    examples = [endpoint.model.problem.endpoint.to_example(text) for text in texts]
    identity = {"texts": _digest(texts), "model": endpoint.model.digest}
    with open_journal(output, identity) as journal:
        resumed = len(journal.by_row)
        with progress_bar(f"classify {output.name}", len(examples), "texts") as bar:
            await _send(endpoint, examples, journal, bar)
        predictions = [journal.by_row[row] for row in range(len(examples))]
        write_predictions(output, text_columns, texts, predictions)
    return BulkRun(output=str(output), texts=len(texts), resumed=resumed)


def _digest(texts: Sequence[Example]) -> str:
    digest = hashlib.sha256()
    for text in texts:
        digest.update(json.dumps(text).encode() + b"\n")
    return digest.hexdigest()


async def _send(
    endpoint: AsyncEndpoint, examples: Sequence[Example], predictions: Predictions, bar: Bar
) -> None:
    """Ask for the predictions that are not there yet."""
    missing = [row for row in range(len(examples)) if row not in predictions.by_row]
    bar.skip(len(examples) - len(missing))
    size = endpoint.batch_size
    requests = iter([missing[start : start + size] for start in range(0, len(missing), size)])

    async def send() -> None:
        for rows in requests:  # shared: each takes the next
            predictions.add(rows, await endpoint.classify([examples[row] for row in rows]))
            bar.advance(len(rows))

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(endpoint.concurrency):
                group.create_task(send())
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None
