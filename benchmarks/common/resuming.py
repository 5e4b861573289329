"""Benchmarks that go on where an earlier call of the same command has stopped.

This is not `build_once`: a result that is half done is neither reused nor made again but completed,
and one of other settings is refused, since hours of measuring may be in it.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TypeVar

import typer
from pydantic import ValidationError

from bertender.core.config import Record

__all__ = ["continued"]

Result = TypeVar("Result", bound=Record)


def continued(now: Result, out: Path, *parts: str, may_differ: Collection[str] = ()) -> Result:
    """Return a result with what an earlier file has of it already.

    Args:
        now: a result under way, without parts.
        out: the file, which need not be there.
        parts: the fields of what is measured one after another.
        may_differ: fields that may differ when it continues.

    Raises:
        BadParameter: the file is something else, or was made with other settings.
    """
    if not out.is_file():
        return now
    try:
        earlier = type(now).model_validate_json(out.read_text(encoding="utf-8"))
    except ValidationError as error:
        raise typer.BadParameter(
            f"{out} is not a result of this benchmark: {error}. Give another --out"
        ) from None
    others = [
        name
        for name in type(now).model_fields
        if name not in (*parts, *may_differ) and getattr(earlier, name) != getattr(now, name)
    ]
    if others:
        raise typer.BadParameter(
            f"{out} was made with other {', '.join(others)}: give another --out"
        )
    return now.model_copy(update={name: getattr(earlier, name) for name in parts})
