"""Writing on the main process of a distributed run, while the others wait."""

from __future__ import annotations

import sys
from collections.abc import Callable

__all__ = ["is_main_process", "on_main_process"]


def is_main_process() -> bool:
    """Return whether this process writes the artifacts of a distributed run."""
    if not _is_distributed():
        return True
    from torch import distributed

    return distributed.get_rank() == 0


def on_main_process(action: Callable[[], None]) -> None:
    """Run `action` on the main process while the others of a distributed run wait for it."""
    if is_main_process():
        action()
    if _is_distributed():
        from torch import distributed

        distributed.barrier()


def _is_distributed() -> bool:
    """Return whether this process is one of several; none is without PyTorch, which is not loaded
    to find out."""
    if "torch" not in sys.modules:
        return False
    from torch import distributed

    return distributed.is_initialized()
