"""Arguments and options that several commands declare."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Annotated

import typer

from bertender.core.config import parts_of
from bertender.core.errors import ConfigError

__all__ = [
    "HeldOutTaskOption",
    "LimitOption",
    "OnnxArtifactArguments",
    "OptionalOutFile",
    "OutFile",
    "PinFlag",
    "RuntimesOption",
    "ServedArtifactArgument",
    "SloOption",
    "ThreadsOption",
    "names_in",
]

OnnxArtifactArguments = Annotated[list[Path], typer.Argument(help="ONNX artifacts of one task")]
ServedArtifactArgument = Annotated[
    Path, typer.Argument(help="ONNX artifact of a task on single texts")
]
OutFile = Annotated[Path, typer.Option(help="the JSON to write")]
OptionalOutFile = Annotated[Path | None, typer.Option(help="the JSON to write")]

RuntimesOption = Annotated[str, typer.Option(help="by commas")]
ThreadsOption = Annotated[int, typer.Option(help="of every runtime; 0: every core")]

HeldOutTaskOption = Annotated[str, typer.Option(help="its held-out texts are sent")]
LimitOption = Annotated[
    float | None, typer.Option(help="requests/s, where known; by default it is looked for")
]
SloOption = Annotated[float, typer.Option(help="p99 that must hold, in milliseconds")]
PinFlag = Annotated[bool, typer.Option(help="server on core 0, all else on core 1")]


def names_in(
    option: str, value: str, known: Collection[str] = (), *, required: bool = False
) -> list[str]:
    """Return the names in a list by commas, each once, without blanks and empty parts.

    Args:
        option: as it is written, for the error.
        value: the list.
        known: what may be named, for the error.
        required: whether it needs a name; else an empty one stands for a default.

    Raises:
        ConfigError: there is something in the list, and no name, or a name is required.
    """
    names = [*dict.fromkeys(filter(None, parts_of(value)))]
    if not names and (value or required):
        there_are = f"There are {', '.join(known)}." if known else "Give names by commas."
        raise ConfigError(f"{option} {value!r} names none. {there_are}")
    return names
