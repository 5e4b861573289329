"""Settings of `bertender classify`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from bertender.core.config import Config, Rule
from serve.client.async_endpoint import DEFAULT_CONCURRENCY
from serve.client.endpoint import DEFAULT_TIMEOUT_S
from serve.client.retries import OPENING_RETRIES
from serve.wire import MODEL_NAME

__all__ = ["RULES", "ClassifyConfig"]


def _same_file(first: Path | None, second: Path | None) -> bool:
    """Return whether two paths lead to one file, by links too."""
    if first is None or second is None:
        return False
    if first.exists() and second.exists():
        return first.samefile(second)
    return first.resolve() == second.resolve()


RULES: Mapping[str, Rule[Any]] = {
    "columns of no file": Rule(
        lambda config: config.input is None,
        "they are of --input FILE. Give it as well, or leave them out.",
        settings=frozenset({"text_column", "pair_column", "skip_bad_rows"}),
    ),
    "output over the input": Rule(
        lambda config: _same_file(config.input, config.output),
        "--input and --output are the same file, {output}: the texts would be overwritten. Give "
        "another --output.",
    ),
}
"""Conflicts of settings."""


class ClassifyConfig(Config):
    """Where texts come from, where predictions go, and how requests are sent."""

    rules: ClassVar[Mapping[str, Rule[Any]]] = RULES

    model: str = Field(MODEL_NAME, description="name of the model on the server")
    input: Path | None = Field(
        None,
        description="read texts from this file: CSV, TSV, JSONL, Parquet, or .txt with a text "
        "a line",
    )
    output: Path | None = Field(
        None,
        description="write predictions to this file: CSV, TSV, JSONL or Parquet; the same "
        "command continues a run that was interrupted",
    )
    text_column: str = Field("text", description="column of the text in the file")
    pair_column: str | None = Field(None, description="column of the second text, for pairs")
    skip_bad_rows: bool = Field(
        False, description="leave out rows of the file that cannot be used, and list them"
    )
    batch_size: int | None = Field(
        None, ge=1, description="texts a request; by default, and at most, what the model takes"
    )
    concurrency: int = Field(DEFAULT_CONCURRENCY, ge=1, description="requests sent at a time")
    timeout_s: float = Field(
        DEFAULT_TIMEOUT_S, gt=0, description="longest wait for one request, its retries included"
    )
    retries: int | None = Field(
        None,
        ge=0,
        description="how often a request is sent again where the server "
        "rejects it for now, or nothing listens; by default until --timeout-s is over, and "
        f"{OPENING_RETRIES} times for the first",
    )
