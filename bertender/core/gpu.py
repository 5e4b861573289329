"""The NVIDIA GPU of this machine, by its driver. Loads no other library."""

from __future__ import annotations

import ctypes
import functools

__all__ = ["gpu_name"]

DRIVER = "libcuda.so.1"
LONGEST_NAME = 128
"""Bytes."""


@functools.cache
def gpu_name() -> str | None:
    """Return the name of the first GPU that this process may use; None where there is none."""
    try:
        driver = ctypes.CDLL(DRIVER)
    except OSError:
        return None
    device, name = ctypes.c_int(), ctypes.create_string_buffer(LONGEST_NAME)
    failed = (  # each returns 0 for success
        driver.cuInit(0)  # not where the driver has no GPU
        or driver.cuDeviceGet(ctypes.byref(device), 0)
        or driver.cuDeviceGetName(name, LONGEST_NAME, device)
    )
    return None if failed else name.value.decode()
