"""The Python processes of a candidate: ended where it hangs, so that the server is rid of it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import psutil

from serve.supervisor import STUB_NAME

__all__ = ["end_stubs"]


def end_stubs(candidate: Path) -> None:
    """End the stubs of a candidate, by the folder of its model; Triton then lets it go."""
    for process in psutil.process_iter(["cmdline"]):
        with suppress(psutil.Error):  # it has ended itself, or is another user's
            if _is_of(candidate, process):
                process.kill()


def _is_of(candidate: Path, process: psutil.Process) -> bool:
    words = process.info["cmdline"] or []
    if len(words) < 2 or Path(words[0]).name != STUB_NAME:
        return False
    # relative to the folder where its server runs, and through a link to the repository
    code = Path(process.cwd(), words[1]).resolve()
    return candidate.resolve() in code.parents
