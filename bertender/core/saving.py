"""Writing of results: all of a file appears, or the earlier one stays."""

from __future__ import annotations

from pathlib import Path

from bertender.core.atomic import replacing
from bertender.core.config import Record

__all__ = ["save_result", "save_text"]


def save_result(result: Record, out: Path) -> None:
    """Write a measurement as JSON at `out`."""
    save_text(result.model_dump_json(indent=1) + "\n", out)


def save_text(text: str, out: Path) -> None:
    """Write a file at `out`."""
    with replacing(out) as temporary:
        temporary.write_text(text, encoding="utf-8")
