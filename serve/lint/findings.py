"""What a rule finds, and what is reported of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import Field

from bertender.core.config import Record
from serve.lint.reading import ReadModel, ReadRepository

Severity = Literal["error", "warning"]


@dataclass(frozen=True)
class Fault:
    """A place of a repository that breaks a rule."""

    file: Path
    field: str
    value: str
    allowed: str


class Finding(Record):
    """A fault as it is reported."""

    severity: Severity
    rule: str = Field(description="a row of LINT_RULES")
    file: str = Field(description="relative to the repository")
    field: str = Field(description="of config.pbtxt, as in `input[0].dims`; empty for a whole file")
    value: str = Field(description="what is there")
    allowed: str

    @property
    def line(self) -> str:
        place = f"{self.file}, {self.field}" if self.field else self.file
        return f"{place}: {self.value}; allowed: {self.allowed} ({self.rule})"


@dataclass(frozen=True)
class LintRule:
    """A row of LINT_RULES."""

    summary: str
    look: Callable[[ReadModel, ReadRepository], Iterable[Fault]]
    """Yields the faults of a model whose configuration could be read."""
    severity: Severity = "error"
    """An error where Triton does not load the model, or what it serves is wrong; else a warning."""
