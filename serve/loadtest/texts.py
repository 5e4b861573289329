"""Texts that requests are made of: the held-out texts of a task, or those of a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from bertender.core.config import Config, Rule
from bertender.text.example import Example

__all__ = ["TextsConfig", "texts_to_send"]

TEXT_RULES: Mapping[str, Rule[Any]] = {
    "not one source of texts": Rule(
        lambda config: (config.task is None) == (config.input is None),
        "texts come from --task NAME or from --input FILE. Give one of them.",
    ),
    "columns of no file": Rule(
        lambda config: config.input is None,
        "they are of --input FILE. Give it as well, or leave them out.",
        settings=frozenset({"text_column", "pair_column"}),
    ),
}


class TextsConfig(Config):
    """Where the texts of requests come from."""

    rules: ClassVar[Mapping[str, Rule[Any]]] = TEXT_RULES

    task: str | None = Field(None, description="send the held-out texts of this task")
    input: Path | None = Field(
        None, description="send the texts of this file: CSV, TSV, JSONL, Parquet or .txt"
    )
    text_column: str = Field("text", description="column of the text in the file")
    pair_column: str | None = Field(None, description="column of the second text, for pairs")


def texts_to_send(config: TextsConfig, text_columns: int) -> Sequence[Example]:
    """Return the texts of a task or a file, for a model that reads so many texts at once.

    Raises:
        DataError: the file or the task cannot be read.
    """
    if config.input:
        from serve.bulk.texts import read_file  # here, because pyarrow takes long to load

        return read_file(config.input, config.text_column, config.pair_column, text_columns).texts
    from bertender.tasks.loading import load_task  # here, because it takes seconds to load
    from bertender.tasks.task import TaskConfig

    assert config.task is not None, "a rule of the settings"
    return load_task(TaskConfig.parse({"task": config.task})).dev.examples
