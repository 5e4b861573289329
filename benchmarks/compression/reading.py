"""The reading of the table of systems: which of them are above labels alone, and which below."""

from __future__ import annotations

from benchmarks.common.words import above, below, holding, paragraph, ticked
from benchmarks.compression.gains import control_of, gains_of
from benchmarks.compression.records import CompressionBenchmark

__all__ = ["compression_reading"]


def compression_reading(result: CompressionBenchmark) -> str:
    """Return on which side of the control the systems are, by their intervals."""
    gains, control = gains_of(result), control_of(result)
    if control is None:
        return paragraph("No baseline: every system was trained with a teacher.")
    return paragraph(
        f"Against labels alone (`{control}`), by the intervals: above {ticked(above(gains))}; "
        f"below {ticked(below(gains))}; not distinguished {ticked(holding(gains))}."
    )
