"""Progress of long work: a bar where a person looks on, silence elsewhere.

Libraries ask for a bar; only the command line turns bars on (`show_progress`). Off is a bar that
does nothing, so callers never ask which it is.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

__all__ = ["Bar", "progress_bar", "show_progress", "track"]

Item = TypeVar("Item")

_console: Console | None = None


class Bar(Protocol):
    """Where work reports how far it is."""

    def advance(self, steps: int = 1) -> None: ...

    def note(self, text: str) -> None: ...


class _SilentBar:
    def advance(self, steps: int = 1) -> None: ...

    def note(self, text: str) -> None: ...


class _RichBar:
    def __init__(self, progress: Progress, description: str, total: int) -> None:
        self.progress = progress
        self.task = progress.add_task(description, total=total, note="")

    def advance(self, steps: int = 1) -> None:
        self.progress.advance(self.task, steps)

    def note(self, text: str) -> None:
        self.progress.update(self.task, note=text)


def show_progress(enabled: bool = True) -> None:
    """Turn progress bars on standard error on or off for this process."""
    global _console
    _console = Console(file=sys.stderr) if enabled else None


@contextmanager
def progress_bar(description: str, total: int) -> Iterator[Bar]:
    """Show a bar of `total` steps while the block runs."""
    if _console is None:
        yield _SilentBar()
        return
    columns = (
        TextColumn("{task.description:<28}"),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=_console) as progress:
        yield _RichBar(progress, description, total)


def track(items: Iterable[Item], description: str, total: int) -> Iterator[Item]:
    """Yield the items, one step of a bar each."""
    with progress_bar(description, total) as bar:
        for item in items:
            yield item
            bar.advance()
