"""Room in shared memory, through which Triton and its Python stubs exchange tensors."""

from __future__ import annotations

import shutil
from pathlib import Path

from bertender.core.errors import ServingError
from serve.config import ServeConfig

__all__ = ["check_shared_memory", "needed_bytes"]

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - the kernel's folder, nothing is made here

REGION_BYTES = 2 * 1024 * 1024
"""What Triton takes for each stub before the first request, and a little more."""


def needed_bytes(config: ServeConfig, models: int = 1) -> int:
    """Return the least that a server takes: for each stub, a full batch of the longest texts."""
    return (
        models * config.instances * (REGION_BYTES + config.max_batch_size * config.max_text_bytes)
    )


def check_shared_memory(config: ServeConfig, models: int = 1) -> None:
    """Check that there is room, before a request meets a stub that dies for want of it.

    Raises:
        ServingError: there is too little, or no shared memory at all.
    """
    try:
        free = shutil.disk_usage(SHARED_MEMORY).free
    except OSError as error:
        raise ServingError(f"no shared memory at {SHARED_MEMORY}: {error.strerror}.") from None
    needed = needed_bytes(config, models)
    if free < needed:
        raise ServingError(
            f"{SHARED_MEMORY} has {free / 2**20:.1f} MiB free, and the server takes "
            f"{needed / 2**20:.1f} MiB. Make it larger (docker run --shm-size, or a volume in "
            "memory there), or lower --max-batch-size, --max-text-bytes or --instances of "
            "`bertender serve`."
        )
