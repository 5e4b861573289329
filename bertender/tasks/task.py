"""What a task is: two splits of labelled examples, the labels, and the metric.

A `Task` holds data; how each named task finds its data is a row of `TASKS` (see `registry`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import Field

from bertender.core.card import LeftOutRows, TaskRecord
from bertender.core.config import Config
from bertender.core.text import Example

__all__ = ["Split", "Task", "TaskConfig"]


class TaskConfig(Config):
    """Which task, and for a task of your own, which files and columns."""

    task: str = Field("docs", description="a name from `bertender tasks`, or your own with --train")
    train: Path | None = Field(None, description="your training file: CSV, TSV, JSONL or Parquet")
    dev: Path | None = Field(None, description="your held-out file, same format and columns")
    text_column: str = Field("text", description="column of the text in your files")
    pair_column: str | None = Field(None, description="column of the second text, for pairs")
    label_column: str = Field("label", description="column of the label in your files")
    skip_bad_rows: bool = Field(
        False, description="leave out rows of your files that cannot be used, and list them"
    )
    max_train: int | None = Field(None, ge=1, description="use only so many training examples")
    max_dev: int | None = Field(None, ge=1, description="use only so many held-out examples")


@dataclass(frozen=True)
class Split:
    """Labelled examples; `label_ids` index the task's labels."""

    examples: tuple[Example, ...]
    label_ids: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.examples)

    def first(self, count: int | None) -> Split:
        """Return the first `count` examples, or all of them for None."""
        return Split(self.examples[:count], self.label_ids[:count])


@dataclass(frozen=True)
class Task:
    """A classification task with its data at hand."""

    name: str
    labels: tuple[str, ...]
    metric: str
    text_columns: tuple[str, ...]
    train: Split
    dev: Split
    source: dict[str, Any] = field(default_factory=dict)
    left_out: LeftOutRows | None = None
    """Rows of the user's files that are in no split."""

    @property
    def skips_bad_rows(self) -> bool:
        """Whether rows of the user's files that cannot be used are left out."""
        return bool(self.source.get("skip_bad_rows"))

    def record(self) -> TaskRecord:
        """Return what an artifact keeps of the task."""
        return TaskRecord(
            name=self.name,
            problem_type="single_label_classification",
            labels=self.labels,
            text_columns=self.text_columns,
            metric=self.metric,
            source=self.source,
            left_out=self.left_out,
        )

    def fingerprint(self) -> str:
        """Return a sha256 of the labels and of both splits, texts included."""
        digest = hashlib.sha256(json.dumps([self.labels, self.metric]).encode())
        for split in (self.train, self.dev):
            digest.update(_split_bytes(split.examples, split.label_ids))
        return digest.hexdigest()


def _split_bytes(examples: Sequence[Example], label_ids: Sequence[int]) -> bytes:
    return json.dumps([examples, label_ids], ensure_ascii=False).encode()
