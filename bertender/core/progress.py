"""Progress of long work: a bar in a terminal, a line now and then in a log, silence in a library.

Libraries ask for a bar; only the command line turns bars on (`show_progress`). Off is a bar that
does nothing, so callers never ask which it is.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
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

LINE_EVERY_S = 30.0

_console: Console | None = None


class Bar(Protocol):
    """A progress bar, to which work reports how far it is."""

    def advance(self, steps: int = 1) -> None: ...

    def note(self, text: str) -> None: ...


class _SilentBar:
    def advance(self, steps: int = 1) -> None: ...

    def note(self, text: str) -> None: ...


class _RichBar:
    def __init__(self, progress: Progress, description: str, total: int | None) -> None:
        self.progress = progress
        self.task = progress.add_task(description, total=total, note="")

    def advance(self, steps: int = 1) -> None:
        self.progress.advance(self.task, steps)

    def note(self, text: str) -> None:
        self.progress.update(self.task, note=text)


class _LineBar:
    """For a log file: a line at the end, and one every `LINE_EVERY_S` on the way."""

    def __init__(self, console: Console, description: str, total: int | None) -> None:
        self.console = console
        self.description = description
        self.total = total
        self.done = 0
        self.text = ""
        self.started = self.printed = time.monotonic()

    def advance(self, steps: int = 1) -> None:
        self.done += steps
        if time.monotonic() - self.printed >= LINE_EVERY_S:
            self.print()

    def note(self, text: str) -> None:
        self.text = text

    def print(self) -> None:
        self.printed = time.monotonic()
        passed = timedelta(seconds=round(self.printed - self.started))
        whole = "?" if self.total is None else self.total
        line = f"{self.description}  {self.done}/{whole}  {passed}  {self.text}"
        self.console.print(line.rstrip(), highlight=False, markup=False, soft_wrap=True)


def show_progress(enabled: bool = True) -> None:
    """Turn progress bars on standard error on or off for this process."""
    global _console
    _console = Console(file=sys.stderr) if enabled else None


@contextmanager
def progress_bar(description: str, total: int | None) -> Iterator[Bar]:
    """Show how far the block is, in `total` steps (None: unknown), while it runs."""
    if _console is None:
        yield _SilentBar()
        return
    shown = _in_terminal if _console.is_terminal else _in_log
    with shown(_console, description, total) as bar:
        yield bar


@contextmanager
def _in_terminal(console: Console, description: str, total: int | None) -> Iterator[Bar]:
    columns = (
        TextColumn("{task.description:<28}"),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=console) as progress:
        yield _RichBar(progress, description, total)


@contextmanager
def _in_log(console: Console, description: str, total: int | None) -> Iterator[Bar]:
    bar = _LineBar(console, description, total)
    try:
        yield bar
    finally:
        bar.print()


def track(
    items: Iterable[Item], description: str, total: int | None = None, every: int = 1
) -> Iterator[Item]:
    """Yield the items, one step of a bar each; the bar moves once for `every` of them."""
    count = 0
    with progress_bar(description, total) as bar:
        for count, item in enumerate(items, start=1):
            yield item
            if count % every == 0:
                bar.advance(every)
        bar.advance(count % every)
