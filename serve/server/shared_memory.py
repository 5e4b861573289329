"""Room in shared memory, through which Triton and its Python stubs exchange tensors."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from bertender.core.errors import ServingError
from serve.config import ServeConfig
from serve.server.installation import STUB_NAME

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - the kernel's folder, nothing is made here

REGION_BYTES = 2 * 1024 * 1024
"""What Triton takes for each stub before the first request, and a little more for responses."""

REGION_WORD = 1
"""Of a stub's arguments: the model, the name of its region in shared memory."""


def close_region(command: bytes, folder: Path = SHARED_MEMORY) -> None:
    """Let no other user read a stub's region, before it has a text.

    `bertender serve` makes it so from the start; another Triton does not. A later version may name
    the region in another place: nothing but a file of the folder is closed.

    Args:
        command: the stub's program and arguments, each with a zero byte at its end.
        folder: of the regions.
    """
    program, *words = map(os.fsdecode, command.split(b"\0"))
    if Path(program).name != STUB_NAME or len(words) <= REGION_WORD:
        return
    name = words[REGION_WORD].removeprefix("/")
    with suppress(OSError):  # it has gone, or is of another user
        if "/" not in name and (folder / name).is_file():
            (folder / name).chmod(0o600)


def needed_bytes(config: ServeConfig, inputs: Sequence[int] = (1,)) -> int:
    """Return what a server takes whose requests are as many and as long as its limits allow.

    Each stub may have a full queue, a batch that runs, and a batch of bodies that have come but are
    not in the queue yet.

    Args:
        config: of the server.
        inputs: texts of an example, for each of its models.
    """
    texts = max(config.queue_texts, config.max_batch_size) + 2 * config.max_batch_size
    of_models = (REGION_BYTES + texts * columns * config.max_text_bytes for columns in inputs)
    return config.instances * sum(of_models)


def check_shared_memory(config: ServeConfig, inputs: Sequence[int] = (1,)) -> None:
    """Check that there is room for what the server's own limits let in; see `needed_bytes`.

    Raises:
        ServingError: there is too little, or no shared memory at all.
    """
    try:
        free = shutil.disk_usage(SHARED_MEMORY).free
    except OSError as error:
        raise ServingError(f"no shared memory at {SHARED_MEMORY}: {error.strerror}.") from None
    needed = needed_bytes(config, inputs)
    if free < needed:
        raise ServingError(
            f"{SHARED_MEMORY} has {free / 2**20:.1f} MiB free, and the server takes "
            f"{needed / 2**20:.1f} MiB. Make it larger (docker run --shm-size, or a volume in "
            "memory there), or lower --max-text-bytes, --max-queue-texts, --max-batch-size or "
            "--instances of `bertender serve`."
        )
