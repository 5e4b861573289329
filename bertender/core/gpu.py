"""The NVIDIA GPU of this machine, by its driver. Loads no other library."""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass

__all__ = ["Gpu", "gpu", "gpu_name", "gpu_problem"]

DRIVER = "libcuda.so.1"
LONGEST_NAME_BYTES = 128
SUCCESS = 0


@dataclass(frozen=True)
class Gpu:
    """The first GPU that this process may use."""

    name: str | None
    """None where there is none that works."""
    failure: str = ""
    """The error of the driver, where there is none."""


@functools.cache
def gpu() -> Gpu:
    """Return the first GPU; looked up once a process."""
    try:
        driver = ctypes.CDLL(DRIVER)
    except OSError:
        return Gpu(None, f"{DRIVER} cannot be loaded")
    device, name = ctypes.c_int(), ctypes.create_string_buffer(LONGEST_NAME_BYTES)
    calls = {
        "cuInit": (0,),  # fails where the driver has no GPU, or is not the one of its library
        "cuDeviceGet": (ctypes.byref(device), 0),
        "cuDeviceGetName": (name, LONGEST_NAME_BYTES, device),
    }
    for call, arguments in calls.items():
        if (result := getattr(driver, call)(*arguments)) != SUCCESS:
            return Gpu(None, f"{call} of the driver returns {result}")
    return Gpu(name.value.decode())


def gpu_name() -> str | None:
    """Return the name of the first GPU; None where there is none."""
    return gpu().name


def gpu_problem() -> str:
    """Return why nothing can run on a GPU, as the end of a sentence; empty where it can."""
    if gpu().name is not None:
        return ""
    return f"needs an NVIDIA GPU with its driver, and this process sees none: {gpu().failure}"
