"""Operators that a runtime really runs after it has opened a quantized graph."""

from __future__ import annotations

from pathlib import Path

from bertender.core.errors import GateError
from bertender.models.runtimes import DEFAULT_RUNTIME, RUNTIMES

__all__ = ["INTEGER_PRODUCTS", "check_kernels", "operators"]

INTEGER_PRODUCTS = RUNTIMES[DEFAULT_RUNTIME].integer_products
"""Operators of ONNX Runtime that multiply by integer weights."""


def operators(graph: Path, runtime: str = DEFAULT_RUNTIME) -> dict[str, int]:
    """Count the operators of a graph as a runtime runs it on this CPU, after its fusions."""
    return RUNTIMES[runtime].operators(graph)


def check_kernels(actual: dict[str, int], wanted: int, runtime: str = DEFAULT_RUNTIME) -> int:
    """Return how many products run in integers, or raise GateError if fewer than were quantized.

    Args:
        actual: the counts of `operators`.
        wanted: how many products were quantized.
        runtime: what counted them.
    """
    row = RUNTIMES[runtime]
    running = sum(count for name, count in actual.items() if name in row.integer_products)
    if running < wanted:
        raise GateError(
            f"{wanted} products were quantized and {row.title} runs {running} of them in integers; "
            "all are required. The others would be turned back into floats for each batch, slower "
            "than before. Its version may lack a fusion: install the one of constraints.txt, or "
            "use another --scheme."
        )
    return running
