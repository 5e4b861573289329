"""RUNTIMES as parameters of tests: those that are not installed are skipped, and say so."""

from __future__ import annotations

from typing import Any

import pytest

from bertender.core.hardware import gpu_problem
from bertender.models.runtimes import RUNTIMES, WITH_INTEGERS

__all__ = ["ATOL", "EVERY_RUNTIME", "EVERY_RUNTIME_WITH_INTEGERS", "needs", "with_integers"]

ATOL = {"float32": 1e-5, "bfloat16": 5e-2}
"""Most that a logit of a toy model differs, by what a runtime computes floats in."""


def needs(name: str) -> pytest.MarkDecorator:
    """Return the mark that skips a test where a runtime is not installed."""
    runtime = RUNTIMES[name]
    flags = runtime.lacking_flags()
    return pytest.mark.skipif(
        runtime.version is None or bool(flags) or (runtime.needs_gpu and gpu_problem() != ""),
        reason=f"needs {runtime.title}: {runtime.install} {' or '.join(flags)}",
    )


EVERY_RUNTIME = [pytest.param(name, marks=needs(name)) for name in RUNTIMES]


def with_integers(*quick: str) -> list[Any]:
    """Return all that multiply integers; those that are not named are for `make test-slow`."""
    return [
        pytest.param(name, marks=[needs(name), *([] if name in quick else [pytest.mark.slow])])
        for name in WITH_INTEGERS
    ]


EVERY_RUNTIME_WITH_INTEGERS = [pytest.param(name, marks=needs(name)) for name in WITH_INTEGERS]
