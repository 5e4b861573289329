"""RUNTIMES as parameters of tests: those that are not installed are skipped, and say so."""

from __future__ import annotations

import pytest

from bertender.models.runtimes import RUNTIMES

__all__ = ["EVERY_RUNTIME", "needs"]


def needs(name: str) -> pytest.MarkDecorator:
    """Return the mark that skips a test where a runtime is not installed."""
    runtime = RUNTIMES[name]
    return pytest.mark.skipif(
        runtime.version is None, reason=f"needs {runtime.title}: {runtime.install}"
    )


EVERY_RUNTIME = [pytest.param(name, marks=needs(name)) for name in RUNTIMES]
