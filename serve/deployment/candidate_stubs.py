"""The Python processes of a candidate: ended where it hangs, so that the server is rid of it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import psutil

from serve.supervisor import STUB_NAME

__all__ = ["end_stubs"]


def end_stubs(candidate: Path) -> None:
    """End the stubs of a candidate, by the folder of its model; Triton then lets it go."""
    for process in psutil.process_iter(["name", "cmdline"]):
        if _is_of(candidate, process.info):
            with suppress(psutil.Error):  # it has ended itself
                process.kill()


def _is_of(candidate: Path, info: dict[str, object]) -> bool:
    words = info["cmdline"]
    return (
        isinstance(words, list)
        and len(words) > 1
        and Path(words[0]).name == STUB_NAME
        and candidate in Path(words[1]).parents
    )
