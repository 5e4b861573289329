"""The table of what to try first on which machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from bertender.models.runtimes import RUNTIMES
from bertender.pipeline.advice import ADVICE, USES, Advice, Choice
from bertender.report.cells import markdown_rows

__all__ = ["advice_block"]

GPU_PACKAGE = "[`onnxruntime-gpu`](install.md#for-a-gpu)"


def advice_block(files: Mapping[str, Path]) -> str:
    """Return a row for each row of ADVICE."""
    uses = (f"{words[0].upper()}{words[1:]}" for words in USES.values())
    headings = ("Your machine has", *uses, "Why", "Measured with")
    heads, *rows = [tuple((cell,) for cell in each) for each in (headings, *map(_cells, ADVICE))]
    return "\n".join([*markdown_rows(heads, rows, [False] * len(headings)), ""])


def _cells(row: Advice) -> Sequence[str]:
    first, *others = [_choice(row.choices[use]) for use in USES]
    choices = first, *("the same" if each == first else each for each in others)
    return row.machine, *choices, row.why, row.basis


def _choice(choice: Choice) -> str:
    runtime = RUNTIMES[choice.runtime]
    flags = " or ".join(f"`{flag}`" for flag in runtime.cpu_flags)
    needed = f"a CPU with {flags}" if flags else GPU_PACKAGE if runtime.needs_gpu else ""
    commands = ", then ".join(f"`{command}`" for command in choice.commands)
    return f"{commands} (needs {needed})" if needed else commands
