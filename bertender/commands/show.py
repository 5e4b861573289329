"""What the commands print: results as one line of JSON, or in words for a person."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from bertender.core.artifact import Artifact
from bertender.measure.size import measure_size

__all__ = ["artifact_summary", "console", "messages", "print_artifact", "print_json", "print_rows"]

console = Console()
messages = Console(stderr=True)
"""For what is said on the way: standard output is for results."""


def print_json(value: Any) -> None:
    """Print a result as one line of JSON, the last thing on standard output."""
    print(json.dumps(value, ensure_ascii=False, default=str))


def artifact_summary(artifact: Artifact) -> dict[str, Any]:
    """Return what a stage's JSON says of the artifact that it wrote."""
    card = artifact.card
    return {
        "artifact": str(artifact.path),
        "digest": artifact.digest,
        "stage": card.stage,
        "kind": card.kind,
        "precision": card.precision,
        "size": measure_size(artifact, _parameters(artifact)).model_dump(mode="json"),
        "metrics": card.metrics,
    }


def print_artifact(artifact: Artifact) -> None:
    """Say in one or two lines what a stage has written."""
    size_bytes = sum(record.size_bytes for record in artifact.card.files.values())
    console.print(
        f"[bold]{artifact.path}[/bold]: {artifact.card.kind}, {artifact.card.precision}, "
        f"{_parameters(artifact) / 1e6:.1f}M parameters, {size_bytes / 1e6:.1f} MB",
        highlight=False,
    )
    for line in _measured(artifact.card.metrics):
        console.print(f"  {line}", highlight=False)


def print_rows(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a plain table."""
    table = Table(*headings, box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for row in rows:
        table.add_row(*row)
    console.print(table)


def _parameters(artifact: Artifact) -> int:
    return int(artifact.card.metrics.get("parameters", 0))


def _measured(metrics: Mapping[str, Any]) -> list[str]:
    lines = []
    if metrics.get("epochs"):
        scores = ", ".join(f"{name} {value:.4g}" for name, value in metrics["epochs"][-1].items())
        lines.append(f"held-out after the last epoch: {scores}")
    if parity := metrics.get("parity"):
        lines.append(
            f"parity with {parity['reference']}: agreement {parity['agreement']:.4f} over "
            f"{parity['texts']} texts, largest logit difference {parity['max_abs_difference']:.2g}"
        )
    return lines
