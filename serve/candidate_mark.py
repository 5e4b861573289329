"""A mark of the processes of candidates, where the supervisor looks: they may die.

The process of a model that has died has no command line any more that would tell which it was.
"""

from __future__ import annotations

import os
from pathlib import Path

from serve.wire import CANDIDATE_SUFFIX

__all__ = ["CANDIDATE_PREFIX", "mark_candidate"]

CANDIDATE_PREFIX = "candidate-"  # the supervisor, which imports its own files only, repeats it


def mark_candidate(workspace: str | None, model: str) -> None:
    """Mark this process in the server's workspace where its model is a candidate."""
    if not workspace:
        return
    mark = Path(workspace, f"{CANDIDATE_PREFIX}{os.getpid()}")
    if model.endswith(CANDIDATE_SUFFIX):
        mark.touch()
    else:
        mark.unlink(missing_ok=True)  # numbers of processes are used again
