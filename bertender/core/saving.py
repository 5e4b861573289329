"""Writing of results: all of a file appears, or the earlier one stays."""

from __future__ import annotations

from pathlib import Path

from bertender.core.atomic import replacing, unusable_parent
from bertender.core.config import Record
from bertender.core.errors import ConfigError

__all__ = ["check_savable", "save_result", "save_text"]


def check_savable(flag: str, out: Path | None, kind: str) -> None:
    """Raise ConfigError where no file can be written, before minutes of work and not after.

    Args:
        flag: what names the file, for the message: "--out".
        out: the file; None where none is asked for.
        kind: of the file, for the message: "JSON".
    """
    if out is None:
        return
    if out.is_dir():
        raise ConfigError(f"{flag} {out} is a directory; give the name of a {kind} file.")
    if nearest := unusable_parent(out):
        raise ConfigError(
            f"{flag} {out} cannot be written: {nearest} is not a folder that this user may write "
            "to. Give another name."
        )


def save_result(result: Record, out: Path) -> None:
    """Write a measurement as JSON at `out`."""
    save_text(result.model_dump_json(indent=1) + "\n", out)


def save_text(text: str, out: Path) -> None:
    """Write a file at `out`."""
    with replacing(out) as temporary:
        temporary.write_text(text, encoding="utf-8")
