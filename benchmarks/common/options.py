"""Arguments and options that several commands declare."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bertender.core.config import parts_of

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


def names_in(value: str) -> list[str]:
    """Return the names of a list by commas, each once; empty parts are none."""
    return [*dict.fromkeys(filter(None, parts_of(value)))]
