"""Writing on the main process of a distributed run, while the others wait."""

from __future__ import annotations

from collections.abc import Callable

import torch

__all__ = ["is_main_process", "on_main_process"]


def is_main_process() -> bool:
    """Return whether this process writes the artifacts of a distributed run."""
    return not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0


def on_main_process(action: Callable[[], None]) -> None:
    """Run `action` on the main process while the others of a distributed run wait for it."""
    if is_main_process():
        action()
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
