"""Terminal output during long work: safe text, progress bars, and no logs of other tools.

Texts from outside may have control characters, which a terminal must show and not obey. Libraries
ask for a bar; only the command line turns bars on (`show_progress`): a bar in a terminal, or a line
now and then in a log. When off, a bar does nothing, so callers need not check.
"""

from __future__ import annotations

import logging
import sys
import time
import unicodedata
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TypeVar

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.segment import Segment

CONTROLS = frozenset({"Cc", "Cs", "Zl", "Zp"})
"""Unicode categories: control characters, surrogates, line and paragraph separators."""
ORDER_OF_TEXT = frozenset(
    "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
)
"""Characters that change the direction of the text around them."""


def visible(text: str, spared: str = "") -> str:
    r"""Return a text with its control characters escaped, as in "\x1b[2J" for clearing the screen,
    except those in `spared`."""
    if text.isprintable():
        return text
    return "".join(
        each.encode("unicode_escape").decode()
        if each not in spared and (each in ORDER_OF_TEXT or unicodedata.category(each) in CONTROLS)
        else each
        for each in text
    )


class SafeConsole(Console):
    """A console that escapes control characters in printed text, except line ends."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control:  # rich's own
                yield segment
            else:
                yield Segment(visible(segment.text, spared="\n\t"), segment.style)


Item = TypeVar("Item")

LINE_EVERY_S = 30.0

_console: Console | None = None


class Bar:
    """A progress bar, to which work reports its progress; this one shows nothing."""

    def advance(self, steps: int = 1) -> None: ...

    def skip(self, steps: int) -> None:
        """Advance over steps done by an earlier run; the pace does not count them."""

    def note(self, text: str) -> None: ...


@dataclass
class _Pace:
    """Progress, pace and remaining time of work."""

    total: int | None
    unit: str
    """Plural name of the steps; empty for no rate."""
    done: int = 0
    skipped: int = 0
    """Steps of `done` from an earlier run."""
    started: float = field(default_factory=lambda: time.monotonic())

    def words(self) -> str:
        """Return the pace and the remaining time, as far as they are known."""
        per_s = (self.done - self.skipped) / max(time.monotonic() - self.started, 1e-9)
        if not per_s:
            return ""
        pace = [f"{per_s:.3g} {self.unit}/s" if per_s < 100 else f"{per_s:.0f} {self.unit}/s"]
        left = 0 if self.total is None else self.total - self.done
        ends = [f"{timedelta(seconds=round(left / per_s))} left"] if left > 0 else []
        return "  ".join((*(pace if self.unit else ()), *ends))


class _PacedBar(Bar):
    """A bar that is shown."""

    def __init__(self, pace: _Pace) -> None:
        self.pace = pace

    def advance(self, steps: int = 1) -> None:
        self.pace.done += steps
        self.moved()

    def skip(self, steps: int) -> None:
        self.pace.skipped += steps
        self.advance(steps)

    def moved(self) -> None:
        """Show the current progress."""
        raise NotImplementedError


class _RichBar(_PacedBar):
    def __init__(self, progress: Progress, description: str, pace: _Pace) -> None:
        super().__init__(pace)
        self.progress = progress
        self.task = progress.add_task(description, total=pace.total, pace="", note="")

    def moved(self) -> None:
        self.progress.update(self.task, completed=self.pace.done, pace=self.pace.words())

    def note(self, text: str) -> None:
        self.progress.update(self.task, note=text)


class _LineBar(_PacedBar):
    """A bar for a log file: a line at the end, and one every `LINE_EVERY_S` on the way."""

    def __init__(self, console: Console, description: str, pace: _Pace) -> None:
        super().__init__(pace)
        self.console = console
        self.description = description
        self.text = ""
        self.printed = pace.started

    def moved(self) -> None:
        if time.monotonic() - self.printed >= LINE_EVERY_S:
            self.print()

    def note(self, text: str) -> None:
        self.text = text

    def print(self) -> None:
        self.printed = time.monotonic()
        pace = self.pace
        passed = timedelta(seconds=round(self.printed - pace.started))
        whole = "?" if pace.total is None else pace.total
        parts = (f"{self.description}  {pace.done}/{whole}  {passed}", pace.words(), self.text)
        line = "  ".join(part for part in parts if part)
        self.console.print(line, highlight=False, markup=False, soft_wrap=True)


def show_progress(enabled: bool = True) -> None:
    """Turn progress bars on standard error on or off for this process."""
    global _console
    _console = SafeConsole(file=sys.stderr) if enabled else None


@contextmanager
def progress_bar(description: str, total: int | None, unit: str = "") -> Iterator[Bar]:
    """Show the progress of the block in `total` steps (None: unknown), and the remaining time.

    With a `unit`, the plural name of a step, the bar also shows steps per second.
    """
    if _console is None:
        yield Bar()
        return
    pace = _Pace(total, unit)
    if not _console.is_terminal:
        bar = _LineBar(_console, description, pace)
        try:
            yield bar
        finally:
            bar.print()
        return
    columns = (
        TextColumn("{task.description:<28}"),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[pace]}"),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=_console) as progress:
        yield _RichBar(progress, description, pace)


def track(
    items: Iterable[Item], description: str, total: int | None = None, every: int = 1
) -> Iterator[Item]:
    """Yield the items and advance a bar; the bar is redrawn after every `every` items."""
    count = 0
    with progress_bar(description, total) as bar:
        for count, item in enumerate(items, start=1):
            yield item
            if count % every == 0:
                bar.advance(every)
        bar.advance(count % every)


@contextmanager
def quiet_tools() -> Iterator[None]:
    """Disable log messages below errors, and keep the existing handlers.

    Use it around the tools' import too: one of the modules configures the root logger.
    """
    root, disabled = logging.getLogger(), logging.root.manager.disable
    handlers = [*root.handlers]
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(disabled)
        root.handlers[:] = handlers
