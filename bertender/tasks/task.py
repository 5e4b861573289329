"""Task: splits of labelled examples, the labels, and the metric.

Models learn from `train`. What is chosen (settings, parts that stay quantized, whether a drop is
allowed) is chosen on `selection`, texts of the training file that nothing learns from, and `dev`
is read once, for the score.

A `Task` holds data; how each named task finds its data is a row of `TASKS` (see `registry`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, Field

from bertender.core.artifact import Artifact
from bertender.core.card import LeftOutRows, TaskRecord
from bertender.core.config import Config
from bertender.core.errors import ConfigError
from bertender.core.findings import ChosenOn
from bertender.problems import PROBLEMS, SINGLE_LABEL, ProblemType
from bertender.tasks.model_labels import check_label_map
from bertender.text.example import Example

__all__ = ["ChosenOn", "Split", "Task", "TaskConfig", "default_of"]


class TaskConfig(Config):
    """Settings of a task: its name and, for a task of your own, files and columns."""

    shown_defaults: ClassVar[Mapping[str, str]] = {"select": "0.1, or 0 where that is too few"}

    task: str = Field("docs", description="a name from `bertender tasks`, or your own with --train")
    train: Path | None = Field(None, description="your training file: CSV, TSV, JSONL or Parquet")
    dev: Path | None = Field(None, description="your held-out file, same format and columns")
    text_column: str = Field("text", description="column of the text in your files")
    pair_column: str | None = Field(None, description="column of the second text, for pairs")
    label_column: str = Field(
        "label", description="column of the label in your files; in CoNLL's by number, from 1"
    )
    label_map: Annotated[str | None, AfterValidator(check_label_map)] = Field(
        None,
        description="which label of your data is which of a finished model: DATA=MODEL by commas; "
        "by default by equal names",
    )
    problem_type: Annotated[str | None, PROBLEMS.validator()] = Field(
        None,
        description="of your files: single_label_classification, or token_classification for "
        "words with tags (CoNLL, JSONL with lists, seq.in); by default from the suffix",
    )
    skip_bad_rows: bool = Field(
        False, description="leave out rows of your files that cannot be used, and list them"
    )
    select: float | None = Field(
        None,
        ge=0,
        le=0.5,
        description="share of the training texts to choose settings on, by a hash of the text; "
        "nothing learns from them, and with 0 the held-out texts choose and score",
    )
    max_train: int | None = Field(None, ge=1, description="use only so many training examples")
    max_select: int = Field(2000, ge=1, description="use only so many of the texts to choose on")
    max_dev: int | None = Field(None, ge=1, description="use only so many held-out examples")


@dataclass(frozen=True)
class Split:
    """Labelled examples; `label_ids` index the task's labels.

    They are the targets of the task's problem type: a number for each example, or for each word.
    """

    examples: tuple[Example, ...]
    label_ids: tuple[Any, ...]

    def __len__(self) -> int:
        return len(self.examples)

    def first(self, count: int | None) -> Split:
        """Return the first `count` examples, or all of them for None."""
        return Split(self.examples[:count], self.label_ids[:count])

    def after(self, count: int) -> Split:
        """Return all but the first `count` examples."""
        return Split(self.examples[count:], self.label_ids[count:])

    def digest(self) -> str:
        """Return a sha256 of the examples and their labels."""
        return hashlib.sha256(_split_bytes(self)).hexdigest()

    def where(self, chosen: Sequence[bool]) -> Split:
        """Return the examples that are chosen, a truth for each."""
        return Split(
            tuple(compress(self.examples, chosen)), tuple(compress(self.label_ids, chosen))
        )


@dataclass(frozen=True)
class Task:
    """A classification task with its data.

    Example:
        task: bertender.Task = bertender.load_task(train="train.csv", dev="dev.csv", select=0.3)
        print(task.name, task.metric, len(task.train), len(task.selection), len(task.dev))
    """

    name: str
    labels: tuple[str, ...]
    metric: str
    text_columns: tuple[str, ...]
    train: Split
    dev: Split
    source: dict[str, Any] = field(default_factory=dict)
    selection: Split = Split((), ())
    """Texts of the training file that nothing learns from; empty where none are set apart."""
    reserved: tuple[Example, ...] = ()
    """Held-out texts and texts to choose by, beyond `max_dev` and `max_select`: nothing learns from
    them either."""
    left_out: LeftOutRows | None = None
    """Rows of the user's files that are in no split."""
    data: dict[str, str] = field(default_factory=dict)
    """Digest of the examples of each file, before some are set apart or left out."""
    problem_type: str = SINGLE_LABEL.name
    """A row of PROBLEMS."""

    @property
    def problem(self) -> ProblemType[Any]:
        """The row of PROBLEMS."""
        return PROBLEMS[self.problem_type]

    @property
    def skips_bad_rows(self) -> bool:
        """Whether rows of the user's files that cannot be used are left out."""
        return bool(self.source.get("skip_bad_rows"))

    @property
    def chosen_on(self) -> ChosenOn:
        """Split that `choices` come from."""
        return "selection" if len(self.selection) else "dev"

    @property
    def choices(self) -> Split:
        """The examples to choose by: the selection, or the held-out ones where there is none."""
        return self.selection if len(self.selection) else self.dev

    @property
    def calibration(self) -> Split:
        """Examples to calibrate and to probe with: those to learn from, or, of a held-out file
        alone, those to choose by."""
        return self.train if len(self.train) else self.choices

    def require_training(self, purpose: str) -> None:
        """Raise ConfigError where there are no examples to learn from, as of a held-out file alone.

        Args:
            purpose: what learns, for the message.
        """
        if not len(self.train):
            raise ConfigError(
                f"{purpose} learns from labelled texts, and task {self.name!r} has a held-out file "
                "alone. Give --train FILE besides."
            )

    def check_problem(self, artifact: Artifact) -> None:
        """Raise ConfigError for a model of another problem type than the task's."""
        own = artifact.card.task.problem_type
        if own != self.problem_type:
            raise ConfigError(
                f"{artifact.path} was made for {own!r}, and task {self.name!r} is one of "
                f"{self.problem_type!r}. Give a task of the model's problem type."
            )

    def record(self) -> TaskRecord:
        """Return what an artifact keeps of the task."""
        return TaskRecord(
            name=self.name,
            problem_type=self.problem_type,
            labels=self.labels,
            text_columns=self.text_columns,
            metric=self.metric,
            source=self.source,
            left_out=self.left_out,
            data=self.data,
        )

    def fingerprint(self) -> str:
        """Return a sha256 of the labels and of all splits, texts included."""
        digest = hashlib.sha256(json.dumps([self.labels, self.metric]).encode())
        chosen = (self.selection,) if len(self.selection) else ()  # older ones knew two splits
        for split in (self.train, self.dev, *chosen):
            digest.update(_split_bytes(split))
        return digest.hexdigest()


def default_of(setting: str) -> Any:
    """Return the default of a setting of TaskConfig."""
    return TaskConfig.model_fields[setting].default


def _split_bytes(split: Split) -> bytes:
    # a lone surrogate, which no UTF-8 holds, is a character of some texts
    plain = json.dumps([split.examples, split.label_ids], ensure_ascii=False)
    return plain.encode(errors="surrogatepass")
