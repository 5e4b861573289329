"""Corpora on a hub, streamed: nothing of them is stored on this machine."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from huggingface_hub import constants

from bertender.core.errors import ConfigError, DataError, HubUnreachableError, nearest_hint
from bertender.core.hub import hub_knows
from distill.corpora.files import documents_of_rows, text_of_row

__all__ = ["HUB_NAME", "read_hub"]

HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+(:[\w.-]+)?")
"""OWNER/NAME, or OWNER/NAME:SUBSET, of a data set on the hub."""


def read_hub(name: str, text_column: str) -> Iterator[str]:
    """Return the passages of a hub data set's training split; a row is a document.

    Raises:
        HubUnreachableError: no hub that responds knows the data set; known within seconds. A hub
            that falls silent later raises it on the way.
        ConfigError: the data set has no such subset, or no training split.
        DataError: its rows have no such column, or another type than text in it.
    """
    repository, _, subset = name.partition(":")
    if constants.HF_HUB_OFFLINE or not hub_knows(f"api/datasets/{repository}"):
        raise HubUnreachableError(
            f"corpus {name!r} is not a file, and no hub that responds has a data set of this name. "
            "Give files, or go online (and unset HF_HUB_OFFLINE)."
        )
    return documents_of_rows(_texts(name, _streamed(name, repository, subset), text_column))


def _streamed(name: str, repository: str, subset: str) -> Iterator[Mapping[str, Any]]:
    import datasets  # a second of imports that local files do without

    try:
        return iter(
            datasets.load_dataset(repository, subset or None, split="train", streaming=True)
        )
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        raise ConfigError(
            f"corpus {name!r} cannot be opened: {error}. A subset is named OWNER/NAME:SUBSET."
        ) from None


def _texts(name: str, rows: Iterator[Mapping[str, Any]], text_column: str) -> Iterator[str]:
    row = 0
    try:
        for row, values in enumerate(rows, start=1):
            if text_column not in values:
                raise DataError(
                    f"corpus {name!r}: no column {text_column!r}."
                    f"{nearest_hint(text_column, values)} "
                    f"Columns: {', '.join(map(repr, values))}."
                )
            yield text_of_row(values[text_column], f"corpus {name!r}, row {row}")
    except OSError as error:
        raise HubUnreachableError(
            f"corpus {name!r}: the hub stopped responding after row {row}: {error}. Try again, or "
            "keep the data set as Parquet files and give these."
        ) from None
