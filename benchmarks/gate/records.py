"""Records of the benchmark of the gate."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field

from bertender.core.config import Record
from bertender.core.machine import Environment
from bertender.gate.figures import Figures
from bertender.gate.tolerances import Tolerance
from bertender.metrics.resampling import Change

__all__ = ["GateBenchmark", "Judged"]


class Judged(Record):
    """A candidate and the gate's findings of it."""

    teacher: str
    variant: str = Field(description="a row of VARIANTS")
    fault: str | None = Field(description="a row of FAULTS; None of a sound candidate")
    refused_by: tuple[str, ...] = Field(
        description="every check that refused it; of a fault the first alone"
    )
    refused_by_logits: tuple[str, ...] | None = Field(
        None, description="every check of the logits that did; None in older results"
    )
    figures: Figures | None = Field(
        None, description="what the checks of the logits judge; None in older results"
    )
    change: Change | None = Field(
        description="of the score on all held-out texts, where it was asked"
    )


class GateBenchmark(Record):
    """Every candidate, judged."""

    environment: Environment
    bounds: Mapping[str, Tolerance] | None = Field(
        None, description="of the gate that judged, by precision; None in older results"
    )
    candidates: tuple[Judged, ...]
