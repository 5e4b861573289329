"""Saving of results: no noisy figure enters `benchmarks/results` or the documents made from it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from bertender.core.config import Record
from bertender.core.errors import MachineBusyError
from bertender.core.files import save_result
from bertender.core.machine_load import BUSY_SHARE, noisy_loads

__all__ = ["RESULTS", "NoisyFlag", "check_noisy_files", "check_noisy_out", "save_benchmark"]

RESULTS = Path(__file__).resolve().parents[1] / "results"

NoisyFlag = Annotated[
    bool, typer.Option("--noisy", help="time on a busy machine as well, for no published figure")
]


def save_benchmark(result: Record, out: Path) -> None:
    """Write a benchmark's result as JSON.

    Raises:
        MachineBusyError: it holds figures of a busy machine, and `out` is where published ones are.
    """
    loads = noisy_loads(result.model_dump(mode="json"))
    if loads and _is_published(out):
        raise MachineBusyError(
            f"{out.name} would hold figures of a busy machine ({loads[0]}; allowed are "
            f"{BUSY_SHARE:.0%}), which never enter {RESULTS.name}/. Stop the other work and run it "
            "again, or give an --out elsewhere."
        )
    save_result(result, out)


def check_noisy_out(noisy: bool, out: Path | None) -> None:
    """Raise BadParameter where figures are timed for nothing, since they could not be saved."""
    if noisy and out is not None and _is_published(out):
        raise typer.BadParameter(
            f"--noisy: figures of a busy machine never enter {RESULTS.name}/. Give an --out "
            "elsewhere, or leave it out."
        )


def check_noisy_files(paths: Iterable[Path]) -> None:
    """Raise MachineBusyError for raw results from which no document may be made."""
    for path in paths:
        if loads := noisy_loads(json.loads(path.read_text(encoding="utf-8"))):
            raise MachineBusyError(
                f"{path.name} holds figures of a busy machine ({loads[0]}; allowed are "
                f"{BUSY_SHARE:.0%}), and no document is made from them. Measure it again where "
                "nothing else runs."
            )


def _is_published(out: Path) -> bool:
    return RESULTS in out.resolve().parents
